"""
Parts of the log that readers will come to, fetched while they take what is there.

The kernel reads them into memory of ours, past the page cache, and no thread waits for it: one that
does wants Python's lock before and after, for a millisecond at times. Where that is not possible, a
thread reads. The memory is used again and again: a page that the machine has never touched, or not
for long, costs several times what the read does.
"""

import asyncio
import ctypes
import logging
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from mmap import mmap
from typing import Final, NamedTuple
from weakref import finalize

from store.direct import PAGE_BYTES, aligned
from store.disk import Disk, RealDisk
from store.kernel_queue import KernelQueue
from store.log.ahead import AHEAD_CHUNKS, CHUNK_BYTES, CHUNKS_MAX, Prefetch

logger = logging.getLogger("tidegate.store.prefetching")

READ_BYTES_MAX: Final = AHEAD_CHUNKS * CHUNK_BYTES

DEPTH: Final = 4
"""Reads under way at a time: enough to keep a disk busy, and a commit waits for no more."""

STEP_BYTES: Final = 128 << 10
"""Read at a time while others send: 0.15 ms of the disk, while the answer of a commit is on its way
and the next send is made. Handing it over takes 30 us of the loop, however little it is."""

AGAIN_S: Final = 0.002
"""When no commit came after which a read might have begun, it is looked at again."""

LARGE_PAGE_BYTES: Final = 2 << 20
"""Of x86-64, and of most others; where they are not, it is memory as any other."""

BUFFERS_MAX: Final = CHUNKS_MAX // AHEAD_CHUNKS + DEPTH
"""Kept for use; if more are looked at, memory is made and given back."""


class Space(NamedTuple):
    """Part of a large page: the kernel takes a read into it in a quarter of the time, for it has
    one page to pin instead of hundreds (measured)."""

    memory: mmap
    start: int
    size: int


class Buffers:
    """Memory for what is read. Whoever still looks at some of it keeps it from being used again."""

    def __init__(self) -> None:
        self._free: dict[int, list[Space]] = {CHUNK_BYTES: [], READ_BYTES_MAX: []}
        self._is_closed = False

    def __len__(self) -> int:
        return sum([len(free) for free in self._free.values()])

    def take(self, size: int) -> Space:
        """For *size* bytes or more."""
        room = CHUNK_BYTES if size <= CHUNK_BYTES else READ_BYTES_MAX
        free = self._free[room]
        if not free:
            memory = aligned(LARGE_PAGE_BYTES)
            free += [Space(memory, at, room) for at in range(0, LARGE_PAGE_BYTES, room)]
        return free.pop()

    def lend(self, space: Space, size: int) -> memoryview:
        """Its first *size* bytes; it comes back when no view of them is left."""
        lent = (ctypes.c_ubyte * size).from_buffer(space.memory, space.start)
        finalize(lent, self.give_back, space).atexit = False
        return memoryview(lent).cast("B")

    def give_back(self, space: Space) -> None:
        free = self._free[space.size]
        if len(free) < BUFFERS_MAX and not self._is_closed:
            free.append(space)

    def close(self) -> None:
        self._is_closed = True
        for free in self._free.values():
            free.clear()


class _Read:
    """A prefetch and how far it went."""

    __slots__ = ("at", "space", "step", "work")

    def __init__(self, work: Prefetch, step: int) -> None:
        self.work = work
        self.step = step
        """Bytes asked of the disk at a time."""

        self.at = 0
        """Bytes that are there."""

        self.space: Space | None = None

    @property
    def asked(self) -> int:
        """Bytes of the next step: whole pages."""
        return min(self.step, self.work.size + -self.work.size % PAGE_BYTES - self.at)


class Prefetcher:
    """
    Runs the prefetches of an engine; on the loop.

    Args:
        fetched: called with each when it is done, whatever became of it.
        allowed: how many reads may be under way now. One or none: commits wait for the disk too,
            so the disk is asked for little at a time, mostly when a commit has ended.
    """

    def __init__(
        self,
        disk: Disk,
        fetched: Callable[[Prefetch], None],
        allowed: Callable[[], int] = lambda: DEPTH,
    ) -> None:
        self._disk = disk
        self._fetched = fetched
        self._allowed = allowed
        self._loop = asyncio.get_running_loop()
        self._kernel = _kernel_queue(disk)
        self._buffers = Buffers()
        self._waiting: deque[_Read] = deque()
        self._reading: dict[int, _Read] = {}
        """By number, what the kernel reads."""

        self._number = 0
        self._timer: asyncio.TimerHandle | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store-reader")
        self._is_closed = False
        if self._kernel is not None:
            self._loop.add_reader(self._kernel.fileno(), self._on_read)

    @property
    def is_by_kernel(self) -> bool:
        return self._kernel is not None

    def run(self, works: Iterable[Prefetch]) -> None:
        if self._is_closed:
            return
        allowed = self._allowed()
        for work in works:
            if self._kernel is None or work.size > READ_BYTES_MAX:
                self._read_in_thread(work)
            elif allowed > 1:
                self._waiting.append(_Read(work, READ_BYTES_MAX))
            else:
                self._waiting.extend([_Read(part, STEP_BYTES) for part in work.parts()])
        self._begin(allowed)

    def commit_ended(self) -> bool:
        """The disk has nothing to write for a moment; whether it is given something to read."""
        is_begun = bool(self._waiting) and not self._reading
        if is_begun:
            self._begin_one(self._waiting.popleft())
        return is_begun

    def _begin(self, allowed: int) -> None:
        while self._waiting and len(self._reading) < allowed:
            self._begin_one(self._waiting.popleft())
        if self._waiting and not self._reading and self._timer is None:
            self._timer = self._loop.call_later(AGAIN_S, self._begin_again)

    def _begin_again(self) -> None:
        self._timer = None
        self._begin(self._allowed())

    def _begin_one(self, read: _Read) -> None:
        """Or its next step."""
        assert self._kernel is not None
        assert isinstance(self._disk, RealDisk)
        work = read.work
        space = read.space = read.space or self._buffers.take(work.size)
        self._number += 1
        try:
            is_there = self._disk.begin_read(
                self._kernel,
                self._number,
                work.name,
                work.offset + read.at,
                space.memory,
                space.start + read.at,
                read.asked,
            )
        except OSError:
            self._give_up(read)
            return
        if is_there:
            self._loop.call_soon(self._went_on, read, read.asked)
        else:
            self._reading[self._number] = read

    def _on_read(self) -> None:
        """The kernel has read some."""
        assert self._kernel is not None
        for number, size in self._kernel.take_results():
            self._went_on(self._reading.pop(number), size)
        self._begin(self._allowed())

    def _went_on(self, read: _Read, size: int) -> None:
        """*size* bytes more, or minus an error's number."""
        work, space = read.work, read.space
        if self._is_closed or space is None:
            return
        if read.at + size >= work.size:
            work.data = self._buffers.lend(space, work.size)
            self._done(work)
        elif size < read.asked:  # the end of the file, or a bad sector behind what is wanted
            self._give_up(read)
        else:
            read.at += size
            self._waiting.appendleft(read)
            if not self._reading:
                self._begin(self._allowed())

    def _give_up(self, read: _Read) -> None:
        if read.space is not None:
            self._buffers.give_back(read.space)
        self._read_in_thread(read.work)

    def _read_in_thread(self, work: Prefetch) -> None:
        if self._is_closed:
            return
        future = self._loop.run_in_executor(self._thread, work.execute, self._disk)
        future.add_done_callback(lambda _: self._done(work))

    def _done(self, work: Prefetch) -> None:
        if not self._is_closed:
            self._fetched(work)

    def close(self) -> None:
        """Waits for what is under way; nothing is told any more."""
        self._is_closed = True
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
        if self._kernel is not None:
            self._loop.remove_reader(self._kernel.fileno())
            self._kernel.close()
        self._reading.clear()
        self._buffers.close()
        self._thread.shutdown()


def _kernel_queue(disk: Disk) -> KernelQueue | None:
    """None: a thread reads everything."""
    if type(disk) is not RealDisk:
        return None
    try:
        return KernelQueue(DEPTH)
    except OSError as error:
        logger.info("reads ahead by a thread: %s", error)
        return None
