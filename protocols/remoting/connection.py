"""
One remoting connection without its socket: bytes in, commands out, and who is silent too long.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from protocols.errors import PeerError
from protocols.remoting.command import RemotingCommand
from protocols.remoting.frame import (
    FRAME_BYTES_MAX,
    command_in_place,
    encode_commands,
    size_in_place,
    take_commands,
)

HANDSHAKE_S_MAX: Final = 10.0
"""A connection whose first frame is not whole by then is closed."""

IDLE_S_MAX: Final = 120.0
"""As ``serverChannelMaxIdleTimeSeconds``: clients send a heartbeat every 30 s."""


class Fault(NamedTuple):
    """The peer broke the protocol or fell silent: the last event of its connection."""

    reason: str


Event = RemotingCommand | Fault


class RemotingConnection:
    """Sans-I/O: run it with ``protocols.driver.Driver``."""

    def __init__(
        self,
        *,
        now: float,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        handshake_s_max: float = HANDSHAKE_S_MAX,
        idle_s_max: float = IDLE_S_MAX,
    ) -> None:
        self.deadline: float | None = now + handshake_s_max if handshake_s_max else None
        self.is_closing = False
        self._frame_bytes_max = frame_bytes_max
        self._idle_s_max = idle_s_max
        self._incoming = bytearray()
        self._outgoing: list[RemotingCommand] = []
        self._has_sent = False

    def receive_data(self, data: bytes, *, now: float) -> Sequence[Event]:
        """The commands that *data* completes; a fault of the peer is the last event."""
        if self.is_closing:
            return ()
        self._incoming += data
        events: list[Event] = []
        try:
            while self._incoming and (commands := self._take()):
                events += commands
        except PeerError as error:
            events.append(self._close(str(error)))
            return events
        if events:
            self.deadline = now + self._idle_s_max if self._idle_s_max else None
        return events

    def handle_deadline(self, *, now: float) -> Sequence[Event]:
        if self.deadline is None or now < self.deadline or self.is_closing:
            return ()
        if self._has_sent:  # what we sent counts as life too, as in Netty's all-idle handler
            self._has_sent = False
            self.deadline = now + self._idle_s_max
            return ()
        return (self._close("silent for too long"),)

    def send(self, commands: Sequence[RemotingCommand]) -> None:
        """Queue commands; they leave with the next ``data_to_send``."""
        self._outgoing.extend(commands)

    def data_to_send(self) -> bytes:
        if not self._outgoing:
            return b""
        self._has_sent = True
        data = encode_commands(self._outgoing)
        self._outgoing.clear()
        return data

    def _take(self) -> Sequence[RemotingCommand]:
        """The next commands that are whole."""
        buffer, limit = self._incoming, self._frame_bytes_max
        size = size_in_place(buffer, frame_bytes_max=limit)
        if size <= len(buffer) // 2:
            return take_commands(buffer, frame_bytes_max=limit)
        # less lies behind it than it holds: the rest is copied instead
        self._incoming = buffer[size:]
        del buffer[size:]
        return (command_in_place(buffer),)

    def _close(self, reason: str) -> Fault:
        self.is_closing = True
        self._incoming.clear()
        return Fault(reason)
