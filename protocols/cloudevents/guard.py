"""
What aiohttp leaves open: silent sockets, and a traceback for every malformed request.

``Guard`` stands between the socket and aiohttp's own protocol object and hands everything on.
"""

import asyncio
import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from protocols.addresses import socket_address
from protocols.canonical import Call
from protocols.proxying import proxied
from protocols.tasks import LongPolls

QUIET_ERRORS: Final = ("BadHttpMessage", "BadStatusLine", "LineTooLong", "InvalidHeader")


@dataclass(slots=True, kw_only=True)
class Door:
    """What we know of one connection."""

    peer: str
    close: Callable[[], None]
    is_awake: bool = False
    """A whole request head has come."""

    call: Call | None = None
    """Of its last request, kept so that decisions cached on it count."""

    credentials: tuple[str, str] = ("", "")
    """The headers that *call* was made from."""

    left: Callable[[], None] | None = None
    """Takes it off the list of clients."""

    busy_count: int = 0
    """Requests that have no answer yet."""

    is_leaving: bool = False
    """Its next answer is its last."""

    polls: LongPolls | None = None
    """Receives that wait; what they would take when nobody listens would be hidden for nobody."""

    def leave(self) -> None:
        """The gateway drains: close when what was asked is answered."""
        self.is_leaving = True
        if not self.busy_count:
            self.close()


Doors = dict[asyncio.BaseTransport, Door]
"""Open connections by transport."""


class Guard(asyncio.Protocol):
    """One connection: closed unless its first request head is whole in time."""

    def __init__(
        self,
        inner: asyncio.Protocol,
        doors: Doors,
        handshake_s_max: float,
    ) -> None:
        self._inner = inner
        self._doors = doors
        self._handshake_s_max = handshake_s_max
        self._proxied = proxied.get()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own classes are none
        peer = socket_address(transport.get_extra_info("peername"))
        if self._proxied is not None and self._proxied.peer:
            peer = self._proxied.peer
        self._doors[transport] = Door(peer=peer, close=transport.close)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._handshake_s_max, self._silent)
        self._inner.connection_made(transport)

    def _silent(self) -> None:
        transport = self._transport
        door = self._doors.get(transport) if transport is not None else None
        if transport is not None and door is not None and not door.is_awake:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            door = self._doors.pop(self._transport, None)
            if door is not None and door.left is not None:
                left, door.left = door.left, None  # it knows the door: no cycle is left behind
                left()
            if door is not None and door.polls is not None:
                door.polls.close()
        self._inner.connection_lost(exc)


class NoTracebacks(logging.Filter):
    """Malformed requests are the peer's fault: counted, not logged with a traceback."""

    def __init__(self, count: Callable[[], None]) -> None:
        super().__init__()
        self._count = count

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if error is None or _is_late_answer(error):
            return error is None
        names = {kind.__name__ for kind in type(error).__mro__}
        if not names.intersection(QUIET_ERRORS):
            return True
        self._count()
        return False


def _is_late_answer(error: BaseException) -> bool:
    """
    A request was answered in the turn of the loop in which its listener, closing, gave it up.

    aiohttp (3.14) then tells a future that is cancelled: ``RequestHandler.shutdown`` and the end
    of ``_handle_request``. The answer has been sent, the connection is about to be closed.
    """
    frames = [frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)]
    return isinstance(error, asyncio.InvalidStateError) and frames[-1:] == ["_handle_request"]
