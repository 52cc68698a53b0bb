"""
How much room is left, and which old segments may go (store page, rule 6).

*Owed* is never deleted. *Kept* goes oldest first: when its time has passed, or earlier under
pressure. When only owed is left, sends are refused; the last two segments' worth is a reserve
for acks, grants, and directory writes.
"""

from collections.abc import Callable, Sequence
from typing import Final

from store.core import Core
from store.index.pages import index_name
from store.index.queues import Queue
from store.log.format import Kind
from store.log.segments import Segment
from store.log.state import pack

RESERVE_SEGMENTS: Final = 2
ENDED_PER_RECORD: Final = 10_000
"""Queues that end by one record."""

PRESSURE: Final = 0.9
"""From this part of the usable log on, kept segments go before their time."""


class Room:
    """Asks ``owed`` for the lowest position that must stay."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._free_bytes = 1 << 62
        self.owed: Callable[[], int] = lambda: 0
        self.snapshot_position = 0
        """Of the older kept snapshot: recovery starts there, so nothing above it goes."""

    @property
    def usable_bytes(self) -> int:
        config = self._core.config
        return max(0, config.log_bytes_max - RESERVE_SEGMENTS * config.segment_bytes)

    def has_room_for(self, size: int) -> bool:
        if self._free_bytes < self._core.config.disk_free_bytes_min:
            return False
        return self._core.log.segments.byte_count + size <= self.usable_bytes

    def look(self) -> None:
        """Ask the disk how much is free."""
        self._free_bytes = self._core.disk.free_bytes()

    def _is_under_pressure(self) -> bool:
        return not self.has_room_for(int(self.usable_bytes * (1 - PRESSURE)))

    def deletable(self, wall_ms: int) -> list[Segment]:
        """Whole segments that may go now, oldest first."""
        segments = list(self._core.log.segments.items)[:-1]
        limit = min(self.snapshot_position, self._core.log.confirmed)
        is_pressed = self._is_under_pressure()
        found: list[Segment] = []
        for segment in segments:
            if segment.end > limit or not (is_pressed or self._is_past(segment, wall_ms)):
                break
            found.append(segment)
        if found:
            owed = self.owed()
            found = [segment for segment in found if segment.end <= owed]
        return found

    def _is_past(self, segment: Segment, wall_ms: int) -> bool:
        """Its newest message is older than the retention time."""
        newest_ms = self._core.newest_ms.get(segment.number, wall_ms)
        return newest_ms + self._core.config.retention_s * 1000 < wall_ms

    def delete(self, segments: list[Segment]) -> None:
        """Forget them: index first, file last."""
        for segment in segments:
            if segment.number in self._core.cold.sealed:
                self._delete_sealed(segment)
            else:
                self._delete_oldest(segment)
            self._core.newest_ms.pop(segment.number, None)
            self._core.counters.deleted_bytes += segment.end - segment.base

    def _delete_sealed(self, segment: Segment) -> None:
        """One whose index is in a file; others may be older."""
        core, number = self._core, segment.number
        directory = core.cold.directory(number)
        core.cold.drop(number)
        core.log.spares.remove(index_name(number))  # before the segment: never an index of nothing
        core.log.drop(segment)
        unused: list[int] = []
        for index in range(len(directory)):
            row = directory.row(index)
            is_idle, is_empty = core.queues.idle.dropped(row.queue, row.first, row.first + row.size)
            if is_empty:
                unused.append(row.queue)
            if is_idle:
                continue
            queue = core.queues.get(row.queue)
            if queue is not None:
                queue.dropped(row)
                core.queues.note_unread(queue)
        for start in range(0, len(unused), ENDED_PER_RECORD):
            part = unused[start : start + ENDED_PER_RECORD]
            core.log.state(Kind.QUEUE_END, pack(*part))
            for number in part:
                core.queues.drop_idle(number)
        core.entries.forget_range(segment.base, segment.end)

    def end_unused(self, queues: Sequence[Queue]) -> None:
        """Queues that came into being by a first use go when nothing of them is left."""
        for start in range(0, len(queues), ENDED_PER_RECORD):
            part = queues[start : start + ENDED_PER_RECORD]
            self._core.log.state(Kind.QUEUE_END, pack(*[queue.number for queue in part]))
            for queue in part:
                self._core.queues.drop(queue)

    def _delete_oldest(self, segment: Segment) -> None:
        """One whose index is in memory: all older ones went before."""
        core = self._core
        core.entries.drop_before(segment.end)
        for queue in core.touched.pop(segment.number, {}):
            queue.drop_before(segment.end)
            core.queues.note_unread(queue)
        core.log.drop(segment)
