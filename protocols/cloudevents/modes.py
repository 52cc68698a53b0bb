"""
CloudEvents 1.0 on HTTP, both ways: binary, structured and batched content mode.

Strict and byte-exact where the SDK is lenient: the mode is decided by Content-Type alone, data
is never parsed and written again, a missing required attribute is an error. Pure functions.

Sources: CloudEvents core, HTTP protocol binding and JSON event format, 1.0.2.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import unquote_to_bytes

import msgspec

from protocols.errors import MALFORMED, GatewayError

STRUCTURED: Final = "application/cloudevents+json"
BATCH: Final = "application/cloudevents-batch+json"
JSON: Final = "application/json"
REQUIRED: Final = ("specversion", "id", "source", "type")
PREFIX: Final = "ce-"

"""What the JSON decoder raises: the last for documents nested deeper than it goes."""

_NAME: Final = re.compile(r"[a-z0-9]+")
_RFC3339: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
_UNSAFE: Final = re.compile(r'[^\x21-\x7e]|["%]')
_ESCAPE: Final = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event. Attribute values are canonical strings, whatever carried them."""

    attributes: Mapping[str, str]
    """Every attribute except ``datacontenttype``, in order."""

    content_type: str = ""
    """``datacontenttype``; empty: not given."""

    data: bytes | None = None
    """The data's own bytes; None: the event has none."""


class BadEvent(GatewayError):
    """What came is no event that we take; answered with *status* and a problem document."""

    def __init__(self, attribute: str, hint: str, *, status: int = 400) -> None:
        super().__init__(f"{attribute}: {hint}")
        self.attribute = attribute
        self.hint = hint
        self.status = status


# ── in ──────────────────────────────────────────────────────────────────────────────────


def decode_request(
    content_type: str, headers: Iterable[tuple[str, str]], body: bytes, *, batch_max: int
) -> list[Event]:
    """
    The events of one request, in order; an empty batch is an empty list.

    Args:
        headers: all header fields, decoded as Latin-1 or UTF-8 with surrogate escapes.
        batch_max: most events in a batch.

    Raises:
        BadEvent: 400 for a malformed event, 413 for a batch too long, 415 for another format.
    """
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type.startswith("application/cloudevents-batch"):
        return _decode_batch(media_type, body, batch_max)
    if media_type.startswith("application/cloudevents"):
        if media_type != STRUCTURED:
            raise BadEvent("Content-Type", f"'{media_type}': only {STRUCTURED}", status=415)
        return [decode_structured(body)]
    return [_decode_binary(content_type, headers, body)]


def _decode_binary(content_type: str, headers: Iterable[tuple[str, str]], body: bytes) -> Event:
    attributes: dict[str, str] = {}
    for field, value in headers:
        name = field.lower()
        if not name.startswith(PREFIX):
            continue
        attribute = name.removeprefix(PREFIX)
        if attribute == "datacontenttype":
            raise BadEvent(name, "in binary mode Content-Type is this attribute")
        if attribute in attributes:
            raise BadEvent(name, "given more than once")
        attributes[attribute] = _decode_header(name, value)
    if not attributes:
        raise BadEvent(
            "Content-Type",
            f"no CloudEvent: send ce- headers, or the body as {STRUCTURED}",
            status=415,
        )
    check_attributes(attributes)
    return Event(attributes=attributes, content_type=content_type, data=body or None)


def _decode_header(name: str, value: str) -> str:
    """Undo quotes, then exactly one round of percent-encoding (HTTP binding 3.1.3.2)."""
    if len(value) >= 2 and value[0] == value[-1] == '"':
        value = _ESCAPE.sub(r"\1", value[1:-1])
    try:
        raw = value.encode("utf-8", "surrogateescape")
        return unquote_to_bytes(raw).decode("utf-8")
    except UnicodeError:
        raise BadEvent(name, "is not valid UTF-8 after percent-decoding") from None


def decode_structured(body: bytes | msgspec.Raw) -> Event:
    """One event of the JSON format. Raises BadEvent."""
    try:
        members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except MALFORMED as error:
        raise BadEvent("body", f"is no JSON object: {error}") from None
    attributes: dict[str, str] = {}
    for name, raw in members.items():
        if name not in ("data", "data_base64"):
            value = _attribute_text(name, raw)
            if value is not None:  # a null attribute is an absent one
                attributes[name] = value
    content_type = attributes.pop("datacontenttype", "")
    if not content_type.isprintable():
        raise BadEvent("datacontenttype", "has control characters")
    check_attributes(attributes)
    data = _decode_data(members, content_type)
    if "data" in members and not content_type:
        content_type = JSON
    return Event(attributes=attributes, content_type=content_type, data=data)


def _attribute_text(name: str, raw: msgspec.Raw) -> str | None:
    """A JSON value as canonical string; None for null."""
    try:
        value = msgspec.json.decode(raw)
    except MALFORMED as error:  # what is kept as it is, is not looked into before
        raise BadEvent(name, f"is no JSON: {error}") from None
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and -(1 << 31) <= value < 1 << 31:
        return str(value)
    raise BadEvent(name, "must be a string, a boolean or a 32-bit integer")


def _decode_data(members: Mapping[str, msgspec.Raw], content_type: str) -> bytes | None:
    if "data" in members and "data_base64" in members:
        raise BadEvent("data_base64", "excludes 'data': send one of them")
    if "data_base64" in members:
        try:
            text = msgspec.json.decode(members["data_base64"], type=str)
            return base64.b64decode(text, validate=True)
        except (*MALFORMED, binascii.Error, ValueError):
            raise BadEvent("data_base64", "is no base64 text") from None
    raw = members.get("data")
    if raw is None:
        return None
    if not content_type or is_json(content_type):
        data = bytes(raw)
        try:
            data.decode()  # the rest of what JSON must be was looked at
        except UnicodeDecodeError as error:
            raise BadEvent("data", f"is no JSON: {error}") from None
        return data
    try:
        return msgspec.json.decode(raw, type=str).encode()
    except MALFORMED:
        raise BadEvent("data", f"must be a string: '{content_type}' is not JSON") from None


def _decode_batch(media_type: str, body: bytes, batch_max: int) -> list[Event]:
    if media_type != BATCH:
        raise BadEvent("Content-Type", f"'{media_type}': only {BATCH}", status=415)
    try:
        items = msgspec.json.decode(body, type=list[msgspec.Raw])
    except MALFORMED as error:
        raise BadEvent("body", f"is no JSON array: {error}") from None
    if len(items) > batch_max:
        raise BadEvent("body", f"{len(items)} events, at most {batch_max}", status=413)
    events: list[Event] = []
    for index, item in enumerate(items):
        try:
            events.append(decode_structured(item))
        except BadEvent as error:
            raise BadEvent(
                f"[{index}].{error.attribute}", error.hint, status=error.status
            ) from None
    return events


def check_attributes(attributes: Mapping[str, str]) -> None:
    """Required ones present, names and values as the core specification has them."""
    for name in REQUIRED:
        if not attributes.get(name):
            raise BadEvent(name, "is required and must not be empty")
    if attributes["specversion"] != "1.0":
        raise BadEvent("specversion", f"'{attributes['specversion']}': only 1.0")
    for name, value in attributes.items():
        if not _NAME.fullmatch(name):
            raise BadEvent(name, "attribute names have only a-z and 0-9")
        if "\x01" in value or "\x02" in value:
            raise BadEvent(name, "control characters 1 and 2 cannot be stored")
    if attributes.get("subject") == "":
        raise BadEvent("subject", "must not be empty")
    for name in ("time", "expirytime"):
        if name in attributes and parse_time_ms(attributes[name]) is None:
            raise BadEvent(name, f"'{attributes[name]}' is no RFC 3339 timestamp")


def parse_time_ms(text: str) -> int | None:
    """An RFC 3339 timestamp as milliseconds since 1970; None if it is none."""
    if not _RFC3339.fullmatch(text):
        return None
    try:
        return round(datetime.fromisoformat(text.upper()).timestamp() * 1000)
    except ValueError:
        return None


# ── out ─────────────────────────────────────────────────────────────────────────────────


def encode_binary(event: Event) -> tuple[dict[str, str], bytes]:
    """(headers, body) of binary mode."""
    headers = {PREFIX + name: _encode_header(value) for name, value in event.attributes.items()}
    if event.content_type:
        headers["Content-Type"] = event.content_type
    elif event.data is not None:
        headers["Content-Type"] = "application/octet-stream"
    return headers, event.data or b""


def _encode_header(value: str) -> str:
    """Percent-encode all that is not visible ASCII, and ``"`` and ``%``."""
    return _UNSAFE.sub(lambda found: "".join(f"%{b:02X}" for b in found[0].encode()), value)


def encode_structured(event: Event) -> bytes:
    """The event in the JSON format; JSON data goes in as it is."""
    members: dict[str, str | msgspec.Raw] = dict(event.attributes)
    if event.content_type:
        members["datacontenttype"] = event.content_type
    if event.data is not None:
        name, value = _encode_data(event.content_type, event.data)
        members[name] = value
    return msgspec.json.encode(members)


def encode_batch(events: Iterable[Event]) -> bytes:
    return b"[" + b",".join([encode_structured(event) for event in events]) + b"]"


def _encode_data(content_type: str, data: bytes) -> tuple[str, str | msgspec.Raw]:
    """
    The member that carries *data*.

    Without a content type ``data`` means JSON, so only objects and arrays go that way.
    """
    if is_json(content_type) or (not content_type and data[:1] in (b"{", b"[")):
        if _is_json_text(data):
            return "data", msgspec.Raw(data)
    elif content_type.lower().startswith("text/"):
        try:
            return "data", data.decode()
        except UnicodeDecodeError:
            pass  # not what it says: base64 keeps the bytes
    return "data_base64", base64.b64encode(data).decode()


def is_json(content_type: str) -> bool:
    """Subtype ``json`` or a ``+json`` suffix."""
    subtype = content_type.partition(";")[0].strip().lower().rpartition("/")[2]
    return subtype == "json" or subtype.endswith("+json")


def _is_json_text(data: bytes) -> bool:
    try:
        msgspec.json.decode(data)
    except MALFORMED:
        return False
    return True
