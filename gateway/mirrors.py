"""
Mirrors: copies of a share of the messages for other clusters.

Never awaited and never in the way of the sender: what a mirror is too slow for is dropped and
counted. A copy says which route made it (``TG_MIRROR_OF``) and is never mirrored again.
"""

import logging
import random
from collections.abc import Callable, Mapping
from typing import Final

from gateway.clusters.batches import Batch
from gateway.clusters.client import ClusterClient
from gateway.decided import Decision
from gateway.decisions import Decider, RouteUnknown
from gateway.mapping import MIRROR_OF
from gateway.routing import Mirror
from protocols import clock
from protocols.canonical import INTERNAL
from protocols.errors import GatewayError
from protocols.tasks import Tasks

logger = logging.getLogger("tidegate.mirrors")

TOPIC_QUEUES: Final = 4
"""Message queues of a topic that a mirror's cluster lacks."""

Submit = Callable[[Batch, int, int, Decision], None]


class Mirrors:
    """Copies what ``Decision.mirrors`` says."""

    def __init__(
        self, clusters: Mapping[str, ClusterClient], decider: Decider, submit: Submit
    ) -> None:
        self._clusters = clusters
        self._decider = decider
        self._submit = submit
        self._tasks = Tasks("mirrors")
        self._loading: set[tuple[str, str]] = set()
        self.copied_count = 0
        """Messages handed to mirrors."""

        self.dropped_count = 0
        """Messages that a mirror was too slow for, or had no topic for yet."""

    async def close(self) -> None:
        await self._tasks.close()

    def copy(self, batch: Batch, start: int, stop: int, decision: Decision) -> None:
        """Messages of one head that were just handed to their own cluster."""
        head = batch.messages[start].head
        if batch.call.protocol == INTERNAL and any(
            [name == MIRROR_OF for name, _ in head.properties]
        ):
            return  # a copy that came back
        for mirror in decision.mirrors:
            cluster = self._clusters.get(mirror.cluster)
            chosen = _share(start, stop, mirror.percent)
            if not chosen or cluster is None:
                continue
            if any(link.is_congested for link in cluster.links.values()):
                self.dropped_count += len(chosen)
                continue
            self._copy(batch, chosen, mirror)

    def _copy(self, batch: Batch, chosen: list[int], mirror: Mirror) -> None:
        messages = batch.messages
        head = messages[chosen[0]].head
        try:
            copied = self._decider.mirrored(batch.call, head, mirror, now_ms=clock.wall_ms())
        except RouteUnknown as unknown:
            self.dropped_count += len(chosen)
            self._load(unknown)
            return
        self.copied_count += len(chosen)
        copies = Batch(
            batch.call,
            [messages[index] for index in chosen],
            [batch.ids[index] for index in chosen],
            lambda results: None,
            sequence=batch.sequence,
            size_bytes=sum([len(messages[index].body) for index in chosen]),
        )
        self._submit(copies, 0, len(chosen), copied)

    def _load(self, unknown: RouteUnknown) -> None:
        key = (unknown.cluster.name, unknown.topic)
        if key not in self._loading:
            self._loading.add(key)
            self._tasks.start(self._learn(unknown, key), name=f"mirror {unknown.topic}")

    async def _learn(self, unknown: RouteUnknown, key: tuple[str, str]) -> None:
        """
        The messages that met an unknown route are not mirrored; the next ones are. A topic that
        its own cluster has is made in the mirror's.
        """
        try:
            if await unknown.cluster.routes.load(unknown.topic) is None:
                await unknown.cluster.create_topic(unknown.topic, TOPIC_QUEUES)
        except GatewayError as error:
            logger.warning("mirror topic %s: %s", unknown.topic, error)
        finally:
            self._loading.discard(key)


def _share(start: int, stop: int, percent: float) -> list[int]:
    if percent >= 100:
        return list(range(start, stop))
    return [index for index in range(start, stop) if random.random() * 100 < percent]
