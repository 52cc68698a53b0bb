"""
What all parts of the engine share: log, index, counters, and what woke up since last asked.
"""

import logging
from collections.abc import Callable, Iterable
from functools import partial
from itertools import repeat
from typing import TypeVar

from protocols.checksum import crc_of_size
from protocols.clock import Now
from protocols.errors import Code, Refused
from store.answers import Counters, EngineConfig, Pending
from store.disk import Disk
from store.index.cold import ColdIndex
from store.index.entries import Columns, Entries
from store.index.lagging import Lagging, PlaceColumns, Places
from store.index.queues import Queue, QueueTable
from store.index.remnants import Remnant
from store.index.sealing import Sealer
from store.log.ahead import ReadAhead
from store.log.cache import RecentBlocks
from store.log.format import EntryFlag, Kind, seed
from store.log.log import Log
from store.log.messages import tag_hash_of
from store.log.segments import Segment
from store.log.state import pack

_log = logging.getLogger("store.engine")

T = TypeVar("T")


class Core:
    """Shared state; the parts call each other through the engine only."""

    def __init__(self, disk: Disk, config: EngineConfig) -> None:
        self.disk = disk
        self.config = config
        self.counters = Counters()
        self.cache = RecentBlocks(config.cache_bytes_max)
        self.log = Log(disk, config, self.cache)
        self.cold = ColdIndex(disk, self.log.segments, config.index_cache_bytes_max)
        self.entries = Entries(self.cold)
        self.queues = QueueTable(self.cold)
        self.sealer = Sealer(self)
        self.lagging = Lagging(self)
        self.woken_groups: set[int] = set()
        self.woken_queues: set[Queue] = set()
        self.newest_ms: dict[int, int] = {}
        """Segment number → wall time of its newest block."""

        self.touched: dict[int, dict[Queue, None]] = {}
        """Segment number → queues with entries in it, until its index is in a file."""

        self.placed: dict[int, PlaceColumns] = {}
        """Segment number → entries of further queues, which are not looked at for that file."""

        self.on_message_queue: Callable[[Queue], None] = lambda queue: None
        """Groups that read the topic take the new queue into their read set."""

        self.credit_of: Callable[[int], int] = lambda group: 0
        """Messages that the consumers of a group would take at once."""

        self.ahead = ReadAhead(disk)

    def at(self, now: Now) -> None:
        """Every mutating call passes here: refuse after a failure, note the wall time."""
        self.log.check()
        self.log.wall_ms = now.wall_ms

    def wait(self, value: T) -> Pending[T]:
        """An answer that is given when all that was appended so far is durable."""
        pending = Pending(value)
        self.log.wait(pending)
        return pending

    # ── visibility ──────────────────────────────────────────────────────────────────────

    def appended(self, touched: Iterable[Queue], places: Places | None = None) -> None:
        """
        A block with entries was built: volatile groups see it now, others when durable.

        *places*: what the index file needs to know; without it the *touched* queues are asked.
        """
        queues = tuple(touched)
        number = self.log.segments.last.number
        self.newest_ms[number] = self.log.wall_ms
        asked: Iterable[Queue] = queues
        if places is not None:
            asked = places.others
            if (columns := self.placed.get(number)) is None:
                columns = self.placed[number] = PlaceColumns()
            columns.add(places)
        self.touched.setdefault(number, {}).update(zip(asked, repeat(None)))
        read_by = [queue.readers for queue in queues if queue.readers]
        for readers in read_by:
            for group, read in readers:
                if group.spec.is_volatile:
                    group.ready[read] = None
                    self.woken_groups.add(group.number)
        self.log.when_durable(partial(self._show, self.log.end, queues))

    def _show(self, end: int, queues: tuple[Queue, ...]) -> None:
        self.entries.visible = end
        self.woken_queues.update(queues)
        read_by = [queue.readers for queue in queues if queue.readers]
        for readers in read_by:
            for group, read in readers:
                if not group.spec.is_volatile:  # those saw it when it was built
                    group.ready[read] = None
                    self.woken_groups.add(group.number)

    # ── queues ──────────────────────────────────────────────────────────────────────────

    def message_queue(self, topic: str, queue_id: int) -> Queue:
        """The queue, bound to a number when it is new."""
        queue = self.queues.find_message_queue(topic, queue_id)
        if queue is None:
            number = self.queues.next_number
            self.log.state(Kind.QUEUE, pack(number, b"", "", {}, topic, queue_id))
            queue = self.queues.add_message_queue(number, topic, queue_id)
            self.on_message_queue(queue)
        return queue

    def light_queue(self, key: bytes, name: str, policy: dict[str, int | str]) -> Queue:
        """The queue, bound to a number when it is new or its policy is."""
        queue = self.queues.find(key)
        if queue is None:
            return self.new_light_queue(key, name, policy)
        if queue.policy != policy or (name and queue.name != name):
            self.log.state(Kind.QUEUE, pack(queue.number, key, name, policy, "", -1))
            queue = self.queues.add_light(queue.number, key, name, policy)
        return queue

    def new_light_queue(self, key: bytes, name: str, policy: dict[str, int | str]) -> Queue:
        """One that was looked for and is not there."""
        number = self.queues.next_number
        self.log.state(Kind.QUEUE, pack(number, key, name, policy, "", -1))
        return self.queues.new_light(number, key, name, policy)

    # ── bytes ───────────────────────────────────────────────────────────────────────────

    def record_at(self, position: int) -> bytes:
        """The stored record of an entry, verified when it comes from disk. Raises Refused."""
        found = self.cache.find(position)
        if found is not None:
            buffer, at = found
            size = int.from_bytes(buffer[at : at + 4], "big")
            return bytes(buffer[at : at + size])
        columns, index = self.entries.locate(position)
        if index < 0:
            raise _no_record(position)
        return self.stored_record(position, columns, index)

    def stored_record(self, position: int, columns: Columns, index: int) -> bytes:
        """``record_at`` of an entry that is not in the cache and was found in *columns*."""
        size, crc = columns.lengths[index], columns.crcs[index]
        if isinstance(columns, Remnant):  # the entry keeps its name, its bytes are elsewhere
            position = columns.wheres[index]
        segment = self.log.segments.find(position)
        if segment is None:
            raise _no_record(position)
        crc_of, start = crc_of_size(size), seed(segment.nonce, position)
        record = self._read(segment, position, size)
        if crc_of(record, start) != crc:
            self.ahead.forget()  # the chunk may have come short: once more, alone
            record = self._read_alone(segment.name, segment.file_offset(position), size)
        if crc_of(record, start) != crc:
            self.counters.rotten_reads += 1
            raise _no_record(position)
        return record

    def message_at(self, position: int) -> bytes:
        """
        ``record_at`` of a position that a peer has named: a message starts there, and is durable.

        A body may hold what looks like a record. Raises Refused.
        """
        entries = self.entries
        is_one = position < entries.visible and entries.has(position)
        if not is_one or position in entries.targets:
            raise _no_record(position)
        return self.record_at(position)

    def chunk_with(
        self, segment: Segment, position: int, size: int, *, may_wait: bool
    ) -> tuple[int, bytes | memoryview]:
        """
        (log position, bytes) of a stretch with the record; empty: it cannot be read.

        Raises Coming if it *may wait* and is not in memory yet.
        """
        end = min(segment.end, self.log.confirmed)
        try:
            return self.ahead.chunk(segment, position, size, end, may_wait=may_wait)
        except OSError:
            return position, b""  # ``record_at`` says so

    def _read(self, segment: Segment, position: int, size: int) -> bytes:
        try:
            end = min(segment.end, self.log.confirmed)
            return self.ahead.read(segment, position, size, end)
        except OSError as error:
            offset = segment.file_offset(position)
            _log.error("%s cannot be read at %d: %s", segment.name, offset, error)
            return self._read_alone(segment.name, offset, size)

    def _read_alone(self, name: str, offset: int, size: int) -> bytes:
        """The bad sector may be behind the record; b"": it is not."""
        try:
            return self.disk.read(name, offset, size)
        except OSError:
            return b""

    def tag_of(self, entry: int) -> int:
        """Tag hash of an entry stored without it, read from its properties once."""
        columns, index = self.entries.locate(entry)
        try:
            tag = tag_hash_of(self.record_at(self.entries.targets.get(entry, entry)))
        except Refused:
            return 0
        if index >= 0:
            columns.tags[index] = tag
            columns.flags[index] |= EntryFlag.HAS_TAG
        return tag


def _no_record(position: int) -> Refused:
    return Refused(Code.MESSAGE_NOT_FOUND, str(position), "no readable message at that position")
