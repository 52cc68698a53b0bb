"""
Stored records that are asked for together: neighbours in the log, mostly.

Neighbours are found in the index, verified and handed on together: a run of them is one piece.
"""

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from protocols.checksum import crc_of_size
from store.core import Core
from store.index.entries import NEAR, Columns
from store.index.remnants import Remnant
from store.log.format import M32

Piece = bytes | memoryview

LENGTH_BYTES: Final = 4
"""A record begins with its length."""


class _Taking:
    """Records asked for together, and how far it went."""

    __slots__ = ("at", "is_any", "is_full", "lengths", "may_wait", "pieces", "positions", "room")

    def __init__(
        self, positions: Sequence[int], room: int, *, is_any: bool, may_wait: bool = False
    ) -> None:
        self.positions = positions
        self.room = room
        self.is_any = is_any
        self.may_wait = may_wait
        self.is_full = False
        self.at = 0
        self.pieces: list[Piece] = []
        self.lengths: list[int] = []

    def take(self, view: memoryview, start: int, lengths: Sequence[int]) -> None:
        """The next records, each of which lies in *view*, whose first byte is at *start*."""
        count, total = len(lengths), sum(lengths)
        if total > self.room:
            count, total = self._fitting(lengths)
            self.is_full = True
            if not count:
                return
            lengths = lengths[:count]
        self.lengths += lengths
        first = self.at
        at = self.positions[first]
        self.at += count
        self.room -= total
        if self.positions[first + count - 1] + lengths[count - 1] == at + total:
            self.pieces.append(view[at - start : at - start + total])
            return
        run_at = end = at
        for index in range(count):
            at = self.positions[first + index]
            if at != end:
                self.pieces.append(view[run_at - start : end - start])
                run_at = at
            end = at + lengths[index]
        self.pieces.append(view[run_at - start : end - start])

    def _fitting(self, lengths: Sequence[int]) -> tuple[int, int]:
        """(how many there is room for, their bytes); the very first in any case."""
        sums = list(accumulate(lengths))
        count = bisect_right(sums, self.room)
        if count == 0 and self.at == 0 and not self.is_any:
            count = 1
        return count, sums[count - 1] if count else 0

    def take_alone(self, record: Piece) -> None:
        self.take(memoryview(record), self.positions[self.at], (len(record),))


class Neighbours:
    """Reads many records; they may lie anywhere in the log."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def take(
        self, positions: Sequence[int], bytes_max: int, *, is_any: bool, may_wait: bool
    ) -> tuple[list[Piece], int, int]:
        """
        (pieces, count, bytes) of the records at ascending *positions*, as many as fit *bytes_max*.

        The first in any case, unless there *is any* already. Raises Refused if one cannot be
        read; Coming if it *may wait* for the disk.
        """
        taking = self._taken(_Taking(positions, bytes_max, is_any=is_any, may_wait=may_wait))
        return taking.pieces, taking.at, bytes_max - taking.room

    def all_of(self, positions: Sequence[int]) -> tuple[list[int], list[Piece]]:
        """(the length of each, pieces) of the records at ascending *positions*. Raises Refused."""
        taking = self._taken(_Taking(positions, sys.maxsize, is_any=False))
        return taking.lengths, taking.pieces

    def _taken(self, taking: _Taking) -> _Taking:
        positions = taking.positions
        count = len(positions)
        while taking.at < count and not taking.is_full:
            cached = self._core.cache.find(positions[taking.at])
            if cached is None:
                self._take_read(taking)
            else:
                buffer, at = cached
                self._take_cached(taking, memoryview(buffer), positions[taking.at] - at)
        return taking

    def _take_cached(self, taking: _Taking, view: memoryview, start: int) -> None:
        """What lies in one block that was written a moment ago."""
        positions = taking.positions
        stop = bisect_left(positions, start + len(view), taking.at)
        part = positions[taking.at : stop]
        lengths: Sequence[int] | None = self._core.entries.lengths_of_neighbours(part)
        if lengths is None:
            word = LENGTH_BYTES
            heads = [view[at - start : at - start + word] for at in part]
            lengths = [int.from_bytes(head, "big") for head in heads]
        taking.take(view, start, lengths)

    def _take_read(self, taking: _Taking) -> None:
        """What lies in one chunk of the disk and one index."""
        core = self._core
        positions, first = taking.positions, taking.at
        position = positions[first]
        columns, index = core.entries.locate(position)
        segment = core.log.segments.find(position)
        if index < 0 or isinstance(columns, Remnant) or segment is None:
            taking.take_alone(core.record_at(position))
            return
        size, may_wait = columns.lengths[index], taking.may_wait
        start, chunk = core.chunk_with(segment, position, size, may_wait=may_wait)
        end, view = start + len(chunk), memoryview(chunk)
        stop = bisect_left(positions, end, first)
        part = positions[first:stop]
        lengths, crcs = _facts(columns, index, part)
        count = len(lengths)
        if count == 0:  # the disk cannot read it
            taking.take_alone(core.record_at(position))
            return
        if part[count - 1] + lengths[count - 1] > end:
            count -= 1  # the last one goes on in the next chunk
        found = _crcs(view, segment.nonce + start, position - start, part, lengths, count)
        if found != crcs[:count]:
            count = [one == two for one, two in zip(found, crcs, strict=False)].index(False)
        if count:
            taking.take(view, start, lengths[:count])
        else:  # too long for a chunk, or rotten
            taking.take_alone(core.record_at(position))


def _crcs(
    view: memoryview,
    seed: int,
    at: int,
    positions: Sequence[int],
    lengths: Sequence[int],
    count: int,
) -> list[int]:
    """
    Of *count* records, the first of which is at *at* in *view*; *seed*: of what would be at 0.

    Hundreds of thousands a second: no more is done for each than must be, and least for alike
    neighbours, as a producer's batches are. (A CRC takes the lower 32 bits of its seed.)
    """
    size = lengths[0]
    crc_of, seed = crc_of_size(size), seed & M32
    end = at + count * size
    is_run = count and positions[count - 1] - positions[0] + at + size == end
    if is_run and lengths[:count] == [size] * count:
        return [crc_of(view[at : at + size], seed + at) for at in range(at, end, size)]
    start = positions[0] - at
    return [
        crc_of(view[at - start : at - start + size], seed + at - start)
        for at, size in zip(positions, lengths[:count], strict=False)
    ]


def _facts(
    columns: Columns, index: int, positions: Sequence[int]
) -> tuple[Sequence[int], list[int]]:
    """(length, CRC) of the entries at *positions*, the first of which is at *index*."""
    kept, count = columns.positions, len(positions)
    if kept[index : index + count] == positions:
        stop = index + count
        return columns.lengths[index:stop].tolist(), columns.crcs[index:stop].tolist()
    indexes: list[int] = []
    size = len(kept)
    for position in positions:
        if kept[index] != position:
            index = bisect_left(kept, position, index, min(index + NEAR, size))
            if index == size or kept[index] != position:
                break
        indexes.append(index)
        index += index + 1 < size
    lengths, crcs = columns.lengths, columns.crcs
    return [lengths[at] for at in indexes], [crcs[at] for at in indexes]
