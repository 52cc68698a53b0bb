"""
The admin listener while nobody has called: aiohttp is a third of what a gateway's start takes (0.17
of 0.5 s of CPU), and a gateway that joins under load takes it from the others' clients. So it is
imported when the first connection comes, in a thread, for the loop must not wait for it.
"""

import asyncio
import logging
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

from gateway.admin.access import Access
from protocols.addresses import split_bind
from protocols.driver import listen
from protocols.tasks import Tasks

if TYPE_CHECKING:
    from gateway.admin.server import AdminServer

logger = logging.getLogger("tidegate.admin")

CALLERS_MAX: Final = 64
"""Connections that wait for it; more are closed."""


class AdminDoor:
    """
    One listener of protocol ``admin``.

    Args:
        access: who may use it.
        build: makes the server, once its modules are imported.
    """

    def __init__(self, access: Access, build: "Callable[[], AdminServer]") -> None:
        self.access = access
        self._build = build
        self._made: AdminServer | None = None
        self._callers: set[_Caller] = set()
        self._tasks = Tasks("admin")
        self._listening: asyncio.Server | None = None
        self._is_opening = False

    async def start(self, bind: str) -> tuple[str, int]:
        """Listen; the bound host and port. Raises OSError."""
        self._listening = await listen(self._connection, bind)
        return split_bind(bind)[0], int(self._listening.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._listening is not None:
            self._listening.close()
        await self._tasks.close()
        if self._made is not None:
            await self._made.stop()
        self._close_callers()

    def _connection(self) -> asyncio.Protocol:
        return _Caller(self) if self._made is None else self._made.connection()

    def called(self, caller: "_Caller") -> None:
        """One more waits; the first sets it going."""
        if self._made is not None:
            caller.hand_over(self._made.connection())
        elif len(self._callers) >= CALLERS_MAX:
            caller.close()
        else:
            self._callers.add(caller)
            if not self._is_opening:
                self._is_opening = True
                self._tasks.start(self._open(), name="open")

    def gone(self, caller: "_Caller") -> None:
        self._callers.discard(caller)

    async def _open(self) -> None:
        try:
            await asyncio.to_thread(import_module, "gateway.admin.server")
            made = self._build()
            await made.set_up()
        except Exception:
            logger.exception("the admin API cannot be opened")
            self._is_opening = False
            self._close_callers()
            return
        self._made = made
        callers, self._callers = self._callers, set()
        for caller in callers:
            caller.hand_over(made.connection())

    def _close_callers(self) -> None:
        for caller in list(self._callers):
            caller.close()


class _Caller(asyncio.Protocol):
    """One connection that waits, with what it has said."""

    def __init__(self, door: AdminDoor) -> None:
        self._door = door
        self._transport: asyncio.Transport | None = None
        self._said: list[bytes] = []
        self._has_ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._door.called(self)

    def data_received(self, data: bytes) -> None:
        self._said.append(data)
        if self._transport is not None:
            self._transport.pause_reading()  # the first read is enough to keep

    def eof_received(self) -> bool:
        self._has_ended = True
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.gone(self)

    def hand_over(self, protocol: asyncio.Protocol) -> None:
        """*protocol* hears all of it."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        for data in self._said:
            protocol.data_received(data)
        if self._has_ended and not protocol.eof_received():
            transport.close()
        else:
            transport.resume_reading()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
