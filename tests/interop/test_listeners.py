"""All seven default listeners: silent peers and nonsense cost one connection each."""

import socket
import time

import pytest

from tests.support.patience import PATIENCE_S
from tests.support.processes import LISTENERS, Daemons

pytestmark = pytest.mark.client

HANDSHAKE_S = 10.0
HALF = {
    "mqtt": b"\x10\x20\x00\x04MQ",
    "mqtt-ws": b"GET /mqtt HTTP/1.1\r\nHost",
    "amqp": b"AMQP\x00\x00\x09\x01",
    "events": b"POST /topics/t HTTP/1.1\r\nHost",
    "grpc": b"PRI * HTTP/2.0\r\n",
    "remoting": b"\x00\x00\x00\x20\x00",
    "admin": b"GET / HTTP/1.1\r\nHost",
}
"""A handshake begun and not gone on with."""

KEPT_FOR_LATER = "remoting"
"""Clients open connections there that they say nothing on; see ``test_remoting_frame``."""


def ends(connection: socket.socket, until: float) -> bool:
    """Whether the other side closes before *until* (monotonic seconds)."""
    try:
        while (left := until - time.monotonic()) > 0:
            connection.settimeout(left)
            if not connection.recv(4096):
                return True
    except ConnectionError:
        return True
    except TimeoutError:
        pass
    return False


def test_silent_handshakes_are_closed_and_nonsense_harms_nobody() -> None:
    """
    Ten seconds for a handshake on every port, begun or not (remoting's: begun); nonsense ends its
    own connection.
    """
    with Daemons() as daemons:
        up = daemons.up()
        started = time.monotonic()
        silent = {name: socket.create_connection(up.address(name)) for name in LISTENERS}
        broken = {name: socket.create_connection(up.address(name)) for name in LISTENERS}
        half = {name: socket.create_connection(up.address(name)) for name in LISTENERS}
        for name, connection in half.items():
            connection.sendall(HALF[name])
        for connection in broken.values():
            connection.sendall(b"\xff\x00\xff\xff\xff\xff\xff\xff nonsense \r\n\r\n" * 4)
        until = started + HANDSHAKE_S + PATIENCE_S
        late = [n for n, item in broken.items() if not ends(item, until)]
        kept = silent.pop(KEPT_FOR_LATER)
        open_still = [n for n, item in silent.items() if not ends(item, until)]
        half_still = [n for n, item in half.items() if not ends(item, until)]
        took = time.monotonic() - started
        kept.setblocking(False)
        with pytest.raises(BlockingIOError):
            kept.recv(1)
        for connection in (kept, *silent.values(), *broken.values(), *half.values()):
            connection.close()
        assert (late, open_still, half_still) == ([], [], [])
        assert took > HANDSHAKE_S - 1
        assert up.process.poll() is None
        for name in LISTENERS:
            socket.create_connection(up.address(name), timeout=PATIENCE_S).close()
        assert "Traceback" not in up.log()
