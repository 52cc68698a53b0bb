"""CRC-32 by whoever is faster: the same values, and the choice of who computes them."""

import zlib

import pytest

from protocols import checksum


@pytest.mark.parametrize("size", [0, 1, 31, 32, 160, 255, 256, 4096])
def test_all_compute_the_same(size: int) -> None:
    piece = bytes(range(256)) * 16
    for start in (0, 1, 0xFFFFFFFF):
        wanted = zlib.crc32(piece[:size], start)
        assert checksum.crc_of_size(size)(piece[:size], start) == wanted
        assert checksum.crc32(piece[:size], start) == wanted


@pytest.mark.parametrize("faster_from", [32, 128, 1000])
def test_the_choice_is_measured(faster_from: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is faster for large pieces is so for small ones on some processors only."""

    def took_s(call: object, piece: bytes) -> float:
        return float(call is checksum.crc32 and len(piece) < faster_from) + 0.5 * (
            call is not checksum.crc32
        )

    monkeypatch.setattr(checksum, "crc32", lambda piece, start: 0)
    monkeypatch.setattr(checksum, "_took_s", took_s)
    assert checksum._long_from() == min(faster_from, checksum.LONG_BYTES)
