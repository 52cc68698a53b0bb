"""
Facts of every kept entry, as columns.

An entry is named by its log position: queues hold positions, so that merging queues by entry
position is merging integers. Columns are ascending by position; facts are found by bisection.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

NO_LIMIT: Final = 1 << 63
"""Above every position."""

NEAR: Final = 32
"""Entries behind the last one found among which the next one is looked for first."""


class Columns:
    """Position, length, CRC, tag hash, order hash and flags of some entries, ascending."""

    __slots__ = ("crcs", "flags", "lengths", "orders", "positions", "tags")

    def __init__(self) -> None:
        self.positions = array("Q")
        self.lengths = array("I")
        self.crcs = array("I")
        self.tags = array("i")
        self.orders = array("Q")
        self.flags = array("H")

    def index_of(self, position: int) -> int:
        """-1: no entry there."""
        index = bisect_left(self.positions, position)
        if index < len(self.positions) and self.positions[index] == position:
            return index
        return -1

    def drop_before(self, position: int) -> None:
        count = bisect_left(self.positions, position)
        del self.positions[:count]
        del self.lengths[:count]
        del self.crcs[:count]
        del self.tags[:count]
        del self.orders[:count]
        del self.flags[:count]


class Entries(Columns):
    """All entries; what is visible to whom."""

    __slots__ = ("expires", "targets", "visible")

    def __init__(self) -> None:
        super().__init__()
        self.visible = 0
        """Entries below this log position are durable."""

        self.targets: dict[int, int] = {}
        """Index records: entry → log position of the message they point to."""

        self.expires: dict[int, int] = {}
        """Entry → wall time, for entries that expire."""

    @property
    def end(self) -> int:
        """A limit that hides nothing."""
        return NO_LIMIT

    def add(self, position: int, length: int, crc: int, tag: int, order: int, flags: int) -> None:
        """One entry. (Frames extend the columns in one go.)"""
        self.positions.append(position)
        self.lengths.append(length)
        self.crcs.append(crc)
        self.tags.append(tag)
        self.orders.append(order)
        self.flags.append(flags)

    # ── facts ───────────────────────────────────────────────────────────────────────────

    def locate(self, position: int) -> tuple[Columns, int]:
        """Columns that hold the entry, and its index there; -1: no such entry."""
        return self, self.index_of(position)

    def has(self, position: int) -> bool:
        return self.locate(position)[1] >= 0

    def at_or_below(self, position: int) -> int:
        """The last entry that starts at or below *position*; -1: none."""
        index = bisect_right(self.positions, position) - 1
        return self.positions[index] if index >= 0 else -1

    def known(self, positions: Iterable[int]) -> list[int]:
        """Those that are entries, ascending."""
        return [position for position in sorted(positions) if self.has(position)]

    def flags_of(self, position: int) -> int:
        """0 for an entry that is gone."""
        columns, index = self.locate(position)
        return columns.flags[index] if index >= 0 else 0

    def flags_of_each(self, positions: Sequence[int]) -> list[int]:
        """Of neighbours mostly: each is looked for near the one before."""
        found: list[int] = []
        kept, flags, index = self.positions, self.flags, len(self.positions)
        for position in positions:
            index = bisect_left(kept, position, index, min(index + NEAR, len(kept)))
            if index < len(kept) and kept[index] == position:
                found.append(flags[index])
                continue
            columns, index = self.locate(position)
            kept, flags = columns.positions, columns.flags
            if index >= 0:
                found.append(flags[index])
            else:
                found.append(0)
                index = len(kept)
        return found

    def order_of(self, position: int) -> int:
        """Order hash; 0: none."""
        columns, index = self.locate(position)
        return columns.orders[index] if index >= 0 else 0

    def length_of(self, position: int) -> int:
        columns, index = self.locate(position)
        return columns.lengths[index] if index >= 0 else 0

    def end_of(self, position: int) -> int:
        """Log position behind the record of the entry at *position*."""
        return position + self.length_of(position)

    # ── retention ───────────────────────────────────────────────────────────────────────

    def drop_before(self, position: int) -> None:
        """Forget entries below *position*."""
        super().drop_before(position)
        for sparse in (self.targets, self.expires):
            for entry in [entry for entry in sparse if entry < position]:
                del sparse[entry]
