"""
Telling the name servers that this gateway is there, for clients that look for one.

What they are told: addresses by protocol, load, the broker clusters it serves, whether it takes
clients (``tidegate namesrv gateways``, ``GET /gateways``). A name server that cannot be reached is
tried again in silence.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from gateway.clusters.watch import ConnectNameServer
from protocols import clock
from protocols.errors import PeerError, Refused
from protocols.remoting.client import RemotingClient
from protocols.remoting.command import RemotingCommand
from protocols.remoting.discovery import GatewayListener, GatewayRegister
from protocols.remoting.private import PrivateCode
from protocols.tasks import Tasks

logger = logging.getLogger("tidegate.registration")

INTERVAL_S: Final = 5.0
LEASE_MS: Final = 15_000


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to tell."""

    gateway: str
    zone: str
    protocols: dict[str, str]
    connection_count: int
    message_count: int
    """Messages so far; the rate is made from two of them."""

    listeners: list[GatewayListener] = []
    clusters: list[str] = []
    is_draining: bool = False


class Registration:
    """One task for each name server."""

    def __init__(
        self, name_servers: Sequence[ConnectNameServer], describe: Callable[[], Facts]
    ) -> None:
        self._name_servers = name_servers
        self._describe = describe
        self._tasks = Tasks("registration")
        self._wakes = [asyncio.Event() for _ in name_servers]

    def start(self) -> None:
        pairs = zip(self._name_servers, self._wakes, strict=True)
        for index, (connect, wake) in enumerate(pairs):
            self._tasks.start(self._run(connect, wake), name=f"name server {index}")

    def tell(self) -> None:
        """Something that clients choose by has changed: tell it now."""
        for wake in self._wakes:
            wake.set()

    async def close(self) -> None:
        await self._tasks.close()

    async def _run(self, connect: ConnectNameServer, wake: asyncio.Event) -> None:
        client: RemotingClient | None = None
        count, at = 0, clock.monotonic()
        try:
            while True:
                facts, now = self._describe(), clock.monotonic()
                rate = max(0, round((facts.message_count - count) / max(now - at, 1.0)))
                count, at = facts.message_count, now
                try:
                    if client is None:
                        client = await connect()
                    await client.request(_command(facts, rate))
                except (Refused, PeerError) as error:
                    logger.debug("name server not told: %s", error)
                    if client is not None:
                        await client.close()
                    client = None
                try:
                    async with asyncio.timeout(INTERVAL_S):
                        await wake.wait()
                except TimeoutError:
                    continue
                wake.clear()
        finally:
            if client is not None:
                await client.close()


def _command(facts: Facts, messages_per_s: int) -> RemotingCommand:
    body = GatewayRegister(
        gateway=facts.gateway,
        protocols=facts.protocols,
        zone=facts.zone,
        connection_count=facts.connection_count,
        messages_per_s=messages_per_s,
        lease_ms=LEASE_MS,
        listeners=facts.listeners,
        clusters=facts.clusters,
        is_draining=facts.is_draining,
    )
    return RemotingCommand(
        PrivateCode.GATEWAY_REGISTER, None, msgspec.msgpack.encode(body), is_binary=True
    )
