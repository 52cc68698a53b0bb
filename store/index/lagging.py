"""
Message queues that get a message now and then, by the thousand: nothing is done for each of them
when a segment is sealed.

Where their entries are is noted in columns as a block is built, and those become the rows of the
index file without a look at the queues. A queue holds on to some entries that a file has already,
which does no harm, and lets go of them when there are enough.
"""

from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from protocols.remoting.matrix import Matrix, np

if TYPE_CHECKING:
    from store.core import Core
    from store.index.queues import Queue

HELD_MAX: Final = 16
"""Entries of files that a queue holds on to before it is asked to let go: 128 bytes."""


class Places(NamedTuple):
    """Where the messages of a block went that have few neighbours in their message queues."""

    numbers: Matrix
    """Of the queues, which are not volatile."""

    offsets: Matrix
    positions: Matrix
    others: "Iterable[Queue]"
    """The other queues that the block has entries of."""


class PlaceColumns:
    """The same of all blocks of a segment."""

    __slots__ = ("numbers", "offsets", "positions")

    def __init__(self) -> None:
        self.numbers = array("I")
        self.offsets = array("Q")
        self.positions = array("Q")

    def add(self, places: Places) -> None:
        self.numbers.frombytes(places.numbers.astype(np.uint32).tobytes())
        self.offsets.frombytes(places.offsets.astype(np.uint64).tobytes())
        self.positions.frombytes(places.positions.astype(np.uint64).tobytes())

    def rows(self, but: Iterable[int]) -> tuple[Matrix, Matrix, Matrix, Matrix]:
        """
        (queue, first offset, count) of stretches in the order of the queues, and the positions of
        each in turn; *but*: queues that are left out.
        """
        numbers, offsets = np.asarray(self.numbers), np.asarray(self.offsets)
        positions = np.asarray(self.positions)
        if but := list(but):
            kept = ~np.isin(numbers, np.array(but, np.uint32))
            numbers, offsets, positions = numbers[kept], offsets[kept], positions[kept]
        order = np.argsort(numbers, kind="stable")  # a queue's own are in order
        numbers, offsets, positions = numbers[order], offsets[order], positions[order]
        is_next = (numbers[1:] == numbers[:-1]) & (offsets[1:] == offsets[:-1] + 1)
        starts = np.concatenate(([0], np.nonzero(~is_next)[0] + 1)) if len(numbers) else order
        counts = np.diff(np.append(starts, len(numbers)))
        return numbers[starts], offsets[starts], counts, positions


class Lagging:
    """Queues that hold on to entries which index files have."""

    def __init__(self, core: "Core") -> None:
        self._core = core
        self._numbers: Matrix = _column()
        """Ascending."""

        self._segments: Matrix = _column()
        """The newest one in whose file each has entries."""

        self._counts: Matrix = _column()
        """Entries that each holds on to."""

    def __len__(self) -> int:
        return len(self._numbers)

    def _find(self, numbers: Matrix) -> tuple[Matrix, Matrix]:
        """(index of each, whether it is there)."""
        at = np.searchsorted(self._numbers, numbers)
        at[at == len(self._numbers)] = 0
        is_here = self._numbers[at] == numbers if len(self._numbers) else at > 0
        return at, is_here

    def previous(self, numbers: Matrix) -> tuple[Matrix, Matrix]:
        """(newest segment whose file has entries of each, indexes of those that must be asked)."""
        at, is_here = self._find(numbers)
        found = np.zeros(len(numbers), np.uint32)
        found[is_here] = self._segments[at[is_here]]
        return found, np.nonzero(~is_here)[0]

    def due(self, numbers: Matrix, counts: Matrix) -> Matrix:
        """Which of *numbers* are to let go, when another file has *counts* of each."""
        at, is_here = self._find(numbers)
        held = counts.astype(np.int64)
        held[is_here] += self._counts[at[is_here]]
        return held >= HELD_MAX

    def note(self, numbers: Matrix, counts: Matrix, segment: int) -> None:
        """The file of *segment* has *counts* of each of *numbers*, ascending, which hold on."""
        if not len(numbers):
            return
        if not self._find(numbers)[1].all():
            every = np.union1d(self._numbers, numbers)
            old = np.searchsorted(every, self._numbers)
            for name in ("_segments", "_counts"):
                column = np.zeros(len(every), np.uint32)
                column[old] = getattr(self, name)
                setattr(self, name, column)
            self._numbers = every
        at = np.searchsorted(self._numbers, numbers)
        self._segments[at] = segment
        self._counts[at] += counts.astype(np.uint32)

    def forget(self, numbers: Iterable[int]) -> None:
        """They have let go."""
        if len(self):
            self._keep(~np.isin(self._numbers, np.array(list(numbers), np.uint32)))

    def _keep(self, kept: Matrix) -> None:
        self._numbers = self._numbers[kept]
        self._segments, self._counts = self._segments[kept], self._counts[kept]

    def catch_up(self, numbers: Iterable[int]) -> None:
        """Those of *numbers* that hold on to something let go of it now."""
        if not len(self):
            return
        is_asked = np.isin(self._numbers, np.array(list(numbers), np.uint32))
        core, end = self._core, self._core.entries.hot_from
        rows = zip(self._numbers[is_asked].tolist(), self._segments[is_asked].tolist(), strict=True)
        for number, segment in rows:
            queue = core.queues.active(number)
            if queue is not None:
                queue.let_go(end, segment)
        self._keep(~is_asked)

    def sealed(self) -> dict[int, int]:
        """Number of a queue → the newest segment in whose file it has entries."""
        if not len(self):
            return {}
        return dict(zip(self._numbers.tolist(), self._segments.tolist(), strict=True))


def _column() -> Matrix:
    return np.zeros(0, np.uint32) if np is not None else ()
