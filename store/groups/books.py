"""
What becomes of groups by a record: the same methods, live and on replay.

Beside them what is decided without time: a purge, a seek, a queue that ends.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from store.core import Core
from store.groups.group import GrantBatch, Group
from store.groups.guard import end_of
from store.groups.table import GroupTable
from store.index.queues import Queue
from store.log.format import Kind
from store.log.state import GRANT_COUNTS_ATTEMPT, GRANT_TO_STREAM, Grant, pack

MARKED_SENT: Final = 1
"""Stage of a delivery that was not marked: its bytes went to the client."""


class Books:
    """The records' side of all groups."""

    def __init__(self, core: Core, table: GroupTable) -> None:
        self._core = core
        self._table = table

    # ── replay ──────────────────────────────────────────────────────────────────────────

    def apply_grant(self, record: Grant, epoch: int) -> None:
        group = self._table.get(record.group)
        if group is None:
            return
        for serial, at in record.scans:
            read = group.reads.get(serial)
            if read is not None:
                read.at = max(read.at, at)
        known = self._core.entries.known(record.positions)
        if record.flags & GRANT_COUNTS_ATTEMPT:
            group.count_attempts([at for at in known if group.marks.get(at, (0, MARKED_SENT))[1]])
        held = self._core.entries.known(record.held)
        group.hold(held, held)
        group.last_grant = max(group.last_grant, record.grant)
        if known:
            earlier = group.in_flight.get(known[0])
            if earlier is not None and earlier.grant == record.grant:
                epoch = earlier.epoch  # renewed: handles of it are from then
            batch = GrantBatch(record.grant, epoch, 0, known)
            batch.invisible_ms, batch.taker = record.invisible_ms, record.taker
            batch.is_stream = bool(record.flags & GRANT_TO_STREAM)
            group.granted(batch, known)

    def apply_return(self, number: int, positions: Iterable[int], *, counts: bool) -> None:
        group = self._table.get(number)
        if group is not None:
            group.give_back(positions, counts=counts)

    def apply_ack(self, number: int, positions: Iterable[int]) -> None:
        group = self._table.get(number)
        if group is not None:
            group.done(positions)

    def apply_mark(self, number: int, position: int, packet_id: int, stage: int) -> None:
        group = self._table.get(number)
        if group is not None and position in group.in_flight:
            group.marks[position] = (packet_id, stage)

    def apply_purge(
        self, number: int, scans: Iterable[tuple[int, int]], positions: Iterable[int]
    ) -> None:
        if (group := self._table.get(number)) is not None:
            group.done([position for queue in group.held.values() for position in queue])
        self.apply_drop_ready(number, scans, positions)

    def apply_drop_ready(
        self, number: int, scans: Iterable[tuple[int, int]], positions: Iterable[int]
    ) -> None:
        """Entries that left unseen, by a policy."""
        if (group := self._table.get(number)) is not None:
            for serial, at in scans:
                if (read := group.reads.get(serial)) is not None:
                    read.at = max(read.at, at)
            group.done(positions)

    def apply_seek(self, number: int, rows: Iterable[tuple[int, int]]) -> None:
        group = self._table.get(number)
        for serial, offset in rows if group is not None else ():
            assert group is not None
            read = group.reads.get(serial)
            if read is not None:
                group.done([at for at, ordinal in group.open.items() if read.covers(ordinal)])
                read.at = max(offset, read.queue.first)
                read.begin_at = min(read.begin_at, read.at)
                group.ready[read] = None

    # ── decisions ───────────────────────────────────────────────────────────────────────

    def purge(self, group: Group) -> int:
        """All ready entries are done; how many."""
        limit = self.limit_of(group)
        count = self.ready_count(group)
        scans = [(read.serial, end_of(read, limit)) for read in group.reads.values()]
        held = [position for queue in group.held.values() for position in queue]
        positions = [*group.returned, *held]
        if not group.spec.is_volatile:
            self._core.log.state(Kind.PURGE, pack(group.number, scans, positions))
        self.apply_purge(group.number, scans, positions)
        return count

    def settle_queue(self, queue: Queue) -> None:
        """Its queue ends: what was handed out of it or came back is done, in every group."""
        for group, read in queue.readers:
            others = [one for one in group.reads.values() if one is not read]
            positions = [
                position
                for position, ordinal in group.open.items()
                if read.covers(ordinal) and not any(one.covers(ordinal) for one in others)
            ]
            if not positions:
                continue
            if not group.spec.is_volatile:
                self._core.log.state(Kind.DROP, pack(group.number, [], positions))
            self.apply_drop_ready(group.number, [], positions)

    def advance(self, group: Group, queue: Queue, offset: int) -> None:
        """What lies below *offset* of its queue is done; what is beyond stays as it is."""
        for read in group.reads.values():
            if read.queue is not queue or read.stop_at >= 0:
                continue
            positions = [
                position
                for position, ordinal in group.open.items()
                if read.covers(ordinal) and queue.offset_from(ordinal) < offset
            ]
            if positions or read.at < offset:
                scans = [(read.serial, offset)]
                if not group.spec.is_volatile:
                    self._core.log.state(Kind.DROP, pack(group.number, scans, positions))
                self.apply_drop_ready(group.number, scans, positions)
                self._core.woken_groups.add(group.number)
            return

    def seek(self, group: Group, offsets: Mapping[tuple[str, int], int]) -> None:
        """Go on at these offsets of message queues (topic, queue id); what was held is void."""
        rows = [
            (read.serial, offsets[read.topic, read.queue.queue_id])
            for read in group.reads.values()
            if (read.topic, read.queue.queue_id) in offsets
        ]
        if not group.spec.is_volatile:
            self._core.log.state(Kind.SEEK, pack(group.number, rows))
        self.apply_seek(group.number, rows)
        self._core.woken_groups.add(group.number)

    # ── facts ───────────────────────────────────────────────────────────────────────────

    def places(self, group: Group, queue: Queue) -> tuple[int, int] | None:
        """(offset below which all is done, offset handed out up to); None: not read here."""
        for read in group.reads.values():
            if read.queue is queue and read.stop_at < 0:
                owed = [queue.offset_from(at) for at in group.open.values() if read.covers(at)]
                return min([read.at, *owed]), max(read.at, queue.first)
        return None

    def limit_of(self, group: Group) -> int:
        """Ordinals below may be seen by the group."""
        entries = self._core.entries
        return entries.end if group.spec.is_volatile else entries.visible

    def ready_count(self, group: Group) -> int:
        fresh = [max(0, end_of(read, self.limit_of(group)) - read.at) for read in group.ready]
        return sum(fresh) + len(group.returned) + group.held_count
