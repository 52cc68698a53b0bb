"""Packets taken as rows are the packets that would be taken one by one, up to the first other."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.message_runs import MessageRun
from protocols.mqtt import codec
from protocols.mqtt.encoder import encode_packet
from protocols.mqtt.mapping import Heads
from protocols.mqtt.packets import V5, V311, Publish
from protocols.mqtt.properties import Property
from protocols.mqtt.publish_rows import PACKETS_MIN, take_rows
from protocols.remoting.message_ids import IdRun, MessageIds

pytest.importorskip("numpy")

BYTES_MAX = 100_000
WITH_PROPERTIES = Publish(
    "a/b", bytes(15), 1, packet_id=9, properties=((int(Property.MESSAGE_EXPIRY), 1),)
)
"""Of the size of one with twenty bytes and no properties."""

OTHERS = {
    "another size": Publish("a/b", b"longer than the others" * 20, 1, packet_id=9),
    "another topic": Publish("a/c", bytes(20), 1, packet_id=9),
    "another QoS": Publish("a/b", bytes(22), 0),
    "properties": WITH_PROPERTIES,
    "nothing": None,
}


def wire_of(version: int, qos: int, payloads: list[bytes]) -> bytes:
    ids = range(1, len(payloads) + 1)
    return b"".join(
        [
            encode_packet(Publish("a/b", payload, qos, packet_id=number if qos else 0), version)
            for number, payload in zip(ids, payloads, strict=True)
        ]
    )


@settings(max_examples=60)
@given(
    version=st.sampled_from((V311, V5)),
    qos=st.integers(0, 1),
    count=st.integers(PACKETS_MIN, 2 * PACKETS_MIN),
    size=st.sampled_from((1, 20, 127, 300)),
    other=st.sampled_from(sorted(OTHERS)),
    lead=st.integers(0, 3),
)
def test_rows_are_what_packets_are(
    version: int, qos: int, count: int, size: int, other: str, lead: int
) -> None:
    heads = Heads("c")
    head = heads.find("a/b", qos, False)
    table = heads.tables[qos << 1]
    payloads = [bytes([number % 256]) * size for number in range(count)]
    wire = b"\0" * lead + wire_of(version, qos, payloads)
    whole = len(wire)
    packet = OTHERS[other]
    if packet is not None and (version == V5 or not packet.properties):
        wire += encode_packet(packet, version) + wire_of(version, qos, payloads)
    taken = take_rows(wire, lead, table, version == V5, BYTES_MAX)
    spans: list[tuple[object, int]] = []
    bodies: list[bytes] = []
    ids: list[bytes] = []
    codec.take_publishes(
        wire[:whole],
        lead,
        table,
        version == V5,
        BYTES_MAX,
        spans,
        bodies,
        ids,  # type: ignore[arg-type]
    )
    if taken is None:  # what follows made it look unlike at one of the places looked at
        assert packet is not None
        return
    assert taken.head is head
    assert taken.payloads.to_list()[:count] == bodies
    assert taken.packet_ids[: 2 * count] == b"".join(ids)
    assert taken.stop >= whole
    if packet is not None and taken.stop > whole:
        assert version == V311
        assert packet.properties


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("at", [0, 1, PACKETS_MIN, PACKETS_MIN + 5])
def test_a_packet_id_of_0_ends_the_rows(version: int, at: int) -> None:
    """Whoever comes next says what is wrong with it."""
    heads = Heads("c")
    head = heads.find("a/b", 1, False)
    wire = bytearray(wire_of(version, 1, [b"payload"] * (2 * PACKETS_MIN)))
    size = len(wire) // (2 * PACKETS_MIN)
    wire[at * size + 7 : at * size + 9] = b"\0\0"
    taken = take_rows(bytes(wire), 0, heads.tables[2], version == V5, BYTES_MAX)
    if at < PACKETS_MIN:
        assert taken is None
    else:
        assert taken is not None
        assert (taken.head, taken.stop) == (head, at * size)


@pytest.mark.parametrize("at", [0, 1, PACKETS_MIN, PACKETS_MIN + 5])
def test_properties_end_the_rows(at: int) -> None:
    """Of a packet of the same size: they are no payload."""
    heads = Heads("c")
    head = heads.find("a/b", 1, False)
    other = encode_packet(WITH_PROPERTIES, V5)
    packets = [wire_of(V5, 1, [bytes(20)])] * (2 * PACKETS_MIN)
    assert len(packets[0]) == len(other)
    packets[at] = other
    taken = take_rows(b"".join(packets), 0, heads.tables[2], True, BYTES_MAX)
    if at < PACKETS_MIN:
        assert taken is None
    else:
        assert taken is not None
        assert (taken.head, taken.stop) == (head, at * len(other))


@pytest.mark.parametrize(
    ("topic", "payload", "count", "bytes_max"),
    [("x", b"1", 99, 1000), ("a/b", b"", 99, 1000), ("a/b", b"1", 63, 1000), ("a/b", b"1", 99, 7)],
)
def test_what_is_left_to_others(topic: str, payload: bytes, count: int, bytes_max: int) -> None:
    """An unknown topic, empty payloads, few packets, packets over the limit."""
    heads = Heads("c")
    heads.find("a/b", 0, False)
    wire = encode_packet(Publish(topic, payload), V311) * count
    assert take_rows(wire, 0, heads.tables[0], False, bytes_max) is None


def test_a_run_of_rows_is_a_sequence_of_messages() -> None:
    """For those who do not know the type; parts of it too."""
    heads = Heads("c")
    head = heads.find("a/b", 0, False)
    wire = b"".join([encode_packet(Publish("a/b", b"%03d" % at), V311) for at in range(100)])
    taken = take_rows(wire, 0, heads.tables[0], False, BYTES_MAX)
    assert taken is not None
    run = MessageRun(head, taken.payloads)
    assert (len(run), run.size_bytes) == (100, 300)
    assert [message.body for message in run] == [b"%03d" % at for at in range(100)]
    part = run[40:60]
    assert (part[0].body, part[-1].body, len(part)) == (b"040", b"059", 20)
    assert taken.payloads[99] == b"099"


@given(seed=st.integers(0, 65535), count=st.integers(2, 3000), data=st.data())
def test_a_run_of_ids_is_a_sequence_of_ids(seed: int, count: int, data: st.DataObject) -> None:
    """Also where the counter goes round."""
    ids = MessageIds(b"\x7f\0\0\1", 1, seed).take_run(5, count)
    assert isinstance(ids, IdRun)
    expected = MessageIds(b"\x7f\0\0\1", 1, seed).take_many(5, count)
    assert list(ids) == expected
    start = data.draw(st.integers(0, count))
    stop = data.draw(st.integers(start, count))
    assert list(ids[start:stop]) == expected[start:stop]
