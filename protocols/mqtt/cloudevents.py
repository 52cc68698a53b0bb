"""
CloudEvents in MQTT (the MQTT protocol binding 1.0.2): binary in MQTT 5, structured by option.

A binary event is a PUBLISH whose user properties are its attributes; it is stored as every
CloudEvent is, attributes as ``CE_<name>``, so that HTTP subscribers get it as one. Structured
JSON is taken apart on the way in and, for 3.x clients, put together on the way out where the
listener says so: 3.1.1 has no place for attributes.
"""

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from protocols.canonical import Message, Properties
from protocols.errors import MALFORMED
from protocols.stored_names import EVENT_CONTENT_TYPE, EVENT_PREFIX, NO_DATA

REQUIRED: Final = ("specversion", "id", "source", "type")
ATTRIBUTE: Final = re.compile(r"[a-z0-9]{1,64}")  # CloudEvents 1.0.2, 3.1
STRUCTURED: Final = "application/cloudevents+json"
CONTENT_TYPE: Final = "TG_CONTENT_TYPE"

ATTRIBUTES_MAX: Final = 200


def as_binary_event(pairs: Properties) -> Properties:
    """Stored properties of a PUBLISH; of one that is an event with its attributes as such."""
    found = dict(pairs)
    if found.get("specversion") != "1.0" or not all(found.get(name) for name in REQUIRED):
        return pairs
    content_type = found.get(CONTENT_TYPE) or found.get("datacontenttype", "")
    kept: list[tuple[str, str]] = []
    for name, value in pairs:
        if name == "datacontenttype":
            continue  # repeats the content type
        is_attribute = ATTRIBUTE.fullmatch(name) is not None
        kept.append((EVENT_PREFIX + name if is_attribute else name, value))
    if content_type:
        kept.append((EVENT_CONTENT_TYPE, content_type))
        if CONTENT_TYPE not in found:
            kept.append((CONTENT_TYPE, content_type))
    return tuple(kept)


def from_structured(messages: Sequence[Message], *, is_implied: bool) -> list[Message]:
    """
    *messages*, those that are structured events taken apart.

    Args:
        is_implied: JSON of the right form is an event without saying so (3.x); else the content
            type has to.
    """
    return [_taken_apart(message, is_implied=is_implied) for message in messages]


def _taken_apart(message: Message, *, is_implied: bool) -> Message:
    content_type = next((value for name, value in message.properties if name == CONTENT_TYPE), "")
    if not is_implied and content_type.partition(";")[0].strip().lower() != STRUCTURED:
        return message
    try:
        event = msgspec.json.decode(message.body)
        attributes, data, kind = _parts(event)
    except (*MALFORMED, ValueError):
        return message  # plain devices send JSON too
    kept = [pair for pair in message.properties if pair[0] != CONTENT_TYPE]
    kept += [(EVENT_PREFIX + name, value) for name, value in attributes.items()]
    if kind:
        kept += [(EVENT_CONTENT_TYPE, kind), (CONTENT_TYPE, kind)]
    return message._replace(body=data, properties=tuple(kept))


def _parts(event: Any) -> tuple[dict[str, str], bytes, str]:
    """Attributes, data, media type. Raises ValueError if it is no event."""
    if not isinstance(event, dict) or len(event) > ATTRIBUTES_MAX:
        raise ValueError("no event")
    if event.get("specversion") != "1.0" or not all(
        isinstance(event.get(name), str) and event[name] for name in REQUIRED
    ):
        raise ValueError("no event")
    kind = event.pop("datacontenttype", "")
    has_data, data = "data" in event, event.pop("data", None)
    encoded = event.pop("data_base64", None)
    attributes = {name: _text(name, value) for name, value in event.items() if value is not None}
    if isinstance(encoded, str):
        try:
            return attributes, base64.b64decode(encoded, validate=True), str(kind)
        except binascii.Error as error:
            raise ValueError("data_base64") from error
    if not has_data or data is None:
        return attributes, NO_DATA, str(kind)
    kind = str(kind) or "application/json"
    if isinstance(data, str) and not is_json(kind):
        return attributes, data.encode(), kind
    return attributes, msgspec.json.encode(data), kind


def _text(name: str, value: Any) -> str:
    """The canonical text of an attribute. Raises ValueError."""
    if ATTRIBUTE.fullmatch(name) is None:
        raise ValueError(name)
    if isinstance(value, bool):
        return "true" if value else "false"
    text = value if isinstance(value, str) else str(value) if isinstance(value, int) else ""
    if not text or "\x01" in text or "\x02" in text:
        raise ValueError(name)
    return text


def is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind.endswith(("/json", "+json"))


def to_structured(pairs: Properties, body: bytes) -> bytes:
    """The JSON of a stored event."""
    event: dict[str, Any] = {}
    content_type = ""
    for name, value in pairs:
        if name == EVENT_CONTENT_TYPE:
            content_type = value
        elif name.startswith(EVENT_PREFIX):
            event[name[len(EVENT_PREFIX) :]] = value
    if content_type:
        event["datacontenttype"] = content_type
    if body != NO_DATA:
        name, data = _data(content_type, body)
        event[name] = data
    return msgspec.json.encode(event)


def _data(content_type: str, body: bytes) -> tuple[str, Any]:
    if is_json(content_type) or not content_type:
        try:
            msgspec.json.decode(body)
            return "data", msgspec.Raw(body)
        except MALFORMED:
            pass
    if content_type.startswith("text/"):
        try:
            return "data", body.decode()
        except UnicodeDecodeError:
            pass
    return "data_base64", base64.b64encode(body).decode()
