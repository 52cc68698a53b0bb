"""
A store's folder that is only read.

Recovery's own functions run on it, so that what they would find is what is told; what they would
change is noted instead. A running store may take files away meanwhile: those read as empty.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from store.disk import Buffer

READ_ONLY: Final = os.O_RDONLY | os.O_CLOEXEC


class ReadOnly(OSError):
    """Something tried to write."""


class Folder:
    """Implements ``store.disk.Disk`` without changing anything."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.given_up: list[str] = []
        """Files that the next start would remove or set aside."""

    def names(self) -> list[str]:
        return sorted(entry.name for entry in os.scandir(self.path) if entry.is_file())

    def size(self, name: str) -> int:
        try:
            return os.stat(self.path / name).st_size
        except FileNotFoundError:
            return 0

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Fewer bytes at the end of the file. Raises OSError if the disk cannot read them."""
        try:
            descriptor = os.open(self.path / name, READ_ONLY)
        except FileNotFoundError:
            return b""
        try:
            pieces: list[bytes] = []
            while size > 0 and (piece := os.pread(descriptor, size, offset)):
                pieces.append(piece)
                offset, size = offset + len(piece), size - len(piece)
            return b"".join(pieces)
        finally:
            os.close(descriptor)

    def unlink(self, name: str) -> None:
        self.given_up.append(name)

    def rename(self, old: str, new: str) -> None:
        self.given_up.append(old)

    def free_bytes(self) -> int:
        facts = os.statvfs(self.path)
        return facts.f_bavail * facts.f_frsize

    # ── never here ──────────────────────────────────────────────────────────────────────

    def create(self, name: str, size: int) -> None:
        raise ReadOnly(name)

    def write(self, name: str, offset: int, buffers: Sequence[Buffer]) -> None:
        raise ReadOnly(name)

    def write_through(self, name: str, offset: int, buffers: Sequence[Buffer]) -> None:
        raise ReadOnly(name)

    def fill(self, name: str, offset: int, size: int) -> None:
        raise ReadOnly(name)

    def sync(self, name: str) -> None:
        raise ReadOnly(name)

    def sync_dir(self) -> None:
        raise ReadOnly("folder")

    def drop_cached(self, name: str) -> None:
        raise ReadOnly(name)

    def truncate(self, name: str, size: int) -> None:
        raise ReadOnly(name)

    def close(self) -> None:
        """Nothing stays open."""
