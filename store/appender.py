"""
Builds the block of a frame: one copy of its records, patched in place, one entry per record.

This is the store's hottest loop (about 1 µs per message in plain Python): positions, offsets and
store time are packed into the copy, the CRC runs over the patched bytes, the index takes the
position. State records that wait go into the same block, before the messages.
"""

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby, repeat
from operator import ne
from struct import Struct
from typing import Final, NamedTuple

from protocols.checksum import crc32, crc_of_size
from store.core import Core
from store.index.lagging import Places
from store.index.queues import Queue
from store.log.format import (
    BLOCK,
    ENTRY,
    M32,
    PAIR,
    Kind,
    entry_struct,
    seed,
    state_entry,
    with_extra,
)
from store.log.messages import (
    BORN_V6,
    QUEUE_OFFSET_AT,
    STORE_TIME_AT,
    STORE_TIME_AT_V6,
    SYS_FLAG_LOW_AT,
)

RUN_LENGTH_MIN: Final = 6
"""Messages of one set next to one another from which handling them as a run pays (measured)."""

MESSAGE: Final = int(Kind.MESSAGE)
ITEM_BITS: Final = 0xF
"""Item flags that are entry flags."""

_two_longs: Final = Struct(">QQ").pack_into
_long: Final = Struct(">Q").pack_into


class Plan:
    """Where the items of one set go: made once per frame, used for each item."""

    __slots__ = ("lights", "number", "pack", "pair_count", "queue", "size")

    def __init__(self, queue: Queue | None, lights: Sequence[Queue]) -> None:
        self.queue = queue
        self.number = queue.number if queue is not None else 0
        self.lights = tuple(lights if len(lights) < 2 else dict.fromkeys(lights))
        self.pair_count = len(self.lights)
        self.pack = entry_struct(self.pair_count).pack
        self.size = ENTRY.size + PAIR.size * self.pair_count

    @property
    def touched(self) -> tuple[Queue, ...]:
        """All of its queues."""
        return self.lights if self.queue is None else (self.queue, *self.lights)


NOWHERE: Final = Plan(None, ())
"""In place of a set whose items are all refused."""


class Draft(NamedTuple):
    """Messages to be stored in one block; columns have one value per message."""

    records: bytearray
    """Back to back; ours to patch."""

    lengths: Sequence[int]
    set_indexes: Sequence[int]
    """Which of *plans* each message follows."""

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


class OpenBlock:
    """A block being built: state records that waited, then the messages of a frame."""

    def __init__(self, core: Core, records: bytearray | memoryview, table_bytes: int) -> None:
        state = core.log.take_state()
        self._core = core
        self.body, self.start = records, 0
        """All records, and where the messages begin in them."""

        if state:
            head = b"".join([payload for _, payload in state])
            self.body, self.start = bytearray(head) + records, len(head)
        table_bytes += ENTRY.size * len(state)
        self._position, self.nonce = core.log.open_block(BLOCK.size + table_bytes + len(self.body))
        self.records_at = at = self._position + BLOCK.size + table_bytes
        """Log position of the body's first byte."""

        self._state_rows: list[bytes] = []
        for kind, payload in state:
            crc = crc32(payload, seed(self.nonce, at)) & M32
            self._state_rows.append(state_entry(kind, len(payload), crc))
            at += len(payload)

    def close(
        self,
        rows: Sequence[bytes],
        count: int,
        touched: Iterable[Queue],
        places: Places | None = None,
        *,
        gateway: int = 0,
        gateway_epoch: int = 0,
        frame: int = 0,
        item_count: int = 0,
        refused_count: int = 0,
    ) -> None:
        """
        *rows*: the entry table of the *count* messages, in pieces; *touched*: their queues, and
        *places* of messages in them.
        """
        core, state_count = self._core, len(self._state_rows)
        core.log.close_block(
            self._position,
            b"".join([*self._state_rows, *rows]),
            self.body,
            state_count + count,
            state_count,
            gateway=gateway,
            gateway_epoch=gateway_epoch,
            frame=frame,
            item_count=item_count,
            refused_count=refused_count,
        )
        core.counters.records += count
        core.counters.record_bytes += len(self.body) - self.start
        core.appended(touched, places)


def append_messages(core: Core, draft: Draft) -> tuple["array[int]", "array[int]"]:
    """Store; (log positions, queue offsets), one per message."""
    entries = core.entries
    count = len(draft.lengths)
    sizes = [plan.size for plan in draft.plans]
    table_bytes = sum([sizes[at] for at in draft.set_indexes])
    if draft.extras is not None:
        table_bytes += sum([len(extra) for extra in draft.extras])
    block = OpenBlock(core, draft.records, table_bytes)
    rows: list[bytes] = []
    offsets, positions, crcs = _fill(
        core, draft, block.body, block.start, block.records_at, block.nonce, rows
    )
    entries.positions.extend(positions)
    entries.lengths.extend(draft.lengths)
    entries.crcs.extend(crcs)
    entries.tags.extend(draft.tags if draft.tags is not None else repeat(0, count))
    entries.orders.extend(draft.orders)
    entries.flags.extend(draft.flags)
    block.close(
        rows,
        count,
        touched_by(draft.plans),
        gateway=draft.gateway,
        gateway_epoch=draft.gateway_epoch,
        frame=draft.frame,
        item_count=draft.item_count,
        refused_count=draft.refused_count,
    )
    return array("Q", positions), array("q", offsets)


def _fill(
    core: Core,
    draft: Draft,
    body: bytearray | memoryview,
    at: int,
    records_at: int,
    nonce: int,
    table: list[bytes],
) -> tuple[list[int], list[int], list[int]]:
    """Patch each record, extend table and queues; (offsets, positions, CRCs)."""
    starts = list(accumulate(draft.lengths, initial=at))
    positions = [start + records_at for start in starts[:-1]]
    set_indexes = draft.set_indexes
    run_count = 1 + sum(map(ne, set_indexes, set_indexes[1:]))
    is_mixed = run_count * RUN_LENGTH_MIN > len(set_indexes)
    entries: list[bytes] = []
    if is_mixed:
        offsets, places = _place_each(draft, positions)
        crcs = _patch(body, starts, positions, offsets, nonce, core.log.wall_ms)
        entries = _mixed_entries(draft, crcs, offsets, places)
    else:
        offsets, runs = _place_runs(draft, positions)
        crcs = _patch(body, starts, positions, offsets, nonce, core.log.wall_ms)
        for run in runs:
            entries += _run_entries(draft, run, crcs, offsets)
    if draft.extras is not None:
        entries = [
            with_extra(entry, extra) for entry, extra in zip(entries, draft.extras, strict=True)
        ]
    table += entries
    return offsets, positions, crcs


class Run(NamedTuple):
    """Messages next to one another that follow one plan."""

    plan: Plan
    first: int
    last: int
    lights: list[range]
    """Per light queue: the offsets they got there."""


def _place_runs(draft: Draft, positions: Sequence[int]) -> tuple[list[int], list[Run]]:
    """Enter the messages in their queues, run by run; (message queue offsets or -1, runs)."""
    runs: list[Run] = []
    offsets: list[int] = []
    first = 0
    for set_index, items in groupby(draft.set_indexes):
        count = len(list(items))
        plan = draft.plans[set_index]
        part = positions[first : first + count]
        if plan.queue is not None:
            offsets += take_places(plan.queue, part)
        else:
            offsets += [-1] * count
        lights = [take_places(light, part) for light in plan.lights]
        runs.append(Run(plan, first, first + count, lights))
        first += count
    return offsets, runs


def _place_each(draft: Draft, positions: Sequence[int]) -> tuple[list[int], list[Sequence[int]]]:
    """The same for sets that alternate; (offsets, pairs of each message)."""
    offsets: list[int] = []
    places: list[Sequence[int]] = []
    plans = draft.plans
    for at, set_index in zip(positions, draft.set_indexes, strict=True):
        plan = plans[set_index]
        queue = plan.queue
        if queue is not None:
            offsets.append(queue.next)
            queue.next += 1
            queue.entries.append(at)
        else:
            offsets.append(-1)
        if plan.pair_count == 1:
            (light,) = plan.lights
            places.append((light.number, light.next))
            light.next += 1
            light.entries.append(at)
        else:
            places.append(place_in(plan.lights, at) if plan.pair_count else ())
    return offsets, places


def _patch(
    body: bytearray | memoryview,
    starts: Sequence[int],
    positions: Sequence[int],
    offsets: Sequence[int],
    nonce: int,
    store_ms: int,
) -> list[int]:
    """Queue offset, log position and store time into each record; their CRCs. The hot loop."""
    view = memoryview(body)
    nonce &= M32  # sums of small numbers are cheaper, and give the same seed
    crc_of = crc_of_size((starts[-1] - starts[0]) // max(1, len(positions)))
    crcs: list[int] = []
    add = crcs.append
    for at, end, position, offset in zip(starts, starts[1:], positions, offsets, strict=False):
        _two_longs(body, at + QUEUE_OFFSET_AT, offset if offset > 0 else 0, position)
        if body[at + SYS_FLAG_LOW_AT] & BORN_V6:
            _long(body, at + STORE_TIME_AT_V6, store_ms)
        else:
            _long(body, at + STORE_TIME_AT, store_ms)
        add(crc_of(view[at:end], (nonce + position) & M32))
    return crcs


def _run_entries(
    draft: Draft, run: Run, crcs: Sequence[int], offsets: Sequence[int]
) -> list[bytes]:
    """Rows of the entry table, one per message of *run*."""
    plan, first, last, lights = run
    pack, number, size, count = plan.pack, plan.number, plan.size, plan.pair_count
    part = slice(first, last)
    lengths, flags, orders = draft.lengths[part], draft.flags[part], draft.orders[part]
    tags: Iterable[int] = repeat(0) if draft.tags is None else draft.tags[part]
    stored: Iterable[int] = offsets[part] if number else repeat(0)
    columns = zip(flags, lengths, crcs[part], tags, orders, stored, strict=False)
    if count == 0:
        return [
            pack(size, MESSAGE, 0, flag, 0, length, crc, tag, order, number, offset)
            for flag, length, crc, tag, order, offset in columns
        ]
    if count == 1:
        light = plan.lights[0].number
        return [
            pack(size, MESSAGE, 0, flag, 1, length, crc, tag, order, number, offset, light, place)
            for (flag, length, crc, tag, order, offset), place in zip(
                columns, lights[0], strict=True
            )
        ]
    numbers = [light.number for light in plan.lights]
    pairs = [
        [value for pair in zip(numbers, places, strict=True) for value in pair]
        for places in zip(*lights, strict=True)
    ]
    return [
        pack(size, MESSAGE, 0, flag, count, length, crc, tag, order, number, offset, *places)
        for (flag, length, crc, tag, order, offset), places in zip(columns, pairs, strict=True)
    ]


def _mixed_entries(
    draft: Draft, crcs: Sequence[int], offsets: Sequence[int], places: Sequence[Sequence[int]]
) -> list[bytes]:
    """``_run_entries`` for sets that alternate."""
    chosen = [draft.plans[set_index] for set_index in draft.set_indexes]
    tags: Iterable[int] = repeat(0) if draft.tags is None else draft.tags
    columns = zip(
        chosen, draft.flags, draft.lengths, crcs, tags, draft.orders, offsets, places, strict=False
    )
    return [
        plan.pack(
            plan.size, MESSAGE, 0, flag, plan.pair_count, length, crc, tag, order, plan.number,
            offset if offset > 0 else 0, *pairs,
        )
        for plan, flag, length, crc, tag, order, offset, pairs in columns
    ]  # fmt: skip


def take_places(queue: Queue, positions: Sequence[int]) -> range:
    """The offsets that *positions* get in *queue*."""
    start = queue.next
    queue.next += len(positions)
    queue.entries.extend(positions)
    return range(start, queue.next)


def place_in(lights: Sequence[Queue], position: int) -> list[int]:
    """Enter *position* in each queue; number, offset, number, offset…"""
    pairs: list[int] = []
    for light in lights:
        place = light.next
        light.next = place + 1
        light.entries.append(position)
        pairs += (light.number, place)
    return pairs


def touched_by(plans: Sequence[Plan]) -> dict[Queue, None]:
    """All of their queues."""
    touched: dict[Queue, None] = {}
    for plan in dict.fromkeys(plans):
        if plan.queue is not None:
            touched[plan.queue] = None
        for light in plan.lights:
            touched[light] = None
    return touched
