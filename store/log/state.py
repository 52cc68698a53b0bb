"""
Payloads of state records. Frequent ones are packed, rare ones are msgpack tuples.

A GRANT holds what the decision changed, so that replay decides nothing: which positions went out,
which were held back behind their order key, and how far each queue of the read set was looked at.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def pack(*fields: Any) -> bytes:
    """A rare record."""
    return _encode(fields)


def unpack(payload: bytes | memoryview) -> list[Any]:
    fields: list[Any] = _decode(payload)
    return fields


_ARRAY: Final = struct.Struct(">BI")
_ARRAY_32: Final = 0xDD

_encode_into = msgspec.msgpack.Encoder().encode_into


def packed_rows(rows: Iterable[Any]) -> msgspec.Raw:
    """
    A list for a snapshot, encoded row by row.

    Tens of thousands of rows that are all there at once set the garbage collector off, several
    times, which takes longer than all the rest.
    """
    buffer, count = bytearray(_ARRAY.size), 0
    for row in rows:
        _encode_into(row, buffer, -1)
        count += 1
    _ARRAY.pack_into(buffer, 0, _ARRAY_32, count)
    return msgspec.Raw(buffer)


_longs: dict[int, struct.Struct] = {}


def longs(count: int) -> struct.Struct:
    """*count* unsigned 64-bit integers."""
    packer = _longs.get(count)
    if packer is None:
        packer = _longs[count] = struct.Struct(f">{count}Q")
    return packer


# ── grants ──────────────────────────────────────────────────────────────────────────────

_GRANT: Final = struct.Struct(">IIQBIIH")
_SCAN: Final = struct.Struct(">IQ")

GRANT_TO_STREAM: Final = 1
GRANT_COUNTS_ATTEMPT: Final = 2
"""Positions that were in flight already had been sent: one more attempt."""


class Grant(NamedTuple):
    group: int
    grant: int
    invisible_ms: int
    flags: int
    positions: Sequence[int]
    held: Sequence[int] = ()
    scans: Sequence[tuple[int, int]] = ()
    """(serial of the read, queue offset it will be read from next)."""

    taker: str = ""
    """Client that may ask for it by name; text up to the end of the record."""


def encode_grant(grant: Grant) -> bytes:
    count, held = len(grant.positions), len(grant.held)
    head = _GRANT.pack(*grant[:4], count, held, len(grant.scans))
    numbers = longs(count + held).pack(*grant.positions, *grant.held)
    scans = b"".join([_SCAN.pack(*scan) for scan in grant.scans])
    return head + numbers + scans + grant.taker.encode()


def decode_grant(payload: memoryview) -> Grant:
    group, grant, invisible_ms, flags, count, held, scan_count = _GRANT.unpack_from(payload)
    numbers = longs(count + held).unpack_from(payload, _GRANT.size)
    at = _GRANT.size + 8 * (count + held)
    end = at + scan_count * _SCAN.size
    scans = list(_SCAN.iter_unpack(payload[at:end]))
    taker = str(payload[end:], "utf-8") if end < len(payload) else ""
    return Grant(group, grant, invisible_ms, flags, numbers[:count], numbers[count:], scans, taker)


# ── acks, returns, marks ────────────────────────────────────────────────────────────────

_LIST: Final = struct.Struct(">II")
_MARK: Final = struct.Struct(">IQHB")
_RETURN: Final = struct.Struct(">IBI")


def encode_ack(by_group: Sequence[tuple[int, Sequence[int]]]) -> bytes:
    """(group, positions) each."""
    return b"".join(
        [_LIST.pack(group, len(at)) + longs(len(at)).pack(*at) for group, at in by_group]
    )


def decode_ack(payload: memoryview) -> Iterator[tuple[int, tuple[int, ...]]]:
    at = 0
    while at < len(payload):
        group, count = _LIST.unpack_from(payload, at)
        at += _LIST.size
        yield group, longs(count).unpack_from(payload, at)
        at += 8 * count


def encode_return(group: int, positions: Sequence[int], *, counts: bool) -> bytes:
    """*counts*: the attempt that ends here counts."""
    head = _RETURN.pack(group, counts, len(positions))
    return head + longs(len(positions)).pack(*positions)


def decode_return(payload: memoryview) -> tuple[int, bool, tuple[int, ...]]:
    group, counts, count = _RETURN.unpack_from(payload)
    return group, bool(counts), longs(count).unpack_from(payload, _RETURN.size)


def encode_marks(marks: Sequence[tuple[int, int, int, int]]) -> bytes:
    """(group, position, packet id, stage) each."""
    return b"".join([_MARK.pack(*mark) for mark in marks])


def decode_marks(payload: memoryview) -> Iterator[tuple[int, int, int, int]]:
    return _MARK.iter_unpack(payload)
