"""What a daemon asks of the system's memory."""

import subprocess
import sys
from pathlib import Path

import pytest

HEAP_BYTES = 64 << 20
PROGRAM = """
import threading
from protocols.daemon.lifecycle import LARGE_PAGES, tune_memory, use_large_pages
tune_memory()
use_large_pages({heap_bytes})
for thread in threading.enumerate():
    if thread.name == LARGE_PAGES:
        thread.join()
with open("/proc/self/smaps") as maps:
    heap = maps.read().partition("[heap]")[2].partition("VmFlags:")
print(heap[0].partition("AnonHugePages:")[2].split()[0], heap[2].partition("\\n")[0])
"""

LATER = """
from protocols.daemon.large_pages import LargePages
kept = [[str(number)] for number in range(100_000)]
def kib(name):
    with open("/proc/self/smaps_rollup") as found:
        return int(next(line.split()[1] for line in found if line.startswith(name)))
before, pages = kib("Rss"), LargePages()
counts = [pages.step() for _ in range(4)]
print(counts[0], kib("AnonHuge"), kib("Rss") - before)
"""


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="the system has no large pages"
)
def test_the_heap_lies_in_large_pages() -> None:
    """In a process of its own: what is asked cannot be taken back."""
    program = PROGRAM.format(heap_bytes=HEAP_BYTES)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    taken_kib, *flags = done.stdout.split()
    assert "hg" in flags, done.stderr
    taken = int(taken_kib) << 10
    assert taken >= HEAP_BYTES * 3 // 4 or taken == 0  # by a system older than Linux 5.14


@pytest.mark.skipif(not Path("/proc/self/pagemap").exists(), reason="not Linux")
def test_what_is_full_is_put_together() -> None:
    """Python's own objects, and not a page more than there was. (An old kernel does nothing.)"""
    done = subprocess.run([sys.executable, "-c", LATER], capture_output=True, text=True, check=True)
    count, large_kib, more_kib = [int(word) for word in done.stdout.split()]
    assert count <= 0 or large_kib >= count << 11, done.stderr
    assert more_kib < 2 << 10
