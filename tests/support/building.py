"""
What other tool chains fetch and build, once, into the cache folder that all test runs share.

``TIDEGATE_CACHE`` names another folder.
"""

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

CACHE = Path(os.environ.get("TIDEGATE_CACHE", Path.home() / ".cache" / "tidegate"))
DONE = "done"


def filled(folder: Path, fill: Callable[[], object]) -> Path:
    """
    *folder*, which *fill* has filled, now or in an earlier run.

    Tests run in several processes: one at a time builds anything, others wait for it.
    """
    if not (folder / DONE).exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with (CACHE / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / DONE).exists():
                folder.mkdir(parents=True, exist_ok=True)
                fill()
                (folder / DONE).touch()
    return folder


def digest_of(files: Iterable[Path]) -> str:
    """Another one when a source is new."""
    return hashlib.sha256(b"".join([path.read_bytes() for path in files])).hexdigest()[:16]
