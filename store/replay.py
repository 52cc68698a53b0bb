"""
Rebuilding everything from the log: index always, state from the snapshot's position on.

Replay calls the same methods as live requests do, and needs no clock: what time decided is in
the records (store page, rule 5).
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final

from protocols.checksum import crc32, crc_of_size
from store.answers import TopicConfig
from store.deletion import end_queue
from store.groups.deliveries import Deliveries
from store.index.queues import Queue
from store.log.format import (
    BLOCK,
    ENTRY,
    KIND_AT,
    M32,
    PAIR,
    Entry,
    EntryFlag,
    Kind,
    decode_entries,
    entry_struct,
)
from store.log.recovery import ScannedBlock
from store.log.state import decode_ack, decode_grant, decode_marks, decode_return, unpack
from store.metadata.compacted import value_of
from store.noting import retained_change
from store.parts import Parts
from store.replay_bulk import feed_rows, rows_of
from store.timers.held import decode_checked, decode_positions

_MESSAGE: Final = int(Kind.MESSAGE)
_INDEXED: Final = (_MESSAGE, int(Kind.INDEX))
_SPECIAL: Final = int(
    EntryFlag.HAS_EXPIRES
    | EntryFlag.HAS_ONCE
    | EntryFlag.HAS_TARGET
    | EntryFlag.SETS_RETAINED
    | EntryFlag.HELD
    | EntryFlag.COMPACTED
)

Handler = Callable[[memoryview, ScannedBlock], None]


class Replay:
    """Feeds blocks, oldest first, into the parts."""

    def __init__(
        self, parts: Parts, deliveries: Deliveries, start: int, state: dict[str, Any] | None
    ) -> None:
        self._parts = parts
        self._core = parts.core
        self._deliveries = deliveries
        self._start = start
        """Log position from which state records count."""

        self._state = state
        self._nexts: list[tuple[Queue, int]] = []
        self.epoch = 0
        self.sequence = 0
        self.record_count = 0
        self.rotten_count = 0
        self._handlers = self._table()
        if state is not None:
            self._load_queues(state)

    # ── snapshot ────────────────────────────────────────────────────────────────────────

    def _load_queues(self, state: dict[str, Any]) -> None:
        """Before the scan: entries need their queues."""
        queues = self._core.queues
        for number, key, name, policy, topic, queue_id, following, first, sealed in state["queues"]:
            if topic:
                queue = queues.add_message_queue(number, topic, queue_id)
            else:
                queue = queues.add_light(number, key, name, policy)
            queue.first, queue.sealed = first, sealed
            self._nexts.append((queue, following))
        queues.next_number = state["next_queue"]
        queues.idle.load(state["idle"])
        self.epoch, self.sequence = state["epoch"], state["sequence"]

    @property
    def is_loaded(self) -> bool:
        """The snapshot's state is in: from here on every queue is as it was."""
        return self._state is None

    def load_state(self) -> None:
        """At the snapshot's position: everything else. Idempotent."""
        state, self._state = self._state, None
        if state is None:
            return
        for queue, following in self._nexts:
            queue.settle_next(following)
        parts = self._parts
        parts.topics.load(state["topics"])
        parts.settings.load(state["settings"])
        parts.offsets.load(state["offsets"])
        parts.directory.load(state["directory"])
        parts.frames.load(state["frames"])
        parts.once.load(state["once"])
        parts.retained.load(state["retained"])
        parts.compacted.load(state.get("compacted", ()))
        parts.groups.load(state["groups"])
        if "held" in state:
            parts.held.load(state["held"])

    # ── blocks ──────────────────────────────────────────────────────────────────────────

    def feed(self, block: ScannedBlock) -> None:
        header = block.header
        is_new = block.position >= self._start
        if is_new:
            self.load_state()
        self.epoch = max(self.epoch, header.epoch)
        self.sequence = max(self.sequence, header.sequence)
        self._core.newest_ms[block.segment.number] = header.store_ms
        self._feed_records(block, is_new=is_new)
        if is_new:
            self._parts.frames.apply_block(header, block.position)
        self.record_count += header.record_count

    def _feed_records(self, block: ScannedBlock, *, is_new: bool) -> None:
        """State records that waited for the block, then, in most blocks, messages of one shape."""
        header, data = block.header, block.data
        at, position, count = BLOCK.size, block.records_at, header.record_count
        while count and data[at + KIND_AT] != _MESSAGE:
            (entry,) = decode_entries(data, at, 1)
            self._feed_one(block, entry, position, is_new=is_new)
            at, count = at + int.from_bytes(data[at : at + 2], "big"), count - 1
            position += entry.length
        if not count:
            return
        rows = rows_of(block, at, count, _SPECIAL)
        if rows is not None:
            is_done = feed_rows(self._core, block, rows, position, is_new=is_new)
        else:
            is_done = self._feed_alike(block, at, count, position, is_new=is_new)
        if not is_done:
            for entry in decode_entries(data, at, count):
                self._feed_one(block, entry, position, is_new=is_new)
                position += entry.length

    def _feed_alike(
        self, block: ScannedBlock, at: int, count: int, position: int, *, is_new: bool
    ) -> bool:
        """All at once, if all are plain messages with as many light queues; False: they are not."""
        data, table_bytes = block.data, block.table_end - at
        pair_count = (table_bytes // count - ENTRY.size) // PAIR.size
        row = entry_struct(pair_count)
        if table_bytes != row.size * count:
            return False
        columns = list(zip(*row.iter_unpack(data[at : block.table_end]), strict=True))
        sizes, kinds, _, flags, pairs, lengths, crcs, tags, orders, *places = columns
        if {*sizes} != {row.size} or {*kinds} != {_MESSAGE} or {*pairs} != {pair_count}:
            return False
        if any([bits & _SPECIAL for bits in {*flags}]):
            return False
        ends = list(accumulate(lengths, initial=position))
        if is_new and not self._verifies(block, ends, crcs):
            return False
        entries = self._core.entries
        ends.pop()
        entries.positions.extend(ends)
        entries.lengths.extend(lengths)
        entries.crcs.extend(crcs)
        entries.tags.extend(tags)
        entries.orders.extend(orders)
        entries.flags.extend(flags)
        self._place(block.segment.number, places, ends)
        return True

    def _verifies(self, block: ScannedBlock, ends: list[int], crcs: tuple[int, ...]) -> bool:
        nonce, data, base = block.segment.nonce & M32, block.data, block.position
        crc_of = crc_of_size((ends[-1] - ends[0]) // len(crcs))
        found = [
            crc_of(data[start - base : end - base], (nonce + start) & M32)
            for start, end in pairwise(ends)
        ]
        return tuple(found) == crcs

    def _place(self, segment: int, places: Sequence[tuple[int, ...]], positions: list[int]) -> None:
        """
        Enter the positions in their queues.

        *places*: numbers and offsets of the messages' first queues, of their second ones, …; the
        same queue may be the first of one message and the second of another.
        """
        queues, touched = self._core.queues, self._core.touched.setdefault(segment, {})
        found: dict[int, list[tuple[int, int]]] = {}
        for numbers, offsets in zip(places[::2], places[1::2], strict=True):
            if len({*numbers}) == 1:
                found.setdefault(numbers[0], []).extend(zip(offsets, positions, strict=True))
                continue
            for number, offset, position in zip(numbers, offsets, positions, strict=True):
                found.setdefault(number, []).append((offset, position))
        for number, rows in found.items():
            queue = queues.get(number)
            if queue is not None:
                rows.sort()  # in order already, mostly
                queue.put_all(*zip(*rows, strict=True))
                touched[queue] = None

    def _feed_one(self, block: ScannedBlock, entry: Entry, at: int, *, is_new: bool) -> None:
        """State records, and messages with more to them than a place in queues."""
        start = at - block.position
        record = block.data[start : start + entry.length]
        if is_new and crc32(record, (block.segment.nonce + at) & M32) != entry.crc:
            self.rotten_count += 1
        elif entry.kind in _INDEXED:
            self._index(at, entry, record if is_new else None, block)
        elif is_new:
            self._handlers[entry.kind](record, block)

    def _index(self, at: int, entry: Entry, record: memoryview | None, block: ScannedBlock) -> None:
        entries, queues = self._core.entries, self._core.queues
        touched = self._core.touched.setdefault(block.segment.number, {})
        entries.add(at, entry.length, entry.crc, entry.tag_hash, entry.order_hash, entry.flags)
        numbers = (entry.queue, *entry.pairs[::2]) if entry.queue else entry.pairs[::2]
        offsets = (entry.offset, *entry.pairs[1::2]) if entry.queue else entry.pairs[1::2]
        for number, offset in zip(numbers, offsets, strict=True):
            queue = queues.get(number)
            if queue is not None:
                queue.put(offset, at)
                touched[queue] = None
        if entry.target >= 0:
            entries.targets[at] = entry.target
        if entry.expires_at_ms:
            entries.expires[at] = entry.expires_at_ms
        if record is None:
            return
        if not entry.flags & _SPECIAL:
            return
        if entry.once_key:
            offset = entry.offset if entry.queue else -1
            self._parts.once.add(entry.once_key, at, offset, block.header.store_ms)
        if entry.flags & EntryFlag.SETS_RETAINED:
            self._parts.retained.apply(retained_change(record, at, entry.flags))
        if entry.flags & EntryFlag.HELD:
            self._parts.held.replay(at, record)
        if entry.flags & EntryFlag.COMPACTED:
            value = value_of(record, entry.queue, entry.offset)
            self._parts.compacted.note(value, block.header.store_ms)

    # ── state records ───────────────────────────────────────────────────────────────────

    def _table(self) -> dict[int, Handler]:
        """What each kind does; kinds that later versions write do nothing."""
        table: dict[int, Handler] = dict.fromkeys(Kind, lambda record, block: None)
        table |= {
            Kind.QUEUE: self._queue,
            Kind.QUEUE_END: self._queue_end,
            Kind.TOPIC: lambda r, b: self._parts.topics.apply_put(TopicConfig._make(unpack(r))),
            Kind.TOPIC_END: self._topic_end,
            Kind.SETTING: lambda r, b: self._parts.settings.apply_put(*unpack(r)),
            Kind.OFFSETS: lambda r, b: self._parts.offsets.apply_commit(
                [(group, topic, queue, at) for group, topic, queue, at in unpack(r)]
            ),
            Kind.GATEWAY: self._gateway,
            Kind.FRAME_RESULT: lambda r, b: self._parts.frames.apply_facts(b.header, r),
            Kind.SETTLED: lambda r, b: self._parts.frames.apply_settled(*unpack(r)),
            Kind.FENCE: lambda r, b: self._parts.frames.apply_fence(*unpack(r)),
            Kind.GROUP: self._group,
            Kind.GROUP_END: self._group_end,
            Kind.GRANT: lambda r, b: self._deliveries.books.apply_grant(
                decode_grant(r), b.header.epoch
            ),
            Kind.ACK: self._ack,
            Kind.DEAD_LETTER: self._ack,
            Kind.RETURN: self._return,
            Kind.MARK: self._mark,
            Kind.PURGE: self._purge,
            Kind.DROP: lambda r, b: self._deliveries.books.apply_drop_ready(*unpack(r)),
            Kind.SEEK: lambda r, b: self._deliveries.books.apply_seek(*unpack(r)),
            Kind.DIRECTORY: lambda r, b: self._parts.directory.apply(_rows(unpack(r))),
            Kind.LEASE_END: self._lease_end,
            Kind.ONCE_RELEASE: lambda r, b: self._parts.once.release(unpack(r)),
            Kind.EPOCH: lambda r, b: self._deliveries.new_epoch(),
            Kind.TIMER_FIRED: self._held_end,
            Kind.TRANSACTION_END: self._held_end,
            Kind.HALF_CHECKED: lambda r, b: self._parts.held.apply_checked(*decode_checked(r)),
        }
        return table

    def _queue(self, record: memoryview, block: ScannedBlock) -> None:
        number, key, name, policy, topic, queue_id = unpack(record)
        if not topic:
            self._core.queues.add_light(number, key, name, policy)
            return
        is_new = self._core.queues.find_message_queue(topic, queue_id) is None
        queue = self._core.queues.add_message_queue(number, topic, queue_id)
        if is_new:
            self._core.log.end = block.position  # where its readers' ranges begin
            self._parts.groups.queue_added(queue)

    def _topic_end(self, record: memoryview, block: ScannedBlock) -> None:
        (name,) = unpack(record)
        self._parts.topics.apply_delete(name)
        self._parts.offsets.forget_topic(name)

    def _queue_end(self, record: memoryview, block: ScannedBlock) -> None:
        for number in unpack(record):
            queue = self._core.queues.get(number)
            if queue is not None:
                end_queue(self._parts, queue)

    def _gateway(self, record: memoryview, block: ScannedBlock) -> None:
        self._parts.frames.apply_gateway(*unpack(record))

    def _group(self, record: memoryview, block: ScannedBlock) -> None:
        self._parts.groups.apply_open(*unpack(record))

    def _group_end(self, record: memoryview, block: ScannedBlock) -> None:
        (number,) = unpack(record)
        group = self._parts.groups.get(number)
        if group is not None:
            self._parts.groups.apply_drop(group)

    def _grant(self, record: memoryview, block: ScannedBlock) -> None:
        self._deliveries.books.apply_grant(decode_grant(record), block.header.epoch)

    def _ack(self, record: memoryview, block: ScannedBlock) -> None:
        for number, positions in decode_ack(record):
            self._deliveries.books.apply_ack(number, positions)

    def _return(self, record: memoryview, block: ScannedBlock) -> None:
        number, counts, positions = decode_return(record)
        self._deliveries.books.apply_return(number, positions, counts=counts)

    def _mark(self, record: memoryview, block: ScannedBlock) -> None:
        for mark in decode_marks(record):
            self._deliveries.books.apply_mark(*mark)

    def _purge(self, record: memoryview, block: ScannedBlock) -> None:
        number, scans, positions = unpack(record)
        self._deliveries.books.apply_purge(number, scans, positions)

    def _held_end(self, record: memoryview, block: ScannedBlock) -> None:
        self._parts.held.apply_end(decode_positions(record))

    def _lease_end(self, record: memoryview, block: ScannedBlock) -> None:
        gateway, epoch, _, rows = unpack(record)
        self._parts.leases.apply_end(gateway, epoch, _rows(rows))


def _rows(rows: list[Any]) -> list[tuple[str, bytes | None, int, str, int]]:
    return [(key, value, version, gateway, epoch) for key, value, version, gateway, epoch in rows]
