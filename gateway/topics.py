"""Topics and their message queues, from the route caches; reads by offset."""

import logging
from collections.abc import Mapping
from typing import Final

from gateway.clusters.client import ClusterClient, RunningLink
from gateway.clusters.routes import TopicRoute
from gateway.clusters.standard import ask_topic
from gateway.decisions import Decider
from gateway.group_policies import GroupPolicies
from gateway.mapping import is_system_topic
from gateway.pipeline import GatewayPipeline
from gateway.rules import Facts
from protocols import clock
from protocols.canonical import StoredMessage
from protocols.errors import Code, GatewayError, Refused
from protocols.pipeline import GroupPolicy, TopicInfo
from protocols.remoting.bodies import TopicConfig, decode_body
from protocols.remoting.codes import Permission, ResponseCode
from protocols.remoting.inner_batches import takes_batches

logger = logging.getLogger("tidegate.topics")

MESSAGE_TYPE: Final = "message.type"
TYPE_S: Final = 5.0
"""How long a topic's type is taken for granted."""

TYPES_MAX: Final = 20_000

TopicType = tuple[str, bool]
"""(attribute ``message.type``, whether it keeps batches together)."""

UNTYPED: Final[TopicType] = ("", False)


class GatewayTopics:
    """Implements ``protocols.pipeline.Topics``."""

    def __init__(self, clusters: Mapping[str, ClusterClient], pipeline: GatewayPipeline) -> None:
        self._clusters = clusters
        self._decider: Decider = pipeline.decider
        self._groups = GroupPolicies()
        self._types: dict[tuple[str, str], tuple[TopicType, float]] = {}
        """(cluster, topic) → its type, and until when that holds."""

    async def find(self, topic: str, *, with_type: bool = True) -> TopicInfo | None:
        for cluster in self._homes(topic):
            route = await cluster.routes.load(topic)
            if route is not None:
                kind = await self._type_of(cluster, route) if with_type else UNTYPED
                return _info(cluster, route, kind)
        return None

    async def _type_of(self, cluster: ClusterClient, route: TopicRoute) -> TopicType:
        """As a store has it; the last known if none can be asked."""
        key, now = (cluster.name, route.topic), clock.monotonic()
        known, until = self._types.get(key, (UNTYPED, 0.0))
        if now < until:
            return known
        brokers = {broker for broker, *_ in route.queues}
        for link in cluster.up_links():
            if link.broker not in brokers:
                continue
            try:
                answer = await link.ask(ask_topic(route.topic))
                if answer.code == ResponseCode.SUCCESS:
                    attributes = decode_body(TopicConfig, answer.body).attributes
                    known = (attributes.get(MESSAGE_TYPE, ""), takes_batches(attributes))
                    break
            except GatewayError as error:
                logger.info("type of topic %s: %s", route.topic, error)
        if len(self._types) >= TYPES_MAX:
            self._types.clear()
        self._types[key] = (known, now + TYPE_S)
        return known

    async def create(self, topic: str, *, queue_count: int = 4) -> TopicInfo:
        if is_system_topic(topic) and not topic.startswith("%"):
            raise Refused(Code.ILLEGAL_TOPIC, topic, "this topic belongs to the brokers")
        cluster = self._homes(topic)[0]
        return _info(cluster, await cluster.create_topic(topic, queue_count), UNTYPED)

    def names(self) -> list[str]:
        return sorted(
            {
                topic
                for cluster in self._clusters.values()
                for topic in cluster.routes.topics
                if not is_system_topic(topic)
                and topic not in cluster.links
                and topic != cluster.routes.broker_cluster
            }
        )

    async def group(self, group: str, topic: str) -> GroupPolicy | None:
        return await self._groups.find(self.home(topic), group)

    async def read(
        self, topic: str, broker: str, queue_id: int, offset: int, count: int, wait_ms: int
    ) -> tuple[list[StoredMessage], int, int]:
        link = self.link(topic, broker)
        return await link.read(topic, queue_id, offset, count, wait_ms)

    async def offset(self, topic: str, broker: str, queue_id: int, *, at_ms: int) -> int:
        return await self.link(topic, broker).offset(topic, queue_id, at_ms)

    def home(self, topic: str) -> ClusterClient:
        """The first cluster that the routes name for a topic."""
        return self._homes(topic)[0]

    def brokers(self, topic: str) -> list[str]:
        """Those that are up."""
        names = [link.broker for cluster in self._homes(topic) for link in cluster.up_links()]
        return sorted(set(names))

    def _homes(self, topic: str) -> list[ClusterClient]:
        """The clusters that the routes name for a topic, then the default."""
        facts = Facts(operation="consume", subject=topic, topic=topic)
        targets = self._decider.policy.routes.consume_targets(facts)
        names = [*(target.cluster for target in targets), self._decider.default_cluster]
        return [self._clusters[name] for name in dict.fromkeys(names) if name in self._clusters]

    def link(self, topic: str, broker: str) -> RunningLink:
        """Where *broker* keeps the topic; its name may be ``<cluster>.<broker>``."""
        for cluster in self._homes(topic):
            for name in (broker, broker.removeprefix(cluster.name + ".")):
                if name in cluster.links:
                    return cluster.link(name)
        raise Refused(Code.NOT_FOUND, broker, "no such store")


def _info(cluster: ClusterClient, route: TopicRoute, kind: TopicType) -> TopicInfo:
    queues = tuple(
        (broker, queue_id, _permission(perm, queue_id, readable, writable))
        for broker, readable, writable, perm in route.queues
        for queue_id in range(max(readable, writable))
    )
    return TopicInfo(route.topic, cluster.name, queues, *kind)


def _permission(perm: int, queue_id: int, readable: int, writable: int) -> int:
    """Of one queue: a topic that shrinks has queues that are read only."""
    if queue_id >= readable:
        perm &= ~Permission.READ
    return perm & ~Permission.WRITE if queue_id >= writable else perm
