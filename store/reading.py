"""Reads that change nothing: by offset, by time, and groups for inspection."""

from collections.abc import Callable, Iterable

from protocols.errors import Refused
from store.answers import GroupState, InFlight, ReadResult, ReadStatus
from store.core import Core
from store.groups.group import Group
from store.index.queues import Queue
from store.log.format import EntryFlag
from store.log.messages import store_ms


class Reader:
    """Looks at durable entries only."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def offset_range(self, queue: Queue | None) -> tuple[int, int]:
        """(smallest kept, end of visible)."""
        if queue is None:
            return 0, 0
        return queue.first, max(queue.first, queue.visible_end(self._core.entries.visible))

    def read(
        self,
        queue: Queue | None,
        offset: int,
        count: int,
        bytes_max: int,
        tags: frozenset[int],
        matches: Callable[[bytes], bool] | None = None,
    ) -> ReadResult:
        """Records from *offset* on, as many as both limits allow, at least one."""
        low, high = self.offset_range(queue)
        if queue is None:
            return ReadResult(ReadStatus.NO_QUEUE, [], 0, 0, 0)
        if offset < low:
            return ReadResult(ReadStatus.OFFSET_TOO_SMALL, [], low, low, high)
        if offset > high:
            return ReadResult(ReadStatus.OFFSET_TOO_LARGE, [], high, low, high)
        if offset == high:
            return ReadResult(ReadStatus.NO_NEW, [], offset, low, high)
        records: list[bytes] = []
        size = 0
        at = offset
        while at < high and len(records) < count and at - offset < count * 16:
            (entry,) = queue.slice(at, at + 1)
            length = self._core.entries.length_of(entry)
            if records and size + length > bytes_max:
                break
            at += 1
            is_gap = queue.has_gaps and at < high and queue.slice(at, at + 1)[0] == entry
            if is_gap or not self._has_tag(entry, tags):
                continue
            record = self._record(entry)
            if record and (matches is None or matches(record)):
                records.append(record)
                size += length
        status = ReadStatus.FOUND if records else ReadStatus.NO_MATCH
        return ReadResult(status, records, at, low, high)

    def does_match(self, matches: Callable[[bytes], bool], entry: int) -> bool:
        """Whether the entry's message passes a filter; one that is rot does not."""
        record = self._record(entry)
        return bool(record) and matches(record)

    def _has_tag(self, entry: int, tags: frozenset[int]) -> bool:
        if not tags:
            return True
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
        return queue.slice(offset, offset + 1)[0]

    def offset_by_time(self, topic: str, queue_id: int, wall_ms: int) -> int:
        """By bisection over the store times in the records."""
        queue = self._core.queues.find_message_queue(topic, queue_id)
        low, high = self.offset_range(queue)
        if queue is None:
            return 0
        while low < high:
            middle = (low + high) // 2
            record = self._record(queue.slice(middle, middle + 1)[0])
            if record and store_ms(record) >= wall_ms:
                high = middle
            else:
                low = middle + 1
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
