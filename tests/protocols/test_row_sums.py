"""CRCs by tables are those that a call per record gives."""

import zlib
from random import Random

import pytest

from protocols.remoting.records import BODY_AT, QUEUE_OFFSET_AT
from protocols.remoting.row_sums import RowSums

np = pytest.importorskip("numpy")


@pytest.mark.parametrize("body_size", [0, 1, 256, 1024])
@pytest.mark.parametrize("first", [0, 250, (1 << 24) - 3, (1 << 41) - 7])
def test_sums_are_those_of_the_bytes(body_size: int, first: int) -> None:
    chance = Random(first + body_size)
    count, size = 300, BODY_AT + body_size + 90
    ids = slice(size - 60, size - 20)
    pattern = chance.randbytes(size)
    rows = np.frombuffer(bytearray(pattern * count), np.uint8).reshape(count, size)
    counts = [100, 1, 199]
    rows[100, :BODY_AT] = np.frombuffer(chance.randbytes(BODY_AT), np.uint8)
    rows[101:, :BODY_AT] = np.frombuffer(chance.randbytes(BODY_AT), np.uint8)
    offsets, positions = np.arange(first, first + count), first * 3 + np.arange(count) * size
    pairs = np.stack([offsets, positions], axis=1).astype(">u8")
    rows[:, QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 16] = pairs.view(np.uint8).reshape(count, 16)
    body_crcs = np.zeros(count, np.uint32)
    for number, row in enumerate(rows):
        body = chance.randbytes(body_size)
        row[BODY_AT : BODY_AT + body_size] = np.frombuffer(body, np.uint8)
        row[ids] = np.frombuffer(b"%040d" % (first + number), np.uint8)
        body_crcs[number] = zlib.crc32(body)
        carried = zlib.crc32(body) & 0x7FFFFFFF
        row[8:12] = np.frombuffer(carried.to_bytes(4, "big"), np.uint8)
    seeds = (positions + chance.getrandbits(32)) & 0xFFFFFFFF
    wanted = [zlib.crc32(row.tobytes(), seed) for row, seed in zip(rows, seeds, strict=True)]
    sums = RowSums(size, body_size, ids)
    for _ in range(2):  # with tables to be made, and with those that are there
        found = sums.checksums(rows, counts, body_crcs, seeds, offsets, positions, rows[:, ids])
        assert found.tolist() == wanted
