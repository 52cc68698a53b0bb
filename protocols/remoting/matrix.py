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


def new_memory(size: int) -> memoryview:
    """*size* bytes to be written over: clearing hundreds of kilobytes takes as long as a copy."""
    return memoryview(bytearray(size) if np is None else np.empty(size, np.uint8))


MATRIX_ITEMS_MIN: Final = 128
"""Items from which columns of numpy are faster than Python's (measured: about 100)."""


def _item_type() -> Any:
    fields = [
        ("length", ">u4"), ("set", ">u2"), ("flags", ">u2"), ("order", ">u8"),
        ("expires", ">u8"), ("once", "V16"),
    ]  # fmt: skip
    return np.dtype(fields) if np is not None else None


ITEM_TYPE: Final = _item_type()


RUN_ITEMS_MIN: Final = 32
"""Items of a run, in the mean, from which working on runs is faster than on columns (measured)."""


def run_starts(table: memoryview, count: int, item_bytes: int) -> list[int] | None:
    """
    Where items begin that differ from those before them, in a table of *count* (a multiple of
    8 bytes each); None: it does not pay, take it item by item.
    """
    if np is None or count < MATRIX_ITEMS_MIN:
        return None
    width = item_bytes // 8
    words = np.frombuffer(bytes(table), np.uint64)  # copied, for words must be aligned
    places = (words[width:] != words[:-width]).nonzero()[0]
    if len(places) * RUN_ITEMS_MIN > count * width:
        return None
    starts = sorted({1 + place // width for place in places.tolist()})
    return [0, *starts] if (len(starts) + 1) * RUN_ITEMS_MIN <= count else None


def item_matrix(table: memoryview, count: int) -> Matrix | None:
    """*table* as columns, if that pays; None: take it row by row."""
    if np is None or count < MATRIX_ITEMS_MIN:
        return None
    return np.frombuffer(table, dtype=ITEM_TYPE)
