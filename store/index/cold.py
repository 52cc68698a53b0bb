"""
The sealed part of the index: on disk, with a bounded part of it in memory.

Queues and entries keep in memory what lies in the newest segments; everything older is asked
here. A page that turns out to be missing or rotten is rebuilt from its segment.
"""

import logging
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from store.disk import Disk
from store.index.entries import Columns
from store.index.pages import (
    HEAD_BYTES,
    Directory,
    Draft,
    IndexHeader,
    Page,
    Row,
    Runs,
    decode_directory,
    decode_header,
    decode_page,
    decode_sparse,
    index_name,
)
from store.index.remnants import Remnant, Remnants
from store.log.segments import UNFINISHED_SUFFIX, Segment, Segments

if TYPE_CHECKING:
    from store.index.queues import Queue

RUN_TABLES_MAX: Final = 4096
"""Queues whose whereabouts in sealed segments are remembered; others are walked by chain."""

_log = logging.getLogger("store.index")
_NOTHING: Final = Columns()


class ColdIndex:
    """Index files by segment number, and what of them is in memory."""

    def __init__(self, disk: Disk, segments: Segments, bytes_max: int) -> None:
        self._disk = disk
        self._segments = segments
        self._bytes_max = bytes_max
        self.log_id = b""
        self.sealed: dict[int, IndexHeader] = {}
        """Segments whose entries are here and not in memory, ascending."""

        self.newest = 0
        """Number of the newest of them."""

        self.remnants = Remnants()
        """Of segments that are given up; their numbers are not in ``sealed``."""

        self.left: set[int] = set()
        """Segments that are given up and whose files are still there."""

        self.rebuild: Callable[[Segment], Draft] = _cannot_rebuild
        """Makes the index of a segment anew, by a scan."""

        self.loaded_count = 0
        self.rebuilt_count = 0
        self._pages: dict[int, Page] = {}
        self._directories: dict[int, Directory] = {}
        self._byte_count = 0
        self.remembered: dict[int, Runs] = {}
        """Where queues are, by number."""

    # ── files ───────────────────────────────────────────────────────────────────────────

    def read_header(self, segment: Segment) -> IndexHeader | None:
        """That of a file which fits the segment; None: there is none."""
        name = index_name(segment.number)
        try:
            header = decode_header(self._disk.read(name, 0, HEAD_BYTES))
        except (OSError, KeyError):
            return None
        if header is None or header[:3] != (self.log_id, segment.number, segment.base):
            return None
        return header if header.end <= segment.end else None  # else: its tail was written anew

    def adopt(self, header: IndexHeader) -> None:
        """From now on this segment's entries are looked up here."""
        self.sealed[header.number] = header
        self._byte_count -= self._forget(header.number)
        self.newest = max(self.newest, header.number)

    def write(self, draft: Draft) -> None:
        """The file of a segment; blocks. Its content is durable before its name."""
        data = draft.encode(self.log_id)
        name = index_name(draft.number)
        unfinished = name + UNFINISHED_SUFFIX
        self._disk.create(unfinished, len(data))
        self._disk.write(unfinished, 0, [data])
        self._disk.sync(unfinished)
        self._disk.drop_cached(unfinished)
        self._disk.rename(unfinished, name)

    def _read(self, header: IndexHeader, start: int, size: int) -> bytes:
        try:
            return self._disk.read(index_name(header.number), HEAD_BYTES + start, size)
        except (OSError, KeyError):
            return b""

    def directory(self, number: int) -> Directory:
        """Which queues the segment holds."""
        remnant = self.remnants.get(number)
        if remnant is not None:
            return remnant.directory
        found = self._directories.get(number)
        if found is not None:
            return found
        page = self._pages.get(number)
        if page is not None:
            return page.directory
        header = self.sealed[number]
        found = decode_directory(header, self._read(header, 0, header.directory_bytes))
        if found is None:
            return self.restore(self._segment(number)).directory
        self._directories[number] = found
        self._grow(len(found) * 20)
        return found

    def sparse(self, number: int) -> tuple[dict[int, int], dict[int, int]]:
        """(targets, expiry times) of the segment's entries."""
        header = self.sealed[number]
        if not header.sparse_bytes:
            return {}, {}
        data = self._read(header, header.directory_bytes, header.sparse_bytes)
        found = decode_sparse(header, data)
        if found is None:
            draft = self.rebuild(self._segment(number))
            return dict(draft.targets), dict(draft.expires)
        return found

    def page(self, number: int) -> Page:
        """All of one segment's index, from memory if it is there."""
        remnant = self.remnants.get(number)
        if remnant is not None:
            return remnant
        page = self._pages.pop(number, None)
        if page is None:
            header = self.sealed[number]
            start = header.directory_bytes + header.sparse_bytes
            directory = self.directory(number)
            page = decode_page(header, directory, self._read(header, start, header.body_bytes))
            if page is None:
                return self.restore(self._segment(number))
            self.loaded_count += 1
            self._grow(page.byte_count)
        self._pages[number] = page  # the most recent one
        return page

    def _grow(self, size: int) -> None:
        """Make room: the least recently used go."""
        self._byte_count += size
        while self._byte_count > self._bytes_max and self._directories:
            self._byte_count -= len(self._directories.pop(next(iter(self._directories)))) * 20
        while self._byte_count > self._bytes_max and self._pages:
            self._byte_count -= self._pages.pop(next(iter(self._pages))).byte_count

    def _segment(self, number: int) -> Segment:
        return self._segments.numbered(number)

    def restore(self, segment: Segment) -> Page:
        """The index of *segment* is missing or rotten: made anew from the log."""
        number = segment.number
        _log.error("the index of segment %d does not verify: made anew", number)
        self.rebuilt_count += 1
        draft = self.rebuild(segment)
        data = draft.encode(self.log_id)
        header = decode_header(data[:HEAD_BYTES])
        assert header is not None
        start = HEAD_BYTES + header.directory_bytes
        directory = decode_directory(header, data[HEAD_BYTES:start])
        assert directory is not None
        page = decode_page(header, directory, data[start + header.sparse_bytes :])
        assert page is not None
        try:
            self.write(draft)
        except OSError as error:  # it is tried again when it is needed again
            _log.error("the index of segment %d cannot be written: %s", number, error)
        self.adopt(header)
        self._pages[number] = page
        self._grow(page.byte_count)
        return page

    def _forget(self, number: int) -> int:
        """Out of memory; the bytes that were freed."""
        page = self._pages.pop(number, None)
        directory = self._directories.pop(number, None)
        freed = page.byte_count if page is not None else 0
        return freed + (len(directory) * 20 if directory is not None else 0)

    # ── entries ─────────────────────────────────────────────────────────────────────────

    def has(self, number: int) -> bool:
        """Whether the entries of that segment, or what is left of them, are looked up here."""
        return number in self.sealed or number in self.left

    def is_sealed(self, position: int) -> bool:
        """What a file has is believed; what a remnant has is known."""
        remnant = self.remnants.covering(position)
        if remnant is not None:
            return remnant.index_of(position) >= 0
        segment = self._segments.find(position)
        return segment is not None and segment.number in self.sealed

    def columns_at(self, position: int) -> Columns:
        """Of the sealed segment that covers *position*; empty: none does."""
        remnant = self.remnants.covering(position)
        if remnant is not None:
            return remnant
        segment = self._segments.find(position)
        is_here = segment is not None and segment.number in self.sealed
        return self.page(segment.number) if segment is not None and is_here else _NOTHING

    def locate(self, position: int) -> tuple[Columns, int]:
        """Columns that hold the entry, and its index there; -1: no such entry."""
        columns = self.columns_at(position)
        return columns, columns.index_of(position)

    # ── queues ──────────────────────────────────────────────────────────────────────────

    def runs(self, queue: "Queue") -> Runs:
        """Where the queue is; walks its chain if that is not remembered."""
        runs = self.remembered.pop(queue.number, None)
        if runs is None:
            runs = Runs()
            for number, index, row in self._walk(queue):
                runs.add(row.first, row.first + row.size, number, index)
            runs.reverse()
            if len(self.remembered) >= RUN_TABLES_MAX:
                del self.remembered[next(iter(self.remembered))]
        self.remembered[queue.number] = runs
        return runs

    def _walk(self, queue: "Queue") -> Iterator[tuple[int, int, Row]]:
        """(segment, index in its directory, row), newest first."""
        number, lowest = queue.sealed, queue.hot_first
        while number:
            found = range(0)
            if number in self.sealed or number in self.remnants:
                directory = self.directory(number)
                found = directory.find(queue.number)
            if not found:  # that segment went: what is older is looked for
                number = self._holder_below(queue, number) if lowest > queue.first else 0
                continue
            for index in reversed(found):
                row = directory.row(index)
                lowest = row.first
                yield number, index, row
            number = row.previous

    def _holder_below(self, queue: "Queue", number: int) -> int:
        """The newest segment below *number* that holds the queue; 0: none does."""
        older = [other for other in self.sealed if other < number]
        older += [remnant.number for remnant in self.remnants if remnant.number < number]
        for other in sorted(older, reverse=True):
            if self.directory(other).find(queue.number):
                return other
        return 0

    def extend(self, queue: "Queue", first: int, end: int, number: int, index: int) -> None:
        """The queue has a run in one more sealed segment: offsets from *first* up to *end*."""
        runs = self.remembered.get(queue.number)
        if runs is None:
            if not queue.topic or queue.sealed or len(self.remembered) >= RUN_TABLES_MAX:
                return
            self.remembered[queue.number] = runs = Runs()
        runs.add(first, end, number, index)

    def slice(self, queue: "Queue", start: int, stop: int) -> Sequence[int]:
        """Positions at the offsets from *start* on: those of one run, up to *stop*."""
        runs = self.runs(queue)
        index = runs.from_offset(start)
        if index == len(runs.firsts) or runs.firsts[index] > start:
            return array("Q")
        page = self.page(runs.segments[index])
        return page.slice(runs.rows[index], start, min(stop, runs.ends[index]))

    def seek(self, queue: "Queue", offset: int) -> int:
        """The first offset at or above *offset* that is here; -1: none is."""
        runs = self.runs(queue)
        index = runs.from_offset(offset)
        return max(offset, runs.firsts[index]) if index < len(runs.firsts) else -1

    def offset_from(self, queue: "Queue", position: int) -> int:
        """Offset of the first entry at or above *position* that is here; -1: none is."""
        runs = self.runs(queue)
        segment, remnant = (
            self._segments.at_or_after(position),
            self.remnants.at_or_after(position),
        )
        numbers = [found.number for found in (segment, remnant) if found is not None]
        if not numbers:
            return -1
        for index in range(bisect_left(runs.segments, min(numbers)), len(runs.segments)):
            page = self.page(runs.segments[index])
            offset = page.offset_from(runs.rows[index], position)
            if offset < runs.ends[index]:
                return offset
        return -1

    # ── retention ───────────────────────────────────────────────────────────────────────

    def drop(self, number: int) -> None:
        """The segment went, or what was left of it."""
        self.sealed.pop(number, None)
        self.remnants.drop(number)
        self._byte_count -= self._forget(number)
        for runs in self.remembered.values():
            runs.drop(number)

    def leave(self, remnant: Remnant) -> None:
        """From now on *remnant* is all that there is of its segment."""
        if remnant.number in self.sealed:
            self.left.add(remnant.number)
        rows: dict[int, list[tuple[int, Row]]] = {}
        for index in range(len(remnant.directory)):
            row = remnant.directory.row(index)
            if row.queue in self.remembered:
                rows.setdefault(row.queue, []).append((index, row))
        self.drop(remnant.number)
        self.remnants.put(remnant)
        for queue, found in rows.items():
            self.remembered[queue].insert(remnant.number, found)

    def forget(self, queue: "Queue") -> None:
        self.remembered.pop(queue.number, None)

    @property
    def byte_count(self) -> int:
        """Bytes of index files in memory."""
        return self._byte_count


def _cannot_rebuild(segment: Segment) -> Draft:
    raise AssertionError(f"no scan for segment {segment.number} before recovery")
