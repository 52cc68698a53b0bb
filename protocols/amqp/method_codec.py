"""Methods to and from the payload of a method frame, driven by the table in ``methods``."""

import struct
from typing import Final

from protocols.amqp.fields import decode_table, encode_table
from protocols.amqp.methods import IDS, METHODS, Method, name_of
from protocols.errors import PeerError

RESERVED: Final = {"H": b"\0\0", "Z": b"\0"}
_WIDTHS: Final = {
    "o": struct.Struct(">B"),
    "h": struct.Struct(">H"),
    "i": struct.Struct(">I"),
    "q": struct.Struct(">Q"),
    "H": struct.Struct(">H"),
}


def decode_method(payload: bytes) -> tuple[int, Method | None]:
    """
    A method frame's payload as (id, method); the method is None if the id is unknown.

    Raises:
        PeerError: cut short; bytes behind the last argument are ignored, as RabbitMQ does.
    """
    if len(payload) < 4:
        raise PeerError("a method frame without a method id")
    number = int.from_bytes(payload[:4], "big")
    known = METHODS.get(number)
    if known is None:
        return number, None
    kind, form = known
    try:
        return number, kind(*_arguments(payload, form))
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise PeerError(f"cannot decode {name_of(number)}") from error


def _arguments(payload: bytes, form: str) -> list[object]:
    values: list[object] = []
    position, bit = 4, 8
    for letter in form:
        if letter == "b":
            if bit == 8:
                bit, position = 0, position + 1
            values.append(bool(payload[position - 1] >> bit & 1))
            bit += 1
            continue
        bit = 8  # the next bit begins an octet
        value, position = _argument(payload, position, letter)
        if letter not in "HZ":
            values.append(value)
    return values


def _argument(payload: bytes, position: int, letter: str) -> tuple[object, int]:
    if (width := _WIDTHS.get(letter)) is not None:
        return width.unpack_from(payload, position)[0], position + width.size
    if letter == "F":
        return decode_table(payload, position)
    if letter == "S":
        start = position + 4
        end = start + int.from_bytes(payload[position:start], "big")
    else:
        start = position + 1
        end = start + payload[position]
    if end > len(payload) or start > len(payload):
        raise IndexError(end)
    data = payload[start:end]
    return (data if letter == "S" else data.decode()), end


def encode_method(method: Method) -> bytes:
    """Payload of a method frame."""
    number = IDS[type(method)]
    form = METHODS[number][1]
    parts: list[bytes] = [number.to_bytes(4, "big")]
    values = iter(method)
    bits, bit = 0, 0
    for letter in form:
        if letter == "b":
            bits |= bool(next(values)) << bit
            bit += 1
            continue
        if bit:
            parts.append(bytes((bits,)))
            bits, bit = 0, 0
        parts.append(RESERVED[letter] if letter in RESERVED else _encoded(letter, next(values)))
    if bit:
        parts.append(bytes((bits,)))
    return b"".join(parts)


def _encoded(letter: str, value: object) -> bytes:
    if isinstance(value, dict):
        return encode_table(value)
    if isinstance(value, bytes):
        return len(value).to_bytes(4, "big") + value
    if isinstance(value, str):
        return short_string(value)
    return _WIDTHS[letter].pack(value)


def short_string(text: str) -> bytes:
    """Length octet and bytes; a longer text is cut (only texts of ours can be)."""
    data = text.encode()[:255]
    return bytes((len(data),)) + data
