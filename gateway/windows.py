"""
Time windows of rules: ``mon-fri 08:00-18:00 Europe/Berlin``.

Pure: wall time comes in as milliseconds since 1970, the zone's rules come from the zone database.
"""

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple, Self
from zoneinfo import ZoneInfo

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MINUTES: Final = 24 * 60

_TEXT: Final = re.compile(
    r"(?P<days>[a-z]{3}(?:[-,][a-z]{3})*)?\s*"
    r"(?:(?P<begin>\d{1,2}:\d{2})-(?P<end>\d{1,2}:\d{2}))?\s*"
    r"(?P<zone>[A-Z][A-Za-z0-9_+/-]*)?"
)


class TimeWindow(NamedTuple):
    """Some minutes of some days; one that ends before it begins goes over midnight."""

    days: frozenset[int]
    """0 is Monday."""

    begin: int
    """Minute of the day."""

    end: int
    """Minute of the day, no longer inside."""

    zone: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError. Days, hours and zone may each be left out: all days, all day, UTC."""
        found = _TEXT.fullmatch(text.strip())
        if found is None or not text.strip():
            raise ValueError(f"'{text}' is no window such as 'mon-fri 08:00-18:00 Europe/Berlin'")
        days = _days(found["days"]) if found["days"] else frozenset(range(7))
        begin = _minute(found["begin"]) if found["begin"] else 0
        end = _minute(found["end"]) if found["end"] else MINUTES
        if begin == end:
            raise ValueError(f"'{text}' begins when it ends: it is never open")
        zone = found["zone"] or "UTC"
        try:
            ZoneInfo(zone)
        except (KeyError, OSError, ValueError) as error:
            raise ValueError(f"'{zone}' is no time zone such as Europe/Berlin") from error
        return cls(days, begin, end, zone)

    def contains(self, wall_ms: int) -> bool:
        here = self._local(wall_ms)
        minute, today = here.hour * 60 + here.minute, here.weekday()
        if self.begin < self.end:
            return today in self.days and self.begin <= minute < self.end
        yesterday = (today - 1) % 7
        return (today in self.days and minute >= self.begin) or (
            yesterday in self.days and minute < self.end
        )

    def next_change_ms(self, wall_ms: int) -> int:
        """The first begin, end or midnight after *wall_ms*: until then the answer holds."""
        here = self._local(wall_ms)
        midnight = here.replace(hour=0, minute=0, second=0, microsecond=0)
        times = [
            midnight + timedelta(days=day, minutes=minute)
            for day in (0, 1)
            for minute in (0, self.begin % MINUTES, self.end % MINUTES)
        ]
        later = [int(time.timestamp() * 1000) for time in times]
        return min((time for time in later if time > wall_ms), default=wall_ms + 60_000)

    def _local(self, wall_ms: int) -> datetime:
        return datetime.fromtimestamp(wall_ms / 1000, UTC).astimezone(ZoneInfo(self.zone))


def next_change_ms(windows: Iterable[TimeWindow], wall_ms: int) -> int:
    """Until when nothing changes in any of them; 0: for ever."""
    return min((window.next_change_ms(wall_ms) for window in windows), default=0)


def _days(text: str) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        for name in (first, last or first):
            if name not in DAYS:
                raise ValueError(f"'{name}' is none of {', '.join(DAYS)}")
        begin, end = DAYS.index(first), DAYS.index(last or first)
        found.update((begin + step) % 7 for step in range((end - begin) % 7 + 1))
    return frozenset(found)


def _minute(text: str) -> int:
    hour, _, minute = text.partition(":")
    value = int(hour) * 60 + int(minute)
    if int(minute) > 59 or value > MINUTES:
        raise ValueError(f"'{text}' is no time of day")
    return value
