"""
From a publish to what a record says: its topic and its stored properties.

The rules are those of ARCHITECTURE.md, "Address" and "One message, every protocol": the address
stands whole in ``TG_SUBJECT`` unless it is the topic itself; names the gateway owns are
``TG_*``; what only a broker may write is dropped, whoever set it.
"""

import re
from functools import lru_cache
from typing import Final

from protocols.canonical import INTERNAL, Call, Head, Properties
from protocols.stored_names import publisher_name

CATCH_ALL_TOPIC: Final = "mqtt"
"""Takes every subject whose first level is no topic."""

SERVERS_OWN: Final = ("$SYS/", "$events/", "$share/", "$CONTROL/")
"""What MQTT clients do not publish to: told by the server, no topic names, administrative."""

NAMESPACE_SEPARATOR: Final = "%"
"""RocketMQ's: ``<tenant>%<topic>``."""

OF_GROUPS: Final = ("%RETRY%", "%DLQ%")
"""Prefixes of topics that belong to a consumer group; its name follows."""

MIRROR_OF: Final = "TG_MIRROR_OF"
"""Property of a mirrored copy: the route that made it."""

SUBJECT_TOPIC: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")

TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
"""Where RocketMQ clients write what became of their messages; it has no address."""

SYSTEM_TOPICS: Final = frozenset(
    (
        "TBW102",
        "SELF_TEST_TOPIC",
        "BenchmarkTest",
        "OFFSET_MOVED_EVENT",
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        TRACE_TOPIC,
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "rmq_sys_wheel_timer",
    )
)
SYSTEM_PREFIXES: Final = (
    "rmq_sys_",
    "RMQ_SYS_",
    "%RETRY%",
    "%DLQ%",
    "%LMQ%",
    "%SYS%",
    "CID_RMQ_SYS_",
)
SYSTEM_SUFFIXES: Final = ("_REPLY_TOPIC",)

# Written by brokers, or by the gateway from fields of the message; a client's value is dropped.
# Source: org.apache.rocketmq.common.message.MessageConst, and the table of ARCHITECTURE.md.
RESERVED: Final = frozenset(
    (
        "TAGS",  # Head.tag
        "KEYS",  # Message.keys
        "UNIQ_KEY",  # Message.message_id
        "__SHARDINGKEY",  # Head.order_key
        "TG_SUBJECT",
        "TG_PROTOCOL",
        "TG_CLIENT",
        "TG_EXPIRES_AT",
        "TG_RETAIN",
        "TG_PRIORITY",
        MIRROR_OF,
        "REAL_TOPIC",
        "REAL_QID",
        "RETRY_TOPIC",
        "DELAY",
        "MIN_OFFSET",
        "MAX_OFFSET",
        "POP_CK",
        "POP_CK_OFFSET",
        "1ST_POP_TIME",
        "TRAN_MSG",
        "PGROUP",
        "TG_HELD",
        "TRAN_PREPARED_QUEUE_OFFSET",
        "TRANSACTION_CHECK_TIMES",
        "RECONSUME_TIME",
        "MAX_RECONSUME_TIMES",
        "CONSUME_START_TIME",
        "ORIGIN_MESSAGE_ID",
        "TRANSFER_FLAG",
        "CORRECTION_FLAG",
        "MQ2_FLAG",
        "DUP_INFO",
        "DLQ_ORIGIN_TOPIC",
        "DLQ_ORIGIN_MESSAGE_ID",
        "__CRC32#",
    )
)
ORIGIN_NAMES: Final = frozenset(
    ("RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID")
)
"""Of these, what the gateway itself says of a dead letter."""

RESERVED_PREFIXES: Final = ("INNER_", "TIMER_", "REAL_", "__RMQ.TRANSIENT.")


def is_system_topic(topic: str) -> bool:
    """Topics that belong to brokers; clients may not name them."""
    return (
        topic in SYSTEM_TOPICS
        or topic.startswith(SYSTEM_PREFIXES)
        or topic.endswith(SYSTEM_SUFFIXES)
    )


def qualified(tenant: str, topic: str) -> str:
    """
    The topic in its tenant's namespace; retry and dead-letter topics have it behind their prefix
    (``NamespaceUtil.wrapNamespace``), so that no tenant can name another one's.
    """
    if not tenant:
        return topic
    for prefix in OF_GROUPS:
        if topic.startswith(prefix):
            return prefix + qualified(tenant, topic[len(prefix) :])
    if topic.startswith(tenant + NAMESPACE_SEPARATOR):
        return topic
    return f"{tenant}{NAMESPACE_SEPARATOR}{topic}"


@lru_cache(maxsize=4096)
def is_reserved(name: str) -> bool:
    """Whether a publisher's own property of this name is dropped."""
    return name in RESERVED or name.startswith(RESERVED_PREFIXES)


def without_reserved(properties: Properties) -> Properties:
    """*properties* as a client may set them; the same object if nothing had to go."""
    if any([is_reserved(name) for name, _ in properties]):
        return tuple((name, value) for name, value in properties if not is_reserved(name))
    return properties


def head_properties(call: Call, head: Head, topic: str) -> Properties:
    """What every record of this head says, in stored form and order."""
    pairs: list[tuple[str, str]] = []
    if head.tag:
        pairs.append(("TAGS", head.tag))
    if head.subject != topic or head.retain:  # a retained value is found by its address
        pairs.append(("TG_SUBJECT", head.subject))
    if head.is_fifo and head.order_key:
        pairs.append(("__SHARDINGKEY", head.order_key))
    if head.priority >= 0:
        pairs.append(("TG_PRIORITY", str(head.priority)))
    if head.retain:
        pairs.append(("TG_RETAIN", "1"))
    pairs.append(("TG_PROTOCOL", call.protocol))
    if call.client_id:
        pairs.append(("TG_CLIENT", publisher_name(call.client_id)))
    if call.protocol == INTERNAL:
        pairs += [pair for pair in head.properties if pair[0] in ORIGIN_NAMES]
    pairs += without_reserved(head.properties)
    return tuple((name, clean(value)) for name, value in pairs)


def clean(value: str) -> str:
    """A property value without the two bytes that separate properties."""
    if "\x01" in value or "\x02" in value:
        return value.replace("\x01", " ").replace("\x02", " ")
    return value
