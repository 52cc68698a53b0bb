"""Traces to files and the list of the slow: bounded in number, size and time."""

import asyncio
import json
import stat
from pathlib import Path

import pytest

from gateway import observing
from gateway.observing import Observer
from protocols.errors import Refused
from tests.support.patience import PATIENCE_S


def note(observer: Observer, event: str, topic: str = "t", client_id: str = "c1") -> None:
    observer.trace(event, client_id=client_id, peer="192.0.2.1:5", topic=topic, detail="d")


def read(file: str) -> tuple[list[dict[str, str]], int]:
    """Its lines, and who may read it."""
    path = Path(file)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return lines, stat.S_IMODE(path.stat().st_mode)


async def finished(observer: Observer) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while observer.is_tracing:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_who_asks_is_told_where_the_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway's working directory is not that of the operator."""
    monkeypatch.chdir(tmp_path)
    observer = Observer(Path("traces"), bytes_max=10_000)
    trace = await observer.start_trace("client", "c1", 60_000)
    await observer.close()
    assert Path(trace.file).parent == tmp_path / "traces"


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("client", "c1", ["a", "b"]),
        ("topic", "t/+", ["b", "c"]),
        ("ip", "192.0.2.0/24", ["a", "b", "c"]),
    ],
)
async def test_a_trace_notes_what_it_is_about(
    tmp_path: Path, kind: str, value: str, expected: list[str]
) -> None:
    """One line of JSON each, in a file for its owner alone; it ends when it is told to."""
    observer = Observer(tmp_path / "traces", bytes_max=10_000)
    trace = await observer.start_trace(kind, value, 60_000)
    note(observer, "a", "elsewhere")
    note(observer, "b", "t/1")
    note(observer, "c", "t/2", "c2")
    assert [one.name for one in observer.traces()] == [trace.name]
    assert observer.stop_trace(trace.name)
    await finished(observer)
    lines, mode = read(trace.file)
    assert [line["event"] for line in lines] == expected
    assert mode == 0o600
    assert not observer.stop_trace(trace.name)
    await observer.close()


async def test_a_trace_has_an_end_and_a_size(tmp_path: Path) -> None:
    """It ends by itself; what is too much is counted."""
    observer = Observer(tmp_path, bytes_max=250)
    trace = await observer.start_trace("client", "c1", 1)
    for _ in range(10):
        note(observer, "x")
    (info,) = observer.traces()
    assert info.size_bytes <= 250
    assert info.dropped_count > 5
    await finished(observer)
    lines, _ = read(trace.file)
    assert len(lines) == 10 - info.dropped_count
    await observer.close()


async def test_names_of_traces_are_no_paths(tmp_path: Path) -> None:
    observer = Observer(tmp_path, bytes_max=1000)
    trace = await observer.start_trace("client", "../../etc/x", 60_000)
    assert Path(trace.file).parent == tmp_path
    for kind, value, duration_ms in (("user", "x", 1), ("topic", "a/#/b", 1), ("ip", "x", 0)):
        with pytest.raises(Refused):
            await observer.start_trace(kind, value, duration_ms)
    for number in range(observing.TRACES_MAX - 1):
        await observer.start_trace("client", str(number), 60_000)
    with pytest.raises(Refused, match="are running"):
        await observer.start_trace("client", "one more", 60_000)
    await observer.close()


async def test_the_slowest_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worst first, one entry per client and topic, no more than the bound."""
    monkeypatch.setattr(observing, "SLOW_MAX", 3)
    observer = Observer(tmp_path, bytes_max=1000)
    for client_id, latency_ms in (("a", 700), ("b", 900), ("a", 600), ("c", 800), ("d", 650)):
        observer.slow(client_id, "t", latency_ms)
    observer.slow("e", "t", 1000)
    found = [(entry.client_id, entry.latency_ms) for entry in observer.slowest(10)]
    assert found == [("e", 1000), ("b", 900), ("c", 800)]
    await observer.close()
