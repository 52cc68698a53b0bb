"""
Frames of a few runs of like messages: what a run shares is worked out once (extra ``speed``).

What publishers send by the hundred in one tick: records of one size, each publisher's next to one
another. The same bytes and the same books as ``appender`` and ``bulk`` make of it, with a fraction
of the columns: positions, offsets and CRCs are all that differs within a run.
"""

from array import array
from collections.abc import Sequence

from protocols.remoting.matrix import Matrix, np
from protocols.remoting.sending import ItemRun, SendFrame
from store.appender import ITEM_BITS, MESSAGE, OpenBlock, Plan, take_places, touched_by
from store.bulk import checksums, entry_type, patch
from store.core import Core


def append_runs(
    core: Core, frame: SendFrame, plans: Sequence[Plan], set_flags: Sequence[int], gateway: int
) -> tuple["array[int]", "array[int]"]:
    """
    Store the frame, whose records are all of one size; (log positions, queue offsets or -1).

    *plans* and *set_flags* (``EntryFlag`` bits) are those of its sets.
    """
    runs, count, entries = frame.runs, frame.item_count, core.entries
    assert runs is not None
    size = runs[0].length
    used = [plans[run.set_index] for run in runs]
    table_bytes = sum(
        [(run.stop - run.first) * plan.size for run, plan in zip(runs, used, strict=True)]
    )
    block = OpenBlock(core, frame.own_records, table_bytes)
    starts = np.arange(block.start, block.start + count * size, size)
    positions = starts + block.records_at
    numbers = array("Q", positions.tobytes())
    stored = np.zeros(count, np.int64)
    offsets = array("q", b"\xff" * 8 * count)  # all -1
    tables: list[Matrix] = []
    for run, plan in zip(runs, used, strict=True):
        first, stop = run.first, run.stop
        part = numbers[first:stop]
        flags = set_flags[run.set_index] | (run.flags & ITEM_BITS)
        table = _table_of(run, plan, flags, part)
        if plan.queue is not None:
            taken = take_places(plan.queue, part)
            table["offset"] = stored[first:stop] = np.arange(taken.start, taken.stop)
            offsets[first:stop] = array("q", stored[first:stop].tobytes())
        tables.append(table)
        entries.orders.extend(array("Q", (run.order_hash,)) * len(part))
        entries.flags.extend(array("H", (flags,)) * len(part))
    patch(block.body, starts, size, positions, stored, core.log.wall_ms)
    crcs = checksums(block.body, starts, starts, size, positions, block.nonce)
    for run, table in zip(runs, tables, strict=True):
        table["crc"] = crcs[run.first : run.stop]
    entries.positions.extend(numbers)
    entries.lengths.extend(array("I", (size,)) * count)
    entries.crcs.frombytes(crcs.tobytes())
    entries.tags.extend(array("i", (0,)) * count)
    block.close(
        [table.tobytes() for table in tables], count, touched_by(used),
        gateway=gateway, gateway_epoch=frame.gateway_epoch, frame=frame.frame, item_count=count,
    )  # fmt: skip
    return numbers, offsets


def _table_of(run: ItemRun, plan: Plan, flags: int, positions: "array[int]") -> Matrix:
    """The entry table of a run, entered in its light queues; what it shares is packed once."""
    places = [take_places(light, positions) for light in plan.lights]
    pairs = [
        value
        for light, taken in zip(plan.lights, places, strict=True)
        for value in (light.number, taken.start)
    ]
    row = plan.pack(
        plan.size, MESSAGE, 0, flags, plan.pair_count, run.length, 0, 0,
        run.order_hash, plan.number, 0, *pairs,
    )  # fmt: skip
    table = np.frombuffer(bytearray(row * len(positions)), entry_type(plan.pair_count))
    for at, taken in enumerate(places):
        table["pair"]["offset"][:, at] = np.arange(taken.start, taken.stop)
    return table
