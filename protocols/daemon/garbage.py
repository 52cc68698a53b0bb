"""
When garbage is looked for: while there is nothing else to do.

Nearly everything dies by reference count; what knows one another lets go of it at its end, and
what does not is found here. A look costs up to a microsecond for each object that is new, garbage
or not, and nothing else runs meanwhile: in a storm of connections that was a tenth of the time, in
pauses of 20 to 60 ms. So a process that is busy puts it off, up to a bound.
"""

import gc
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # the commands that use no loop import none
    import asyncio

YOUNG_MIN: Final = 10_000
"""New objects that are worth a look: 5 to 10 ms."""

YOUNG_MAX: Final = 200_000
"""New objects that are looked at however busy the process is (performance rule 12)."""

MIDDLE_COUNT: Final = 10
"""Looks at new ones until those that were alive then are looked at again."""

OLD_COUNT: Final = 100
"""Looks at those until all are; Python adds that there must be a quarter more of them."""

LOOK_S: Final = 0.25
BUSY_PART: Final = 0.5
"""Of one processor; from here on the process has something else to do."""


def put_off() -> None:
    """Python itself looks late; from the beginning on, for of imports nothing is garbage."""
    gc.set_threshold(YOUNG_MAX, MIDDLE_COUNT, OLD_COUNT)


def is_worth_it(young_count: int, busy_part: float) -> bool:
    """Whether a look now costs nobody much; it gives back the more the less often it is."""
    return young_count >= YOUNG_MIN and busy_part < BUSY_PART


class Collector:
    """Looks for garbage in the pauses of one event loop."""

    def __init__(self, loop: "asyncio.AbstractEventLoop") -> None:
        self._loop = loop
        self._at = loop.time()
        self._cpu_s = time.process_time()
        self._timer = loop.call_later(LOOK_S, self._look)

    def close(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        now, cpu_s = self._loop.time(), time.process_time()
        busy_part = (cpu_s - self._cpu_s) / max(now - self._at, LOOK_S)
        young_count, middle_count, _ = gc.get_count()
        if is_worth_it(young_count, busy_part):
            gc.collect(int(middle_count > MIDDLE_COUNT))
        self._at, self._cpu_s = self._loop.time(), time.process_time()
        self._timer = self._loop.call_later(LOOK_S, self._look)


def begin(loop: "asyncio.AbstractEventLoop") -> Collector:
    """The start is over: what is there now is there for good."""
    gc.freeze()  # uncollected: looking at all there is costs more than the garbage
    return Collector(loop)
