"""What readers will come to is fetched by the kernel or a thread; its memory is used again."""

import asyncio
from pathlib import Path
from random import Random

import pytest

from store.disk import Disk, RealDisk
from store.log.ahead import CHUNK_BYTES, Prefetch
from store.prefetching import READ_BYTES_MAX, STEP_BYTES, Buffers, Prefetcher
from tests.support.patience import PATIENCE_S

SIZE = 3 * READ_BYTES_MAX + 5000
DATA = Random(3).randbytes(SIZE)
NAME = "0.seg"


class _Other(RealDisk):
    """Not the disk that the kernel may read from."""


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / NAME).write_bytes(DATA)
    return str(tmp_path)


def wanted(first: int, size: int) -> Prefetch:
    keys = [(1, first + at) for at in range(-(-size // CHUNK_BYTES))]
    return Prefetch(keys, NAME, size)


async def fetch(disk: Disk, works: list[Prefetch]) -> None:
    """All of them; the prefetcher is closed again."""
    missing = len(works)
    is_all = asyncio.Event()

    def fetched(work: Prefetch) -> None:
        nonlocal missing
        missing -= 1
        if not missing:
            is_all.set()

    prefetcher = Prefetcher(disk, fetched)
    prefetcher.run(works)
    await asyncio.wait_for(is_all.wait(), PATIENCE_S)
    prefetcher.close()


@pytest.mark.parametrize("kind", [RealDisk, _Other])
async def test_every_part_comes_as_it_is_on_disk(folder: str, kind: type[RealDisk]) -> None:
    """More at a time than the kernel is given, also what ends within a page."""
    disk = kind(folder)
    works = [wanted(at, READ_BYTES_MAX) for at in range(6)]
    works += [wanted(0, 1), wanted(11, CHUNK_BYTES + 4999), wanted(2, 300_001)]
    await fetch(disk, works)
    for work in works:
        assert bytes(work.data) == DATA[work.offset : work.offset + work.size]
    disk.close()


async def test_commits_go_first(folder: str) -> None:
    """While one is under way nothing begins; when it has ended, a little does."""
    found: list[Prefetch] = []
    disk, allowed, is_one = RealDisk(folder), [0], asyncio.Event()

    def fetched(work: Prefetch) -> None:
        found.append(work)
        is_one.set()

    prefetcher = Prefetcher(disk, fetched, lambda: allowed[0])
    if not prefetcher.is_by_kernel:
        pytest.skip("no Linux AIO here")
    whole = wanted(0, READ_BYTES_MAX)
    prefetcher.run([whole])
    assert not is_one.is_set()
    for _ in range(CHUNK_BYTES // STEP_BYTES):
        prefetcher.commit_ended()
    allowed[0] = 1
    await asyncio.wait_for(is_one.wait(), PATIENCE_S)
    work = found[0]
    assert bytes(work.data) == DATA[:CHUNK_BYTES]
    prefetcher.close()
    disk.close()


async def test_what_cannot_be_read_is_told_too(folder: str) -> None:
    disk = RealDisk(folder)
    behind, gone = wanted(100, READ_BYTES_MAX), Prefetch([(9, 0)], "9.seg", 4096)
    await fetch(disk, [behind, gone])
    assert (bytes(behind.data), bytes(gone.data)) == (b"", b"")
    disk.close()


def test_memory_is_used_again_when_nobody_looks_at_it() -> None:
    buffers = Buffers()
    space = buffers.take(5000)
    free_count = len(buffers)
    view = buffers.lend(space, 5000)
    part = view[10:20]
    del view
    assert len(buffers) == free_count
    del part
    assert len(buffers) == free_count + 1
    assert buffers.take(5000) is space


def test_no_two_reads_share_memory() -> None:
    """Though they lie in one large page."""
    buffers = Buffers()
    sizes = [CHUNK_BYTES] * 9 + [READ_BYTES_MAX] * 3
    views = [buffers.lend(buffers.take(size), size) for size in sizes]
    for number, view in enumerate(views):
        view[:] = bytes([number]) * len(view)
    for number, view in enumerate(views):
        assert bytes(view) == bytes([number]) * len(view)
