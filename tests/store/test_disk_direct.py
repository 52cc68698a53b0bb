"""Commits past the page cache: what is read back is what was written, whatever the places."""

import random
import select
from errno import EINVAL
from mmap import mmap
from pathlib import Path
from typing import Any

import pytest

from store.direct import DIRECT_BYTES, PAGE_BYTES, READ_BYTES_MIN, DirectWriter
from store.disk import RealDisk
from store.kernel_queue import KernelQueue
from tests.support.patience import PATIENCE_S

NAME = "00000001.seg"
FILE_BYTES = 4 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Any:
    disk = RealDisk(str(tmp_path))
    disk.create(NAME, FILE_BYTES)
    yield disk
    disk.close()


def test_writes_that_adjoin_keep_each_other(disk: RealDisk) -> None:
    """Pages are written again with what was before; padding is replaced by what follows."""
    chance = random.Random(5)
    kept = bytearray(FILE_BYTES)
    at = 57
    for _ in range(200):
        pieces = [chance.randbytes(chance.choice((1, 30, 4096, 9000))) for _ in range(3)]
        size = sum(map(len, pieces))
        padded = [*pieces, bytes(-(at + size) % PAGE_BYTES)]
        disk.write_through(NAME, at, padded)
        kept[at : at + size] = b"".join(pieces)
        at += size
        if chance.random() < 0.1:  # somebody else writes: the buffer must not be believed
            disk.write(NAME, at - 10, [b"0123456789"])
            kept[at - 10 : at] = b"0123456789"
        if chance.random() < 0.1:
            at += chance.randrange(9000)
        assert at < FILE_BYTES - 40_000
    assert disk.read(NAME, 0, FILE_BYTES) == kept


@pytest.mark.parametrize("more", [-4, 0, 1, DIRECT_BYTES, 2 * DIRECT_BYTES + 77])
def test_what_does_not_fit_the_buffer_goes_in_several_writes(tmp_path: Path, more: int) -> None:
    disk = RealDisk(str(tmp_path))
    disk.create(NAME, 4 * DIRECT_BYTES)
    large = random.Random(6).randbytes(DIRECT_BYTES + more)
    half = len(large) // 2
    disk.write_through(NAME, 0, [b"head"])
    disk.write_through(NAME, 4, [large[:half], b"", large[half:]])
    disk.write_through(NAME, 4 + len(large), [b"tail"])
    assert disk.read(NAME, 0, 8 + len(large)) == b"head" + large + b"tail"
    disk.close()


def test_a_file_of_the_same_name_is_another_file(disk: RealDisk) -> None:
    disk.write_through(NAME, 0, [b"old"])
    disk.unlink(NAME)
    disk.create(NAME, PAGE_BYTES)
    disk.write_through(NAME, 3, [b"new"])
    assert disk.read(NAME, 0, 6) == b"\0\0\0new"
    disk.rename(NAME, "other")
    disk.create(NAME, PAGE_BYTES)
    disk.write_through(NAME, 6, [b"third"])
    assert disk.read("other", 0, 8) == b"\0\0\0new\0\0"
    assert disk.read(NAME, 0, 11) == bytes(6) + b"third"


def test_a_file_system_without_it_is_asked_once(
    disk: RealDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def refuse(descriptor: int, data: object, at: int) -> int:
        asked.append(at)
        raise OSError(EINVAL, "not here")

    monkeypatch.setattr("store.direct.os.pwrite", refuse)
    disk.write_through(NAME, 0, [b"one"])
    disk.write_through(NAME, 3, [b"two"])
    assert len(asked) <= 1  # none where opening is refused already
    assert disk.read(NAME, 0, 6) == b"onetwo"


def test_errors_of_the_disk_are_not_taken_for_a_refusal(tmp_path: Path) -> None:
    writer = DirectWriter(str(tmp_path), RealDisk(str(tmp_path)).read)
    with pytest.raises(FileNotFoundError):
        writer.write("missing", 0, [b"data"])
    writer.close()


@pytest.mark.parametrize("is_refused", [False, True])
def test_whole_pages_are_read_as_they_were_written(
    disk: RealDisk, monkeypatch: pytest.MonkeyPatch, is_refused: bool
) -> None:
    """By either way in, from the disk or from memory, also where the file ends."""
    data = random.Random(7).randbytes(FILE_BYTES)
    disk.write_through(NAME, 0, [data[: FILE_BYTES // 2]])
    disk.write(NAME, FILE_BYTES // 2, [data[FILE_BYTES // 2 :]])
    if is_refused:

        def refuse(path: str, part: object, at: int) -> int:
            raise OSError(EINVAL, "not here")

        monkeypatch.setattr("store.direct._read_direct", refuse)
    for size in (READ_BYTES_MIN - PAGE_BYTES, READ_BYTES_MIN, DIRECT_BYTES, 2 * DIRECT_BYTES):
        for offset in (0, PAGE_BYTES, FILE_BYTES // 2 - PAGE_BYTES, FILE_BYTES - PAGE_BYTES):
            assert disk.read(NAME, offset, size) == data[offset : offset + size]
            disk.drop_cached(NAME)
    disk.truncate(NAME, FILE_BYTES - 100)
    assert (
        disk.read(NAME, FILE_BYTES - READ_BYTES_MIN, READ_BYTES_MIN) == data[-READ_BYTES_MIN:-100]
    )
    assert disk.read(NAME, FILE_BYTES, READ_BYTES_MIN) == b""


def test_a_read_by_the_kernel_is_of_the_file_that_has_the_name_now(disk: RealDisk) -> None:
    """Also where an older file of that name was read before: removed, or renamed (recycled)."""
    try:
        kernel = KernelQueue(1)
    except OSError as error:
        pytest.skip(f"no Linux AIO here: {error}")
    page = mmap(-1, PAGE_BYTES)

    def begun(name: str) -> bytes:
        disk.drop_cached(name)
        if not disk.begin_read(kernel, 1, name, 0, page, 0, PAGE_BYTES):
            assert select.select([kernel], [], [], PATIENCE_S)[0]
            assert kernel.take_results() == [(1, PAGE_BYTES)]
        return page[:3]

    disk.write_through(NAME, 0, [b"one"])
    assert begun(NAME) == b"one"
    disk.unlink(NAME)
    disk.create(NAME, PAGE_BYTES)
    disk.write_through(NAME, 0, [b"two"])
    assert begun(NAME) == b"two"
    disk.rename(NAME, "other")
    disk.create(NAME, PAGE_BYTES)
    disk.write_through(NAME, 0, [b"six"])
    assert (begun("other"), begun(NAME)) == (b"two", b"six")
    kernel.close()
    page.close()
