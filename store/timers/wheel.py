"""
Timers in order of their time, in bounded memory and without a horizon.

Far timers lie in buckets of an hour, near ones in buckets of a second, as columns of numbers: 24
bytes each, whatever their distance. An hour is split into seconds in the ten minutes before it
begins, a few thousand timers a tick, so that none stalls the store; only what is due within its
second stands in a heap. Times are wall time; the clock may jump either way.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import chain
from typing import Final

SECOND_MS: Final = 1000
HOUR_MS: Final = 3_600_000
LEAD_MS: Final = 600_000
"""How long before its begin an hour is split into seconds."""

SPLIT_COUNT_MAX: Final = 4096
"""Timers of a far hour moved per call."""

SPLIT_PAUSE_MS: Final = 20
"""When to go on with an hour that is being split."""

Timer = tuple[int, int, int]
"""(due, wall ms; log position of the message; 64-bit name for recalls)"""


class Bucket:
    """Timers of one span, unordered."""

    __slots__ = ("dues", "names", "positions")

    def __init__(self) -> None:
        self.dues = array("Q")
        self.positions = array("Q")
        self.names = array("Q")

    def __len__(self) -> int:
        return len(self.dues)

    def add(self, timer: Timer) -> None:
        due_ms, position, name = timer
        self.dues.append(due_ms)
        self.positions.append(position)
        self.names.append(name)

    def pop(self) -> Timer:
        return self.dues.pop(), self.positions.pop(), self.names.pop()

    def timers(self) -> Iterator[Timer]:
        return zip(self.dues, self.positions, self.names, strict=True)

    def remove(self, due_ms: int, name: int, is_it: Callable[[int], bool]) -> int:
        """Take the timer out that *is_it* confirms; its position, -1: none."""
        at = 0
        while True:
            try:
                at = self.names.index(name, at)
            except ValueError:
                return -1
            position = self.positions[at]
            if self.dues[at] == due_ms and is_it(position):
                last = self.pop()
                if at < len(self.dues):
                    self.dues[at], self.positions[at], self.names[at] = last
                return position
            at += 1


class Wheel:
    """All timers of a store."""

    def __init__(self) -> None:
        self._due: list[Timer] = []
        """A heap."""

        self._seconds: dict[int, Bucket] = {}
        self._hours: dict[int, Bucket] = {}
        self._second_order: list[int] = []
        self._hour_order: list[int] = []
        self._second = -1
        """Seconds up to this one have been moved to the heap."""

        self._hour = -1
        """Hours up to this one have been split, or are being split."""

        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, due_ms: int, position: int, name: int) -> None:
        self._count += 1
        timer = (due_ms, position, name)
        hour = due_ms // HOUR_MS
        if hour > self._hour:
            _bucket(self._hours, self._hour_order, hour).add(timer)
        else:
            self._add_near(timer)

    def _add_near(self, timer: Timer) -> None:
        second = timer[0] // SECOND_MS
        if second > self._second:
            _bucket(self._seconds, self._second_order, second).add(timer)
        else:
            heappush(self._due, timer)

    def advance(self, wall_ms: int) -> None:
        """Move what comes near; cheap if nothing does."""
        room = SPLIT_COUNT_MAX
        while self._hour_order and self._hour_order[0] * HOUR_MS <= wall_ms + LEAD_MS:
            hour = self._hour_order[0]
            has_begun = hour * HOUR_MS <= wall_ms
            if room <= 0 and not has_begun:
                break
            self._hour = max(self._hour, hour)
            bucket = self._hours[hour]
            count = len(bucket) if has_begun else min(room, len(bucket))
            for _ in range(count):
                self._add_near(bucket.pop())
            room -= count
            if not bucket:
                del self._hours[heappop(self._hour_order)]
        is_changed = False
        while self._second_order and self._second_order[0] * SECOND_MS <= wall_ms:
            second = heappop(self._second_order)
            self._second = max(self._second, second)
            self._due.extend(self._seconds.pop(second).timers())
            is_changed = True
        if is_changed:
            heapify(self._due)

    def next_ms(self, wall_ms: int) -> int | None:
        """When to look again; may be past. None: there are no timers."""
        times: list[int] = []
        if self._due:
            times.append(self._due[0][0])
        if self._second_order:
            times.append(self._second_order[0] * SECOND_MS)
        if self._hour_order:
            start = self._hour_order[0] * HOUR_MS - LEAD_MS
            times.append(start if start > wall_ms else wall_ms + SPLIT_PAUSE_MS)
        return min(times, default=None)

    def pop_due(self, wall_ms: int) -> Timer | None:
        """The earliest timer whose time has come."""
        if not self._due or self._due[0][0] > wall_ms:
            return None
        self._count -= 1
        return heappop(self._due)

    def remove(self, due_ms: int, name: int, is_it: Callable[[int], bool]) -> int:
        """Take a timer back before its time; its position, -1: there is none of that name."""
        found = -1
        for bucket in (
            self._seconds.get(due_ms // SECOND_MS),
            self._hours.get(due_ms // HOUR_MS),
        ):
            if bucket is not None and found < 0:
                found = bucket.remove(due_ms, name, is_it)
        if found < 0:
            found = self._remove_due(due_ms, name, is_it)
        self._count -= found >= 0
        return found

    def _remove_due(self, due_ms: int, name: int, is_it: Callable[[int], bool]) -> int:
        for index, (due, position, other) in enumerate(self._due):
            if (due, other) == (due_ms, name) and is_it(position):
                self._due[index] = self._due[-1]
                self._due.pop()
                heapify(self._due)
                return position
        return -1

    # ── facts ───────────────────────────────────────────────────────────────────────────

    def _buckets(self) -> Iterable[Bucket]:
        return chain(self._seconds.values(), self._hours.values())

    def first_position(self, end: int) -> int:
        """Lowest position of a timer's message; *end* if there is none below."""
        lowest = [min(bucket.positions) for bucket in self._buckets() if bucket]
        lowest += [position for _, position, _ in self._due]
        return min([end, *lowest])

    def timers(self) -> Iterator[Timer]:
        """All of them, in no order."""
        yield from self._due
        for bucket in self._buckets():
            yield from bucket.timers()

    def dump(self) -> list[bytes]:
        """Three columns, for a snapshot."""
        columns = (array("Q"), array("Q"), array("Q"))
        for bucket in self._buckets():
            for column, part in zip(
                columns, (bucket.dues, bucket.positions, bucket.names), strict=True
            ):
                column.extend(part)
        for timer in self._due:
            for column, value in zip(columns, timer, strict=True):
                column.append(value)
        return [column.tobytes() for column in columns]


def _bucket(buckets: dict[int, Bucket], order: list[int], number: int) -> Bucket:
    found = buckets.get(number)
    if found is None:
        found = buckets[number] = Bucket()
        heappush(order, number)
    return found


def load_timers(columns: list[bytes]) -> Iterator[Timer]:
    """What ``Wheel.dump`` wrote."""
    arrays = [array("Q", column) for column in columns]
    return zip(*arrays, strict=True)
