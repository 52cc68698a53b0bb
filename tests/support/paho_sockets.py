"""
paho's wake-up sockets, closed by themselves.

paho closes them in its client's ``__del__``; a client in a cycle (a callback that knows it) is
found by the collector, which may come to the sockets first and then warns of them.
"""

import socket

from paho.mqtt import client


class WakeUp(socket.socket):
    """Closed when nobody has it any more, and nothing said."""

    def __del__(self) -> None:
        self.close()


def pair() -> tuple[WakeUp, WakeUp]:
    here, there = (WakeUp(fileno=end.detach()) for end in socket.socketpair())
    here.setblocking(False)
    there.setblocking(False)
    return here, there


def use() -> None:
    """From now on, in all clients of this process."""
    client._socketpair_compat = pair
