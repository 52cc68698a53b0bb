"""
Facts of every kept entry, as columns.

An entry's *ordinal* counts entries in log order, from 0 at this start of the process; queues hold
ordinals, so that merging queues by entry position is merging integers, and each fact is one array
access away. Nothing here is on disk.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence


class Entries:
    """Position, length, CRC, tag hash, order hash and flags by ordinal."""

    __slots__ = (
        "base",
        "crcs",
        "expires",
        "flags",
        "lengths",
        "orders",
        "positions",
        "tags",
        "targets",
        "visible",
    )

    def __init__(self) -> None:
        self.base = 0
        """Ordinal of the first entry still kept."""

        self.visible = 0
        """Ordinals below are durable."""

        self.positions = array("Q")
        self.lengths = array("I")
        self.crcs = array("I")
        self.tags = array("i")
        self.orders = array("Q")
        self.flags = array("H")
        self.targets: dict[int, int] = {}
        """Index records: ordinal → log position of the message they point to."""

        self.expires: dict[int, int] = {}
        """Ordinal → wall time, for entries that expire."""

    @property
    def end(self) -> int:
        """Ordinal of the next entry."""
        return self.base + len(self.positions)

    def add(self, position: int, length: int, crc: int, tag: int, order: int, flags: int) -> int:
        """One entry; its ordinal. (Frames extend the columns in one go.)"""
        ordinal = self.base + len(self.positions)
        self.positions.append(position)
        self.lengths.append(length)
        self.crcs.append(crc)
        self.tags.append(tag)
        self.orders.append(order)
        self.flags.append(flags)
        return ordinal

    def ordinal_from(self, position: int) -> int:
        """Ordinal of the first entry at or above *position*."""
        return self.base + bisect_left(self.positions, position)

    def ordinal_at(self, position: int) -> int:
        """Ordinal of the entry at *position*; -1: none."""
        index = bisect_left(self.positions, position)
        if index < len(self.positions) and self.positions[index] == position:
            return self.base + index
        return -1

    def ordinals_at(self, positions: Iterable[int]) -> dict[int, int]:
        """Position → ordinal, of those that have an entry, ascending."""
        found = {position: self.ordinal_at(position) for position in sorted(positions)}
        return {position: ordinal for position, ordinal in found.items() if ordinal >= 0}

    def positions_of(self, ordinals: Sequence[int]) -> list[int]:
        positions, base = self.positions, self.base
        return [positions[ordinal - base] for ordinal in ordinals]

    def end_of(self, position: int) -> int:
        """Log position behind the record of the entry at *position*."""
        ordinal = self.ordinal_at(position)
        return position if ordinal < 0 else position + self.lengths[ordinal - self.base]

    def drop_before(self, position: int) -> int:
        """Forget entries below *position*; the ordinal of the first one kept."""
        count = bisect_left(self.positions, position)
        columns = (self.positions, self.lengths, self.crcs, self.tags, self.orders, self.flags)
        for column in columns:
            del column[:count]
        self.base += count
        for sparse in (self.targets, self.expires):
            for ordinal in [key for key in sparse if key < self.base]:
                del sparse[ordinal]
        return self.base
