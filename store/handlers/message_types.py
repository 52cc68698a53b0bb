"""
Attribute ``message.type`` of a topic: which messages it takes, and queues that are priorities.

Source: Apache RocketMQ 5.4, ``TopicMessageType`` and ``SendMessageProcessor``. Apache's brokers
leave the check to the proxy; a store makes it where it is told to.
"""

from collections.abc import Mapping
from typing import Final

from protocols.errors import Code, Refused
from store.answers import TopicConfig

ATTRIBUTE: Final = "message.type"
PRIORITY: Final = "_SYS_MSG_PRIORITY_"
ANY: Final = frozenset(("", "MIXED", "UNSPECIFIED"))

DELAYS: Final = frozenset(("DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS"))


def type_of(named: Mapping[str, str]) -> str:
    """The type of a message, by its properties."""
    if named.get("TRAN_MSG", "").lower() == "true":
        return "TRANSACTION"
    if named.keys() & DELAYS:
        return "DELAY"
    if "__SHARDINGKEY" in named:
        return "FIFO"
    return "PRIORITY" if PRIORITY in named else "NORMAL"


def check_type(topic: TopicConfig, named: Mapping[str, str]) -> None:
    """Raises Refused(MESSAGE_PROPERTY_CONFLICT_WITH_TYPE)."""
    wanted = topic.attributes.get(ATTRIBUTE, "").upper()
    if wanted not in ANY and not topic.name.startswith("%") and type_of(named) != wanted:
        hint = f"a {type_of(named)} message on a topic for {wanted}"
        raise Refused(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, topic.name, hint)


def is_by_priority(topic: TopicConfig) -> bool:
    """Whether its message queues are priorities: the highest is popped first."""
    return topic.attributes.get(ATTRIBUTE, "").upper() == "PRIORITY"


def queue_of_priority(topic: TopicConfig, named: Mapping[str, str]) -> int:
    """The message queue of a message on such a topic; -1: it names no priority."""
    text = named.get(PRIORITY, "")
    if not text.isascii() or not text.isdigit() or type_of(named) != "PRIORITY":
        return -1
    return min(int(text[:9]), max(topic.write_queue_count, 1) - 1)
