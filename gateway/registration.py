"""
Telling the name servers that this gateway is there: for people (``tidegate namesrv gateways``).

Nothing is decided by it; a name server that cannot be reached is tried again in silence.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from gateway.clusters.routes import ConnectNameServer
from protocols import clock
from protocols.errors import PeerError, Refused
from protocols.remoting.client import RemotingClient
from protocols.remoting.command import RemotingCommand
from protocols.remoting.private import GatewayRegister, PrivateCode
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


class Registration:
    """One task for each name server."""

    def __init__(
        self, name_servers: Sequence[ConnectNameServer], describe: Callable[[], Facts]
    ) -> None:
        self._name_servers = name_servers
        self._describe = describe
        self._tasks = Tasks("registration")

    def start(self) -> None:
        for index, connect in enumerate(self._name_servers):
            self._tasks.start(self._run(connect), name=f"name server {index}")

    async def close(self) -> None:
        await self._tasks.close()

    async def _run(self, connect: ConnectNameServer) -> None:
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
                await asyncio.sleep(INTERVAL_S)
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
    )
    return RemotingCommand(
        PrivateCode.GATEWAY_REGISTER, None, msgspec.msgpack.encode(body), is_binary=True
    )
