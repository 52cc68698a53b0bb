"""
At start: sealed segments below the snapshot are not read again; their index files are enough.

What the snapshot knows of a queue ends at the newest segment that had let go of memory by then.
Index files written since are taken on from their directories; the first segment without one, and
everything from there on, is scanned.
"""

import logging
from typing import Any

from store.core import Core
from store.disk import Disk
from store.index.cold import ColdIndex
from store.index.pages import SUFFIX, index_name
from store.index.rebuilding import rebuilt_draft
from store.log.segments import Segment

_log = logging.getLogger("store.index")


def connect_index(core: Core) -> None:
    """The index belongs to this log, and can be made anew from it."""
    cold = core.cold
    cold.log_id = core.log.log_id
    cold.rebuild = lambda segment: rebuilt_draft(
        core.disk, core.config, segment, lambda queue: _previous(cold, queue, segment.number)
    )


def adopt_indexes(
    core: Core, segments: list[Segment], snapshot_at: int, state: dict[str, Any] | None
) -> int:
    """Use what index files there are; the log position from which the log must be scanned."""
    cold, disk = core.cold, core.disk
    known = state["sealed"] if state is not None else 0
    if state is not None:
        _load_remnants(core, segments, state)
    _remove_others(disk, segments)
    scanned_from = segments[0].base
    for segment in segments[:-1]:
        if segment.number in cold.left:
            scanned_from = segment.end
            continue
        header = cold.read_header(segment) if segment.end <= snapshot_at else None
        if header is None and segment.number > known:
            break
        if header is None:  # the snapshot counts on it
            cold.restore(segment)
        else:
            cold.adopt(header)
            segment.end = header.end
        if segment.number > known:
            _take_on(core, segment.number)
        targets, expires = cold.sparse(segment.number)
        core.entries.targets |= targets
        core.entries.expires |= expires
        core.newest_ms[segment.number] = cold.sealed[segment.number].newest_ms
        scanned_from = segment.end
    return scanned_from


def forget_index(disk: Disk, last: Segment) -> None:
    """
    Before the tail is written anew. The last segment has an index file only if the next one was
    begun and its name was lost: part of what the file lists may move into the next one now.
    """
    name = index_name(last.number)
    if name in disk.names():
        disk.unlink(name)


def _load_remnants(core: Core, segments: list[Segment], state: dict[str, Any]) -> None:
    """Entries that outlived their segments."""
    rows, targets, expires = state.get("remnants", ((), (), ()))
    core.cold.remnants.load(rows)
    core.entries.targets.update(targets)
    core.entries.expires.update(expires)
    # one with a remnant was given up for good, even if the end of its file was lost with the power:
    # moved once more, its entries would leave places that only the snapshot still knows
    given_up = {remnant.number for remnant in core.cold.remnants} | {*state.get("left", ())}
    core.cold.left = {segment.number for segment in segments} & given_up
    for segment in segments[:-1]:  # its end was taken from the next file, which may be far away
        own = core.cold.remnants.get(segment.number)
        above = core.cold.remnants.at_or_after(segment.base)
        if own is not None:
            segment.end = own.end
        elif above is not None:
            segment.end = min(segment.end, above.base)


def _remove_others(disk: Disk, segments: list[Segment]) -> None:
    """Index files whose segment is gone."""
    names = {index_name(segment.number) for segment in segments}
    for name in disk.names():
        if name.endswith(SUFFIX) and name not in names:
            _log.warning("%s: its segment is not there; removed", name)
            disk.unlink(name)


def _take_on(core: Core, number: int) -> None:
    """The segment was sealed after the snapshot's queues were: its directory tells the rest."""
    directory = core.cold.directory(number)
    for index in range(len(directory)):
        row = directory.row(index)
        if core.queues.idle.seal(row.queue, number):
            continue
        queue = core.queues.get(row.queue)
        if queue is not None:
            queue.sealed = number


def _previous(cold: ColdIndex, queue: int, number: int) -> int:
    """Number of the newest sealed segment below *number* that holds the queue; 0: none."""
    numbers = [*cold.sealed, *[remnant.number for remnant in cold.remnants]]
    for earlier in sorted(numbers, reverse=True):
        if earlier < number and cold.directory(earlier).find(queue):
            return earlier
    return 0
