"""Bodies that are nearly JSON: what fastjson writes and reads beside it."""

import json
import re
from typing import Any, Final

import msgspec

from protocols.errors import MALFORMED, PeerError

BODY_DEPTH_MAX: Final = 64
"""Nesting of a body that is no plain JSON; deeper is refused."""


def parse(data: bytes | memoryview) -> Any:
    """
    The value of a JSON body, or of fastjson's relatives of JSON.

    Numeric keys become text, object keys tuples of (name, value) sorted by name. Raises
    PeerError.
    """
    try:
        return msgspec.json.decode(data)
    except RecursionError as error:
        raise PeerError("body: nested too deep") from error
    except MALFORMED:
        pass
    try:
        text = str(data, "utf-8")
        value, end = _parse_value(text, _skip(text, 0), 0)
    except (ValueError, IndexError, RecursionError) as error:
        raise PeerError(f"body is no JSON: {error}") from error
    if _skip(text, end) != len(text):
        raise PeerError(f"body is no JSON: something follows at {end}")
    return value


_BLANK: Final = re.compile(r"[ \t\r\n]*")
_scalars: Final = json.JSONDecoder(strict=False)


def _skip(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    return match.end() if match else at


def _parse_value(text: str, at: int, depth: int) -> tuple[Any, int]:
    if depth > BODY_DEPTH_MAX:
        raise ValueError(f"nested deeper than {BODY_DEPTH_MAX}")
    if text[at] == "{":
        return _parse_object(text, at + 1, depth + 1)
    if text[at] == "[":
        return _parse_list(text, at + 1, depth + 1)
    return _scalars.raw_decode(text, at)


def _parse_object(text: str, at: int, depth: int) -> tuple[dict[Any, Any], int]:
    found: dict[Any, Any] = {}
    at = _skip(text, at)
    if text[at] == "}":
        return found, at + 1
    while True:
        key, at = _parse_value(text, at, depth)
        at = _skip(text, at)
        if text[at] != ":":
            raise ValueError(f"':' expected at {at}")
        found[_key(key)], at = _parse_value(text, _skip(text, at + 1), depth)
        at = _skip(text, at)
        if text[at] == "}":
            return found, at + 1
        if text[at] != ",":
            raise ValueError(f"',' expected at {at}")
        at = _skip(text, at + 1)


def _parse_list(text: str, at: int, depth: int) -> tuple[list[Any], int]:
    found: list[Any] = []
    at = _skip(text, at)
    if text[at] == "]":
        return found, at + 1
    while True:
        item, at = _parse_value(text, at, depth)
        found.append(item)
        at = _skip(text, at)
        if text[at] == "]":
            return found, at + 1
        if text[at] != ",":
            raise ValueError(f"',' expected at {at}")
        at = _skip(text, at + 1)


def _key(key: Any) -> Any:
    if isinstance(key, dict):
        return tuple(sorted((name, str(value)) for name, value in key.items()))
    if isinstance(key, list):
        raise ValueError("a list is no key")
    return key if isinstance(key, str) else str(key)
