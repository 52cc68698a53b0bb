"""How much happened lately, by name: for the tools' per-minute, per-hour and per-day columns."""

from collections import deque
from typing import Final

SLOT_S: Final = 10.0
MINUTE_S: Final = 60.0
HOUR_S: Final = 3600.0
DAY_S: Final = 86_400.0
NAMES_MAX: Final = 20_000
"""Names counted; one more and the one counted longest ago is forgotten."""

SLOTS_MAX: Final = 400
"""Marks kept of one name: an hour of ten-second ones, then coarser."""


class Rate:
    """One rising count and marks of where it stood."""

    __slots__ = ("marks", "total")

    def __init__(self) -> None:
        self.total = 0
        self.marks: deque[tuple[float, int]] = deque(maxlen=SLOTS_MAX)

    def since(self, start: float) -> int:
        """How much was added since monotonic time *start*, to the precision of a mark."""
        for at, total in self.marks:
            if at >= start:
                return self.total - total
        return 0


class Rates:
    """Counts by name, such as ``topic@group``."""

    def __init__(self) -> None:
        self._rates: dict[str, Rate] = {}

    def add(self, name: str, count: int, now: float) -> None:
        rate = self._rates.get(name)
        if rate is None:
            while len(self._rates) >= NAMES_MAX:
                del self._rates[next(iter(self._rates))]
            rate = self._rates[name] = Rate()
        if not rate.marks or now - rate.marks[-1][0] >= SLOT_S:
            rate.marks.append((now, rate.total))
        rate.total += count

    def since(self, name: str, start: float) -> int:
        """Added since *start*; 0 for a name that was never counted."""
        rate = self._rates.get(name)
        return rate.since(start) if rate is not None else 0

    def has(self, name: str) -> bool:
        return name in self._rates
