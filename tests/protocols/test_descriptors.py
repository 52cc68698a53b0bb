"""Clients never take the last descriptors of a process."""

import asyncio
import contextlib
import os
import resource
import socket
from collections.abc import Iterator

import pytest

from protocols.descriptors import for_clients, raise_limit
from protocols.doors import open_plain
from tests.support.patience import PATIENCE_S

MORE = 24
"""Descriptors that the process may open in a test."""


class Greeter(asyncio.Protocol):
    """Says a word to each that gets in."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(b"in")


@pytest.fixture
def few() -> Iterator[int]:
    """Leaves the process room for few clients; what the soft limit is."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    last = max(map(int, os.listdir("/proc/self/fd")))  # others may have left holes below theirs
    soft = (last + 1 + MORE) * 4 // 3
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    try:
        yield soft
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def greeting(address: tuple[str, int]) -> tuple[bytes, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(*address)
    with contextlib.suppress(ConnectionError):
        return await asyncio.wait_for(reader.read(2), PATIENCE_S), writer
    return b"", writer


async def test_the_last_ones_are_kept(few: int, caplog: pytest.LogCaptureFixture) -> None:
    server = await open_plain(Greeter, "127.0.0.1:0")
    address = server.sockets[0].getsockname()[:2]
    writers: list[asyncio.StreamWriter] = []
    try:
        for _ in range(few):
            word, writer = await greeting(address)
            writers.append(writer)
            if not word:
                break
        else:
            pytest.fail("nobody was turned away")
        assert len(writers) > 3
        segments = [os.open(os.devnull, os.O_RDONLY) for _ in range(few // 4 - 3)]  # a store's
        for segment in segments:
            os.close(segment)
        assert "connections turned away" in caplog.text
        gone = writers.pop(0)
        gone.close()
        await gone.wait_closed()
        writers.pop().close()
        word, writer = await until_let_in(address)
        writers.append(writer)
        assert word == b"in"
    finally:
        for writer in writers:
            writer.close()
        server.close()
        await server.wait_closed()


async def until_let_in(address: tuple[str, int]) -> tuple[bytes, asyncio.StreamWriter]:
    """Who was turned away comes again; the server notices in its own time who has gone."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            word, writer = await greeting(address)
            if word:
                return word, writer
            writer.close()


def test_a_daemon_takes_what_the_system_offers(few: int) -> None:
    assert for_clients() == few - few // 4
    raise_limit()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == min(hard, 1 << 20) if hard > 0 else soft >= few
    with socket.socket() as one:
        assert one.fileno() < for_clients()
