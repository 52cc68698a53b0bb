"""
One remoting connection without its socket: bytes in, commands out, and who is silent too long.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from protocols.errors import PeerError
from protocols.remoting.command import RemotingCommand
from protocols.remoting.frame import (
    FRAME_BYTES_MAX,
    SEND_BATCH,
    VIEW_BYTES_MIN,
    command_in_place,
    encode_pieces,
    size_in_place,
    size_of_frame,
    take_commands,
    take_in_place,
)

HANDSHAKE_S_MAX: Final = 10.0
"""A connection whose first frame is not whole so long after its first byte is closed."""

IDLE_S_MAX: Final = 120.0
"""
As ``serverChannelMaxIdleTimeSeconds``: clients send a heartbeat every 30 s. Java connects to all
its name servers and asks one of them: what is closed sooner it opens again every three seconds,
and questions in between fail.
"""


GROWTH_MAX: Final = 4
"""Memory for a large frame is made when a fourth of it has come, or frames nearly as large came
before: a head alone buys nothing."""

BATCHES_BYTES: Final = 256 << 10
"""Read at once from a client that sends batches, and not copied before they are records."""

START_BYTES: Final = 64
"""Read first where large frames are expected: enough to know how large."""


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
        self.deadline: float | None = now + idle_s_max if idle_s_max else None
        self.is_closing = False
        self._frame_bytes_max = frame_bytes_max
        self._idle_s_max = idle_s_max
        self._handshake_s_max = handshake_s_max
        """0: its first frame has begun."""

        self._incoming = bytearray()
        self._frame: memoryview | None = None
        """Memory of a large frame that is read in place."""

        self._batches: memoryview | None = None
        """Memory for client batches, and what else comes with them."""

        self._filled = 0
        """Bytes of either that are there."""

        self._has_batches = False
        """The last of what came was a batch: more are to be expected."""

        self._start = bytearray(START_BYTES)
        self._expected_bytes = 0
        """As large were the frames before; 0: they were others."""

        self._outgoing: list[RemotingCommand] = []
        self._has_sent = False

    def receive_data(self, data: bytes | memoryview, *, now: float) -> Sequence[Event]:
        """The commands that *data* completes; a fault of the peer is the last event."""
        if self.is_closing:
            return ()
        self._incoming += data
        if self._handshake_s_max:
            if self.deadline is not None:
                self.deadline = min(self.deadline, now + self._handshake_s_max)
            self._handshake_s_max = 0.0
        return self._events(now)

    def wanted_buffer(self) -> memoryview | None:
        """
        Where the next bytes go, if a large frame is on its way or to be expected.

        What is read there is told by ``filled``, before anything else is received.
        """
        frame = self._frame or self._batches or self._begin_frame() or self._begin_batches()
        if frame is not None:
            return frame[self._filled :]
        return memoryview(self._start) if self._expected_bytes and not self._incoming else None

    def filled(self, count: int, *, now: float) -> Sequence[Event]:
        """*count* bytes were read into the buffer that was wanted: what they complete."""
        frame = self._frame
        if self._batches is not None:
            return self._batches_filled(self._batches, count, now)
        if frame is None:
            return self.receive_data(memoryview(self._start)[:count], now=now)
        self._filled += count
        if self._filled < len(frame):
            return ()
        self._frame = None
        return self._events(now, frame=frame)

    def _begin_frame(self) -> memoryview | None:
        """Memory for the large frame that has begun; None: another one, or none."""
        here = self._incoming
        size = size_in_place(here, len(here), frame_bytes_max=self._frame_bytes_max)
        if not 0 < size <= GROWTH_MAX * max(len(here), self._expected_bytes):
            return None
        from protocols.remoting.matrix import new_memory  # numpy: only where large frames come

        self._frame = frame = new_memory(size)
        frame[: len(here)] = here
        self._filled = len(here)
        self._incoming = bytearray()
        return frame

    def _begin_batches(self) -> memoryview | None:
        """Memory for as much as a read brings; None: no batches are expected, or larger ones."""
        here = self._incoming
        if not self._has_batches or size_of_frame(here) > BATCHES_BYTES:
            return None
        from protocols.remoting.matrix import new_memory

        self._batches = memory = new_memory(BATCHES_BYTES)
        memory[: len(here)] = here
        self._filled = len(here)
        self._incoming = bytearray()
        return memory

    def _batches_filled(self, memory: memoryview, count: int, now: float) -> Sequence[Event]:
        """What *count* more bytes in it complete; the rest begins the next one."""
        self._batches = None
        here = memory[: self._filled + count]
        commands, end = take_in_place(here, frame_bytes_max=self._frame_bytes_max)
        self._incoming += here[end:]
        self._note(commands)
        return self._events(now, commands)

    def _note(self, commands: Sequence[RemotingCommand]) -> None:
        """What came last says what to expect."""
        if commands:
            last = commands[-1]
            self._has_batches = last.code == SEND_BATCH and len(last.body) >= VIEW_BYTES_MIN

    def _events(
        self,
        now: float,
        first: Sequence[RemotingCommand] = (),
        frame: memoryview | None = None,
    ) -> Sequence[Event]:
        """All that is whole: what came *first*, *frame*, then what is in the buffer."""
        events: list[Event] = [*first]
        try:
            if frame is not None:
                events.append(self._in_place(frame))
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
        return b"".join(self.pieces_to_send())

    def pieces_to_send(self) -> Sequence[bytes]:
        """What is queued, large bodies apart."""
        if not self._outgoing:
            return ()
        self._has_sent = True
        pieces = encode_pieces(self._outgoing)
        self._outgoing.clear()
        return pieces

    def _take(self) -> Sequence[RemotingCommand]:
        """The next commands that are whole."""
        buffer, limit = self._incoming, self._frame_bytes_max
        size = size_in_place(buffer, len(buffer), frame_bytes_max=limit)
        if not len(buffer) // 2 < size <= len(buffer):
            commands = take_commands(buffer, frame_bytes_max=limit)
            self._expected_bytes = 0 if commands else self._expected_bytes
            self._note(commands)
            return commands
        # less lies behind it than it holds: the rest is copied instead
        self._incoming = buffer[size:]
        del buffer[size:]
        return (self._in_place(buffer),)

    def _in_place(self, frame: bytearray | memoryview) -> RemotingCommand:
        """Its command. The next one may be a little larger."""
        self._expected_bytes = len(frame)
        return command_in_place(frame)

    def _close(self, reason: str) -> Fault:
        self.is_closing = True
        self._incoming = bytearray()
        self._frame = self._batches = None
        return Fault(reason)
