"""Settings of the stream jobs (``spark.yaml``, block ``spark:``)."""

from typing import Literal

from pydantic import Field

from protocols.daemon.config import ConfigModel


class WindowJobConfig(ConfigModel):
    """One windowed aggregation: a topic in, Parquet out."""

    topic: str = Field(default="telemetry", min_length=1)
    """RocketMQ topic to read."""

    window: str = "1 hour"
    """Length of an event-time window, as Spark writes durations."""

    lateness: str = "1 hour"
    """How late a reading may come and still count (the watermark's delay)."""

    output: str = Field(default="data/spark/telemetry_windows", min_length=1)
    """Folder (or s3a://, hdfs:// URL) for the Parquet files."""

    checkpoint: str = Field(default="data/spark/telemetry_windows.checkpoint", min_length=1)
    """Folder of the query's offsets and state; keep it as long as the query lives."""

    starting_offsets: str = Field(default="earliest", pattern=r"^(earliest|latest|timestamp:\d+)$")
    """``earliest``, ``latest`` or ``timestamp:<ms>``; only for a new checkpoint."""

    rows_per_trigger_max: int | None = Field(default=None, ge=1)
    """Rows per micro-batch; empty: all that is there."""


class SparkConfig(ConfigModel):
    """Where the jobs find the stores, where they run, and what they compute."""

    namesrv: str = "127.0.0.1:9876"
    """Name servers, ``a:p;b:p``."""

    master: str | None = None
    """Spark master URL; empty: what spark-submit says, else all local cores."""

    group: str = Field(default="spark", min_length=1)
    """Consumer group under which the jobs show their progress."""

    sink: Literal["parquet"] = "parquet"
    """Format of the output."""

    jobs: dict[str, WindowJobConfig] = Field(
        default_factory=lambda: {"telemetry_windows": WindowJobConfig()}
    )
    """Jobs by name: what ``tidegate spark NAME`` runs."""
