"""Section 6: MQTT over WebSocket, by hand."""

import os
import socket

import pytest

from protocols.mqtt.encoder import encode_packet
from protocols.mqtt.packets import Connect
from tests.conformance.clauses import clauses
from tests.conformance.peer import WAIT_S, Address

pytestmark = pytest.mark.client

Addresses = dict[str, Address]

BINARY, TEXT, CONTINUED, CLOSE = 2, 1, 0, 8


def frame(kind: int, payload: bytes, *, is_last: bool = True) -> bytes:
    """A client's frame of less than 126 bytes, masked."""
    mask = os.urandom(4)
    masked = bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))
    return bytes((kind | (0x80 if is_last else 0), 0x80 | len(payload))) + mask + masked


class WebSocket:
    """One connection after its handshake."""

    def __init__(self, address: Address, *, offers: str = "mqtt") -> None:
        self.socket = socket.create_connection(address, WAIT_S)
        self.socket.sendall(
            b"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            b"Sec-WebSocket-Protocol: " + offers.encode() + b"\r\n\r\n"
        )
        self.buffer = b""
        head = self.read_until(b"\r\n\r\n")
        self.status, *lines = head.decode().split("\r\n")
        self.headers = dict(line.lower().split(": ", 1) for line in lines if line)

    def read_until(self, mark: bytes) -> bytes:
        while mark not in self.buffer:
            data = self.socket.recv(65536)
            assert data, self.buffer
            self.buffer += data
        head, _, self.buffer = self.buffer.partition(mark)
        return head

    def read(self, count: int) -> bytes:
        while len(self.buffer) < count:
            data = self.socket.recv(65536)
            assert data, self.buffer
            self.buffer += data
        found, self.buffer = self.buffer[:count], self.buffer[count:]
        return found

    def frame(self) -> tuple[int, bytes]:
        first, size = self.read(2)
        return first & 15, self.read(size)


@clauses(v5="6.0.0-4", v311="6.0.0-4")
def test_mqtt_6_0_0_4_the_server_chooses_mqtt(addresses: Addresses, version: int) -> None:
    found = WebSocket(addresses["mqtt-ws"], offers="chat, mqtt")
    assert found.status.startswith("HTTP/1.1 101")
    assert found.headers["sec-websocket-protocol"] == "mqtt"
    found.socket.close()


@clauses(v5="6.0.0-1", v311="6.0.0-1")
def test_mqtt_6_0_0_1_binary_frames_only(addresses: Addresses, word: str, version: int) -> None:
    """A text frame closes."""
    peer = WebSocket(addresses["mqtt-ws"])
    peer.socket.sendall(frame(TEXT, encode_packet(Connect(version, word), version)))
    kind, payload = peer.frame()
    assert (kind, payload[:2]) == (CLOSE, b"\x03\xeb")  # 1003, unsupported data
    assert peer.socket.recv(1) == b""
    peer.socket.close()


@clauses(v5="6.0.0-2", v311="6.0.0-2")
def test_mqtt_6_0_0_2_packets_need_not_fit_frames(
    addresses: Addresses, word: str, version: int
) -> None:
    """A packet over several frames and fragments, several packets in one frame."""
    connect = encode_packet(Connect(version, word), version)
    peer = WebSocket(addresses["mqtt-ws"])
    peer.socket.sendall(
        frame(BINARY, connect[:3])
        + frame(BINARY, connect[3:5], is_last=False)
        + frame(CONTINUED, connect[5:] + b"\xc0\x00\xc0")
        + frame(BINARY, b"\x00")
    )
    found = b""
    while not found.endswith(b"\xd0\x00\xd0\x00"):
        kind, payload = peer.frame()
        assert kind == BINARY
        found += payload
    assert found[:1] == b"\x20"
    peer.socket.close()
