"""
WebSocket, server side, as far as MQTT needs it (RFC 6455; MQTT 5, section 6): the handshake, binary
frames both ways, ping, close. No extensions. Bytes in, MQTT bytes and answers out.
"""

import base64
import struct
from collections.abc import Sequence
from hashlib import sha1
from typing import Final

from protocols.errors import PeerError
from protocols.mqtt.codec import find_body
from protocols.mqtt.connection import MqttConnection
from protocols.mqtt.events import Event
from protocols.mqtt.packets import Reason

GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 1.3
HEAD_BYTES_MAX: Final = 8192
"""Longest handshake request."""

SUBPROTOCOLS: Final = ("mqtt", "mqttv3.1")

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10

NORMAL, PROTOCOL_FAULT, UNSUPPORTED_DATA = 1000, 1002, 1003  # RFC 6455, 7.4.1

CONTROL_BYTES_MAX: Final = 125  # RFC 6455, 5.5
LENGTH_MAX: Final = (1 << 63) - 1  # RFC 6455, 5.2

RESERVED_CODES: Final = frozenset((1004, 1005, 1006, 1015))
"""Never in a close frame (RFC 6455, 7.4.1)."""


class WebSocketError(PeerError):
    """The peer broke RFC 6455; *code* goes into the close frame."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Handshake:
    """Collects the request; ``answer`` says what to send."""

    def __init__(self, path: str, origins: tuple[str, ...] = ()) -> None:
        self._path = path
        self._origins = origins
        self._head = bytearray()
        self.is_done = False
        self.is_refused = False
        self.rest = b""
        """What came behind the request: the first frames."""

    def receive(self, data: bytes) -> bytes:
        """The response, once the request is whole; empty before."""
        self._head += data
        end = self._head.find(b"\r\n\r\n")
        if end > HEAD_BYTES_MAX or (end < 0 and len(self._head) > HEAD_BYTES_MAX):
            return self._refuse("431 Request Header Fields Too Large")
        if end < 0:
            return b""
        self.rest = bytes(self._head[end + 4 :])
        lines = bytes(self._head[:end]).decode("latin-1").split("\r\n")
        return self._answer(lines[0], _fields(lines[1:]))

    def _answer(self, request: str, fields: dict[str, str]) -> bytes:
        method, _, rest = request.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if method != "GET":
            return self._refuse("405 Method Not Allowed")
        if path != self._path:
            return self._refuse("404 Not Found")
        if self._origins and fields.get("origin", "") not in self._origins:
            return self._refuse("403 Forbidden")
        if not _is_upgrade(fields):
            return self._refuse("426 Upgrade Required", "Upgrade: websocket\r\n")
        if fields.get("sec-websocket-version") != "13":
            return self._refuse("426 Upgrade Required", "Sec-WebSocket-Version: 13\r\n")
        offered = [name.strip() for name in fields.get("sec-websocket-protocol", "").split(",")]
        chosen = next((name for name in SUBPROTOCOLS if name in offered), "")
        if not chosen:
            return self._refuse("400 Bad Request")  # [MQTT-6.0.0-3]: the client must offer it
        self.is_done = True
        accept = accept_key(fields["sec-websocket-key"])
        return (
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: {chosen}\r\n\r\n"
        ).encode("latin-1")

    def _refuse(self, status: str, extra: str = "") -> bytes:
        self.is_refused = True
        return (
            f"HTTP/1.1 {status}\r\n{extra}Content-Length: 0\r\nConnection: close\r\n\r\n".encode()
        )


def _fields(lines: list[str]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        key = name.strip().lower()
        fields[key] = f"{fields[key]}, {value.strip()}" if key in fields else value.strip()
    return fields


def _is_upgrade(fields: dict[str, str]) -> bool:
    connection = [part.strip().lower() for part in fields.get("connection", "").split(",")]
    return (
        fields.get("upgrade", "").lower() == "websocket"
        and "upgrade" in connection
        and bool(fields.get("sec-websocket-key"))
    )


def accept_key(key: str) -> str:
    """RFC 6455, 4.2.2 (5.4)."""
    return base64.b64encode(sha1(key.strip().encode("latin-1") + GUID).digest()).decode()


class Frames:
    """
    Frames of a client: cut, unmasked, joined; control frames answered.

    What a data frame brings goes on as it comes: frames and packets have nothing to do with each
    other [MQTT-6.0.0-2], and how long a packet may be is judged by its own length.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._left = 0
        """Of the data frame under way: payload that is not here yet."""

        self._mask = b""
        """Of its next four bytes."""

        self._is_fragmented = False
        self.answers: list[bytes] = []
        """Pongs and the close, for the peer."""

        self.is_closed = False
        self.fault: WebSocketError | None = None
        """What is wrong behind the bytes that ``receive`` returned last."""

    def receive(self, data: bytes) -> bytes:
        """The MQTT bytes in *data*, up to a ``fault``."""
        self._buffer += data
        payloads: list[bytes] = []
        try:
            while not self.is_closed and self._buffer:
                if self._left:
                    payloads.append(self._piece())
                elif not self._take():
                    break
        except WebSocketError as error:
            self.fault = error
        return payloads[0] if len(payloads) == 1 else b"".join(payloads)

    def _piece(self) -> bytes:
        """What is here of the data frame under way."""
        size = min(self._left, len(self._buffer))
        piece = unmask(bytes(self._buffer[:size]), self._mask)
        del self._buffer[:size]
        self._left -= size
        turn = size & 3
        self._mask = self._mask[turn:] + self._mask[:turn]
        return piece

    def _take(self) -> bool:
        """Begin a data frame, or eat a control frame; False: not enough is here."""
        buffer = self._buffer
        if len(buffer) < 2:
            return False
        first, second = buffer[0], buffer[1]
        opcode, is_last = first & 15, bool(first & 0x80)
        if first & 0x70:
            raise WebSocketError(PROTOCOL_FAULT, "reserved bits are set")
        if not second & 0x80:
            raise WebSocketError(PROTOCOL_FAULT, "a client's frame is not masked")
        length, start = second & 127, 2
        if opcode >= CLOSE and (not is_last or length > CONTROL_BYTES_MAX):
            raise WebSocketError(PROTOCOL_FAULT, "a control frame in pieces")
        if length == 126:
            start = 4
        elif length == 127:
            start = 10
        if len(buffer) < start + 4:
            return False
        if start > 2:
            length = int.from_bytes(buffer[2:start], "big")
        if length > LENGTH_MAX:
            raise WebSocketError(PROTOCOL_FAULT, "a length with its first bit set")
        mask = bytes(buffer[start : start + 4])
        if opcode < CLOSE:
            self._begin(opcode, is_last)
            del buffer[: start + 4]
            self._left, self._mask = length, mask
            return True
        end = start + 4 + length
        if len(buffer) < end:
            return False
        payload = unmask(bytes(buffer[start + 4 : end]), mask)
        del buffer[:end]
        self._control(opcode, payload)
        return True

    def _begin(self, opcode: int, is_last: bool) -> None:
        if opcode == TEXT:
            raise WebSocketError(UNSUPPORTED_DATA, "a text frame")  # [MQTT-6.0.0-1]
        if (opcode == CONTINUATION) is not self._is_fragmented or opcode > BINARY:
            raise WebSocketError(PROTOCOL_FAULT, f"opcode {opcode} out of place")
        self._is_fragmented = not is_last

    def _control(self, opcode: int, payload: bytes) -> None:
        if opcode == PING:
            self.answers.append(encode_frame(payload, PONG))
        elif opcode == CLOSE:
            if payload and not is_close_code(payload):
                raise WebSocketError(PROTOCOL_FAULT, "a close code that none may send")
            self.is_closed = True
            self.answers.append(encode_frame(payload[:2], CLOSE))
        elif opcode != PONG:
            raise WebSocketError(PROTOCOL_FAULT, f"opcode {opcode}")


def is_close_code(payload: bytes) -> bool:
    """A close frame begins with a code that a peer may send (RFC 6455, 5.5.1, 7.4)."""
    code = int.from_bytes(payload[:2], "big") if len(payload) > 1 else 0
    return 1000 <= code < 5000 and code not in RESERVED_CODES


def unmask(payload: bytes, mask: bytes) -> bytes:
    """RFC 6455, 5.3; the whole payload in one integer operation."""
    length = len(payload)
    if not length or mask == b"\0\0\0\0":
        return payload
    key = (mask * (length // 4 + 1))[:length]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(key, "big")).to_bytes(length, "big")


def encode_frame(payload: bytes, opcode: int = BINARY) -> bytes:
    """One unmasked, final frame."""
    length, first = len(payload), bytes((0x80 | opcode,))
    if length < 126:
        return first + bytes((length,)) + payload
    if length < 65536:
        return first + b"\x7e" + struct.pack(">H", length) + payload
    return first + b"\x7f" + struct.pack(">Q", length) + payload


def packet_frames(data: bytes) -> list[bytes]:
    """
    A frame for each of the packets in *data*, as other brokers send them: a client is to take them
    as they come [MQTT-6.0.0-2], but Paho C leaves a frame's second packet until more arrives.
    """
    frames: list[bytes] = []
    position = 0
    while position < len(data):
        _, end = find_body(data, position)
        frames.append(encode_frame(data[position:end]))
        position = end
    return frames


def encode_close(code: int) -> bytes:
    return encode_frame(struct.pack(">H", code), CLOSE)


class WebSocketConnection:
    """An MQTT connection inside a WebSocket; the driver sees one sans-I/O connection."""

    def __init__(self, inner: MqttConnection, *, path: str, origins: tuple[str, ...]) -> None:
        self.inner = inner
        self._handshake = Handshake(path, origins)
        self._frames = Frames()
        self._out: list[bytes] = []
        self._is_over = False

    @property
    def deadline(self) -> float | None:
        return self.inner.deadline

    @deadline.setter
    def deadline(self, value: float | None) -> None:
        self.inner.deadline = value

    @property
    def is_closing(self) -> bool:
        return self._is_over or self.inner.is_closing

    def data_to_send(self) -> bytes:
        data = self.inner.data_to_send()
        if data and self._handshake.is_done:
            self._out += packet_frames(data)
        if self.inner.is_closing and not self._is_over and self._handshake.is_done:
            self._is_over = True
            self._out.append(encode_close(NORMAL))
        out, self._out = self._out, []
        return b"".join(out)

    def receive_data(self, data: bytes, *, now: float) -> Sequence[Event]:
        if self.is_closing:
            return []
        if not self._handshake.is_done:
            self._out.append(self._handshake.receive(data))
            if self._handshake.is_refused:
                self._is_over = True
                return [self.inner.fail(Reason.PROTOCOL_ERROR, "no WebSocket handshake")]
            data = self._handshake.rest
        data = self._frames.receive(data)
        self._out += self._frames.answers
        self._frames.answers.clear()
        events: list[Event] = list(self.inner.receive_data(data, now=now)) if data else []
        while self._frames.is_closed and self.inner.is_behind:  # what it said before it closed
            events += self.inner.next_turn(now=now)
        if (fault := self._frames.fault) is not None and not self.inner.is_closing:
            events.append(self._end(fault.code, str(fault)))
        if self._frames.is_closed and not self.inner.is_closing:
            self._is_over = True
            events.append(self.inner.fail(Reason.UNSPECIFIED_ERROR, "the WebSocket was closed"))
        return events

    def handle_deadline(self, *, now: float) -> Sequence[Event]:
        return self.inner.handle_deadline(now=now)

    def _end(self, code: int, text: str) -> Event:
        lost = self.inner.fail(Reason.MALFORMED_PACKET, text)
        if data := self.inner.data_to_send():
            self._out += packet_frames(data)
        self._out.append(encode_close(code))
        self._is_over = True
        return lost
