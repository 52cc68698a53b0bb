"""
Between MQTT and the stored message: names of properties, topic to subject, PUBLISH both ways.

What an MQTT publisher says comes back to an MQTT 5 subscriber byte for byte; to other
protocols it keeps its meaning. The table is in the README beside this file.
"""

import base64
import binascii
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote

from protocols.canonical import Head, Message, Properties
from protocols.message_runs import MessageRun
from protocols.mqtt.cloudevents import as_binary_event
from protocols.mqtt.naming import PLAIN, Naming
from protocols.mqtt.packets import PacketProperties, PropertyValue
from protocols.mqtt.properties import Property, find_int
from protocols.mqtt.topics import is_valid_name
from protocols.remoting.records import PROPERTIES_BYTES_MAX, encode_properties
from protocols.stored_names import (
    BASE64_PREFIX,
    ESCAPED_PREFIX,
    EVENT_PREFIX,
    USER_PREFIX,
    is_system,
)

TAG: Final = "mqtt_proxy"
"""Filter word of everything that came in by MQTT; RocketMQ consumers may select it."""

QOS_PROPERTIES: Final[tuple[Properties, ...]] = tuple(
    [(("mqtt_qos", str(qos)),) for qos in range(3)]
)
"""Shared, for there are as many heads as topics in use."""

APACHE_TAG: Final = "MQTT_COMMON"
"""The same of Apache rocketmq-mqtt (``Constants.MQTT_TAG``)."""

TWICE_MAX: Final = 4096
"""Characters of a topic that is also told as ``mqtt_topic``; a longer one is the subject only."""

HEADS_MAX: Final = 1024
"""Topics that any connection is remembered to publish to; beyond it the memory starts anew, unless
there is room to spare."""

HEADS_SPARE: Final = 1 << 17
"""Further topics of all connections of the process together (some 0.7 kB each): what a client
publishes to is decided once only as long as it is remembered, and some speak for thousands."""

OWN_BYTES: Final = 1024
"""What a record says besides its address and the publisher's properties."""

# ── property names ──────────────────────────────────────────────────────────────────────

CONTENT_TYPE: Final = "TG_CONTENT_TYPE"
PAYLOAD_FORMAT: Final = "TG_PAYLOAD_FORMAT"
REPLY_TO: Final = "TG_REPLY_TO"
CORRELATION_ID: Final = "TG_CORRELATION_ID"
EXPIRES_AT: Final = "TG_EXPIRES_AT"
CLIENT: Final = "TG_CLIENT"


def _is_reserved(name: str) -> bool:
    return not name or is_system(name)


def _stored_user_property(name: str, value: str) -> tuple[str, str]:
    separators = ("\x01", "\x02")
    if not value or any(mark in name or mark in value for mark in separators):
        return ESCAPED_PREFIX + quote(name, safe=""), "=" + quote(value, safe="")
    return (USER_PREFIX + name if _is_reserved(name) else name), value


def _user_property(name: str, value: str) -> tuple[str, str] | None:
    """The user property that a stored property is; None: it is none."""
    if name.startswith(ESCAPED_PREFIX):
        return unquote(name[len(ESCAPED_PREFIX) :]), unquote(value[1:])
    if name.startswith(USER_PREFIX):
        return name[len(USER_PREFIX) :], value
    if name.startswith(EVENT_PREFIX):  # the CloudEvents binding for MQTT 5, binary mode
        attribute = name[len(EVENT_PREFIX) :]
        return None if attribute == "contenttype" else (attribute, value)
    return None if _is_reserved(name) else (name, value)


def _stored_binary(data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = ""
    if text.isprintable() and text and not text.startswith(BASE64_PREFIX):
        return text
    return BASE64_PREFIX + base64.b64encode(data).decode()


def _binary(value: str) -> bytes:
    if value.startswith(BASE64_PREFIX):
        try:
            return base64.b64decode(value[len(BASE64_PREFIX) :], validate=True)
        except binascii.Error:
            return value.encode()
    return value.encode()


# ── in ──────────────────────────────────────────────────────────────────────────────────


NO_TABLES: Final[tuple[dict[bytes, Head], ...]] = ({}, {}, {}, {})
"""Of a connection that has not published yet, as most never do; nothing is put into it."""


class Spare:
    """How many more topics than ``HEADS_MAX`` connections may be remembered to publish to."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left


SPARE: Final = Spare(HEADS_SPARE)


class Heads:
    """
    The heads of one connection, one object per topic, QoS and retain flag.

    ``tables`` is what ``codec.take_publishes`` looks topics up in: index = low two bits of the
    first byte (QoS 1, retain), key = topic bytes.
    """

    __slots__ = (
        "_clearing",
        "_client_id",
        "_naming",
        "_others",
        "_source",
        "_spare",
        "_taken",
        "_writes_apache",
        "has_delayed",
        "tables",
    )

    def __init__(
        self,
        client_id: str,
        naming: Naming = PLAIN,
        *,
        writes_apache: bool = False,
        source: Properties = (),
        spare: Spare = SPARE,
    ) -> None:
        self._spare = spare
        self._taken = 0
        """Of the spare ones."""

        self._source = source
        """Of retained publishes: who it is."""

        self._writes_apache = writes_apache
        self.has_delayed = False
        """Some head has a delay: look at each message for it."""

        self.tables = NO_TABLES
        self._others: dict[tuple[str, bool], Head] | None = None
        self._clearing: dict[Head, Head] | None = None
        self._client_id = client_id
        self._naming = naming

    def find(self, topic: str, qos: int, retain: bool) -> Head:
        """The head of a valid topic, remembered. Raises PacketError."""
        if qos == 2:
            others = self._others
            if others is None:
                others = self._others = {}
            head = others.get((topic, retain))
            if head is None:
                if len(others) >= HEADS_MAX:
                    others.clear()
                head = others[topic, retain] = self._make(topic, qos, retain)
            return head
        if self.tables is NO_TABLES:
            self.tables = ({}, {}, {}, {})
        table, key = self.tables[qos << 1 | retain], topic.encode()
        head = table.get(key)
        if head is None:
            if len(table) >= HEADS_MAX and not self._take():
                self._forget(table)
            head = table[key] = self._make(topic, qos, retain)
        return head

    def _take(self) -> bool:
        if self._spare.left == 0:
            return False
        self._spare.left -= 1
        self._taken += 1
        return True

    def _forget(self, table: dict[bytes, Head]) -> None:
        spare_count = len(table) - HEADS_MAX
        table.clear()
        self._taken -= spare_count
        self._spare.left += spare_count

    def __del__(self) -> None:
        self._spare.left += self._taken

    def clearing(self, head: Head) -> Head:
        """The head of a retained publish without a body [MQTT-3.3.1-6]."""
        known = self._clearing
        if known is None:
            known = self._clearing = {}
        found = known.get(head)
        if found is None:
            if len(known) >= HEADS_MAX:
                known.clear()
            found = known[head] = replace(head, clears_retained=True)
        return found

    def _make(self, topic: str, qos: int, retain: bool) -> Head:
        subject, delay_s, due_s = self._naming.publish(topic)
        self.has_delayed = self.has_delayed or delay_s + due_s > 0
        properties = QOS_PROPERTIES[qos]
        if len(subject) <= TWICE_MAX:
            properties = (("mqtt_topic", subject), *properties)
        if retain:
            properties += self._source
        if self._writes_apache:
            properties += (
                ("originMqttTopic", subject),
                ("qosLevel", str(qos)),
                ("clientId", self._client_id),
            )
        return Head(
            subject=subject,
            tag=APACHE_TAG if self._writes_apache else TAG,
            qos=qos,
            retain=retain,
            order_key=self._client_id,
            properties=properties,
            delay_ms=delay_s * 1000,
            due_ms=due_s * 1000,
        )


def message_of(
    head: Head,
    payload: bytes,
    properties: PacketProperties,
    *,
    wall_ms: int,
    once_key: bytes = b"",
) -> Message:
    """The message that a PUBLISH or a will is."""
    deliver_at_ms = _deliver_at_ms(head, wall_ms)
    if not properties:
        return Message(head, payload, once_key=once_key, deliver_at_ms=deliver_at_ms)
    expiry_s = find_int(properties, Property.MESSAGE_EXPIRY, -1)
    stored = as_binary_event(stored_properties(properties))
    return Message(
        _apart(head) if is_large(stored, head.subject) else head,
        payload,
        properties=stored,
        once_key=once_key,
        expires_at_ms=wall_ms + expiry_s * 1000 if expiry_s >= 0 else 0,
        deliver_at_ms=deliver_at_ms,
    )


def is_large(stored: Properties, subject: str) -> bool:
    """Whether a record may have no room for them."""
    room = PROPERTIES_BYTES_MAX - OWN_BYTES - 2 * len(subject.encode())
    chars = sum([len(name) + len(value) + 2 for name, value in stored])
    return 4 * chars > room and len(encode_properties(stored)) > room


@lru_cache(maxsize=64)
def _apart(head: Head) -> Head:
    """The pipeline remembers decisions by head."""
    return replace(head, is_apart=True)


def clearing(messages: Sequence[Message], heads: Heads) -> Sequence[Message]:
    """Retained publishes, those without a body marked as what they are."""
    if type(messages) is MessageRun and messages.rows is not None:
        return messages  # no row is empty
    if all([message.body for message in messages]):
        return messages
    return [
        message if message.body else message._replace(head=heads.clearing(message.head))
        for message in messages
    ]


def delayed(messages: Sequence[Message], *, wall_ms: int) -> list[Message]:
    """*messages* with the times at which those with a delay are to be delivered."""
    return [
        message._replace(deliver_at_ms=_deliver_at_ms(message.head, wall_ms))
        if message.head.delay_ms or message.head.due_ms
        else message
        for message in messages
    ]


def _deliver_at_ms(head: Head, wall_ms: int) -> int:
    return head.due_ms or (wall_ms + head.delay_ms if head.delay_ms else 0)


def stored_properties(properties: PacketProperties) -> Properties:
    """Properties of a PUBLISH or will as they are stored, in order."""
    pairs: list[tuple[str, str]] = []
    for identifier, value in properties:
        if isinstance(value, tuple):
            pairs.append(_stored_user_property(*value))
        elif identifier == Property.CONTENT_TYPE:
            pairs.append((CONTENT_TYPE, str(value)))
        elif identifier == Property.PAYLOAD_FORMAT:
            pairs.append((PAYLOAD_FORMAT, str(value)))
        elif identifier == Property.RESPONSE_TOPIC:
            pairs.append((REPLY_TO, str(value)))
        elif identifier == Property.CORRELATION_DATA and isinstance(value, bytes):
            pairs.append((CORRELATION_ID, _stored_binary(value)))
    return tuple(pairs)


# ── out ─────────────────────────────────────────────────────────────────────────────────


def packet_properties(pairs: Properties) -> PacketProperties:
    """What an MQTT 5 subscriber is told; message expiry and subscription ids come per hop."""
    found: list[tuple[int, PropertyValue]] = []
    for name, value in pairs:
        if name == PAYLOAD_FORMAT:
            found.append((Property.PAYLOAD_FORMAT, 1 if value == "1" else 0))
        elif name == CONTENT_TYPE:
            found.append((Property.CONTENT_TYPE, value))
        elif name == REPLY_TO:
            if is_valid_name(value):
                found.append((Property.RESPONSE_TOPIC, value))
        elif name == CORRELATION_ID:
            found.append((Property.CORRELATION_DATA, _binary(value)))
        elif (pair := _user_property(name, value)) is not None:
            found.append((Property.USER_PROPERTY, pair))
    return tuple(found)
