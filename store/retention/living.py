"""
What of an old segment must stay: owed to somebody, or kept because its time has not passed.

*Owed*: an entry that a group has not done with, a last retained value, a held message, the last
value of a key of a compacted topic, the target of an index record that is not gone itself.
*Kept*: younger than its topic's retention; under pressure nothing counts as kept.
"""

from collections.abc import Iterator
from typing import Final

from protocols.canonical import DISPATCH_NAME
from store.core import Core
from store.groups.group import Group, GroupRead
from store.index.pages import Row
from store.log.format import EntryFlag
from store.parts import Parts

LISTED_MAX: Final = 20_000
"""More open entries of a group, or held messages, are not gone through for each segment."""


class Living:
    """One look at what is owed now; asked about several segments."""

    def __init__(self, core: Core, parts: Parts, wall_ms: int, *, is_pressed: bool) -> None:
        self._core = core
        self._parts = parts
        self._wall_ms = wall_ms
        self.is_pressed = is_pressed

    def is_past(self, topic: str, newest_ms: int) -> bool:
        """Whether messages of *topic* stored at *newest_ms* have had their time."""
        if self.is_pressed:
            return True
        return newest_ms + self._parts.topics.retention_ms(topic) < self._wall_ms

    def of(self, number: int, base: int, end: int, newest_ms: int) -> set[int]:
        """Positions of the entries in [base, end) that must stay, by the index of *number*."""
        found = self._owed(number, base, end)
        directory = self._core.cold.directory(number)
        for index in range(len(directory)):
            for start, stop in self._ranges(directory.row(index), newest_ms):
                page = self._core.cold.page(number)
                found.update(page.slice(index, start, stop))
        found.update(self._targets(base, end, found))
        if found and self._core.cold.remnants.get(number) is None:
            page = self._core.cold.page(number)
            found = {position for position in found if page.index_of(position) >= 0}
        return found

    def _owed(self, number: int, base: int, end: int) -> set[int]:
        """Entries that somebody holds: not found by the places of readers."""
        parts = self._parts
        found: set[int] = set()
        for group in parts.groups:
            if group.name == DISPATCH_NAME:  # what waits there is kept, not owed
                continue
            if len(group.open) <= LISTED_MAX:
                found.update([at for at in group.open if base <= at < end])
            else:
                found.update(group.open.keys() & self._core.cold.page(number).positions)
        if parts.retained.kept:
            found.update(parts.retained.kept.intersection(self._core.cold.page(number).positions))
        held_count = len(parts.held.wheel) + len(parts.held.halves)
        if 0 < held_count <= LISTED_MAX:
            found.update(parts.held.positions_within(base, end))
        elif held_count:  # too many to look at: all that were held once
            page = self._core.cold.page(number)
            rows = zip(page.positions, page.flags, strict=True)
            found.update([at for at, flags in rows if flags & EntryFlag.HELD])
        return found

    def _ranges(self, row: Row, newest_ms: int) -> Iterator[tuple[int, int]]:
        """(first, end) offsets of the row's entries that must stay."""
        queue = self._core.queues.active(row.queue)
        if queue is None:
            if self._core.queues.idle.has(row.queue) and not self.is_past("", newest_ms):
                yield row.first, row.first + row.size
            return
        end = row.first + row.size
        table = self._parts.compacted.of(row.queue)
        if table is not None and queue.topic in self._parts.topics.compacted:
            start = max(row.first, table.begin)
            yield from [(at, at + 1) for at in table.offsets(start, end, self._wall_ms)]
            if row.first >= table.begin:  # what was replaced is nobody's
                return
            row = row._replace(size=min(end, table.begin) - row.first)
        if not self.is_past(queue.topic, newest_ms):
            yield row.first, row.first + row.size
            return
        for group, read in queue.readers:
            start, stop = _unread(group, read, row)
            if start < stop:
                yield start, stop

    def _targets(self, base: int, end: int, found: set[int]) -> Iterator[int]:
        """What index records point to, unless these stand in the segment and need not stay."""
        for entry, target in self._core.entries.targets.items():
            if base <= target < end and (entry in found or not base <= entry < end):
                yield target

    def moved(self, base: int, end: int) -> dict[int, set[int]]:
        """Number of a remnant → positions of its entries whose bytes are in [base, end) and that
        must stay; with every remnant that has bytes there."""
        found: dict[int, set[int]] = {}
        for remnant, indexes in self._core.cold.remnants.within(base, end):
            here = {remnant.positions[at] for at in indexes}
            live = self.of(remnant.number, remnant.base, remnant.end, remnant.newest_ms)
            found[remnant.number] = here & live
        return found


def _unread(group: Group, read: GroupRead, row: Row) -> tuple[int, int]:
    """Offsets of the row that the group has not been offered yet."""
    if group.name == DISPATCH_NAME:
        return 0, 0
    end = row.first + row.size
    stop = end if read.stop_at < 0 else min(end, read.stop_at)
    return max(row.first, read.at), stop
