"""
What a request must look like, in the order and with the codes of the Apache proxy.

Source: ``GrpcValidator``, ``SendMessageActivity`` (rocketmq 5.x, module proxy). Official SDKs
send a refused message three times, so the checks are cheap.
"""

import re
from typing import Final

from protocols import sql92
from protocols.errors import Code, Refused
from protocols.grpc.properties import RESERVED
from protocols.grpc.v2 import definition_pb2 as v2

NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
TOPIC_CHARS_MAX: Final = 127
INTERNAL_TOPIC_CHARS_MAX: Final = 255
"""Of ``%RETRY%`` and ``%DLQ%`` topics."""

GROUP_CHARS_MAX: Final = 120
MESSAGE_GROUP_BYTES_MAX: Final = 63
USER_PROPERTIES_MAX: Final = 128
PROPERTIES_BYTES_MAX: Final = 16 << 10
RECOVERY_S_MAX: Final = 3600
INVISIBLE_MS_MIN: Final = 10_000
INVISIBLE_MS_MAX: Final = 12 * 3600 * 1000

SYSTEM_TOPICS: Final = frozenset(
    (
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "BenchmarkTest",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    )
)
SYSTEM_GROUPS: Final = frozenset(
    (
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
    )
)


def check_topic(name: str) -> None:
    """Raises Refused(ILLEGAL_TOPIC)."""
    longest = INTERNAL_TOPIC_CHARS_MAX if name[:1] == "%" else TOPIC_CHARS_MAX
    if not NAME.fullmatch(name) or len(name) > longest:
        hint = f"1 to {longest} of % | a-z A-Z 0-9 _ -"
        raise Refused(Code.ILLEGAL_TOPIC, name, f"topic '{name}' is not {hint}")
    if name in SYSTEM_TOPICS or name.lower().startswith("rmq_sys_"):
        raise Refused(Code.ILLEGAL_TOPIC, name, f"'{name}' is a system topic")


def check_group(name: str) -> None:
    """Raises Refused(ILLEGAL_CONSUMER_GROUP)."""
    if not NAME.fullmatch(name) or len(name) > GROUP_CHARS_MAX:
        hint = f"1 to {GROUP_CHARS_MAX} of % | a-z A-Z 0-9 _ -"
        raise Refused(Code.ILLEGAL_CONSUMER_GROUP, name, f"group '{name}' is not {hint}")
    if name in SYSTEM_GROUPS or name.startswith("CID_RMQ_SYS_"):
        raise Refused(Code.ILLEGAL_CONSUMER_GROUP, name, f"'{name}' is a system group")


def has_control(text: str) -> bool:
    """Whether *text* has characters that stored properties cannot hold."""
    return not text.isprintable() and any(ord(char) < 32 or ord(char) == 127 for char in text)


def check_message(
    message: v2.Message, *, body_bytes_max: int, now_ms: int, delay_s_max: int = 0
) -> None:
    """One message of a send. Raises Refused with the code of the first fault."""
    topic = message.topic.name
    size = len(message.body)
    if size == 0:
        raise Refused(Code.MESSAGE_BODY_EMPTY, topic, "the body is empty")
    if size > body_bytes_max:
        hint = f"{size} bytes of body, limit {body_bytes_max}"
        raise Refused(Code.MESSAGE_BODY_TOO_LARGE, topic, hint)
    _check_properties(message)
    _check_system_properties(message, now_ms=now_ms, delay_s_max=delay_s_max)


def _check_properties(message: v2.Message) -> None:
    topic, properties = message.topic.name, message.user_properties
    system = message.system_properties
    if len(properties) > USER_PROPERTIES_MAX:
        hint = f"{len(properties)} user properties, limit {USER_PROPERTIES_MAX}"
        raise Refused(Code.MESSAGE_PROPERTIES_TOO_LARGE, topic, hint)
    size = len(system.tag.encode()) + sum(len(key.encode()) for key in system.keys)
    for name, value in properties.items():
        size += len(name.encode()) + len(value.encode())
        if name in RESERVED:
            hint = f"property '{name}' is a system property"
            raise Refused(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, topic, hint)
        if not name or has_control(name) or has_control(value):
            hint = f"property {name!r} has control characters or no name"
            raise Refused(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, topic, hint)
    if size > PROPERTIES_BYTES_MAX:
        hint = f"{size} bytes of properties, limit {PROPERTIES_BYTES_MAX}"
        raise Refused(Code.MESSAGE_PROPERTIES_TOO_LARGE, topic, hint)


def _check_system_properties(message: v2.Message, *, now_ms: int, delay_s_max: int) -> None:
    topic, system = message.topic.name, message.system_properties
    if system.HasField("tag"):
        tag = system.tag
        if not tag.strip() or "|" in tag or has_control(tag):
            raise Refused(Code.ILLEGAL_MESSAGE_TAG, topic, f"tag {tag!r} is blank or has | in it")
    for key in system.keys:
        if not key.strip() or has_control(key):
            raise Refused(Code.ILLEGAL_MESSAGE_KEY, topic, f"key {key!r} is blank")
    if not system.message_id.strip() or has_control(system.message_id):
        raise Refused(Code.ILLEGAL_MESSAGE_ID, topic, "the message id is blank")
    if system.HasField("lite_topic"):
        raise Refused(Code.NOT_IMPLEMENTED, topic, "there are no lite topics here")
    if system.orphaned_transaction_recovery_duration.seconds > RECOVERY_S_MAX:
        raise Refused(Code.BAD_REQUEST, topic, f"recovery duration over {RECOVERY_S_MAX} s")
    if system.HasField("delivery_timestamp"):
        ahead_ms = system.delivery_timestamp.ToMilliseconds() - now_ms
        if 0 < delay_s_max * 1000 < ahead_ms:
            hint = f"delivery more than {delay_s_max} s ahead"
            raise Refused(Code.ILLEGAL_DELIVERY_TIME, topic, hint)
    if system.HasField("message_group"):
        group = system.message_group
        too_long = len(group.encode()) > MESSAGE_GROUP_BYTES_MAX
        if not group.strip() or too_long or has_control(group):
            hint = f"message group {group!r} is blank or over {MESSAGE_GROUP_BYTES_MAX} bytes"
            raise Refused(Code.ILLEGAL_MESSAGE_GROUP, topic, hint)


def invisible_ms(milliseconds: int, *, least: int = INVISIBLE_MS_MIN) -> int:
    """Raises Refused(ILLEGAL_INVISIBLE_TIME) outside *least* to 12 h."""
    if not least <= milliseconds <= INVISIBLE_MS_MAX:
        hint = f"{milliseconds} ms is not {least} to {INVISIBLE_MS_MAX}"
        raise Refused(Code.ILLEGAL_INVISIBLE_TIME, "invisible duration", hint)
    return milliseconds


def sql_of(expression: v2.FilterExpression) -> str:
    """The SQL92 expression, checked; empty for a tag filter. Raises Refused."""
    if expression.type != v2.SQL:
        return ""
    return sql92.parse(expression.expression).text


def tags_of(expression: v2.FilterExpression) -> tuple[str, ...]:
    """
    The tags that ``a || b`` names; empty for ``*``, none, or SQL92: all messages.

    Raises Refused(ILLEGAL_FILTER_EXPRESSION).
    """
    text = expression.expression.strip()
    if expression.type == v2.SQL:
        return ()
    if text in ("", "*"):
        return ()
    tags = tuple(dict.fromkeys(tag.strip() for tag in text.split("||") if tag.strip()))
    if not tags or any("|" in tag or "*" in tag or " " in tag for tag in tags):
        hint = f"{text!r} is not 'a || b' or '*'"
        raise Refused(Code.ILLEGAL_FILTER_EXPRESSION, text, hint)
    return tags
