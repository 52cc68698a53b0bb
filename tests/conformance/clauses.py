"""
The numbered MUSTs of both specifications, in our words, and who could break each.

One line a clause: number, who (``s`` the server, ``c`` only a client, ``-`` a part of the protocol
that is not offered), what. ``@clauses`` names those that a test covers and runs it once for
each version it names; ``table`` writes what became of them all.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

import pytest

from protocols.mqtt.packets import V5, V311


class Clause(NamedTuple):
    """One MUST."""

    number: str
    who: str
    text: str


V5_TEXT: Final = """
1.5.4-1 s strings are well-formed UTF-8 without surrogates
1.5.4-2 s no U+0000 in a string
1.5.4-3 s U+FEFF is kept wherever it stands
1.5.5-1 s variable byte integers take as few bytes as they can
1.5.7-1 s both halves of a string pair are strings
2.1.3-1 s reserved flags have their value
2.2.1-2 s no packet id at QoS 0
2.2.1-3 s a client's packet ids are not 0
2.2.1-4 s a server's packet ids are not 0 and not in use
2.2.1-5 s acknowledgements carry the id of their publish
2.2.1-6 s SUBACK and UNSUBACK carry the id of their request
2.2.2-1 s no properties: a length of zero
3.1.0-1 s CONNECT comes first
3.1.0-2 s a second CONNECT ends the connection
3.1.2-1 s the protocol is named MQTT
3.1.2-2 s a version we do not speak: 0x84, and closed
3.1.2-3 s the reserved connect flag is 0
3.1.2-4 s Clean Start 1 discards the session
3.1.2-5 s Clean Start 0 resumes the session
3.1.2-6 s Clean Start 0 without a session makes one
3.1.2-7 s the will is kept with the session
3.1.2-8 s the will is published when the connection ends without DISCONNECT 0
3.1.2-9 s a will has properties, topic and payload
3.1.2-10 s a will is published once and not after DISCONNECT 0
3.1.2-11 s no will: will QoS 0
3.1.2-12 s will QoS is 0, 1 or 2
3.1.2-13 s no will: will retain 0
3.1.2-14 s will retain 0: not retained
3.1.2-15 s will retain 1: retained
3.1.2-16 s no user name flag: no user name
3.1.2-17 s user name flag: a user name
3.1.2-18 s no password flag: no password
3.1.2-19 s password flag: a password
3.1.2-20 c a silent client pings
3.1.2-21 c a client uses Server Keep Alive
3.1.2-22 s silent for 1.5 times the keep alive: closed
3.1.2-23 s a session is kept for its expiry
3.1.2-24 s nothing over the client's Maximum Packet Size is sent
3.1.2-25 s a publish too large for the client counts as delivered
3.1.2-26 s no alias above the client's maximum
3.1.2-27 s no alias where the client takes none
3.1.2-28 s no Response Information unless asked for
3.1.2-29 s no reason strings where problem information is not wanted
3.1.2-30 s with a method, only AUTH and DISCONNECT before CONNACK
3.1.3-1 s payload fields in their order
3.1.3-2 s the client id names the session
3.1.3-3 s a client id is present
3.1.3-4 s the client id is a string
3.1.3-5 s 1 to 23 letters and digits are allowed
3.1.3-6 s an empty client id gets one of its own
3.1.3-7 s the assigned id is told, and is as good as the client's own
3.1.3-8 s a client id that is refused: 0x85, and closed
3.1.3-9 s a connection within the delay cancels the will
3.1.3-10 s user properties of a will keep their order
3.1.3-11 s the will topic is a string
3.1.3-12 s the user name is a string
3.1.4-1 s a CONNECT that is none is refused
3.1.4-2 s who is not let in is closed
3.1.4-3 s the older connection of a client id is told 0x8E and closed
3.1.4-4 s Clean Start is acted on
3.1.4-5 s CONNACK 0 answers a good CONNECT
3.1.4-6 s nothing behind a refused CONNECT is processed
3.2.0-1 s CONNACK comes before all else
3.2.0-2 s one CONNACK only
3.2.2-1 s the acknowledge flags' reserved bits are 0
3.2.2-2 s Clean Start 1: Session Present 0
3.2.2-3 s Clean Start 0: Session Present tells whether there was one
3.2.2-4 c a client closes if a session is present that it does not know
3.2.2-5 c a client forgets a session that is not present
3.2.2-6 s a refusal has Session Present 0
3.2.2-7 s a refusal closes
3.2.2-8 s CONNACK has a reason of its table
3.2.2-9 s a Maximum QoS below 2 is told
3.2.2-10 s subscriptions of a higher QoS are taken all the same
3.2.2-11 c a client keeps to Maximum QoS
3.2.2-12 s a will above Maximum QoS is refused
3.2.2-13 s a retained will is refused where nothing is retained
3.2.2-14 c a client keeps to Retain Available
3.2.2-15 s a packet over our Maximum Packet Size ends the connection
3.2.2-16 s an assigned id is new
3.2.2-17 c a client keeps to Topic Alias Maximum
3.2.2-18 c a client sends no alias where none is allowed
3.2.2-19 s no reason string makes CONNACK too large
3.2.2-20 s no user property makes CONNACK too large
3.2.2-21 s Server Keep Alive is in force once told
3.2.2-22 s else the client's keep alive is
3.3.1-1 s DUP is set on what is sent again
3.3.1-2 s DUP is 0 at QoS 0
3.3.1-3 s DUP is not passed on
3.3.1-4 s QoS 3 is malformed
3.3.1-5 s RETAIN replaces the retained message
3.3.1-6 s an empty one is delivered and removes it
3.3.1-7 s an empty one is not retained
3.3.1-8 s without RETAIN nothing retained changes
3.3.1-9 s Retain Handling 0: retained messages at each SUBSCRIBE
3.3.1-10 s Retain Handling 1: only for a new subscription
3.3.1-11 s Retain Handling 2: never
3.3.1-12 s Retain As Published 0: RETAIN 0 on what is live
3.3.1-13 s Retain As Published 1: RETAIN as it came
3.3.2-1 s a topic name comes first and is a string
3.3.2-2 s no wildcards in a topic name
3.3.2-3 s what is delivered matches the subscription
3.3.2-4 s Payload Format is passed on
3.3.2-5 s what expired before its delivery is dropped
3.3.2-6 s the expiry passed on is what is left
3.3.2-7 s aliases end with their connection
3.3.2-8 s an alias is not 0
3.3.2-9 s an alias above our maximum ends the connection
3.3.2-10 c a client takes all aliases up to its maximum
3.3.2-11 s no alias above the client's maximum is sent
3.3.2-12 s all aliases up to our maximum are taken
3.3.2-13 s the response topic is a string
3.3.2-14 s no wildcards in a response topic
3.3.2-15 s the response topic is passed on
3.3.2-16 s correlation data is passed on
3.3.2-17 s user properties are passed on
3.3.2-18 s user properties keep their order
3.3.2-19 s the content type is a string
3.3.2-20 s the content type is passed on
3.3.4-1 s a publish is answered as its QoS says
3.3.4-2 s overlapping subscriptions: the highest QoS
3.3.4-3 s the identifiers of matching subscriptions are told
3.3.4-4 s one copy carries all of them
3.3.4-5 - one copy is sent, never several
3.3.4-6 s a client's publish has no subscription identifier
3.3.4-7 s over our Receive Maximum: 0x93
3.3.4-8 c a client's other packets do not wait for its quota
3.3.4-9 s never more unanswered than the client's Receive Maximum
3.3.4-10 s other packets do not wait for that
3.4.2-1 s PUBACK has a reason of its table
3.4.2-2 s no reason string makes PUBACK too large
3.4.2-3 s no user property makes PUBACK too large
3.5.2-1 s PUBREC has a reason of its table
3.5.2-2 s no reason string makes PUBREC too large
3.5.2-3 s no user property makes PUBREC too large
3.6.1-1 s PUBREL's flags are 0010
3.6.2-1 s PUBREL has a reason of its table
3.6.2-2 s no reason string makes PUBREL too large
3.6.2-3 s no user property makes PUBREL too large
3.7.2-1 s PUBCOMP has a reason of its table
3.7.2-2 s no reason string makes PUBCOMP too large
3.7.2-3 s no user property makes PUBCOMP too large
3.8.1-1 s SUBSCRIBE's flags are 0010
3.8.3-1 s filters are strings
3.8.3-2 s SUBSCRIBE has a filter
3.8.3-3 s No Local: nothing of one's own
3.8.3-4 s no No Local on a shared subscription
3.8.3-5 s reserved option bits are 0
3.8.4-1 s SUBSCRIBE is answered by SUBACK
3.8.4-2 s SUBACK has its packet id
3.8.4-3 s the same filter replaces the subscription
3.8.4-4 s replacing loses nothing and sends what is retained
3.8.4-5 s several filters are as several requests
3.8.4-6 s a reason for each filter
3.8.4-7 s it is the QoS granted, or a failure
3.8.4-8 s the QoS delivered is the lower of publish and grant
3.9.2-1 s no reason string makes SUBACK too large
3.9.2-2 s no user property makes SUBACK too large
3.9.3-1 s SUBACK's reasons in the order of the filters
3.9.3-2 s SUBACK has reasons of its table
3.10.1-1 s UNSUBSCRIBE's flags are 0010
3.10.3-1 s its filters are strings
3.10.3-2 s UNSUBSCRIBE has a filter
3.10.4-1 s filters are compared character by character
3.10.4-2 s nothing new after UNSUBSCRIBE
3.10.4-3 s what is under way is completed
3.10.4-4 s UNSUBSCRIBE is answered by UNSUBACK
3.10.4-5 s with its packet id, also where nothing was deleted
3.10.4-6 s several filters are as several requests
3.11.2-1 s no reason string makes UNSUBACK too large
3.11.2-2 s no user property makes UNSUBACK too large
3.11.3-1 s UNSUBACK's reasons in the order of the filters
3.11.3-2 s UNSUBACK has reasons of its table
3.12.4-1 s PINGREQ is answered
3.14.0-1 s no DISCONNECT before CONNACK
3.14.1-1 s DISCONNECT's flags are 0
3.14.2-1 s DISCONNECT has a reason of its table
3.14.2-2 s the server sends no Session Expiry in it
3.14.2-3 s no reason string makes DISCONNECT too large
3.14.2-4 s no user property makes DISCONNECT too large
3.14.4-1 s nothing is sent behind DISCONNECT
3.14.4-2 s DISCONNECT closes
3.14.4-3 s DISCONNECT 0 discards the will
3.15.1-1 s AUTH's flags are 0
3.15.2-1 s AUTH has one of its three reasons
3.15.2-2 - no Reason String is sent in AUTH
3.15.2-3 - no User Property is sent in AUTH
4.1.0-1 s a session is kept while its connection is open
4.1.0-2 s it is gone once its expiry has passed
4.2-1 s an ordered, lossless stream
4.3.1-1 s QoS 0 goes out with DUP 0
4.3.2-1 s QoS 1 out: an unused packet id
4.3.2-2 s QoS 1 out: DUP 0 at first
4.3.2-3 s QoS 1 out: unacknowledged until PUBACK
4.3.2-4 s QoS 1 in: PUBACK once it is ours
4.3.2-5 s QoS 1 in: the same id after PUBACK is a new message
4.3.3-1 s QoS 2 out: an unused packet id
4.3.3-2 s QoS 2 out: DUP 0 at first
4.3.3-3 s QoS 2 out: unacknowledged until PUBREC
4.3.3-4 s QoS 2 out: PUBREL answers PUBREC
4.3.3-5 s QoS 2 out: PUBREL is unacknowledged until PUBCOMP
4.3.3-6 s QoS 2 out: no PUBLISH again after PUBREL
4.3.3-7 s QoS 2 out: no expiry once sent
4.3.3-8 s QoS 2 in: PUBREC once it is ours
4.3.3-9 s QoS 2 in: the same id after a refusal is a new message
4.3.3-10 s QoS 2 in: the same id before PUBREL is the same message
4.3.3-11 s QoS 2 in: PUBCOMP answers PUBREL
4.3.3-12 s QoS 2 in: the same id after PUBCOMP is a new message
4.3.3-13 s QoS 2 in: expiry does not stop the exchange
4.4.0-1 s a resumed session sends again with the same ids, and only then
4.4.0-2 s what was refused is not sent again
4.5.0-1 s an accepted message is in every matching session
4.5.0-2 c a client acknowledges whatever it gets
4.6.0-1 c a client sends again in order
4.6.0-2 c a client's PUBACKs are in order
4.6.0-3 c a client's PUBRECs are in order
4.6.0-4 c a client's PUBRELs are in order
4.6.0-5 s of one publisher, topic and QoS, messages keep their order
4.6.0-6 s and so for every topic
4.7.0-1 s no wildcards in topic names
4.7.1-1 s # stands last and alone in its level
4.7.1-2 s + stands alone in its level
4.7.2-1 s a leading wildcard does not match $
4.7.3-1 s names and filters have a character
4.7.3-2 s and no U+0000
4.7.3-3 s and up to 65,535 bytes
4.7.3-4 s names are matched as they are
4.8.2-1 s a share has a name
4.8.2-2 s without / + #, and a filter behind it
4.8.2-3 s shared: the granted QoS is kept to
4.8.2-4 s shared: QoS 2 under way is completed with its client
4.8.2-5 s shared: or with nobody, if its session ends
4.8.2-6 s shared: what is refused goes to nobody else
4.9.0-1 s the send quota begins above 0
4.9.0-2 s no publish above QoS 0 at quota 0
4.9.0-3 s all other packets are processed at quota 0
4.12.0-1 s an unknown method: 0x8C, and closed
4.12.0-2 s a challenge is an AUTH with 0x18
4.12.0-3 c a client answers AUTH with 0x18
4.12.0-4 s who does not prove it is closed
4.12.0-5 s AUTH and a good CONNACK name the method
4.12.0-6 s no method: no AUTH from the server
4.12.0-7 s no method: AUTH from the client is an error
4.12.1-1 s a client keeps its method
4.12.1-2 s who does not prove it again is told so and closed
4.13.1-1 s a malformed packet or a protocol error closes
4.13.2-1 s a reason of 0x80 or above closes
6.0.0-1 s WebSocket: binary frames only
6.0.0-2 s WebSocket: packets need not fit frames
6.0.0-3 c WebSocket: a client offers mqtt
6.0.0-4 s WebSocket: the server chooses mqtt
"""

V311_TEXT: Final = """
1.5.3-1 s strings are well-formed UTF-8 without surrogates
1.5.3-2 s no U+0000 in a string
1.5.3-3 s U+FEFF is kept wherever it stands
2.2.2-1 s reserved flags have their value
2.2.2-2 s wrong flags close
2.3.1-1 s packet ids are not 0
2.3.1-2 c a client takes an unused packet id
2.3.1-3 c a client sends again under the same id
2.3.1-4 s so does a server
2.3.1-5 s no packet id at QoS 0
2.3.1-6 s acknowledgements carry the id of their publish
2.3.1-7 s SUBACK and UNSUBACK carry the id of their request
3.1.0-1 s CONNECT comes first
3.1.0-2 s a second CONNECT ends the connection
3.1.2-1 s another protocol name is not processed
3.1.2-2 s a level we do not speak: 1, and closed
3.1.2-3 s the reserved connect flag is 0
3.1.2-4 s Clean Session 0 resumes or makes a session, and keeps it
3.1.2-5 s QoS 1 and 2 are kept for a session that is away
3.1.2-6 s Clean Session 1 starts anew and keeps nothing
3.1.2-7 s retained messages outlive sessions
3.1.2-8 s the will is kept, and published without DISCONNECT
3.1.2-9 s a will has topic and message
3.1.2-10 s a will is published once and not after DISCONNECT
3.1.2-11 s no will: its flags are 0 and its fields absent
3.1.2-12 s no will: none is published
3.1.2-13 s no will: will QoS 0
3.1.2-14 s will QoS is not 3
3.1.2-15 s no will: will retain 0
3.1.2-16 s will retain 0: not retained
3.1.2-17 s will retain 1: retained
3.1.2-18 s no user name flag: no user name
3.1.2-19 s user name flag: a user name
3.1.2-20 s no password flag: no password
3.1.2-21 s password flag: a password
3.1.2-22 s no user name: no password
3.1.2-23 c a silent client pings
3.1.2-24 s silent for 1.5 times the keep alive: closed
3.1.3-1 s payload fields in their order
3.1.3-2 s the client id names the session
3.1.3-3 s a client id comes first
3.1.3-4 s the client id is a string
3.1.3-5 s 1 to 23 letters and digits are allowed
3.1.3-6 s an empty client id gets one of its own
3.1.3-7 c with an empty client id a client asks for a clean session
3.1.3-8 s else it is told 2, and closed
3.1.3-9 s a client id that is refused: 2, and closed
3.1.3-10 s the will topic is a string
3.1.3-11 s the user name is a string
3.1.4-1 s a CONNECT that is none closes
3.1.4-2 s the older connection of a client id is closed
3.1.4-3 s Clean Session is acted on
3.1.4-4 s CONNACK 0 answers a good CONNECT
3.1.4-5 s nothing behind a refused CONNECT is processed
3.2.0-1 s CONNACK comes before all else
3.2.2-1 s Clean Session 1: Session Present 0
3.2.2-2 s Clean Session 0 with a session: Session Present 1
3.2.2-3 s Clean Session 0 without one: Session Present 0
3.2.2-4 s a refusal has Session Present 0
3.2.2-5 s a refusal closes
3.2.2-6 s where no code fits, closed without CONNACK
3.3.1-1 s DUP is set on what is sent again
3.3.1-2 s DUP is 0 at QoS 0
3.3.1-3 s DUP is not passed on
3.3.1-4 s QoS 3 closes
3.3.1-5 s RETAIN stores the message and its QoS
3.3.1-6 s a new subscription gets what is retained
3.3.1-7 s a retained QoS 0 message replaces the last one
3.3.1-8 s RETAIN 1 on what is retained
3.3.1-9 s RETAIN 0 on what is live
3.3.1-10 s an empty one is delivered and removes what is retained
3.3.1-11 s an empty one is not retained
3.3.1-12 s without RETAIN nothing retained changes
3.3.2-1 s a topic name comes first and is a string
3.3.2-2 s no wildcards in a topic name
3.3.2-3 s what is delivered matches the subscription
3.3.4-1 s a publish is answered as its QoS says
3.3.5-1 s overlapping subscriptions: the highest QoS
3.3.5-2 s a publish that is not allowed is acknowledged, or closes
3.6.1-1 s PUBREL's flags are 0010
3.8.1-1 s SUBSCRIBE's flags are 0010
3.8.3-1 s filters are strings
3.8.3-2 - filters with wildcards are supported
3.8.3-3 s SUBSCRIBE has a filter
3.8.3-4 s reserved bits are 0 and QoS is not 3
3.8.4-1 s SUBSCRIBE is answered by SUBACK
3.8.4-2 s SUBACK has its packet id
3.8.4-3 s the same filter replaces the subscription; what is retained is sent again
3.8.4-4 s several filters are as several requests
3.8.4-5 s a code for each filter: the QoS granted, or a failure
3.8.4-6 s the QoS delivered is the lower of publish and grant
3.9.3-1 s SUBACK's codes in the order of the filters
3.9.3-2 s SUBACK's codes are 0, 1, 2 and 0x80
3.10.1-1 s UNSUBSCRIBE's flags are 0010
3.10.3-1 s its filters are strings
3.10.3-2 s UNSUBSCRIBE has a filter
3.10.4-1 s filters are compared character by character
3.10.4-2 s nothing new after UNSUBSCRIBE
3.10.4-3 s what is under way is completed
3.10.4-4 s UNSUBSCRIBE is answered by UNSUBACK with its packet id
3.10.4-5 s also where nothing was deleted
3.10.4-6 s several filters are as several requests
3.12.4-1 s PINGREQ is answered
3.14.1-1 s DISCONNECT's flags are 0
3.14.4-1 c a client closes after DISCONNECT
3.14.4-2 c and sends nothing more
3.14.4-3 s DISCONNECT discards the will
4.1.0-1 s sessions are kept long enough
4.1.0-2 s a session is kept while its connection is open
4.2.0-1 s an ordered, lossless stream
4.3.1-1 s QoS 0 goes out with DUP 0
4.3.2-1 s QoS 1 out: an unused id, DUP 0, unacknowledged until PUBACK
4.3.2-2 s QoS 1 in: PUBACK once it is ours; then the same id is a new message
4.3.3-1 s QoS 2 out: PUBLISH until PUBREC, PUBREL until PUBCOMP, no PUBLISH after PUBREL
4.3.3-2 s QoS 2 in: PUBREC, the same id is the same message until PUBREL, PUBCOMP
4.4.0-1 s a resumed session sends again with the same ids
4.5.0-1 s an accepted message is in every matching session
4.5.0-2 c a client acknowledges whatever it gets
4.6.0-1 s what is sent again keeps its order
4.6.0-2 s PUBACKs in the order of the publishes
4.6.0-3 s PUBRECs in the order of the publishes
4.6.0-4 s PUBRELs in the order of the PUBRECs
4.6.0-5 s every topic is ordered
4.6.0-6 s of one publisher, topic and QoS, messages keep their order
4.7.1-1 s no wildcards in topic names
4.7.1-2 s # stands last and alone in its level
4.7.1-3 s + stands alone in its level
4.7.2-1 s a leading wildcard does not match $
4.7.3-1 s names and filters have a character
4.7.3-2 s and no U+0000
4.7.3-3 s and up to 65,535 bytes
4.7.3-4 s names are matched as they are
4.8.0-1 s a protocol violation closes
4.8.0-2 s a passing fault may close, not more
6.0.0-1 s WebSocket: binary frames only
6.0.0-2 s WebSocket: packets need not fit frames
6.0.0-3 c WebSocket: a client offers mqtt
6.0.0-4 s WebSocket: the server chooses mqtt
7.0.0-1 s who is server and client conforms as both
7.0.0-2 s no extension is required
7.1.1-1 s TCP or another ordered, lossless stream
7.1.2-1 c a client has one too
"""


def _parse(text: str) -> dict[str, Clause]:
    found: dict[str, Clause] = {}
    for line in text.strip().splitlines():
        number, who, words = line.split(" ", 2)
        found[number] = Clause(number, who, words)
    return found


CLAUSES: Final = {V5: _parse(V5_TEXT), V311: _parse(V311_TEXT)}

Test = TypeVar("Test", bound=Callable[..., object])

COVERED: Final[dict[tuple[int, str], list[str]]] = {}
"""(version, number) → ids of the tests that cover it, in the order of their definition."""


def clauses(*, v5: str = "", v311: str = "") -> Callable[[Test], Test]:
    """The test covers these, and takes ``version``: each for which there is one."""
    asked = {version: numbers.split() for version, numbers in ((V5, v5), (V311, v311)) if numbers}

    def mark(function: Test) -> Test:
        name = f"{function.__module__.rpartition('.')[2]}::{function.__name__}"
        for version, numbers in asked.items():
            for number in numbers:
                assert CLAUSES[version][number].who == "s", f"{number} is not the server's"
                COVERED.setdefault((version, number), []).append(name)
        return pytest.mark.parametrize("version", list(asked))(function)

    return mark
