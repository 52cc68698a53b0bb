"""
The only reader of time.

Below the drivers time is an argument. ``monotonic`` drives deadlines, leases and invisible
times; ``wall_ms`` is for what people and other machines see: born and store times, timers.
"""

import time
from typing import Final, NamedTuple

monotonic: Final = time.monotonic
"""Seconds on the monotonic clock, which is also the clock of the event loop; once per read of a
socket, so nothing of ours stands around it."""


class Now(NamedTuple):
    """One reading of both clocks, so that a decision never mixes two moments."""

    monotonic: float
    """Seconds, never goes back; for deadlines."""

    wall_ms: int
    """Milliseconds since 1970 UTC; may jump."""


def read() -> Now:
    """Read both clocks once."""
    return Now(time.monotonic(), time.time_ns() // 1_000_000)


def wall_ms() -> int:
    """Milliseconds since 1970 UTC."""
    return time.time_ns() // 1_000_000
