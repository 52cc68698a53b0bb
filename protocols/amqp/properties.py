"""
The property block of a content header: flags, then the properties that are present, in order.

It travels as one block of bytes and comes back byte for byte; it is decoded only where its
meaning is needed. Source: AMQP 0-9-1 section 4.2.6.1; order from amqp0-9-1.extended.xml.
"""

from typing import Final, NamedTuple

from protocols.amqp.fields import Table, decode_table, encode_table
from protocols.amqp.method_codec import short_string
from protocols.errors import PeerError

EMPTY: Final = b"\0\0"
"""No property at all."""


class BasicProperties(NamedTuple):
    """Decoded; empty text and -1 stand for absent (an absent table is None)."""

    content_type: str = ""
    content_encoding: str = ""
    headers: Table | None = None
    delivery_mode: int = -1
    priority: int = -1
    correlation_id: str = ""
    reply_to: str = ""
    expiration: str = ""
    message_id: str = ""
    timestamp: int = -1
    type: str = ""
    user_id: str = ""
    app_id: str = ""
    cluster_id: str = ""


NO_PROPERTIES: Final = BasicProperties()

# bit of the flags word, attribute, wire type (s short string, F table, o octet, q u64)
_LAYOUT: Final = (
    (15, "content_type", "s"),
    (14, "content_encoding", "s"),
    (13, "headers", "F"),
    (12, "delivery_mode", "o"),
    (11, "priority", "o"),
    (10, "correlation_id", "s"),
    (9, "reply_to", "s"),
    (8, "expiration", "s"),
    (7, "message_id", "s"),
    (6, "timestamp", "q"),
    (5, "type", "s"),
    (4, "user_id", "s"),
    (3, "app_id", "s"),
    (2, "cluster_id", "s"),
)


def decode_properties(block: bytes) -> BasicProperties:
    """
    Read the whole block.

    Raises:
        PeerError: cut short, or with a second flags word (which nobody uses).
    """
    if block == EMPTY:
        return NO_PROPERTIES
    try:
        return _decode(block)
    except (IndexError, UnicodeDecodeError) as error:
        raise PeerError("cannot decode the content properties") from error


def _decode(block: bytes) -> BasicProperties:
    flags = block[0] << 8 | block[1]
    if flags & 3:
        raise PeerError("a content header with more than one flags word")
    values: list[object] = []
    position = 2
    for (bit, _, kind), default in zip(_LAYOUT, NO_PROPERTIES, strict=True):
        if not flags >> bit & 1:
            values.append(default)
            continue
        value, position = _value(block, position, kind)
        values.append(value)
    if position > len(block):
        raise IndexError(position)
    return BasicProperties._make(values)


def _value(block: bytes, position: int, kind: str) -> tuple[object, int]:
    if kind == "s":
        start = position + 1
        end = start + block[position]
        if end > len(block):
            raise IndexError(end)
        return block[start:end].decode(), end
    if kind == "o":
        return block[position], position + 1
    if kind == "F":
        return decode_table(block, position)
    end = position + 8
    if end > len(block):
        raise IndexError(end)
    return int.from_bytes(block[position:end], "big"), end


def encode_properties(properties: BasicProperties) -> bytes:
    """Flags and values; what equals the default is absent."""
    flags = 0
    parts: list[bytes] = []
    for (bit, _, kind), value, default in zip(_LAYOUT, properties, NO_PROPERTIES, strict=True):
        if value == default:
            continue
        flags |= 1 << bit
        if isinstance(value, dict):
            parts.append(encode_table(value))
        elif isinstance(value, str):
            parts.append(short_string(value))
        elif isinstance(value, int):
            parts.append(value.to_bytes(1 if kind == "o" else 8, "big"))
    return flags.to_bytes(2, "big") + b"".join(parts)
