"""SUBSCRIBE, UNSUBSCRIBE, matching, shared subscriptions."""

import time
from collections.abc import Sequence
from contextlib import ExitStack

import pytest

from protocols.mqtt.packets import (
    V5,
    V31,
    V311,
    Connect,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Reason,
    Suback,
    Subscribe,
    SubscribeItem,
    Unsuback,
    Unsubscribe,
)
from protocols.mqtt.properties import Property
from tests.conformance.clauses import clauses
from tests.conformance.peer import WAIT_S, Address, Peer

pytestmark = pytest.mark.client


@clauses(
    v5="3.8.4-1 3.8.4-2 3.8.4-5 3.8.4-6 3.8.4-7 3.9.3-1 3.9.3-2 2.2.1-6",
    v311="3.8.4-1 3.8.4-2 3.8.4-4 3.8.4-5 3.9.3-1 3.9.3-2 2.3.1-7",
)
def test_mqtt_3_8_4_1_suback(server: Address, word: str, version: int) -> None:
    """Its packet id, a code for each filter in order: the QoS granted or a refusal."""
    with Peer(server, version, Connect(version, word)) as peer:
        items = [SubscribeItem(f"{word}/{qos}", qos) for qos in (2, 0, 1)]
        items.insert(1, SubscribeItem("denied/#", 2))
        peer.send(Subscribe(65_535, tuple(items)))
        refused = Reason.NOT_AUTHORIZED if version == V5 else 0x80
        peer.expect(Suback(65_535, (2, refused, 0, 1)))
        for qos in (0, 1, 2):
            peer.publish(f"{word}/{qos}", b"", 2)
        found = peer.delivered(3)
        assert sorted(packet.qos for packet in found) == [0, 1, 2]


@clauses(v5="3.8.4-3 3.8.4-4", v311="3.8.4-3")
def test_mqtt_3_8_4_3_the_same_filter_replaces(server: Address, word: str, version: int) -> None:
    """One subscription, with the new QoS; what is retained comes again; nothing is lost."""
    with Peer(server, version, Connect(version, word)) as peer:
        peer.publish(word, b"kept", 1, retain=True)
        with Peer(server, version, Connect(version, f"{word}-pub")) as pub:
            for qos in (0, 2, 1):
                peer.subscribe(SubscribeItem(word, qos))
                pub.publish(word, b"live", 2)
                found = peer.delivered(2)
                assert [(p.payload, p.qos) for p in found] == [
                    (b"kept", min(qos, 1)),
                    (b"live", qos),
                ]
        assert peer.is_silent()


@clauses(
    v5="3.10.4-1 3.10.4-4 3.10.4-5 3.10.4-6 3.11.3-1 3.11.3-2 2.2.1-6",
    v311="3.10.4-1 3.10.4-4 3.10.4-5 3.10.4-6 2.3.1-7",
)
def test_mqtt_3_10_4_1_unsuback(server: Address, word: str, version: int) -> None:
    """Filters are compared as they are written; what is not there has its own code."""
    with Peer(server, version, Connect(version, word)) as peer:
        peer.subscribe(SubscribeItem(f"{word}/#"), SubscribeItem(f"{word}/A"))
        peer.send(Unsubscribe(77, (f"{word}/+", f"{word}/#", f"{word}/a")))
        reasons = (0x11, 0x00, 0x11) if version == V5 else ()
        peer.expect(Unsuback(77, reasons))
        for topic in ("A", "b"):
            peer.publish(f"{word}/{topic}", b"", 0)
        assert [packet.topic for packet in peer.delivered(1)] == [f"{word}/A"]
        peer.send(Unsubscribe(78, (f"{word}/never",)))
        peer.expect(Unsuback(78, (0x11,) if version == V5 else ()))
        assert peer.is_silent()


@clauses(v5="3.10.4-2 3.10.4-3", v311="3.10.4-2 3.10.4-3")
def test_mqtt_3_10_4_2_what_is_under_way_is_completed(
    server: Address, word: str, version: int
) -> None:
    """Nothing new after UNSUBACK; a QoS 2 exchange goes on to its end."""
    with Peer(server, version, Connect(version, word)) as peer:
        peer.subscribe(SubscribeItem(word, 2))
        with Peer(server, version, Connect(version, f"{word}-pub")) as pub:
            pub.publish(word, b"before", 2)
            packet = peer.take(Publish)
            peer.unsubscribe(word)
            pub.publish(word, b"after", 2)
        peer.send(Pubrec(packet.packet_id))
        peer.expect(Pubrel(packet.packet_id))
        assert peer.is_silent()


@clauses(v5="3.10.4-3 4.4.0-1", v311="3.10.4-3 4.4.0-1")
def test_mqtt_3_10_4_3_over_a_reconnect_too(server: Address, word: str, version: int) -> None:
    """
    What was sent and not acknowledged comes again, though nothing is subscribed any more: as it
    was sent, not as it was published.
    """
    is_v5 = version == V5
    kept = ((0x11, 600),) if is_v5 else ()
    connect = Connect(version, word, clean_start=False, properties=kept)
    with Peer(server, version, connect) as peer:
        peer.subscribe(SubscribeItem(f"{word}/1", 1), identifier=7 if is_v5 else 0)
        peer.subscribe(SubscribeItem(word, 2), identifier=8 if is_v5 else 0)
        with Peer(server, version, Connect(version, f"{word}-pub")) as pub:
            pub.publish(f"{word}/1", b"one", 2)
            pub.publish(word, b"two", 2)
        sent = [peer.take(Publish) for _ in range(2)]
        assert [packet.qos for packet in sent] == [1, 2]
        assert [packet.properties for packet in sent] == (
            [((0x0B, 7),), ((0x0B, 8),)] if is_v5 else [(), ()]
        )
        peer.unsubscribe(word, f"{word}/1")
        peer.subscribe(SubscribeItem("other"))
        peer.drop()
        with Peer(server, version, connect) as again:
            for packet in sent:
                found = again.take(Publish)
                assert found == packet._replace(dup=True)
            again.send(Puback(sent[0].packet_id), Pubrec(sent[1].packet_id))
            again.expect(Pubrel(sent[1].packet_id))
            again.send(Pubcomp(sent[1].packet_id))
            assert again.is_silent()


@clauses(v5="3.8.3-3")
def test_mqtt_3_8_3_3_no_local(server: Address, word: str, version: int) -> None:
    """Nothing of one's own; of others everything; after a reconnect too."""
    connect = Connect(version, word, clean_start=False, properties=((0x11, 600),))
    with Peer(server, version, connect) as peer:
        peer.subscribe(SubscribeItem(word, 1, no_local=True))
        peer.publish(word, b"own")
        with Peer(server, version, Connect(version, f"{word}-pub")) as pub:
            pub.publish(word, b"other")
            assert peer.payloads(1) == [b"other"]
            peer.leave()
            with Peer(server, version, connect) as again:
                again.publish(word, b"own")
                pub.publish(word, b"more")
                assert again.payloads(1) == [b"more"]
                assert again.is_silent()


@pytest.mark.parametrize("older", [V31, V311])
def test_options_of_5_0_do_not_bind_an_older_client(server: Address, word: str, older: int) -> None:
    """3.1.1 knows no No Local, and retain is 0 where a subscription is established."""
    connect = Connect(V5, word, clean_start=False, properties=((0x11, 600),))
    with Peer(server, V5, connect) as peer:
        peer.subscribe(SubscribeItem(word, 1, no_local=True, retain_as_published=True))
        peer.leave()
    with Peer(server, older, Connect(older, word, clean_start=False)) as peer:
        peer.publish(word, b"own", retain=True)
        (found,) = peer.delivered(1)
        assert (found.payload, found.retain) == (b"own", False)
        peer.leave()
    with Peer(server, V5, connect) as peer:
        peer.publish(word, b"own")
        assert peer.is_silent()


@clauses(v5="3.3.4-2 3.3.4-3 3.3.4-4", v311="3.3.5-1")
def test_mqtt_3_3_4_2_overlapping_subscriptions(server: Address, word: str, version: int) -> None:
    """One copy with the highest QoS and all identifiers."""
    with Peer(server, version, Connect(version, word)) as peer:
        for number, (topic_filter, qos) in enumerate(
            ((f"{word}/#", 1), (f"{word}/+", 2), (f"{word}/a", 0)), 1
        ):
            peer.subscribe(SubscribeItem(topic_filter, qos), identifier=number * (version == V5))
        peer.publish(f"{word}/a", b"", 2)
        (found,) = peer.delivered(1)
        assert found.qos == 2
        if version == V5:
            key = int(Property.SUBSCRIPTION_IDENTIFIER)
            assert sorted(found.properties) == [(key, 1), (key, 2), (key, 3)]
        assert peer.is_silent()


MATCHES = (
    ("{w}/#", "{w}", True),
    ("{w}/#", "{w}/a/b", True),
    ("{w}/#", "{w}/", True),
    ("{w}/+", "{w}/a", True),
    ("{w}/+", "{w}/", True),
    ("{w}/+", "{w}", False),
    ("{w}/+", "{w}/a/b", False),
    ("{w}/+/b", "{w}/a/b", True),
    ("{w}/+/+", "{w}//", True),
    ("{w}/A", "{w}/a", False),
    ("{w}/a", "/{w}/a", False),
    ("/{w}/a", "/{w}/a", True),
    ("+/{w}", "/{w}", True),
    ("{w}/\u00e4", "{w}/a\u0308", False),
    ("{w}/ ", "{w}/ ", True),
)


@clauses(v5="3.3.2-3 4.7.3-4", v311="3.3.2-3 4.7.3-4")
def test_mqtt_4_7_3_4_names_are_matched_as_they_are(
    server: Address, word: str, version: int
) -> None:
    """No normalisation, no trimming, no case folding; every level counts."""
    with Peer(server, version, Connect(version, word)) as peer:
        for topic_filter, topic, is_match in MATCHES:
            topic_filter, topic = topic_filter.format(w=word), topic.format(w=word)
            peer.subscribe(SubscribeItem(topic_filter))
            peer.publish(topic, topic.encode(), 0)
            if is_match:
                (found,) = peer.delivered(1)
                assert (found.topic, found.payload) == (topic, topic.encode())
            assert peer.is_silent(), (topic_filter, topic)
            peer.unsubscribe(topic_filter)


@clauses(v5="4.7.2-1", v311="4.7.2-1")
def test_mqtt_4_7_2_1_dollar_is_not_matched_by_wildcards(
    server: Address, word: str, version: int
) -> None:
    """Of a filter that begins with one; by its own name it is."""
    with Peer(server, version, Connect(version, word)) as peer:
        peer.subscribe(SubscribeItem(f"+/{word}/#"), SubscribeItem(f"+/{word}"))
        peer.publish(f"$own/{word}", b"", 0)
        peer.publish(f"any/{word}", b"", 0)
        assert {packet.topic for packet in peer.delivered(1)} == {f"any/{word}"}
        peer.subscribe(SubscribeItem("$own/#"))
        peer.publish(f"$own/{word}", b"", 0)
        assert [packet.topic for packet in peer.delivered(1)] == [f"$own/{word}"]


# ── shared subscriptions ────────────────────────────────────────────────────────────────


@clauses(v5="4.8.2-3")
def test_mqtt_4_8_2_3_each_message_goes_to_one_member(
    server: Address, word: str, version: int
) -> None:
    """At the QoS that this member was granted last; nothing retained, whatever else it has."""
    share = f"$share/{word}/{word}/t"
    with Peer(server, version, Connect(version, f"{word}-0")) as low:
        low.publish(f"{word}/t", b"kept", 1, retain=True)
        low.subscribe(SubscribeItem(share, 1))
        low.subscribe(SubscribeItem(share, 0))
        assert low.is_silent()
        with Peer(server, version, Connect(version, f"{word}-1")) as high:
            high.subscribe(SubscribeItem(f"{word}/other", 2))
            high.subscribe(SubscribeItem(share, 1))
            with Peer(server, version, Connect(version, f"{word}-pub")) as pub:
                for number in range(20):
                    pub.publish(f"{word}/t", b"%d" % number, 2)
            found = gather((low, high), 20)
    assert all(packet.qos == index for index, packet in found)
    bodies = [packet.payload for _, packet in found]
    assert sorted(bodies) == sorted(b"%d" % number for number in range(20))


def gather(peers: Sequence[Peer], count: int) -> list[tuple[int, Publish]]:
    """(which peer, what it got), *count* in all, in whatever order; all is acknowledged."""
    found: list[tuple[int, Publish]] = []
    until = time.monotonic() + WAIT_S
    while len(found) < count and time.monotonic() < until:
        for index, peer in enumerate(peers):
            peer.send(Pingreq())
            while isinstance(packet := peer.receive(), Publish):
                found.append((index, packet))
                if packet.qos:
                    peer.send(Puback(packet.packet_id))
    assert all(peer.is_silent() for peer in peers)
    return found


@clauses(v5="4.8.2-6")
def test_mqtt_4_8_2_6_what_is_refused_goes_to_nobody_else(
    server: Address, word: str, version: int
) -> None:
    """PUBACK or PUBREC with an error is the end of it."""
    share = f"$share/{word}/{word}/t"
    with Peer(server, version, Connect(version, f"{word}-0")) as one:
        one.subscribe(SubscribeItem(share, 2))
        with Peer(server, version, Connect(version, f"{word}-pub")) as pub:
            for qos in (1, 2):
                pub.publish(f"{word}/t", b"", qos)
        for _ in range(2):
            packet = one.take(Publish)
            kind = Puback if packet.qos == 1 else Pubrec
            one.send(kind(packet.packet_id, Reason.UNSPECIFIED_ERROR))
        assert one.is_silent()
        with Peer(server, version, Connect(version, f"{word}-1")) as two:
            two.subscribe(SubscribeItem(share, 2))
            one.leave()
            with Peer(server, version, Connect(version, f"{word}-pub")) as pub:
                pub.publish(f"{word}/t", b"next", 1)
            assert two.payloads(1) == [b"next"]
            assert two.is_silent()


# ── who of a share gets what: no clause says, the listener does ─────────────────────────


@pytest.mark.parametrize("strategy", ["random", "sticky", "hash_client", "hash_topic"])
def test_strategies_of_shares(server: Address, word: str, strategy: str) -> None:
    """All is delivered once; who gets it is decided by its publisher, its topic, or neither."""
    share = f"$share/{strategy}/{word}/#"
    with ExitStack() as stack:

        def peer(name: str) -> Peer:
            return stack.enter_context(Peer(server, V5, Connect(V5, f"{word}-{name}")))

        members = [peer(f"m{number}") for number in range(3)]
        for member in members:
            assert member.subscribe(SubscribeItem(share, 1)) == (1,)
        publishers = {name: peer(name) for name in ("p0", "p1", "p2", "p3")}
        sent = [(name, f"{word}/{topic}") for name in publishers for topic in range(4)] * 2
        for name, topic in sent:
            publishers[name].publish(topic, name.encode())
        found = gather(members, len(sent))
        pairs = [(packet.payload.decode(), packet.topic) for _, packet in found]
        assert sorted(pairs) == sorted(sent)
        if strategy == "sticky":
            assert {index for index, _ in found} == {0}
        elif strategy == "hash_client":
            assert len({(index, packet.payload) for index, packet in found}) == len(publishers)
        elif strategy == "hash_topic":
            assert len({(index, packet.topic) for index, packet in found}) == 4
        else:
            assert len({index for index, _ in found}) > 1
