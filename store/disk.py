"""
The disk as the log needs it: an interface small enough to simulate.

``RealDisk`` is a directory of files. Tests use a simulated one whose page cache can be dropped,
torn and reordered. Names are plain file names inside the store's folder, never client text.
"""

import os
from collections.abc import Sequence
from typing import Final, Protocol

IOV_MAX: Final = 1000
"""Buffers per pwritev; Linux allows 1024 (``getconf IOV_MAX``)."""

Buffer = bytes | bytearray | memoryview


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

    def sync(self, name: str) -> None:
        """fdatasync: what was written to *name* survives power loss."""
        ...

    def sync_dir(self) -> None:
        """Creations, renames and removals survive power loss."""
        ...

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Fewer bytes at the end of the file."""
        ...

    def rename(self, old: str, new: str) -> None: ...

    def truncate(self, name: str, size: int) -> None: ...

    def unlink(self, name: str) -> None: ...

    def free_bytes(self) -> int: ...

    def close(self) -> None: ...


class RealDisk:
    """One folder; files stay open until ``close``. Files 0600, folder 0700."""

    def __init__(self, folder: str) -> None:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self.folder = folder
        self._open: dict[str, int] = {}

    def names(self) -> list[str]:
        return sorted(entry.name for entry in os.scandir(self.folder) if entry.is_file())

    def size(self, name: str) -> int:
        return os.stat(os.path.join(self.folder, name)).st_size

    def create(self, name: str, size: int) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._forget(name)
        self._open[name] = os.open(os.path.join(self.folder, name), flags, 0o600)
        os.truncate(self._open[name], size)

    def write(self, name: str, offset: int, buffers: Sequence[Buffer]) -> None:
        descriptor = self._descriptor(name)
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

    def sync(self, name: str) -> None:
        os.fdatasync(self._descriptor(name))

    def sync_dir(self) -> None:
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read(self, name: str, offset: int, size: int) -> bytes:
        return os.pread(self._descriptor(name), size, offset)

    def rename(self, old: str, new: str) -> None:
        os.rename(os.path.join(self.folder, old), os.path.join(self.folder, new))
        self._forget(new)
        if old in self._open:
            self._open[new] = self._open.pop(old)

    def truncate(self, name: str, size: int) -> None:
        os.truncate(self._descriptor(name), size)

    def unlink(self, name: str) -> None:
        self._forget(name)
        os.unlink(os.path.join(self.folder, name))

    def free_bytes(self) -> int:
        facts = os.statvfs(self.folder)
        return facts.f_bavail * facts.f_frsize

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def _descriptor(self, name: str) -> int:
        descriptor = self._open.get(name)
        if descriptor is None:
            opened = os.open(os.path.join(self.folder, name), os.O_RDWR | os.O_CLOEXEC)
            descriptor = self._open.setdefault(name, opened)
            if descriptor != opened:  # the writer thread was faster
                os.close(opened)
        return descriptor

    def _forget(self, name: str) -> None:
        descriptor = self._open.pop(name, None)
        if descriptor is not None:
            os.close(descriptor)
