"""The connecting end of remoting: over a socket, or in memory to a handler of this process."""

import asyncio
import ssl
from collections.abc import Sequence

from protocols.addresses import split_bind
from protocols.errors import Code, Refused
from protocols.remoting.codes import ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.frame import FRAME_BYTES_MAX
from protocols.remoting.local import local_peers
from protocols.remoting.peer import Answered, Peer, Receive
from protocols.remoting.server import RemotingHandler, SocketWire


def refuse_pushes(peer: Peer, commands: Sequence[RemotingCommand]) -> None:
    """For clients that expect no requests from their server."""
    answers = [
        command.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="this end serves nothing")
        for command in commands
        if not command.is_oneway
    ]
    if answers:
        peer.send(answers)


class RemotingClient:
    """One connection to a server. It does not reconnect: its owner knows when that makes sense."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer

    @classmethod
    async def connect(
        cls,
        address: str,
        *,
        push: Receive = refuse_pushes,
        timeout_s: float = 3.0,
        tls: ssl.SSLContext | None = None,
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> "RemotingClient":
        """Connect to ``host:port``; *push* gets the server's requests. Raises Refused."""
        host, port = split_bind(address)

        def make() -> asyncio.Protocol:
            return wire.driver.protocol

        wire = SocketWire(
            push,
            opened=lambda peer: None,
            frame_bytes_max=frame_bytes_max,
            handshake_s_max=0.0,
            idle_s_max=0.0,
        )
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.get_running_loop().create_connection(make, host, port, ssl=tls)
        except (OSError, TimeoutError) as error:
            raise Refused(
                Code.HA_NOT_AVAILABLE, address, f"cannot connect: {error or 'timeout'}"
            ) from error
        return cls(wire.peer)

    @property
    def is_open(self) -> bool:
        return self.peer.is_open

    async def request(self, command: RemotingCommand, timeout_s: float = 3.0) -> RemotingCommand:
        """Send and wait for the answer, whatever its code. Raises Refused."""
        return await self.peer.request(command, timeout_s)

    def call(self, command: RemotingCommand, answered: Answered) -> None:
        """Send without a task; *answered* gets the answer or None (connection lost)."""
        self.peer.call(command, answered)

    def send_nowait(self, commands: Sequence[RemotingCommand]) -> None:
        """Send oneway requests and answers as they are."""
        self.peer.send(commands)

    async def close(self) -> None:
        """Send what is queued, close, and wait for the end."""
        if not self.peer.is_open:
            self.peer.abort()
            return
        lost = asyncio.Event()
        self.peer.on_lost(lambda peer: lost.set())
        self.peer.close()
        try:
            async with asyncio.timeout(1.0):
                await lost.wait()
        except TimeoutError:
            self.peer.abort()


def local_pair(
    handler: RemotingHandler, *, push: Receive = refuse_pushes, name: str = "local"
) -> RemotingClient:
    """A client of *handler* in this process: the same commands, no sockets, no bytes."""
    near, _ = local_peers(push, handler.receive, name=name)
    return RemotingClient(near)
