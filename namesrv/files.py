"""Small files that are written whole: a crash leaves the old content or the new one."""

import os
from pathlib import Path
from threading import Lock
from typing import Final

_ONE_AT_A_TIME: Final = Lock()
"""Whoever ends a server writes while a thread of its may still be at the same file."""


def write_whole(path: Path, content: bytes) -> None:
    """Temporary file, fsync, rename, fsync of the folder. Blocks. Raises OSError."""
    with _ONE_AT_A_TIME:
        _write(path, content)


def check_writable(folder: Path) -> None:
    """Make *folder*, and see at the start that files can be written there. Raises OSError."""
    probe = folder / "writable"
    write_whole(probe, b"")
    probe.unlink()


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(path.suffix + ".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
