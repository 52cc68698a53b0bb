"""
Micro-bench of the store's timer wheel: memory and CPU time of a million timers and more.

Run: ``python -m tests.bench.bench_timers [count]``. Timers lie evenly over 400 days; then time is
turned to each next one, and what is due is popped.
"""

import argparse
import time
from pathlib import Path

from store.timers.wheel import Wheel

SPAN_MS = 400 * 86_400_000
FIRED_MAX = 5000
NOW_MS = 1_700_000_000_000


def resident_bytes() -> int:
    """Linux only."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def fire(wheel: Wheel) -> tuple[int, float, float]:
    """(timers fired, µs each, the longest step in ms)."""
    now_ms, fired, longest = NOW_MS, 0, 0.0
    began = time.process_time()
    while fired < FIRED_MAX and (following := wheel.next_ms(now_ms)) is not None:
        now_ms = max(now_ms + 1, following)
        step = time.process_time()
        wheel.advance(now_ms)
        while wheel.pop_due(now_ms) is not None:
            fired += 1
        longest = max(longest, time.process_time() - step)
    return fired, (time.process_time() - began) / max(fired, 1) * 1e6, longest * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_timers", description=__doc__)
    parser.add_argument("count", nargs="?", type=int, default=1_000_000, help="timers (1,000,000)")
    count = parser.parse_args().count
    wheel = Wheel()
    wheel.advance(NOW_MS)
    before, began = resident_bytes(), time.process_time()
    for number in range(count):
        wheel.add(NOW_MS + number * 7_919_333 % SPAN_MS, number * 300, number)
    micros = (time.process_time() - began) / count * 1e6
    megabytes = (resident_bytes() - before) / 1e6
    print(f"{count} timers over 400 days: {megabytes:.0f} MB, {micros:.2f} us to add one")
    fired, each, longest = fire(wheel)
    print(f"{fired} fired: {each:.1f} us each, longest step {longest:.1f} ms")


if __name__ == "__main__":
    main()
