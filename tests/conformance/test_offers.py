"""What a server need not offer: it says so in CONNACK and keeps to it; and packets that fit."""

import pytest

from protocols.mqtt.fields import encode_string
from protocols.mqtt.packets import (
    V5,
    V311,
    Connack,
    Connect,
    Puback,
    Publish,
    Pubrec,
    Reason,
    Subscribe,
    SubscribeItem,
    Unsubscribe,
    Will,
)
from protocols.mqtt.properties import Property
from tests.conformance.clauses import clauses
from tests.conformance.dialogue import packet as wire
from tests.conformance.peer import Address, Peer, reason_of, refusal


@pytest.fixture
def modest(addresses: dict[str, Address]) -> Address:
    """A listener with QoS 1, without retained messages, wildcards and shares."""
    return addresses["modest"]


@clauses(v5="3.2.2-9 3.2.2-10")
def test_mqtt_3_2_2_9_what_is_not_offered_is_told(modest: Address, word: str, version: int) -> None:
    """In CONNACK; a subscription of QoS 2 is granted QoS 1 and gets it."""
    with Peer(modest, version, Connect(version, word)) as peer:
        told = dict(peer.connack.properties)
        assert told[Property.MAXIMUM_QOS] == 1
        assert told[Property.RETAIN_AVAILABLE] == 0
        assert told[Property.WILDCARD_SUBSCRIPTION_AVAILABLE] == 0
        assert told[Property.SHARED_SUBSCRIPTION_AVAILABLE] == 0
        assert peer.subscribe(SubscribeItem(word, 2)) == (1,)
        peer.publish(word, b"x", 1)
        assert peer.payloads(1) == [b"x"]


@clauses(v5="3.2.2-12 3.2.2-13")
def test_mqtt_3_2_2_12_wills_that_are_not_offered(modest: Address, word: str, version: int) -> None:
    """Refused at CONNECT, each with its reason."""
    for will, reason in (
        (Will("w", b"x", qos=2), Reason.QOS_NOT_SUPPORTED),
        (Will("w", b"x", retain=True), Reason.RETAIN_NOT_SUPPORTED),
    ):
        assert reason_of(refusal(modest, version, Connect(version, word, will=will))) == reason


@pytest.mark.parametrize(("version", "reason"), [(V5, Reason.TOPIC_NAME_INVALID), (V311, 5)])
def test_a_will_that_cannot_be_stored_is_refused(
    server: Address, word: str, version: int, reason: int
) -> None:
    """For good: 3.x is not told that the server is unavailable."""
    for topic in ("a" * 31_000, "$delayed/soon/a"):
        asked = Connect(version, word, will=Will(topic, b"x"))
        assert reason_of(refusal(server, version, asked)) == reason


@pytest.mark.parametrize("version", [V5, V311])
@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (Publish("a", b"x", 2, packet_id=1), Reason.QOS_NOT_SUPPORTED),
        (Publish("a", b"x", 0, True), Reason.RETAIN_NOT_SUPPORTED),
        (Publish("a", b"x", 1, True, packet_id=1), Reason.RETAIN_NOT_SUPPORTED),
    ],
)
def test_who_publishes_more_is_closed(
    modest: Address, word: str, version: int, packet: Publish, reason: Reason
) -> None:
    """5.0 is told why."""
    with Peer(modest, version, Connect(version, word)) as peer:
        peer.send(packet)
        assert peer.is_ended(reason)


@pytest.mark.parametrize(
    ("topic_filter", "reason"),
    [
        ("a/+", Reason.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED),
        ("$share/g/a", Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED),
    ],
)
def test_filters_that_are_not_offered(
    modest: Address, word: str, topic_filter: str, reason: Reason
) -> None:
    """5.0 was told and is closed; others cannot know."""
    with Peer(modest, V5, Connect(V5, word)) as peer:
        peer.send(Subscribe(1, (SubscribeItem(topic_filter),)))
        assert peer.is_ended(reason)
    with Peer(modest, V311, Connect(V311, word)) as peer:
        assert peer.subscribe(SubscribeItem(topic_filter), SubscribeItem("a")) == (0x80, 0)


@clauses(v5="3.1.2-24")
def test_mqtt_3_1_2_24_answers_over_the_clients_maximum(
    server: Address, word: str, version: int
) -> None:
    """SUBACK and UNSUBACK that would not fit are not sent: the connection ends."""
    names = [f"{word}/{number}" for number in range(40)]
    items = tuple(SubscribeItem(name) for name in names)
    limit = ((Property.MAXIMUM_PACKET_SIZE, 40),)
    for packet in (Subscribe(1, items), Unsubscribe(1, tuple(names))):
        with Peer(server, version, Connect(version, word, properties=limit)) as peer:
            assert peer.subscribe(*items[:30]) == (0,) * 30
            peer.send(packet)
            assert peer.is_ended(Reason.PACKET_TOO_LARGE)


@clauses(v5="3.1.2-24 3.1.2-25")
def test_mqtt_3_1_2_24_what_is_sent_again_fits_too(
    server: Address, word: str, version: int
) -> None:
    """A session that comes back with a lower maximum: what is larger counts as delivered."""
    keeps = (Property.SESSION_EXPIRY, 100)
    with Peer(server, version, Connect(version, word, properties=(keeps,))) as peer:
        peer.subscribe(SubscribeItem(word, 1))
        peer.publish(word, b"x" * 100)
        assert isinstance(peer.receive(), Publish)
        peer.drop()
    limit = (Property.MAXIMUM_PACKET_SIZE, 60)
    connect = Connect(version, word, clean_start=False, properties=(keeps, limit))
    with Peer(server, version, connect) as peer:
        assert peer.connack.session_present
        peer.publish(word, b"y")
        assert peer.payloads(1) == [b"y"]
        assert peer.is_silent()


def test_text_that_is_no_text_is_refused(server: Address, word: str) -> None:
    """Payload Format 1 and no UTF-8: 0x99, in the order of the publishes; QoS 0 and wills too."""
    says = ((Property.PAYLOAD_FORMAT, 1),)
    with Peer(server, V5, Connect(V5, word)) as peer:
        peer.subscribe(SubscribeItem(word, 2))
        with Peer(server, V5, Connect(V5, f"{word}-pub")) as pub:
            pub.send(
                Publish(word, b"one", 1, packet_id=1, properties=says),
                Publish(word, b"\xff", 1, packet_id=2, properties=says),
                Publish(word, b"\xff", 1, packet_id=3),
                Publish(word, b"\xff", 2, packet_id=4, properties=says),
                Publish(word, b"two", 1, packet_id=5, properties=says),
            )
            for answer in (
                Puback(1),
                Puback(2, Reason.PAYLOAD_FORMAT_INVALID),
                Puback(3),
                Pubrec(4, Reason.PAYLOAD_FORMAT_INVALID),
                Puback(5),
            ):
                pub.expect(answer)
            pub.send(Publish(word, b"\xff", 0, properties=says))
            assert pub.is_ended(Reason.PAYLOAD_FORMAT_INVALID)
        assert peer.payloads(3) == [b"one", b"\xff", b"two"]
        assert peer.is_silent()
    will = Will("w", b"\xff", properties=says)
    refused = refusal(server, V5, Connect(V5, word, will=will))
    assert reason_of(refused) == Reason.PAYLOAD_FORMAT_INVALID


@pytest.mark.parametrize(("name", "level"), [("MQTT", 0x84), ("MQIsdp", 0x83)])
def test_a_bridge_hears_nothing_of_its_own(
    server: Address, word: str, name: str, level: int
) -> None:
    """What Mosquitto says by a high bit of its level: no-local and retain-as-published for all."""
    with Peer(server, V311) as bridge, Peer(server, V5, Connect(V5, f"{word}-x")) as other:
        head = encode_string(name) + bytes((level, 2, 0, 60))
        bridge.send(wire(0x10, head, encode_string(word)))
        assert bridge.take(Connack).reason == 0
        assert bridge.subscribe(SubscribeItem(word, 1)) == (1,)
        bridge.publish(word, b"own")
        other.publish(word, b"other", retain=True)
        (found,) = bridge.delivered(1)
        assert (found.payload, found.retain) == (b"other", True)
        assert bridge.is_silent()
        other.publish(word, b"", retain=True)


@pytest.mark.parametrize("version", [V5, V311])
def test_a_tenants_retained_values_are_its_own(
    addresses: dict[str, Address], word: str, version: int
) -> None:
    """Its subscribers get them, nobody else does; what it clears is cleared."""
    acme, others = addresses["acme"], addresses["mqtt"]
    with (
        Peer(acme, version, Connect(version, word)) as own,
        Peer(others, version, Connect(version, word)) as other,
    ):
        own.publish(word, b"kept", retain=True)
        for _ in range(2):
            other.subscribe(SubscribeItem(f"acme/{word}"), SubscribeItem(word))
            assert other.is_silent()
            own.subscribe(SubscribeItem(word))
            assert own.payloads(1) == [b"kept"]
            own.unsubscribe(word)
        own.publish(word, b"", retain=True)
        own.subscribe(SubscribeItem(word))
        assert own.is_silent()


def test_more_properties_than_a_record_has_room_for(server: Address, word: str) -> None:
    """All are told, in their order, retained or not; the payload is as it was."""
    long = (0x26, ("k" * 65_535, "v" * 65_535))
    whole = ((0x09, b"\0" * 65_535), (0x26, ("k", "2")), long, (0x26, ("k", "")), (0x03, "a/b"))
    with Peer(server, V5, Connect(V5, word)) as peer:
        peer.subscribe(SubscribeItem(word, 2))
        for qos in range(3):
            for properties in (whole, (long,), ()):
                peer.publish(word, b"x", qos, properties=properties)
                (found,) = peer.delivered(1)
                assert (found.payload, found.properties) == (b"x", properties)
        peer.publish(word, b"kept", retain=True, properties=whole)
        peer.payloads(1)
        peer.subscribe(SubscribeItem(word, 2))
        assert [(x.payload, x.properties) for x in peer.delivered(1)] == [(b"kept", whole)]
        peer.publish(word, b"", retain=True, properties=whole)
        assert [(x.payload, x.properties) for x in peer.delivered(1)] == [(b"", whole)]
        peer.subscribe(SubscribeItem(word, 2))
        assert peer.is_silent()
