"""CONNECT and CONNACK, sessions, wills: a running system, byte for byte."""

import socket

import pytest

from protocols.mqtt.encoder import encode_packet
from protocols.mqtt.packets import (
    NEVER_EXPIRES_S,
    V5,
    V311,
    Connack,
    Connect,
    Disconnect,
    PacketProperties,
    Puback,
    Publish,
    Reason,
    Suback,
    Subscribe,
    SubscribeItem,
    Will,
)
from protocols.mqtt.properties import Property, find_int, find_str
from tests.conformance.clauses import clauses
from tests.conformance.peer import Address, Peer, let_a_second_pass, reason_of, refusal

pytestmark = pytest.mark.client

Addresses = dict[str, Address]


def kept(
    version: int, client_id: str, *, expiry_s: int = NEVER_EXPIRES_S, **more: object
) -> Connect:
    """A CONNECT whose session outlives its connection."""
    properties: PacketProperties = ((0x11, expiry_s),) if version == V5 else ()
    return Connect(version, client_id, clean_start=False, properties=properties, **more)  # type: ignore[arg-type]


def fresh(version: int, client_id: str, **more: object) -> Connect:
    """A CONNECT whose session is new and ends with its connection."""
    return Connect(version, client_id, **more)  # type: ignore[arg-type]


# ── CONNACK ─────────────────────────────────────────────────────────────────────────────


@clauses(
    v5="3.1.4-5 3.2.0-1 3.2.0-2 3.2.2-1 3.2.2-8 4.2-1",
    v311="3.1.4-4 3.2.0-1 4.2.0-1 7.0.0-2 7.1.1-1",
)
def test_mqtt_3_1_4_5_connack_comes_first_and_once(
    server: Address, word: str, version: int
) -> None:
    """Also where SUBSCRIBE and a publish came in the same segment as CONNECT."""
    with Peer(server, version) as peer:
        peer.send(
            Connect(version, word),
            Subscribe(1, (SubscribeItem(word),)),
            Publish(word, b"1", 1, packet_id=2),
        )
        connack = peer.take(Connack)
        assert (connack.reason, connack.session_present) == (0, False)
        assert peer.raw[2] == 0  # acknowledge flags
        kinds = [type(peer.receive()).__name__ for _ in range(3)]
        assert kinds[0] == "Suback"
        assert sorted(kinds[1:]) == ["Puback", "Publish"]
        assert peer.is_silent()


@pytest.mark.parametrize("version", [V311, V5])
def test_a_client_that_closes_its_sending_half_is_answered(
    server: Address, word: str, version: int
) -> None:
    """CONNECT, requests and the end of the stream in one go, as ``nc -N`` sends them."""
    with Peer(server, version) as peer:
        peer.send(
            Connect(version, word),
            Publish(word, b"1", 1, packet_id=1),
            Subscribe(2, (SubscribeItem(word),)),
            Publish("elsewhere", b"1", 1, packet_id=3),
        )
        peer.socket.shutdown(socket.SHUT_WR)
        peer.take(Connack)
        peer.expect(Puback(1))
        assert peer.take(Suback).packet_id == 2
        peer.expect(Puback(3))
        assert peer.rest() == b""


@clauses(v5="3.1.3-5", v311="3.1.3-5")
def test_mqtt_3_1_3_5_client_ids_that_every_server_takes(server: Address, version: int) -> None:
    """1 to 23 letters and digits."""
    for client_id in (
        "0",
        "abcdefghijklmnopqrstuvw",
        "ABCDEFGHIJKLMNOPQRSTUVW",
        "xyzXYZ0123456789",
    ):
        with Peer(server, version, Connect(version, client_id)) as peer:
            assert peer.connack.reason == 0


@clauses(v5="3.1.3-6 3.1.3-7 3.2.2-16", v311="3.1.3-6")
def test_mqtt_3_1_3_6_an_empty_client_id_gets_one(server: Address, word: str, version: int) -> None:
    """One of its own, told to 5.0, where it is good for the next connection too."""
    properties = ((0x11, 60),) if version == V5 else ()
    connect = Connect(version, "", properties=properties)
    with Peer(server, version, connect) as one, Peer(server, version, connect) as two:
        one.subscribe(SubscribeItem(word, 1))
        two.publish(word)
        assert len(one.delivered(1)) == 1
        if version == V5:
            ids = {
                find_str(peer.connack.properties, Property.ASSIGNED_CLIENT_IDENTIFIER)
                for peer in (one, two)
            }
            assert len(ids) == 2
            mine = find_str(one.connack.properties, Property.ASSIGNED_CLIENT_IDENTIFIER)
            assert mine
            one.leave()
            with Peer(server, version, kept(version, mine)) as again:
                assert again.connack.session_present


@clauses(v311="3.1.3-8 3.1.3-9 3.2.2-4 3.2.2-5")
def test_mqtt_3_1_3_8_an_empty_client_id_has_no_session(server: Address, version: int) -> None:
    """Return code 2, Session Present 0, closed."""
    connect = Connect(version, "", clean_start=False)
    assert refusal(server, version, connect) == b"\x20\x02\x00\x02"


@clauses(v5="3.1.4-2 3.2.2-6 3.2.2-7 4.12.0-1")
def test_mqtt_3_1_4_2_an_unknown_method(server: Address, word: str, version: int) -> None:
    """0x8C, Session Present 0, closed."""
    connect = Connect(version, word, properties=((0x15, "SCRAM-SHA-1"),))
    found = refusal(server, version, connect)
    assert (found[2], reason_of(found)) == (0, Reason.BAD_AUTHENTICATION_METHOD)


@clauses(v5="3.1.4-6", v311="3.1.4-5")
def test_mqtt_3_1_4_6_nothing_behind_a_refused_connect(
    server: Address, word: str, version: int
) -> None:
    """A publish that came with it reaches nobody."""
    refused = (
        Connect(V5, word, properties=((0x15, "none"),))
        if version == V5
        else Connect(V311, "", clean_start=False)
    )
    with Peer(server, version, fresh(version, f"{word}-sub")) as sub:
        sub.subscribe(SubscribeItem(f"{word}/#"))
        wire = encode_packet(refused, version)
        wire += encode_packet(Publish(f"{word}/no", b""), version)
        assert reason_of(refusal(server, version, wire)) != 0
        sub.publish(f"{word}/yes", b"yes", 0)
        assert sub.payloads(1) == [b"yes"]


@clauses(v311="3.2.2-6")
def test_mqtt_3_2_2_6_where_no_code_fits(server: Address, version: int) -> None:
    """A malformed CONNECT is closed without CONNACK."""
    assert refusal(server, version, b"\x10\x0c\x00\x04MQTT\x04\x03\x00\x00\x00\x00") == b""


@clauses(v5="3.1.4-3 4.13.2-1 3.14.4-2", v311="3.1.4-2")
def test_mqtt_3_1_4_3_the_older_connection_is_taken_over(
    server: Address, word: str, version: int
) -> None:
    """5.0 is told 0x8E; a client id is one connection's, whichever version it speaks."""
    with (
        Peer(server, version, fresh(version, word)) as old,
        Peer(server, V5, fresh(V5, word)) as new,
    ):
        assert old.is_ended(Reason.SESSION_TAKEN_OVER)
        assert new.is_silent()


@clauses(v5="3.2.2-21")
def test_mqtt_3_2_2_21_server_keep_alive(addresses: Addresses, word: str, version: int) -> None:
    """Who asks for more than the listener allows, or for none, is told."""
    for keep_alive_s, told in ((0, 60), (61, 60), (120, 60), (60, 0), (5, 0)):
        with Peer(
            addresses["bounded"], version, fresh(version, word, keep_alive_s=keep_alive_s)
        ) as peer:
            assert find_int(peer.connack.properties, Property.SERVER_KEEP_ALIVE, 0) == told


@clauses(v5="3.1.2-28")
def test_mqtt_3_1_2_28_response_information(server: Address, word: str, version: int) -> None:
    """Told to who asks."""
    for asked in (0, 1):
        connect = fresh(version, word, properties=((0x19, asked),))
        with Peer(server, version, connect) as peer:
            told = find_str(peer.connack.properties, Property.RESPONSE_INFORMATION)
            assert told == (f"replies/{word}" if asked else None)


@clauses(v5="3.1.2-24 3.2.2-19 3.2.2-20 3.14.0-1")
def test_mqtt_3_1_2_24_connack_over_the_clients_maximum(
    server: Address, word: str, version: int
) -> None:
    """Nothing is sent, no DISCONNECT either: closed, and the session that was there stays."""
    with Peer(server, version, kept(version, word)) as peer:
        peer.subscribe(SubscribeItem(word, 1))
    connect = fresh(version, word, properties=((0x27, 5),))
    assert refusal(server, version, connect) == b""
    with Peer(server, version, kept(version, word)) as peer:
        assert peer.connack.session_present


@clauses(
    v5="3.1.2-29 3.4.2-2 3.4.2-3 3.5.2-2 3.5.2-3 3.9.2-1 3.9.2-2 3.11.2-1 3.11.2-2 3.6.2-2"
    " 3.6.2-3 3.7.2-2 3.7.2-3 3.14.2-2 3.14.2-3 3.14.2-4"
)
def test_mqtt_3_1_2_29_no_reason_strings(server: Address, word: str, version: int) -> None:
    """Answers are in their shortest form, refusals too: no strings, no user properties."""
    connect = fresh(version, word, properties=((0x17, 0),))
    with Peer(server, version, connect) as peer:
        peer.subscribe(SubscribeItem("denied/#"))
        assert peer.raw[4:5] == b"\x00"
        peer.unsubscribe("a")
        assert peer.raw[4:5] == b"\x00"
        peer.send(Publish("denied/x", b"", 1, packet_id=5))
        peer.expect(Puback(5, Reason.NOT_AUTHORIZED))
        assert len(peer.raw) == 5
        peer.send(Publish("denied/x", b"", 2, packet_id=6))
        peer.receive()
        assert len(peer.raw) == 5
        peer.send(b"\xc1\x00")
        assert peer.is_ended(Reason.MALFORMED_PACKET)


# ── sessions ────────────────────────────────────────────────────────────────────────────


@clauses(
    v5="3.1.2-5 3.1.2-6 3.1.2-23 3.1.3-2 3.2.2-3 4.5.0-1",
    v311="3.1.2-4 3.1.2-5 3.1.3-2 3.2.2-2 3.2.2-3 4.1.0-1 4.5.0-1",
)
def test_mqtt_3_1_2_5_a_session_is_resumed(server: Address, word: str, version: int) -> None:
    """Its subscription is there, and what came while it was away, at QoS 1 and 2."""
    with Peer(server, version, kept(version, word)) as peer:
        assert not peer.connack.session_present
        peer.subscribe(SubscribeItem(f"{word}/#", 2))
        peer.leave()
    with Peer(server, version, fresh(version, f"{word}-pub")) as pub:
        pub.publish(f"{word}/a", b"one", 1)
        pub.publish(f"{word}/b", b"two", 2)
    with Peer(server, version, kept(version, word)) as peer:
        assert peer.connack.session_present
        found = peer.delivered(2)
        assert {(packet.payload, packet.qos) for packet in found} == {(b"one", 1), (b"two", 2)}
    with Peer(server, version, fresh(version, word)):
        pass


@clauses(v5="3.1.2-4 3.1.4-4 3.2.2-2", v311="3.1.2-6 3.1.4-3 3.2.2-1")
def test_mqtt_3_1_2_4_a_clean_start_discards(server: Address, word: str, version: int) -> None:
    """The session before is gone with its subscriptions, and what waited in it."""
    with Peer(server, version, kept(version, word)) as peer:
        peer.subscribe(SubscribeItem(word, 1))
        peer.leave()
    with Peer(server, version, fresh(version, f"{word}-pub")) as pub:
        pub.publish(word, b"old")
        with Peer(server, version, fresh(version, word)) as peer:
            assert not peer.connack.session_present
            pub.publish(word, b"new")
            assert peer.is_silent()
        if version == V311:  # it lasted as long as its connection
            with Peer(server, version, kept(version, word)) as peer:
                assert not peer.connack.session_present


@clauses(v5="4.1.0-1", v311="4.1.0-2")
def test_mqtt_4_1_0_1_a_session_is_kept_while_it_is_connected(
    server: Address, word: str, version: int
) -> None:
    """One that ends with its connection has its subscriptions until then."""
    with Peer(server, version, fresh(version, word)) as peer:
        peer.subscribe(SubscribeItem(word, 1))
        for _ in range(3):
            peer.publish(word, b"mine", 0)
            assert peer.payloads(1) == [b"mine"]


@clauses(v5="4.1.0-2")
def test_mqtt_4_1_0_2_a_session_ends_with_its_expiry(
    server: Address, word: str, version: int
) -> None:
    """Not before; DISCONNECT may change it."""
    with Peer(server, version, kept(version, word, expiry_s=600)) as peer:
        peer.leave()
    with Peer(server, version, kept(version, word, expiry_s=600)) as peer:
        assert peer.connack.session_present
        peer.leave((0x11, 1))
    let_a_second_pass(server, word)
    with Peer(server, version, kept(version, word, expiry_s=0)) as peer:
        assert not peer.connack.session_present


@clauses(v311="3.1.2-7")
def test_mqtt_3_1_2_7_retained_messages_outlive_sessions(
    server: Address, word: str, version: int
) -> None:
    with Peer(server, version, fresh(version, f"{word}-pub")) as pub:
        pub.publish(word, b"kept", 1, retain=True)
        pub.leave()
    with Peer(server, version, fresh(version, word)) as sub:
        sub.subscribe(SubscribeItem(word))
        assert sub.payloads(1) == [b"kept"]


# ── wills ───────────────────────────────────────────────────────────────────────────────


def will_of(version: int, word: str, payload: bytes = b"gone", **more: object) -> Connect:
    return fresh(version, f"{word}-dying", will=Will(f"{word}/will", payload, 1, **more))  # type: ignore[arg-type]


@clauses(v5="3.1.2-7 3.1.2-8 3.1.2-14", v311="3.1.2-8 3.1.2-16")
def test_mqtt_3_1_2_8_the_will_of_a_lost_connection(
    server: Address, word: str, version: int
) -> None:
    """Published when the socket breaks and when the client breaks the protocol; not retained."""
    with Peer(server, version, fresh(version, word)) as sub:
        sub.subscribe(SubscribeItem(f"{word}/#", 1))
        with Peer(server, version, will_of(version, word, b"broken")):
            pass
        assert sub.payloads(1) == [b"broken"]
        with Peer(server, version, will_of(version, word, b"fault")) as dying:
            dying.send(b"\xc1\x00")
            assert sub.payloads(1) == [b"fault"]
    with Peer(server, version, fresh(version, word)) as late:
        late.subscribe(SubscribeItem(f"{word}/#", 1))
        assert late.is_silent()


@clauses(v5="3.1.2-10 3.14.4-3", v311="3.1.2-10 3.1.2-12 3.14.4-3")
def test_mqtt_3_1_2_10_no_will_after_disconnect(server: Address, word: str, version: int) -> None:
    """Nor a second one, nor one where none was given."""
    with Peer(server, version, fresh(version, word)) as sub:
        sub.subscribe(SubscribeItem(f"{word}/#", 1))
        with Peer(server, version, will_of(version, word)) as dying:
            dying.leave()
        with Peer(server, version, fresh(version, f"{word}-dying")):
            pass
        with Peer(server, version, will_of(version, word, b"the only one")):
            pass
        assert sub.payloads(1) == [b"the only one"]
        with Peer(server, version, fresh(version, f"{word}-dying")) as again:
            assert again.is_silent()
        assert sub.is_silent()


@clauses(v5="3.1.2-8")
def test_mqtt_3_1_2_8_disconnect_4_sends_the_will(server: Address, word: str, version: int) -> None:
    with Peer(server, version, fresh(version, word)) as sub:
        sub.subscribe(SubscribeItem(f"{word}/#", 1))
        with Peer(server, version, will_of(version, word)) as dying:
            dying.send(Disconnect(Reason.DISCONNECT_WITH_WILL))
            assert sub.payloads(1) == [b"gone"]


@clauses(v5="3.1.2-15", v311="3.1.2-17")
def test_mqtt_3_1_2_15_a_retained_will(server: Address, word: str, version: int) -> None:
    with Peer(server, version, fresh(version, word)) as sub:
        sub.subscribe(SubscribeItem(f"{word}/#", 1))
        with Peer(server, version, will_of(version, word, retain=True)):
            pass
        assert not sub.delivered(1)[0].retain
        sub.subscribe(SubscribeItem(f"{word}/will", 1))
        (retained,) = sub.delivered(1)
        assert (retained.payload, retained.retain) == (b"gone", True)


@clauses(v5="3.1.3-10 3.1.2-9")
def test_mqtt_3_1_3_10_properties_of_a_will(server: Address, word: str, version: int) -> None:
    """As they were, in their order, without the delay."""
    pairs: PacketProperties = (
        (0x01, 1),
        (0x03, "text/plain"),
        (0x08, "answer/here"),
        (0x09, b"\x00\x01"),
        (0x26, ("b", "2")),
        (0x26, ("a", "1")),
        (0x26, ("b", "1")),
    )
    with Peer(server, version, fresh(version, word)) as sub:
        sub.subscribe(SubscribeItem(f"{word}/#", 1))
        with Peer(server, version, will_of(version, word, properties=((0x18, 0), *pairs))):
            pass
        (found,) = sub.delivered(1)
        assert sorted(found.properties[:4]) == sorted(pairs[:4])
        assert found.properties[4:] == pairs[4:]


@clauses(v5="3.1.3-9")
def test_mqtt_3_1_3_9_a_connection_cancels_a_delayed_will(
    server: Address, word: str, version: int
) -> None:
    """Back before the delay is over: no will; its session ended at once: the will at once."""
    delayed = Will(f"{word}/will", b"gone", 1, properties=((0x18, 300),))
    with Peer(server, version, fresh(version, word)) as sub:
        sub.subscribe(SubscribeItem(f"{word}/#", 1))
        with Peer(server, version, kept(version, f"{word}-dying", will=delayed)):
            pass
        with Peer(server, version, kept(version, f"{word}-dying", will=delayed)) as back:
            assert back.connack.session_present
            back.publish(f"{word}/alive", b"alive")
        assert sub.payloads(1) == [b"alive"]
        with Peer(server, version, fresh(version, f"{word}-dying")):
            assert sub.payloads(1) == [b"gone"]


# ── a client in a hurry ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", [V5, V311])
@pytest.mark.parametrize("is_kept", [False, True])
def test_what_is_sent_behind_connect_counts(
    server: Address, word: str, version: int, is_kept: bool
) -> None:
    """The socket is closed before CONNACK: its publishes are delivered; DISCONNECT: no will."""
    topics = [f"{word}/{number}" for number in range(3)]
    will = Will(f"{word}/will", b"will")
    with Peer(server, version, fresh(version, word)) as sub:
        sub.subscribe(SubscribeItem(f"{word}/#", 2))
        for orderly in (True, False):
            connect = (kept if is_kept else fresh)(version, f"{word}-{orderly}", will=will)
            with Peer(server, version) as peer:
                packets = [
                    Publish(topic, b"x", qos, packet_id=9 if qos else 0)
                    for qos, topic in enumerate(topics)
                ]
                peer.send(
                    b"".join(encode_packet(packet, version) for packet in (connect, *packets))
                    + (encode_packet(Disconnect(), version) if orderly else b"")
                )
            found = sorted(packet.topic for packet in sub.delivered(3 if orderly else 4))
            assert found == (topics if orderly else [*topics, will.topic])
