"""
Large pages for Python's own objects, once they are there: what a daemon keeps of thousands of
queues or connections is in no cache, and finding the place of a small page takes as long as
fetching from it, most of all in a virtual machine.

Python takes its memory by the MiB, too little at a time for the system to give large pages; so
small ones that are full are put together afterwards (``MADV_COLLAPSE``, Linux 6.1), a few at a
time and in a thread, since each is copied.
"""

import asyncio
import sys
from collections.abc import Iterator
from typing import Any, Final

LARGE: Final = 2 << 20
SMALL: Final = 4096
PRESENT_MIN: Final = 496
"""Small pages of 512 that must be in use: the others would take memory that nobody asked for."""

AT_ONCE: Final = 2
"""Pages put together in one step. Each takes 3 to 6 ms in a virtual machine whose host has to find
the memory, and who needs what is in it waits for it."""

PAUSE_S: Final = 0.25
PAUSE_S_MAX: Final = 8.0
"""While there is nothing to do."""

MADV_COLLAPSE: Final = 25
_IS_PRESENT: Final = bytes(byte >> 7 for byte in range(256))
"""Of the last byte of an entry in ``pagemap``."""


class LargePages:
    """Puts together what is full. Blocks: for a thread."""

    def __init__(self) -> None:
        self._madvise: Any = _madvise()
        self._done: set[int] = set()

    def step(self) -> int:
        """How many were put together; -1: the system does not do it."""
        if self._madvise is None:
            return -1
        try:
            places = list(_writable_places())
            self._done.intersection_update(places)
            with open("/proc/self/pagemap", "rb", buffering=0) as table:
                return self._step([at for at in places if at not in self._done], table)
        except OSError:
            return -1

    def _step(self, places: list[int], table: Any) -> int:
        count = 0
        for at in places:
            table.seek(at // SMALL * 8)
            entries = table.read(LARGE // SMALL * 8)
            if entries[7::8].translate(_IS_PRESENT).count(1) < PRESENT_MIN:
                continue
            self._done.add(at)
            if self._madvise(at, LARGE, MADV_COLLAPSE) == 0:
                count += 1
            if count == AT_ONCE:
                break
        return count


def _madvise() -> Any:
    if sys.platform != "linux":
        return None
    import ctypes

    found = getattr(ctypes.CDLL(None), "madvise", None)
    if found is not None:
        found.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return found


def _writable_places() -> Iterator[int]:
    """Addresses of all that could be a large page: private memory without a file."""
    with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:
        for line in maps:
            words = line.split()
            is_heap = len(words) == 6 and words[5] == "[heap]"
            if words[1] != "rw-p" or not (is_heap or len(words) == 5):
                continue
            start, end = [int(part, 16) for part in words[0].split("-")]
            yield from range(-(-start // LARGE) * LARGE, end // LARGE * LARGE, LARGE)


async def keep_large_pages() -> None:
    """Until cancelled, or until it is found that the system does not do it."""
    pages, pause_s = LargePages(), PAUSE_S_MAX
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(pause_s)
        count = await loop.run_in_executor(None, pages.step)
        if count < 0:
            return
        pause_s = PAUSE_S if count else min(2 * pause_s, PAUSE_S_MAX)
