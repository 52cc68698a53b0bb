"""
Between CloudEvents and the stored message.

Stored form: the data as body, each attribute as ``CE_<name>``, the media type in
``CE_contenttype``, an event without data as one NUL byte: what the RocketMQ module of the
CloudEvents Java SDK writes and reads. Messages of other protocols are told as events of type
``tidegate.message``.
"""

import zlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from protocols.canonical import Head, Message, Properties, StoredMessage
from protocols.cloudevents.modes import (
    STRUCTURED,
    BadEvent,
    Event,
    decode_structured,
    parse_time_ms,
)
from protocols.stored_names import (
    EVENT_CONTENT_TYPE,
    EVENT_PREFIX,
    NO_DATA,
    USER_PREFIX,
    is_system,
    number_of,
)

PREFIX: Final = EVENT_PREFIX
HEADS_MAX: Final = 4096
"""Heads kept per listener; beyond, the oldest goes."""

COMPRESSED_FLAG: Final = 0x1
"""sysFlag: the body is compressed; bits 8 to 10 name how (0, 3: zlib)."""
COMPRESSION_MASK: Final = 0x700
ZLIB_TYPES: Final = (0x000, 0x300)
INFLATED_BYTES_MAX: Final = 16 << 20

MESSAGE_TYPE: Final = "tidegate.message"
"""``type`` of a message that was not published as an event."""

EXTENSIONS: Final = {
    "correlationid": "TG_CORRELATION_ID",
    "replyto": "TG_REPLY_TO",
}
"""Extensions that other protocols have a field for: an event may ask and answer MQTT 5 clients."""

_TAG_FORBIDDEN: Final = frozenset("| ")


class Heads:
    """One head object per topic, address, tag and order key, so that decisions are cached."""

    def __init__(self) -> None:
        self._heads: dict[tuple[str, str, str, str], Head] = {}

    def get(self, topic: str, attributes: Mapping[str, str]) -> Head:
        subject, order_key = attributes.get("subject", ""), attributes.get("partitionkey", "")
        key = (topic, subject, attributes["type"], order_key)
        head = self._heads.get(key)
        if head is None:
            if len(self._heads) >= HEADS_MAX:
                del self._heads[next(iter(self._heads))]
            head = self._heads[key] = Head(
                subject=f"{topic}/{subject}" if subject else topic,
                topic=topic,
                tag=_tag_of(attributes["type"]),
                order_key=order_key,
                is_fifo=bool(order_key),
            )
        return head


def to_message(event: Event, topic: str, heads: Heads) -> Message:
    """The message of an event that was posted to *topic*."""
    attributes = event.attributes
    pairs = [(PREFIX + name, value) for name, value in attributes.items()]
    if event.content_type:
        pairs.append((EVENT_CONTENT_TYPE, event.content_type))
        pairs.append(("TG_CONTENT_TYPE", event.content_type))
    pairs += [(own, attributes[name]) for name, own in EXTENSIONS.items() if attributes.get(name)]
    identifier = attributes["id"]
    return Message(
        heads.get(topic, attributes),
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
    if event := _structured(message):
        return event
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
        attributes["expirytime"] = time_text(number_of(expires))
    attributes |= _shared(properties)
    attributes |= _extensions(message.property_pairs(), attributes)
    return Event(
        attributes={name: value for name, value in attributes.items() if value},
        content_type=properties.get("TG_CONTENT_TYPE", ""),
        data=body_of(message),
    )


def _structured(message: StoredMessage) -> Event | None:
    """The event that the body is, by AMQP's and MQTT's content type; None: it is none."""
    content_type = message.properties.get("TG_CONTENT_TYPE", "")
    if content_type.partition(";")[0].strip().lower() != STRUCTURED:
        return None
    try:
        return decode_structured(body_of(message))
    except BadEvent:
        return None  # told as what it is: JSON


def _shared(properties: Mapping[str, str]) -> dict[str, str]:
    """Extensions for what other protocols have a field for."""
    found = {name: properties.get(own, "") for name, own in EXTENSIONS.items()}
    if (priority := number_of(properties.get("TG_PRIORITY", ""))) >= 0:
        found["priority"] = str(priority)
    return {name: value for name, value in found.items() if value}


def _event_of(message: StoredMessage) -> Event:
    attributes = {
        name.removeprefix(PREFIX): value
        for name, value in message.property_pairs()
        if name.startswith(PREFIX) and name != EVENT_CONTENT_TYPE
    }
    for name, value in _shared(message.properties).items():
        attributes.setdefault(name, value)
    content_type = message.properties.get(EVENT_CONTENT_TYPE, "")
    body = body_of(message)
    return Event(
        attributes=attributes,
        content_type=content_type,
        data=None if body == NO_DATA else body,
    )


def body_of(message: StoredMessage) -> bytes:
    """The body as its publisher meant it: remoting producers compress theirs beyond 4 KiB."""
    is_compressed = bool(message.sys_flag & COMPRESSED_FLAG)
    if not is_compressed or message.sys_flag & COMPRESSION_MASK not in ZLIB_TYPES:
        return message.body
    engine = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    try:
        plain = engine.decompress(message.body, INFLATED_BYTES_MAX)
    except zlib.error:
        return message.body  # its flag lies: the bytes are what there is
    return plain if engine.eof else message.body


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
        if not is_user and is_system(name):
            continue
        attribute = name.removeprefix(USER_PREFIX).lower()
        is_name = attribute.isascii() and attribute.isalnum()
        if is_name and attribute not in taken and attribute not in ("data", "datacontenttype"):
            found.setdefault(attribute, value)
    return found


SECONDS_MAX: Final = 253_402_300_799
"""The last second of 9999."""


def time_text(milliseconds: int) -> str:
    """Milliseconds since 1970 as RFC 3339 in UTC."""
    seconds = min(max(milliseconds, 0) / 1000, SECONDS_MAX)
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
