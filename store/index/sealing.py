"""
From memory to an index file: what a sealed segment holds is gathered, written, and let go.

The newest sealed segments stay in memory, because that is what most readers want. Gathering and
letting go run on the loop, some queues at a time; the file is written in the background.
"""

import logging
from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Final

from store.disk import Disk
from store.index.cold import ColdIndex
from store.index.entries import NO_LIMIT
from store.index.pages import Draft
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
        self._released = -1
        """Rows that were looked at; -1: it has not begun."""

        self._place = 0
        """Entries of these rows."""

        self._is_done = False

    @property
    def is_releasing(self) -> bool:
        """Some queues may have let go, others not."""
        return self._released >= 0 and not self._is_done

    def gather(self) -> bool:
        """Copy what belongs to the segment; True when all is. Call until then, on the loop."""
        end = self.segment.end
        part = list(islice(self._queues, QUEUES_PER_STEP))
        directory, places = self.draft.directory, self.draft.places
        add_queue, add_first = directory.queues.append, directory.firsts.append
        add_count, add_previous = directory.counts.append, directory.previous.append
        for queue in part:
            held = queue.entries
            if not held or queue.is_volatile:
                continue
            count = len(held) if held[-1] < end else bisect_left(held, end)
            if not count:
                continue
            if queue.has_gaps:
                kept = pairwise([*held[: count + 1], NO_LIMIT])
                rows = enumerate(islice(kept, count), queue.hot_first)
                self.draft.add_rows(
                    queue.number, [(at, one) for at, (one, two) in rows if one != two], queue.sealed
                )
                continue
            add_queue(queue.number)
            add_first(queue.hot_first)
            add_count(count)
            add_previous(queue.sealed)
            places += held if count == len(held) else held[:count]
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
        directory, places = self.draft.directory, self.draft.places
        if self._released < 0:
            header = self._cold.read_header(self.segment)
            if header is None or number not in core.log.segments:
                self._is_done = True
                _log.error("index of segment %d is gone as soon as written", number)
                return True
            self._cold.adopt(header)
            self._released = self._place = 0
        start, stop = self._released, min(self._released + QUEUES_PER_STEP, len(directory))
        at, lights = self._place, []
        rows = zip(
            range(start, stop),
            core.queues.actives(directory.queues[start:stop]),
            directory.firsts[start:stop],
            directory.counts[start:stop],
            strict=True,
        )
        for index, queue, first, count in rows:
            if queue is not None:
                held, skipped = queue.entries, first - queue.hot_first
                if 0 <= skipped < len(held) and held[skipped] == places[at]:
                    queue.seal(first, count, number, index)
                    if not queue.topic:
                        lights.append(queue)
            at += count
        core.queues.rest(lights)
        self._released, self._place = stop, at
        if stop < len(directory):
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
