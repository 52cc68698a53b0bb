"""
The short way out: groups that nobody acks, as an MQTT session that is not kept is.

There is nothing to keep of such a delivery but how far the group has come, and a tick may have
hundreds of such groups with a message or two each: what a stream costs then decides how soon the
last of them is served. Whatever is unusual takes the long way (``Deliveries.take``), which does the
same for any group.
"""

from array import array
from bisect import bisect_left, bisect_right
from typing import Final, NamedTuple

from protocols.tuples import new_tuple
from store.groups.group import Group, GroupRead
from store.index.entries import Entries
from store.log.cache import RecentBlocks

GRANTED_FLAGS: Final = 0x7
"""QoS and retain bits."""


class Stretch(NamedTuple):
    """Deliveries of one group, which differ in nothing but their record."""

    positions: "array[int]"
    lengths: list[int]
    """Of the records."""

    pieces: list[memoryview]
    """Bytes of the records, neighbours as one piece."""

    byte_count: int
    flags: int
    tags: tuple[int, ...]

    def part(self, start: int, stop: int) -> "Stretch":
        """Some of it."""
        sizes = self.lengths[start:stop]
        skipped, left = sum(self.lengths[:start]), sum(sizes)
        pieces: list[memoryview] = []
        for piece in self.pieces:
            if skipped >= len(piece):
                skipped -= len(piece)
            elif left:
                pieces.append(piece[skipped : skipped + left])
                skipped, left = 0, left - len(pieces[-1])
        return self._replace(
            positions=self.positions[start:stop],
            lengths=sizes,
            pieces=pieces,
            byte_count=sum(sizes),
        )


Part = tuple[GroupRead, "array[int]"]
"""A read and what is new there."""


def take_unacked(
    group: Group, entries: Entries, cache: RecentBlocks, count: int
) -> list[Stretch] | None:
    """
    The next up to *count* new entries of *group*, done with this call.

    None: the long way must look, and nothing has changed: the group is of another kind, or its
    entries differ, are not in memory, or expire.
    """
    spec = group.spec
    if not (spec.is_auto_ack and spec.is_volatile) or spec.is_fifo or spec.is_priority:
        return None
    if group.guard is not None or group.returned or group.live_from:
        return None
    if group.attempts or group.marks or entries.expires or entries.targets:
        return None
    parts: list[Part] = []
    for read in list(group.ready):
        queue = read.queue
        at, first = read.at, queue.hot_first
        if at < first or read.stop_at >= 0 or queue.has_gaps:
            return None
        positions: array[int] = queue.entries[at - first : at - first + count]
        if positions:
            parts.append((read, positions))
        else:
            group.ready.pop(read, None)
    if not parts:
        return []
    if len(parts) > 1:
        return _take_merged(group, parts, entries, cache, count)
    read, positions = parts[0]
    found = _gather(positions, entries, cache, (read.tag,))
    if found is None:
        return None
    _move(group, read, len(positions))
    group.top = group.last_done = positions[-1]
    return [found]


def _take_merged(
    group: Group, parts: list[Part], entries: Entries, cache: RecentBlocks, count: int
) -> list[Stretch] | None:
    """Each entry once, in order, with the tags of all reads that have it."""
    tags: dict[int, tuple[int, ...]] = {}
    for read, positions in parts:
        only = (read.tag,)
        for position in positions:
            known = tags.get(position)
            if known is None:
                tags[position] = only
            elif read.tag not in known:
                tags[position] = tuple(sorted((*known, read.tag)))
    chosen = sorted(tags)[:count]
    stretches: list[Stretch] = []
    start = 0
    while start < len(chosen):
        kind, stop = tags[chosen[start]], start + 1
        while stop < len(chosen) and tags[chosen[stop]] == kind:
            stop += 1
        found = _gather(array("Q", chosen[start:stop]), entries, cache, kind)
        if found is None:
            return None
        stretches.append(found)
        start = stop
    last = chosen[-1]
    for read, positions in parts:
        _move(group, read, bisect_right(positions, last))
    group.top = group.last_done = last
    return stretches


def _move(group: Group, read: GroupRead, count: int) -> None:
    read.at += count
    if read.at >= read.queue.next:
        group.ready.pop(read, None)


def _gather(
    positions: "array[int]", entries: Entries, cache: RecentBlocks, tags: tuple[int, ...]
) -> Stretch | None:
    kept, kept_lengths, kept_flags = entries.positions, entries.lengths, entries.flags
    if positions[0] < entries.hot_from:
        return None
    if len(positions) == 1:
        return _gather_one(positions, entries, cache, tags)
    lengths: list[int] = []
    pieces: list[memoryview] = []
    byte_count, flags = 0, -1
    start, count, index = 0, len(positions), 0
    while start < count:
        position = positions[start]
        index = bisect_left(kept, position, index)
        stop = index + count - start
        if kept[index:stop] != positions[start:]:
            stop = _stop_of_neighbours(kept, index, positions, start)
        sizes = kept_lengths[index:stop].tolist()
        bits = kept_flags[index:stop].tolist()
        if flags < 0 and bits:
            flags = bits[0]
        if not bits or bits.count(flags) != len(bits):
            return None
        size = sum(sizes)
        if positions[start + len(sizes) - 1] + sizes[-1] - position != size:
            del sizes[_adjoining(positions, start, sizes) :]  # heads of blocks lie between them
            size = sum(sizes)
        cached = cache.find(position)
        if cached is None:
            return None
        buffer, place = cached
        piece = memoryview(buffer)[place : place + size]
        if len(piece) != size:
            return None  # the end of a block
        pieces.append(piece)
        lengths += sizes
        byte_count += size
        start += len(sizes)
        index += len(sizes)
    flags &= GRANTED_FLAGS
    found: Stretch = new_tuple(Stretch, (positions, lengths, pieces, byte_count, flags, tags))
    return found


def _gather_one(
    positions: "array[int]", entries: Entries, cache: RecentBlocks, tags: tuple[int, ...]
) -> Stretch | None:
    """The same for a single one, as most streams of a paced load have in a tick."""
    position = positions[0]
    index = bisect_left(entries.positions, position)
    cached = cache.find(position)
    if cached is None or index == len(entries.positions):
        return None
    if entries.positions[index] != position:
        return None
    size = entries.lengths[index]
    buffer, place = cached
    piece = memoryview(buffer)[place : place + size]
    if len(piece) != size:
        return None
    flags = entries.flags[index] & GRANTED_FLAGS
    found: Stretch = new_tuple(Stretch, (positions, [size], [piece], size, flags, tags))
    return found


def _adjoining(positions: "array[int]", start: int, sizes: list[int]) -> int:
    """How many records from *start* on lie side by side in the log."""
    count = 1
    while (
        count < len(sizes)
        and positions[start + count] == positions[start + count - 1] + sizes[count - 1]
    ):
        count += 1
    return count


def _stop_of_neighbours(kept: "array[int]", index: int, positions: "array[int]", start: int) -> int:
    """Where the entries that are neighbours in the index and in *positions* end, in the index."""
    count, total = len(positions), len(kept)
    while index < total and start < count and kept[index] == positions[start]:
        index += 1
        start += 1
    return index
