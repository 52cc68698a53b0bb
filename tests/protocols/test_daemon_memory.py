"""What a daemon asks of the system's memory."""

import subprocess
import sys
from pathlib import Path

import pytest

HEAP_BYTES = 64 << 20
PROGRAM = """
from protocols.daemon.lifecycle import tune_memory, use_large_pages
tune_memory()
use_large_pages({heap_bytes})
kept = [bytes(1 << 20) for _ in range(8)]
with open("/proc/self/smaps") as maps:
    print(maps.read().partition("[heap]")[2].partition("VmFlags:")[2].partition("\\n")[0])
"""


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="the system has no large pages"
)
def test_the_heap_asks_for_large_pages() -> None:
    """In a process of its own: what is asked cannot be taken back."""
    program = PROGRAM.format(heap_bytes=HEAP_BYTES)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "hg" in done.stdout.split(), done.stderr
