"""
Names of stored properties that are nobody's own: the one table of all protocols.

An application's property keeps its name unless the name is in here; it is then stored behind
``USER_PREFIX``, and behind ``ESCAPED_PREFIX`` when its bytes would break the stored text.

Source: ``org.apache.rocketmq.common.message.MessageConst``; ``TG_`` is Tidegate's, ``CE_`` that
of the CloudEvents Java SDK, ``mqtt_`` the MQTT front's.
"""

from hashlib import blake2b
from typing import AnyStr, Final

USER_PREFIX: Final = "TG_U_"
"""An application's property whose own name is reserved."""

ESCAPED_PREFIX: Final = "TG_UE_"
"""The same with bytes that separate stored properties; name and ``=value`` percent-encoded."""

BASE64_PREFIX: Final = "base64:"
"""Before correlation data that is no plain text."""

EVENT_PREFIX: Final = "CE_"
"""An attribute of a CloudEvent, as the CloudEvents Java SDK stores it in RocketMQ."""

EVENT_CONTENT_TYPE: Final = EVENT_PREFIX + "contenttype"
"""The media type of its data, where that SDK reads it."""

NO_DATA: Final = b"\x00"
"""The body of an event without data: RocketMQ takes no empty one."""

CLIENT_BYTES_MAX: Final = 1024
"""Client ids up to this size are stored with what the client publishes; of others, a digest."""


NUMBER_DIGITS_MAX: Final = 15
"""Milliseconds up to the year 33658."""


def number_of(text: str | bytes) -> int:
    """A number in a property, which any producer may have written; -1: it is none, or absurd."""
    is_number = len(text) <= NUMBER_DIGITS_MAX and text.isascii() and text.isdigit()
    return int(text) if is_number else -1


def publisher_name(client_id: str) -> str:
    """What ``TG_CLIENT`` says of a client."""
    if len(client_id) <= CLIENT_BYTES_MAX // 4 or len(client_id.encode()) <= CLIENT_BYTES_MAX:
        return client_id
    return f"blake2b:{blake2b(client_id.encode(), digest_size=32).hexdigest()}"


SYSTEM_PREFIXES: Final = ("TG_", "INNER_", "TIMER_", "REAL_", "POP_CK", "__", "CE_", "TRAN_")
SYSTEM_NAMES: Final = frozenset(
    (
        "TAGS",
        "KEYS",
        "UNIQ_KEY",
        "WAIT",
        "DELAY",
        "PGROUP",
        "RETRY_TOPIC",
        "ORIGIN_MESSAGE_ID",
        "BUYER_ID",
        "MIN_OFFSET",
        "MAX_OFFSET",
        "1ST_POP_TIME",
        "TRANSFER_FLAG",
        "CORRECTION_FLAG",
        "MQ2_FLAG",
        "RECONSUME_TIME",
        "MSG_REGION",
        "TRACE_ON",
        "EXTEND_UNIQ_INFO",
        "MAX_RECONSUME_TIMES",
        "CONSUME_START_TIME",
        "INSTANCE_ID",
        "CORRELATION_ID",
        "REPLY_TO_CLIENT",
        "TTL",
        "ARRIVE_TIME",
        "PUSH_REPLY_TIME",
        "CLUSTER",
        "MSG_TYPE",
        "DUP_INFO",
        "TRANSACTION_CHECK_TIMES",
        "CHECK_IMMUNITY_TIME_IN_SECONDS",
        "DLQ_ORIGIN_TOPIC",
        "DLQ_ORIGIN_MESSAGE_ID",
        "TRACE_CONTEXT",
        "BORN_HOST",
        "BORN_TIMESTAMP",
        "mqtt_topic",
        "originMqttTopic",
        "qosLevel",
        "cleanSessionFlag",
        "IS_EMPTY_MSG",
        "mqtt_qos",
    )
)


def is_system(name: str) -> bool:
    """Whether a stored property of this name belongs to a broker, the gateway or a protocol."""
    return name in SYSTEM_NAMES or name.startswith(SYSTEM_PREFIXES)


def tenant_and_name(topic: str) -> tuple[str, str]:
    """Of a stored topic: whose namespace it is in ("": nobody's), and its name there."""
    tenant, separator, name = topic.partition("%")
    return (tenant, name) if separator and tenant else ("", topic)


def subject_of(own: AnyStr, origin: AnyStr, topic: AnyStr) -> AnyStr:
    """
    The address of a stored message.

    Args:
        own: ``TG_SUBJECT``, which a gateway of ours wrote.
        origin: ``originMqttTopic``, as Apache rocketmq-mqtt and producers for it write it; counts
            if its first level is the topic, as it is there.
        topic: of the record, with its namespace; the address of a message without either.
    """
    if own:
        return own
    if isinstance(origin, str) and isinstance(topic, str):
        return origin if origin.partition("/")[0] == topic.rpartition("%")[2] else topic
    if isinstance(origin, bytes) and isinstance(topic, bytes):
        return origin if origin.partition(b"/")[0] == topic.rpartition(b"%")[2] else topic
    return topic
