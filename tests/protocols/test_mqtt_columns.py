"""A run as a column of packets: the same bytes as each of its messages alone."""

from typing import Final, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.delivery_runs import DeliveryRun, Shelf
from protocols.mqtt.codec import decode_packet, find_body
from protocols.mqtt.packets import V5, V311, Publish
from protocols.mqtt.properties import Property
from protocols.mqtt.rendering import Renderings
from protocols.remoting import records
from protocols.remoting.codes import SysFlag
from protocols.remoting.delivering import decode_deliver, encode_deliver
from protocols.rows import ROWS_MIN
from protocols.stored_names import NO_DATA

HOST: Final = records.encode_host("10.1.2.3:4567")


class Kind(NamedTuple):
    """What a publisher's records have in common."""

    topic: str
    properties: tuple[tuple[str, str], ...]
    has_id: bool = True


KINDS: Final = (
    Kind("MQTT", (("TG_SUBJECT", "a/b"), ("mqtt_qos", "1"))),
    Kind("MQTT", (("TG_SUBJECT", "a/c"), ("mqtt_qos", "1"))),
    Kind("MQTTX", (("TG_SUBJECT", "a/b"), ("mqtt_qos", "1"))),
    Kind("MQTT", (("TG_SUBJECT", "a/b"), ("CE_specversion", "1.0"), ("CE_id", "7"))),
    Kind("MQTT", (("TG_SUBJECT", "a/b"), ("IS_EMPTY_MSG", "true"))),
    Kind("orders", (("colour", "red"),), has_id=False),
)


def record_of(kind: Kind, body: bytes, number: int) -> bytes:
    named = (("UNIQ_KEY", f"{number:032X}"),) if kind.has_id else ()
    return records.encode_record(
        kind.topic,
        body,
        queue_id=number % 4,
        properties_text=records.encode_properties([*named, *kind.properties]),
        queue_offset=number,
        log_position=1000 * number,
        born_ms=number,
        store_ms=number + 1,
        flag=0,
        reconsume_count=0,
        prepared_offset=0,
        born_host=HOST,
    )


def run_of(found: list[bytes], start: int, stop: int) -> DeliveryRun:
    shelf = Shelf("c", "b", 1, range(len(found)), found, records.decode_record)
    return DeliveryRun(
        shelf, start, stop, group=1, group_name="g", grant=1, qos=1, retain=False, reads=(0,)
    )


@pytest.mark.parametrize("version", [V311, V5])
@settings(deadline=None)  # a loaded machine is slow, not wrong
@given(
    items=st.lists(
        st.tuples(st.sampled_from(KINDS), st.sampled_from([b"", b"\x00", b"x", b"yy", b"zz"])),
        min_size=1,
        max_size=12,
    )
)
def test_a_column_has_the_packets_of_its_messages(
    version: int, items: list[tuple[Kind, bytes]]
) -> None:
    """However publishers take turns, and whatever is in a body."""
    found = [record_of(kind, body, number) for number, (kind, body) in enumerate(items)]
    column = Renderings().column(run_of(found, 0, len(found)), version, 1, False, (3,))
    assert column is not None
    assert len(column) == len(found)
    ids = [number.to_bytes(2, "big") for number in range(1, len(found) + 1)]
    pieces = column.packets(0, ids)
    for index, record in enumerate(found):
        message = records.decode_record(record)
        head, tail = Renderings().find(message).parts(version, 1, False, (3,), 0)
        assert b"".join(pieces[3 * index : 3 * index + 3]) == head + ids[index] + tail


def with_long_host(record: bytes) -> bytes:
    """As from a client with an IPv6 address: twelve bytes more before the port."""
    at = records.BORN_HOST_AT + 4
    flag = int(SysFlag.BORN_HOST_V6).to_bytes(4, "big")
    whole = record[:at] + bytes(12) + record[at:]
    whole = whole[: records.SYS_FLAG_AT] + flag + whole[records.SYS_FLAG_AT + 4 :]
    return len(whole).to_bytes(4, "big") + whole[4:]


def test_records_with_long_hosts_are_read_one_by_one() -> None:
    """Laid out otherwise, and still what they are."""
    bodies = [b"one", b"two"]
    found = [with_long_host(record_of(KINDS[0], body, at)) for at, body in enumerate(bodies)]
    assert [records.decode_record(record).body for record in found] == bodies
    column = Renderings().column(run_of(found, 0, 2), V311, 1, False, ())
    assert column is not None
    assert column.packets(0, [b"\x00\x01", b"\x00\x02"])[2::3] == bodies


def shelved(found: list[bytes]) -> Shelf:
    """As a frame from a store brings them."""
    placed = [(1000 * number, record) for number, record in enumerate(found)]
    body = decode_deliver(encode_deliver(1, placed, []))
    return Shelf("c", "b", 1, body.positions, body.records, records.decode_record)


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("odd", [-1, 0, 40, 70])
def test_many_of_one_size_have_the_packets_of_each(version: int, qos: int, odd: int) -> None:
    """All alike, or one of another topic among them, of the same size as the others."""
    found = [
        record_of(KINDS[number == odd], b"body %04d" % number, number)
        for number in range(ROWS_MIN + 40)
    ]
    shelf, start, stop = shelved(found), 3, len(found) - 2
    run = DeliveryRun(
        shelf, start, stop, group=1, group_name="g", grant=1, qos=qos, retain=False, reads=(0,)
    )
    column = Renderings().column(run, version, qos, True, (7,))
    assert column is not None
    assert len(column) == stop - start
    ids = [number.to_bytes(2, "big") for number in range(500, 500 + stop - start)]
    expected = []
    for record, packet_id in zip(found[start:stop], ids, strict=True):
        parts = Renderings().find(records.decode_record(record)).parts(version, qos, True, (7,), 0)
        expected.append((packet_id if qos else b"").join(parts))
    if qos:
        assert column.joined(ids) == b"".join(expected)
        assert b"".join(column.packets(5, ids[5:20])) == b"".join(expected[5:20])
    else:
        assert column.whole == b"".join(expected)
    assert [delivery.message.body for delivery in run] == [
        b"body %04d" % number for number in range(start, stop)
    ]
    assert shelf.records == found


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("kind", KINDS[3:])
@pytest.mark.parametrize("body", [NO_DATA, b"text"])
def test_many_that_do_not_stand_for_their_body(version: int, kind: Kind, body: bytes) -> None:
    """Events may have no data, a filler has none, some have no id: as each of them alone."""
    found = [record_of(kind, body, number) for number in range(ROWS_MIN + 40)]
    run = DeliveryRun(
        shelved(found), 0, len(found), group=1, group_name="g", grant=1, qos=0, retain=False,
        reads=(0,),
    )  # fmt: skip
    column = Renderings().column(run, version, 0, False, ())
    assert column is not None
    parts = Renderings().find(records.decode_record(found[0])).parts(version, 0, False, (), 0)
    assert column.whole == b"".join(parts) * len(found)


def test_events_with_and_without_data_side_by_side() -> None:
    """Of one size as they are stored, and not as they are sent."""
    bodies = [NO_DATA, b"1", NO_DATA, b"2"]
    found = [record_of(KINDS[3], body, number) for number, body in enumerate(bodies)]
    column = Renderings().column(run_of(found, 0, len(found)), V311, 1, False, ())
    assert column is not None
    heads = [
        b"".join(Renderings().find(records.decode_record(record)).parts(V311, 1, False, (), 0))
        for record in found
    ]
    ids = [b"", b"", b"", b""]
    assert column.joined(ids) == b"".join(heads)


@pytest.mark.parametrize("count", [2, ROWS_MIN + 40])
@pytest.mark.parametrize("odd", [("TG_EXPIRES_AT", "9000000000000"), ("TG_SUBJECT", "a/#")])
def test_what_is_looked_at_for_each_client_has_no_column(count: int, odd: tuple[str, str]) -> None:
    """What expires says how long it has; an address that is no topic name goes to nobody."""
    kind = Kind("MQTT", (odd, ("mqtt_qos", "1")))
    shelf = shelved([record_of(kind, b"same", number) for number in range(count)])
    run = DeliveryRun(
        shelf, 0, count, group=1, group_name="g", grant=1, qos=0, retain=False, reads=(0,)
    )
    assert Renderings().column(run, V5, 0, False, ()) is None


def test_who_gets_a_run_otherwise_gets_other_packets() -> None:
    """Runs of one frame that begin alike, and readers with other subscription identifiers."""
    found = [record_of(KINDS[0], b"same", number) for number in range(5)]
    shelf, renderings = shelved(found), Renderings()
    rendering = renderings.find(records.decode_record(found[0]))
    for stop, identifiers in ((5, ()), (5, (7,)), (2, (7,)), (2, ())):
        run = DeliveryRun(
            shelf, 0, stop, group=1, group_name="g", grant=1, qos=0, retain=False, reads=(0,)
        )
        column = renderings.column(run, V5, 0, False, identifiers)
        assert column is not None
        assert column.whole == b"".join(rendering.parts(V5, 0, False, identifiers, 0)) * stop


def test_an_alias_changes_nothing_else() -> None:
    """What is left of its life is told, too."""
    kind = Kind("MQTT", (("TG_SUBJECT", "a/b"), ("mqtt_qos", "1"), ("TG_EXPIRES_AT", "9000")))
    rendering = Renderings().find(records.decode_record(record_of(kind, b"body", 1)))
    for wall_ms in (1000, 5000):
        head, tail = rendering.parts(V5, 1, False, (7,), wall_ms)
        plain = decode_whole(head + b"\x00\x09" + tail)
        head, tail = rendering.aliased_parts(b"a/b", 3, (1, False, (7,)), wall_ms)
        aliased = decode_whole(head + b"\x00\x09" + tail)
        assert dict(aliased.properties) == {**dict(plain.properties), Property.TOPIC_ALIAS: 3}
        assert dict(plain.properties)[Property.MESSAGE_EXPIRY] == (9000 - wall_ms) // 1000
        assert aliased._replace(properties=()) == plain._replace(properties=())


def decode_whole(data: bytes) -> Publish:
    start, end = find_body(data, 0)
    assert end == len(data)
    packet = decode_packet(data, 0, start, end, V5)
    assert isinstance(packet, Publish)
    return packet
