"""
The bytes of the log: segment header, block header, entry table, record kinds.

::

    segment   | header, its copy | block | block | …            positions go on from file to file
    block     | header, 80 B | entry table | records back to back |
    entry     | fixed part, 40 B | (queue number, offset) pairs | fields by flag |

A CRC is CRC-32 seeded with the segment's secret nonce and the log position of what it covers,
so stale blocks of a recycled file, moved blocks and block-shaped client bodies do not verify.
All integers are big-endian. Offsets are stored, never counted.
"""

import struct
from enum import IntEnum, IntFlag
from typing import Final, NamedTuple

from protocols.checksum import crc32

M32: Final = 0xFFFFFFFF
FORMAT_VERSION: Final = 1


# ── segment header ──────────────────────────────────────────────────────────────────────

SEGMENT_HEADER_BYTES: Final = 4096
HEADER_COPY_AT: Final = 2048
"""Where the header stands once more."""

SEGMENT_MAGIC: Final = b"TGSEG001"
CRC_KIND_CRC32: Final = 1
_SEGMENT: Final = struct.Struct(">8sHH16sQQQQI")


class SegmentHeader(NamedTuple):
    log_id: bytes
    """16 random bytes, made with the log."""

    number: int
    base: int
    """Log position of the first byte after the header."""

    nonce: int
    """64 random bits; never leave the store."""

    confirmed: int
    """Confirmed position when the segment was begun."""


def encode_segment_header(header: SegmentHeader) -> bytes:
    """Twice, in sectors of their own: without its nonce nothing in a segment can be read."""
    fields = (header.log_id, header.number, header.base, header.nonce, header.confirmed)
    plain = _SEGMENT.pack(SEGMENT_MAGIC, FORMAT_VERSION, CRC_KIND_CRC32, *fields, 0)
    crc = crc32(plain) & M32
    once = (plain[:-4] + crc.to_bytes(4, "big")).ljust(HEADER_COPY_AT, b"\x00")
    return (once + once).ljust(SEGMENT_HEADER_BYTES, b"\x00")


def decode_segment_header(data: bytes) -> SegmentHeader | None:
    """The header, or else its copy; None: not a header of ours, or both are damaged."""
    if len(data) < SEGMENT_HEADER_BYTES:
        return None
    return decode_header_at(data, 0) or decode_header_at(data, HEADER_COPY_AT)


def decode_header_at(data: bytes, at: int) -> SegmentHeader | None:
    """One of the two."""
    magic, version, kind, *fields, crc = _SEGMENT.unpack_from(data, at)
    plain = data[at : at + _SEGMENT.size - 4] + b"\x00\x00\x00\x00"
    if magic != SEGMENT_MAGIC or version != FORMAT_VERSION or kind != CRC_KIND_CRC32:
        return None
    if crc32(plain) & M32 != crc:
        return None
    return SegmentHeader._make(fields)


# ── block header ────────────────────────────────────────────────────────────────────────

BLOCK_MAGIC: Final = 0x54474231  # "TGB1"
BLOCK_MAGIC_BYTES: Final = BLOCK_MAGIC.to_bytes(4, "big")
BLOCK: Final = struct.Struct(">IIQQQIIQQIHHIII4x")


class BlockHeader(NamedTuple):
    """*Fields* in the order of the bytes; see the store page, rule 1."""

    magic: int
    crc: int
    """Over the rest of the header and the entry table."""

    sequence: int
    confirmed: int
    """Position known to be durable when the block was built."""

    store_ms: int
    epoch: int
    gateway: int
    """Number of the gateway whose frame this is; 0: a block of the store's own."""

    gateway_epoch: int
    frame: int
    record_count: int
    item_count: int
    refused_count: int
    table_bytes: int
    record_bytes: int
    flags: int


def seed(nonce: int, position: int) -> int:
    """Where a CRC of what lies at *position* starts."""
    return (nonce + position) & M32


def encode_block_head(
    nonce: int, position: int, header: BlockHeader, table: bytes
) -> tuple[bytes, int]:
    """The header with its CRC."""
    plain = BLOCK.pack(*header)
    crc = crc32(table, crc32(plain[8:], crc32(nonce.to_bytes(8, "big"), seed(nonce, position))))
    return plain[:4] + crc.to_bytes(4, "big") + plain[8:], crc


def decode_block_head(
    data: memoryview, at: int, nonce: int, position: int, bytes_max: int
) -> BlockHeader | None:
    """The verified header of the block at index *at* of *data*; None: no block of ours."""
    if at + BLOCK.size > len(data):
        return None
    header = BlockHeader._make(BLOCK.unpack_from(data, at))
    if header.magic != BLOCK_MAGIC:
        return None
    table_end = at + BLOCK.size + header.table_bytes
    if header.record_count * ENTRY.size > header.table_bytes:
        return None
    if block_bytes(header) > bytes_max or table_end + header.record_bytes > len(data):
        return None
    crc = crc32(nonce.to_bytes(8, "big"), seed(nonce, position))
    if crc32(data[at + 8 : table_end], crc) != header.crc:
        return None
    return header


def block_bytes(header: BlockHeader) -> int:
    return BLOCK.size + header.table_bytes + header.record_bytes


# ── entry table ─────────────────────────────────────────────────────────────────────────


class Kind(IntEnum):
    """What a record is. Those marked F are in the format for later use."""

    MESSAGE = 1
    INDEX = 2  # a pointer to a message, with light queue entries of its own
    RELOCATED = 3  # an owed record appended again; its row says at which position it was first
    QUEUE = 10  # queue number bound to a key, with its policy
    QUEUE_END = 11
    TOPIC = 12
    TOPIC_END = 13
    SETTING = 14
    OFFSETS = 15
    GATEWAY = 16  # gateway number bound to a name
    FRAME_RESULT = 17  # refused and partial items of the frame in this block
    SETTLED = 18
    FENCE = 19
    GROUP = 20
    GROUP_END = 21
    GRANT = 22
    ACK = 23
    RETURN = 24
    MARK = 25
    CURSOR = 26  # F: everything of a group below a position is done
    DEAD_LETTER = 27  # an ack whose message is copied in the same block
    PURGE = 28
    DROP = 29  # ready entries that are done without having been handed out
    DIRECTORY = 30
    LEASE_END = 31
    EPOCH = 32
    CLOSE = 33
    SEEK = 34  # a group goes on elsewhere in a message queue; what it held of it is void
    TIMER_FIRED = 41  # held messages that fired or were recalled: positions
    TRANSACTION_END = 42  # half messages that ended: positions
    ONCE_RELEASE = 43  # F
    HALF_CHECKED = 44


class EntryFlag(IntFlag):
    """The low bits are ``ItemFlag``'s."""

    QOS = 0x3
    RETAIN = 0x4
    CLEARS_RETAINED = 0x8
    SETS_RETAINED = 0x10
    DISPATCHED = 0x20  # F
    BYTES_ONLY = 0x40  # a copy: in no message queue
    HAS_TAG = 0x80  # the tag hash was computed when it was stored
    HAS_EXPIRES = 0x100
    HAS_ONCE = 0x200
    HAS_TARGET = 0x400
    HAS_SOURCE = 0x800  # original position of a relocated record, and its segment's newest time
    HAS_KEY_HASH = 0x1000  # F
    HELD = 0x2000  # a timer or half message: stored, in no queue yet
    COMPACTED = 0x4000  # of a compacted topic: the last value of its key is owed


ENTRY: Final = struct.Struct(">HBBHHIIiQIQ")
"""size, kind, 0, flags, pairs, length, crc, tag hash, order hash, queue number, queue offset"""

KIND_AT: Final = 2
"""Where an entry has its kind."""

PAIR: Final = struct.Struct(">IQ")
NO_QUEUE: Final = 0
EXPIRES: Final = struct.Struct(">Q")
TARGET: Final = struct.Struct(">Q")
SOURCE: Final = struct.Struct(">QQ")
ONCE_BYTES: Final = 16
_OPTIONAL: Final = int(EntryFlag.HAS_EXPIRES | EntryFlag.HAS_ONCE | EntryFlag.HAS_TARGET)

_packers: dict[int, struct.Struct] = {}


def entry_struct(pair_count: int) -> struct.Struct:
    """``ENTRY`` with that many pairs behind it, for entries without optional fields."""
    packer = _packers.get(pair_count)
    if packer is None:
        packer = _packers[pair_count] = struct.Struct(ENTRY.format + "IQ" * pair_count)
    return packer


def entry_extra(flags: int, expires_at_ms: int, once_key: bytes, target: int) -> bytes:
    """The optional fields that *flags* name, in the order of the bytes."""
    extra = EXPIRES.pack(expires_at_ms) if flags & EntryFlag.HAS_EXPIRES else b""
    if flags & EntryFlag.HAS_ONCE:
        extra += once_key
    if flags & EntryFlag.HAS_TARGET:
        extra += TARGET.pack(target)
    return extra


def with_extra(entry: bytes, extra: bytes) -> bytes:
    """The entry with optional fields behind it, its size adjusted."""
    if not extra:
        return entry
    return (len(entry) + len(extra)).to_bytes(2, "big") + entry[2:] + extra


class Entry(NamedTuple):
    """One decoded row of an entry table."""

    kind: int
    flags: int
    length: int
    crc: int
    tag_hash: int
    order_hash: int
    queue: int
    offset: int
    pairs: tuple[int, ...]
    """number, offset, number, offset…"""

    expires_at_ms: int = 0
    once_key: bytes = b""
    target: int = -1


def decode_entries(data: memoryview, at: int, count: int) -> list[Entry]:
    """The entry table at index *at*: verified with its block, so lengths can be trusted."""
    entries: list[Entry] = []
    for _ in range(count):
        size, kind, _, flags, pairs, *rest = ENTRY.unpack_from(data, at)
        numbers = entry_struct(pairs).unpack_from(data, at)[11:] if pairs else ()
        entry = Entry._make((kind, flags, *rest, numbers, 0, b"", -1))
        if flags & _OPTIONAL:
            entry = _with_optional(entry, data, at + ENTRY.size + PAIR.size * pairs)
        entries.append(entry)
        at += size
    return entries


def _with_optional(entry: Entry, data: memoryview, at: int) -> Entry:
    expires_at_ms, once_key, target = 0, b"", -1
    if entry.flags & EntryFlag.HAS_EXPIRES:
        (expires_at_ms,) = EXPIRES.unpack_from(data, at)
        at += EXPIRES.size
    if entry.flags & EntryFlag.HAS_ONCE:
        once_key = bytes(data[at : at + ONCE_BYTES])
        at += ONCE_BYTES
    if entry.flags & EntryFlag.HAS_TARGET:
        (target,) = TARGET.unpack_from(data, at)
    return entry._replace(expires_at_ms=expires_at_ms, once_key=once_key, target=target)


def state_entry(kind: int, length: int, crc: int) -> bytes:
    return ENTRY.pack(ENTRY.size, kind, 0, 0, 0, length, crc, 0, 0, NO_QUEUE, 0)
