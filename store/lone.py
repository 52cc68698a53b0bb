"""
One message alone in its block: of a publisher that waits for each answer, or a lone device.

The same bytes and the same books as ``appender`` makes of it, without its columns: of the time
that such a publish takes, next to the disk's, most is calls.
"""

from struct import Struct
from typing import Final

from protocols.checksum import crc_of_size
from store.appender import MESSAGE, Plan, place_in
from store.core import Core
from store.log.format import BLOCK, M32
from store.log.messages import (
    BORN_V6,
    QUEUE_OFFSET_AT,
    STORE_TIME_AT,
    STORE_TIME_AT_V6,
    SYS_FLAG_LOW_AT,
)

_two_longs: Final = Struct(">QQ").pack_into
_long: Final = Struct(">Q").pack_into


def append_lone(
    core: Core,
    record: bytearray,
    plan: Plan,
    flags: int,
    order: int,
    *,
    gateway: int,
    gateway_epoch: int,
    frame: int,
) -> tuple[int, int]:
    """
    Store *record*, which is ours to patch; (log position, queue offset or -1).

    No state record may be waiting: it would belong into the same block.
    """
    log, size = core.log, len(record)
    block_at, nonce = log.open_block(BLOCK.size + plan.size + size)
    position = block_at + BLOCK.size + plan.size
    queue, offset = plan.queue, -1
    if queue is not None:
        offset = queue.next
        queue.next = offset + 1
        queue.entries.append(position)
    pairs = place_in(plan.lights, position)
    stored = max(0, offset)
    _two_longs(record, QUEUE_OFFSET_AT, stored, position)
    is_v6 = record[SYS_FLAG_LOW_AT] & BORN_V6
    _long(record, STORE_TIME_AT_V6 if is_v6 else STORE_TIME_AT, log.wall_ms)
    crc = crc_of_size(size)(record, (nonce + position) & M32)
    entry = plan.pack(
        plan.size,
        MESSAGE,
        0,
        flags,
        plan.pair_count,
        size,
        crc,
        0,
        order,
        plan.number,
        stored,
        *pairs,
    )
    core.entries.add(position, size, crc, 0, order, flags)
    log.close_block(
        block_at,
        entry,
        record,
        1,
        0,
        gateway=gateway,
        gateway_epoch=gateway_epoch,
        frame=frame,
        item_count=1,
    )
    core.counters.records += 1
    core.counters.record_bytes += size
    core.appended(plan.touched)
    return position, offset
