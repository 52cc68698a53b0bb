"""Server, client and the in-memory pair: requests both ways, faults, limits."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from protocols.errors import Code, Refused
from protocols.remoting.client import RemotingClient, local_pair
from protocols.remoting.command import RemotingCommand
from protocols.remoting.peer import Peer
from protocols.remoting.server import RemotingServer, serve_remoting
from tests.support.patience import PATIENCE_S


class Echo:
    """Answers each request with its own body; code 99 asks the client back; 98 never answers."""

    def __init__(self) -> None:
        self.peers: list[Peer] = []
        self.batches: list[int] = []
        self.lost = asyncio.Event()

    def receive(self, peer: Peer, commands: Sequence[RemotingCommand]) -> None:
        if peer not in self.peers:
            self.peers.append(peer)
            peer.on_lost(lambda peer: self.lost.set())
        self.batches.append(len(commands))
        for command in commands:
            if command.code == 97:
                raise AssertionError("a fault of ours")
            if command.code == 99:
                peer.call(
                    RemotingCommand(5, body=command.body),
                    lambda answer, command=command: peer.send(
                        [command.answer(0, body=answer.body if answer else b"lost")]
                    ),
                )
            elif command.code != 98 and not command.is_oneway:
                peer.send([command.answer(0, {"code": str(command.code)}, command.body)])


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
async def server(echo: Echo) -> AsyncIterator[RemotingServer]:
    server = await serve_remoting(echo, "127.0.0.1:0", handshake_s_max=0.2)
    yield server
    await server.close()


def pushed(peer: Peer, commands: Sequence[RemotingCommand]) -> None:
    peer.send([command.answer(0, body=b"pushed " + bytes(command.body)) for command in commands])


@pytest.fixture(params=["tcp", "local"])
async def client(
    request: pytest.FixtureRequest, echo: Echo, server: RemotingServer
) -> AsyncIterator[RemotingClient]:
    if request.param == "local":
        client = local_pair(echo, push=pushed)
    else:
        client = await RemotingClient.connect(server.address, push=pushed)
    yield client
    await client.close()


@pytest.mark.parametrize("is_binary", [False, True])
async def test_request_and_answer(client: RemotingClient, is_binary: bool) -> None:
    """An answer finds its request; body, fields and serialization come along."""
    answer = await client.request(
        RemotingCommand(12, body=b"x" * 300_000, is_binary=is_binary), PATIENCE_S
    )
    assert answer.is_response
    assert (answer.fields, len(answer.body)) == ({"code": "12"}, 300_000)
    assert answer.is_binary is is_binary


async def test_requests_of_one_tick_arrive_together(client: RemotingClient, echo: Echo) -> None:
    """What is sent in one tick leaves in one write."""
    await asyncio.gather(*(client.request(RemotingCommand(12), PATIENCE_S) for _ in range(20)))
    assert echo.batches == [20]


async def test_server_asks_its_client(client: RemotingClient) -> None:
    """Requests go both ways on one connection, each side with its own numbers."""
    answer = await client.request(RemotingCommand(99, body=b"hello"), PATIENCE_S)
    assert answer.body == b"pushed hello"


async def test_no_answer_is_a_timeout(client: RemotingClient) -> None:
    with pytest.raises(Refused) as caught:
        await client.request(RemotingCommand(98), timeout_s=0.05)
    assert caught.value.code is Code.PROXY_TIMEOUT


async def test_close_ends_what_waits(client: RemotingClient, echo: Echo) -> None:
    """A request without an answer fails when the connection ends; the server hears of it."""
    waiting = asyncio.ensure_future(client.request(RemotingCommand(98), PATIENCE_S))
    await client.request(RemotingCommand(12), PATIENCE_S)
    await client.close()
    with pytest.raises(Refused) as caught:
        await waiting
    assert caught.value.code is Code.HA_NOT_AVAILABLE
    async with asyncio.timeout(PATIENCE_S):
        await echo.lost.wait()
    assert not client.is_open


async def test_server_fault_costs_one_connection(server: RemotingServer) -> None:
    """A malformed frame, or a fault of ours, ends that connection; others go on."""
    good = await RemotingClient.connect(server.address)
    bad = await RemotingClient.connect(server.address)
    reader, writer = await asyncio.open_connection(*server.address.split(":"))
    writer.write(b"\xff" * 64)
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
    with pytest.raises(Refused):
        await bad.request(RemotingCommand(97), PATIENCE_S)
    assert (await good.request(RemotingCommand(12))).code == 0
    await good.close()
    await bad.close()


async def test_silent_handshake_is_closed(server: RemotingServer) -> None:
    """A client that sends no whole frame is closed after the handshake limit (0.2 s here)."""
    reader, writer = await asyncio.open_connection(*server.address.split(":"))
    writer.write(b"\0\0\0\x20\0\0")
    async with asyncio.timeout(PATIENCE_S):
        assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()


async def test_connections_have_a_limit(echo: Echo) -> None:
    """Beyond the limit a connection is closed at once; a freed place can be taken again."""
    server = await serve_remoting(echo, "127.0.0.1:0", connections_max=1)
    first = await RemotingClient.connect(server.address)
    await first.request(RemotingCommand(12), PATIENCE_S)
    second = await RemotingClient.connect(server.address)
    with pytest.raises(Refused):
        await second.request(RemotingCommand(12), PATIENCE_S)
    await second.close()
    await first.close()
    third = await RemotingClient.connect(server.address)
    assert (await third.request(RemotingCommand(12))).code == 0
    await third.close()
    await server.close()


async def test_refused_connect() -> None:
    """Nobody listens: Refused with the address."""
    with pytest.raises(Refused) as caught:
        await RemotingClient.connect("127.0.0.1:1")
    assert caught.value.subject == "127.0.0.1:1"


async def test_local_peers_can_pause(echo: Echo) -> None:
    """Back-pressure holds commands in memory and lets them go in order."""
    client = local_pair(echo)
    await client.request(RemotingCommand(12), PATIENCE_S)
    echo.peers[0].pause()
    waiting = asyncio.ensure_future(client.request(RemotingCommand(13), PATIENCE_S))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    echo.peers[0].resume()
    assert (await waiting).fields == {"code": "13"}
    await client.close()
