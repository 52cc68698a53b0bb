"""
Telling the name servers that this gateway is there, for clients that look for one.

What they are told: addresses by protocol, load, the broker clusters it serves, whether it takes
clients (``tidegate namesrv gateways``, ``GET /gateways``). A name server that cannot be reached is
tried again in silence.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from gateway.clusters.connection import Sign
from gateway.clusters.watch import ConnectNameServer
from protocols import clock
from protocols.errors import Code, GatewayError, PeerError, Refused
from protocols.remoting.client import RemotingClient
from protocols.remoting.command import RemotingCommand
from protocols.remoting.discovery import GatewayList, GatewayListener, GatewayRegister
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


class NameServerDoor(NamedTuple):
    """How one name server is reached."""

    connect: ConnectNameServer
    sign: Sign | None = None
    """With ``cluster_auth``: it believes nobody else."""


class Registration:
    """One task for each name server."""

    def __init__(
        self, name_servers: Sequence[NameServerDoor], describe: Callable[[], Facts]
    ) -> None:
        self._name_servers = name_servers
        self._describe = describe
        self._tasks = Tasks("registration")
        self._wakes = [asyncio.Event() for _ in name_servers]

    def start(self) -> None:
        pairs = zip(self._name_servers, self._wakes, strict=True)
        for index, (door, wake) in enumerate(pairs):
            self._tasks.start(self._run(door, wake), name=f"name server {index}")

    def tell(self) -> None:
        """Something that clients choose by has changed: tell it now."""
        for wake in self._wakes:
            wake.set()

    async def others(self) -> list[GatewayRegister]:
        """All gateways that the name servers know, by name; ourselves too."""
        tasks = [
            self._tasks.start(_gateways_of(door), name="gateways") for door in self._name_servers
        ]
        found: dict[str, GatewayRegister] = {}
        for task in tasks:
            for gateway in await task:
                found[gateway.gateway] = gateway
        return [found[name] for name in sorted(found)]

    async def close(self) -> None:
        await self._tasks.close()

    async def _run(self, door: NameServerDoor, wake: asyncio.Event) -> None:
        client: RemotingClient | None = None
        count, at = 0, clock.monotonic()
        try:
            while True:
                facts, now = self._describe(), clock.monotonic()
                rate = max(0, round((facts.message_count - count) / max(now - at, 1.0)))
                count, at = facts.message_count, now
                try:
                    if client is None:
                        client = await door.connect()
                    await _tell(client, _command(facts, rate), door.sign)
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


async def _tell(client: RemotingClient, command: RemotingCommand, sign: Sign | None) -> None:
    """Raises Refused and PeerError."""
    if sign is not None:
        sign(command)
    answer = await client.request(command)
    if answer.code:
        raise Refused(Code.FORBIDDEN, "name server", answer.remark)


async def _gateways_of(door: NameServerDoor) -> list[GatewayRegister]:
    """What one name server knows; empty if it does not answer."""
    try:
        client = await door.connect()
        try:
            answer = await client.request(RemotingCommand(PrivateCode.GATEWAY_LIST, {}))
        finally:
            await client.close()
        if answer.code:
            return []
        return msgspec.msgpack.decode(answer.body, type=GatewayList).gateways
    except (GatewayError, msgspec.MsgspecError) as error:
        logger.debug("name server not asked: %s", error)
        return []


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
