"""Small files that are written whole: a crash leaves the old content or the new one."""

import os
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Temporary file, fsync, rename, fsync of the folder. Blocks. Raises OSError."""
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
