"""PROXY headers: every kind that is legal, and what is not."""

import struct

import pytest

from protocols.errors import PeerError
from protocols.proxying import SIGNATURE, Proxied, decode, missing

V4 = bytes((203, 0, 113, 9, 10, 0, 0, 1)) + struct.pack(">HH", 50000, 1883)
V6 = bytes(15) + b"\x09" + bytes(15) + b"\x01" + struct.pack(">HH", 50000, 1883)


def v2(rest: bytes, *, command: int = 0x21, family: int = 0x11) -> bytes:
    return SIGNATURE + struct.pack(">BBH", command, family, len(rest)) + rest


def tlv(kind: int, value: bytes) -> bytes:
    return struct.pack(">BH", kind, len(value)) + value


def ssl_tlv(*, client: int = 0x07, verify: int = 0, name: bytes = b"dev-7") -> bytes:
    return tlv(0x20, struct.pack(">BI", client, verify) + tlv(0x21, b"TLSv1.3") + tlv(0x22, name))


def read(wire: bytes) -> tuple[Proxied, bytes]:
    """As a listener reads it: never a byte that may not be the header's."""
    header, rest = b"", wire
    while count := missing(header):
        assert rest, "wants more than there is"
        header, rest = header + rest[:count], rest[count:]
    return decode(header), rest


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (b"PROXY TCP4 203.0.113.9 10.0.0.1 50000 1883\r\n", Proxied("203.0.113.9:50000")),
        (b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\r\n", Proxied("1.1.1.1:1")),
        (b"PROXY TCP6 2001:db8::9 2001:db8::1 50000 1883\r\n", Proxied("[2001:db8::9]:50000")),
        (b"PROXY UNKNOWN\r\n", Proxied()),
        (b"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n", Proxied()),
        (v2(V4), Proxied("203.0.113.9:50000")),
        (v2(V6, family=0x21), Proxied("[::9]:50000")),
        (v2(V4 + tlv(0xEE, b"unknown")), Proxied("203.0.113.9:50000")),
        (v2(V4 + ssl_tlv()), Proxied("203.0.113.9:50000", "dev-7", True, True)),
        (v2(V4 + ssl_tlv(verify=1)), Proxied("203.0.113.9:50000", is_tls=True)),
        (v2(V4 + ssl_tlv(client=0x01)), Proxied("203.0.113.9:50000", is_tls=True)),
        (v2(V4 + ssl_tlv(client=0x06)), Proxied("203.0.113.9:50000")),
        (v2(b"", command=0x20, family=0x00), Proxied()),
        (v2(bytes(216), family=0x31), Proxied()),
        (v2(b"", family=0x00), Proxied()),
    ],
)
def test_legal_headers(header: bytes, expected: Proxied) -> None:
    """The address, and not one byte of what follows."""
    assert read(header + b"\x10rest") == (expected, b"\x10rest")


@pytest.mark.parametrize(
    "header",
    [
        b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00",
        b"PROXX TCP4 1.1.1.1 2.2.2.2 1 2\r\n",
        b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\n" + b"x" * 80,
        b"PROXY TCP4 1.1.1.1 2.2.2.2 1 70000\r\n",
        b"PROXY TCP4 1.1.1.1 2.2.2.2 1 -2\r\n",
        b"PROXY TCP4 ::1 ::2 1 2               \r\n",
        b"PROXY TCP5 1.1.1.1 2.2.2.2 1 2\r\n",
        b"PROXY TCP4 1.1.1.256 2.2.2.2 1 2\r\n",
        b"PROXY UNKNOWN" + b" " * 100,
        b"PROXY TCP4 \r\n",
        v2(V4, command=0x31),
        v2(V4, command=0x22),
        v2(V4[:8]),
        v2(V4, family=0x12),
        v2(V4 + b"\xee\x00\x09x"),
        v2(V4 + b"\xee"),
        v2(V4 + b"\x20\x00\x01\x21"),
        SIGNATURE + struct.pack(">BBH", 0x21, 0x11, 5000),
    ],
)
def test_bad_headers(header: bytes) -> None:
    """Each is a fault of the peer."""
    with pytest.raises(PeerError):
        read(header)
