"""
The bytes of DELIVER, and of POP's answer (which has stream 0).

::

    | store epoch u64 | records u32 | deliveries u32 | runs u32 |
    record:   | position u64 | length u32 | bytes |        a record needed twice is there once
    delivery: | stream u32 | record u32 | entry position u64 | grant u32 | attempt u16 |
              | flags u8 | stage u8 | packet id u16 | group u32 | reads u8 | tags u16 x reads |
    run:      | stream u32 | group u32 | grant u32 | attempt u16 | flags u8 |
              | first record u32 | count u32 | reads u8 | tags u16 x reads |

A run is *count* deliveries of one stream that differ in nothing but their record, which is the
entry itself: records *first* and on, in order. A stream's deliveries come before its runs. All
integers big-endian.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from protocols.errors import PeerError

HEAD: Final = struct.Struct(">QIII")
RECORD_HEAD: Final = struct.Struct(">QI")
DELIVERY: Final = struct.Struct(">IIQIHBBHIB")
DELIVERY_ONE: Final = struct.Struct(">IIQIHBBHIBH")
"""A delivery with one read tag, in one go; most are such."""

RUN: Final = struct.Struct(">IIIHBIIB")


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

    records: list[bytes]
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
    heads: list[bytes | memoryview] = []
    for position, record in records:
        heads += (RECORD_HEAD.pack(position, len(record)), record)
    items = [pack_delivery(item) for item in deliveries]
    return join_deliver(store_epoch, heads, items, [pack_run(run) for run in runs])


def pack_delivery(item: DeliveryItem) -> bytes:
    tags = item.tags
    if len(tags) == 1:
        return DELIVERY_ONE.pack(*item[:9], 1, tags[0])
    return DELIVERY.pack(*item[:9], len(tags)) + struct.pack(f">{len(tags)}H", *tags)


def pack_run(run: RunItem) -> bytes:
    tags = run.tags
    return RUN.pack(*run[:7], len(tags)) + struct.pack(f">{len(tags)}H", *tags)


def join_deliver(
    store_epoch: int,
    records: Sequence[bytes | memoryview],
    deliveries: Sequence[bytes],
    runs: Sequence[bytes],
) -> bytes:
    """A body from its packed pieces; of a record its head and its bytes."""
    head = HEAD.pack(store_epoch, len(records) >> 1, len(deliveries), len(runs))
    return b"".join((head, *records, *deliveries, *runs))


def decode_deliver(body: bytes | memoryview) -> DeliverBody:
    """Raises PeerError: a length lies outside the body, or a record is named that is not there."""
    data = bytes(body)
    positions: list[int] = []
    records: list[bytes] = []
    deliveries: list[DeliveryItem] = []
    runs: list[RunItem] = []
    try:
        epoch, record_count, delivery_count, run_count = HEAD.unpack_from(data)
        start = HEAD.size
        for _ in range(record_count):
            position, size = RECORD_HEAD.unpack_from(data, start)
            start += RECORD_HEAD.size
            positions.append(position)
            records.append(data[start : start + size])
            start += size
        for _ in range(delivery_count):
            *fields, tag_count = DELIVERY.unpack_from(data, start)
            start += DELIVERY.size
            tags = struct.unpack_from(f">{tag_count}H", data, start)
            start += 2 * tag_count
            deliveries.append(DeliveryItem._make((*fields, tags)))
        for _ in range(run_count):
            *fields, tag_count = RUN.unpack_from(data, start)
            start += RUN.size
            tags = struct.unpack_from(f">{tag_count}H", data, start)
            start += 2 * tag_count
            runs.append(RunItem._make((*fields, tags)))
    except struct.error as error:
        raise PeerError(f"DELIVER body: {error}") from error
    if start > len(data):
        raise PeerError("DELIVER body: a record is longer than what is there")
    if any([item.record_index >= record_count for item in deliveries]) or any(
        [run.first + run.length > record_count for run in runs]
    ):
        raise PeerError("DELIVER body: delivery names a record that is not there")
    return DeliverBody(epoch, positions, records, deliveries, runs)
