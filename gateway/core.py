"""
The parts behind the listeners, put together: clusters, pipeline, directory and what stands on them.

Built before anything runs, so that none of them is ever missing; started in the order in which
they need each other, closed the other way round.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from gateway.autotopics import AutoTopics
from gateway.bans import Bans
from gateway.bridges import Bridge, start_bridges
from gateway.brokers import GatewayBrokers
from gateway.clients import ClientTable
from gateway.clusters.client import ClusterClient
from gateway.clusters.connection import Connect
from gateway.clusters.presence import GatewayPresence
from gateway.clusters.routes import SETTLE_S
from gateway.clusters.watch import ConnectNameServer
from gateway.config import ClusterConfig, GatewayConfig
from gateway.connectors import apache_link, signer
from gateway.deliveries import Streams
from gateway.directory import DirectoryClient
from gateway.dispatch import Dispatcher
from gateway.held import GatewayHeld
from gateway.local import LocalParts
from gateway.matching import MatchingTable
from gateway.members import StoreMembers
from gateway.metrics import Registry
from gateway.observing import Observer
from gateway.pipeline import GatewayPipeline
from gateway.replies import GatewayReplies
from gateway.reporting import count_cluster, count_core
from gateway.services import GatewayServices, Rules
from gateway.topics import GatewayTopics
from gateway.weights import Weights
from protocols.observing import Draining
from protocols.tasks import Tasks, close_all

FIRST_ROUTES_S_MAX: Final = 2 * SETTLE_S
"""How long a start waits for the name servers of any one cluster."""


class Core:
    """
    What a gateway is without its listeners.

    Args:
        config: as it was at the start; of what a reload may change it has ``rules``.
        rules: the rules in force.
        weights_changed: called when the directory brought other weights of routes.
        local: LOCAL mode's own store and name server.
    """

    def __init__(
        self,
        config: GatewayConfig,
        rules: Rules,
        *,
        metrics: Registry,
        clients: ClientTable,
        weights_changed: Callable[[], None],
        local: LocalParts | None = None,
    ) -> None:
        self._config = config
        self._rules = rules
        self._metrics = metrics
        self._clients = clients
        self.presence = presence = GatewayPresence(config.name)
        self.clusters = clusters = cluster_clients(config, presence, local)
        matching = MatchingTable()
        self.pipeline = GatewayPipeline(
            clusters, matching, policy=rules.policy, limits=config.limits
        )
        self.directory = DirectoryClient(
            presence,
            clusters,
            matching,
            self.pipeline,
            cluster=config.directory.cluster,
            store=config.directory.store,
            instance=local.instance if local is not None else "",
        )
        self.pipeline.learner.auto_topics = AutoTopics(
            self.directory, lambda: rules.policy.addressing.auto_topics_max
        )
        self.directory.on_ended(self.pipeline.withdrawals.lease_ended)
        self.directory.on_joined(self.pipeline.withdrawals.lease_joined)
        self.members = StoreMembers(self.directory, clusters)
        self.pipeline.ask(self.members)
        self.weights = Weights(self.directory, weights_changed)
        self.streams = Streams(clusters, self.pipeline)
        self.bans = Bans(self.directory, clients)
        self.topics = GatewayTopics(clusters, self.pipeline)
        self.held = GatewayHeld(clusters, config.name)
        self.replies = GatewayReplies(clusters, self.topics, config.name)
        self.dispatcher = Dispatcher(clusters, matching, self.pipeline, metrics)
        self.observer = Observer.from_config(config.limits)
        self.bridges: list[Bridge] = []
        self._tasks = Tasks("core")
        count_core(metrics, self.pipeline, presence)
        for name, cluster in clusters.items():
            count_cluster(metrics, name, cluster)

    def services(
        self, *, draining: Draining, opened: Callable[[str, str, int], None]
    ) -> GatewayServices:
        """What adapters are handed."""
        return GatewayServices(
            pipeline=self.pipeline,
            streams=self.streams,
            directory=self.directory,
            topics=self.topics,
            held=self.held,
            replies=self.replies,
            brokers=GatewayBrokers(self.topics),
            rules=self._rules,
            metrics=self._metrics,
            clients=self._clients,
            bans=self.bans,
            draining=draining,
            observer=self.observer,
            limits=self._config.limits,
            opened=opened,
        )

    async def start(self, services: GatewayServices) -> None:
        """
        Return when this gateway has its lease.

        Raises Refused (no directory store, name taken) and ConfigError (a bridge's extra).
        """
        for cluster in self.clusters.values():
            cluster.start()
        await self._first_routes()
        await self.directory.start()
        self.dispatcher.start()
        self.held.start()
        self.replies.start()
        self.members.start()
        self.bans.start()
        self.bridges = start_bridges(self._config.clusters, services)
        self.pipeline.decider.bridges = frozenset(bridge.name for bridge in self.bridges)

    async def close(self) -> None:
        """Of parts that were not started as well."""
        await close_all(self._tasks, *self.bridges)
        await close_all(
            self.members, self.bans, self.held, self.replies, self.dispatcher, self.observer
        )
        await close_all(self.streams, self.pipeline)
        await self.directory.leave()
        await close_all(*self.clusters.values())

    async def _first_routes(self) -> None:
        """
        What the name servers know now, before anything is decided by it. A cluster whose name
        servers are all away is waited for by the directory if it needs it, by nobody else.
        """
        ready = [
            self._tasks.start(cluster.ready(), name=f"routes of {name}")
            for name, cluster in self.clusters.items()
        ]
        _, pending = await asyncio.wait(ready, timeout=FIRST_ROUTES_S_MAX)
        for task in pending:
            task.cancel()


def cluster_clients(
    config: GatewayConfig, presence: GatewayPresence, local: LocalParts | None
) -> dict[str, ClusterClient]:
    """One for each entry of ``clusters`` that is not a bridge."""
    is_only = len(config.clusters) == 1
    found: dict[str, ClusterClient] = {}
    for name, cluster in config.clusters.items():
        if cluster.type != "rocketmq":
            continue
        home = local if local is not None and local.is_home_of(cluster, only=is_only) else None
        found[name] = ClusterClient(
            name,
            presence,
            name_servers=_name_servers(cluster, home),
            broker_cluster=cluster.broker_cluster,
            zones=cluster.zones,
            local_stores=_local_stores(home),
            sign=signer(cluster.auth or config.cluster_auth),
            make_foreign_link=apache_link,
        )
    return found


def _name_servers(cluster: ClusterConfig, home: LocalParts | None) -> list[str | ConnectNameServer]:
    if home is not None and home.has_name_server:
        return [home.connect_name_server]
    return [*cluster.namesrv]


def _local_stores(home: LocalParts | None) -> Mapping[str, Connect]:
    return {home.store_config.name: home.connect_store} if home is not None else {}
