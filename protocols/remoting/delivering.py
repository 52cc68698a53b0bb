"""
The bytes of DELIVER, and of POP's answer (which has stream 0).

::

    | store epoch u64 | records u32 | deliveries u32 | runs u32 |
    | position u64 x records | length u32 x records | bytes of all records |
                                                           a record needed twice is there once
    delivery: | stream u32 | record u32 | entry position u64 | grant u32 | attempt u16 |
              | flags u8 | stage u8 | packet id u16 | group u32 | reads u8 | tags u16 x reads |
    run:      | stream u32 | group u32 | grant u32 | attempt u16 | flags u8 |
              | first record u32 | count u32 | reads u8 | tags u16 x reads |

A run is *count* deliveries of one stream that differ in nothing but their record, which is the
entry itself: records *first* and on, in order. A stream's deliveries come before its runs. All
integers big-endian.
"""

import struct
from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

from protocols.errors import PeerError
from protocols.rows import ROWS_MIN, Rows
from protocols.tuples import new_tuple

HEAD: Final = struct.Struct(">QIII")
RECORD_HEAD_BYTES: Final = 12
"""Position and length of one record."""

DELIVERY: Final = struct.Struct(">IIQIHBBHIB")
DELIVERY_ONE: Final = struct.Struct(">IIQIHBBHIBH")
"""A delivery with one read tag, in one go; most are such."""

RUN: Final = struct.Struct(">IIIHBIIB")
RUN_ONE: Final = struct.Struct(">IIIHBIIBH")


_TAG: Final = struct.Struct(">H")


class DeliveryItem(NamedTuple):
    stream: int
    record_index: int
    position: int
    grant: int
    attempt: int
    flags: int
    """``ItemFlag`` bits QOS and RETAIN."""

    stage: int
    packet_id: int
    group: int
    tags: tuple[int, ...]


class RunItem(NamedTuple):
    stream: int
    group: int
    grant: int
    attempt: int
    flags: int
    first: int
    length: int
    tags: tuple[int, ...]


class DeliverBody(NamedTuple):
    store_epoch: int
    positions: list[int]
    """Of the records in the log."""

    records: Sequence[bytes]
    """Hundreds of one size may be ``Rows``."""

    deliveries: list[DeliveryItem]
    runs: list[RunItem]

    def each(self) -> list[DeliveryItem]:
        """All deliveries, those of runs one by one."""
        found = list(self.deliveries)
        for stream, group, grant, attempt, flags, first, length, tags in self.runs:
            for index in range(first, first + length):
                at = self.positions[index]
                found.append(
                    DeliveryItem(stream, index, at, grant, attempt, flags, 0, 0, group, tags)
                )
        return found


def encode_deliver(
    store_epoch: int,
    records: Sequence[tuple[int, bytes | memoryview]],
    deliveries: Sequence[DeliveryItem],
    runs: Sequence[RunItem] = (),
) -> bytes:
    """*records* are (position, stored record) each."""
    positions, pieces = [position for position, _ in records], [record for _, record in records]
    packed = [pack_delivery(item) for item in deliveries], [pack_run(*run) for run in runs]
    return join_deliver(store_epoch, positions, [*map(len, pieces)], pieces, *packed)


def pack_delivery(item: DeliveryItem) -> bytes:
    tags = item.tags
    if len(tags) == 1:
        return DELIVERY_ONE.pack(*item[:9], 1, tags[0])
    return DELIVERY.pack(*item[:9], len(tags)) + struct.pack(f">{len(tags)}H", *tags)


def pack_run(
    stream: int,
    group: int,
    grant: int,
    attempt: int,
    flags: int,
    first: int,
    length: int,
    tags: tuple[int, ...],
) -> bytes:
    """The bytes of a ``RunItem`` of these."""
    if len(tags) == 1:
        return RUN_ONE.pack(stream, group, grant, attempt, flags, first, length, 1, tags[0])
    head = RUN.pack(stream, group, grant, attempt, flags, first, length, len(tags))
    return head + struct.pack(f">{len(tags)}H", *tags)


def join_deliver(
    store_epoch: int,
    positions: Sequence[int],
    lengths: Sequence[int],
    records: Sequence[bytes | memoryview],
    deliveries: Sequence[bytes],
    runs: Sequence[bytes],
) -> bytes:
    """A body from its packed pieces; *records*: all their bytes, in pieces of any size."""
    head = HEAD.pack(store_epoch, len(positions), len(deliveries), len(runs))
    columns = array("Q", positions), array("I", lengths)
    for column in columns:
        column.byteswap()  # arrays are little-endian on every machine we run on
    return b"".join((head, *columns, *records, *deliveries, *runs))


def decode_deliver(body: bytes | memoryview) -> DeliverBody:
    """Raises PeerError: a length lies outside the body, or a record is named that is not there."""
    data = bytes(body)
    deliveries: list[DeliveryItem] = []
    runs: list[RunItem] = []
    try:
        epoch, record_count, delivery_count, run_count = HEAD.unpack_from(data)
        start = HEAD.size
        positions = _column("Q", data, start, record_count)
        lengths = _column("I", data, start + 8 * record_count, record_count)
        start += RECORD_HEAD_BYTES * record_count
        records, start = _records(data, start, lengths)
        for _ in range(delivery_count):
            *fields, tag_count = DELIVERY.unpack_from(data, start)
            start += DELIVERY.size
            tags = struct.unpack_from(f">{tag_count}H", data, start)
            start += 2 * tag_count
            deliveries.append(new_tuple(DeliveryItem, (*fields, tags)))
        for _ in range(run_count):
            *fields, tag_count = RUN.unpack_from(data, start)
            start += RUN.size
            if tag_count == 1:
                tags = _TAG.unpack_from(data, start)
            else:
                tags = struct.unpack_from(f">{tag_count}H", data, start)
            start += 2 * tag_count
            runs.append(new_tuple(RunItem, (*fields, tags)))
    except struct.error as error:
        raise PeerError(f"DELIVER body: {error}") from error
    if start > len(data):
        raise PeerError("DELIVER body: a record is longer than what is there")
    if any([item.record_index >= record_count for item in deliveries]) or any(
        [run.first + run.length > record_count for run in runs]
    ):
        raise PeerError("DELIVER body: delivery names a record that is not there")
    return DeliverBody(epoch, positions.tolist(), records, deliveries, runs)


def _records(data: bytes, start: int, lengths: "array[int]") -> tuple[Sequence[bytes], int]:
    """Records of these lengths from *start* on, and where they end."""
    count = len(lengths)
    if count >= ROWS_MIN and lengths == array("I", (lengths[0],)) * count:
        stop = start + count * lengths[0]
        rows = Rows.within(data, start, count, lengths[0])
        if rows is not None:
            return rows, stop
    records: list[bytes] = []
    for size in lengths:
        records.append(data[start : start + size])
        start += size
    return records, start


def _column(code: str, data: bytes, start: int, count: int) -> "array[int]":
    """*count* integers at *start*. Raises PeerError."""
    column = array(code)
    stop = start + column.itemsize * count
    if stop > len(data):
        raise PeerError(f"DELIVER body: {count} records where there are {len(data)} bytes")
    column.frombytes(data[start:stop])
    column.byteswap()
    return column
