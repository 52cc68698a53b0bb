"""
Which entries a group is offered next: pure decisions over its read set.

Returned entries come first; then new ones, merged over the queues of the read set by entry
position. An entry met in several queues is one delivery.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from typing import Final, NamedTuple

from store.groups.group import HELD_MAX, Group, GroupRead
from store.index.entries import NO_LIMIT, Entries
from store.log.format import EntryFlag


class Wanted(NamedTuple):
    """What a take asks for."""

    count_max: int
    limit: int
    """Ordinals below may be seen."""

    wall_ms: int
    tag_of: Callable[[int], int]
    """Tag hash by ordinal, for entries stored without it."""

    topic: str = ""
    queue_id: int = -1
    tag_hashes: frozenset[int] = frozenset()
    matches: Callable[[int], bool] | None = None
    """Filter by ordinal, which reads the message."""

    in_runs: bool = False
    """FIFO: what follows a message in its order may come along."""


Passed = tuple[GroupRead, Sequence[int]]
"""(a read that was moved, the entries it went past)"""

LOOKED_MAX: Final = 2000
"""Entries that one take with a filter looks at; the rest waits for the next turn."""


class Fresh:
    """New entries: what to grant, what to hold, how far the reads went."""

    __slots__ = ("held", "is_cut", "ordinals", "passed", "turns")

    def __init__(self) -> None:
        self.ordinals: list[int] = []
        self.held: list[int] = []
        self.passed: list[Passed] = []
        """How far the reads went; one may be in it more than once."""

        self.turns: dict[int, bool] = {}
        """FIFO: orders that are out → whether what follows may come along."""

        self.is_cut = False
        """It stopped at ``LOOKED_MAX``: look again soon."""


class Selected(NamedTuple):
    """What a group is offered."""

    back: list[int]
    """Positions that were returned."""

    fresh: Fresh | None
    """None: there was no room, or nothing to look at."""

    order: list[int] | None
    """All of it in the order of delivery, where that is not the order of positions."""


def reads_for(group: Group, wanted: Wanted) -> list[GroupRead]:
    """Ready reads that the request is about."""
    if not wanted.topic:
        return list(group.ready)
    return [
        read
        for read in group.ready
        if read.topic == wanted.topic and wanted.queue_id in (-1, read.queue.queue_id)
    ]


def select_returned(group: Group, wanted: Wanted) -> list[int]:
    """Positions that came back and may go out again, in order."""
    if not wanted.topic and not wanted.tag_hashes:
        return group.returned[: wanted.count_max]
    reads = [
        read
        for read in group.reads.values()
        if not wanted.topic
        or (read.topic == wanted.topic and wanted.queue_id in (-1, read.queue.queue_id))
    ]
    chosen: list[int] = []
    for position in group.returned:
        if any([read.covers(group.open[position]) for read in reads]):
            chosen.append(position)
            if len(chosen) == wanted.count_max:
                break
    return chosen


def with_runs(group: Group, chosen: list[int], wanted: Wanted) -> tuple[list[int], set[int]]:
    """
    *chosen*, and behind each what waits for it, where nothing else of its order is out.

    Also the orders of which nothing waits any more: what is new of them may come along.
    """
    room = wanted.count_max - len(chosen)
    found = list(chosen)
    followed: set[int] = set()
    for position in chosen:
        order = group.order_of(group.open[position])
        if not order or order in group.followers:
            continue
        waiting = group.held.get(order, ())
        run = [at for at in islice(waiting, room) if is_about(group, at, wanted)]
        found += run
        room -= len(run)
        if len(run) == len(waiting):
            followed.add(order)
    return sorted(found), followed


def is_about(group: Group, position: int, wanted: Wanted) -> bool:
    """It is in a queue that *wanted* names."""
    return not wanted.topic or any(
        [
            read.topic == wanted.topic
            and wanted.queue_id in (-1, read.queue.queue_id)
            and read.covers(group.open[position])
            for read in group.reads.values()
        ]
    )


def select_fresh(
    group: Group,
    wanted: Wanted,
    entries: Entries,
    count: int,
    followed: Collection[int] = (),
) -> Fresh:
    """
    Up to *count* new entries; moves the reads. Of a priority topic: higher queues first.

    *followed*: orders that are out by this very take, as far as it goes.
    """
    reads = reads_for(group, wanted)
    fresh = Fresh()
    if group.spec.is_fifo:
        fresh.turns = dict.fromkeys(group.turns, False) | dict.fromkeys(followed, True)
    if not group.spec.is_priority:
        _select(group, reads, wanted, entries, count, fresh)
        return fresh
    for read in sorted(reads, key=lambda read: -read.queue.queue_id):
        if len(fresh.ordinals) < count and not fresh.is_cut:
            _select(group, [read], wanted, entries, count, fresh)
    return fresh


def _select(
    group: Group,
    reads: list[GroupRead],
    wanted: Wanted,
    entries: Entries,
    count: int,
    fresh: Fresh,
) -> None:
    """Add new entries of *reads* to *fresh*, up to *count* in all."""
    spec = group.spec
    has_filter = bool(wanted.tag_hashes) or wanted.matches is not None
    is_plain = not has_filter and not spec.is_fifo and not entries.expires and not group.live_from
    looked = 0
    while len(fresh.ordinals) < count and reads:
        want = count - len(fresh.ordinals)
        ordinals, passed = scan(group, reads, wanted.limit, want if is_plain else max(want, 32))
        if not ordinals:
            break
        fresh.passed += passed
        if is_plain:
            fresh.ordinals += ordinals
            if len(fresh.ordinals) < count:
                reads = [read for read in reads if read in group.ready]
            continue
        taken = _sift(group, ordinals, wanted, entries, fresh, want)
        looked += taken
        if taken < len(ordinals):  # enough: look at the rest again next time
            _rewind(group, passed, ordinals[taken])
            break
        if group.held_count + len(fresh.held) >= HELD_MAX:
            break
        reads = [read for read in reads if read in group.ready]
        if looked >= LOOKED_MAX and has_filter:
            fresh.is_cut = bool(reads)
            break


def scan(
    group: Group, reads: Sequence[GroupRead], limit: int, count: int
) -> tuple[list[int], list[Passed]]:
    """
    The next up to *count* ordinals over *reads*, each once, ascending; reads moved past them.

    A read that has come to its end is not ready any more.
    """
    slices: list[tuple[GroupRead, Sequence[int], int]] = []
    bound = NO_LIMIT
    ready = group.ready
    for read in reads:
        queue = read.queue
        read.at = queue.seek(read.at)
        end = queue.visible_end(limit)
        if 0 <= read.stop_at < end:
            end = read.stop_at
        if read.at < end:
            part = queue.slice(read.at, min(read.at + count, end))
            slices.append((read, part, end))
            if len(part) < count and read.at + len(part) < end:
                bound = min(bound, part[-1])  # what follows in this queue is on another page
        else:
            ready.pop(read, None)
    if not slices:
        return [], []
    if len(slices) == 1 and not slices[0][0].queue.has_gaps:
        read, part, end = slices[0]
        read.at += len(part)
        if read.at >= end:
            ready.pop(read, None)
        return list(part), [(read, part)]
    merged: set[int] = set()
    for _, part, _ in slices:
        merged.update(part)
    chosen = sorted(merged)[:count]
    if chosen[-1] > bound:
        chosen = chosen[: bisect_right(chosen, bound)]
    passed: list[Passed] = []
    last = chosen[-1]
    for read, part, end in slices:
        if part[-1] > last:
            part = part[: bisect_right(part, last)]
        if part:
            read.at += len(part)
            passed.append((read, part))
            if read.at >= end:
                ready.pop(read, None)
    return chosen, passed


def _rewind(group: Group, passed: Sequence[Passed], ordinal: int) -> None:
    """The reads continue at *ordinal*."""
    for read, _ in passed:
        read.at = min(read.at, read.queue.offset_from(ordinal))
        group.ready[read] = None


def _sift(
    group: Group,
    ordinals: Sequence[int],
    wanted: Wanted,
    entries: Entries,
    fresh: Fresh,
    want: int,
) -> int:
    """Sort *ordinals* into granted, held and done; how many were looked at."""
    turns = fresh.turns
    granted_before = len(fresh.ordinals)
    for looked, ordinal in enumerate(ordinals):
        if len(fresh.ordinals) - granted_before == want:
            return looked
        columns, index = entries.locate(ordinal)
        if index < 0 or _is_void(group, ordinal, wanted, entries):
            continue
        if wanted.tag_hashes:
            has_tag = columns.flags[index] & EntryFlag.HAS_TAG
            tag = columns.tags[index] if has_tag else wanted.tag_of(ordinal)
            if tag not in wanted.tag_hashes:
                continue
        if wanted.matches is not None and not wanted.matches(ordinal):
            continue
        is_live_only = group.live_from and not columns.flags[index] & EntryFlag.QOS
        if is_live_only and ordinal < group.live_from:
            continue
        order = columns.orders[index] or group.queue_order(ordinal) if group.spec.is_fifo else 0
        if order and not turns.setdefault(order, True):
            fresh.held.append(ordinal)
            continue
        if order:
            turns[order] = wanted.in_runs
        fresh.ordinals.append(ordinal)
    return len(ordinals)


def _is_void(group: Group, ordinal: int, wanted: Wanted, entries: Entries) -> bool:
    """Expired: nobody should get it."""
    expires_at_ms = entries.expires.get(ordinal, 0) if entries.expires else 0
    return 0 < expires_at_ms <= wanted.wall_ms
