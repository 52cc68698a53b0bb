"""
Between CloudEvents and the stored message.

Stored form: the data as body, each attribute as ``CE_<name>``, the media type in
``CE_contenttype``, an event without data as one NUL byte: what the RocketMQ module of the
CloudEvents Java SDK writes and reads. Messages of other protocols are told as events of type
``tidegate.message``.
"""

from datetime import UTC, datetime
from typing import Final

from protocols.canonical import Head, Message, Properties, StoredMessage
from protocols.cloudevents.modes import Event, parse_time_ms

PREFIX: Final = "CE_"
CONTENT_TYPE: Final = "CE_contenttype"
NO_DATA: Final = b"\x00"
"""RocketMQ refuses empty bodies."""

MESSAGE_TYPE: Final = "tidegate.message"
"""``type`` of a message that was not published as an event."""

USER_PREFIX: Final = "TG_U_"
SYSTEM_PREFIXES: Final = ("TG_", "CE_", "INNER_", "TIMER_", "REAL_", "__", "TRAN_", "mqtt_")
SYSTEM_NAMES: Final = frozenset(
    # org.apache.rocketmq.common.message.MessageConst, as far as a stored message shows it
    [
        "TAGS",
        "KEYS",
        "UNIQ_KEY",
        "WAIT",
        "DELAY",
        "CLUSTER",
        "MSG_REGION",
        "TRACE_ON",
        "MIN_OFFSET",
        "MAX_OFFSET",
        "POP_CK",
        "RETRY_TOPIC",
        "ORIGIN_MESSAGE_ID",
        "PGROUP",
        "BORN_TIMESTAMP",
        "TRACE_CONTEXT",
    ]
)
_TAG_FORBIDDEN: Final = frozenset("| ")


def to_message(event: Event, topic: str) -> Message:
    """The message of an event that was posted to *topic*."""
    attributes = event.attributes
    subject = attributes.get("subject", "")
    pairs = [(PREFIX + name, value) for name, value in attributes.items()]
    if event.content_type:
        pairs.append((CONTENT_TYPE, event.content_type))
        pairs.append(("TG_CONTENT_TYPE", event.content_type))
    partition_key = attributes.get("partitionkey", "")
    head = Head(
        subject=f"{topic}/{subject}" if subject else topic,
        topic=topic,
        tag=_tag_of(attributes["type"]),
        order_key=partition_key,
        is_fifo=bool(partition_key),
    )
    identifier = attributes["id"]
    return Message(
        head,
        NO_DATA if event.data is None else event.data,
        tuple(pairs),
        keys="" if any(letter.isspace() for letter in identifier) else identifier,
        expires_at_ms=parse_time_ms(attributes.get("expirytime", "")) or 0,
    )


def _tag_of(event_type: str) -> str:
    """The type as a RocketMQ filter word; empty where it cannot be one."""
    is_word = event_type.isprintable() and not _TAG_FORBIDDEN & set(event_type)
    return event_type if is_word and len(event_type) <= 127 else ""


def from_stored(message: StoredMessage) -> Event:
    """The event of a stored message, whoever published it."""
    properties = message.properties
    if properties.get("CE_specversion"):
        return _event_of(message)
    attributes = {
        "specversion": "1.0",
        "id": message.message_id or f"{message.broker}-{message.log_position}",
        "source": _source_of(message),
        "type": MESSAGE_TYPE,
        "subject": message.subject,
        "time": time_text(message.born_ms or message.store_ms),
    }
    if key := properties.get("__SHARDINGKEY"):
        attributes["partitionkey"] = key
    if expires := properties.get("TG_EXPIRES_AT"):
        attributes["expirytime"] = time_text(int(expires)) if expires.isdigit() else ""
    attributes |= _extensions(message.property_pairs(), attributes)
    return Event(
        attributes={name: value for name, value in attributes.items() if value},
        content_type=properties.get("TG_CONTENT_TYPE", ""),
        data=message.body,
    )


def _event_of(message: StoredMessage) -> Event:
    attributes = {
        name.removeprefix(PREFIX): value
        for name, value in message.property_pairs()
        if name.startswith(PREFIX) and name != CONTENT_TYPE
    }
    content_type = message.properties.get(CONTENT_TYPE, "")
    has_data = message.body != NO_DATA
    return Event(
        attributes=attributes,
        content_type=content_type,
        data=message.body if has_data else None,
    )


def _source_of(message: StoredMessage) -> str:
    """A URI reference: protocol and client where known, else the topic."""
    protocol = message.properties.get("TG_PROTOCOL", "")
    client = message.properties.get("TG_CLIENT", "")
    if protocol and client:
        return f"/{protocol}/clients/{client}"
    return f"/topics/{message.topic}"


def _extensions(pairs: Properties, taken: dict[str, str]) -> dict[str, str]:
    """Application properties whose names, in lower case, are attribute names."""
    found: dict[str, str] = {}
    for name, value in pairs:
        is_user = name.startswith(USER_PREFIX)
        if not is_user and (name in SYSTEM_NAMES or name.startswith(SYSTEM_PREFIXES)):
            continue
        attribute = name.removeprefix(USER_PREFIX).lower()
        is_name = attribute.isascii() and attribute.isalnum()
        if is_name and attribute not in taken and attribute not in ("data", "datacontenttype"):
            found.setdefault(attribute, value)
    return found


def time_text(milliseconds: int) -> str:
    """Milliseconds since 1970 as RFC 3339 in UTC."""
    text = datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
