"""Byte strings of one size as rows of a matrix, without an object for each (extra ``speed``)."""

from collections.abc import Sequence
from typing import Final, overload

from protocols.remoting.matrix import Matrix, np

ROWS_MIN: Final = 48
"""Rows from which columns of numpy are faster than objects (measured: about 32)."""


class Rows(Sequence[bytes]):
    """A part of somebody's buffer: *matrix* has a row of bytes for each, not all next to it."""

    __slots__ = ("matrix",)

    def __init__(self, matrix: Matrix) -> None:
        self.matrix = matrix

    @classmethod
    def of(cls, parts: Sequence[bytes]) -> "Rows | None":
        """Copied; None: there are too few for it to pay, or their sizes differ."""
        count, size = len(parts), len(parts[0]) if parts else 0
        if np is None or count < ROWS_MIN or not size:
            return None
        joined = b"".join(parts)
        if len(joined) != count * size or set(map(len, parts)) != {size}:
            return None
        return cls(np.frombuffer(joined, np.uint8).reshape(count, size))

    @classmethod
    def within(cls, data: bytes, start: int, count: int, size: int) -> "Rows | None":
        """*count* of *size* bytes each, from *start* on; None: *data* ends before, or no numpy."""
        if np is None or not size or start + count * size > len(data):
            return None
        return cls(np.frombuffer(data, np.uint8, count * size, start).reshape(count, size))

    @property
    def size(self) -> int:
        """Bytes of each; never 0."""
        return int(self.matrix.shape[1])

    def __len__(self) -> int:
        return len(self.matrix)

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> "Rows": ...

    def __getitem__(self, index: int | slice) -> "bytes | Rows":
        if isinstance(index, slice):
            return Rows(self.matrix[index])
        row: bytes = self.matrix[index].tobytes()
        return row

    def to_list(self) -> list[bytes]:
        """An object for each, made in one call."""
        made: list[bytes] = self.matrix.view(f"V{self.size}")[:, 0].tolist()
        return made
