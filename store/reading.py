"""Reads that change nothing: by offset, by time, and groups for inspection."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress
from typing import Final, NamedTuple

from protocols.errors import Refused
from store.answers import GroupState, InFlight, ReadResult, ReadStatus
from store.core import Core
from store.groups.group import Group
from store.groups.selection import Wanted
from store.index.entries import NEAR, Columns
from store.index.queues import Queue
from store.log.format import EntryFlag
from store.log.messages import store_ms
from store.parts import Parts
from store.records import Neighbours, Piece

LOOKED_PER_RECORD: Final = 16
"""Entries that a read with a filter looks at for each one that it may return."""


class _Found(NamedTuple):
    """Part of a ``ReadResult``."""

    pieces: list[Piece]
    record_count: int
    end: int
    """Offset to go on from; -1: not read."""


_NOTHING: Final = _Found([], 0, -1)


class Lookup:
    """Entries in ascending order: each is looked for in the index page of the one before."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._entry = -1
        self._columns: Columns = core.entries
        self._index = -1

    def length_of(self, entry: int) -> int:
        """Of its record, or of its pointer; the next ``record`` is this one's."""
        positions, index = self._columns.positions, self._index
        self._entry = entry
        if index >= 0:
            index = bisect_left(positions, entry, index, min(index + NEAR, len(positions)))
        if not 0 <= index < len(positions) or positions[index] != entry:
            self._columns, index = self._core.entries.locate(entry)
        self._index = index
        return self._columns.lengths[index] if index >= 0 else 0

    def record(self) -> bytes:
        """b"": gone, or rot, which is counted; the reader goes on behind it."""
        core, entry = self._core, self._entry
        target = core.entries.targets.get(entry, entry) if core.entries.targets else entry
        try:
            if self._index < 0 or target != entry or core.cache.find(entry) is not None:
                return core.record_at(target)
            return core.stored_record(entry, self._columns, self._index)
        except Refused:
            return b""


class Reader:
    """Looks at durable entries only."""

    def __init__(self, core: Core, parts: Parts) -> None:
        self._core = core
        self._parts = parts
        self._neighbours = Neighbours(core)

    def records_at(self, positions: Sequence[int]) -> tuple[list[int], list[Piece]]:
        """Of ascending positions: the length of each, and the bytes of all. Raises Refused."""
        return self._neighbours.all_of(positions)

    def offset_range(self, queue: Queue | None) -> tuple[int, int]:
        """(smallest kept, end of visible)."""
        if queue is None:
            return 0, 0
        queue.first = queue.seek(queue.first)  # segments may have gone since a snapshot told it
        return queue.first, max(queue.first, queue.visible_end(self._core.entries.visible))

    def read(
        self,
        queue: Queue | None,
        offset: int,
        count: int,
        bytes_max: int,
        tags: frozenset[int],
        matches: Callable[[bytes], bool] | None = None,
        *,
        may_wait: bool = False,
    ) -> ReadResult:
        """
        Records from *offset* on, as many as both limits allow, at least one.

        Raises Coming if it *may wait* and they are not in memory yet.
        """
        low, high = self.offset_range(queue)
        if queue is None:
            return ReadResult(ReadStatus.NO_QUEUE, [], 0, 0, 0)
        if offset < low:
            return ReadResult(ReadStatus.OFFSET_TOO_SMALL, [], low, low, high)
        if offset > high:
            return ReadResult(ReadStatus.OFFSET_TOO_LARGE, [], high, low, high)
        if offset == high:
            return ReadResult(ReadStatus.NO_NEW, [], offset, low, high)
        table = self._parts.compacted.of(queue.number)
        is_compacted = table is not None and queue.topic in self._parts.topics.compacted
        found = _NOTHING
        if not (is_compacted or matches is not None or queue.has_gaps or self._has_targets(queue)):
            rotten_count = self._core.counters.rotten_reads
            try:
                found = self._read_together(
                    queue, offset, high, count, bytes_max, tags, may_wait=may_wait
                )
            except Refused:  # rot among them: one by one, and counted once
                self._core.counters.rotten_reads = rotten_count
        if found.end < 0:
            found = self._read_each(queue, offset, high, count, bytes_max, tags, matches)
        status = ReadStatus.FOUND if found.record_count else ReadStatus.NO_MATCH
        return ReadResult(status, found.pieces, found.end, low, high, found.record_count)

    def _has_targets(self, queue: Queue) -> bool:
        """It may hold entries that point elsewhere: only a light queue does."""
        return bool(self._core.entries.targets) and not queue.topic

    def _read_together(
        self,
        queue: Queue,
        offset: int,
        high: int,
        count: int,
        bytes_max: int,
        tags: frozenset[int],
        *,
        may_wait: bool,
    ) -> "_Found":
        """Raises Refused, and Coming."""
        pieces: list[Piece] = []
        taken, room, looked = 0, bytes_max, 0
        at = queue.seek(offset)
        while at < high and taken < count and looked < count * LOOKED_PER_RECORD:
            want = count - taken
            part = queue.slice(at, min(high, at + (count if tags else want)))
            looked += len(part)
            following = at + len(part)
            offsets: Sequence[int] = range(at, following)
            if tags:
                is_wanted = [self._has_tag(entry, tags) for entry in part]
                offsets, part = [list(compress(each, is_wanted)) for each in (offsets, part)]
                if len(part) > want:
                    following = offsets[want]
                    part = part[:want]
            if part:
                more, more_count, size = self._neighbours.take(
                    part, room, is_any=taken > 0, may_wait=may_wait
                )
                pieces += more
                taken += more_count
                if more_count < len(part):
                    return _Found(pieces, taken, offsets[more_count])
                room -= size
            at = following if taken == count else queue.seek(following)
        return _Found(pieces, taken, min(at, high))

    def _read_each(
        self,
        queue: Queue,
        offset: int,
        high: int,
        count: int,
        bytes_max: int,
        tags: frozenset[int],
        matches: Callable[[bytes], bool] | None,
    ) -> "_Found":
        """The same for all else; what is rot is left out."""
        records: list[Piece] = []
        size, looked = 0, 0
        end = high
        found = Lookup(self._core)
        for at, entry in self._entries(queue, offset, high, count):
            length = found.length_of(entry)
            is_over = records and size + length > bytes_max
            if is_over or len(records) == count or looked == count * LOOKED_PER_RECORD:
                end = at
                break
            looked += 1
            if tags and not self._has_tag(entry, tags):
                continue
            record = found.record()
            if record and (matches is None or matches(record)):
                records.append(record)
                size += len(record)
        return _Found(records, len(records), end)

    def _entries(
        self, queue: Queue, offset: int, high: int, step: int
    ) -> Iterator[tuple[int, int]]:
        """(offset, entry): all of them, or of a compacted topic those that were not replaced."""
        table = self._parts.compacted.of(queue.number)
        if table is None or queue.topic not in self._parts.topics.compacted:
            yield from _walk(queue, offset, high, step)
            return
        for at in table.offsets(offset, high, self._core.log.wall_ms):
            if queue.seek(at) == at and (part := queue.slice(at, at + 1)):
                yield at, part[0]

    def only_current(self, group: Group, wanted: Wanted) -> Wanted:
        """The same take, without what was replaced in compacted topics that the group reads."""
        found = []
        for read in group.reads.values():
            table = self._parts.compacted.of(read.queue.number)
            if table is not None and read.topic in self._parts.topics.compacted:
                found.append((read.queue, table))
        if not found:
            return wanted
        matches, wall_ms = wanted.matches, wanted.wall_ms

        def is_wanted(entry: int) -> bool:
            for queue, table in found:
                if queue.has(entry) and table.is_over(queue.offset_from(entry), wall_ms):
                    return False
            return matches is None or matches(entry)

        return wanted._replace(matches=is_wanted)

    def does_match(self, matches: Callable[[bytes], bool], entry: int) -> bool:
        """Whether the entry's message passes a filter; one that is rot does not."""
        record = self._record(entry)
        return bool(record) and matches(record)

    def _has_tag(self, entry: int, tags: frozenset[int]) -> bool:
        columns, index = self._core.entries.locate(entry)
        if index >= 0 and columns.flags[index] & EntryFlag.HAS_TAG:
            return columns.tags[index] in tags
        return self._core.tag_of(entry) in tags

    def _record(self, entry: int) -> bytes:
        """b"": rot, counted; the reader goes on behind it."""
        try:
            return self._core.record_at(self._core.entries.targets.get(entry, entry))
        except Refused:
            return b""

    def records(self, positions: Iterable[int]) -> list[bytes]:
        """The records at *positions*, without those that are rot."""
        found: list[bytes] = []
        for position in positions:
            try:
                found.append(self._core.record_at(position))
            except Refused:
                continue
        return found

    def entry_position(self, topic: str, queue_id: int, offset: int) -> int:
        queue = self._core.queues.find_message_queue(topic, queue_id)
        low, high = self.offset_range(queue)
        if queue is None or not low <= offset < high:
            return -1
        found = queue.slice(offset, offset + 1)
        return found[0] if found else -1

    def offset_by_time(self, topic: str, queue_id: int, wall_ms: int) -> int:
        """By bisection over the store times in the records."""
        queue = self._core.queues.find_message_queue(topic, queue_id)
        low, high = self.offset_range(queue)
        if queue is None:
            return 0
        while low < high:
            middle = (low + high) // 2
            there = queue.seek(middle)
            record = self._record(queue.slice(there, there + 1)[0]) if there < high else b""
            if there >= high or (record and store_ms(record) >= wall_ms):
                high = middle
            else:
                low = there + 1
        return low

    def group_state(self, group: Group) -> GroupState:
        flights = [
            InFlight(
                at, batch.grant, group.attempt_of(at), batch.holder, *group.marks.get(at, (0, 0))
            )
            for at, batch in sorted(group.in_flight.items())
        ]
        reads = [
            (read.tag, read.queue.number, read.from_position, read.to_position)
            for read in group.reads.values()
        ]
        return GroupState(
            name=group.name,
            number=group.number,
            cursor=group.cursor,
            ahead=self._ahead(group),
            in_flight=tuple(flights),
            returned=tuple(group.returned),
            owner_epoch=group.owner_epoch,
            reads=tuple(reads),
        )

    def _ahead(self, group: Group) -> tuple[int, ...]:
        """Done positions at or above the cursor: offered, and not open."""
        cursor = group.cursor
        found: set[int] = set()
        for read in group.reads.values():
            queue = read.queue
            found.update(queue.range(queue.seek(queue.offset_from(cursor)), read.at))
        return tuple(sorted(found - group.open.keys()))


def _walk(queue: Queue, at: int, high: int, step: int) -> Iterator[tuple[int, int]]:
    """(offset, entry) from offset *at* on, without those that are missing."""
    while (at := queue.seek(at)) < high:
        part = queue.slice(at, min(high, at + step))
        for offset, entry in enumerate(part, at):
            is_lost = (
                queue.has_gaps
                and offset + 1 < high
                and entry in queue.slice(offset + 1, offset + 2)
            )
            if not is_lost:
                yield offset, entry
        at += len(part)
