"""Pure transformations: messages to readings, readings to event-time windows."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark.schema import TELEMETRY_SCHEMA


def readings(messages: DataFrame) -> DataFrame:
    """The telemetry in the bodies; a body that is no reading is dropped (its fields are null)."""
    body = F.from_json(F.col("body").cast("string"), TELEMETRY_SCHEMA).alias("reading")
    parsed = messages.select(body).select("reading.*")
    return parsed.where("id is not null and device is not null and time is not null")


def unique(rows: DataFrame, *, lateness: str) -> DataFrame:
    """
    One row per reading id, within the watermark.

    MQTT QoS 1 and every other at-least-once path may repeat a reading after a fault; *lateness*
    (such as ``1 hour``) is how much older than the newest reading one may be and still count.
    """
    return rows.withWatermark("time", lateness).dropDuplicates(["id", "time"])


def window_aggregates(rows: DataFrame, *, window: str) -> DataFrame:
    """Count, min, max, mean and exact 95th percentile per device, metric and event-time window."""
    grouped = rows.groupBy(F.window("time", window), "device", "metric")
    aggregated = grouped.agg(
        F.count("value").alias("count"),
        F.min("value").alias("min"),
        F.max("value").alias("max"),
        F.avg("value").alias("mean"),
        F.percentile("value", F.lit(0.95)).alias("p95"),
    )
    bounds = (F.col("window.start").alias("start"), F.col("window.end").alias("end"))
    return aggregated.select(*bounds, "device", "metric", "count", "min", "max", "mean", "p95")
