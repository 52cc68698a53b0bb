"""
The index of one sealed segment as an immutable file: derived, rebuilt, never trusted over the log.

::

    header      counts, base, end, CRCs of the parts
    directory   per queue, sorted by number: first offset, count, the previous segment that holds it
    sparse      (entry, target) of index records, (entry, wall time) of entries that expire
    body        columns of facts, then the positions of each queue, in the order of the directory

A sparse queue is walked by chain: from its newest sealed segment to the one before. Arrays are in
the machine's byte order, which is part of the magic: a file from elsewhere is rebuilt.
"""

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from protocols.checksum import crc32
from protocols.remoting.matrix import np
from store.index.entries import Columns
from store.log.format import M32

SUFFIX: Final = ".idx"
MAGIC: Final = b"TGIDX01" + sys.byteorder[:1].encode()
_HEAD: Final = struct.Struct(">8s16sIQQQQIIIIIIIII")
HEAD_BYTES: Final = _HEAD.size


def index_name(number: int) -> str:
    return f"{number:08d}{SUFFIX}"


class IndexHeader(NamedTuple):
    """What an index file begins with."""

    log_id: bytes
    number: int
    """Of the segment."""

    base: int
    end: int
    newest_ms: int
    record_count: int
    entry_count: int
    row_count: int
    place_count: int
    target_count: int
    expires_count: int
    directory_crc: int
    sparse_crc: int
    body_crc: int

    @property
    def directory_bytes(self) -> int:
        return self.row_count * 20

    @property
    def sparse_bytes(self) -> int:
        return 16 * (self.target_count + self.expires_count)

    @property
    def body_bytes(self) -> int:
        return self.entry_count * 30 + self.place_count * 8


class Row(NamedTuple):
    """One queue in a segment: adjoining offsets."""

    queue: int
    first: int
    size: int
    previous: int
    """Number of the sealed segment before that holds the queue; 0: none."""


class Directory:
    """Which queues a segment holds."""

    __slots__ = ("counts", "firsts", "previous", "queues")

    def __init__(self) -> None:
        self.queues = array("I")
        self.firsts = array("Q")
        self.counts = array("I")
        self.previous = array("I")

    def add(self, row: Row) -> None:
        self.queues.append(row.queue)
        self.firsts.append(row.first)
        self.counts.append(row.size)
        self.previous.append(row.previous)

    def __len__(self) -> int:
        return len(self.queues)

    def chosen(self, indexes: Sequence[int]) -> "Directory":
        """The rows at *indexes*; a numpy array, or without numpy numbers."""
        directory = Directory()
        for name in self.__slots__:
            column, to = getattr(self, name), getattr(directory, name)
            if np is None:
                to.extend([column[at] for at in indexes])
            else:
                to.frombytes(np.asarray(column)[indexes].tobytes())
        return directory

    def row(self, index: int) -> Row:
        return Row(self.queues[index], self.firsts[index], self.counts[index], self.previous[index])

    def find(self, queue: int) -> range:
        """Indexes of the queue's rows; more than one if offsets are missing in between."""
        return range(bisect_left(self.queues, queue), bisect_right(self.queues, queue))

    def encode(self) -> bytes:
        columns = (self.firsts, self.queues, self.counts, self.previous)
        return b"".join([column.tobytes() for column in columns])

    @classmethod
    def decode(cls, data: memoryview, count: int) -> "Directory":
        directory = cls()
        at = 0
        for column in (directory.firsts, directory.queues, directory.counts, directory.previous):
            size = count * column.itemsize
            column.frombytes(data[at : at + size])
            at += size
        return directory


class Page(Columns):
    """A whole index file in memory."""

    __slots__ = ("byte_count", "directory", "number", "places", "starts")

    def __init__(self, number: int, directory: Directory) -> None:
        super().__init__()
        self.number = number
        self.directory = directory
        self.places = array("Q")
        self.starts = array("I", accumulate(directory.counts, initial=0))
        self.byte_count = 0

    def places_of(self, row: int) -> Sequence[int]:
        """Positions of the entries of one row, ascending."""
        return self.places[self.starts[row] : self.starts[row + 1]]

    def slice(self, row: int, start: int, stop: int) -> Sequence[int]:
        """Positions at the offsets from *start* to *stop*, as far as the row has them."""
        low = self.starts[row] + start - self.directory.firsts[row]
        high = min(self.starts[row + 1], low + stop - start)
        return self.places[low:high]

    def offset_from(self, row: int, position: int) -> int:
        """Offset of the first entry of the row at or above *position*."""
        low, high = self.starts[row], self.starts[row + 1]
        at = bisect_left(self.places, position, low, high)
        return self.directory.firsts[row] + at - low


class Draft:
    """What becomes an index file."""

    def __init__(self, number: int, base: int, end: int, newest_ms: int) -> None:
        self.number = number
        self.base = base
        self.end = end
        self.newest_ms = newest_ms
        self.columns = Columns()
        self.directory = Directory()
        """In the order of the queues' numbers once it is encoded."""

        self.places = array("Q")
        """Positions of the entries of each row, in the order of the rows."""

        self.targets: list[tuple[int, int]] = []
        self.expires: list[tuple[int, int]] = []

    def add_rows(self, queue: int, places: Sequence[tuple[int, int]], previous: int) -> None:
        """(offset, position) of a queue's entries, ascending; adjoining offsets make a row."""
        cuts = [at for at, (one, two) in enumerate(pairwise(places), 1) if two[0] != one[0] + 1]
        for start, stop in pairwise([0, *cuts, len(places)]):
            self.directory.add(Row(queue, places[start][0], stop - start, previous))
            self.places.extend([position for _, position in places[start:stop]])

    def sort(self) -> None:
        """Rows by number of the queue, then by offset."""
        directory = self.directory
        if np is None:
            keys = list(zip(directory.queues, directory.firsts, strict=True))
            order = sorted(range(len(keys)), key=keys.__getitem__)
            starts = list(accumulate(directory.counts, initial=0))
            places, self.places = self.places, array("Q")
            for at in order:
                self.places += places[starts[at] : starts[at + 1]]
        else:
            order = np.lexsort((directory.firsts, directory.queues))
            counts = np.asarray(directory.counts)
            starts = np.cumsum(counts, dtype=np.int64) - counts
            counts, starts = counts[order], starts[order]
            at = np.repeat(starts - np.cumsum(counts, dtype=np.int64) + counts, counts)
            chosen = np.asarray(self.places)[at + np.arange(len(self.places))]
            self.places = array("Q", chosen.tobytes())
        self.directory = directory.chosen(order)

    def encode(self, log_id: bytes) -> bytes:
        self.sort()
        directory = self.directory
        sparse = array("Q", [value for pair in [*self.targets, *self.expires] for value in pair])
        columns = self.columns
        parts = [
            column.tobytes()
            for column in (columns.positions, columns.orders, columns.lengths, columns.crcs,
                           columns.tags, columns.flags)
        ]  # fmt: skip
        parts.append(self.places.tobytes())
        first, second, body = directory.encode(), sparse.tobytes(), b"".join(parts)
        header = IndexHeader(
            log_id, self.number, self.base, self.end, self.newest_ms, len(columns.positions),
            len(columns.positions), len(directory), len(self.places),
            len(self.targets), len(self.expires),
            crc32(first) & M32, crc32(second) & M32, crc32(body) & M32,
        )  # fmt: skip
        plain = _HEAD.pack(MAGIC, *header, 0)
        head = plain[:-4] + (crc32(plain) & M32).to_bytes(4, "big")
        return head + first + second + body


def decode_header(data: bytes) -> IndexHeader | None:
    """None: no index of ours, or damaged."""
    if len(data) < HEAD_BYTES:
        return None
    magic, *fields, crc = _HEAD.unpack_from(data)
    plain = data[: HEAD_BYTES - 4] + b"\x00\x00\x00\x00"
    if magic != MAGIC or crc32(plain) & M32 != crc:
        return None
    return IndexHeader._make(fields)


def decode_directory(header: IndexHeader, data: bytes) -> Directory | None:
    """None: rotten."""
    if len(data) != header.directory_bytes or crc32(data) & M32 != header.directory_crc:
        return None
    return Directory.decode(memoryview(data), header.row_count)


def decode_sparse(header: IndexHeader, data: bytes) -> tuple[dict[int, int], dict[int, int]] | None:
    """(targets, expires); None: rotten."""
    if len(data) != header.sparse_bytes or crc32(data) & M32 != header.sparse_crc:
        return None
    numbers = array("Q")
    numbers.frombytes(data)
    pairs = list(zip(numbers[::2], numbers[1::2], strict=True))
    return dict(pairs[: header.target_count]), dict(pairs[header.target_count :])


def decode_page(header: IndexHeader, directory: Directory, data: bytes) -> Page | None:
    """None: rotten."""
    if len(data) != header.body_bytes or crc32(data) & M32 != header.body_crc:
        return None
    page = Page(header.number, directory)
    view, at = memoryview(data), 0
    columns = (page.positions, page.orders, page.lengths, page.crcs, page.tags, page.flags)
    for column in columns:
        size = header.entry_count * column.itemsize
        column.frombytes(view[at : at + size])
        at += size
    page.places.frombytes(view[at:])
    page.byte_count = len(data) + len(directory) * 20
    return page


class Runs:
    """Where the sealed part of one queue is: ascending by offset."""

    __slots__ = ("ends", "firsts", "rows", "segments")

    def __init__(self) -> None:
        self.firsts = array("Q")
        self.ends = array("Q")
        self.segments = array("I")
        self.rows = array("I")
        """Index in the segment's directory."""

    def add(self, first: int, end: int, segment: int, index: int) -> None:
        """One more, of the newest segment."""
        self.firsts.append(first)
        self.ends.append(end)
        self.segments.append(segment)
        self.rows.append(index)

    def reverse(self) -> None:
        for column in (self.firsts, self.ends, self.segments, self.rows):
            column.reverse()

    def insert(self, segment: int, rows: Sequence[tuple[int, Row]]) -> None:
        """(index in its directory, row) each, ascending, of a segment among the others."""
        at = bisect_left(self.segments, segment)
        for shift, (index, row) in enumerate(rows):
            self.firsts.insert(at + shift, row.first)
            self.ends.insert(at + shift, row.first + row.size)
            self.segments.insert(at + shift, segment)
            self.rows.insert(at + shift, index)

    def from_offset(self, offset: int) -> int:
        """Index of the first run that ends above *offset*."""
        return bisect_right(self.ends, offset)

    def drop(self, segment: int) -> None:
        """That segment went."""
        start, stop = bisect_left(self.segments, segment), bisect_right(self.segments, segment)
        if start < stop:
            for column in (self.firsts, self.ends, self.segments, self.rows):
                del column[start:stop]
