"""The listening end of remoting: sockets to ``Peer``s."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from protocols import clock
from protocols.addresses import socket_address
from protocols.descriptors import Factory
from protocols.doors import Door, Listening, open_plain
from protocols.driver import Driver, InPlaceDriver
from protocols.remoting.command import RemotingCommand
from protocols.remoting.connection import (
    HANDSHAKE_S_MAX,
    IDLE_S_MAX,
    Event,
    Fault,
    RemotingConnection,
)
from protocols.remoting.frame import FRAME_BYTES_MAX
from protocols.remoting.peer import Peer, Receive

logger = logging.getLogger("tidegate.remoting")

WRITE_BYTES_MAX: Final = 64 << 20
"""What a peer may leave unread at most before it is cut off; four frames of the largest size."""

CONNECTIONS_MAX: Final = 20_000


class RemotingHandler(Protocol):
    """Who answers a server's requests."""

    def receive(self, peer: Peer, commands: Sequence[RemotingCommand]) -> None:
        """All requests of one read, in order. Answer with ``peer.send``, now or later."""
        ...


class SocketWire:
    """A ``Wire`` on the common driver."""

    def __init__(
        self,
        receive: Receive,
        *,
        opened: Callable[[Peer], None],
        frame_bytes_max: int = FRAME_BYTES_MAX,
        handshake_s_max: float = HANDSHAKE_S_MAX,
        idle_s_max: float = IDLE_S_MAX,
    ) -> None:
        self.connection = RemotingConnection(
            now=clock.monotonic(),
            frame_bytes_max=frame_bytes_max,
            handshake_s_max=handshake_s_max,
            idle_s_max=idle_s_max,
        )
        self.driver: Driver[Event] = InPlaceDriver(
            self.connection, handle=self._handle, lost=self._lost, opened=self._opened
        )
        self.peer = Peer(self, receive)
        self._tell_opened = opened

    @property
    def is_open(self) -> bool:
        return self.driver.is_open and not self.connection.is_closing

    @property
    def is_slow(self) -> bool:
        return self.driver.is_peer_slow

    def send(self, commands: Sequence[RemotingCommand]) -> None:
        self.connection.send(commands)
        self.driver.flush_soon()
        transport = self.driver.transport
        if transport is not None and transport.get_write_buffer_size() > WRITE_BYTES_MAX:
            logger.warning("peer %s leaves too much unread: cut off", self.peer.address)
            transport.abort()

    def pause(self) -> None:
        self.driver.pause_reading()

    def resume(self) -> None:
        self.driver.resume_reading()

    def close(self) -> None:
        self.driver.close()

    def abort(self) -> None:
        self.driver.abort()

    def _opened(self, driver: Driver[Event]) -> None:
        self.peer.address = driver.peer
        if driver.transport is not None:
            name = driver.transport.get_extra_info("sockname")
            self.peer.local_address = socket_address(name)
        self._tell_opened(self.peer)

    def _handle(self, driver: Driver[Event], events: Sequence[Event]) -> None:
        last = events[-1]
        if isinstance(last, Fault):
            logger.info("peer %s: %s", self.peer.address, last.reason)
        commands = [event for event in events if isinstance(event, RemotingCommand)]
        if commands:
            self.peer.received(commands)

    def _lost(self, driver: Driver[Event]) -> None:
        self.peer.lost()


class RemotingServer:
    """A listener and its peers; made by ``serve_remoting``."""

    def __init__(self, handler: RemotingHandler, connections_max: int) -> None:
        self.peers: set[Peer] = set()
        self.address = ""
        """``ip:port`` that is bound."""

        self._handler = handler
        self._connections_max = connections_max
        self._server: Listening | None = None

    def opened(self, peer: Peer) -> None:
        if len(self.peers) >= self._connections_max:
            logger.warning("peer %s: more than %d connections", peer.address, self._connections_max)
            peer.abort()
            return
        self.peers.add(peer)
        peer.on_lost(self.peers.discard)

    def refresh(self) -> None:
        """Certificates that changed on disk are in force at once."""
        if isinstance(self._server, Door):
            self._server.refresh()

    def bound(self, server: Listening) -> None:
        self._server = server
        self.address = socket_address(server.sockets[0].getsockname())

    def receive(self, peer: Peer, commands: Sequence[RemotingCommand]) -> None:
        try:
            self._handler.receive(peer, commands)
        except Exception:  # a fault of ours costs this peer, not the listener
            logger.exception("request of %s failed: connection closed", peer.address)
            peer.abort()

    def stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()

    async def close(self) -> None:
        """Stop accepting, send what is queued, close every connection."""
        if self._server is None:
            return
        self._server.close()
        for peer in list(self.peers):
            peer.close()
        try:
            async with asyncio.timeout(1.0):
                await self._server.wait_closed()
        except TimeoutError:
            for peer in list(self.peers):
                peer.abort()
        self._server = None


async def serve_remoting(
    handler: RemotingHandler,
    bind: str,
    *,
    open_: Callable[[Factory, str], Awaitable[Listening]] = open_plain,
    frame_bytes_max: int = FRAME_BYTES_MAX,
    handshake_s_max: float = HANDSHAKE_S_MAX,
    idle_s_max: float = IDLE_S_MAX,
    connections_max: int = CONNECTIONS_MAX,
) -> RemotingServer:
    """
    Listen on *bind* (``host:port``, port 0 for any); ``server.address`` is what was bound.

    *open_* opens the socket: with TLS, say.
    """
    server = RemotingServer(handler, connections_max)

    def connect() -> asyncio.Protocol:
        return SocketWire(
            server.receive,
            opened=server.opened,
            frame_bytes_max=frame_bytes_max,
            handshake_s_max=handshake_s_max,
            idle_s_max=idle_s_max,
        ).driver.protocol

    server.bound(await open_(connect, bind))
    return server
