"""
The sixteen control packets as plain tuples, and the words of the specification.

Packets of two types with the same fields compare equal as tuples do: compare the type too.
Properties are ``(identifier, value)`` pairs in wire order; see ``properties``.
"""

from enum import IntEnum
from typing import Final, NamedTuple

PropertyValue = int | str | bytes | tuple[str, str]
PacketProperties = tuple[tuple[int, PropertyValue], ...]

V31: Final = 3
V311: Final = 4
V5: Final = 5

NEVER_EXPIRES_S: Final = 0xFFFFFFFF
"""Session Expiry Interval that means "keep for ever" [MQTT 5, 3.1.2.11.2]."""


class PacketType(IntEnum):
    """High nibble of the first byte [MQTT 5, 2.1.2]."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


class Reason(IntEnum):
    """Reason codes [MQTT 5, 2.4]; 0x00 means several things, all of them good."""

    SUCCESS = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    REAUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


class Will(NamedTuple):
    """What is published when a connection ends without a DISCONNECT of code 0."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: PacketProperties = ()


class Connect(NamedTuple):
    version: int
    client_id: str
    clean_start: bool = True
    """Clean Session in 3.1 and 3.1.1."""

    keep_alive_s: int = 0
    user: str | None = None
    password: bytes | None = None
    will: Will | None = None
    properties: PacketProperties = ()
    is_bridge: bool = False
    """Another broker, which says so by the high bit of its level (Mosquitto's; 3.x only)."""


class Connack(NamedTuple):
    reason: int = 0
    """A ``Reason``; to 3.x clients the codec writes the return code that says the same."""

    session_present: bool = False
    properties: PacketProperties = ()


class Publish(NamedTuple):
    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: PacketProperties = ()


class Puback(NamedTuple):
    packet_id: int
    reason: int = 0
    properties: PacketProperties = ()


class Pubrec(NamedTuple):
    packet_id: int
    reason: int = 0
    properties: PacketProperties = ()


class Pubrel(NamedTuple):
    packet_id: int
    reason: int = 0
    properties: PacketProperties = ()


class Pubcomp(NamedTuple):
    packet_id: int
    reason: int = 0
    properties: PacketProperties = ()


class SubscribeItem(NamedTuple):
    """One filter of a SUBSCRIBE with its options [MQTT 5, 3.8.3.1]."""

    topic_filter: str
    """As sent, ``$share/name/`` included."""

    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    """0: retained at every subscribe; 1: only if the subscription is new; 2: never."""


class Subscribe(NamedTuple):
    packet_id: int
    items: tuple[SubscribeItem, ...]
    properties: PacketProperties = ()


class Suback(NamedTuple):
    packet_id: int
    reasons: tuple[int, ...]
    properties: PacketProperties = ()


class Unsubscribe(NamedTuple):
    packet_id: int
    topic_filters: tuple[str, ...]
    properties: PacketProperties = ()


class Unsuback(NamedTuple):
    packet_id: int
    reasons: tuple[int, ...] = ()
    properties: PacketProperties = ()


class Pingreq(NamedTuple):
    pass


class Pingresp(NamedTuple):
    pass


class Disconnect(NamedTuple):
    reason: int = 0
    properties: PacketProperties = ()


class Auth(NamedTuple):
    reason: int = 0
    properties: PacketProperties = ()


Packet = (
    Connect
    | Connack
    | Publish
    | Puback
    | Pubrec
    | Pubrel
    | Pubcomp
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)
