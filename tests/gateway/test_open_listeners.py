"""Listeners that close and open at once: a lease that ends and is back before all have left."""

import asyncio
from collections.abc import Mapping
from typing import Any, Self, cast

import pytest

from gateway import listeners
from gateway.app import Gateway
from gateway.config import read
from gateway.listeners import Listeners
from protocols.pipeline import Services


class SlowToLeave:
    """An adapter that tells its clients until it is let go."""

    def __init__(self, name: str, board: "Board") -> None:
        self._name = name
        self._board = board

    @classmethod
    def from_config(cls, name: str, section: Mapping[str, Any]) -> Self:
        raise NotImplementedError

    async def serve(self, services: Services) -> None:
        self._board.listeners.opened(self._name, "127.0.0.1", 1000 + self._board.serving)
        self._board.serving += 1
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._board.leaving.set()
            await self._board.may_leave.wait()


class Board:
    def __init__(self) -> None:
        self.listeners = Listeners(lambda name, section: SlowToLeave(name, self))
        self.serving = 0
        self.leaving = asyncio.Event()
        self.may_leave = asyncio.Event()


SERVICES = cast(Services, None)


async def test_opened_again_while_the_last_ones_leave() -> None:
    """What opens waits for what closes, and keeps its address when that is gone."""
    board = Board()
    await board.listeners.apply({"mqtt": {"bind": "127.0.0.1:1000"}}, SERVICES)
    closing = asyncio.ensure_future(board.listeners.close())
    await board.leaving.wait()
    opening = asyncio.ensure_future(board.listeners.open(SERVICES))
    await asyncio.sleep(0)
    assert board.serving == 1
    board.may_leave.set()
    await asyncio.gather(closing, opening)
    assert board.listeners.addresses == {"mqtt": "127.0.0.1:1001"}
    assert board.listeners.closed_names == []
    await board.listeners.close()
    assert board.listeners.closed_names == ["mqtt"]


async def test_a_gateway_that_stops_opens_nothing_again() -> None:
    """Its lease may end and be given anew while its clients leave."""
    board = Board()
    await board.listeners.apply({"mqtt": {"bind": "127.0.0.1:1000"}}, SERVICES)
    gateway = Gateway(read(None, text="clusters: { eu: {namesrv: 'a:1'} }", environ={}))
    gateway.listeners = board.listeners
    stopping = asyncio.ensure_future(gateway.stop())
    await board.leaving.wait()
    again = asyncio.ensure_future(board.listeners.open_again(SERVICES, lambda: True))
    await asyncio.sleep(0)
    board.may_leave.set()
    await asyncio.gather(stopping, again)
    assert board.serving == 1
    assert board.listeners.closed_names == ["mqtt"]


class Busy(SlowToLeave):
    """Its port is taken the first time."""

    async def serve(self, services: Services) -> None:
        self._board.serving += 1
        if self._board.serving == 2:
            raise OSError("address already in use")
        await super().serve(services)


async def test_what_cannot_be_opened_again_is_tried_until_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As long as the gateway has the lease that it joined with."""
    monkeypatch.setattr(listeners, "AGAIN_S", 0)
    board = Board()
    board.may_leave.set()
    board.listeners = Listeners(lambda name, section: Busy(name, board))
    await board.listeners.apply({"mqtt": {"bind": "127.0.0.1:1000"}}, SERVICES)
    await board.listeners.open_again(SERVICES, lambda: True)
    assert board.listeners.closed_names == []
    board.serving = 1
    await board.listeners.open_again(SERVICES, iter((True, False)).__next__)
    assert board.listeners.closed_names == ["mqtt"]
    await board.listeners.close()
