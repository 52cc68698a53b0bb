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
    """One rising count, the bytes of what was counted, and marks of where both stood."""

    __slots__ = ("marks", "size", "total")

    def __init__(self) -> None:
        self.total = 0
        self.size = 0
        self.marks: deque[tuple[float, int, int]] = deque(maxlen=SLOTS_MAX)

    def since(self, start: float) -> tuple[int, int]:
        """(count, bytes) added since monotonic time *start*, to the precision of a mark."""
        for at, total, size in self.marks:
            if at >= start:
                return self.total - total, self.size - size
        return 0, 0


class Rates:
    """Counts by name, such as ``topic@group``."""

    def __init__(self) -> None:
        self._rates: dict[str, Rate] = {}

    def add(self, name: str, count: int, now: float, size: int = 0) -> None:
        rate = self._rate(name, now)
        rate.total += count
        rate.size += size

    def note(self, name: str, total: int, now: float) -> None:
        """Where a count stands that is kept elsewhere and only rises."""
        rate = self._rate(name, now)
        rate.total = total

    def _rate(self, name: str, now: float) -> Rate:
        """With a mark of where it stands."""
        rate = self._rates.get(name)
        if rate is None:
            while len(self._rates) >= NAMES_MAX:
                del self._rates[next(iter(self._rates))]
            rate = self._rates[name] = Rate()
        if not rate.marks or now - rate.marks[-1][0] >= SLOT_S:
            rate.marks.append((now, rate.total, rate.size))
        return rate

    def since(self, name: str, start: float) -> int:
        """Added since *start*; 0 for a name that was never counted."""
        rate = self._rates.get(name)
        return rate.since(start)[0] if rate is not None else 0

    def size_since(self, name: str, start: float) -> int:
        """Bytes of that."""
        rate = self._rates.get(name)
        return rate.since(start)[1] if rate is not None else 0

    def has(self, name: str) -> bool:
        return name in self._rates
