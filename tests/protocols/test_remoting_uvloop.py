"""The socket driver on uvloop, whose transports are no subclasses of asyncio's."""

from collections.abc import Sequence

import pytest

from protocols.daemon.lifecycle import loop_factory
from protocols.remoting.client import RemotingClient
from protocols.remoting.command import RemotingCommand
from protocols.remoting.peer import Peer
from protocols.remoting.server import serve_remoting
from tests.support.patience import PATIENCE_S

uvloop = pytest.importorskip("uvloop")


class Echo:
    def receive(self, peer: Peer, commands: Sequence[RemotingCommand]) -> None:
        peer.send([command.answer(0, body=command.body) for command in commands])


def test_request_on_uvloop() -> None:
    """A request and its answer pass on the loop that daemons use."""
    factory = loop_factory()
    assert factory is not None
    loop = factory()

    async def ask() -> bytes:
        server = await serve_remoting(Echo(), "127.0.0.1:0")
        client = await RemotingClient.connect(server.address)
        answer = await client.request(RemotingCommand(1, body=b"x"), PATIENCE_S)
        await client.close()
        await server.close()
        return bytes(answer.body)

    try:
        assert loop.run_until_complete(ask()) == b"x"
    finally:
        loop.close()
