"""
Waiting for messages of a RocketMQ group at an Apache broker, so that it can be called off.

A pop that waits at the broker takes what comes, whoever is there by then: it would be hidden for
nobody until its time is over. So pops here never wait; a notification does, and takes nothing.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from gateway.clusters.apache import pop
from gateway.clusters.link import refusal_of
from protocols import clock
from protocols.canonical import Delivery, ReceiptHandle
from protocols.errors import GatewayError, PeerError
from protocols.groups import PopRequest
from protocols.remoting.codes import ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.settling import AckAction
from protocols.tasks import Tasks

logger = logging.getLogger("tidegate.clusters")

Ask = Callable[[RemotingCommand, float], Awaitable[RemotingCommand]]
"""A request that is answered within these seconds."""

Popped = RemotingCommand | GatewayError
"""The broker's answer, or why there is none: who asked may be gone by then."""

Release = Callable[[Sequence[tuple[ReceiptHandle, int, int]]], object]
"""(handle, action, delay) of each that goes back."""

NOTHING: Final = frozenset(
    (ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND, ResponseCode.POLLING_FULL)
)

ANSWER_S_MAX: Final = 5.0
AGAIN_S: Final = 0.1
"""After a notification that brought nothing: a queue that is locked, or no room to wait there."""


class ApachePolls:
    """Pops at one broker."""

    def __init__(self, cluster: str, broker: str, ask: Ask, release: Release) -> None:
        self._cluster = cluster
        self._broker = broker
        self._ask = ask
        self._release = release
        self._tasks = Tasks(f"pops/{cluster}/{broker}")

    async def close(self) -> None:
        await self._tasks.close()

    async def pop(self, request: PopRequest, count: int, wait_ms: int) -> list[Delivery]:
        """
        Up to *count*, or none after *wait_ms*. Cancelled, it takes nothing any more, and what is
        on its way from the broker goes back.
        """
        deadline = clock.monotonic() + wait_ms / 1000
        was_told = False
        while True:
            found = await self._pop_now(request, count)
            left_s = deadline - clock.monotonic()
            if found or left_s <= 0:
                return found
            if was_told:
                await asyncio.sleep(min(AGAIN_S, left_s))
            was_told = await self._await_news(request, int(left_s * 1000))

    async def _pop_now(self, request: PopRequest, count: int) -> list[Delivery]:
        """Seen to its end: once asked, the broker hides what it answers."""
        popping = self._tasks.start(self._ask_pop(request, count), name="pop")
        try:
            answer = await asyncio.shield(popping)
        except asyncio.CancelledError:
            popping.add_done_callback(lambda done: self._give_back(done, request))
            raise
        if isinstance(answer, GatewayError):
            raise answer
        if answer.code in NOTHING:
            return []
        if answer.code != ResponseCode.SUCCESS:
            raise refusal_of(answer, request.group.name)
        return pop.deliveries(answer, request, self._cluster, self._broker)

    async def _ask_pop(self, request: PopRequest, count: int) -> Popped:
        now_ms = clock.wall_ms()
        command = pop.pop(request, count=count, wait_ms=0, now_ms=now_ms, broker=self._broker)
        try:
            return await self._ask(command, ANSWER_S_MAX)
        except GatewayError as error:
            return error

    def _give_back(self, popping: asyncio.Task[Popped], request: PopRequest) -> None:
        if popping.cancelled() or isinstance(answer := popping.result(), GatewayError):
            return
        if answer.code == ResponseCode.SUCCESS:
            try:
                found = pop.deliveries(answer, request, self._cluster, self._broker)
            except PeerError as error:
                logger.info("%s", error)
                return
            self._release([(one.handle, int(AckAction.RELEASE), 0) for one in found])

    async def _await_news(self, request: PopRequest, wait_ms: int) -> bool:
        """Whether there may be something; False: nothing came, or the broker cannot tell."""
        now_ms = clock.wall_ms()
        command = pop.notification(request, wait_ms=wait_ms, now_ms=now_ms, broker=self._broker)
        began = clock.monotonic()
        answer = await self._ask(command, wait_ms / 1000 + ANSWER_S_MAX)
        if answer.code == ResponseCode.SUCCESS and answer.fields.get("hasMsg") == "true":
            return True
        left_s = wait_ms / 1000 - (clock.monotonic() - began)
        await asyncio.sleep(min(AGAIN_S, max(0.0, left_s)))
        return False
