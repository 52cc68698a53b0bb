"""PUBLISH in both directions: quality of service, retained messages, properties, quotas."""

import pytest

from protocols.mqtt.packets import (
    V5,
    V311,
    Connect,
    PacketProperties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Reason,
    Suback,
    Subscribe,
    SubscribeItem,
)
from protocols.mqtt.properties import Property, find_int
from tests.conformance.clauses import clauses
from tests.conformance.peer import Address, Peer, let_a_second_pass

pytestmark = pytest.mark.client

KEPT: PacketProperties = ((0x11, 0xFFFFFFFF),)


def kept(version: int, client_id: str) -> Connect:
    properties = KEPT if version == V5 else ()
    return Connect(version, client_id, clean_start=False, properties=properties)


# ── acknowledgements of what comes in ───────────────────────────────────────────────────


@clauses(v5="3.3.4-1 4.3.2-4 2.2.1-5 4.3.3-8 4.3.3-11", v311="3.3.4-1 2.3.1-6")
def test_mqtt_3_3_4_1_a_publish_is_answered(server: Address, word: str, version: int) -> None:
    """Nothing, PUBACK, or PUBREC and PUBCOMP, with its packet id."""
    with Peer(server, version, Connect(version, word)) as peer:
        peer.publish(word, b"0", 0)
        assert peer.is_silent()
        peer.send(Publish(word, b"1", 1, packet_id=65_535))
        peer.expect(Puback(65_535))
        peer.send(Publish(word, b"2", 2, packet_id=300))
        peer.expect(Pubrec(300))
        peer.send(Pubrel(300))
        peer.expect(Pubcomp(300))


@pytest.mark.parametrize("version", [V5, V311])
def test_long_names_of_topics_and_clients(server: Address, word: str, version: int) -> None:
    """What is published by them arrives; a topic that no record can hold is not taken."""
    client_id = word + "c" * (65_535 - len(word))
    topics = [f"{word}/" + "t" * size for size in (4_100, 20_000, 29_900, 32_000)]
    item = SubscribeItem(f"{word}/+", no_local=version == V5)
    with (
        Peer(server, version, Connect(version, client_id)) as peer,
        Peer(server, version, Connect(version, f"{word}-other")) as other,
    ):
        for each in (peer, other):
            each.subscribe(item)
        for topic in topics[:3]:
            peer.publish(topic, b"x", 1)
            assert other.take(Publish).topic == topic
            assert version == V5 or peer.take(Publish).topic == topic
        assert peer.subscribe(SubscribeItem(topics[3]))[0] in (0x80, Reason.TOPIC_FILTER_INVALID)
        peer.send(Publish(topics[3], b"x", 1, packet_id=9))
        assert peer.is_ended(Reason.TOPIC_NAME_INVALID)
        assert other.is_silent()


@clauses(v5="4.3.2-5", v311="4.3.2-2")
def test_mqtt_4_3_2_5_the_same_id_after_puback_is_new(
    server: Address, word: str, version: int
) -> None:
    """With DUP too: whoever acknowledged cannot know."""
    with (
        Peer(server, version, Connect(version, f"{word}-pub")) as pub,
        Peer(server, version, Connect(version, word)) as sub,
    ):
        sub.subscribe(SubscribeItem(word))
        for payload in (b"one", b"two"):
            pub.send(Publish(word, payload, 1, dup=payload == b"two", packet_id=5))
            pub.expect(Puback(5))
        assert sub.payloads(2) == [b"one", b"two"]


@clauses(v5="4.3.3-10 4.3.3-12", v311="4.3.3-2")
def test_mqtt_4_3_3_10_the_same_id_before_pubrel_is_the_same(
    server: Address, word: str, version: int
) -> None:
    """Answered, not delivered again; after PUBCOMP it is a new message. On a new connection too."""
    with Peer(server, version, Connect(version, word)) as sub:
        sub.subscribe(SubscribeItem(word))
        with Peer(server, version, kept(version, f"{word}-pub")) as pub:
            pub.send(Publish(word, b"one", 2, packet_id=5))
            pub.expect(Pubrec(5))
            pub.send(Publish(word, b"one", 2, dup=True, packet_id=5))
            pub.expect(Pubrec(5))
        with Peer(server, version, kept(version, f"{word}-pub")) as pub:
            assert pub.connack.session_present
            pub.send(Publish(word, b"one", 2, dup=True, packet_id=5))
            pub.expect(Pubrec(5))
            pub.send(Pubrel(5))
            pub.expect(Pubcomp(5))
            pub.send(Pubrel(5))  # PUBCOMP was lost, say
            pub.expect(Pubcomp(5))
            pub.send(Publish(word, b"two", 2, packet_id=5))
            pub.expect(Pubrec(5))
            pub.send(Pubrel(5))
            pub.expect(Pubcomp(5))
        assert sub.payloads(2) == [b"one", b"two"]
        assert sub.is_silent()


@clauses(v5="4.3.3-9")
def test_mqtt_4_3_3_9_the_same_id_after_a_refusal_is_new(
    server: Address, word: str, version: int
) -> None:
    """PUBREC with an error ends the exchange."""
    with Peer(server, version, Connect(version, word)) as peer:
        peer.send(Publish("denied/x", b"", 2, packet_id=5))
        peer.expect(Pubrec(5, Reason.NOT_AUTHORIZED))
        peer.subscribe(SubscribeItem(word))
        peer.send(Publish(word, b"new", 2, packet_id=5))
        peer.expect(Pubrec(5))
        assert peer.payloads(1) == [b"new"]


@clauses(v5="4.3.3-13")
def test_mqtt_4_3_3_13_expiry_does_not_stop_the_exchange(
    server: Address, word: str, version: int
) -> None:
    """An expiry of 0 seconds: nobody gets it, PUBREC and PUBCOMP come."""
    with Peer(server, version, Connect(version, word)) as peer:
        peer.send(Publish(word, b"", 2, packet_id=5, properties=((0x02, 0),)))
        peer.expect(Pubrec(5))
        peer.send(Pubrel(5))
        peer.expect(Pubcomp(5))


@clauses(v311="3.3.5-2 4.8.0-2")
def test_mqtt_3_3_5_2_a_publish_that_is_not_allowed(
    server: Address, word: str, version: int
) -> None:
    """Acknowledged and dropped: sending it again would not help."""
    with Peer(server, version, Connect(version, word)) as peer:
        for qos in (0, 1, 2):
            peer.publish("denied/x", b"", qos)
        assert peer.is_silent()


# ── quality of service on the way out ───────────────────────────────────────────────────


@clauses(v5="3.8.4-8 4.3.1-1 3.3.1-3", v311="3.8.4-6 4.3.1-1 3.3.1-3")
def test_mqtt_3_8_4_8_the_lower_quality_of_the_two(
    server: Address, word: str, version: int
) -> None:
    """Publish and grant; DUP of the publisher is not passed on."""
    with Peer(server, version, Connect(version, word)) as peer:
        for granted in (0, 1, 2):
            topic = f"{word}/{granted}"
            assert peer.subscribe(SubscribeItem(topic, granted)) == (granted,)
            with Peer(server, version, Connect(version, f"{word}-pub")) as pub:
                for qos in (0, 1, 2):
                    pub.publish(topic, b"", qos, dup=qos > 0)
                found = peer.delivered(3)
            expected = [min(granted, qos) for qos in (0, 1, 2)]
            assert [packet.qos for packet in found] == expected
            assert not any(packet.dup for packet in found)


@clauses(
    v5="2.2.1-4 4.3.2-1 4.3.2-2 4.3.2-3 4.3.3-1 4.3.3-2 4.3.3-3 4.3.3-4 4.3.3-5",
    v311="2.3.1-4 4.3.2-1 4.3.3-1",
)
def test_mqtt_4_3_2_1_packet_ids_of_what_goes_out(server: Address, word: str, version: int) -> None:
    """None twice while it is in use; free again after PUBACK and PUBCOMP."""
    with Peer(server, version, Connect(version, word)) as peer:
        with Peer(server, version, Connect(version, f"{word}-pub")) as pub:
            peer.subscribe(SubscribeItem(word, 2))
            for number in range(6):
                pub.publish(word, b"", 1 + number % 2)
        open_now = [peer.take(Publish) for _ in range(6)]
        ids = [packet.packet_id for packet in open_now]
        assert len(set(ids)) == 6
        assert 0 not in ids
        assert not any(packet.dup for packet in open_now)
        for packet in open_now:
            if packet.qos == 1:
                peer.send(Puback(packet.packet_id))
            else:
                peer.send(Pubrec(packet.packet_id))
                peer.expect(Pubrel(packet.packet_id))
        twos = [packet.packet_id for packet in open_now if packet.qos == 2]
        peer.publish(word, b"more", 1)
        assert peer.delivered(1)[0].packet_id not in twos  # PUBCOMP is missing
        for packet_id in twos:
            peer.send(Pubcomp(packet_id))
        assert peer.is_silent()


@clauses(v5="4.4.0-2 3.3.4-9", v311="4.5.0-1")
def test_mqtt_4_4_0_2_what_was_refused_is_done(server: Address, word: str, version: int) -> None:
    """PUBREC with an error ends the exchange: nothing again, no PUBREL."""
    with Peer(server, version, kept(version, word)) as peer:
        peer.subscribe(SubscribeItem(word, 2))
        with Peer(server, version, Connect(version, f"{word}-pub")) as pub:
            pub.publish(word, b"", 2)
            pub.publish(word, b"", 1)
        for packet in (peer.take(Publish), peer.take(Publish)):
            kind = Puback if packet.qos == 1 else Pubrec
            peer.send(kind(packet.packet_id, 0x83 if version == V5 else 0))
            if version == V311 and packet.qos == 2:
                peer.expect(Pubrel(packet.packet_id))
                peer.send(Pubcomp(packet.packet_id))
        assert peer.is_silent()
        peer.leave()
    with Peer(server, version, kept(version, word)) as peer:
        assert peer.connack.session_present
        assert peer.is_silent()


@pytest.mark.parametrize("version", [V5, V311])
def test_order_whatever_the_qos(server: Address, word: str, version: int) -> None:
    """No clause asks for it, other brokers have it so: one topic, QoS 1 and 2 by turns."""
    with Peer(server, version, kept(version, word)) as peer:
        peer.subscribe(SubscribeItem(word, 2))
    with Peer(server, version, Connect(version, f"{word}-pub")) as pub:
        for number in range(12):
            pub.publish(word, b"%d" % number, 1 + number % 2)
    with Peer(server, version, kept(version, word)) as peer:
        found = [peer.take(Publish) for _ in range(12)]
    assert [packet.payload for packet in found] == [b"%d" % number for number in range(12)]
    assert [packet.qos for packet in found] == [1, 2] * 6


@clauses(v5="4.6.0-5 4.6.0-6", v311="4.6.0-2 4.6.0-3 4.6.0-4 4.6.0-5 4.6.0-6")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt_4_6_0_5_order(server: Address, word: str, version: int, qos: int) -> None:
    """Acknowledgements in the order of the publishes, deliveries too, pipelined."""
    numbers = range(1, 15)
    with Peer(server, version, Connect(version, word)) as sub:
        sub.subscribe(SubscribeItem(f"{word}/#", qos))
        with Peer(server, version, Connect(version, f"{word}-pub")) as pub:
            pub.send(
                *(
                    Publish(f"{word}/t", b"%d" % number, qos, packet_id=number if qos else 0)
                    for number in numbers
                )
            )
            if qos == 1:
                assert [pub.take(Puback).packet_id for _ in numbers] == list(numbers)
            if qos == 2:
                assert [pub.take(Pubrec).packet_id for _ in numbers] == list(numbers)
                pub.send(*(Pubrel(number) for number in numbers))
                assert [pub.take(Pubcomp).packet_id for _ in numbers] == list(numbers)
            found = [sub.take(Publish) for _ in numbers]
        assert [packet.payload for packet in found] == [b"%d" % number for number in numbers]
        if qos == 2:
            sub.send(*(Pubrec(packet.packet_id) for packet in found))
            ids = [sub.take(Pubrel).packet_id for _ in found]
            assert ids == [packet.packet_id for packet in found]


# ── quotas ──────────────────────────────────────────────────────────────────────────────


@clauses(v5="3.3.4-9 3.3.4-10 4.9.0-1 4.9.0-2 4.9.0-3")
def test_mqtt_3_3_4_9_the_clients_receive_maximum(server: Address, word: str, version: int) -> None:
    """Two unanswered at most; QoS 0, SUBACK and PINGRESP go on; each answer makes room."""
    connect = Connect(version, word, properties=((0x21, 2),))
    with Peer(server, version, connect) as peer:
        peer.subscribe(SubscribeItem(f"{word}/#", 2))
        with Peer(server, version, Connect(version, f"{word}-pub")) as pub:
            for number in range(4):
                pub.publish(f"{word}/q", b"%d" % number, 1 + number % 2)
            one, two = peer.take(Publish), peer.take(Publish)
            assert peer.is_silent()
            pub.publish(f"{word}/zero", b"zero", 0)
            assert peer.take(Publish).payload == b"zero"
            assert peer.subscribe(SubscribeItem(f"{word}-other")) == (0,)
            peer.send(Puback(one.packet_id))
            three = peer.take(Publish)
            assert three.payload == b"2"
            peer.send(Pubrec(two.packet_id))
            peer.expect(Pubrel(two.packet_id))
            assert peer.is_silent()  # PUBREC makes no room, PUBCOMP does
            peer.send(Pubcomp(two.packet_id))
            four = peer.take(Publish)
            peer.send(Puback(three.packet_id), Pubrec(four.packet_id, Reason.UNSPECIFIED_ERROR))
            for number in range(4, 6):  # both places are free: there is no PUBREL to wait for
                pub.publish(f"{word}/q", b"%d" % number, 1)
            assert [peer.take(Publish).payload for _ in range(2)] == [b"4", b"5"]


@clauses(v5="3.1.2-24 3.1.2-25")
def test_mqtt_3_1_2_25_a_publish_too_large_for_the_client(
    server: Address, word: str, version: int
) -> None:
    """Counts as delivered: it takes no place and what follows comes."""
    connect = Connect(version, word, properties=((0x27, 64), (0x21, 1)))
    with Peer(server, version, connect) as peer:
        peer.subscribe(SubscribeItem(word, 2))
        with Peer(server, version, Connect(version, f"{word}-pub")) as pub:
            for qos in (0, 1, 2):
                pub.publish(word, b"x" * 64, qos)
                pub.publish(word, b"%d" % qos, qos)
        assert peer.payloads(3) == [b"0", b"1", b"2"]


@clauses(v5="3.1.2-24 3.1.2-25")
def test_mqtt_3_1_2_24_what_is_sent_again_fits_the_new_connection(
    server: Address, word: str, version: int
) -> None:
    """Its maximum may be smaller than the one before it had: what is too large is not owed."""
    with Peer(server, version, kept(version, word)) as peer:
        peer.subscribe(SubscribeItem(word, 1))
        with Peer(server, version, Connect(version, f"{word}-pub")) as pub:
            pub.publish(word, b"x" * 64, 1)
            pub.publish(word, b"fits", 1)
        peer.take(Publish), peer.take(Publish)  # and no PUBACK
    small = kept(version, word)
    small = small._replace(properties=(*small.properties, (0x27, 64)))
    with Peer(server, version, small) as peer:
        again = peer.take(Publish)
        assert (again.payload, again.dup) == (b"fits", True)
        assert peer.is_silent()


@clauses(v5="3.1.2-26 3.3.2-11")
def test_mqtt_3_1_2_26_aliases_up_to_the_clients_maximum(
    server: Address, word: str, version: int
) -> None:
    """The first publish of a topic names it, later ones may not; no more than two topics."""
    connect = Connect(version, word, properties=((0x22, 2),))
    with Peer(server, version, connect) as peer:
        peer.subscribe(SubscribeItem(f"{word}/#", 2))
        names: dict[int, str] = {}
        with Peer(server, version, Connect(version, f"{word}-pub")) as pub:
            for number in range(9):
                pub.publish(f"{word}/{number % 3}", b"%d" % number, number % 3)
            for packet in peer.delivered(9):
                alias = find_int(packet.properties, Property.TOPIC_ALIAS, 0)
                assert alias <= 2
                if packet.topic and alias:
                    names[alias] = packet.topic
                assert (packet.topic or names[alias]) == f"{word}/{int(packet.payload) % 3}"
        assert len(names) == 2


@clauses(v5="3.1.2-27")
def test_mqtt_3_1_2_27_no_alias_where_none_is_taken(
    server: Address, word: str, version: int
) -> None:
    with Peer(server, version, Connect(version, word)) as peer:
        peer.subscribe(SubscribeItem(word))
        for _ in range(2):
            peer.publish(word, b"", 0)
        for packet in peer.delivered(2):
            assert (packet.topic, packet.properties) == (word, ())


# ── properties ──────────────────────────────────────────────────────────────────────────


@clauses(v5="3.3.2-4 3.3.2-15 3.3.2-16 3.3.2-17 3.3.2-18 3.3.2-20 1.5.7-1")
def test_mqtt_3_3_2_4_properties_are_passed_on(server: Address, word: str, version: int) -> None:
    """As they were; user properties in their order, with repeats, empty ones too."""
    pairs: PacketProperties = (
        (0x01, 1),
        (0x03, "text/\u00e4"),
        (0x08, "answer/here"),
        (0x09, b"\x00\xff"),
        (0x26, ("b", "2")),
        (0x26, ("a", "")),
        (0x26, ("b", "1")),
        (0x26, ("", "")),
    )
    with Peer(server, version, Connect(version, word)) as peer:
        peer.subscribe(SubscribeItem(word, 2))
        for qos in (0, 1, 2):
            peer.send(Publish(word, b"x", qos, packet_id=qos, properties=pairs))
            if qos:
                peer.receive()
            (found,) = peer.delivered(1)
            assert sorted(found.properties[:4], key=str) == sorted(pairs[:4], key=str)
            assert found.properties[4:] == pairs[4:]
            if qos == 2:
                peer.send(Pubrel(2))
                peer.expect(Pubcomp(2))


@clauses(v5="3.3.2-5 3.3.2-6 4.3.3-7")
def test_mqtt_3_3_2_5_expiry(server: Address, word: str, version: int) -> None:
    """
    What is left is passed on; what has none left is dropped, in the queue of who is away and
    behind the receive maximum of who is slow; once sent it is completed.
    """
    slow_connect = Connect(version, f"{word}-slow", properties=((0x21, 1),))
    with (
        Peer(server, version, kept(version, word)) as peer,
        Peer(server, version, slow_connect) as slow,
    ):
        peer.subscribe(SubscribeItem(word, 2))
        slow.subscribe(SubscribeItem(word, 1))
        with Peer(server, version, Connect(version, f"{word}-pub")) as pub:
            pub.send(Publish(word, b"sent", 2, packet_id=1, properties=((0x02, 1),)))
            pub.take(Pubrec)
            sent, held = peer.take(Publish), slow.take(Publish)
            peer.drop()
            for payload, expiry_s in ((b"short", 1), (b"long", 1000)):
                pub.send(Publish(word, payload, 1, packet_id=2, properties=((0x02, expiry_s),)))
                pub.expect(Puback(2))
            let_a_second_pass(server, word)
            slow.send(Puback(held.packet_id))
            assert slow.take(Publish).payload == b"long"
    with Peer(server, version, kept(version, word)) as peer:
        again = peer.take(Publish)
        assert (again.packet_id, again.payload, again.dup) == (sent.packet_id, b"sent", True)
        found = peer.take(Publish)
        assert found.payload == b"long"
        assert 0 < find_int(found.properties, Property.MESSAGE_EXPIRY, 0) < 1000
        peer.send(Pubrec(sent.packet_id))
        peer.expect(Pubrel(sent.packet_id))
        assert peer.is_silent()


# ── retained messages ───────────────────────────────────────────────────────────────────


@clauses(v5="3.3.1-5 3.3.1-8 3.3.1-9", v311="3.3.1-5 3.3.1-6 3.3.1-7 3.3.1-8 3.3.1-12")
def test_mqtt_3_3_1_5_the_last_retained_message(server: Address, word: str, version: int) -> None:
    """Replaced by the next, of QoS 0 too; not by one without RETAIN; at each SUBSCRIBE."""
    with Peer(server, version, Connect(version, word)) as peer:
        peer.publish(word, b"one", 2, retain=True)
        peer.publish(word, b"two", 1, retain=True)
        peer.publish(word, b"live", 1)
        for _ in range(2):
            peer.subscribe(SubscribeItem(word, 2))
            (found,) = peer.delivered(1)
            assert (found.payload, found.qos, found.retain, found.dup) == (b"two", 1, True, False)
        peer.unsubscribe(word)
        peer.publish(word, b"zero", 0, retain=True)
        assert peer.is_silent()
        peer.subscribe(SubscribeItem(word, 2))
        assert [(found.payload, found.qos) for found in peer.delivered(1)] == [(b"zero", 0)]
        peer.unsubscribe(word)
        peer.send(Publish(word, b"last", 0, True), Subscribe(9, (SubscribeItem(word, 2),)))
        peer.expect(Suback(9, (2,)))  # what came before it on the connection is not live
        assert [(found.payload, found.retain) for found in peer.delivered(1)] == [(b"last", True)]


@clauses(v5="3.3.1-6 3.3.1-7", v311="3.3.1-10 3.3.1-11")
def test_mqtt_3_3_1_6_an_empty_one_removes(server: Address, word: str, version: int) -> None:
    """It is delivered to who is there, as live; nobody later gets anything."""
    with Peer(server, version, Connect(version, word)) as peer:
        peer.publish(word, b"old", 1, retain=True)
        peer.subscribe(SubscribeItem(f"{word}/#", 1))
        assert peer.payloads(1) == [b"old"]
        peer.publish(word, b"", 1, retain=True)
        (found,) = peer.delivered(1)
        assert (found.payload, found.retain) == (b"", False)
        peer.subscribe(SubscribeItem(word, 1))
        assert peer.is_silent()


@clauses(v5="3.3.1-10 3.3.1-11")
def test_mqtt_3_3_1_10_retain_handling(server: Address, word: str, version: int) -> None:
    """1: only for a new subscription; 2: never."""
    with Peer(server, version, Connect(version, word)) as peer:
        peer.publish(word, b"kept", 1, retain=True)
        peer.subscribe(SubscribeItem(word, 1, retain_handling=2))
        assert peer.is_silent()
        peer.subscribe(SubscribeItem(word, 1, retain_handling=1))
        assert peer.is_silent()
        peer.unsubscribe(word)
        peer.subscribe(SubscribeItem(word, 1, retain_handling=1))
        assert peer.payloads(1) == [b"kept"]


@clauses(v5="3.3.1-12", v311="3.3.1-9")
def test_mqtt_3_3_1_12_what_is_live_is_not_retained(
    server: Address, word: str, version: int
) -> None:
    with Peer(server, version, Connect(version, word)) as peer:
        peer.subscribe(SubscribeItem(word, 1))
        peer.publish(word, b"", 0, retain=True)
        peer.publish(word, b"x", 0, retain=True)
        assert [packet.retain for packet in peer.delivered(2)] == [False, False]


@clauses(v5="3.3.1-13")
def test_mqtt_3_3_1_13_retain_as_published(server: Address, word: str, version: int) -> None:
    with Peer(server, version, Connect(version, word)) as peer:
        peer.subscribe(SubscribeItem(word, 1, retain_as_published=True))
        peer.publish(word, b"x", 0, retain=True)
        peer.publish(word, b"y", 0)
        assert [packet.retain for packet in peer.delivered(2)] == [True, False]


@clauses(v5="3.3.1-1 4.4.0-1 4.3.3-6 4.3.2-3", v311="3.3.1-1 4.4.0-1 4.6.0-1 2.3.1-4")
def test_mqtt_4_4_0_1_a_resumed_session_sends_again(
    server: Address, word: str, version: int
) -> None:
    """The same ids in the same order with DUP; PUBREL where PUBREC had come; nothing before."""
    with Peer(server, version, kept(version, word)) as peer:
        peer.subscribe(SubscribeItem(word, 2))
        with Peer(server, version, Connect(version, f"{word}-pub")) as pub:
            for number in range(4):
                pub.publish(word, b"%d" % number, (1, 2, 2, 1)[number])
        first = {packet.payload: packet for packet in (peer.take(Publish) for _ in range(4))}
        released = first[b"1"].packet_id
        peer.send(Pubrec(released))
        peer.expect(Pubrel(released))
        assert peer.is_silent()  # nothing is sent again on a living connection
    with Peer(server, version, kept(version, word)) as peer:
        assert peer.connack.session_present
        found = [peer.receive() for _ in range(4)]
        assert found[1] == Pubrel(released)
        again = [packet for packet in found if isinstance(packet, Publish)]
        assert [packet.payload for packet in again] == [b"0", b"2", b"3"]
        for packet in again:
            assert packet == first[packet.payload]._replace(dup=True)
        assert peer.is_silent()
