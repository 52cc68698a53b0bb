"""
The disk as the log needs it: an interface small enough to simulate.

``RealDisk`` is a directory of files. Tests use a simulated one whose page cache can be dropped,
torn and reordered. Names are plain file names inside the store's folder, never client text.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from errno import EAGAIN, EINVAL, ENOSPC
from mmap import mmap
from threading import Lock
from typing import Final, Protocol

from store.direct import DIRECT, DirectReader, DirectWriter, aligned, read_cached
from store.direct import Buffer as Buffer
from store.kernel_queue import PREAD, KernelQueue

IOV_MAX: Final = 1000
"""Buffers per pwritev; Linux allows 1024 (``getconf IOV_MAX``)."""

OPEN_MAX: Final = 64
"""Files kept open at a time; a log of 64 GiB has 2,000 segments, a process 1,024 descriptors."""

AHEAD_MAX: Final = 8
"""Files kept open a second time, for reads past the page cache: few are caught up with at once."""

ZERO_BYTES: Final = 256 << 10
"""Written at once: a commit waits for no more than that."""

DATA_SYNC: Final[int | None] = getattr(os, "RWF_DSYNC", None)
"""Flag of a write that is durable when it returns (Linux 4.7)."""


class Disk(Protocol):
    """All calls may block and may raise OSError; ``write`` and ``sync`` run in a writer thread."""

    def names(self) -> list[str]:
        """All files."""
        ...

    def size(self, name: str) -> int: ...

    def create(self, name: str, size: int) -> None:
        """A new file of *size* zero bytes; not durable before ``sync`` and ``sync_dir``."""
        ...

    def write(self, name: str, offset: int, buffers: Sequence[Buffer]) -> None:
        """All of *buffers* at *offset*, short writes retried."""
        ...

    def write_through(self, name: str, offset: int, buffers: Sequence[Buffer]) -> None:
        """``write``, then ``sync``; in one step where the system has one."""
        ...

    def fill(self, name: str, offset: int, size: int) -> None:
        """Zeros at *offset*, so that later writes there are over written blocks."""
        ...

    def sync(self, name: str) -> None:
        """fdatasync: what was written to *name* survives power loss."""
        ...

    def sync_dir(self) -> None:
        """Creations, renames and removals survive power loss."""
        ...

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Fewer bytes at the end of the file."""
        ...

    def drop_cached(self, name: str) -> None:
        """A hint: the durable pages of *name* need not stay in memory."""
        ...

    def rename(self, old: str, new: str) -> None: ...

    def truncate(self, name: str, size: int) -> None: ...

    def unlink(self, name: str) -> None: ...

    def free_bytes(self) -> int: ...

    def close(self) -> None: ...


def _write_zeros(path: str, zeros: memoryview, offset: int, size: int, flags: int) -> None:
    """*size* zeros in pieces, through a descriptor of its own."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags)
    try:
        for at in range(offset, offset + size, len(zeros)):
            piece = zeros[: min(len(zeros), offset + size - at)]
            if os.pwrite(descriptor, piece, at) < len(piece):
                raise OSError(ENOSPC, f"{path}: the disk took no more bytes")
    finally:
        os.close(descriptor)


class _OpenFile:
    """A descriptor, and how many threads are using it just now."""

    __slots__ = ("descriptor", "is_forgotten", "user_count")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.user_count = 0
        self.is_forgotten = False


class OpenFiles:
    """Descriptors by name, the least recently used closed first; for several threads."""

    def __init__(self, folder: str, flags: int = os.O_RDWR, count_max: int = OPEN_MAX) -> None:
        self._folder = folder
        self._flags = flags | os.O_CLOEXEC
        self._count_max = count_max
        self._lock = Lock()
        self._files: dict[str, _OpenFile] = {}

    def __len__(self) -> int:
        return len(self._files)

    @contextmanager
    def use(self, name: str) -> Iterator[int]:
        with self._lock:
            file = self._files.pop(name, None)
            if file is None:
                path = os.path.join(self._folder, name)
                file = _OpenFile(os.open(path, self._flags))
            self._files[name] = file  # now the most recent one
            file.user_count += 1
        try:
            yield file.descriptor
        finally:
            with self._lock:
                file.user_count -= 1
                if file.is_forgotten and file.user_count == 0:
                    os.close(file.descriptor)
                if len(self._files) > self._count_max:
                    self._close_oldest()

    def _close_oldest(self) -> None:
        for name, file in self._files.items():
            if file.user_count == 0:
                os.close(self._files.pop(name).descriptor)
                return

    def add(self, name: str, descriptor: int) -> None:
        self.forget(name)
        with self._lock:
            self._files[name] = _OpenFile(descriptor)

    def forget(self, name: str) -> None:
        """The name means another file from now on, or none."""
        with self._lock:
            file = self._files.pop(name, None)
            if file is not None and file.user_count:
                file.is_forgotten = True
            elif file is not None:
                os.close(file.descriptor)

    def rename(self, old: str, new: str) -> None:
        self.forget(new)
        with self._lock:
            if old in self._files:
                self._files[new] = self._files.pop(old)

    def close(self) -> None:
        with self._lock:
            while self._files:
                os.close(self._files.popitem()[1].descriptor)


class RealDisk:
    """One folder; the files in use stay open. Files 0600, folder 0700."""

    def __init__(self, folder: str) -> None:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self.folder = folder
        self.files = OpenFiles(folder)
        self._past_cache = OpenFiles(folder, os.O_RDONLY | DIRECT, AHEAD_MAX)
        self._reader = DirectReader(folder)
        self._direct = DirectWriter(folder, self.read)
        self._zeros: mmap | None = None

    def names(self) -> list[str]:
        return sorted(entry.name for entry in os.scandir(self.folder) if entry.is_file())

    def size(self, name: str) -> int:
        return os.stat(os.path.join(self.folder, name)).st_size

    def create(self, name: str, size: int) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        descriptor = os.open(os.path.join(self.folder, name), flags, 0o600)
        self.files.add(name, descriptor)
        os.truncate(descriptor, size)

    def write(self, name: str, offset: int, buffers: Sequence[Buffer]) -> None:
        self._direct.forget(name)
        with self.files.use(name) as descriptor:
            for start in range(0, len(buffers), IOV_MAX):
                part = buffers[start : start + IOV_MAX]
                size = sum([len(buffer) for buffer in part])
                written = os.pwritev(descriptor, part, offset)
                while written < size:  # a short write: rare, so the rest is simply joined
                    rest = memoryview(b"".join(part))[written:]
                    step = os.pwrite(descriptor, rest, offset + written)
                    if step == 0:
                        raise OSError(f"{name}: the disk took no more bytes")
                    written += step
                offset += size

    def write_through(self, name: str, offset: int, buffers: Sequence[Buffer]) -> None:
        """
        One system call: between two, the writer thread would wait for its turn at Python.

        Past the page cache where that is possible; what lies beyond one call's reach, or comes
        short, is written and synced as ever. For one thread at a time.
        """
        if self._direct.write(name, offset, buffers):
            return
        if len(buffers) <= IOV_MAX and DATA_SYNC is not None:
            size = sum([len(buffer) for buffer in buffers])
            with self.files.use(name) as descriptor:
                if os.pwritev(descriptor, buffers, offset, DATA_SYNC) == size:
                    return
        self.write(name, offset, buffers)
        self.sync(name)

    def begin_write(
        self, kernel: KernelQueue, name: str, offset: int, buffers: Sequence[Buffer], size: int
    ) -> bool:
        """``write_through`` by *kernel*, not waited for; False: it has to be called instead."""
        return self._direct.begin(kernel, name, offset, buffers, size)

    def finish_write(self, result: int) -> bool:
        """
        What *kernel* made of it: durable; or False: ``write_through`` has to write it again.

        Raises OSError.
        """
        return self._direct.finish(result)

    def fill(self, name: str, offset: int, size: int) -> None:
        """Past the page cache where that is possible: zeros need no memory of their own."""
        if self._zeros is None:
            self._zeros = aligned(ZERO_BYTES)
        path = os.path.join(self.folder, name)
        with memoryview(self._zeros) as zeros:
            try:
                _write_zeros(path, zeros, offset, size, DIRECT)
            except OSError as error:
                if error.errno != EINVAL:
                    raise
                _write_zeros(path, zeros, offset, size, 0)  # no O_DIRECT here, or an odd size

    def drop_cached(self, name: str) -> None:
        with self.files.use(name) as descriptor:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def sync(self, name: str) -> None:
        with self.files.use(name) as descriptor:
            os.fdatasync(descriptor)

    def sync_dir(self) -> None:
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read(self, name: str, offset: int, size: int) -> bytes:
        with self.files.use(name) as descriptor:
            found = self._reader.read(name, descriptor, offset, size)
            return os.pread(descriptor, size, offset) if found is None else found

    def begin_read(
        self,
        kernel: KernelQueue,
        number: int,
        name: str,
        offset: int,
        buffer: mmap,
        start: int,
        size: int,
    ) -> bool:
        """
        *size* bytes at *offset*, whole pages, into *buffer* from *start* on, not waited for.

        True: they are there already. Raises OSError where it must be read as ever.
        """
        part = memoryview(buffer)[start : start + size]
        with self.files.use(name) as descriptor:
            if read_cached(descriptor, part, offset) == size:
                return True
        with self._past_cache.use(name) as descriptor:  # closed, what was begun goes on
            if not kernel.begin(PREAD, descriptor, buffer, size, offset, number, start):
                raise OSError(EAGAIN, f"{name}: the kernel takes no more reads")
        return False

    def rename(self, old: str, new: str) -> None:
        self._direct.forget(old)
        self._direct.forget(new)
        os.rename(os.path.join(self.folder, old), os.path.join(self.folder, new))
        self.files.rename(old, new)
        self._past_cache.rename(old, new)

    def truncate(self, name: str, size: int) -> None:
        self._direct.forget(name)
        with self.files.use(name) as descriptor:
            os.truncate(descriptor, size)

    def unlink(self, name: str) -> None:
        self._direct.forget(name)
        self.files.forget(name)
        self._past_cache.forget(name)
        os.unlink(os.path.join(self.folder, name))

    def free_bytes(self) -> int:
        facts = os.statvfs(self.folder)
        return facts.f_bavail * facts.f_frsize

    def close(self) -> None:
        self._direct.close()
        self.files.close()
        self._past_cache.close()
