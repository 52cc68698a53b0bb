"""
From memory to an index file: what a sealed segment holds is gathered, written, and let go.

The newest sealed segments stay in memory, because that is what most readers want. Gathering and
letting go run on the loop, some queues at a time; the file is written in the background. Message
queues with a few entries in a segment are not looked at for each (``lagging``).
"""

import logging
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate, islice, pairwise
from typing import TYPE_CHECKING, Final

from protocols.remoting.matrix import Matrix, np
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

ACTIVE_LIGHTS_MAX: Final = 50_000
"""With more light queues than that in memory, no sealed segment stays: one takes half a KiB there,
and most could rest."""

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
        touched = list(core.touched.get(segment.number, ()))
        self._asked = [queue.number for queue in touched]
        core.lagging.catch_up(self._asked)
        self._queues: Iterator[Queue] = iter(touched)
        self._placed: tuple[Matrix, Matrix] | None = None
        """(number, count) of each queue that is in columns."""

        self._unknown: Iterator[int] | None = None
        """Rows whose queues are still to be asked for the file before; None: it has not begun."""

        self._rows: Iterator[tuple[int, int]] | None = None
        """(index of the row, where its entries begin) of those to be looked at; None: it has not
        begun."""

        self._is_done = False

    @property
    def is_releasing(self) -> bool:
        """Some queues may have let go, others not."""
        return self._rows is not None and not self._is_done

    def gather(self) -> bool:
        """Copy what belongs to the segment; True when all is. Call until then, on the loop."""
        part = list(islice(self._queues, QUEUES_PER_STEP))
        if part:
            self._gather_queues(part)
            return False
        if self._unknown is None:
            self._gather_columns()
            self._unknown = self._gather_placed()
        return self._look_back(self._unknown)

    def _gather_queues(self, part: "list[Queue]") -> None:
        """From the queues themselves."""
        end = self.segment.end
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

    def _gather_columns(self) -> None:
        """The facts of all entries."""
        base, end = self.segment.base, self.segment.end
        entries, columns = self._core.entries, self.draft.columns
        count = bisect_left(entries.positions, end)
        columns.positions = entries.positions[:count]
        columns.lengths = entries.lengths[:count]
        columns.crcs = entries.crcs[:count]
        columns.tags = entries.tags[:count]
        columns.orders = entries.orders[:count]
        columns.flags = entries.flags[:count]
        self.draft.targets = [pair for pair in entries.targets.items() if base <= pair[0] < end]
        self.draft.expires = [pair for pair in entries.expires.items() if base <= pair[0] < end]

    def _gather_placed(self) -> Iterator[int]:
        """What is in columns; rows whose queues must be asked for the file before."""
        placed = self._core.placed.get(self.segment.number)
        if placed is None:
            return iter(())
        queues, firsts, counts, positions = placed.rows(self._asked)
        previous, unknown = self._core.lagging.previous(queues)
        directory, start = self.draft.directory, len(self.draft.directory)
        directory.queues.frombytes(queues.tobytes())
        directory.firsts.frombytes(firsts.tobytes())
        directory.counts.frombytes(counts.astype(np.uint32).tobytes())
        directory.previous.frombytes(previous.tobytes())
        self.draft.places.frombytes(positions.tobytes())
        numbers, starts = np.unique(queues, return_index=True)
        self._placed = numbers, np.add.reduceat(counts, starts) if len(numbers) else counts
        return iter((unknown + start).tolist())

    def _look_back(self, unknown: Iterator[int]) -> bool:
        """Fill in the files before, some rows at a time; True when all are."""
        directory = self.draft.directory
        part = list(islice(unknown, QUEUES_PER_STEP))
        for row in part:
            queue = self._core.queues.active(directory.queues[row])
            directory.previous[row] = queue.sealed if queue is not None else 0
        return len(part) < QUEUES_PER_STEP

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
            self._rows = self._rows_to_look_at()
        directory, places = self.draft.directory, self.draft.places
        lights, part = [], list(islice(self._rows, QUEUES_PER_STEP))
        for index, at in part:
            queue = core.queues.active(directory.queues[index])
            if queue is None:
                continue
            first = directory.firsts[index]
            held, skipped = queue.entries, first - queue.hot_first
            if 0 <= skipped < len(held) and held[skipped] == places[at]:
                queue.seal(first, directory.counts[index], number, index)
                if not queue.topic:
                    lights.append(queue)
        core.queues.rest(lights)
        if len(part) == QUEUES_PER_STEP:
            return False
        core.entries.forget_before(self.segment.end)
        core.touched.pop(number, None)
        core.placed.pop(number, None)
        self._is_done = True
        return True

    def _rows_to_look_at(self) -> Iterator[tuple[int, int]]:
        """All but those of queues that may hold on to what they have."""
        counts = self.draft.directory.counts
        starts = accumulate(counts, initial=0)
        if self._placed is None:
            return zip(range(len(counts)), starts, strict=False)
        lagging, (numbers, held) = self._core.lagging, self._placed
        is_due = lagging.due(numbers, held)
        lagging.note(numbers[~is_due], held[~is_due], self.segment.number)
        lagging.forget(numbers[is_due])
        rows = np.nonzero(np.isin(self.draft.directory.queues, numbers[~is_due], invert=True))[0]
        begins = np.fromiter(starts, np.int64, len(counts))[rows]
        return zip(rows.tolist(), begins.tolist(), strict=True)


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
        is_hurried = self.is_eager or core.queues.active_light_count > ACTIVE_LIGHTS_MAX
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
        while (
            core.queues.active_light_count > ACTIVE_LIGHTS_MAX and (work := self.due()) is not None
        ):
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
