"""Segment files that are made in advance, and those that live again."""

from dataclasses import replace

import pytest

from protocols.errors import ConfigError
from store.config import StoreConfig
from store.disk import OPEN_MAX, RealDisk
from store.log.segments import PAGE_BYTES
from store.log.spares import SPARE_SUFFIX, SPARES_MAX, Spares
from tests.simulation.simulated_disk import SimulatedDisk
from tests.store.engine_kit import SMALL, Driver, body_of

SHORT = replace(SMALL, retention_s=10)


def spares_of(store: Driver) -> list[str]:
    return [name for name in store.disk.names() if name.endswith(SPARE_SUFFIX)]


def round_of(store: Driver, text: bytes) -> None:
    """Three segments' worth, of which all that is past its time then goes."""
    for number in range(30):
        store.send(b"%s-%d:" % (text, number) + bytes(6000))
    for _ in range(2):
        work = store.engine.background.snapshot_due(store.now, is_forced=True)
        assert work is not None
        work.execute(store.disk)
        store.engine.background.snapshot_written(work)
        store.send(b"more")
    store.later(20)
    store.drain()


def bodies(store: Driver) -> list[bytes]:
    low, high = store.engine.offset_range("t", 0)
    found: list[bytes] = []
    while low < high:
        result = store.engine.read("t", 0, low, 100, 1 << 20)
        found += [body_of(record).split(b":")[0] for record in result.records]
        low = result.next_offset
    return found


def test_a_short_disk_gets_back_what_goes() -> None:
    """Who would keep it as a spare would refuse sends for want of it."""
    disk = SimulatedDisk()
    store = Driver(disk, SHORT)
    store.topic("t")
    disk.free = 0
    round_of(store, b"old")
    assert spares_of(store) == []
    disk.free = 1 << 40
    store.later(1)
    assert len(store.send(b"again")) == 1


def test_a_segment_that_goes_is_used_again() -> None:
    """Same file, new nonce: nothing of the former life is read, before and after a restart."""
    store = Driver(config=SHORT)
    store.topic("t")
    round_of(store, b"old")
    assert 0 < len(spares_of(store)) <= SPARES_MAX
    before = set(spares_of(store))
    round_of(store, b"new")
    stale = [
        name
        for name in store.disk.names()
        if name.endswith(".seg") and b"old-" in store.disk.read(name, 0, 1 << 20)
    ]
    assert stale, "a file with stale blocks is in use"
    assert not before & set(spares_of(store))
    shown = bodies(store)
    store.restart()
    assert bodies(store) == shown
    assert store.report.rotten_bytes == store.report.torn_bytes == 0
    assert not [body for body in shown if body.startswith(b"old")]


def test_spares_outlive_a_restart() -> None:
    store = Driver(config=SHORT)
    store.topic("t")
    round_of(store, b"old")
    (first, *_) = spares_of(store)
    store.restart()
    for number in range(11):
        store.send(b"%d" % number + bytes(6000))
    assert first not in store.disk.names()


def test_a_spare_of_another_size_is_removed() -> None:
    disk = SimulatedDisk()
    disk.create("00000003.spare", 1 << 20)
    disk.create("00000004.spare", SMALL.segment_bytes)
    spares = Spares(SMALL.segment_bytes, is_zero_filled=False)
    spares.find(disk)
    assert disk.names() == ["00000004.spare"]
    assert spares.take(0) == "00000004.spare"


def test_segments_that_fill_in_no_time_are_not_filled_with_zeros_first() -> None:
    """Zeros would take half of what the disk can do; later ones are filled again."""
    spares = Spares(SMALL.segment_bytes, is_zero_filled=True)
    for wall_ms, are_filled in ((10_000, True), (10_300, False), (30_000, True)):
        spares.take(wall_ms)
        work = spares.wanted(1.0)
        assert work is not None
        assert work.is_zero_filled is are_filled
        disk = SimulatedDisk()
        while not work.execute(disk):
            pass
        assert disk.size(work.name) == SMALL.segment_bytes
        spares.prepared(work)


def test_a_renamed_file_whose_name_was_lost_holds_nothing() -> None:
    """A header whose number is not the file's: its rename did not last, so no block was written."""
    store = Driver()
    store.topic("t")
    store.send(b"one")
    (segment,) = [name for name in store.disk.names() if name.endswith(".seg")]
    disk = store.disk
    assert isinstance(disk, SimulatedDisk)
    disk.create("00000000.seg", SMALL.segment_bytes)
    disk.write("00000000.seg", 0, [disk.read(segment, 0, PAGE_BYTES)])
    store.restart()
    assert "00000000.seg" not in disk.names()
    assert bodies(store) == [b"one"]


def test_the_footprint_of_an_idle_store_is_small() -> None:
    """No file is made in advance before an eighth of the first one is used."""
    store = Driver()
    store.topic("t")
    assert store.engine.background.segment_wanted() is None


def test_upkeep_goes_on_after_an_error() -> None:
    store = Driver(config=SHORT)
    store.topic("t")
    round_of(store, b"old")
    for number in range(30):
        store.send(b"%d" % number + bytes(6000))
    for _ in range(2):
        work = store.engine.background.snapshot_due(store.now, is_forced=True)
        assert work is not None
        work.execute(store.disk)
        store.engine.background.snapshot_written(work)
        store.send(b"more")
    store.now = store.now._replace(
        monotonic=store.now.monotonic + 20, wall_ms=store.now.wall_ms + 20_000
    )
    store.engine.tick(store.now)
    store.seal()
    store.engine.tick(store.now)
    upkeep = store.engine.background.upkeep_due()
    assert upkeep is not None
    assert store.engine.background.upkeep_due() is None
    names = [name for name, _ in upkeep.given_up]
    disk = store.disk
    assert isinstance(disk, SimulatedDisk)
    missing = disk.files.pop(names[-1])  # the disk refuses half way
    with pytest.raises(KeyError):
        upkeep.execute(disk)
    disk.files[names[-1]] = missing
    upkeep.execute(disk)
    store.engine.background.upkeep_done(upkeep)
    assert not set(names) & set(disk.names())


def test_a_real_file_is_filled_and_few_stay_open(tmp_path: object) -> None:
    """Zeros past the page cache or through it, and no more descriptors than the bound."""
    disk = RealDisk(f"{tmp_path}/data")
    for number in range(OPEN_MAX + 20):
        disk.create(f"{number}", 2 * PAGE_BYTES)
        disk.write(f"{number}", 0, [b"x" * 2 * PAGE_BYTES])
    disk.fill("3", PAGE_BYTES, PAGE_BYTES)
    disk.fill("4", 100, 10)  # not aligned: through the page cache
    disk.drop_cached("3")
    assert disk.read("3", 0, 3 * PAGE_BYTES) == b"x" * PAGE_BYTES + bytes(PAGE_BYTES)
    assert disk.read("4", 98, 14) == b"xx" + bytes(10) + b"xx"
    assert len(disk.files) <= OPEN_MAX
    disk.close()
    assert len(disk.files) == 0


def test_a_log_of_two_segments_is_refused() -> None:
    with pytest.raises((ConfigError, ValueError), match="log_bytes_max"):
        StoreConfig.model_validate({"segment_bytes": 4 << 20, "limits": {"log_bytes_max": 8 << 20}})
