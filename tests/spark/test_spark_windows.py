"""The whole path into Spark: a store, its queues, a windowed query, Parquet."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

if shutil.which("java") is None and not os.environ.get("CI"):
    pytest.skip("Java 17 is not installed", allow_module_level=True)
if not os.environ.get("CI"):
    pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from pyspark.sql import SparkSession

from protocols.remoting.codes import RequestCode
from protocols.remoting.command import RemotingCommand
from spark.client import Connection, SourceClient
from spark.config import SparkConfig, WindowJobConfig
from spark.jobs import telemetry_windows
from spark.session import open_session
from tests.demo.cluster import create_topic
from tests.support.patience import PATIENCE_S
from tests.support.processes import Daemons

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j leaves its sockets to the GC
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Half the time of these tests would be the compiler's."""


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("JAVA_TOOL_OPTIONS", QUICK_START)
        session = open_session("test", "local[2]")
    yield session
    session.stop()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """(name server, store address) with a topic ``readings``."""
    with Daemons(tmp_path) as daemons:
        namesrv = daemons.namesrv()
        address = next(iter(daemons.store(namesrv).addresses.values()))
        create_topic(address, "readings")
        yield namesrv.addresses["namesrv"], address


def send(address: str, rows: list[dict[str, object]]) -> None:
    """SEND_MESSAGE_V2 for each row, over the queues in turn."""
    connection = Connection(address)
    for index, row in enumerate(rows):
        fields = {
            "a": "test", "b": "readings", "c": "TBW102", "d": "4", "e": str(index % 4),
            "f": "0", "g": "0", "h": "0", "i": "", "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        body = json.dumps(row).encode()
        answer = connection.request(RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, body))
        assert answer.code == 0, answer
    connection.close()


def reading(identifier: str, minute: int, value: float) -> dict[str, object]:
    time = f"2026-01-01T{minute // 60:02}:{minute % 60:02}:00Z"
    return {"id": identifier, "device": "d1", "metric": "temp", "value": value, "time": time}


def run(session: SparkSession, namesrv: str, folder: Path) -> list[tuple[object, ...]]:
    """Process what is there; all windows written so far."""
    job = WindowJobConfig(
        topic="readings", output=str(folder / "out"), checkpoint=str(folder / "checkpoint")
    )
    query = telemetry_windows.start(session, SparkConfig(namesrv=namesrv), job, once=True)
    assert query.awaitTermination(5 * PATIENCE_S)
    rows = session.read.parquet(str(folder / "out")).orderBy("start").collect()
    return [(row["start"].hour, row["count"], row["min"], row["max"], row["mean"]) for row in rows]


def test_windows_are_written_once_and_repeats_count_once(
    session: SparkSession, store: tuple[str, str], tmp_path: Path
) -> None:
    """A window appears when the watermark has passed it; a repeated id and a restart change
    nothing."""
    namesrv, address = store
    first = [reading("1", 0, 1.0), reading("2", 30, 3.0), reading("2", 30, 3.0)]
    send(address, [*first, reading("3", 70, 5.0), reading("end", 240, 0.0)])
    windows = run(session, namesrv, tmp_path)
    assert windows == [(0, 2, 1.0, 3.0, 2.0), (1, 1, 5.0, 5.0, 5.0)]
    send(address, [reading("late", 10, 9.0), reading("4", 250, 1.0)])
    assert run(session, namesrv, tmp_path) == windows


def test_the_group_shows_how_far_the_job_has_come(
    session: SparkSession, store: tuple[str, str], tmp_path: Path
) -> None:
    """Batch reads see every message; offsets of the stream are committed to its group."""
    namesrv, address = store
    send(address, [reading(str(number), number, 1.0) for number in range(10)])
    frame = (
        session.read.format("tidegate")
        .option("namesrv", namesrv)
        .option("topic", "readings")
        .load()
    )
    assert frame.count() == 10
    with SourceClient(namesrv) as client:
        assert (
            sum(client.max_offset("readings", queue) for queue in client.queues("readings")) == 10
        )
