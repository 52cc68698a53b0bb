"""The admin listener makes its server for the first caller, and lets nobody fall between."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from gateway.admin import door
from gateway.admin.access import Access
from gateway.admin.door import AdminDoor
from gateway.admin.server import AdminServer


class Echo(asyncio.Protocol):
    """Says what it hears, and closes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)
        self.transport.close()


class Server:
    """An ``AdminServer``, as far as the door knows it."""

    connection = Echo

    def __init__(self) -> None:
        self.has_stopped = False

    async def set_up(self) -> None:
        pass

    async def stop(self) -> None:
        self.has_stopped = True


class Site:
    """A door, who built behind it, and the port."""

    def __init__(self, build: Callable[[], Server] = Server) -> None:
        self.built: list[Server] = []
        self._build = build
        access = cast(Access, None)  # handed through
        self.door = AdminDoor(access, cast(Callable[[], AdminServer], self._made))
        self.port = 0

    def _made(self) -> Server:
        self.built.append(self._build())
        return self.built[-1]

    async def __aenter__(self) -> "Site":
        _, self.port = await self.door.start("127.0.0.1:0")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.door.stop()

    async def ask(self, data: bytes) -> bytes:
        """What is answered before the end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()


async def test_callers_that_come_together_wait_for_one_server() -> None:
    async with Site() as site:
        assert not site.built
        assert await asyncio.gather(site.ask(b"one"), site.ask(b"two")) == [b"one", b"two"]
        assert await site.ask(b"three") == b"three"
    assert [server.has_stopped for server in site.built] == [True]


async def test_more_callers_than_may_wait_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "CALLERS_MAX", 0)
    async with Site() as site:
        assert await site.ask(b"one") == b""
    assert not site.built


async def test_callers_of_a_server_that_cannot_be_made_are_closed() -> None:
    """The next one tries again."""
    tries: list[int] = []

    def build() -> Server:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("not yet")
        return Server()

    async with Site(build) as site:
        assert await site.ask(b"one") == b""
        assert await site.ask(b"two") == b"two"
