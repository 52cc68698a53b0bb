"""Commits by the kernel, by the thread and on the loop: order, errors, and who does which."""

import asyncio
import random
import threading
from errno import EAGAIN, EINVAL, EIO
from pathlib import Path

import pytest

from store.committer import (
    IN_PLACE_BYTES_MAX,
    IN_PLACE_S_MAX,
    LAZY_BYTES_MAX,
    SLOW_COUNT_MAX,
    STALL_S,
    WINDOW,
    Committer,
    KernelCommits,
    LazyDisk,
    Pace,
)
from store.disk import Disk, RealDisk
from store.kernel_queue import KernelQueue
from store.log.format import SegmentHeader
from store.log.segments import Segment, WriteBatch, WritePart
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

    def __init__(
        self, disk: Disk, *, in_place_bytes_max: int = 0, kernel: KernelCommits | None = None
    ) -> None:
        self.done: list[FakeBatch] = []
        self.errors: list[Exception] = []
        self.changed = asyncio.Event()
        self.committer = Committer(
            disk,
            done=self._on_done,
            failed=self._on_failed,
            in_place_bytes_max=in_place_bytes_max,
            kernel=kernel,
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

    async def until_failed(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not self.errors:
                self.changed.clear()
                await self.changed.wait()

    def _on_done(self, batch: object, seconds: float) -> None:
        self.done.append(batch)  # type: ignore[arg-type]  # what was handed in
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


# ── by the kernel ───────────────────────────────────────────────────────────────────────

SEGMENT_BYTES = 4 << 20


class Blocks:
    """Batches of a segment that lies on a disk, and what is to be read back."""

    def __init__(self, disk: RealDisk) -> None:
        self.segment = Segment(SegmentHeader(bytes(16), 1, 0, 1, 0), SEGMENT_BYTES)
        disk.create(self.segment.name, SEGMENT_BYTES)
        self.written = bytearray(SEGMENT_BYTES)
        self._disk = disk
        self._at = 64
        self._chance = random.Random(7)

    def batch(self, size: int, part_count: int = 1) -> WriteBatch:
        batch = WriteBatch(SEGMENT_BYTES)
        for _ in range(part_count):
            part = WritePart(self.segment, self._at, begins=False)
            part.buffers = [self._chance.randbytes(size), self._chance.randbytes(57)]
            data = b"".join(part.buffers)
            self.written[self._at : self._at + len(data)] = data
            self._at += len(data)
            batch.byte_count += len(data)
            batch.parts.append(part)
        return batch

    def are_there(self) -> bool:
        return self._disk.read(self.segment.name, 0, SEGMENT_BYTES) == self.written


def kernel_or_skip(disk: RealDisk) -> KernelCommits:
    try:
        return KernelCommits(disk)
    except OSError as error:
        pytest.skip(f"no writes by the kernel here: {error}")


class Counting(KernelCommits):
    """Knows how many batches it took."""

    begun_count = 0

    def begin(self, batch: WriteBatch) -> bool:
        is_begun = super().begin(batch)
        self.begun_count += is_begun
        return is_begun


@pytest.mark.parametrize("is_lazy", [False, True])
async def test_kernel_and_thread_write_one_log_in_order(disk: RealDisk, is_lazy: bool) -> None:
    """
    Only what is not one piece of one segment goes to the thread; each page keeps what it had.

    With ``flush: async`` what is small goes there, too, and past it what is large.
    """
    kernel_or_skip(disk).close()
    blocks = Blocks(disk)
    written_on = LazyDisk(disk) if is_lazy else disk
    bytes_min = LAZY_BYTES_MAX if is_lazy else -1
    kernel = Counting(written_on)
    run = Run(written_on, kernel=kernel)
    chance = random.Random(8)
    handed_in: list[WriteBatch] = []
    for _ in range(60):
        parts = 2 if chance.random() < 0.2 else 1
        batch = blocks.batch(chance.choice((1, 300, 4096, LAZY_BYTES_MAX)), parts)
        while not run.committer.has_room:
            await run.until_done(len(run.done) + 1)
        run.committer.submit(batch)
        handed_in.append(batch)
    await run.until_done(len(handed_in))
    assert run.done == handed_in
    taken = [b for b in handed_in if len(b.parts) == 1 and b.byte_count > bytes_min]
    assert kernel.begun_count == len(taken)
    assert (run.committer.out_count, run.errors) == (0, [])
    await run.committer.close()
    assert blocks.are_there()


class Broken(KernelCommits):
    """The kernel reports another result than it had."""

    def __init__(self, disk: RealDisk, result: int) -> None:
        super().__init__(disk)
        self._kernel.close()
        self._kernel = _Reporting(result)


class _Reporting(KernelQueue):
    def __init__(self, result: int) -> None:
        super().__init__(1)
        self._result = result

    def take_results(self) -> list[tuple[int, int]]:
        return [(number, self._result) for number, _ in super().take_results()]


@pytest.mark.parametrize("result", [-EAGAIN, -EINVAL, 0, 4096])
async def test_what_the_kernel_did_not_write_whole_the_thread_writes(
    disk: RealDisk, result: int
) -> None:
    """A short write, or one the file system does not take: no error, and still in order."""
    kernel_or_skip(disk).close()
    blocks = Blocks(disk)
    run = Run(disk, kernel=Broken(disk, result))
    batches = [blocks.batch(9000), blocks.batch(100)]
    for batch in batches:
        run.committer.submit(batch)
    await run.until_done(2)
    assert run.done == batches
    assert run.errors == []
    await run.committer.close()
    assert blocks.are_there()


async def test_an_error_of_the_kernel_ends_it(disk: RealDisk) -> None:
    """EIO: nothing after it is acknowledged, for nobody knows what the disk holds now."""
    kernel_or_skip(disk).close()
    blocks = Blocks(disk)
    run = Run(disk, kernel=Broken(disk, -EIO))
    run.committer.submit(blocks.batch(100))
    run.committer.submit(blocks.batch(100))
    await run.until_failed()
    assert [str(error) for error in run.errors] == ["[Errno 5] Input/output error"]
    assert (run.done, run.committer.has_room) == ([], False)
    await run.committer.close()


async def test_what_the_kernel_cannot_begin_fails_in_the_thread(disk: RealDisk) -> None:
    """The segment is gone: no batch is forgotten, the error is told once."""
    blocks = Blocks(disk)
    run = Run(disk, kernel=kernel_or_skip(disk))
    disk.unlink(blocks.segment.name)
    run.committer.submit(blocks.batch(100))
    run.committer.submit(blocks.batch(100))
    await run.until_failed()
    assert [type(error) for error in run.errors] == [FileNotFoundError]
    assert (run.done, run.committer.has_room) == ([], False)
    await run.committer.close()


# ── on the loop ─────────────────────────────────────────────────────────────────────────


def fast(run: Run) -> None:
    """Whatever this machine was busy with: a hundred commits in no time."""
    for _ in range(WINDOW):
        run.committer.pace.note(0.0001)


async def test_a_small_commit_stays_on_the_loop_while_the_disk_is_fast(disk: RealDisk) -> None:
    """Only after a hundred commits, and only when nothing else is out."""
    run = Run(disk, in_place_bytes_max=IN_PLACE_BYTES_MAX)
    assert run.submit(FakeBatch()).thread != "MainThread"
    await run.until_done(1)
    fast(run)
    assert run.submit(FakeBatch()).thread == "MainThread"
    run.committer.pace.note(STALL_S)
    slow = run.submit(FakeBatch())
    await run.until_done(3)
    assert slow.thread == "store-writer"
    await run.committer.close()


async def test_a_small_commit_does_not_wait_for_the_kernels_worker(disk: RealDisk) -> None:
    """What the kernel could write stays on the loop, too: its worker's turn may be 3 ms away."""
    kernel_or_skip(disk).close()
    kernel = Counting(disk)
    run = Run(disk, in_place_bytes_max=IN_PLACE_BYTES_MAX, kernel=kernel)
    blocks = Blocks(disk)
    fast(run)
    assert not run.committer.submit(blocks.batch(300))
    assert (kernel.begun_count, len(run.done)) == (0, 1), "done when submit returned"
    assert run.committer.submit(blocks.batch(IN_PLACE_BYTES_MAX))
    await run.until_done(2)
    await run.committer.close()
    assert blocks.are_there()


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


def test_a_busy_processor_is_no_slow_disk() -> None:
    """The kernel's worker waits for its turn: what it takes says less than one try on the loop."""
    pace = Pace()

    def note_apart() -> None:
        for number in range(WINDOW):
            assert not pace.is_fast
            pace.note(0.0001 if number % 2 else 0.003, is_apart=True)

    pace.note(STALL_S)
    note_apart()
    assert pace.is_fast, "once"
    pace.note(0.003)
    note_apart()
    assert pace.is_fast, "it was slow on the loop, too; once more"
    pace.note(0.0001)
    for _ in range(SLOW_COUNT_MAX):
        pace.note(0.003, is_apart=True)
        assert pace.is_fast, "what was before the try is forgotten"
    pace.note(0.003, is_apart=True)
    assert not pace.is_fast


def test_a_slow_disk_is_not_tried_on_the_loop() -> None:
    pace = Pace()
    for _ in range(3 * WINDOW):
        pace.note(0.005, is_apart=True)
        assert not pace.is_fast


async def test_an_error_in_place_is_the_same_error(disk: RealDisk) -> None:
    """A failing commit on the loop is told like one of the thread."""
    run = Run(disk, in_place_bytes_max=IN_PLACE_BYTES_MAX)
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
