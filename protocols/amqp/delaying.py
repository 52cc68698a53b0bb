"""
Exchanges of type ``x-delayed-message``: a message waits in the store until its time, then a gateway
routes it by the topology of that moment, as it does dead letters. Pure functions.

Source: README of RabbitMQ's plug-in ``rabbitmq_delayed_message_exchange``; the header comes out
negated, so that a second exchange of the kind does not delay it again.
"""

from typing import Final

from protocols.amqp.deaths import Letter
from protocols.amqp.fields import INTEGER_TAGS, Field, Table
from protocols.amqp.mapping import Content, extra_keys, without_bcc
from protocols.amqp.properties import decode_properties, encode_properties
from protocols.amqp.topology import hand_over_name
from protocols.canonical import QueueKind, QueueRef

DELAY: Final = "x-delay"
DELAY_MS_MAX: Final = 1 << 41
"""Seventy years; RabbitMQ delays for fifty days at most."""

UNSIGNED_TAGS: Final = "Bui"


def delay_ms_of(block: bytes) -> int:
    """What the header asks for, a number or its text; 0: to be routed now. Raises PeerError."""
    field = (decode_properties(block).headers or {}).get(DELAY)
    if field is None or isinstance(field.value, bool):
        return 0
    value = field.value
    if isinstance(value, str):
        value = int(value) if value.isascii() and value.isdigit() and len(value) <= 18 else 0
    if not isinstance(value, (int, float)):
        return 0
    return max(0, min(int(value), DELAY_MS_MAX))


def waiting_place(vhost: str) -> QueueRef:
    """Where delayed messages of a virtual host come out at their time."""
    return QueueRef(QueueKind.DEAD_LETTER, hand_over_name(vhost))


def make_due(content: Content) -> Letter:
    """What a message is published as when its time has come."""
    properties = decode_properties(content.properties)
    headers: Table = dict(properties.headers or {})
    delay = headers.get(DELAY)
    if delay is not None:
        headers[DELAY] = _negated(delay)
    block = encode_properties(properties._replace(headers=headers or None))
    keys = [content.routing_key, *extra_keys(block)]
    return Letter(without_bcc(block), keys, [], headers)


def _negated(field: Field) -> Field:
    if isinstance(field.value, str):
        return Field("S", f"-{field.value}")
    if isinstance(field.value, (int, float)):
        is_unsigned = field.tag in UNSIGNED_TAGS and field.tag in INTEGER_TAGS
        return Field("l" if is_unsigned else field.tag, -field.value)
    return field
