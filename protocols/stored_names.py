"""
Names of stored properties that are nobody's own: the one table of all protocols.

An application's property keeps its name unless the name is in here; it is then stored behind
``USER_PREFIX``, and behind ``ESCAPED_PREFIX`` when its bytes would break the stored text.

Source: ``org.apache.rocketmq.common.message.MessageConst``; ``TG_`` is Tidegate's, ``CE_`` that
of the CloudEvents Java SDK, ``mqtt_`` the MQTT front's.
"""

from typing import Final

USER_PREFIX: Final = "TG_U_"
"""An application's property whose own name is reserved."""

ESCAPED_PREFIX: Final = "TG_UE_"
"""The same with bytes that separate stored properties; name and ``=value`` percent-encoded."""

BASE64_PREFIX: Final = "base64:"
"""Before correlation data that is no plain text."""

EVENT_PREFIX: Final = "CE_"
"""An attribute of a CloudEvent, as the CloudEvents Java SDK stores it in RocketMQ."""

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
        "mqtt_qos",
    )
)


def is_system(name: str) -> bool:
    """Whether a stored property of this name belongs to a broker, the gateway or a protocol."""
    return name in SYSTEM_NAMES or name.startswith(SYSTEM_PREFIXES)
