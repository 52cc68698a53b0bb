"""
From memory to an index file: what a sealed segment holds is gathered, written, and let go.

The newest sealed segments stay in memory, because that is what most readers want. Gathering and
letting go run on the loop, some queues at a time; the file is written in the background.
"""

import logging
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Final

from store.disk import Disk
from store.index.cold import ColdIndex
from store.index.entries import NO_LIMIT
from store.index.pages import Draft, Row
from store.log.segments import Segment

if TYPE_CHECKING:
    from store.core import Core
    from store.index.queues import Queue

HOT_SEGMENTS: Final = 2
"""Sealed segments whose index stays in memory."""

ACTIVE_QUEUES_MAX: Final = 50_000
"""With more queues than that in memory, no sealed segment stays: a queue takes half a KiB there."""

QUEUES_PER_STEP: Final = 1000
"""Queues handled between two looks at the network: about a millisecond."""

_log = logging.getLogger("store.index")


class SealWork:
    """One segment on its way from memory to its index file."""

    def __init__(self, core: "Core", segment: Segment) -> None:
        self._core = core
        self._cold: ColdIndex = core.cold
        self.segment = segment
        newest_ms = core.newest_ms.get(segment.number, core.log.wall_ms)
        self.draft = Draft(segment.number, segment.base, segment.end, newest_ms)
        self._queues: Iterator[Queue] = iter(list(core.touched.get(segment.number, ())))
        self._rows: Iterator[tuple[int, tuple[Row, array[int]]]] | None = None
        self._is_done = False

    @property
    def is_releasing(self) -> bool:
        """Some queues may have let go, others not."""
        return self._rows is not None and not self._is_done

    def gather(self) -> bool:
        """Copy what belongs to the segment; True when all is. Call until then, on the loop."""
        end = self.segment.end
        part = list(islice(self._queues, QUEUES_PER_STEP))
        for queue in part:
            count = bisect_left(queue.entries, end)
            if not count or queue.is_volatile:
                continue
            if queue.has_gaps:
                kept = pairwise([*queue.entries[: count + 1], NO_LIMIT])
                rows = enumerate(islice(kept, count), queue.hot_first)
                places = [(at, one) for at, (one, two) in rows if one != two]
                self.draft.add_rows(queue.number, places, queue.sealed)
                continue
            row = Row(queue.number, queue.hot_first, count, queue.sealed)
            self.draft.rows.append((row, queue.entries[:count]))
        if len(part) == QUEUES_PER_STEP:
            return False
        entries, columns = self._core.entries, self.draft.columns
        count = bisect_left(entries.positions, end)
        columns.positions = entries.positions[:count]
        columns.lengths = entries.lengths[:count]
        columns.crcs = entries.crcs[:count]
        columns.tags = entries.tags[:count]
        columns.orders = entries.orders[:count]
        columns.flags = entries.flags[:count]
        base = self.segment.base
        self.draft.targets = [pair for pair in entries.targets.items() if base <= pair[0] < end]
        self.draft.expires = [pair for pair in entries.expires.items() if base <= pair[0] < end]
        return True

    def execute(self, disk: Disk) -> None:
        """Write the file. In the background thread."""
        self._cold.write(self.draft)

    def release(self) -> bool:
        """Let go of what the file has; True when all is. Call until then, on the loop."""
        core, number = self._core, self.segment.number
        if self._is_done:
            return True
        if self._rows is None:
            header = self._cold.read_header(self.segment)
            if header is None or number not in core.log.segments:
                self._is_done = True
                _log.error("index of segment %d is gone as soon as written", number)
                return True
            self._cold.adopt(header)
            self.draft.rows.sort(key=lambda pair: pair[0][:2])
            self._rows = enumerate(self.draft.rows)
        part = list(islice(self._rows, QUEUES_PER_STEP))
        sealed: list[Queue] = []
        for index, (row, places) in part:
            queue = core.queues.get(row.queue)
            skipped = row.first - queue.hot_first if queue is not None else -1
            if queue is not None and queue.entries[skipped : skipped + 1] == places[:1]:
                queue.seal(row, number, index)
                sealed.append(queue)
        core.queues.rest(sealed)
        if len(part) == QUEUES_PER_STEP:
            return False
        core.entries.forget_before(self.segment.end)
        core.touched.pop(number, None)
        self._is_done = True
        return True


class Sealer:
    """Which segment is next."""

    def __init__(self, core: "Core") -> None:
        self._core = core
        self._work: SealWork | None = None
        self.is_eager = False
        """Retention wants segments that are still in memory."""

    def due(self) -> SealWork | None:
        """The oldest segment in memory, if newer ones are sealed too; one at a time."""
        core = self._core
        items = core.log.segments.items
        is_hurried = self.is_eager or core.queues.active_count > ACTIVE_QUEUES_MAX
        hot_count = 0 if is_hurried else HOT_SEGMENTS
        if self._work is not None or len(items) <= hot_count + 1:
            return None
        index = len([1 for segment in items if core.cold.has(segment.number)])
        if index >= len(items) - 1 - hot_count or items[index].end > core.log.confirmed:
            return None
        self._work = SealWork(core, items[index])
        return self._work

    def done(self) -> None:
        """The work is over; its segment is asked for again if its file could not be written."""
        self._work = None

    def relieve(self) -> None:
        """While the log is read at start: too many queues for memory go to files at once."""
        core = self._core
        while core.queues.active_count > ACTIVE_QUEUES_MAX and (work := self.due()) is not None:
            while not work.gather():
                pass
            work.execute(core.disk)
            while not work.release():
                pass
            self.done()
            if work.segment.number not in core.cold.sealed:
                return

    def finish(self) -> None:
        """A snapshot wants queues that are wholly before or behind."""
        work = self._work
        if work is not None and work.is_releasing:
            while not work.release():
                pass
