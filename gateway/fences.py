"""
Fencing: a gateway whose lease has ended may wake up and send by an old table.

Every store that can be reached is told to refuse that epoch, before anyone relies on the ended
gateway having seen a change (semantics page, Fencing).
"""

import asyncio
import logging
from collections.abc import Mapping

from gateway.clusters.client import ClusterClient
from gateway.clusters.presence import GatewayPresence
from protocols.tasks import Tasks

logger = logging.getLogger("tidegate.directory")


class Fences:
    """The fences this gateway is putting up."""

    def __init__(
        self, presence: GatewayPresence, clusters: Mapping[str, ClusterClient], tasks: Tasks
    ) -> None:
        self._presence = presence
        self._clusters = clusters
        self._tasks = tasks
        self._running: dict[tuple[str, int], asyncio.Task[None]] = {}

    def fence(self, gateway: str, epoch: int) -> None:
        """Begin to tell all stores; our own present epoch is never fenced."""
        key = (gateway, epoch)
        if key in self._running or key == (self._presence.name, self._presence.epoch):
            return
        task = self._tasks.start(self._fence_everywhere(gateway, epoch), name=f"fence {gateway}")
        self._running[key] = task
        task.add_done_callback(lambda _: self._running.pop(key, None))

    async def done(self) -> None:
        """Return when all stores have answered for the fences begun so far."""
        if self._running:
            await asyncio.wait(list(self._running.values()))

    async def _fence_everywhere(self, gateway: str, epoch: int) -> None:
        """At every store that can be reached; the others judge its presence by themselves."""
        links = [link for client in self._clusters.values() for link in client.up_links()]
        results = await asyncio.gather(
            *(link.fence(gateway, epoch) for link in links), return_exceptions=True
        )
        for link, result in zip(links, results, strict=True):
            if isinstance(result, BaseException):
                logger.warning("could not fence %s at %s: %s", gateway, link.broker, result)
