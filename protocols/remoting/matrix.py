"""The item table of a big SEND frame as numpy columns (extra ``speed``); without numpy: none."""

from typing import Any, Final

try:
    import numpy
except ImportError:
    numpy = None  # type: ignore[assignment]  # an optional extra

np: Final[Any] = numpy
"""numpy, or None."""

Matrix = Any
"""A numpy array."""

MATRIX_ITEMS_MIN: Final = 128
"""Items from which columns of numpy are faster than Python's (measured: about 100)."""


def _item_type() -> Any:
    fields = [
        ("length", ">u4"), ("set", ">u2"), ("flags", ">u2"), ("order", ">u8"),
        ("expires", ">u8"), ("once", "V16"),
    ]  # fmt: skip
    return np.dtype(fields) if np is not None else None


ITEM_TYPE: Final = _item_type()


def item_matrix(table: memoryview, count: int) -> Matrix | None:
    """*table* as columns, if that pays; None: take it row by row."""
    if np is None or count < MATRIX_ITEMS_MIN:
        return None
    return np.frombuffer(table, dtype=ITEM_TYPE)
