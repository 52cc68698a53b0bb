"""CRC-32 (zlib's), by whoever computes it fastest; the values are the same."""

import zlib
from collections.abc import Callable
from time import perf_counter
from typing import Final

try:  # extra ``speed``
    from zlib_ng.zlib_ng import crc32 as _crc32
except ImportError:
    from zlib import crc32 as _crc32

crc32: Final[Callable[..., int]] = _crc32

SIZES: Final = (32, 64, 128, 192)
"""Of pieces that both are tried on."""

LONG_BYTES: Final = 256
"""From here on zlib-ng is faster everywhere: 0.05 to 0.12 µs a call, zlib 0.19 to 0.27. Below, a
call of it took 0.17 µs on one kind of processor (zlib 0.05 to 0.19) and 0.1 on another (0.15 to
0.23)."""

TRIES: Final = 5
CALLS: Final = 32
"""At a try: all of them take half a millisecond."""


def _took_s(call: Callable[..., int], piece: bytes) -> float:
    """The best of a few tries: others use the processor, too."""
    times: list[float] = []
    for _ in range(TRIES):
        began = perf_counter()
        for _ in range(CALLS):
            call(piece, 1)
        times.append(perf_counter() - began)
    return min(times)


def _long_from() -> int:
    """Bytes from which the library for large pieces is faster on this machine."""
    for size in SIZES:
        piece = bytes(size)
        if _took_s(crc32, piece) < _took_s(zlib.crc32, piece):
            return size
    return LONG_BYTES


LONG_BYTES_MIN: Final = LONG_BYTES if crc32 is zlib.crc32 else _long_from()


def crc_of_size(size: int) -> Callable[..., int]:
    """The faster one for pieces of about *size* bytes."""
    return crc32 if size >= LONG_BYTES_MIN else zlib.crc32
