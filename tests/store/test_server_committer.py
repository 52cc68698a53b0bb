"""The writer thread: order, errors, and when a commit may stay on the loop."""

import asyncio
import threading
from pathlib import Path

import pytest

from store.committer import (
    IN_PLACE_S_MAX,
    SLOW_COUNT_MAX,
    STALL_S,
    WINDOW,
    Committer,
    LazyDisk,
    Pace,
)
from store.disk import Disk, RealDisk
from tests.support.patience import PATIENCE_S


class FakeBatch:
    """A batch that only notes where and when it was executed."""

    def __init__(self, number: int = 0, error: Exception | None = None) -> None:
        self.number = number
        self.position = number
        self.block_count = 1
        self.byte_count = 100
        self.thread = ""
        self._error = error

    def execute(self, disk: Disk) -> None:
        self.thread = threading.current_thread().name
        if self._error is not None:
            raise self._error


class Run:
    """A committer and what it told."""

    def __init__(self, disk: Disk, *, is_in_place: bool = False) -> None:
        self.done: list[FakeBatch] = []
        self.errors: list[Exception] = []
        self.changed = asyncio.Event()
        self.committer = Committer(
            disk, done=self._on_done, failed=self._on_failed, is_in_place=is_in_place
        )
        self.committer.start()

    def submit(self, batch: FakeBatch) -> FakeBatch:
        self.committer.submit(batch)  # type: ignore[arg-type]  # all that it needs of a batch
        return batch

    async def until_done(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.done) < count:
                self.changed.clear()
                await self.changed.wait()

    def _on_done(self, batch: object, seconds: float) -> None:
        assert isinstance(batch, FakeBatch)
        self.done.append(batch)
        self.changed.set()

    def _on_failed(self, error: Exception) -> None:
        self.errors.append(error)
        self.changed.set()


@pytest.fixture
def disk(tmp_path: Path) -> RealDisk:
    return RealDisk(str(tmp_path))


async def test_batches_are_done_in_order(disk: RealDisk) -> None:
    """Answers come in the order in which batches were handed in, none of them on the loop."""
    run = Run(disk)
    for number in range(50):
        run.submit(FakeBatch(number))
    await run.until_done(50)
    assert [batch.number for batch in run.done] == list(range(50))
    assert {batch.thread for batch in run.done} == {"store-writer"}
    await run.committer.close()


async def test_after_an_error_nothing_is_written(disk: RealDisk) -> None:
    """The first error ends the thread; what comes after it is never executed."""
    run = Run(disk)
    run.submit(FakeBatch(1))
    run.submit(FakeBatch(2, OSError(5, "Input/output error")))
    late = run.submit(FakeBatch(3))
    await run.until_done(1)
    await run.committer.close()
    await asyncio.sleep(0)
    assert len(run.errors) == 1
    assert (run.committer.has_room, late.thread) == (False, "")


def fast(run: Run) -> None:
    """Whatever this machine was busy with: a hundred commits in no time."""
    for _ in range(WINDOW):
        run.committer.pace.note(0.0001)


async def test_a_small_commit_stays_on_the_loop_while_the_disk_is_fast(disk: RealDisk) -> None:
    """Only after a hundred commits, and only when nothing else is out."""
    run = Run(disk, is_in_place=True)
    assert run.submit(FakeBatch()).thread != "MainThread"
    await run.until_done(1)
    fast(run)
    assert run.submit(FakeBatch()).thread == "MainThread"
    run.committer.pace.note(STALL_S)
    slow = run.submit(FakeBatch())
    await run.until_done(3)
    assert slow.thread == "store-writer"
    await run.committer.close()


def test_the_pace_of_a_disk() -> None:
    """Fast: of the last hundred few took a millisecond or more, and none of them far more."""
    pace = Pace()
    for _ in range(WINDOW):
        assert not pace.is_fast, "it has shown nothing yet"
        pace.note(0.0001)
    for _ in range(SLOW_COUNT_MAX):
        pace.note(IN_PLACE_S_MAX)
    assert pace.is_fast
    pace.note(IN_PLACE_S_MAX)
    assert not pace.is_fast
    for _ in range(WINDOW - SLOW_COUNT_MAX):
        pace.note(0.0001)
    assert pace.is_fast, "the slow ones lie a hundred back"
    pace.note(STALL_S)
    for _ in range(WINDOW):
        assert not pace.is_fast, "one stall is not forgotten so soon"
        pace.note(0.0001)
    assert pace.is_fast


async def test_an_error_in_place_is_the_same_error(disk: RealDisk) -> None:
    """A failing commit on the loop is told like one of the thread."""
    run = Run(disk, is_in_place=True)
    fast(run)
    run.submit(FakeBatch(1, OSError(5, "Input/output error")))
    assert len(run.errors) == 1
    assert not run.committer.has_room
    await run.committer.close()


def test_a_lazy_disk_syncs_twice_a_second(tmp_path: Path) -> None:
    """``flush: async``: many batches, one sync; what is left is synced at the end."""
    synced: list[str] = []

    class Counting(LazyDisk):
        def sync_all(self) -> None:
            synced.append("all")
            super().sync_all()

    disk = Counting(RealDisk(str(tmp_path)))
    disk.create("a", 4096)
    for _ in range(5):
        disk.write("a", 0, [b"x"])
        disk.sync("a")
    assert synced == ["all"]
    disk.close()
