"""``tidegate store inspect`` and ``verify``: every damage is named, nothing is changed."""

import json
from collections.abc import Iterator
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from protocols.remoting.private import ReadItem
from store.cli import command
from store.disk import RealDisk
from store.index.pages import index_name
from store.log.format import BLOCK, HEADER_COPY_AT
from store.log.segments import segment_name
from tests.store.engine_kit import SMALL, Driver, filter_key

A = filter_key("a")
CONFIG = replace(SMALL, segment_bytes=16 << 10)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Driver]:
    """Eight segments, some with index files, two snapshots, a group with acks; still running."""
    driver = Driver(RealDisk(str(tmp_path)), CONFIG)
    driver.topic("t")
    group = driver.open("g", [ReadItem(tag=1, key=A, name="a")])
    for number in range(40):
        driver.send(b"%d:" % number + bytes(2000), b"%d;" % number, keys=[A])
        driver.ack(group, driver.take(group))
        if number % 15 == 14:
            work = driver.engine.background.snapshot_due(driver.now, is_forced=True)
            assert work is not None
            work.execute(driver.disk)
            driver.engine.background.snapshot_written(work)
    driver.later(2)
    driver.drain()
    yield driver
    driver.disk.close()


def contents(folder: Path) -> dict[str, bytes]:
    return {
        one.name: blake2b(one.read_bytes()).digest() + one.stat().st_mtime_ns.to_bytes(8, "big")
        for one in folder.iterdir()
    }


def verified(folder: Path, *wanted: str) -> tuple[int, dict[str, Any]]:
    """(exit code, what it says); the folder is what it was."""
    before = contents(folder)
    arguments = ["verify", str(folder), "--json", *wanted]
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert contents(folder) == before
    return result.exit_code, json.loads(result.output)


def flip(path: Path, offset: int) -> None:
    """One bit."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_a_running_store_is_whole(store: Driver, tmp_path: Path) -> None:
    code, found = verified(tmp_path)
    assert code == 0
    assert found["is_whole"]
    assert found["end"] == store.engine.end
    assert found["log_id"] == store.engine.log_id
    assert sum(one["message_count"] for one in found["segments"]) == 80
    assert {one["index"] for one in found["segments"]} == {"whole", "none"}
    assert [one["is_whole"] for one in found["snapshots"]] == [True, True]


def test_a_rotten_record_is_named(store: Driver, tmp_path: Path) -> None:
    """By file, byte, log position, block, and what it was."""
    segment = store.engine._core.log.segments.items[1]
    position = next(at for at in store.engine._core.cold.page(2).positions if at >= segment.base)
    offset = segment.file_offset(position) + 200
    flip(tmp_path / segment.name, offset)
    code, found = verified(tmp_path)
    assert code == 1
    (damage,) = found["damage"]
    assert damage["part"] == "record"
    assert (damage["file"], damage["segment"]) == (segment.name, 2)
    assert damage["position"] == position
    assert damage["offset"] <= offset < damage["offset"] + damage["size"]
    assert damage["block"] > 0
    assert "MESSAGE, queue 0 of topic t offset" in damage["says"]
    assert "light queue a offset" in damage["says"]


def test_a_rotten_table_is_named_with_its_block(store: Driver, tmp_path: Path) -> None:
    segment = store.engine._core.log.segments.items[3]
    flip(tmp_path / segment.name, segment.file_offset(segment.base) + BLOCK.size + 3)
    code, found = verified(tmp_path)
    assert code == 1
    assert [one["part"] for one in found["damage"]] == ["block"]
    assert found["damage"][0]["position"] == segment.base


def test_rot_at_the_end_of_a_sealed_segment_is_seen(store: Driver, tmp_path: Path) -> None:
    """Nothing follows it in its file; the next segment says where it ended."""
    segment = store.engine._core.log.segments.items[4]
    data = (tmp_path / segment.name).read_bytes()
    last = data.rindex(b"TGB1", 0, segment.file_offset(segment.end))
    flip(tmp_path / segment.name, last + 20)
    _, found = verified(tmp_path)
    (damage,) = found["damage"]
    assert damage["position"] + damage["size"] == segment.end


def test_a_lost_segment_is_seen(store: Driver, tmp_path: Path) -> None:
    """By its index file, or by the log: what no snapshot knows cannot have been given up."""
    numbers = [one.number for one in store.engine._core.log.segments.items]
    lost = [numbers[1], numbers[-2]]
    for number in lost:
        (tmp_path / segment_name(number)).unlink()
    code, found = verified(tmp_path)
    assert code == 1
    assert sorted(one["segment"] for one in found["damage"]) == lost
    assert all("missing" in one["says"] for one in found["damage"])


def test_damaged_derived_files_cost_nothing(store: Driver, tmp_path: Path) -> None:
    name = index_name(1)
    flip(tmp_path / name, (tmp_path / name).stat().st_size - 5)
    snapshot = sorted(tmp_path.glob("*.snapshot"))[0]
    flip(snapshot, 60)
    code, found = verified(tmp_path)
    assert code == 1
    assert {one["part"] for one in found["damage"]} == {"index", "snapshot"}
    assert {one["size"] for one in found["damage"]} == {0}


def test_an_index_that_contradicts_its_segment_is_seen(store: Driver, tmp_path: Path) -> None:
    """Its own CRCs are right."""
    draft = store.engine._core.cold.rebuild(store.engine._core.log.segments.items[0])
    draft.columns.positions[0] += 1
    (tmp_path / index_name(1)).write_bytes(draft.encode(bytes.fromhex(store.engine.log_id)))
    _, found = verified(tmp_path)
    assert [one["part"] for one in found["damage"]] == ["index"]


def test_a_torn_tail_is_no_damage(store: Driver, tmp_path: Path) -> None:
    """It was never acknowledged; on a running store it is being written."""
    store.engine.catalog.put_setting("kv", "a", bytes(3000), store.now)
    batch = store.engine.take_writes()
    assert batch is not None
    batch.execute(store.disk)
    segment = store.engine._core.log.segments.last
    flip(tmp_path / segment.name, segment.file_offset(segment.end) - 1)
    code, found = verified(tmp_path)
    assert code == 0
    assert found["unacknowledged_bytes"] > 3000
    assert found["end"] == store.engine.confirmed


def test_a_missing_tail_is_damage(store: Driver, tmp_path: Path) -> None:
    """A snapshot says that the log went further."""
    for number in range(5, 30):
        (tmp_path / segment_name(number)).unlink(missing_ok=True)
    code, found = verified(tmp_path)
    assert code == 1
    assert found["end"] == max(one["position"] for one in found["snapshots"])


def test_a_segment_without_a_header_is_damage(store: Driver, tmp_path: Path) -> None:
    """One of the two headers is enough to read the segment."""
    flip(tmp_path / segment_name(3), 20)
    code, found = verified(tmp_path)
    assert code == 1
    (damage,) = found["damage"]
    assert (damage["part"], damage["file"], damage["size"]) == ("segment", segment_name(3), 0)
    flip(tmp_path / segment_name(3), HEADER_COPY_AT + 20)
    _, found = verified(tmp_path)
    assert [one["size"] for one in found["damage"] if one["part"] == "segment"] == [16 << 10]


def test_inspect_shows_blocks_and_records(store: Driver, tmp_path: Path) -> None:
    before = contents(tmp_path)
    run = CliRunner().invoke
    shown = run(command, ["inspect", str(tmp_path)], catch_exceptions=False)
    assert shown.exit_code == 0
    assert segment_name(1) in shown.output
    assert "whole:" in shown.output
    wanted = ["inspect", str(tmp_path), "--records", "--segment", "2", "--count", "3"]
    shown = run(command, wanted, catch_exceptions=False)
    assert "queue 0 of topic t offset" in shown.output
    assert "gateway 1 epoch 1 frame" in shown.output
    position = store.engine.entry_position("t", 0, 50)
    wanted = ["inspect", str(tmp_path), "--position", str(position), "--json"]
    (block,) = json.loads(run(command, wanted, catch_exceptions=False).output)["blocks"]
    assert block["position"] <= position < block["end"]
    assert ["queue 0 of topic t", 50] in block["rows"][-2]["places"]
    assert contents(tmp_path) == before


def test_what_is_no_store_is_said_so(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["verify", str(tmp_path)])
    assert result.exit_code == 3
    assert "no segment" in result.output
