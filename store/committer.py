"""
Commits: all that is pending, one write that is durable when it is done, one wake-up.

The event loop hands in what the engine has built; while it is being written, more gathers, so
commits grow with the load and need no timer (performance rule 5). The kernel writes what is one
piece of one segment (``store.kernel_queue``), a thread everything else, one at a time and in
order. The engine itself is never touched from the thread.
"""

import asyncio
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from protocols import clock
from store.disk import Buffer, Disk, RealDisk
from store.engine import WriteBatch
from store.kernel_queue import KernelQueue

logger = logging.getLogger("tidegate.store.committer")

OUT_MAX: Final = 2
"""Batches handed to the thread at a time: one is synced while the next waits at the door."""

LAZY_SYNC_S: Final = 0.5
"""``flush: async``: how far the disk may lag behind (Apache's flushIntervalCommitLog)."""

LAZY_BYTES_MAX: Final = 64 << 10
"""More than this is written past the page cache there, too: through it, it takes so much CPU that
answers are not earlier."""


IN_PLACE_BYTES_MAX: Final = 16 << 10
"""
A batch up to this size may be synced on the loop itself: two thread switches saved, and who sends
little at a time does not wait for the kernel's own worker. A write that is durable when it is done
needs one at its end, and on a busy processor it gets its turn after 3 ms (a quarter of the writes
beside idle-priority load, p99 4.6 ms; on the loop 0.4).
"""

SHARED_BYTES_MAX: Final = 2 << 10
"""The same where a gateway shares the loop: what one client sends that waits for its answer. With
more than that there are others, whose work would wait."""

IN_PLACE_S_MAX: Final = 0.001
"""Only while commits take less: all but a few of the last hundred, and none of them a multiple."""

WINDOW: Final = 100
SLOW_COUNT_MAX: Final = 10
STALL_S: Final = 0.02
"""A commit that long sends the next hundred elsewhere: a loop that waits renews no lease."""

FAILED: Final = "writing the log failed: nothing more is acknowledged until a restart: %s"


class LazyDisk(RealDisk):
    """
    ``flush: async``: a sync waits until half a second's worth has gathered.

    Only for the committer's batches; segments and snapshots are made durable as ever.
    """

    def __init__(self, disk: RealDisk) -> None:
        super().__init__(disk.folder)
        self.files = disk.files  # a name that one of them changes is known to both
        self._synced_at = 0.0
        self._dirty: set[str] = set()

    def write(self, name: str, offset: int, buffers: Sequence[Buffer]) -> None:
        self._dirty.add(name)
        super().write(name, offset, buffers)

    def rename(self, old: str, new: str) -> None:
        if old in self._dirty:
            self._dirty.discard(old)
            super().sync(old)
        super().rename(old, new)

    def write_through(self, name: str, offset: int, buffers: Sequence[Buffer]) -> None:
        self.write(name, offset, buffers)
        self.sync(name)

    def begin_write(
        self, kernel: KernelQueue, name: str, offset: int, buffers: Sequence[Buffer], size: int
    ) -> bool:
        if size <= LAZY_BYTES_MAX:
            return False
        return super().begin_write(kernel, name, offset, buffers, size)

    def sync(self, name: str) -> None:
        if clock.monotonic() - self._synced_at >= LAZY_SYNC_S:
            self.sync_all()

    def sync_all(self) -> None:
        while self._dirty:
            super().sync(self._dirty.pop())
        self._synced_at = clock.monotonic()


class Pace:
    """
    How long the last commits took, and so whether the next one may keep the loop waiting.

    Those that the kernel or the thread made took as long as the disk and a busy processor let
    them; so a disk that some of them found fast is tried again after a hundred.
    """

    def __init__(self) -> None:
        self._were_slow: deque[bool] = deque(maxlen=WINDOW)
        self._slow_count = 0
        self._since_stall = 0
        self._apart_count = 0
        """Commits since the last one on the loop."""

        self._is_able = False
        """One of them was fast."""

    def note(self, seconds: float, *, is_apart: bool = False) -> None:
        """One more commit; *is_apart*: the loop did not make it."""
        is_slow = seconds >= IN_PLACE_S_MAX
        if is_apart:
            self._apart_count += 1
            self._is_able |= not is_slow
        else:
            if self._is_trial_due and not is_slow:
                self._were_slow.clear()
                self._slow_count, self._since_stall = 0, WINDOW
            self._apart_count, self._is_able = 0, False
        if len(self._were_slow) == WINDOW:
            self._slow_count -= self._were_slow[0]
        self._were_slow.append(is_slow)
        self._slow_count += is_slow
        self._since_stall = 0 if seconds >= STALL_S else self._since_stall + 1

    @property
    def _is_trial_due(self) -> bool:
        return self._is_able and self._apart_count >= WINDOW

    @property
    def is_fast(self) -> bool:
        """The next one may keep the loop waiting."""
        is_steady = self._since_stall >= WINDOW and self._slow_count <= SLOW_COUNT_MAX
        return is_steady or self._is_trial_due


class KernelCommits:
    """Batches the kernel writes, one at a time; on the loop. Raises OSError: not on this system."""

    def __init__(self, disk: RealDisk) -> None:
        self._disk = disk
        self._kernel = KernelQueue(1)
        self.batch: WriteBatch | None = None
        """What is being written."""

    def fileno(self) -> int:
        """Readable when it is done."""
        return self._kernel.fileno()

    def begin(self, batch: WriteBatch) -> bool:
        """False: not one piece of one segment, or the system does not want it."""
        if len(batch.parts) != 1:
            return False
        part = batch.parts[0]
        if part.begins or not part.buffers:
            return False
        name, size = part.segment.name, batch.byte_count
        if self._disk.begin_write(self._kernel, name, part.offset, part.buffers, size):
            self.batch = batch
            return True
        return False

    def take(self) -> tuple[WriteBatch, bool] | None:
        """(what was written, whether it is durable); None: not done yet. Raises OSError."""
        results, batch = self._kernel.take_results(), self.batch
        if not results or batch is None:
            return None
        self.batch = None
        return batch, self._disk.finish_write(results[0][1])

    def close(self) -> None:
        self._kernel.close()


def kernel_commits(disk: RealDisk) -> KernelCommits | None:
    """None: the thread writes everything."""
    try:
        return KernelCommits(disk)
    except OSError as error:
        logger.info("commits by a thread: %s", error)
        return None


class Committer:
    """
    Makes batches durable in order, off the event loop.

    Args:
        disk: what batches are executed on.
        done: called on the loop with each batch that is durable, and its seconds.
        failed: called on the loop, once, with the first error. Nothing is written after it.
        in_place_bytes_max: batches up to this size may be synced on the loop when nothing else is
            pending and the disk is fast.
        kernel: writes what it can, instead of the thread.
    """

    def __init__(
        self,
        disk: Disk,
        *,
        done: Callable[[WriteBatch, float], None],
        failed: Callable[[Exception], None],
        in_place_bytes_max: int = 0,
        kernel: KernelCommits | None = None,
    ) -> None:
        self._disk = disk
        self._kernel = kernel
        self._started = 0.0
        """When the kernel was given its batch."""

        self._waiting: deque[WriteBatch] = deque()
        """Next after the one that is being written; at most ``OUT_MAX - 1``."""

        self._in_thread = 0
        """Batches handed to the thread."""

        self._in_place_bytes_max = in_place_bytes_max
        self._done = done
        self._failed = failed
        self._queue: queue.SimpleQueue[WriteBatch | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._ended = asyncio.Event()
        self.out_count = 0
        """Batches handed in and not yet done."""

        self.has_failed = False
        self.pace = Pace()

    def start(self) -> None:
        self._thread.start()
        if self._kernel is not None:
            self._loop.add_reader(self._kernel.fileno(), self._on_written)

    @property
    def has_room(self) -> bool:
        """Whether a batch handed in now would be next."""
        return self.out_count < OUT_MAX and not self.has_failed

    def submit(self, batch: WriteBatch) -> bool:
        """
        Make *batch* durable after all before it; on the loop.

        True: the kernel writes it now, and needs no Python for it.
        """
        self.out_count += 1
        if self._may_stay(batch):
            self._commit_in_place(batch)
        elif self._kernel is not None and (self._kernel.batch is not None or self._in_thread):
            self._waiting.append(batch)
        else:
            return self._begin(batch)
        return False

    def _begin(self, batch: WriteBatch) -> bool:
        """By the kernel, unless it must be the thread."""
        if self._kernel is not None:
            self._started = clock.monotonic()
            with suppress(OSError):  # the thread meets the same error, and tells it
                if self._kernel.begin(batch):
                    return True
        self._in_thread += 1
        self._queue.put(batch)
        return False

    def _on_written(self) -> None:
        """The kernel is done."""
        assert self._kernel is not None
        try:
            written = self._kernel.take()
        except OSError as error:
            logger.critical(FAILED, error)
            self._on_failed(error)
            return
        if written is None:
            return
        batch, is_durable = written
        if is_durable:
            self._go_on()
            self._on_done(batch, clock.monotonic() - self._started)
        else:
            self._in_thread += 1
            self._queue.put(batch)

    def _go_on(self) -> None:
        """The disk is free; what waits goes first, so that it is not idle meanwhile."""
        if self._waiting:
            self._begin(self._waiting.popleft())

    async def close(self) -> None:
        """Finish what was handed in, then end the thread."""
        if self._thread.ident is None:
            return
        self._queue.put(None)
        await self._ended.wait()
        self._thread.join()
        if self._kernel is not None:
            self._loop.remove_reader(self._kernel.fileno())
            self._kernel.close()

    def _may_stay(self, batch: WriteBatch) -> bool:
        return (
            self.out_count == 1
            and batch.byte_count <= self._in_place_bytes_max
            and self.pace.is_fast
        )

    def _commit_in_place(self, batch: WriteBatch) -> None:
        started = clock.monotonic()
        try:
            batch.execute(self._disk)
        except Exception as error:
            logger.critical(FAILED, error)
            self._on_failed(error)
        else:
            self._on_done(batch, clock.monotonic() - started, is_apart=False)

    def _on_thread_done(self, batch: WriteBatch, seconds: float) -> None:
        self._in_thread -= 1
        self._go_on()
        self._on_done(batch, seconds)

    def _on_done(self, batch: WriteBatch, seconds: float, *, is_apart: bool = True) -> None:
        self.out_count -= 1
        self.pace.note(seconds, is_apart=is_apart)
        self._done(batch, seconds)

    def _on_failed(self, error: Exception) -> None:
        self.has_failed = True
        self._failed(error)

    def _run(self) -> None:
        """The thread."""
        try:
            while (batch := self._queue.get()) is not None:
                started = clock.monotonic()
                batch.execute(self._disk)
                self._tell(self._on_thread_done, batch, clock.monotonic() - started)
            if isinstance(self._disk, LazyDisk):
                self._disk.sync_all()
        except Exception as error:
            logger.critical(FAILED, error)
            self._tell(self._on_failed, error)
        finally:
            self._tell(self._ended.set)

    def _tell(self, callback: Callable[..., object], *values: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *values)
