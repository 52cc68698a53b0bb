"""What goes and what stays: by what is owed and by each topic's own time, not by age alone."""

from dataclasses import replace

import pytest

from protocols.errors import Code
from protocols.remoting.private import ReadItem
from protocols.remoting.settling import AckItem
from store.answers import STORE_FULL, Granted, TopicConfig
from store.log.segments import SUFFIX
from tests.store.engine_kit import SMALL, Driver, body_of, filter_key, make_frame
from tests.store.test_index_files import snapshot

A = filter_key("a")
TINY = replace(SMALL, segment_bytes=16 << 10, retention_s=3600, snapshot_bytes=32 << 10)
HOUR_S = 3600


def segment_count(store: Driver) -> int:
    return len([name for name in store.disk.names() if name.endswith(SUFFIX)])


def settle(store: Driver, times: int = 60) -> None:
    """Let retention do all that it can do now."""
    store.later(1)
    for _ in range(times):
        store.later(0.02)
        store.drain()
        work = store.engine.background.snapshot_due(store.now)
        if work is None:
            store.drain()
            work = store.engine.background.snapshot_due(store.now)
        if work is not None:
            work.execute(store.disk)
            store.engine.background.snapshot_written(work)


def numbered(records: list[bytes]) -> list[int]:
    return [int(body_of(record).split(b":")[0]) for record in records]


def read_all(store: Driver, topic: str = "t") -> list[int]:
    low, _ = store.engine.offset_range(topic, 0)
    at, found = low, list[int]()
    while True:
        result = store.engine.read(topic, 0, at, 50, 1 << 20)
        if not result.records:
            return found
        found += numbered(result.records)
        at = result.next_offset


def one_live_record_per_segment() -> tuple[Driver, int, list[Granted]]:
    """Each sixth of 90 messages, which fill some 13 segments, is small and not acknowledged."""
    store = Driver(config=TINY)
    store.topic("t")
    group = store.open("g", [ReadItem(tag=1, key=A)])
    for number in range(90):
        size = 10 if number % 6 == 3 else 2300
        store.send(b"%d:" % number + bytes(size), keys=[A])
    left: list[Granted] = []
    while granted := store.take(group, 30):
        kept = [
            one for one in granted if numbered([store.engine.record_at(one.position)])[0] % 6 == 3
        ]
        left += kept
        store.ack(group, [one for one in granted if one not in kept])
    snapshot(store)
    store.send(b"999:")
    snapshot(store)
    return store, group, left


def test_few_live_records_do_not_keep_their_segments() -> None:
    store, group, left = one_live_record_per_segment()
    before = segment_count(store)
    store.later(2 * HOUR_S)
    settle(store)
    for _ in range(2):
        store.send(b"1000:")
        snapshot(store)
    settle(store)
    assert store.engine.counters.relocated >= 9
    assert before - segment_count(store) >= 8
    assert read_all(store)[:3] == [3, 9, 15]
    for one in left:  # an id goes on naming its message, a handle its delivery
        assert int.from_bytes(store.engine.record_at(one.position)[28:36], "big") == one.position
    assert store.ack(group, left[:5]) == [Code.OK] * 5


def test_relocated_messages_survive_restarts_and_are_delivered() -> None:
    store, _, left = one_live_record_per_segment()
    store.later(2 * HOUR_S)
    for _ in range(3):
        settle(store)
        store.send(b"1000:")
        snapshot(store)
    assert store.engine.counters.relocated >= 9
    positions = [one.position for one in left]
    for _ in range(2):
        store.restart()
        group = store.engine.group_number("g")
        store.later(store.config.orphan_s + 1)
        granted = store.take(group, 100, holder=5)
        assert [one.position for one in granted[: len(left)]] == positions
        assert numbered([store.engine.record_at(at) for at in positions[:3]]) == [3, 9, 15]
        assert store.engine.entry_position("t", 0, 9) == positions[1]
        store.engine.end_holder(5, store.now)
        store.drain()


def test_a_relocated_record_moves_again_and_goes_at_last() -> None:
    """What is left of a segment goes with its last message."""
    store, group, left = one_live_record_per_segment()
    for turn in range(4):
        store.later(2 * HOUR_S)
        settle(store)
        for number in range(30):
            store.send(b"%d:" % (2000 + number) + bytes(2300))
        snapshot(store)
        settle(store)
        assert store.engine.record_at(left[-1].position), turn
    assert store.engine.counters.relocated > 2 * len(left)
    assert store.ack(group, left) == [Code.OK] * len(left)
    while granted := store.take(group, 100):
        store.ack(group, granted)
    for _ in range(3):
        store.later(2 * HOUR_S)
        settle(store)
        for number in range(10):
            store.send(b"%d:" % (3000 + number) + bytes(2300))
        snapshot(store)
    settle(store)
    assert len(store.engine._core.cold.remnants) == 0
    assert segment_count(store) < 8


def test_a_topic_of_a_short_time_does_not_wait_for_another() -> None:
    """And a few messages of a long time outlive their segments."""
    store = Driver(config=replace(TINY, retention_s=100 * HOUR_S))
    for name, hours in (("short", "1"), ("long", "1000")):
        config = TopicConfig(name, 1, 1, attributes={"reserve.time": hours})
        store.engine.catalog.put_topic(config, store.now)
    store.drain()
    for number in range(60):
        store.send(b"%d:" % number + bytes(2300), topic="short")
        if number % 10 == 0:
            store.send(b"%d:" % number, topic="long")
    before = segment_count(store)
    for _ in range(3):
        snapshot(store)
        store.send(b"60:", topic="short")
        store.later(2 * HOUR_S)
        settle(store)
    assert before - segment_count(store) >= 7
    assert len(read_all(store, "short")) < 25
    assert read_all(store, "long") == [0, 10, 20, 30, 40, 50]
    store.restart()
    assert read_all(store, "long") == [0, 10, 20, 30, 40, 50]


FULL = replace(TINY, log_bytes_max=12 * TINY.segment_bytes)


def fill_up(store: Driver, keys: list[bytes]) -> int:
    """Send until the store is full; how many were stored."""
    for number in range(200):
        store.frame += 1
        frame = make_frame(1, store.frame, [b"%d:" % number + bytes(2300)], keys=keys)
        pending = store.engine.send("gw", frame, store.now)
        store.drain()
        if pending.result().refused:
            assert [code for code, _ in pending.result().refused.values()] == [STORE_FULL]
            return number
        settle(store, 3)
    raise AssertionError("never full")


def test_a_full_store_refuses_sends_and_goes_on_when_acks_free_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Owed records are never dropped; what a few of them hold back is freed all the same."""
    caplog.set_level("INFO", "store.engine")
    store = Driver(config=FULL)
    store.topic("t")
    group = store.open("g", [ReadItem(tag=1, key=A)])
    count = fill_up(store, [A])
    left: list[Granted] = []
    seen = 0
    while granted := store.take(group, 10):
        assert numbered([store.engine.record_at(one.record_position) for one in granted]) == list(
            range(seen, seen + len(granted))
        )
        seen += len(granted)
        left += granted[:1]
        assert store.ack(group, granted[1:]) == [Code.OK] * (len(granted) - 1)
    assert seen == count
    settle(store)
    assert len(store.send(b"more" + bytes(2300))) == 1
    bodies = [store.engine.record_at(one.position) for one in left]
    assert numbered(bodies) == list(range(0, count, 10))
    told = [text.split(",")[0] for text in caplog.messages if "room" in text]
    assert told == ["out of room", "there is room for messages again"]


@pytest.mark.parametrize(
    ("segments", "size"),
    [(12, 2300), (4, 7000)],
    ids=["before any snapshot", "larger than what counts as pressure"],
)
def test_a_store_that_was_filled_at_once_goes_on_when_acks_free_it(
    segments: int, size: int
) -> None:
    """A full log does not grow to its next snapshot, and a message may be a third of it."""
    store = Driver(config=replace(TINY, log_bytes_max=segments * TINY.segment_bytes))
    store.topic("t")
    group = store.open("g", [ReadItem(tag=1, key=A)])
    for _ in range(100):
        store.frame += 1
        frame = make_frame(1, store.frame, [bytes(size)], keys=[A])
        pending = store.engine.send("gw", frame, store.now)
        store.drain()
        if pending.result().refused:
            break
    while granted := store.take(group, 10):
        store.ack(group, granted)
    for _ in range(4):  # who is refused tries again
        settle(store)
        store.frame += 1
        pending = store.engine.send("gw", make_frame(1, store.frame, [bytes(size)]), store.now)
        store.drain()
    assert not pending.result().refused


def test_what_is_kept_goes_under_pressure_and_what_is_owed_stays() -> None:
    store = Driver(config=FULL)
    store.topic("t")
    owed = store.send(b"0:owed", keys=[A])
    group = store.open("g", [ReadItem(tag=1, key=A)], start="earliest")
    for number in range(1, 150):
        store.send(b"%d:" % number + bytes(2300))
        settle(store, 3)
    assert not store.engine.is_full
    low, high = store.engine.offset_range("t", 0)
    assert (low, high) == (0, 150)
    assert read_all(store)[0] == 0
    assert len(read_all(store)) < 80
    (granted,) = store.take(group)
    assert granted.position == owed[0]
    assert body_of(store.engine.record_at(granted.position)) == b"0:owed"


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_crash_before_the_snapshots_finds_the_segment_as_it_was(times: int) -> None:
    store, _, left = one_live_record_per_segment()
    store.later(2 * HOUR_S)
    for _ in range(times):
        store.later(1)
        store.drain()
    store.restart()
    assert numbered([store.engine.record_at(one.position) for one in left])[:3] == [3, 9, 15]
    group = store.engine.group_number("g")
    granted = store.engine.resume(group, 9, [(one.position, one.grant) for one in left], store.now)
    assert not granted
    items = [AckItem(group, one.position, one.grant) for one in left]
    pending = store.engine.ack(store.engine.epoch, items, store.now)
    store.drain()
    assert {code for _, code in pending.result()} == {Code.OK}
