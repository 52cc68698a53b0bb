"""Reading records from disk: some pages at a time, and what comes next in advance."""

from random import Random

import pytest

from store.log.ahead import CHUNK_BYTES, CHUNKS_MAX, PREFETCHES_MAX, Coming, ReadAhead
from store.log.format import SEGMENT_HEADER_BYTES, SegmentHeader
from store.log.segments import Segment
from tests.simulation.simulated_disk import SimulatedDisk

SIZE = 3 * CHUNK_BYTES
DATA = Random(1).randbytes(SIZE)


class CountingDisk(SimulatedDisk):
    reads = 0

    def read(self, name: str, offset: int, size: int) -> bytes:
        self.reads += 1
        return super().read(name, offset, size)


def segment_of(disk: SimulatedDisk, number: int = 1) -> Segment:
    """A whole segment of three chunks; its base is not zero."""
    segment = Segment(SegmentHeader(bytes(16), number, 1000 * number, 1, 0), SIZE)
    disk.create(segment.name, SIZE)
    disk.write(segment.name, 0, [DATA])
    segment.end = segment.base + SIZE - SEGMENT_HEADER_BYTES
    return segment


def expected(segment: Segment, position: int, size: int) -> bytes:
    offset = segment.file_offset(position)
    return DATA[offset : offset + size]


@pytest.fixture
def disk() -> CountingDisk:
    return CountingDisk()


def test_all_is_read_as_it_is_wherever_it_lies(disk: CountingDisk) -> None:
    segment, ahead, chance = segment_of(disk), ReadAhead(disk), Random(2)
    for _ in range(300):
        position = segment.base + chance.randrange(SIZE - SEGMENT_HEADER_BYTES)
        size = chance.choice((1, 100, 5000, CHUNK_BYTES))
        found = ahead.read(segment, position, size, segment.end)
        assert found == expected(segment, position, size)


def test_readers_of_one_part_read_it_once(disk: CountingDisk) -> None:
    segment, ahead = segment_of(disk), ReadAhead(disk)
    for start in (0, 300, 100, 200):
        for position in range(segment.base + start, segment.base + 100_000, 1000):
            ahead.read(segment, position, 900, segment.end)
    assert disk.reads == 1


def test_what_became_durable_since_is_read(disk: CountingDisk) -> None:
    segment, ahead = segment_of(disk), ReadAhead(disk)
    half = segment.base + 5000
    assert len(ahead.read(segment, segment.base, 4000, half)) == 4000
    assert ahead.read(segment, half, 4000, segment.end) == expected(segment, half, 4000)


def test_the_next_chunk_is_wanted_by_who_came_from_the_last_one(disk: CountingDisk) -> None:
    segment, ahead = segment_of(disk), ReadAhead(disk)
    first, second = segment.base, segment.base + CHUNK_BYTES
    ahead.read(segment, second, 10, segment.end)
    assert not ahead.is_wanting  # somebody who looks here and there
    ahead.read(segment, first, 10, segment.end)
    ahead.read(segment, second, 10, segment.end)
    (work,) = ahead.take_wanted()
    assert not ahead.take_wanted()
    work.execute(disk)
    ahead.fetched(work)
    before = disk.reads
    third = second + CHUNK_BYTES
    assert ahead.read(segment, third, 900, segment.end) == expected(segment, third, 900)
    assert disk.reads == before
    assert not ahead.is_wanting  # the segment ends here


def test_a_chunk_that_cannot_be_fetched_is_left_to_the_reader(disk: CountingDisk) -> None:
    segment, ahead = segment_of(disk), ReadAhead(disk)
    for position in (segment.base, segment.base + CHUNK_BYTES):
        ahead.read(segment, position, 10, segment.end)
    (work,) = ahead.take_wanted()
    ahead.fetched(work)  # its data are empty
    third = segment.base + 2 * CHUNK_BYTES
    assert ahead.read(segment, third, 900, segment.end) == expected(segment, third, 900)


def test_chunks_are_bounded(disk: CountingDisk) -> None:
    ahead = ReadAhead(disk)
    segments = [segment_of(disk, number) for number in range(1, CHUNKS_MAX + 3)]
    for segment in segments:
        ahead.read(segment, segment.base, 10, segment.end)
    before = disk.reads
    ahead.read(segments[-1], segments[-1].base, 10, segments[-1].end)
    assert disk.reads == before
    ahead.read(segments[0], segments[0].base, 10, segments[0].end)
    assert disk.reads == before + 1


def test_who_may_wait_is_told_what_is_coming(disk: CountingDisk) -> None:
    """Nothing is read for him on the spot; when it has come, it is there."""
    segment, ahead = segment_of(disk), ReadAhead(disk)
    for _ in range(2):
        with pytest.raises(Coming) as coming:
            ahead.chunk(segment, segment.base, 900, segment.end, may_wait=True)
        assert coming.value.key == (segment.number, 0)
    assert disk.reads == 0
    (work,) = ahead.take_wanted()
    work.execute(disk)
    ahead.fetched(work)
    start, chunk = ahead.chunk(segment, segment.base, 900, segment.end, may_wait=True)
    assert chunk[segment.base - start :][:900] == expected(segment, segment.base, 900)


def test_a_chunk_that_grew_comes_again(disk: CountingDisk) -> None:
    segment, ahead = segment_of(disk), ReadAhead(disk)
    half = segment.base + 5000
    ahead.read(segment, segment.base, 4000, half)
    with pytest.raises(Coming):
        ahead.chunk(segment, half, 4000, segment.end, may_wait=True)


def test_who_may_wait_reads_at_once_when_too_much_is_wanted(disk: CountingDisk) -> None:
    ahead = ReadAhead(disk)
    segments = [segment_of(disk, number) for number in range(1, PREFETCHES_MAX + 2)]
    for segment in segments[:-1]:
        with pytest.raises(Coming):
            ahead.chunk(segment, segment.base, 900, segment.end, may_wait=True)
    last = segments[-1]
    start, chunk = ahead.chunk(last, last.base, 900, last.end, may_wait=True)
    assert chunk[last.base - start :][:900] == expected(last, last.base, 900)
