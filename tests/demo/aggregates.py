"""The streaming half of the demo: run both window queries, compare them with pandas."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark.config import SparkConfig, WindowJobConfig
from spark.jobs import telemetry_windows
from tests.demo.readings import Reading

QUERIES = {"hourly": ("1 day", "1 day"), "daily": ("7 days", "7 days")}
"""Family → (window, lateness), as Spark writes them; lengths as ``readings.WINDOWS``."""

QUERY_S_MAX = 600
"""Ten seconds on a machine that does nothing else."""

KEYS = ["device", "metric", "start"]
VALUES = ["count", "min", "max", "mean", "p95"]


class QueryReport(NamedTuple):
    family: str
    rows_in: int
    windows_out: int
    dropped_by_watermark: int
    batches: int


def run_queries(session: SparkSession, namesrv: str, folder: Path) -> list[QueryReport]:
    """Process both topics to their ends, at the same time. Raises what a query dies of."""
    config = SparkConfig(namesrv=namesrv, group="spark-demo")
    queries: list[tuple[str, StreamingQuery]] = []
    for family, (window, lateness) in QUERIES.items():
        job = WindowJobConfig(
            topic=family,
            window=window,
            lateness=lateness,
            output=str(folder / family),
            checkpoint=str(folder / f"{family}.checkpoint"),
        )
        query = telemetry_windows.start(session, config, job, once=True)
        queries.append((family, query))
    return [_finished(family, query, folder) for family, query in queries]


def _finished(family: str, query: StreamingQuery, folder: Path) -> QueryReport:
    if not query.awaitTermination(QUERY_S_MAX):
        query.stop()
        raise TimeoutError(f"the {family} query did not end in {QUERY_S_MAX} s")
    progress = query.recentProgress
    states = [state for batch in progress for state in batch["stateOperators"]]
    return QueryReport(
        family=family,
        rows_in=sum(batch["numInputRows"] for batch in progress),
        windows_out=len(read_windows(folder / family)),
        dropped_by_watermark=sum(state["numRowsDroppedByWatermark"] for state in states),
        batches=len(progress),
    )


def read_windows(folder: Path) -> pd.DataFrame:
    """The Parquet output as a table, end marks' windows apart."""
    table = pd.read_parquet(folder)
    return table[table["metric"] != "end"]


def expected_windows(readings: Iterable[Reading], window: str) -> pd.DataFrame:
    """The same aggregates by pandas, from the data set itself."""
    rows = [
        (reading.device, reading.metric, reading.time, reading.value)
        for reading in readings
        if not reading.is_end_mark
    ]
    table = pd.DataFrame(rows, columns=["device", "metric", "time", "value"])
    length = pd.Timedelta(window)
    since_epoch = table["time"] - pd.Timestamp(0, tz="UTC")
    table["start"] = pd.Timestamp(0, tz="UTC") + (since_epoch // length) * length
    grouped = table.groupby(["device", "metric", "start"])["value"]
    return grouped.agg(
        count="count", min="min", max="max", mean="mean", p95=lambda values: values.quantile(0.95)
    ).reset_index()


def differences(family: str, output: Path, readings: Iterable[Reading]) -> list[str]:
    """What distinguishes Spark's windows from pandas'; empty: equal."""
    window = QUERIES[family][0]
    found = _indexed(read_windows(output))
    wanted = _indexed(expected_windows(readings, window))
    problems = [
        f"{family}: window {key} is missing" for key in wanted.index.difference(found.index)
    ]
    problems += [f"{family}: window {key} is extra" for key in found.index.difference(wanted.index)]
    if problems:
        return problems
    for name in VALUES:
        distance = (found[name].astype(float) - wanted[name].astype(float)).abs()
        problems += [
            f"{family}: {name} of {key} differs" for key in distance[distance > 1e-9].index
        ]
    return problems


def _indexed(table: pd.DataFrame) -> pd.DataFrame:
    start = pd.to_datetime(table["start"], utc=True).astype("datetime64[us, UTC]")
    return table.assign(start=start).set_index(KEYS)[VALUES].sort_index()
