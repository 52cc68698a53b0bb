"""``host:port`` as people and RocketMQ's clients write it; IPv6 hosts stand in brackets."""

import ipaddress
from typing import Final

from protocols import unix_sockets

ANY_HOSTS: Final = ("0.0.0.0", "::")
"""Binds that take every address of the machine."""


def split_bind(bind: str) -> tuple[str, int]:
    """``host:port`` or ``[v6]:port`` as its parts. Raises ValueError."""
    host, separator, port = bind.rpartition(":")
    if not separator or not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"'{bind}' is no host:port")
    return host.strip("[]"), int(port)


def join_address(host: str, port: int) -> str:
    """The other way round; *host* without brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def socket_address(name: object) -> str:
    """Of what ``getsockname`` and ``getpeername`` say; "": of a socket file, or nobody knows."""
    return join_address(name[0], name[1]) if isinstance(name, tuple) else ""


def host_of(peer: str) -> str:
    """The host of ``host:port``; "" where there is none."""
    return peer.rpartition(":")[0].strip("[]")


def is_loopback(bind: str) -> bool:
    """Whether only this machine can reach the address."""
    if unix_sockets.path_of(bind):
        return True
    host, _ = split_bind(bind)
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
