"""
Commits past the page cache: O_DIRECT and O_DSYNC, one system call, no copy in the kernel.

What was just written is read from memory (``store.log.cache``), so pages in the kernel's cache
would only cost their allocation: half of what a commit costs. The system wants whole pages from
an aligned buffer. The page in which the last write ended is therefore written again, with the
same bytes before the new ones: what a page cache would do as well.
"""

import mmap as maps
import os
from collections.abc import Sequence
from contextlib import suppress
from errno import EAGAIN, EINVAL, EOPNOTSUPP
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from threading import Lock, local
from typing import Final, Protocol

from store.kernel_queue import PWRITE, KernelQueue, is_cached

PAGE_BYTES: Final = 4096

DIRECT_BYTES: Final = 2 << 20
"""Written at a time. (4 MiB took 2 ms of CPU a MiB through the page cache, 0.2 past it.)"""

READ_BYTES_MIN: Final = 64 << 10
"""Smaller reads are of single records: their neighbours may be wanted soon."""

Buffer = bytes | bytearray | memoryview

DIRECT: Final[int] = getattr(os, "O_DIRECT", 0)
"""Zero: this system has none."""

NOWAIT: Final[int] = getattr(os, "RWF_NOWAIT", 0)
"""Flag of a read that takes only what is in memory (Linux 4.14)."""


MADV_HUGEPAGE: Final[int] = getattr(maps, "MADV_HUGEPAGE", 0)
"""Zero: this system has no large pages."""


def aligned(size: int) -> mmap:
    """Zero bytes at the start of a page, of memory that takes no room until it is written."""
    found = mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS)
    if MADV_HUGEPAGE:  # one piece for the disk instead of a piece a page, where it may be had
        with suppress(OSError):
            found.madvise(MADV_HUGEPAGE)
    return found


class ReadsAt(Protocol):
    def __call__(self, name: str, offset: int, size: int) -> bytes: ...


class DirectWriter:
    """
    Writes through to the disk, one write at a time; names may be forgotten from any thread.

    Args:
        folder: of the files.
        read: how the start of a page is fetched that somebody else wrote.
    """

    def __init__(self, folder: str, read: ReadsAt) -> None:
        self._folder = folder
        self._read = read
        self._name = ""
        self._descriptor = -1
        self._lock = Lock()
        self._buffer: mmap | None = None
        self._start, self._end = 0, -1
        """File offsets of what the buffer still holds from the last write."""

        self._begun = (0, 0)
        """File offset of the page and the end in the buffer of what the kernel is writing."""

        self.is_possible = bool(DIRECT)
        """False once the file system has refused."""

    def write(self, name: str, offset: int, buffers: Sequence[Buffer]) -> bool:
        """Durable when it returns True; False: not here, not so, write it as ever."""
        with self._lock:
            return self._write_pieces(name, offset, buffers)

    def begin(
        self, kernel: KernelQueue, name: str, offset: int, buffers: Sequence[Buffer], size: int
    ) -> bool:
        """
        Hand over *size* bytes that no thread waits for; ``finish`` says what became of them.

        False: not here, not so, not now. Nothing else may be written in between.
        """
        if offset % PAGE_BYTES + size > DIRECT_BYTES:
            return False
        with self._lock:
            buffer = self._ready(name, offset)
            if buffer is None:
                return False
            at = offset % PAGE_BYTES
            start = offset - at
            for piece in buffers:
                end = at + len(piece)
                buffer[at:end] = piece
                at = end
            self._end = -1
            self._begun = (start, at)
            return kernel.begin(PWRITE, self._descriptor, buffer, _pad(buffer, at), start)

    def finish(self, result: int) -> bool:
        """*result* of what was begun: durable, or to be written again. Raises OSError."""
        start, end = self._begun
        if result < 0 and -result not in (EAGAIN, EINVAL):
            raise OSError(-result, os.strerror(-result))
        if result < end:
            return False
        with self._lock:
            if self._descriptor >= 0:
                self._start, self._end = start, start + end
        return True

    def _ready(self, name: str, offset: int) -> mmap | None:
        """The buffer, with what its first page has before *offset*; None: not here, or not so."""
        if not self.is_possible or (name != self._name and not self._open(name)):
            self._end = -1
            return None
        if self._buffer is None:
            self._buffer = aligned(DIRECT_BYTES)
        self._restore(self._buffer, offset, offset % PAGE_BYTES)
        return self._buffer

    def _write_pieces(self, name: str, offset: int, buffers: Sequence[Buffer]) -> bool:
        """Through one aligned buffer, as often as it takes; each time it is full it is durable."""
        buffer = self._ready(name, offset)
        if buffer is None:
            return False
        at = offset % PAGE_BYTES
        start = offset - at
        for piece in buffers:
            rest: Buffer = piece
            while len(rest) > DIRECT_BYTES - at:
                rest = memoryview(rest)
                buffer[at:] = rest[: DIRECT_BYTES - at]
                if not self._write(buffer, start, DIRECT_BYTES):
                    return False
                rest = rest[DIRECT_BYTES - at :]
                start, at = start + DIRECT_BYTES, 0
            end = at + len(rest)
            buffer[at:end] = rest
            at = end
        return self._write(buffer, start, at)

    def _restore(self, buffer: mmap, offset: int, head: int) -> None:
        """What the first page has before *offset*, to the start of the buffer."""
        if head == 0:
            return
        page_at = offset - head
        if self._start <= page_at and offset <= self._end:
            buffer[:head] = buffer[page_at - self._start : offset - self._start]
        else:
            page = self._read(self._name, page_at, head)
            buffer[:head] = page.ljust(head, b"\0")

    def _write(self, buffer: mmap, start: int, size: int) -> bool:
        self._end = -1
        whole = _pad(buffer, size)
        try:
            with memoryview(buffer) as view, view[:whole] as part:
                if os.pwrite(self._descriptor, part, start) < whole:
                    return False
        except OSError as error:
            if error.errno != EINVAL:
                raise
            self.is_possible = False
            return False
        self._start, self._end = start, start + size
        return True

    def _open(self, name: str) -> bool:
        self._close(self._name)
        flags = os.O_WRONLY | os.O_CLOEXEC | os.O_DSYNC | DIRECT
        try:
            self._descriptor = os.open(os.path.join(self._folder, name), flags)
        except OSError as error:
            if error.errno != EINVAL:
                raise
            self.is_possible = False
            return False
        self._name = name
        return True

    def forget(self, name: str) -> None:
        """*name* means another file from now on, or none, or is written by other means."""
        if name == self._name:  # looked at without the lock: it only ever names the newest segment
            with self._lock:
                self._close(name)

    def _close(self, name: str) -> None:
        if name and name == self._name:
            os.close(self._descriptor)
            self._name, self._descriptor, self._end = "", -1, -1

    def close(self) -> None:
        with self._lock:
            self._close(self._name)
            if self._buffer is not None:
                self._buffer.close()
                self._buffer = None


def _pad(buffer: mmap, end: int) -> int:
    """Zeros up to the end of the page; returns it."""
    whole = end + -end % PAGE_BYTES
    buffer[end:whole] = bytes(whole - end)
    return whole


class DirectReader:
    """
    Reads of whole pages past the page cache, where they are not in it: a page of it that has to be
    made costs ten times what the read does, and what a start or a late reader reads is not read
    again soon. For any thread.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._local = local()
        self.is_possible = bool(DIRECT)
        """False once the file system has refused."""

    def read(self, name: str, descriptor: int, offset: int, size: int) -> bytes | None:
        """
        *size* bytes of the file *name*, open as *descriptor*; fewer at its end.

        None: not here, or not so; read it as ever. Raises OSError.
        """
        is_fit = READ_BYTES_MIN <= size <= DIRECT_BYTES and not (offset | size) % PAGE_BYTES
        if not is_fit or not self.is_possible:
            return None
        buffer = getattr(self._local, "buffer", None)
        if buffer is None:
            buffer = self._local.buffer = aligned(DIRECT_BYTES)
        with memoryview(buffer) as view, view[:size] as part:
            if read_cached(descriptor, part, offset) < size:
                try:
                    size = _read_direct(os.path.join(self._folder, name), part, offset)
                except OSError as error:
                    if error.errno != EINVAL:
                        raise
                    self.is_possible = False
                    return None
        return bytes(buffer[:size])


def read_cached(descriptor: int, part: memoryview, offset: int) -> int:
    """As many bytes as the page cache has; none of them if some are missing, mostly."""
    if not NOWAIT or not is_cached(descriptor, offset, len(part)):
        return 0
    try:
        return os.preadv(descriptor, [part], offset, NOWAIT)
    except OSError as error:
        if error.errno not in (EAGAIN, EOPNOTSUPP):
            raise
        return 0


def _read_direct(path: str, part: memoryview, offset: int) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | DIRECT)
    try:
        return os.preadv(descriptor, [part], offset)
    finally:
        os.close(descriptor)
