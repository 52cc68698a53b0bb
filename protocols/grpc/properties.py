"""Which names of stored properties a client may set and which it gets to see."""

from typing import Final

RESERVED: Final = frozenset(
    (
        "KEYS",
        "TAGS",
        "WAIT",
        "DELAY",
        "RETRY_TOPIC",
        "REAL_TOPIC",
        "REAL_QID",
        "TRAN_MSG",
        "PGROUP",
        "MIN_OFFSET",
        "MAX_OFFSET",
        "BUYER_ID",
        "ORIGIN_MESSAGE_ID",
        "TRANSFER_FLAG",
        "CORRECTION_FLAG",
        "MQ2_FLAG",
        "RECONSUME_TIME",
        "MSG_REGION",
        "TRACE_ON",
        "UNIQ_KEY",
        "EXTEND_UNIQ_INFO",
        "MAX_RECONSUME_TIMES",
        "CONSUME_START_TIME",
        "TRAN_PREPARED_QUEUE_OFFSET",
        "TRANSACTION_CHECK_TIMES",
        "DUP_INFO",
        "INSTANCE_ID",
        "CORRELATION_ID",
        "REPLY_TO_CLIENT",
        "TTL",
        "ARRIVE_TIME",
        "PUSH_REPLY_TIME",
        "CLUSTER",
        "MSG_TYPE",
        "POP_CK",
        "POP_CK_OFFSET",
        "1ST_POP_TIME",
        "INNER_NUM",
        "INNER_MULTI_QUEUE_OFFSET",
        "TIMER_DELIVER_MS",
        "TIMER_DELAY_SEC",
        "TIMER_DELAY_MS",
        "TIMER_IN_MS",
        "TIMER_OUT_MS",
        "TIMER_ENQUEUE_MS",
        "TIMER_DEQUEUE_MS",
        "TIMER_ROLL_TIMES",
        "TIMER_DEL_UNIQKEY",
        "TIMER_DELAY_LEVEL",
        "__BORNHOST",
        "BORN_TIMESTAMP",
        "DLQ_ORIGIN_TOPIC",
        "DLQ_ORIGIN_MESSAGE_ID",
        "__CRC32#",
    )
)
"""A client that sets one is refused. Source: ``MessageConst.STRING_HASH_SET`` of 5.x."""

HIDDEN: Final = RESERVED | frozenset(
    (
        "__SHARDINGKEY",  # system property message_group
        "TRACE_CONTEXT",  # system property trace_context
        "CHECK_IMMUNITY_TIME_IN_SECONDS",
        "INNER_MULTI_DISPATCH",
        "__transactionId__",
        "_SYS_MSG_PRIORITY_",  # system property priority
        "TG_PRIORITY",
        "TG_AMQP",  # raw AMQP header table, of use to the AMQP front only
    )
)
"""Stored, but not among the user properties that a client gets."""

SETTABLE: Final = frozenset(
    (
        "TG_CONTENT_TYPE",
        "TG_CONTENT_ENCODING",
        "TG_PAYLOAD_FORMAT",
        "TG_REPLY_TO",
        "TG_CORRELATION_ID",
    )
)
"""The gateway's own names that a client may use to fill fields of other protocols."""

OWN_PREFIX: Final = "TG_"
USER_PREFIX: Final = "TG_U_"
"""In front of application names that are reserved in storage."""


def is_settable(name: str) -> bool:
    """Whether a user property of this name is stored; the gateway's own names are dropped."""
    return not name.startswith(OWN_PREFIX) or name in SETTABLE or name.startswith(USER_PREFIX)


def visible_name(name: str) -> str:
    """The name under which a client sees it; empty: not at all."""
    if name in HIDDEN:
        return ""
    return name.removeprefix(USER_PREFIX)
