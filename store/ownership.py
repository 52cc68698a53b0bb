"""One store per data folder: two that append to the same log would destroy it."""

import asyncio
import fcntl
import os
from typing import Final

from protocols.errors import ConfigError

WAIT_S: Final = 5.0
"""A process that was just killed may still be waiting for its last sync."""

POLL_S: Final = 0.05


class FolderLock:
    """An exclusive flock of the folder itself; the system releases it when the process ends."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._descriptor = -1

    async def acquire(self, wait_s: float = WAIT_S) -> None:
        """Raises ConfigError: another process has it; OSError: no such folder."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        descriptor = os.open(self._folder, flags)
        for _ in range(max(1, round(wait_s / POLL_S))):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                await asyncio.sleep(POLL_S)
            except OSError:  # this file system knows no locks: nothing to be had
                break
            else:
                break
        else:
            os.close(descriptor)
            raise ConfigError(
                [f"store.data: {self._folder} is in use by another store: give each its own"]
            )
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
