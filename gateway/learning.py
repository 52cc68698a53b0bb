"""
Batches that wait for the route of their topic: one question for all who wait for the same.

A topic that is not there is made where a route names it, where it is the tenant's catch-all, or
where publishes may make topics and the budget allows it; else it is not looked for for a while.
"""

import logging
from collections.abc import Callable
from typing import Final

from gateway.autotopics import AutoTopics
from gateway.clusters.batches import Batch
from gateway.clusters.client import ClusterClient
from gateway.decisions import Decider, RouteUnknown, catch_all
from protocols import clock
from protocols.errors import GatewayError
from protocols.tasks import Tasks

logger = logging.getLogger("tidegate.pipeline")

MISSING_TOPIC_MS: Final = 1000
"""How long a topic that was not found is not looked for again."""

OVER_BUDGET_MS: Final = 60_000
"""How long a topic that the budget did not allow goes to the catch-all before it is asked again."""

CATCH_ALL_QUEUES: Final = 4


class RouteLearner:
    """*learned* is told all batches that waited for a topic, whatever became of the question."""

    def __init__(self, decider: Decider, learned: Callable[[list[Batch]], None]) -> None:
        self._decider = decider
        self._learned = learned
        self._waiting: dict[tuple[str, str], list[Batch]] = {}
        self._tasks = Tasks("routes")
        self.auto_topics: AutoTopics | None = None
        """Who may say that a publish makes a topic; None: nobody."""

    def wait(self, unknown: RouteUnknown, batch: Batch) -> None:
        """*batch* goes on when the route is known, or known to be missing."""
        key = (unknown.cluster.name, unknown.topic)
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.append(batch)
            return
        self._waiting[key] = [batch]
        self._tasks.start(self._learn(unknown, batch.call.tenant), name=f"route {unknown.topic}")

    @property
    def made_count(self) -> int:
        """Topics that publishes brought into being."""
        return len(self.auto_topics) if self.auto_topics is not None else 0

    async def close(self) -> None:
        await self._tasks.close()

    async def _learn(self, unknown: RouteUnknown, tenant: str) -> None:
        cluster, topic = unknown.cluster, unknown.topic
        try:
            route = await cluster.routes.load(topic)
            if route is None and unknown.is_automatic:
                await self._make_automatic(cluster, topic)
            elif route is None and (unknown.is_named_by_route or topic == catch_all(tenant)):
                await cluster.create_topic(topic, CATCH_ALL_QUEUES)
            elif route is None:
                self._missing(cluster, topic, MISSING_TOPIC_MS)
        except GatewayError as error:
            logger.warning("topic %s: %s", topic, error)
            self._missing(cluster, topic, MISSING_TOPIC_MS)
        self._learned(self._waiting.pop((cluster.name, topic)))

    async def _make_automatic(self, cluster: ClusterClient, topic: str) -> None:
        """A publish wants a topic of its own: make it, or leave it to the catch-all for a while."""
        budget = self.auto_topics
        if budget is not None and await budget.allow(cluster.name, topic):
            await cluster.create_topic(topic, CATCH_ALL_QUEUES)
        else:
            self._missing(cluster, topic, OVER_BUDGET_MS)

    def _missing(self, cluster: ClusterClient, topic: str, for_ms: int) -> None:
        self._decider.missing(cluster.name, topic, clock.wall_ms() + for_ms)
