"""Light queues that nobody reads leave memory, come back when asked for, and end when empty."""

from dataclasses import replace
from random import Random

import pytest

from protocols.canonical import QueueKind, queue_key
from protocols.remoting.private import ReadItem
from store import lifecycle
from store.index.idle import IdleQueue, IdleTable
from tests.store.engine_kit import SMALL, Driver, body_of, filter_key
from tests.store.test_index_files import snapshot

TINY = replace(SMALL, segment_bytes=16 << 10, index_cache_bytes_max=64 << 10)
COUNT = 60


def key_of(number: int) -> bytes:
    return filter_key(f"device/{number}")


def filled(**facts: object) -> Driver:
    """A queue per message, all but the newest of them in index files."""
    store = Driver(config=replace(TINY, **facts))  # type: ignore[arg-type] # config fields
    store.topic("t")
    for number in range(COUNT):
        store.send(b"%d" % number + bytes(2500), keys=[key_of(number)])
    store.seal()
    return store


def active_count(store: Driver) -> int:
    return store.engine._core.queues.active_count


def has(store: Driver, key: bytes) -> bool:
    return store.engine._core.queues.find(key) is not None


def read(store: Driver, number: int) -> list[bytes]:
    result = store.engine.read_light(key_of(number), 0, 9, 1 << 20)
    return [body_of(record).rstrip(b"\0") for record in result.records]


def test_queues_of_sealed_segments_leave_memory() -> None:
    store = filled()
    assert active_count(store) < COUNT / 2
    assert len(store.engine._core.queues) == COUNT + 4


def test_an_idle_queue_is_found_written_and_rests_again() -> None:
    store = filled()
    few = active_count(store)
    assert [read(store, number) for number in range(COUNT)] == [
        [b"%d" % number] for number in range(COUNT)
    ]
    store.later(2)
    assert active_count(store) == few
    store.send(b"again", keys=[key_of(0)])
    assert read(store, 0) == [b"0", b"again"]


@pytest.mark.parametrize("has_snapshot", [True, False])
def test_idle_queues_survive_a_restart(has_snapshot: bool) -> None:
    store = filled()
    if has_snapshot:
        snapshot(store)
    store.send(b"again", keys=[key_of(0)])
    store.restart()
    assert read(store, 0) == [b"0", b"again"]
    assert read(store, 7) == [b"7"]
    assert store.send(b"new", keys=[key_of(COUNT)])
    assert read(store, COUNT) == [b"new"]


def test_many_new_queues_are_worth_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little log they took; a restart would make each of them again."""
    monkeypatch.setattr(lifecycle, "NEW_QUEUES_MIN", COUNT)
    store = filled(snapshot_bytes=1 << 30, log_bytes_max=1 << 30)
    work = store.engine.background.snapshot_due(store.now)
    assert work is not None
    work.execute(store.disk)
    store.restart()
    assert store.report.snapshot_position == work.position
    store.send(b"again", keys=[key_of(0)])
    assert store.engine.background.snapshot_due(store.now) is None


def test_a_group_that_reads_an_idle_queue_gets_what_it_holds() -> None:
    store = filled()
    group = store.open("g", [ReadItem(tag=1, key=key_of(3))], start="earliest")
    store.later(2)
    (granted,) = store.take(group)
    assert store.bodies([granted]) == [b"3" + bytes(2500)]


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_queue_ends_with_its_last_message(is_sealed: bool) -> None:
    """One that was created by hand stays."""
    store = Driver(config=replace(TINY, retention_s=10))
    store.topic("t")
    by_hand = queue_key("", QueueKind.AMQP, "mine")
    store.engine.light_queues.create(by_hand, "mine", {}, store.now)
    store.drain()
    for number in range(COUNT if is_sealed else 14):
        store.send(b"%d" % number + bytes(2500), keys=[key_of(number), by_hand])
    if is_sealed:
        store.seal()
    for _ in range(2):
        snapshot(store)
        store.send(b"later")
    store.later(20)
    store.later(2)
    store.drain()
    assert not has(store, key_of(0))
    assert has(store, by_hand)
    store.restart()
    assert not has(store, key_of(0))
    assert has(store, by_hand)
    store.send(b"anew", keys=[key_of(0)])
    assert read(store, 0) == [b"anew"]


def test_a_queue_that_only_a_reader_made_ends_with_it() -> None:
    store = Driver(config=TINY)
    store.topic("t")
    store.open("g", [ReadItem(tag=1, key=key_of(1)), ReadItem(tag=2, key=key_of(2))])
    store.send(b"held", keys=[key_of(2)])
    store.engine.drop_group("g", 0, store.now)
    store.later(2)
    assert not has(store, key_of(1))
    assert read(store, 2) == [b"held"]
    store.drain()
    store.restart()
    assert not has(store, key_of(1))


def test_the_table_does_what_a_dictionary_does() -> None:
    random = Random(7)
    table, model = IdleTable(), dict[int, IdleQueue]()
    for number in range(1, 4000):
        row = IdleQueue(number, random.randbytes(16), random.randrange(1 << 40), 1, number % 9)
        table.add_all([row])
        model[number] = row
        if random.random() < 0.5:
            gone = random.choice(list(model))
            expected = model.pop(gone)
            by_key = random.random() < 0.5
            assert (table.take(expected.key) if by_key else table.take_numbered(gone)) == expected
            assert table.take(expected.key) is None
    again = IdleTable()
    again.load(table.dump())
    for found in (table, again):
        assert len(found) == len(model)
        assert {row.number: row for row in found} == model
        assert all(found.take_numbered(number) == row for number, row in model.items())
