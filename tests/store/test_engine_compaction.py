"""Compacted topics: the last value of each key stays, what it replaced goes."""

from dataclasses import replace

import pytest

from protocols.errors import Code
from protocols.remoting.private import ReadItem
from protocols.remoting.sending import (
    ITEM,
    NO_ONCE_KEY,
    SendSet,
    SetFlag,
    decode_send,
    encode_send,
    encode_set,
)
from store.answers import AppendRecord, TopicConfig
from store.metadata.compacted import LAG_MS, TOMBSTONE_MS
from tests.store.engine_kit import SMALL, Driver, body_of, make_record
from tests.store.test_engine_retention import segment_count, settle
from tests.store.test_index_files import snapshot

TINY = replace(SMALL, segment_bytes=16 << 10, snapshot_bytes=32 << 10)
LAG_S = LAG_MS / 1000 + 1


def compacted() -> Driver:
    store = Driver(config=TINY)
    config = TopicConfig("c", 1, 1, attributes={"cleanup.policy": "COMPACTION"})
    store.engine.catalog.put_topic(config, store.now)
    store.drain()
    return store


def put(store: Driver, key: str, value: bytes, *, is_direct: bool = False) -> int:
    """Position of a durable message, sent by a gateway or by a standard client."""
    if not is_direct:
        return store.send(value, topic="c", KEYS=key)[0]
    record = make_record("c", value, KEYS=key) if key else make_record("c", value)
    pending = store.engine.append([AppendRecord("c", 0, record)], store.now)
    store.drain()
    (result,) = pending.result()
    assert result.code == (Code.OK if key else Code.ILLEGAL_MESSAGE_KEY)
    return result.position


def read(store: Driver, offset: int = -1) -> list[bytes]:
    low, _ = store.engine.offset_range("c", 0)
    at, found = max(low, offset), list[bytes]()
    while True:
        result = store.engine.read("c", 0, at, 3, 1 << 20)
        if result.next_offset == at:
            return found
        found += [body_of(record).rstrip(b"\0") for record in result.records]
        at = result.next_offset


def test_a_reader_that_is_late_gets_last_values_only() -> None:
    store = compacted()
    for number in range(30):
        put(store, f"k{number % 3}", b"%d" % number, is_direct=number % 2 == 0)
    assert len(read(store)) == 30  # those who follow closely see all
    store.later(LAG_S)
    assert read(store) == [b"27", b"28", b"29"]
    assert read(store, 29) == [b"29"]


def test_a_group_that_is_late_gets_last_values_only() -> None:
    store = compacted()
    for number in range(30):
        put(store, f"k{number % 3}", b"%d" % number)
    group = store.open("g", [ReadItem(tag=0, topic="c")], start="earliest")
    store.later(LAG_S)
    granted = store.take(group)
    assert [body.rstrip(b"\0") for body in store.bodies(granted)] == [b"27", b"28", b"29"]
    assert store.ack(group, granted) == [Code.OK] * 3
    assert not store.take(group)


def test_a_restart_changes_nothing() -> None:
    store = compacted()
    for number in range(20):
        put(store, f"k{number % 3}", b"%d" % number)
        if number == 9:
            snapshot(store)
    store.restart()
    store.later(LAG_S)
    assert read(store) == [b"17", b"18", b"19"]
    put(store, "k0", b"new")
    store.later(LAG_S)
    assert read(store) == [b"17", b"19", b"new"]


def test_an_empty_body_deletes_its_key_and_goes_at_last() -> None:
    store = compacted()
    put(store, "a", b"1")
    put(store, "b", b"2")
    put(store, "a", b"")
    store.later(LAG_S)
    assert read(store) == [b"2", b""]
    store.later(TOMBSTONE_MS / 1000)
    assert read(store) == [b"2"]
    put(store, "a", b"3")
    assert read(store) == [b"2", b"3"]


def test_a_message_without_a_key_is_refused() -> None:
    store = compacted()
    put(store, "", b"1", is_direct=True)
    assert read(store) == []


def test_a_gateway_is_told_which_of_a_frame_had_no_key() -> None:
    store = compacted()
    records = [make_record("c", b"0"), make_record("c", b"1", KEYS="k")]
    items = [ITEM.pack(len(record), 0, 1, 0, 0, NO_ONCE_KEY) for record in records]
    sets = [encode_set(SendSet(SetFlag.IS_PRIMARY, "c", 0, ()))]
    frame = decode_send(encode_send(1, 1, 0, sets, items, records))
    pending = store.engine.send("gw", frame, store.now)
    store.drain()
    refused = pending.result().refused
    assert {item: code for item, (code, _) in refused.items()} == {0: Code.ILLEGAL_MESSAGE_KEY}
    assert read(store) == [b"1"]


def test_what_was_replaced_leaves_the_disk_and_last_values_never_do() -> None:
    """Not even when all of the log is older than its retention."""
    store = compacted()
    put(store, "first", b"kept")
    for number in range(120):
        put(store, f"k{number % 3}", b"%d" % number + bytes(2300))
    before = segment_count(store)
    store.later(LAG_S)
    for _ in range(3):
        snapshot(store)
        store.send(b"x", topic="c", KEYS="other")
        store.later(100)
        settle(store)
    assert before - segment_count(store) >= 12
    expected = [b"kept", b"117", b"118", b"119", b"x"]
    assert read(store) == expected
    store.later(30 * 24 * 3600)
    settle(store)
    assert read(store) == expected
    store.restart()
    assert read(store) == expected


def test_messages_from_before_the_policy_are_as_ever() -> None:
    store = Driver(config=TINY)
    store.topic("c", 1)
    for number in range(4):
        put(store, "k", b"%d" % number)
    config = TopicConfig("c", 1, 1, attributes={"cleanup.policy": "COMPACTION"})
    store.engine.catalog.put_topic(config, store.now)
    store.drain()
    put(store, "k", b"4")
    put(store, "k", b"5")
    store.later(LAG_S)
    assert read(store) == [b"0", b"1", b"2", b"3", b"5"]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_value_that_comes_late_is_the_last_one(restarts: bool) -> None:
    """A delayed message counts from when it becomes visible."""
    store = compacted()
    record = make_record("c", b"late", KEYS="k")
    store.engine.append([AppendRecord("c", 0, record, due_ms=store.now.wall_ms + 5000)], store.now)
    put(store, "k", b"early")
    store.later(5)
    store.drain()
    if restarts:
        store.restart()
    store.later(LAG_S)
    assert read(store) == [b"late"]
