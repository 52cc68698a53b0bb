"""Index files of sealed segments: read back, walked by chain, made anew, bounded in memory."""

from dataclasses import replace
from random import Random

import pytest

from protocols.remoting.private import ReadItem
from store.index import pages
from store.index.pages import SUFFIX, Draft
from tests.simulation.simulated_disk import SimulatedDisk
from tests.store.engine_kit import SMALL, Driver, body_of, filter_key

A, B = filter_key("a"), filter_key("b")
TINY = replace(SMALL, segment_bytes=16 << 10, index_cache_bytes_max=3000)
COUNT = 120


def filled(**facts: object) -> Driver:
    """Twenty segments; queue B gets a message in each third of them or so."""
    store = Driver(config=replace(TINY, **facts))  # type: ignore[arg-type] # config fields
    store.topic("t")
    for number in range(COUNT):
        keys = [A, B] if number % 17 == 0 else [A]
        store.send(b"%d:" % number + bytes(2500), keys=keys)
    store.seal()
    return store


def read_all(store: Driver, key: bytes = b"") -> list[int]:
    at, found = 0, []
    while True:
        if key:
            result = store.engine.read_light(key, at, 7, 1 << 20)
        else:
            result = store.engine.read("t", 0, at, 7, 1 << 20)
        if not result.records:
            return found
        found += [int(body_of(record).split(b":")[0]) for record in result.records]
        at = result.next_offset


def names(store: Driver) -> list[str]:
    return [name for name in store.disk.names() if name.endswith(SUFFIX)]


def snapshot(store: Driver) -> None:
    work = store.engine.background.snapshot_due(store.now, is_forced=True)
    assert work is not None
    work.execute(store.disk)
    store.engine.background.snapshot_written(work)


def check(store: Driver) -> None:
    assert read_all(store) == list(range(COUNT))
    assert read_all(store, A) == list(range(COUNT))
    assert read_all(store, B) == list(range(0, COUNT, 17))


def test_sealed_segments_are_read_from_their_files() -> None:
    store = filled()
    assert len(names(store)) > 15
    check(store)


@pytest.mark.parametrize("is_covered", [True, False])
def test_a_restart_uses_the_files_below_the_snapshot(is_covered: bool) -> None:
    """Above it, the log is scanned; either way everything is found again."""
    store = filled()
    if is_covered:
        snapshot(store)
    store.restart()
    check(store)
    store.send(b"%d:" % COUNT, keys=[A])
    assert read_all(store, A)[-2:] == [COUNT - 1, COUNT]


def test_files_written_after_the_snapshot_are_taken_on() -> None:
    store = Driver(config=TINY)
    store.topic("t")
    for number in range(COUNT):
        keys = [A, B] if number % 17 == 0 else [A]
        store.send(b"%d:" % number + bytes(2500), keys=keys)
    snapshot(store)
    store.seal()
    store.restart()
    check(store)


def test_a_lost_or_rotten_file_is_made_anew() -> None:
    store = filled()
    snapshot(store)
    disk = store.disk
    assert isinstance(disk, SimulatedDisk)
    oldest, second, third, *_ = names(store)
    disk.unlink(oldest)
    disk.flip_bit(second, 40)  # header
    disk.flip_bit(third, disk.size(third) - 5)  # body
    store.restart()
    check(store)
    assert {oldest, second, third} <= set(names(store))


def test_groups_find_what_they_hold_in_old_segments() -> None:
    """Owner, filter and redelivery work on entries whose facts are on disk."""
    store = Driver(config=TINY)
    store.topic("t")
    group = store.open("g", [ReadItem(tag=1, key=A), ReadItem(tag=2, key=B)])
    for number in range(COUNT):
        keys = [A, B] if number % 17 == 0 else [A]
        store.send(b"%d:" % number + bytes(2500), keys=keys)
    first = store.take(group, 10)
    store.seal()
    store.drain()
    snapshot(store)
    store.restart()
    group = store.engine.group_number("g")
    store.later(store.config.orphan_s + 1)
    seen: list[int] = []
    while granted := store.take(group, 9):
        assert all(one.tags == ((1, 2) if number % 17 == 0 else (1,))
                   for one, number in zip(granted, range(len(seen), COUNT), strict=False)
                   )  # fmt: skip
        seen += [int(body.split(b":")[0]) for body in store.bodies(granted)]
        store.ack(group, granted)
    assert seen == list(range(COUNT))
    assert len(first) == 10


def test_what_readers_load_is_bounded() -> None:
    store = filled()
    for _ in range(3):
        check(store)
    assert store.engine.background.index_bytes <= 2 * TINY.index_cache_bytes_max


def test_sealed_segments_that_go_take_their_files_along() -> None:
    store = filled(retention_s=10)
    snapshot(store)
    store.send(b"more")
    snapshot(store)
    store.later(20)
    low, high = store.engine.offset_range("t", 0)
    assert 0 < low < high
    assert len(names(store)) <= 2
    assert read_all(store, A) == []  # offset 0 is gone
    assert store.engine.read_light(A, 0, 1, 1 << 20).next_offset == low
    before = store.engine.read("t", 0, low, 100, 1 << 20).records
    store.restart()
    assert store.engine.offset_range("t", 0) == (low, high)
    assert store.engine.read("t", 0, low, 100, 1 << 20).records == before


def draft_of(seed: int) -> Draft:
    """Queues in any order, some with gaps in their offsets."""
    chance = Random(seed)
    draft = Draft(7, 1000, 2000, 5)
    for queue in chance.sample(range(500), 60):
        first = chance.randrange(1 << 40)
        steps = [chance.choice((1, 1, 1, 9)) for _ in range(chance.randrange(1, 9))]
        offsets = [first + sum(steps[:count]) for count in range(len(steps))]
        draft.add_rows(queue, [(offset, chance.randrange(1 << 40)) for offset in offsets], 3)
    return draft


def test_rows_are_sorted_with_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the order they were gathered in; with numpy and without."""
    draft = draft_of(1)
    starts = [sum(draft.directory.counts[:at]) for at in range(len(draft.directory))]
    rows = [
        (draft.directory.row(at), list(draft.places[start : start + draft.directory.counts[at]]))
        for at, start in enumerate(starts)
    ]
    encoded = draft.encode(bytes(16))
    assert draft.encode(bytes(16)) == encoded
    rows.sort()
    assert [draft.directory.row(at) for at in range(len(rows))] == [row for row, _ in rows]
    assert list(draft.places) == [place for _, places in rows for place in places]
    monkeypatch.setattr(pages, "np", None)
    assert draft_of(1).encode(bytes(16)) == encoded
