"""Integers, strings and binary data of the MQTT wire, and the error for those that are not."""

from typing import Final

from protocols.errors import PeerError
from protocols.mqtt.packets import Reason

VARINT_MAX: Final = 268_435_455  # [MQTT 5, 1.5.5]


class PacketError(PeerError):
    """A packet that breaks the protocol; *reason* is what a version 5 peer is told."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class SilentError(PacketError):
    """A fault that other servers answer by closing alone, and clients are tested for that."""


class OverrunError(PacketError):
    """More publishes than may be unanswered."""


def malformed(text: str) -> PacketError:
    """The bytes cannot be a packet [MQTT 5, 4.13.1]."""
    return PacketError(Reason.MALFORMED_PACKET, text)


def protocol_error(text: str) -> PacketError:
    """The bytes are a packet that must not come here or so [MQTT 5, 4.13.1]."""
    return PacketError(Reason.PROTOCOL_ERROR, text)


def is_text_clean(text: str) -> bool:
    """
    No control character and no non-character [MQTT-1.5.4-1, -2 and the SHOULD NOTs below them].

    Names of topics and clients and user names are held to it; U+FEFF is legal and kept.
    """
    for character in text:
        code = ord(character)
        if code < 0x20 or 0x7F <= code <= 0x9F:
            return False
        if code >= 0xFDD0 and (code <= 0xFDEF or code & 0xFFFE == 0xFFFE):
            return False
    return True


def encode_varint(value: int) -> bytes:
    """Variable byte integer, 1 to 4 bytes, minimal."""
    if value < 128:
        return bytes((value,))
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_string(text: str) -> bytes:
    data = text.encode("utf-8")
    return len(data).to_bytes(2, "big") + data


def encode_binary(data: bytes) -> bytes:
    return len(data).to_bytes(2, "big") + data


class FieldReader:
    """Reads the fields of one packet body in order; whatever is missing is malformed."""

    def __init__(self, data: bytes, position: int, end: int) -> None:
        self.data = data
        self.position = position
        self.end = end

    @property
    def remaining(self) -> int:
        return self.end - self.position

    def byte(self) -> int:
        if self.position >= self.end:
            raise malformed("the packet ends inside a field")
        value = self.data[self.position]
        self.position += 1
        return value

    def u16(self) -> int:
        return int.from_bytes(self.take(2), "big")

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def take(self, count: int) -> bytes:
        stop = self.position + count
        if stop > self.end:
            raise malformed("the packet ends inside a field")
        value = self.data[self.position : stop]
        self.position = stop
        return value

    def varint(self) -> int:
        """At most 4 bytes and minimal [MQTT-1.5.5-1]."""
        value = 0
        for index in range(4):
            byte = self.byte()
            value |= (byte & 127) << 7 * index
            if byte < 128:
                if byte == 0 and index:
                    raise malformed("a variable byte integer is longer than it need be")
                return value
        raise malformed("a variable byte integer has more than four bytes")

    def binary(self) -> bytes:
        return self.take(self.u16())

    def string(self) -> str:
        """Well-formed UTF-8 without U+0000 [MQTT-1.5.4-1, MQTT-1.5.4-2]."""
        data = self.take(self.u16())
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            raise malformed("a string is not UTF-8") from None
        if "\x00" in text:
            raise malformed("a string contains U+0000")
        return text

    def expect_end(self) -> None:
        if self.position != self.end:
            raise malformed(f"{self.remaining} bytes too many")
