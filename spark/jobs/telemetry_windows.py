"""Event-time windows per device and metric, from a topic to Parquet, exactly once."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark.config import SparkConfig, WindowJobConfig
from spark.windows import readings, unique, window_aggregates


def messages(session: SparkSession, config: SparkConfig, job: WindowJobConfig) -> DataFrame:
    """The topic as a stream of messages."""
    reader = (
        session.readStream.format("tidegate")
        .option("namesrv", config.namesrv)
        .option("topic", job.topic)
        .option("group", config.group)
        .option("startingOffsets", job.starting_offsets)
    )
    if job.rows_per_trigger_max is not None:
        reader = reader.option("maxOffsetsPerTrigger", job.rows_per_trigger_max)
    return reader.load()


def start(
    session: SparkSession, config: SparkConfig, job: WindowJobConfig, *, once: bool
) -> StreamingQuery:
    """
    Start the query; *once*: process what is there, then stop.

    Append mode: a window is written when the watermark has passed its end, and never changes.
    """
    rows = unique(readings(messages(session, config, job)), lateness=job.lateness)
    writer = (
        window_aggregates(rows, window=job.window)
        .writeStream.queryName(f"telemetry_windows/{job.topic}")
        .format(config.sink)
        .outputMode("append")
        .option("path", job.output)
        .option("checkpointLocation", job.checkpoint)
    )
    trigger = (
        writer.trigger(availableNow=True) if once else writer.trigger(processingTime="1 second")
    )
    return trigger.start()
