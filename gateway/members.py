"""
Which stores a cluster has, those included that no name server names now.

Each is a row of the directory with when it was last seen, so that a gateway that starts while a
store is away knows of it. One that nobody saw for ``GONE_S`` counts as gone for good.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Final

import msgspec

from gateway.clusters.client import LINK_KEPT_S, ClusterClient
from gateway.clusters.link import LinkState
from gateway.clusters.tidegate import TidegateLink
from protocols import clock
from protocols.directory import Directory, Put
from protocols.errors import Refused
from protocols.remoting.private import HelloAnswer
from protocols.tasks import Tasks

logger = logging.getLogger("tidegate.clusters")

Place = tuple[str, str]
"""Cluster and store."""

PREFIX: Final = "store/"

GONE_S: Final = LINK_KEPT_S
"""What a gateway has to tell an absent store is kept as long."""

NOTED_S: Final = GONE_S / 6
"""How old a row may become; the first gateway that finds it older writes it anew."""

LOOK_S: Final = 60.0
AGAIN_S: Final = 2.0
"""Between looks at the rows; after a write that failed."""


class StoreMembers:
    """Keeps the rows of the stores that this gateway sees."""

    def __init__(self, directory: Directory, clusters: Mapping[str, ClusterClient]) -> None:
        self._directory = directory
        self._clusters = clusters
        self._news = asyncio.Event()
        self._fresh: set[Place] = set()
        """Said HELLO, and their rows have not been looked at since."""

        self._tasks = Tasks("store-members")
        for cluster in clusters.values():
            cluster.on_greeted(self._greeted)

    def start(self) -> None:
        """Once the directory can be written."""
        self._tasks.start(self._note_for_ever(), name="note")

    async def close(self) -> None:
        await self._tasks.close()

    def known(self) -> set[Place]:
        """Every one that is there or may come back."""
        oldest_ms = clock.wall_ms() - int(GONE_S * 1000)
        found = known_links(self._clusters)
        for record in self._directory.items(PREFIX):
            cluster, _, broker = record.key.removeprefix(PREFIX).partition("/")
            if cluster in self._clusters and _seen_ms(record.value) >= oldest_ms:
                found.add((cluster, broker))
        return found

    def _greeted(self, link: TidegateLink, hello: HelloAnswer) -> None:
        self._fresh.add((link.cluster, link.broker))
        self._news.set()

    async def _note_for_ever(self) -> None:
        while True:
            wait_s = LOOK_S
            try:
                await self._note()
            except Refused as error:
                logger.info("stores are not written down: %s", error)
                wait_s = AGAIN_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._news.wait()
            self._news.clear()

    async def _note(self) -> None:
        """Rows for the stores that are up, where there are none or old ones. Raises Refused."""
        now_ms, fresh = clock.wall_ms(), set(self._fresh)
        puts: list[Put] = []
        for cluster in self._clusters.values():
            for link in cluster.links.values():
                is_seen = link.state is LinkState.UP or (cluster.name, link.broker) in fresh
                if not is_seen or not link.capabilities.has_once_keys:
                    continue
                key = f"{PREFIX}{cluster.name}/{link.broker}"
                record = self._directory.get(key)
                seen_ms = _seen_ms(record.value) if record is not None else 0
                if not 0 <= now_ms - seen_ms < NOTED_S * 1000:
                    version = record.version if record is not None else 0
                    puts.append(Put(key, msgspec.msgpack.encode(now_ms), version))
        if puts:
            await self._directory.put(puts)
        self._fresh -= fresh


def known_links(clusters: Mapping[str, ClusterClient]) -> set[Place]:
    """Those that this gateway has met and that know once-keys."""
    return {
        (cluster.name, link.broker)
        for cluster in clusters.values()
        for link in cluster.links.values()
        if link.capabilities.has_once_keys
    }


def _seen_ms(value: bytes | None) -> int:
    try:
        return msgspec.msgpack.decode(value, type=int) if value else 0
    except msgspec.MsgspecError:
        return 0


def known_stores(members: StoreMembers | None, clusters: Mapping[str, ClusterClient]) -> set[Place]:
    """Those that *members* knows; without a directory: those that this gateway has met."""
    return members.known() if members is not None else known_links(clusters)
