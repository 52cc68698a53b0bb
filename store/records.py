"""
Stored records that are asked for together: neighbours in the log, mostly.

Each is found near the one before in the index, and verified in the same chunk of the disk.
"""

import struct
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from store.core import Core
from store.disk import Buffer
from store.index.entries import NEAR
from store.index.remnants import Remnant
from store.log.format import M32, crc_of_size

_U32: Final = struct.Struct(">I")


class _Taking:
    """Records asked for together, and how far it went."""

    __slots__ = ("at", "found", "is_any", "positions", "room")

    def __init__(self, positions: Sequence[int], room: int, *, is_any: bool) -> None:
        self.positions = positions
        self.room = room
        self.is_any = is_any
        self.at = 0
        self.found: list[bytes | memoryview] = []

    def take(self, record: bytes | memoryview, size: int) -> bool:
        """False: it does not fit any more."""
        if size > self.room and (self.found or self.is_any):
            return False
        self.room -= size
        self.at += 1
        self.found.append(record)
        return True


class Neighbours:
    """Reads many records; they may lie anywhere in the log."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def take(
        self, positions: Sequence[int], bytes_max: int, *, is_any: bool
    ) -> list[bytes | memoryview]:
        """
        The records at *positions*, as many as fit *bytes_max*; the first in any case, unless
        there *is any* already. Raises Refused if one cannot be read.
        """
        taking = _Taking(positions, bytes_max, is_any=is_any)
        is_full = False
        while taking.at < len(positions) and not is_full:
            cached = self._core.cache.find(positions[taking.at])
            is_full = self._take_read(taking) if cached is None else _take_cached(taking, *cached)
        return taking.found

    def _take_read(self, taking: _Taking) -> bool:
        """What lies in one chunk of the disk and one index; True: no more fits."""
        core = self._core
        positions, first, last = taking.positions, taking.at, len(taking.positions)
        position = positions[first]
        columns, index = core.entries.locate(position)
        segment = core.log.segments.find(position)
        if index < 0 or isinstance(columns, Remnant) or segment is None:
            alone = core.record_at(position)
            return not taking.take(alone, len(alone))
        size = columns.lengths[index]
        start, chunk = core.chunk_with(segment, position, size)
        view, end, nonce = memoryview(chunk), start + len(chunk), segment.nonce
        kept, lengths, crcs = columns.positions, columns.lengths, columns.crcs
        count = len(kept)
        while position + size <= end:
            record = view[position - start : position - start + size]
            if crc_of_size(size)(record, (nonce + position) & M32) != crcs[index]:
                break
            if not taking.take(record, size):
                return True
            if taking.at == last:
                return False
            position = positions[taking.at]
            if not start <= position < end:
                return False
            index += 1
            if index == count or kept[index] != position:
                index = bisect_left(kept, position, index, min(index + NEAR, count))
                if index == count or kept[index] != position:
                    return False
            size = lengths[index]
        if taking.at == first:  # too long for a chunk, or rotten
            return not taking.take(core.record_at(position), size)
        return False


def _take_cached(taking: _Taking, buffer: Buffer, at: int) -> bool:
    """What lies in one block that was written a moment ago; True: no more fits."""
    view = memoryview(buffer)
    positions = taking.positions
    start = positions[taking.at] - at
    end = start + len(view)
    for position in positions[taking.at :]:
        if not start <= position < end:
            return False
        (size,) = _U32.unpack_from(view, position - start)
        if not taking.take(view[position - start : position - start + size], size):
            return True
    return False
