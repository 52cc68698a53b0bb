"""
Topics that every RocketMQ broker has, by name. They are registered, not logged.

Source: Apache RocketMQ 5, ``TopicConfigManager`` and ``TopicValidator``.
"""

from typing import Final

from protocols.remoting.codes import Permission
from protocols.remoting.replying import REPLY_SUFFIX
from store.answers import TopicConfig
from store.config import StoreConfig

AUTO_CREATE_TOPIC: Final = "TBW102"
"""Producers of unknown topics take its route; a first send to one of its queues creates theirs."""

READ_WRITE: Final = int(Permission.READ | Permission.WRITE)

FORBIDDEN_TO_CLIENTS: Final = frozenset(
    (
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    )
)
"""Clients may not send to these (``TopicValidator.isNotAllowedSendTopic``)."""

TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
"""Where clients send what they did with messages (``rmqTraceTopic``)."""

SYSTEM_PREFIX: Final = "rmq_sys_"


def system_topics(config: StoreConfig) -> dict[str, TopicConfig]:
    """Name → configuration, of this store."""
    topics = [
        TopicConfig(
            AUTO_CREATE_TOPIC,
            config.topic_queue_count,
            config.topic_queue_count,
            READ_WRITE | (Permission.INHERIT if config.auto_create_topics else 0),
        ),
        TopicConfig("SELF_TEST_TOPIC", 1, 1, READ_WRITE),
        *([TopicConfig(TRACE_TOPIC, 1, 1, READ_WRITE)] if config.trace else []),
        TopicConfig("OFFSET_MOVED_EVENT", 1, 1, READ_WRITE),
        TopicConfig(f"{config.cluster}{REPLY_SUFFIX}", 1, 1, READ_WRITE),
        TopicConfig(config.cluster, 16, 16, READ_WRITE | Permission.INHERIT),
        TopicConfig(config.name, 1, 1, READ_WRITE | Permission.INHERIT),
    ]
    return {topic.name: topic for topic in topics}


def is_system_topic(name: str) -> bool:
    """Whether *name* may not be created, changed or deleted by a client."""
    return (
        name in FORBIDDEN_TO_CLIENTS or name == AUTO_CREATE_TOPIC or name.startswith(SYSTEM_PREFIX)
    )
