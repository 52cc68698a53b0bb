"""
ACK, MARK and STREAM_CREDIT between our gateway and our store: what becomes of deliveries.

::

    ACK:   | store epoch u64 | item*: group u32, position u64, grant u32, action u8, delay ms u64 |
    MARK:  | store epoch u64 | item*: group u32, position u64, grant u32, packet id u16, stage u8 |
    answer of both: | grant u32 | code u32 | per item; grant is the new one after a change

All integers big-endian.
"""

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from protocols.errors import PeerError


class AckAction(IntEnum):
    ACK = 0
    CHANGE = 1  # visible again after delay ms (0: now, in place); counts as an attempt
    RELEASE = 2  # as CHANGE with 0, and the attempt does not count: the client never saw it
    REJECT = 3  # done, and handed over as a dead letter where the queue's policy says so
    RENEW = 4  # hidden for delay ms from now on; the grant stays, and so do handles of it


ACK_ITEM: Final = struct.Struct(">IQIBQ")
MARK_ITEM: Final = struct.Struct(">IQIHB")
ACK_RESULT: Final = struct.Struct(">II")
CREDIT_ITEM: Final = struct.Struct(">IQ")
EPOCH: Final = struct.Struct(">Q")


class AckItem(NamedTuple):
    group: int
    position: int
    grant: int
    action: int = AckAction.ACK
    delay_ms: int = 0


AckRow = tuple[int, int, int, int, int]
"""An ``AckItem``, or its fields as they came off the wire."""


class MarkItem(NamedTuple):
    group: int
    position: int
    grant: int
    packet_id: int
    stage: int


def encode_acks(store_epoch: int, items: Sequence[AckItem]) -> bytes:
    return EPOCH.pack(store_epoch) + b"".join([ACK_ITEM.pack(*item) for item in items])


def encode_marks(store_epoch: int, items: Sequence[MarkItem]) -> bytes:
    return EPOCH.pack(store_epoch) + b"".join([MARK_ITEM.pack(*item) for item in items])


def decode_acks(body: bytes | memoryview) -> tuple[int, list[AckRow]]:
    """(store epoch, items). Raises PeerError."""
    try:
        (epoch,) = EPOCH.unpack_from(body)
        return epoch, list(ACK_ITEM.iter_unpack(memoryview(body)[EPOCH.size :]))
    except struct.error as error:
        raise PeerError(f"ACK body: {error}") from error


def decode_marks(body: bytes | memoryview) -> tuple[int, list[MarkItem]]:
    """(store epoch, items). Raises PeerError."""
    try:
        (epoch,) = EPOCH.unpack_from(body)
        items = MARK_ITEM.iter_unpack(memoryview(body)[EPOCH.size :])
        return epoch, [tuple.__new__(MarkItem, item) for item in items]
    except struct.error as error:
        raise PeerError(f"MARK body: {error}") from error


def encode_ack_results(results: Sequence[tuple[int, int]]) -> bytes:
    """(grant, code) each."""
    if results and results.count(results[0]) == len(results):
        return ACK_RESULT.pack(*results[0]) * len(results)
    return b"".join([ACK_RESULT.pack(*result) for result in results])


def decode_ack_results(body: bytes | memoryview) -> list[tuple[int, int]]:
    """(grant, code) each. Raises PeerError."""
    try:
        return list(ACK_RESULT.iter_unpack(body))
    except struct.error as error:
        raise PeerError(f"ACK answer: {error}") from error


def encode_credits(items: Sequence[tuple[int, int]]) -> bytes:
    """(stream, total allowed) each."""
    return b"".join([CREDIT_ITEM.pack(*item) for item in items])


def decode_credits(body: bytes | memoryview) -> list[tuple[int, int]]:
    """(stream, total allowed) each. Raises PeerError."""
    try:
        return list(CREDIT_ITEM.iter_unpack(body))
    except struct.error as error:
        raise PeerError(f"STREAM_CREDIT body: {error}") from error
