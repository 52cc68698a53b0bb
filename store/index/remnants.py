"""
What is left of segments whose file went: a few live entries, with where their bytes are now.

A relocated entry keeps its name, the log position at which it was first stored, and its places in
queues; only its bytes moved. So a remnant is the index page of a segment without most of its
entries, and one column more. Remnants stay in memory (some 60 bytes an entry, bounded by
``EngineConfig.relocated_bytes_max``) and are part of snapshots.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from store.index.pages import Directory, Page, Row

ENTRY_BYTES: Final = 46
"""Position, order, place and where (8 each), length, CRC and tag (4 each), flags 2."""

REMNANT_BYTES: Final = 2000
"""Of the arrays and objects of one remnant, whatever it holds."""


class Moved(NamedTuple):
    """Where the bytes of an entry are now."""

    where: int
    crc: int
    """Of the record there: seeded with the place."""


class Remnant(Page):
    """Columns as ever; ``crcs`` are those of the new places."""

    __slots__ = ("base", "end", "newest_ms", "wheres")

    def __init__(self, number: int, base: int, end: int, newest_ms: int, directory: Directory):
        super().__init__(number, directory)
        self.base = base
        """The log positions that the segment covered."""

        self.end = end
        self.newest_ms = newest_ms
        self.wheres = array("Q")

    def dump(self) -> list[Any]:
        columns = [column.tobytes() for column in self._columns()]
        rows = self.directory.encode()
        place = [self.number, self.base, self.end, self.newest_ms]
        return [*place, len(self.directory), rows, columns]

    @classmethod
    def load(cls, dumped: Sequence[Any]) -> "Remnant":
        number, base, end, newest_ms, row_count, rows, columns = dumped
        directory = Directory.decode(memoryview(rows), row_count)
        remnant = cls(number, base, end, newest_ms, directory)
        for column, data in zip(remnant._columns(), columns, strict=True):
            column.frombytes(data)
        return remnant._sized()

    def _columns(self) -> tuple["array[int]", ...]:
        facts = (self.positions, self.orders, self.lengths, self.crcs, self.tags, self.flags)
        return (*facts, self.places, self.wheres)

    def _sized(self) -> "Remnant":
        self.byte_count = (
            REMNANT_BYTES + ENTRY_BYTES * len(self.positions) + 20 * len(self.directory)
        )
        return self


def remnant_of(
    page: Page, base: int, end: int, newest_ms: int, moved: Mapping[int, Moved]
) -> Remnant:
    """What is left of *page* when only the entries at the positions in *moved* live on."""
    directory = Directory()
    places = array("Q")
    for index in range(len(page.directory)):
        row = page.directory.row(index)
        kept = [
            (offset, position)
            for offset, position in enumerate(page.places_of(index), row.first)
            if position in moved
        ]
        cuts = [at for at, (one, two) in enumerate(pairwise(kept), 1) if two[0] != one[0] + 1]
        for start, stop in pairwise([0, *cuts, len(kept)]):
            if start < stop:
                directory.add(Row(row.queue, kept[start][0], stop - start, row.previous))
        places.extend([position for _, position in kept])
    remnant = Remnant(page.number, base, end, newest_ms, directory)
    remnant.places = places
    for position in sorted(moved):
        at = page.index_of(position)
        where, crc = moved[position]
        remnant.add(position, page.lengths[at], crc, page.tags[at], page.orders[at], page.flags[at])
        remnant.wheres.append(where)
    return remnant._sized()


class Remnants:
    """By number, and by the positions that they cover."""

    def __init__(self) -> None:
        self._by_number: dict[int, Remnant] = {}
        self._numbers: list[int] = []
        """Ascending, as positions are."""

        self._bases: list[int] = []
        self.byte_count = 0

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[Remnant]:
        return iter([self._by_number[number] for number in self._numbers])

    def __contains__(self, number: int) -> bool:
        return number in self._by_number

    def get(self, number: int) -> Remnant | None:
        return self._by_number.get(number)

    @property
    def entry_count(self) -> int:
        return sum([len(remnant.positions) for remnant in self])

    def put(self, remnant: Remnant) -> None:
        """In place of an earlier one of its number; one without entries is none."""
        self.drop(remnant.number)
        if not remnant.positions:
            return
        at = bisect_left(self._numbers, remnant.number)
        self._numbers.insert(at, remnant.number)
        self._bases.insert(at, remnant.base)
        self._by_number[remnant.number] = remnant
        self.byte_count += remnant.byte_count

    def drop(self, number: int) -> None:
        remnant = self._by_number.pop(number, None)
        if remnant is not None:
            at = bisect_left(self._numbers, number)
            del self._numbers[at], self._bases[at]
            self.byte_count -= remnant.byte_count

    def covering(self, position: int) -> Remnant | None:
        """That of the segment which covered *position*."""
        at = bisect_right(self._bases, position) - 1
        if at < 0:
            return None
        remnant = self._by_number[self._numbers[at]]
        return remnant if position < remnant.end else None

    def at_or_after(self, position: int) -> Remnant | None:
        """The one that covers *position*, or the first one above."""
        at = max(0, bisect_right(self._bases, position) - 1)
        while at < len(self._numbers):
            remnant = self._by_number[self._numbers[at]]
            if remnant.end > position:
                return remnant
            at += 1
        return None

    def within(self, start: int, end: int) -> Iterator[tuple[Remnant, list[int]]]:
        """Remnants with bytes at [start, end): the indexes of those entries."""
        for remnant in self:
            found = [at for at, where in enumerate(remnant.wheres) if start <= where < end]
            if found:
                yield remnant, found

    def record_at(self, where: int) -> int:
        """Position of the entry whose bytes hold *where*; -1: none."""
        for remnant in self:
            for at, start in enumerate(remnant.wheres):
                if start <= where < start + remnant.lengths[at]:
                    return remnant.positions[at]
        return -1

    def dump(self) -> list[Any]:
        return [remnant.dump() for remnant in self]

    def load(self, rows: Iterable[Any]) -> None:
        for row in rows:
            self.put(Remnant.load(row))
