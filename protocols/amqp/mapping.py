"""
Between AMQP content and the stored message, both ways; the table is in the README beside this.

AMQP to AMQP is byte for byte: the property block is stored raw. What is published to
``amq.topic`` is also written as text properties, because other protocols may receive it.
"""

import base64
import binascii
import re
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from protocols.amqp import replies
from protocols.amqp.addresses import AMQ_TOPIC, routing_key_of, subject_of
from protocols.amqp.arguments import TYPE_NAMES
from protocols.amqp.fields import Field, Table, field_of
from protocols.amqp.method_codec import short_string
from protocols.amqp.properties import (
    EMPTY,
    BasicProperties,
    decode_properties,
    encode_properties,
)
from protocols.amqp.replies import AmqpFault
from protocols.canonical import (
    INTERNAL,
    Head,
    Message,
    Properties,
    QueueRef,
    StoredMessage,
    told_ms,
)
from protocols.stored_names import (
    ESCAPED_PREFIX,
    EVENT_CONTENT_TYPE,
    NO_DATA,
    USER_PREFIX,
    is_system,
    number_of,
)

NUMBER: Final = re.compile(r"[+-]?[0-9]+")

RAW: Final = "TG_AMQP"
"""The property block, base64."""

RAW_IN_BODY: Final = "TG_AMQP_BYTES"
"""So many bytes in front of the body are the property block (too long for a property)."""

EXCHANGE: Final = "TG_EXCHANGE"
ROUTING_KEY: Final = "TG_ROUTING_KEY"
CONTENT_TYPE: Final = "TG_CONTENT_TYPE"
CONTENT_ENCODING: Final = "TG_CONTENT_ENCODING"
REPLY_TO: Final = "TG_REPLY_TO"
CORRELATION_ID: Final = "TG_CORRELATION_ID"
EXPIRES_AT: Final = "TG_EXPIRES_AT"
PRIORITY: Final = "TG_PRIORITY"
MESSAGE_ID: Final = "UNIQ_KEY"
CLOUDEVENTS_PREFIX: Final = "ce-"
"""Headers of a CloudEvent, as Knative's RabbitMQ broker and HTTP binary mode write them."""

CLOUDEVENTS_PREFIXES: Final = (CLOUDEVENTS_PREFIX, "cloudEvents:", "cloudEvents_")
"""Read too: the prefixes of the CloudEvents AMQP binding 1.0.2, section 3.1.3."""

REPLY_TO_HEADER: Final = "x-reply-to-topic"
"""The key of ``amq.topic`` that an answer goes to: MQTT's response topic in RabbitMQ from 3.13 on
(``mc_mqtt``). Here reply-to is one too; where both are given this one counts."""

CORRELATION_HEADER: Final = "x-correlation-id"
"""There too: correlation data that is too long for the property."""

MQTT_TAG: Final = "mqtt_proxy"
"""Tag of everything that came by MQTT: no news to anyone."""

RAW_BYTES_MAX: Final = 12_288
"""A property block up to this is 16 KiB of base64; all properties have 32,767 bytes."""

OURS: Final = ("amqp", INTERNAL)
"""Publishers whose missing exchange is the default one: clients, and dead letters."""

TOPIC: Final = "amqp"
"""RocketMQ topic that records of AMQP queues bear; no message queue of it holds them."""

DELIVERY_COUNT: Final = "x-delivery-count"
HAS_HEADERS: Final = 0x20
HAS_PRIORITY: Final = 0x08
HAS_EXPIRATION: Final = 0x01
HAS_USER_ID: Final = 0x10
"""Bits of the flags' two bytes: headers, priority and expiration in the first, user-id in the
second."""


# ── in ──────────────────────────────────────────────────────────────────────────────────


def queue_head(
    exchange: str, key: str, queues: tuple[QueueRef, ...], *, priority: int = -1
) -> Head:
    """A publish whose queues this gateway's topology names; *priority* if one sorts by it."""
    pairs = ((EXCHANGE, exchange), (ROUTING_KEY, key))
    return Head(
        subject=f"{exchange}/{key}" if exchange else key or "/",
        topic=TOPIC,
        properties=tuple(pair for pair in pairs if _is_storable(pair[1])),
        queues=queues,
        priority=priority,
        is_in_topic=False,
    )


def address_head(
    key: str, priority: int, exchange: str = AMQ_TOPIC, without: tuple[QueueRef, ...] = ()
) -> Head:
    """
    A publish to ``amq.topic``, be it by way of another *exchange*: whoever's filter matches the
    address gets it, *without* those that this exchange has given it to.
    """
    subject = subject_of(key)
    is_exact = exchange == AMQ_TOPIC and routing_key_of(subject) == key
    origin = ((EXCHANGE, exchange),)
    has_key = not is_exact and _is_storable(key)
    return Head(
        subject=subject,
        priority=priority,
        properties=(*origin, (ROUTING_KEY, key)) if has_key else origin,
        without=without,
    )


def _is_storable(text: str) -> bool:
    return bool(text) and "\x01" not in text and "\x02" not in text


class Stored(NamedTuple):
    """A property block as it is stored; cached per connection and block."""

    properties: Properties
    message_id: str = ""
    expires_in_ms: int = -1
    priority: int = -1
    body_prefix: bytes = b""
    user_id: str = ""
    born_ms: int = 0


def stored_block(block: bytes, *, is_addressed: bool) -> Stored:
    """
    What a property block becomes; *is_addressed*: other protocols may receive it.

    Raises:
        AmqpFault: 501 undecodable, 406 a bad expiration or too large for other protocols.
    """
    if block == EMPTY:
        return Stored(())
    if not is_addressed and not (block[0] & HAS_EXPIRATION or block[1] & HAS_USER_ID):
        priority = priority_of(block)
        if len(block) > RAW_BYTES_MAX:
            pairs: Properties = ((RAW_IN_BODY, str(len(block))),)
            return Stored(pairs, body_prefix=block, priority=priority)
        return Stored(((RAW, base64.b64encode(block).decode()),), priority=priority)
    try:
        properties = decode_properties(block)
    except Exception as error:
        raise AmqpFault(replies.FRAME_ERROR, str(error)) from error
    if len(block) > RAW_BYTES_MAX:
        if is_addressed:
            raise AmqpFault(
                replies.PRECONDITION_FAILED,
                f"properties of {len(block)} bytes to amq.topic, at most {RAW_BYTES_MAX}",
            )
        pairs = ((RAW_IN_BODY, str(len(block))),)
    else:
        pairs = ((RAW, base64.b64encode(block).decode()),)
    if is_addressed:
        pairs += _text_properties(properties)
    return Stored(
        pairs,
        message_id=properties.message_id if _is_storable(properties.message_id) else "",
        expires_in_ms=_expiration_ms(properties.expiration),
        priority=properties.priority,
        body_prefix=block if len(block) > RAW_BYTES_MAX else b"",
        user_id=properties.user_id,
        born_ms=told_ms(properties.timestamp * 1000),
    )


def priority_of(block: bytes) -> int:
    """The priority in a block that is not decoded otherwise; -1: none, or cut short."""
    flags, at = block[0], 2
    if not flags & HAS_PRIORITY:
        return -1
    try:
        for bit in (0x80, 0x40):  # content-type, content-encoding
            if flags & bit:
                at += 1 + block[at]
        if flags & HAS_HEADERS:
            at += 4 + int.from_bytes(block[at : at + 4], "big")
        return block[at + (1 if flags & 0x10 else 0)]  # behind delivery-mode
    except IndexError:
        return -1


def _expiration_ms(text: str) -> int:
    """-1: none. RabbitMQ reads it with ``string:to_integer``, which its texts show."""
    if not text:
        return -1
    if text.isascii() and text.isdigit() and len(text) <= 15:
        return int(text)
    number = NUMBER.match(text)
    if number is None:
        problem = "no_integer"
    elif number.end() < len(text):
        problem = f'{{leftover_string,"{text[number.end() :]}"}}'
    elif number[0].startswith("-"):
        problem = f"{{value_negative,{number[0]}}}"
    elif len(number[0]) > 15:
        problem = f"{{value_too_big,{number[0]}}}"
    else:
        return int(number[0])
    raise AmqpFault(replies.PRECONDITION_FAILED, f"invalid expiration '{text}': {problem}")


def _text_properties(properties: BasicProperties) -> Properties:
    """What other protocols read."""
    headers = dict(properties.headers or {})
    fixed = (
        (CONTENT_TYPE, properties.content_type),
        (CONTENT_ENCODING, properties.content_encoding),
        (REPLY_TO, subject_of(_take(headers, REPLY_TO_HEADER) or properties.reply_to)),
        (CORRELATION_ID, properties.correlation_id or _take(headers, CORRELATION_HEADER)),
    )
    pairs = [pair for pair in fixed if _is_storable(pair[1])]
    for name, field in headers.items():
        if name in ("CC", "BCC"):
            continue
        value = _text_of(field)
        if value is not None:
            pairs.append(_stored_pair(name, value))
    if properties.content_type and any(name == "CE_specversion" for name, _ in pairs):
        pairs.append((EVENT_CONTENT_TYPE, properties.content_type))
    return tuple(pairs)


def _take(headers: Table, name: str) -> str:
    """The text of a header that says what no other protocol has a property of this name for."""
    field = headers.get(name)
    if field is None or not isinstance(field.value, str):
        return ""
    del headers[name]
    return field.value


def _text_of(field: Field) -> str | None:
    """Scalars as text; tables, arrays and bytes are in the raw block only."""
    value = field.value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, (int, float)) else None


def _stored_pair(name: str, value: str) -> tuple[str, str]:
    if not _is_storable(name) or not _is_storable(value):
        return ESCAPED_PREFIX + quote(name, safe=""), "=" + quote(value, safe="")
    for prefix in CLOUDEVENTS_PREFIXES:
        if name.startswith(prefix):
            return "CE_" + name[len(prefix) :], value
    return (USER_PREFIX + name if is_system(name) else name), value


def message_of(head: Head, stored: Stored, body: bytes, *, wall_ms: int) -> Message:
    """The message that a publish is."""
    expires_ms = stored.expires_in_ms
    return Message(
        head,
        stored.body_prefix + body if stored.body_prefix else body,
        stored.properties,
        message_id=stored.message_id,
        expires_at_ms=wall_ms + expires_ms if expires_ms >= 0 else 0,
        born_ms=stored.born_ms,
    )


# ── out ─────────────────────────────────────────────────────────────────────────────────


class Content(NamedTuple):
    """What a consumer gets."""

    exchange: str
    routing_key: str
    properties: bytes
    body: bytes


def content_of(message: StoredMessage) -> Content:
    """Any stored message as AMQP content, whoever published it."""
    stored = message.properties
    raw = stored.get(RAW)
    body = message.body
    if raw is not None:
        block = _from_base64(raw)
    elif (length := number_of(stored.get(RAW_IN_BODY, ""))) >= 0:
        block, body = body[:length], body[length:]
    elif stored.get("TG_PROTOCOL") in OURS:
        block = EMPTY
    else:
        block = foreign_block(message)
        if body == NO_DATA and "CE_specversion" in stored:
            body = b""
    # the default exchange leaves no property; what came by another protocol came by its address
    is_ours = stored.get("TG_PROTOCOL") in OURS
    exchange = stored.get(EXCHANGE, "" if is_ours else AMQ_TOPIC)
    key = stored.get(ROUTING_KEY)
    if key is None:
        key = routing_key_of(message.subject) if exchange == AMQ_TOPIC else ""
    return Content(exchange, key, block, body)


class Wire(NamedTuple):
    """``Content`` as a delivery needs it: exchange and key already encoded."""

    names: bytes
    properties: bytes
    body: bytes


def wire_of(message: StoredMessage) -> Wire:
    """
    ``content_of`` for deliveries: of AMQP's own messages only three properties are looked at,
    and what repeats from message to message is encoded once.
    """
    found = names_and_block(message.properties_text)
    if found is None:
        content = content_of(message)
        names = short_string(content.exchange) + short_string(content.routing_key)
        return Wire(names, content.properties, content.body)
    return Wire(*found, message.body)


def names_and_block(text: bytes) -> tuple[bytes, bytes] | None:
    """What a ``Wire`` has beside the body, by stored properties; None: not told by them alone."""
    raw = _found(text, _RAW)
    exchange = _found(text, _EXCHANGE)
    key = _found(text, _ROUTING_KEY)
    if raw is None or key is None or (exchange is None and _found(text, _PROTOCOL) not in _OURS):
        return None
    return _names(exchange or b"", key), _block(raw)


@lru_cache(maxsize=4096)
def counted(block: bytes, attempt: int) -> bytes:
    """Quorum queues tell how often a message was delivered before, on each delivery."""
    properties = decode_properties(block)
    headers = {**(properties.headers or {}), DELIVERY_COUNT: Field("l", attempt - 1)}
    return encode_properties(properties._replace(headers=headers))


_RAW: Final = f"\x02{RAW}\x01".encode()
_EXCHANGE: Final = f"\x02{EXCHANGE}\x01".encode()
_ROUTING_KEY: Final = f"\x02{ROUTING_KEY}\x01".encode()
_PROTOCOL: Final = b"\x02TG_PROTOCOL\x01"
_OURS: Final = tuple(name.encode() for name in OURS)


def _found(text: bytes, name: bytes) -> bytes | None:
    """A stored property that is not the first one (that is the message id)."""
    at = text.find(name)
    if at < 0:
        return None
    start = at + len(name)
    end = text.find(b"\x02", start)
    return text[start:end] if end >= 0 else text[start:]


@lru_cache(maxsize=4096)
def _names(exchange: bytes, key: bytes) -> bytes:
    return b"%c%b%c%b" % (len(exchange), exchange, len(key), key)


@lru_cache(maxsize=4096)
def _block(raw: bytes) -> bytes:
    return _from_base64(raw.decode("ascii", "replace"))


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return EMPTY


def foreign_block(message: StoredMessage) -> bytes:
    """The property block of a message that another protocol published."""
    stored = message.properties
    headers: Table = {}
    for name, value in message.property_pairs():
        if (pair := _header(name, value)) is not None:
            headers.setdefault(pair[0][:255], field_of(pair[1]))
    reply_to = routing_key_of(stored.get(REPLY_TO, ""))
    if reply_to:
        headers.setdefault(REPLY_TO_HEADER, field_of(reply_to))
    correlation_id = stored.get(CORRELATION_ID, "")
    if not _short(correlation_id) and correlation_id:
        headers.setdefault(CORRELATION_HEADER, field_of(correlation_id))
    priority = stored.get(PRIORITY, "")
    return encode_properties(
        BasicProperties(
            content_type=_short(stored.get(CONTENT_TYPE) or stored.get("CE_contenttype", "")),
            content_encoding=_short(stored.get(CONTENT_ENCODING, "")),
            headers=headers or None,
            delivery_mode=1 if stored.get("mqtt_qos") == "0" else 2,
            priority=min(number_of(priority), 255),
            correlation_id=_short(correlation_id),
            reply_to=_short(reply_to),
            expiration=_remaining(stored.get(EXPIRES_AT, ""), message.store_ms),
            message_id=_short(message.message_id),
            timestamp=message.born_ms // 1000,
        )
    )


def _header(name: str, value: str) -> tuple[str, str] | None:
    if name.startswith(ESCAPED_PREFIX):
        return unquote(name[len(ESCAPED_PREFIX) :]), unquote(value[1:])
    if name.startswith(USER_PREFIX):
        return name[len(USER_PREFIX) :], value
    if name.startswith("CE_"):
        return (CLOUDEVENTS_PREFIX + name[3:], value) if name != EVENT_CONTENT_TYPE else None
    if name in ("TAGS", "KEYS"):
        return (name, value) if value != MQTT_TAG else None
    return None if is_system(name) else (name, value)


def _remaining(expires_at: str, now_ms: int) -> str:
    at = number_of(expires_at)
    return str(max(at - now_ms, 0)) if at >= 0 else ""


def _short(text: str) -> str:
    """What fits a short string; a longer one would be a lie when cut, so it is left out."""
    return text if len(text.encode()) <= 255 else ""


def extra_keys(block: bytes) -> list[str]:
    """
    Further routing keys in the headers CC and BCC.

    Raises AmqpFault 406 in RabbitMQ's words if one is no array of long strings.
    """
    if not block[0] & HAS_HEADERS or b"CC" not in block:
        return []
    keys: list[str] = []
    headers = decode_properties(block).headers or {}
    for name in ("CC", "BCC"):
        field = headers.get(name)
        if field is None:
            continue
        if not isinstance(field.value, list):
            kind = TYPE_NAMES[field.tag]
            raise AmqpFault(
                replies.PRECONDITION_FAILED,
                f'invalid message: {{unacceptable_type_in_header,"{name}",{kind}}}',
            )
        keys += [item.value for item in field.value if isinstance(item.value, str)]
    return keys


def without_bcc(block: bytes) -> bytes:
    """BCC is removed before anyone can see it."""
    if b"BCC" not in block:
        return block
    properties = decode_properties(block)
    if not properties.headers or "BCC" not in properties.headers:
        return block
    headers = {name: field for name, field in properties.headers.items() if name != "BCC"}
    return encode_properties(properties._replace(headers=headers or None))
