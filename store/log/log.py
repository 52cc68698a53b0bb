"""
The log: takes records, gives positions, knows what is durable.

Two ways in. ``seal_messages`` makes the block of one frame at once (its records' positions are
then final). ``state`` buffers small state records (grants, acks, configuration), which become one
block when the writer asks, or before the next frame's block, so that the order in the log is the
order of the calls.
"""

from collections import deque
from collections.abc import Callable, Sequence
from os import urandom
from typing import Any, Final

from protocols.checksum import crc32
from store.answers import EngineConfig, Pending, StoreFailed
from store.disk import Buffer, Disk
from store.log.cache import RecentBlocks
from store.log.format import (
    BLOCK,
    BLOCK_MAGIC,
    ENTRY,
    M32,
    SEGMENT_HEADER_BYTES,
    BlockHeader,
    SegmentHeader,
    encode_block_head,
    seed,
    state_entry,
)
from store.log.segments import Segment, Segments, WriteBatch, WritePart
from store.log.spares import PrepareSegment, Spares, Upkeep

STATE_BLOCK_BYTES_MAX: Final = 1 << 20
"""A buffered state block is sealed when it has grown to this."""

BATCH_BYTES_MAX: Final = (2 << 20) - 4096
"""Blocks behind so many bytes are of the next batch: what one write without a copy holds."""

WARM_SEGMENTS: Final = 2
"""Sealed segments whose pages stay in memory for readers that lag a little."""

StateRecord = tuple[int, bytes]
"""(kind, payload)"""


class Log:
    """Blocks in order, from append to durable."""

    def __init__(self, disk: Disk, config: EngineConfig, cache: RecentBlocks) -> None:
        self.disk = disk
        self.config = config
        self.cache = cache
        self.segments = Segments()
        self.log_id = b""
        self.epoch = 0
        self.sequence = 0
        self.end = 0
        self.confirmed = 0
        self.wall_ms = 0
        """Of the latest call; the store time of blocks sealed now."""

        self.failure: StoreFailed | None = None
        self.last_block_is_idle = False
        self.block_count = 0
        self.spares = Spares(config.segment_bytes, is_zero_filled=config.is_zero_filled)
        self._blocks: list[tuple[Segment, int, list[Buffer]]] = []
        self._to_begin: set[int] = set()
        self._state: list[StateRecord] = []
        self._state_bytes = 0
        self._state_waiters: list[Pending[Any]] = []
        self._state_effects: list[Callable[[], None]] = []
        self._waiters: deque[Pending[Any]] = deque()
        self._effects: deque[tuple[int, Callable[[], None]]] = deque()

    # ── in ──────────────────────────────────────────────────────────────────────────────

    def check(self) -> None:
        """Raise if the disk has failed: nothing may be promised any more."""
        if self.failure is not None:
            raise self.failure

    def state(self, kind: int, payload: bytes) -> None:
        """Buffer a state record."""
        if self._state_bytes > STATE_BLOCK_BYTES_MAX:
            self.seal_state()
        self._state.append((kind, payload))
        self._state_bytes += ENTRY.size + len(payload)

    def wait(self, pending: Pending[Any]) -> None:
        """Complete *pending* when all that has been handed in so far is durable."""
        if self._state:
            self._state_waiters.append(pending)
        elif self.end <= self.confirmed:
            pending.is_done = True
        else:
            pending.position = self.end
            self._waiters.append(pending)

    def when_durable(self, effect: Callable[[], None]) -> None:
        """Run *effect* when all that has been handed in so far is durable, before answers go."""
        if self._state:
            self._state_effects.append(effect)
        elif self.end <= self.confirmed:
            effect()
        else:
            self._effects.append((self.end, effect))

    def seal_state(self) -> None:
        """Turn the buffered state records into a block."""
        if self._state:
            records, self._state, self._state_bytes = self._state, [], 0
            self._seal_plain(records)

    def seal_empty(self) -> None:
        """A block without records: tells recovery how far the log was durable."""
        self.seal_state()
        self._seal_plain([])
        self.last_block_is_idle = True

    @property
    def has_state(self) -> bool:
        """Records wait for a block."""
        return bool(self._state)

    def take_state(self) -> list[StateRecord]:
        """The buffered records, to go before a frame's records in its own block."""
        records, self._state, self._state_bytes = self._state, [], 0
        return records

    def _release_state_waiters(self) -> None:
        for pending in self._state_waiters:
            pending.position = self.end
            self._waiters.append(pending)
        for effect in self._state_effects:
            self._effects.append((self.end, effect))
        self._state_waiters.clear()
        self._state_effects.clear()

    def _seal_plain(self, records: Sequence[StateRecord]) -> None:
        size = BLOCK.size + sum([ENTRY.size + len(payload) for _, payload in records])
        position, nonce = self.open_block(size)
        at = position + BLOCK.size + ENTRY.size * len(records)
        table: list[bytes] = []
        for kind, payload in records:
            table.append(state_entry(kind, len(payload), crc32(payload, seed(nonce, at)) & M32))
            at += len(payload)
        body = b"".join([payload for _, payload in records])
        self.close_block(position, b"".join(table), body, len(records), len(records))

    def open_block(self, size: int) -> tuple[int, int]:
        """(position, nonce) for a block of *size* bytes: rolls over to a new segment if needed."""
        assert self.failure is None, "append after a failed write"
        segment = self.segments.last if self.segments.items else None
        if segment is None or not segment.has_room(size):
            segment = self._roll(size)
        return self.end, segment.nonce

    def close_block(
        self,
        position: int,
        table: bytes,
        records: Buffer,
        record_count: int,
        state_count: int,
        *,
        gateway: int = 0,
        gateway_epoch: int = 0,
        frame: int = 0,
        item_count: int = 0,
        refused_count: int = 0,
    ) -> None:
        """Give the block its header and queue it for the writer."""
        segment = self.segments.last
        self.sequence += 1
        header = BlockHeader(
            BLOCK_MAGIC,
            0,
            self.sequence,
            self.confirmed,
            self.wall_ms,
            self.epoch,
            gateway,
            gateway_epoch,
            frame,
            record_count,
            item_count,
            refused_count,
            len(table),
            len(records),
            0,
        )
        head, _ = encode_block_head(segment.nonce, position, header, table)
        self._blocks.append((segment, position, [head, table, records]))
        start = position + BLOCK.size + len(table)
        self.end = segment.end = start + len(records)
        self.block_count += 1
        self.last_block_is_idle = False
        if record_count > state_count:
            self.cache.add(start, records)
        if self._state_waiters or self._state_effects:
            self._release_state_waiters()

    def _roll(self, size: int) -> Segment:
        capacity = self.config.segment_bytes - SEGMENT_HEADER_BYTES
        number = self.segments.last.number + 1 if self.segments.items else 1
        nonce = int.from_bytes(urandom(8), "big")
        header = SegmentHeader(self.log_id, number, self.end, nonce, self.confirmed)
        segment = Segment(header, max(capacity, size))
        segment.spare_name = self.spares.take(self.wall_ms)
        self.segments.add(segment)
        if len(self.segments.items) > WARM_SEGMENTS:
            self.spares.cool(self.segments.items[-1 - WARM_SEGMENTS].name)
        self._to_begin.add(number)
        return segment

    # ── out ─────────────────────────────────────────────────────────────────────────────

    @property
    def has_writes(self) -> bool:
        return bool(self._blocks or self._state) and self.failure is None

    @property
    def pending_bytes(self) -> int:
        return self.end - self.confirmed + self._state_bytes

    def take_writes(self) -> WriteBatch | None:
        if not self.has_writes:
            return None
        self.seal_state()
        batch = WriteBatch(self.config.segment_bytes)
        part: WritePart | None = None
        for segment, position, buffers in self._blocks:
            size = sum([len(buffer) for buffer in buffers])
            if part is not None and batch.byte_count + size > BATCH_BYTES_MAX:
                break
            if part is None or part.segment is not segment:
                begins = segment.number in self._to_begin
                self._to_begin.discard(segment.number)
                part = WritePart(segment, segment.file_offset(position), begins=begins)
                batch.parts.append(part)
            part.buffers += buffers
            batch.block_count += 1
            batch.byte_count += size
            batch.position = position + size
        del self._blocks[: batch.block_count]
        return batch

    def confirm(self, position: int) -> list[Pending[Any]]:
        """All below *position* is durable: run effects, then hand out the answers, in order."""
        self.check()
        self.confirmed = max(self.confirmed, position)
        effects = self._effects
        while effects and effects[0][0] <= position:
            effects.popleft()[1]()
        done: list[Pending[Any]] = []
        waiters = self._waiters
        while waiters and waiters[0].position <= position:
            done.append(waiters.popleft())
        self.cache.trim(self.confirmed)
        for pending in done:
            pending.is_done = True
            if pending.notify is not None:
                pending.notify(pending)
        return done

    def fail(self, error: Exception) -> list[Pending[Any]]:
        """Nothing un-synced is ever acknowledged; a second sync may lie (store page, rule 2)."""
        if self.failure is None:
            self.failure = StoreFailed(f"write or sync failed: {error}")
        done = [*self._waiters, *self._state_waiters]
        self._waiters.clear()
        self._state_waiters.clear()
        self._effects.clear()
        self._state_effects.clear()
        self._blocks.clear()
        self._state.clear()
        for pending in done:
            pending.error = self.failure
            if pending.notify is not None:
                pending.notify(pending)
        return done

    # ── background work ─────────────────────────────────────────────────────────────────

    def segment_wanted(self) -> PrepareSegment | None:
        if self.failure is not None:
            return None
        segments = self.segments
        used = (self.end - segments.last.base) / segments.last.capacity if segments.items else 0.0
        return self.spares.wanted(used)

    def drop(self, segment: Segment, *, may_file_stay: bool) -> None:
        """It goes; its file lives on, or not."""
        self.segments.drop(segment)
        self.spares.retire(segment.name, segment.file_bytes, may_stay=may_file_stay)

    def upkeep_due(self) -> Upkeep | None:
        return self.spares.upkeep_due() if self.failure is None else None
