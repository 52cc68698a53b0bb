"""The rows that the Data Source yields, and the telemetry that the jobs read out of bodies."""

from datetime import UTC, datetime

from pyspark.sql.types import (
    BinaryType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from protocols.canonical import StoredMessage

MESSAGE_SCHEMA = StructType(
    [
        StructField("topic", StringType(), nullable=False),
        StructField("broker", StringType(), nullable=False),
        StructField("queue_id", IntegerType(), nullable=False),
        StructField("queue_offset", LongType(), nullable=False),
        StructField("message_id", StringType()),
        StructField("subject", StringType()),
        StructField("tag", StringType()),
        StructField("keys", StringType()),
        StructField("body", BinaryType()),
        StructField("properties", MapType(StringType(), StringType())),
        StructField("born_time", TimestampType()),
        StructField("store_time", TimestampType()),
    ]
)
"""One row per stored message."""

TELEMETRY_SCHEMA = StructType(
    [
        StructField("id", StringType()),
        StructField("device", StringType()),
        StructField("metric", StringType()),
        StructField("value", DoubleType()),
        StructField("time", TimestampType()),
    ]
)
"""The JSON body of a reading; *id* makes a reading sent twice one reading."""

Row = tuple[object, ...]


def row_of(message: StoredMessage, broker: str) -> Row:
    """The row of one stored message, in the order of ``MESSAGE_SCHEMA``."""
    properties = message.properties
    return (
        message.topic,
        broker,
        message.queue_id,
        message.queue_offset,
        properties.get("UNIQ_KEY"),
        message.subject,
        properties.get("TAGS"),
        properties.get("KEYS"),
        bytes(message.body),
        properties,
        _time(message.born_ms),
        _time(message.store_ms),
    )


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
