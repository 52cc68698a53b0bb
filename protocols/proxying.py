"""
The PROXY protocol, versions 1 and 2: who is behind a load balancer (HAProxy's proxy-protocol.txt).

Bytes to facts. A header is read to its last byte and no further, because what follows may be a
TLS handshake that somebody else reads: ``missing`` says how many bytes are certainly still its.
"""

import ipaddress
import struct
from contextvars import ContextVar
from typing import Final, NamedTuple

from protocols.addresses import join_address
from protocols.errors import PeerError

SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"  # 2.2
V1_BYTES_MAX: Final = 107  # 2.1, CRLF included
V1_BYTES_MIN: Final = 15  # "PROXY UNKNOWN\r\n"
V1_TCP_BYTES_MIN: Final = 32  # "PROXY TCP4 0.0.0.0 0.0.0.0 0 0\r\n"
V2_HEAD: Final = struct.Struct(">12sBBH")
V2_UNIX_BYTES: Final = 216  # two paths of 108 bytes
V2_REST_BYTES_MAX: Final = 4096
"""Addresses and TLVs; balancers send some hundred bytes."""

TLV_SSL, SUBTLV_SSL_CN = 0x20, 0x22  # 2.2.6
CLIENT_SSL, CLIENT_CERT_CONN, CLIENT_CERT_SESS = 0x01, 0x02, 0x04


class Proxied(NamedTuple):
    """What a balancer says of a client."""

    peer: str = ""
    """``address:port``; empty: the balancer speaks for itself (health check) or does not know."""

    certificate_name: str = ""
    """Common name of the client certificate that the balancer has verified; version 2 only."""

    is_tls: bool = False
    """The client spoke TLS to the balancer; version 2 only."""

    is_verified: bool = False
    """It showed a certificate that the balancer has verified; version 2 only."""


proxied: ContextVar[Proxied | None] = ContextVar("proxied", default=None)
"""Set while the protocol object of a connection is made whose header was read."""


def missing(header: bytes) -> int:
    """
    How many more bytes certainly belong to the header; 0: it is whole. Raises PeerError.
    """
    size = len(header)
    if size < V1_BYTES_MIN:
        if not (SIGNATURE.startswith(header[:12]) or b"PROXY ".startswith(header[:6])):
            raise PeerError("no PROXY header")
        if b"\n" in header and header.startswith(b"PROXY "):
            raise PeerError("a PROXY line that says nothing known")
        return V1_BYTES_MIN - size
    if header.startswith(SIGNATURE):
        if size < V2_HEAD.size:
            return V2_HEAD.size - size
        length = int(V2_HEAD.unpack_from(header)[3])
        if length > V2_REST_BYTES_MAX:
            raise PeerError(f"a PROXY header of {length} bytes")
        return V2_HEAD.size + length - size
    if not header.startswith(b"PROXY "):
        raise PeerError("no PROXY header")
    if header.endswith(b"\r\n"):
        return 0
    if b"\n" in header or size >= V1_BYTES_MAX:
        raise PeerError("a PROXY line without an end")
    return max(1, V1_TCP_BYTES_MIN - size if header.startswith(b"PROXY TCP") else 1)


def decode(header: bytes) -> Proxied:
    """The facts in a whole header. Raises PeerError."""
    if header.startswith(SIGNATURE):
        return _decode_v2(header)
    words = header[:-2].split(b" ")
    if words[1] == b"UNKNOWN":
        return Proxied()
    if len(words) != 6 or words[1] not in (b"TCP4", b"TCP6"):
        raise PeerError("a PROXY line that says nothing known")
    try:
        address = ipaddress.ip_address(words[2].decode("ascii"))
        ipaddress.ip_address(words[3].decode("ascii"))
        ports = [int(word) for word in words[4:] if word.isdigit()]
    except ValueError as error:
        raise PeerError(f"a PROXY line with a bad address: {error}") from error
    if address.version != int(words[1][3:]) or len(ports) != 2 or max(ports) > 65535:
        raise PeerError("a PROXY line with a bad address")
    return Proxied(join_address(str(address), ports[0]))


def _decode_v2(header: bytes) -> Proxied:
    _, version_command, family, length = V2_HEAD.unpack_from(header)
    rest = header[V2_HEAD.size : V2_HEAD.size + length]
    if version_command == 0x20:  # LOCAL: the balancer's own check
        return Proxied()
    if version_command != 0x21:
        raise PeerError(f"PROXY version and command 0x{version_command:02X}")
    size = {0x1: 4, 0x2: 16}.get(family >> 4, 0)
    if not size:  # unspecified or a Unix socket: nothing that has an address
        skipped = V2_UNIX_BYTES if family >> 4 == 0x3 else 0
        return _secured("", rest[skipped:])
    if family & 0xF != 0x1 or len(rest) < 2 * size + 4:
        raise PeerError("a PROXY header without its addresses")
    address = ipaddress.ip_address(rest[:size])
    port = int.from_bytes(rest[2 * size : 2 * size + 2], "big")
    return _secured(join_address(str(address), port), rest[2 * size + 4 :])


def _tlvs(data: bytes) -> dict[int, bytes]:
    """Type to value, unknown ones too. Raises PeerError for one cut short."""
    found: dict[int, bytes] = {}
    position = 0
    while position + 3 <= len(data):
        length = int.from_bytes(data[position + 1 : position + 3], "big")
        end = position + 3 + length
        if end > len(data):
            raise PeerError("a PROXY header with a TLV cut short")
        found.setdefault(data[position], data[position + 3 : end])
        position = end
    if position != len(data):
        raise PeerError("a PROXY header with bytes left over")
    return found


def _secured(peer: str, data: bytes) -> Proxied:
    """What the TLVs say of TLS; the name counts if the balancer verified the certificate."""
    value = _tlvs(data).get(TLV_SSL)
    if value is None:
        return Proxied(peer)
    if len(value) < 5:  # client, verify (2.2.6)
        raise PeerError("a PROXY header with half a TLS field")
    is_tls = bool(value[0] & CLIENT_SSL)
    is_shown = bool(value[0] & (CLIENT_CERT_CONN | CLIENT_CERT_SESS))
    if not is_tls or not is_shown or any(value[1:5]):
        return Proxied(peer, is_tls=is_tls)
    name = _tlvs(value[5:]).get(SUBTLV_SSL_CN, b"").decode("utf-8", "replace")
    return Proxied(peer, name, is_tls, True)
