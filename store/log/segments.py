"""
Segment files: begun, prepared in advance, found by position, dropped from the front.

A segment is named by its number (``00000007.seg``). Until its header and its name are durable it
ends in ``.tmp`` and holds nothing. Positions go on from one segment to the next: the
next one's base is the end of the last block of this one.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from store.direct import PAGE_BYTES
from store.disk import Buffer, Disk
from store.log.format import SEGMENT_HEADER_BYTES, SegmentHeader, encode_segment_header

SUFFIX: Final = ".seg"
UNFINISHED_SUFFIX: Final = ".tmp"
"""Deleted at start: never part of the log."""

# Writes end at a whole page: one that is replaced as a whole need not be read first.

_ZEROS: Final = bytes(PAGE_BYTES)


def segment_name(number: int) -> str:
    return f"{number:08d}{SUFFIX}"


class Segment:
    """One file of the log; *end* is the log position after its last block."""

    __slots__ = (
        "base",
        "capacity",
        "end",
        "file_bytes",
        "header",
        "name",
        "nonce",
        "number",
        "spare_name",
    )

    def __init__(self, header: SegmentHeader, capacity: int) -> None:
        self.header = header
        self.number = header.number
        self.base = header.base
        self.nonce = header.nonce
        self.capacity = capacity
        """Bytes of blocks that fit."""

        self.file_bytes = capacity + SEGMENT_HEADER_BYTES
        """Size of its file: only whole files are used again."""

        self.end = header.base
        self.name = segment_name(header.number)
        self.spare_name = ""
        """File that becomes this segment; empty: none is ready, make one."""

    def has_room(self, size: int) -> bool:
        return self.end + size - self.base <= self.capacity

    def file_offset(self, position: int) -> int:
        return position - self.base + SEGMENT_HEADER_BYTES


def begin_segment(disk: Disk, segment: Segment, size: int) -> None:
    """Header → fsync → rename → fsync of the folder: only then may a block be written."""
    name = segment.spare_name
    if not name:
        name = f"begun-{segment.number:08d}{UNFINISHED_SUFFIX}"
        disk.create(name, size)
    disk.write(name, 0, [encode_segment_header(segment.header)])
    disk.sync(name)
    disk.rename(name, segment.name)
    disk.sync_dir()


class WritePart:
    """Adjoining blocks of one segment, and whether the file must be begun first."""

    __slots__ = ("begins", "buffers", "offset", "segment")

    def __init__(self, segment: Segment, offset: int, *, begins: bool) -> None:
        self.segment = segment
        self.offset = offset
        self.begins = begins
        self.buffers: list[Buffer] = []

    def padded(self) -> list[Buffer]:
        """The blocks, and zeros up to the end of their last page."""
        end = self.offset + sum([len(buffer) for buffer in self.buffers])
        rest = -end % PAGE_BYTES
        return [*self.buffers, _ZEROS[:rest]] if rest else self.buffers


class WriteBatch:
    """Blocks on their way to the disk, made by ``take_writes``."""

    __slots__ = ("block_count", "byte_count", "parts", "position", "segment_bytes")

    def __init__(self, segment_bytes: int) -> None:
        self.parts: list[WritePart] = []
        self.position = 0
        """Log end once it is durable."""

        self.block_count = 0
        self.byte_count = 0
        self.segment_bytes = segment_bytes

    def execute(self, disk: Disk) -> None:
        """Write and sync; blocks; raises OSError. Runs in the writer thread."""
        for part in self.parts:  # a later segment is begun only when the earlier one is durable
            if part.begins:
                begin_segment(disk, part.segment, self.segment_bytes)
            if part.buffers:
                disk.write_through(part.segment.name, part.offset, part.padded())


class Segments:
    """All segments, oldest first. Positions may be missing between two of them."""

    def __init__(self) -> None:
        self._items: list[Segment] = []
        self._bases: list[int] = []
        self._by_number: dict[int, Segment] = {}
        self._hole_bytes = 0

    def add(self, segment: Segment) -> None:
        if self._items:
            self._hole_bytes += segment.base - self._items[-1].end
        self._items.append(segment)
        self._bases.append(segment.base)
        self._by_number[segment.number] = segment

    def drop(self, segment: Segment) -> None:
        """Any but the last."""
        index = self._items.index(segment)
        if index == 0:
            self._hole_bytes -= self._items[1].base - segment.end
        else:
            self._hole_bytes += segment.end - segment.base
        del self._items[index], self._bases[index], self._by_number[segment.number]

    def find(self, position: int) -> Segment | None:
        """The segment whose blocks cover *position*."""
        index = bisect_right(self._bases, position) - 1
        if index < 0 or position >= self._items[index].end:
            return None
        return self._items[index]

    def at_or_after(self, position: int) -> Segment | None:
        """The segment that covers *position*, or the first one above it."""
        index = max(0, bisect_right(self._bases, position) - 1)
        while index < len(self._items) and self._items[index].end <= position:
            index += 1
        return self._items[index] if index < len(self._items) else None

    def __contains__(self, number: int) -> bool:
        return number in self._by_number

    def numbered(self, number: int) -> Segment:
        return self._by_number[number]

    @property
    def items(self) -> Sequence[Segment]:
        return self._items

    @property
    def last(self) -> Segment:
        return self._items[-1]

    @property
    def first_position(self) -> int:
        return self._bases[0]

    @property
    def byte_count(self) -> int:
        """Bytes of blocks in all segments."""
        if not self._items:
            return 0
        return self._items[-1].end - self._bases[0] - self._hole_bytes
