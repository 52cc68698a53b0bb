"""
Facts of every kept entry, as columns.

An entry is named by its log position: queues hold positions, so that merging queues by entry
position is merging integers. Columns are ascending by position; facts are found by bisection.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from store.index.cold import ColdIndex

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

    def add(self, position: int, length: int, crc: int, tag: int, order: int, flags: int) -> None:
        """One entry. (Frames extend the columns in one go.)"""
        self.positions.append(position)
        self.lengths.append(length)
        self.crcs.append(crc)
        self.tags.append(tag)
        self.orders.append(order)
        self.flags.append(flags)

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

    __slots__ = ("cold", "expires", "hot_from", "targets", "visible")

    def __init__(self, cold: "ColdIndex") -> None:
        super().__init__()
        self.cold = cold
        self.hot_from = 0
        """Entries below this log position are in index files, not in these columns."""

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

    # ── facts ───────────────────────────────────────────────────────────────────────────

    def locate(self, position: int) -> tuple[Columns, int]:
        """Columns that hold the entry, and its index there; -1: no such entry."""
        positions = self.positions
        if position < self.hot_from or not positions:
            return self.cold.locate(position)
        index = bisect_left(positions, position)
        if index < len(positions) and positions[index] == position:
            return self, index
        return self, -1

    def has(self, position: int) -> bool:
        return self.locate(position)[1] >= 0

    def at_or_below(self, position: int) -> int:
        """The last entry that starts at or below *position*; -1: none."""
        columns = self if position >= self.hot_from else self.cold.columns_at(position)
        index = bisect_right(columns.positions, position) - 1
        return columns.positions[index] if index >= 0 else -1

    def known(self, positions: Iterable[int]) -> list[int]:
        """Those that are entries, ascending. What is sealed is believed: it is not read now."""
        is_sealed, hot_from = self.cold.is_sealed, self.hot_from
        return [
            position
            for position in sorted(positions)
            if (is_sealed(position) if position < hot_from else self.has(position))
        ]

    def flags_of(self, position: int) -> int:
        """0 for an entry that is gone."""
        columns, index = self.locate(position)
        return columns.flags[index] if index >= 0 else 0

    def flags_of_each(self, positions: Sequence[int]) -> list[int]:
        """Of neighbours mostly: each is looked for near the one before."""
        columns, index = self.locate(positions[0])
        count = len(positions)
        if index >= 0 and columns.positions[index : index + count] == array("Q", positions):
            return columns.flags[index : index + count].tolist()
        found: list[int] = []
        kept, flags = columns.positions, columns.flags
        index = index if index >= 0 else len(kept)
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

    def lengths_of_neighbours(self, positions: Sequence[int]) -> list[int] | None:
        """Bytes of each record, if the entries stand side by side; else None."""
        columns, index = self.locate(positions[0])
        stop = index + len(positions)
        if index < 0 or columns.positions[index:stop] != array("Q", positions):
            return None
        return columns.lengths[index:stop].tolist()

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

    def forget_before(self, position: int) -> None:
        """Columns below *position* are in index files now."""
        super().drop_before(position)
        self.hot_from = position

    def forget_range(self, start: int, stop: int, but: Container[int] = ()) -> None:
        """Entries from *start* to *stop* went, *but* these."""
        for sparse in (self.targets, self.expires):
            for entry in [at for at in sparse if start <= at < stop and at not in but]:
                del sparse[entry]
