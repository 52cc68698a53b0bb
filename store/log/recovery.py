"""
Reading the log at start: what is whole, what is torn, what is rot; and making the tail durable.

A block that does not verify is *torn* above the highest position known to be confirmed: it was
never acknowledged, and the log ends before it. Below, it is *rot*: the scan goes on at the next
valid block with a higher sequence. (Store page, rule 2.)
"""

import itertools
import logging
from collections.abc import Iterator
from os import urandom
from typing import Final, NamedTuple

from protocols.checksum import crc32
from store.answers import EngineConfig
from store.disk import Disk
from store.log.format import (
    BLOCK,
    BLOCK_MAGIC,
    BLOCK_MAGIC_BYTES,
    M32,
    SEGMENT_HEADER_BYTES,
    BlockHeader,
    Entry,
    Kind,
    SegmentHeader,
    block_bytes,
    decode_block_head,
    decode_entries,
    decode_segment_header,
    encode_block_head,
    encode_segment_header,
    seed,
)
from store.log.segments import SUFFIX, UNFINISHED_SUFFIX, Segment, segment_name

_log = logging.getLogger("store.log")

CRC_IN_ENTRY: Final = 12
"""Index of the CRC in an entry: size, kind, 0, flags, pairs and length come before it."""


class ScannedBlock(NamedTuple):
    """One verified block: header and entry table; records are verified by ``record``."""

    segment: Segment
    position: int
    header: BlockHeader
    data: memoryview
    """The whole block."""

    @property
    def end(self) -> int:
        return self.position + block_bytes(self.header)

    def entries(self) -> list[Entry]:
        return decode_entries(self.data, BLOCK.size, self.header.record_count)

    @property
    def table_end(self) -> int:
        """Index in ``data`` behind the entry table."""
        return BLOCK.size + self.header.table_bytes

    @property
    def records_at(self) -> int:
        """Log position of the first record."""
        return self.position + BLOCK.size + self.header.table_bytes

    def record(self, position: int, entry: Entry) -> memoryview | None:
        """The bytes of the record at *position*; None: rot."""
        start = position - self.position
        record = self.data[start : start + entry.length]
        is_good = crc32(record, seed(self.segment.nonce, position)) & M32 == entry.crc
        return record if is_good else None

    def is_whole(self) -> bool:
        """Every record verifies."""
        at = self.records_at
        for entry in self.entries():
            if self.record(at, entry) is None:
                return False
            at += entry.length
        return True


class Tail(NamedTuple):
    """What the scan of the last segments found."""

    segments: list[Segment]
    """All, oldest first, with their ends."""

    log_id: bytes
    end: int
    scanned_end: int
    """Where the last whole block ends: below *end* only if the last blocks are rot."""

    known: int
    """Highest position known to be confirmed."""

    sequence: int
    epoch: int
    was_clean: bool
    torn_bytes: int
    rewrite_from: int
    """Position of the first block above *known*; *end* if there is none."""


def open_segments(disk: Disk, config: EngineConfig) -> list[Segment]:
    """Segments by position. Files without a valid header hold nothing that was acknowledged."""
    found: dict[int, Segment] = {}
    for name in disk.names():
        if name.endswith(UNFINISHED_SUFFIX):
            disk.unlink(name)
        elif name.endswith(SUFFIX):
            header = decode_segment_header(disk.read(name, 0, SEGMENT_HEADER_BYTES))
            if header is None:
                _log.error("segment %s has no valid header: set aside", name)
                disk.rename(name, name + ".bad")
                continue
            if segment_name(header.number) != name:  # given up and begun anew; the power failed
                disk.unlink(name)  # before the new name lasted: no block was written yet
                continue
            size = disk.size(name)
            segment = Segment(header, max(size, config.segment_bytes) - SEGMENT_HEADER_BYTES)
            segment.file_bytes = size
            found[header.number] = segment
    segments: list[Segment] = []
    for _, segment in sorted(found.items()):
        while segments and segments[-1].base >= segment.base:
            disk.unlink(segments.pop().name)  # its tail was rewritten into this one
        segments.append(segment)
    for segment, following in itertools.pairwise(segments):
        segment.end = following.base
    return segments


def scan(
    data: memoryview, segment: Segment, start: int, sequence: int, bytes_max: int
) -> Iterator[ScannedBlock]:
    """Every valid block of *segment* from *start* on, in order, over gaps. *data* is the file."""
    position, limit = start, segment.base + len(data) - SEGMENT_HEADER_BYTES
    while position < limit:
        at = segment.file_offset(position)
        header = decode_block_head(data, at, segment.nonce, position, bytes_max)
        if header is None or header.sequence <= sequence:
            found = _find_magic(data, at + 1)
            if found < 0:
                return
            position = segment.base + found - SEGMENT_HEADER_BYTES
            continue
        sequence = header.sequence
        size = block_bytes(header)
        yield ScannedBlock(segment, position, header, data[at : at + size])
        position += size


def _find_magic(data: memoryview, start: int) -> int:
    """Index of the next thing that may be a block header."""
    raw = data.obj
    assert isinstance(raw, bytes | bytearray)
    return raw.find(BLOCK_MAGIC_BYTES, start, len(data))


PIECE_BYTES: Final = 1 << 20
_NOTHING: Final = bytes(PIECE_BYTES)


class SegmentReader:
    """
    Reads segments into the same memory, one after the other; what it gave before is void then.

    Memory that the machine has never touched costs several times what copying into it does.
    """

    def __init__(self, disk: Disk, config: EngineConfig) -> None:
        self.disk = disk
        self.config = config
        self._buffer = bytearray()
        self._touched = 0
        """Zeros from here on."""

    def read(self, segment: Segment, *, is_last: bool) -> memoryview:
        """The file up to its last block; of the last one, up to where only zeros follow."""
        disk, name = self.disk, segment.name
        size = disk.size(name) if is_last else segment.file_offset(segment.end)
        if len(self._buffer) < size:
            self._buffer, self._touched = bytearray(size), 0
        used = end = 0
        while end < size and (piece := disk.read(name, end, min(PIECE_BYTES, size - end))):
            start, end = end, end + len(piece)
            is_empty = piece == _NOTHING
            if not is_empty or start < self._touched:
                self._buffer[start:end] = piece
            used = used if is_empty else end
        self._touched = max(self._touched, used)
        if is_last:  # a block may end in zeros
            end = min(end, used + self.config.block_bytes_max + PIECE_BYTES)
        return memoryview(self._buffer)[:end]


def find_tail(
    reader: SegmentReader, segments: list[Segment], known: int
) -> tuple[Tail, memoryview]:
    """Where the log ends, by the last segment; *known* is the newest snapshot's position."""
    last = segments[-1]
    data = reader.read(last, is_last=True)
    blocks = list(scan(data, last, last.base, 0, reader.config.block_bytes_max))
    known = max([known, last.base, *[block.header.confirmed for block in blocks]])
    end, sequence, epoch = last.base, 0, 0
    rewrite_from = -1
    final: ScannedBlock | None = None
    for block in blocks:
        if block.position != end and end >= known:
            break  # a gap above what is known: torn
        if block.end > known:
            if not block.is_whole():
                break
            rewrite_from = block.position if rewrite_from < 0 else rewrite_from
        end, sequence, epoch = block.end, block.header.sequence, block.header.epoch
        final = block
    # all before a closing block must be known to be durable: its own sync may have failed
    was_clean = (
        final is not None
        and final is blocks[-1]
        and known >= final.position
        and Kind.CLOSE in [entry.kind for entry in final.entries()]
    )
    torn_end = _torn_end(data, last, end, sequence)
    if blocks and final is not blocks[-1]:
        torn_end = max(torn_end, blocks[-1].end)
    scanned_end, end = end, max(end, known)  # positions that were confirmed are never used twice
    was_clean = was_clean and scanned_end == end
    last.end = end
    tail = Tail(
        segments=segments,
        log_id=last.header.log_id,
        end=end,
        scanned_end=scanned_end,
        known=known,
        sequence=sequence,
        epoch=epoch,
        was_clean=was_clean,
        torn_bytes=max(0, torn_end - end),
        rewrite_from=end if rewrite_from < 0 else rewrite_from,
    )
    return tail, data


def _torn_end(data: memoryview, segment: Segment, end: int, sequence: int) -> int:
    """Where the block ends that began at *end* and is not whole; *end* itself if none began.

    Told by its sequence number: what an earlier life of the file left there has a lower one.
    """
    at = segment.file_offset(end)
    if at + BLOCK.size > len(data):
        return end
    header = BlockHeader._make(BLOCK.unpack_from(data, at))
    if header.magic != BLOCK_MAGIC or header.sequence != sequence + 1:
        return end
    return end + min(block_bytes(header), len(data) - at)


def settle_tail(disk: Disk, config: EngineConfig, tail: Tail, data: memoryview) -> Segment:
    """
    Make durable what will be served. After an unclean end the page cache may hold bytes that the
    disk does not (a failed sync marks them clean), so the tail is written anew, into another file.
    """
    last = tail.segments[-1]
    if tail.was_clean:
        _write_again(disk, last, tail, data)
        return last
    base = tail.rewrite_from
    nonce = int.from_bytes(urandom(8), "big")
    header = SegmentHeader(tail.log_id, last.number + 1, base, nonce, tail.known)
    room = max(config.segment_bytes, tail.end - base + SEGMENT_HEADER_BYTES)
    segment = Segment(header, room - SEGMENT_HEADER_BYTES)
    name = f"rewritten-{segment.number:08d}{UNFINISHED_SUFFIX}"
    disk.create(name, room)
    disk.write(name, 0, [encode_segment_header(header)])
    for block in scan(data, last, base, 0, config.block_bytes_max):
        if block.position >= tail.end:
            break
        disk.write(name, segment.file_offset(block.position), [_resealed(block, segment)])
    segment.end = tail.end
    disk.sync(name)
    disk.rename(name, segment.name)
    disk.sync_dir()
    if base == last.base:
        disk.unlink(last.name)
        tail.segments.pop()
    else:
        last.end = base
        last.file_bytes = last.file_offset(base)
        disk.truncate(last.name, last.file_bytes)
    tail.segments.append(segment)
    return segment


def _write_again(disk: Disk, last: Segment, tail: Tail, data: memoryview) -> None:
    """
    Make the last blocks of a clean end durable in place, by the same bytes.

    The sync of the closing block itself may have failed: then its pages are clean and not on the
    disk, and a sync alone would promise what is not there.
    """
    start, end = last.file_offset(tail.rewrite_from), last.file_offset(tail.end)
    if start < end:
        disk.write(last.name, start, [data[start:end]])
    disk.sync(last.name)


def _resealed(block: ScannedBlock, segment: Segment) -> bytes:
    """The same block at the same position, its CRCs under the new segment's nonce."""
    out = bytearray(block.data)
    at, position = BLOCK.size, block.records_at
    for entry in block.entries():
        size = int.from_bytes(block.data[at : at + 2], "big")
        start = position - block.position
        record = block.data[start : start + entry.length]
        crc = crc32(record, seed(segment.nonce, position)) & M32
        out[at + CRC_IN_ENTRY : at + CRC_IN_ENTRY + 4] = crc.to_bytes(4, "big")
        at += size
        position += entry.length
    table = bytes(out[BLOCK.size : BLOCK.size + block.header.table_bytes])
    head, _ = encode_block_head(segment.nonce, block.position, block.header, table)
    out[: BLOCK.size] = head
    return bytes(out)
