"""
Builds the block of a frame: one copy of its records, patched in place, one entry per record.

This is the store's hottest loop (about 1 µs per message in plain Python): positions, offsets and
store time are packed into the copy, the CRC runs over the patched bytes, the index takes the
ordinal. State records that wait go into the same block, before the messages.
"""

from array import array
from collections.abc import Iterable, Sequence
from itertools import repeat
from struct import Struct
from typing import Final, NamedTuple

from store.core import Core
from store.index.queues import Queue
from store.log.format import (
    BLOCK,
    ENTRY,
    M32,
    PAIR,
    TARGET,
    EntryFlag,
    Kind,
    crc32,
    entry_struct,
    seed,
    state_entry,
)
from store.log.messages import (
    BORN_V6,
    QUEUE_OFFSET_AT,
    STORE_TIME_AT,
    STORE_TIME_AT_V6,
    SYS_FLAG_LOW_AT,
)

_two_longs: Final = Struct(">QQ").pack_into
_long: Final = Struct(">Q").pack_into


class Plan:
    """Where the items of one set go: made once per frame, used for each item."""

    __slots__ = ("lights", "number", "pack", "pair_count", "queue", "size")

    def __init__(self, queue: Queue | None, lights: Sequence[Queue]) -> None:
        self.queue = queue
        self.number = queue.number if queue is not None else 0
        self.lights = tuple(dict.fromkeys(lights))
        self.pair_count = len(self.lights)
        self.pack = entry_struct(self.pair_count).pack
        self.size = ENTRY.size + PAIR.size * self.pair_count


class Draft(NamedTuple):
    """Messages to be stored in one block; the columns have one value per message."""

    records: bytearray
    """Back to back; ours to patch."""

    lengths: Sequence[int]
    plans: Sequence[Plan]
    flags: Sequence[int]
    """``EntryFlag`` bits."""

    orders: Sequence[int]
    tags: Sequence[int] | None = None
    extras: Sequence[bytes] | None = None
    """Optional fields, encoded."""

    gateway: int = 0
    gateway_epoch: int = 0
    frame: int = 0
    item_count: int = 0
    refused_count: int = 0


def append_messages(core: Core, draft: Draft) -> tuple["array[int]", "array[int]"]:
    """Store; (log positions, queue offsets), one per message."""
    log, entries = core.log, core.entries
    state = log.take_state()
    body, start = draft.records, 0
    if state:
        head = b"".join([payload for _, payload in state])
        body, start = bytearray(head) + body, len(head)
    plans = draft.plans
    table_bytes = ENTRY.size * len(state) + sum([plan.size for plan in plans])
    if draft.extras is not None:
        table_bytes += sum([len(extra) for extra in draft.extras])
    position, nonce = log.open_block(BLOCK.size + table_bytes + len(body))
    records_at = position + BLOCK.size + table_bytes
    table: list[bytes] = []
    at = records_at
    for kind, payload in state:
        table.append(state_entry(kind, len(payload), crc32(payload, seed(nonce, at)) & M32))
        at += len(payload)
    offsets, positions, crcs = _fill(core, draft, body, start, records_at, nonce, table)
    entries.positions.extend(positions)
    entries.lengths.extend(draft.lengths)
    entries.crcs.extend(crcs)
    entries.tags.extend(draft.tags if draft.tags is not None else repeat(0, len(plans)))
    entries.orders.extend(draft.orders)
    entries.flags.extend(draft.flags)
    log.close_block(
        position,
        b"".join(table),
        body,
        len(state) + len(plans),
        len(state),
        gateway=draft.gateway,
        gateway_epoch=draft.gateway_epoch,
        frame=draft.frame,
        item_count=draft.item_count,
        refused_count=draft.refused_count,
    )
    core.counters.records += len(plans)
    core.counters.record_bytes += len(body) - start
    core.appended(_touched(plans))
    return array("Q", positions), array("q", offsets)


def _fill(
    core: Core,
    draft: Draft,
    body: bytearray,
    at: int,
    records_at: int,
    nonce: int,
    table: list[bytes],
) -> tuple[list[int], list[int], list[int]]:
    """Patch each record, extend table and queues; (offsets, positions, CRCs)."""
    store_ms = core.log.wall_ms
    view = memoryview(body)
    offsets: list[int] = []
    positions: list[int] = []
    crcs: list[int] = []
    ordinal = core.entries.end
    position = records_at + at
    kind = int(Kind.MESSAGE)
    extras: Iterable[bytes] = repeat(b"") if draft.extras is None else draft.extras
    tags: Iterable[int] = repeat(0) if draft.tags is None else draft.tags
    columns = zip(draft.lengths, draft.plans, draft.flags, draft.orders, extras, tags, strict=False)
    for length, plan, flags, order, extra, tag in columns:
        queue = plan.queue
        if queue is not None:
            offset = queue.next
            queue.next = offset + 1
            queue.entries.append(ordinal)
            offsets.append(offset)
        else:
            offset = 0
            offsets.append(-1)
        _two_longs(body, at + QUEUE_OFFSET_AT, offset, position)
        is_v6 = body[at + SYS_FLAG_LOW_AT] & BORN_V6
        _long(body, at + (STORE_TIME_AT_V6 if is_v6 else STORE_TIME_AT), store_ms)
        end = at + length
        crc = crc32(view[at:end], (nonce + position) & M32)
        crcs.append(crc)
        positions.append(position)
        count = plan.pair_count
        size = plan.size + len(extra)
        if count == 0:
            entry = plan.pack(size, kind, 0, flags, 0, length, crc, tag, order, plan.number, offset)
        elif count == 1:
            light = plan.lights[0]
            place = light.next
            light.next = place + 1
            light.entries.append(ordinal)
            entry = plan.pack(
                size, kind, 0, flags, 1, length, crc, tag, order, plan.number, offset,
                light.number, place,
            )  # fmt: skip
        else:
            pairs = place_in(plan.lights, ordinal)
            entry = plan.pack(
                size, kind, 0, flags, count, length, crc, tag, order, plan.number, offset, *pairs
            )
        table.append(entry + extra if extra else entry)
        ordinal += 1
        position += length
        at = end
    return offsets, positions, crcs


def place_in(lights: Sequence[Queue], ordinal: int) -> list[int]:
    """Enter *ordinal* in each queue; number, offset, number, offset…"""
    pairs: list[int] = []
    for light in lights:
        place = light.next
        light.next = place + 1
        light.entries.append(ordinal)
        pairs += (light.number, place)
    return pairs


def _touched(plans: Sequence[Plan]) -> dict[Queue, None]:
    touched: dict[Queue, None] = {}
    for plan in dict.fromkeys(plans):
        if plan.queue is not None:
            touched[plan.queue] = None
        for light in plan.lights:
            touched[light] = None
    return touched


def append_index(
    core: Core, target: int, lights: Sequence[Queue], row: tuple[int, int, int]
) -> int:
    """
    An index record: the message at *target* enters *lights*; the entry's position.

    *row*: (tag hash, order hash, flags) of the message. State that waits (the ack of the delivery
    that caused it) goes into the same block.
    """
    log, entries = core.log, core.entries
    state = log.take_state()
    tag, order, flags = row
    flags |= EntryFlag.HAS_TARGET
    payload = TARGET.pack(target)
    entry_bytes = ENTRY.size + PAIR.size * len(lights) + TARGET.size
    table_bytes = ENTRY.size * len(state) + entry_bytes
    body = b"".join([*[payload for _, payload in state], payload])
    position, nonce = log.open_block(BLOCK.size + table_bytes + len(body))
    at = position + BLOCK.size + table_bytes
    table: list[bytes] = []
    for kind, part in state:
        table.append(state_entry(kind, len(part), crc32(part, seed(nonce, at)) & M32))
        at += len(part)
    crc = crc32(payload, seed(nonce, at)) & M32
    ordinal = entries.add(at, len(payload), crc, tag, order, flags)
    entries.targets[ordinal] = target
    pairs = place_in(lights, ordinal)
    entry = entry_struct(len(lights)).pack(
        entry_bytes, Kind.INDEX, 0, flags, len(lights), len(payload), crc, tag, order, 0, 0, *pairs
    )
    table.append(entry + TARGET.pack(target))
    log.close_block(position, b"".join(table), body, len(table), len(table))
    core.appended(lights)
    return at
