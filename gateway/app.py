"""
The gateway, put together: the only place that knows all its parts, and LOCAL from CLUSTER.

LOCAL builds the store, and without a name server of its own that too, in this process and hands
the cluster client an in-memory transport; everything after that is the same code.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gateway.autotopics import AutoTopics
from gateway.bans import Bans
from gateway.bridges import Bridge, start_bridges
from gateway.brokers import GatewayBrokers
from gateway.checks import has_users, warnings
from gateway.clients import ClientTable
from gateway.clusters.client import ClusterClient
from gateway.clusters.connection import Connect
from gateway.clusters.presence import GatewayPresence
from gateway.clusters.routes import SETTLE_S
from gateway.clusters.watch import ConnectNameServer
from gateway.config import ADMIN_PROTOCOL, ClusterConfig, GatewayConfig, Loaded
from gateway.connectors import apache_link, over_tcp, signer
from gateway.deliveries import Streams
from gateway.directory import DirectoryClient
from gateway.dispatch import Dispatcher
from gateway.draining import Drain
from gateway.explanation import answer
from gateway.guide import guide
from gateway.held import GatewayHeld
from gateway.identity import Identities
from gateway.listeners import Listeners, Section
from gateway.local import LocalParts
from gateway.matching import MatchingTable
from gateway.members import StoreMembers
from gateway.metrics import Registry
from gateway.observing import Observer
from gateway.pipeline import GatewayPipeline
from gateway.plugins import build_adapter, build_adapters, section_of
from gateway.policy import Policy
from gateway.registration import Facts, NameServerDoor, Registration
from gateway.reloading import in_force, refuse_new_clusters, waiting_keys
from gateway.replies import GatewayReplies
from gateway.reporting import count_cluster, count_core, describe, doors
from gateway.services import GatewayServices, Rules
from gateway.topics import GatewayTopics
from gateway.weights import Weights
from protocols.addresses import join_address
from protocols.daemon import lifecycle
from protocols.errors import ConfigError
from protocols.tasks import Tasks, close_all

if TYPE_CHECKING:
    from gateway.admin.server import AdminServer

logger = logging.getLogger("tidegate.gateway")


FIRST_ROUTES_S_MAX: Final = 2 * SETTLE_S
"""How long a start waits for the name servers of any one cluster."""


class Gateway:
    """
    One gateway process.

    Args:
        loaded: the checked configuration.
        read_again: reads it again for a reload. Raises ConfigError.
        local: LOCAL mode's own store and name server.
        shows_guide: the ready line is followed by lines for people to paste.
    """

    def __init__(
        self,
        loaded: Loaded,
        *,
        read_again: Callable[[], Loaded] | None = None,
        local: LocalParts | None = None,
        shows_guide: bool = False,
    ) -> None:
        self.loaded = self._started = loaded
        self.metrics = Registry()
        self.clients = ClientTable()
        self.presence = GatewayPresence(loaded.config.name)
        self.listeners = Listeners(build_adapter)
        self.admin: AdminServer | None = None
        self._read_again = read_again
        self._local = local
        self._shows_guide = shows_guide
        self._tasks = Tasks("gateway")
        self._clusters: dict[str, ClusterClient] = {}
        self._pipeline: GatewayPipeline | None = None
        self._members: StoreMembers | None = None
        self._streams: Streams | None = None
        self._bans: Bans | None = None
        self._weights: Weights | None = None
        self._bridges: list[Bridge] = []
        self._observer = Observer.from_config(loaded.config.limits)
        self._directory: DirectoryClient | None = None
        self._dispatcher: Dispatcher | None = None
        self._held: GatewayHeld | None = None
        self._replies: GatewayReplies | None = None
        self._services: GatewayServices | None = None
        self._admin_address = ""
        self._registration = Registration(self._register_with(), self._describe)
        self.drain = Drain(
            self.clients,
            name=loaded.config.name,
            zone=lambda: self.loaded.config.zone,
            find_others=self._registration.others,
            own=lambda: doors(self.loaded.config, self.addresses()),
            changed=self._registration.tell,
            close=self.listeners.shut,
            reopen=self._serve_again,
        )
        # Refuse what the adapters refuse before anything is opened.
        build_adapters(loaded)
        self._policy = Policy.from_config(loaded.config)
        self._rules = Rules(self._policy, Identities(loaded.config))

    # ── life ────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Open everything, the listeners last. Raises GatewayError or OSError."""
        for line in warnings(self.loaded.config, self.loaded.document):
            logger.warning("%s", line)
        if self._local is not None:
            await self._local.start()
        await self._open_admin()
        services = await self._join()
        await self.listeners.apply(_sections(self.loaded), services)
        assert self._directory is not None
        self._directory.on_ended(self._lease_ended)
        self._directory.on_joined(self._lease_joined)
        self._registration.start()

    async def stop(self) -> None:
        """Listeners first: clients are told and what is in flight is answered."""
        await close_all(self.drain, self._registration, self.listeners, self._tasks, *self._bridges)
        await close_all(
            self._members,
            self._bans,
            self._held,
            self._replies,
            self._dispatcher,
            self._services,
            self._observer,
        )
        await close_all(self._streams, self._pipeline)
        if self._directory is not None:
            await self._directory.leave()
        for cluster in self._clusters.values():
            await cluster.close()
        if self.admin is not None:
            await self.admin.stop()
        await self._rules.identities.close()
        if self._local is not None:
            await self._local.stop()

    async def reload(self) -> None:
        """Rules, users and listeners as the file says now. Raises ConfigError: nothing changed."""
        if self._read_again is None or self._services is None or self._pipeline is None:
            return
        try:
            loaded = self._read_again()
            build_adapters(loaded)
            refuse_new_clusters(self.loaded.config, loaded)
            identities = Identities(loaded.config)
            policy = self._policy_of(loaded.config)
        except ConfigError:
            self.metrics.counter("config_reload_failed", "Reloads refused.").inc()
            raise
        for key in waiting_keys(self._started, loaded, is_local=self._local is not None):
            logger.warning("%s changed: this takes effect at the next start", key)
        self._use(policy)
        old, self._rules.identities = self._rules.identities, identities
        await old.close()
        self.loaded = replace(loaded, config=in_force(self._started.config, loaded.config))
        await self.listeners.apply(_sections(loaded), self._services)
        self.metrics.counter("config_reloads", "Reloads applied.").inc()

    def _policy_of(self, config: GatewayConfig) -> Policy:
        """Raises ConfigError."""
        if self._weights is not None:
            config = self._weights.applied(config)
        return Policy.from_config(config, self._policy)

    def _use(self, policy: Policy) -> None:
        self._policy = self._rules.policy = policy
        if self._pipeline is not None:
            self._pipeline.use(policy)

    def _weights_changed(self) -> None:
        try:
            self._use(self._policy_of(self.loaded.config))
        except ConfigError as error:  # the ACL file has gone bad since
            logger.error("weights are not in force: %s", error)

    def ready_line(self) -> str:
        line = lifecycle.describe("gateway", self.loaded.config.name, **self.addresses())
        if not self._shows_guide:
            return line
        token = self.admin.access.token if self.admin is not None else ""
        return f"{line}\n{guide(self.addresses(), token=token)}"

    def addresses(self) -> dict[str, str]:
        """Listener → ``host:port``; those of the local parts last."""
        found = dict(self.listeners.addresses)
        if self._admin_address:
            found["admin"] = self._admin_address
        order = list(self.loaded.config.listeners)
        found = {name: found[name] for name in order if name in found}
        return {**found, **(self._local.addresses() if self._local else {})}

    # ── inside ──────────────────────────────────────────────────────────────────────────

    async def _join(self) -> GatewayServices:
        """Clusters, pipeline, directory; returns when this gateway has its lease."""
        config = self.loaded.config
        self._clusters = {
            name: self._cluster(name, cluster)
            for name, cluster in config.clusters.items()
            if cluster.type == "rocketmq"
        }
        matching = MatchingTable()
        self._pipeline = GatewayPipeline(
            self._clusters, matching, policy=self._policy, limits=config.limits
        )
        self._directory = DirectoryClient(
            self.presence,
            self._clusters,
            matching,
            self._pipeline,
            cluster=config.directory.cluster,
            store=config.directory.store,
            instance=self._local.instance if self._local is not None else "",
        )
        self._pipeline.learner.auto_topics = AutoTopics(
            self._directory, lambda: self._policy.addressing.auto_topics_max
        )
        self._members = StoreMembers(self._directory, self._clusters)
        self._pipeline.ask(self._members)
        self._weights = Weights(self._directory, self._weights_changed)
        self._streams = Streams(self._clusters, self._pipeline)
        self._bans = Bans(self._directory, self.clients)
        topics = GatewayTopics(self._clusters, self._pipeline)
        self._held = GatewayHeld(self._clusters, config.name)
        self._replies = GatewayReplies(self._clusters, topics, config.name)
        self._services = services = GatewayServices(
            pipeline=self._pipeline,
            streams=self._streams,
            directory=self._directory,
            topics=topics,
            held=self._held,
            replies=self._replies,
            brokers=GatewayBrokers(topics),
            rules=self._rules,
            metrics=self.metrics,
            clients=self.clients,
            bans=self._bans,
            draining=self.drain,
            observer=self._observer,
            limits=config.limits,
            opened=self.listeners.opened,
        )
        for cluster in self._clusters.values():
            cluster.start()
        count_core(self.metrics, self._pipeline, self.presence)
        for name, item in self._clusters.items():
            count_cluster(self.metrics, name, item)
        await self._first_routes()
        await self._directory.start()
        self._dispatcher = Dispatcher(self._clusters, matching, self._pipeline, self.metrics)
        self._dispatcher.start()
        self._held.start()
        self._replies.start()
        self._members.start()
        self._bans.start()
        if self.admin is not None:
            self.admin.client_routes.joined(self._bans, self._observer)
            self.admin.operations.weights = self._weights
        self._bridges = start_bridges(config.clusters, services)
        self._pipeline.decider.bridges = frozenset(bridge.name for bridge in self._bridges)
        return services

    async def _first_routes(self) -> None:
        """
        What the name servers know now, before anything is decided by it. A cluster whose name
        servers are all away is waited for by the directory if it needs it, by nobody else.
        """
        ready = [
            self._tasks.start(cluster.ready(), name=f"routes of {name}")
            for name, cluster in self._clusters.items()
        ]
        _, pending = await asyncio.wait(ready, timeout=FIRST_ROUTES_S_MAX)
        for task in pending:
            task.cancel()

    def _lease_ended(self) -> None:
        """Others have stopped counting on this gateway: no client may be served any more."""
        logger.warning("the lease has ended: closing all clients until joined again")
        self.clients.kick_all()
        self._tasks.start(self.listeners.close(), name="close listeners")

    def _lease_joined(self) -> None:
        self._tasks.start(self._open_again(), name="open listeners")

    async def _serve_again(self) -> None:
        assert self._services is not None
        await self.listeners.unshut(self._services)

    async def _open_again(self) -> None:
        assert self._services is not None
        await self.listeners.close()
        await self.listeners.open(self._services)
        logger.info("joined again as epoch %d", self.presence.epoch)

    def _cluster(self, name: str, config: ClusterConfig) -> ClusterClient:
        local = self._local
        if local is None or not local.is_home_of(
            config, only=len(self.loaded.config.clusters) == 1
        ):
            local = None
        name_servers: list[str | ConnectNameServer] = [*config.namesrv]
        local_stores: dict[str, Connect] = {}
        if local is not None:
            local_stores[local.store_config.name] = local.connect_store
            if local.name_server is not None:
                name_servers = [local.connect_name_server]
        return ClusterClient(
            name,
            self.presence,
            name_servers=name_servers,
            broker_cluster=config.broker_cluster,
            zones=config.zones,
            local_stores=local_stores,
            sign=signer(config.auth or self.loaded.config.cluster_auth),
            make_foreign_link=apache_link,
        )

    async def _open_admin(self) -> None:
        """Health before anything else, so that a start that hangs can be looked at."""
        for name, listener in self.loaded.config.listeners.items():
            if listener.protocol != ADMIN_PROTOCOL or not listener.enabled:
                continue
            from gateway.admin.access import Access
            from gateway.admin.operations import OperationRoutes
            from gateway.admin.server import AdminServer

            access = Access(
                name, self._rules, self._rules, is_open=not has_users(self.loaded.config)
            )
            self.admin = AdminServer(
                gateway=self.loaded.config.name,
                access=access,
                metrics=self.metrics,
                clients=self.clients,
                operations=OperationRoutes(self.drain, lambda: self.loaded.config),
                unready=self._unready,
                listeners=self.addresses,
                explain=lambda request: answer(self.loaded, self._policy, request),
            )
            host, port = await self.admin.start(listener.bind)
            self._admin_address = join_address(host, port)
            self._count()
            return

    def _count(self) -> None:
        self.metrics.gauge("clients", "Open client connections.", lambda: len(self.clients))
        self.metrics.collect_from(self._store_metrics)

    def _store_metrics(self) -> list[tuple[str, str, float]]:
        store = self._local.store if self._local is not None else None
        if store is None:
            return []
        return [
            (f"store_{name}", store.metric_texts[name], value)
            for name, value in store.metrics().items()
        ]

    def _unready(self) -> list[str]:
        """Why ``/readyz`` says no; empty when serving."""
        reasons = [f"listener {name} is closed" for name in self.listeners.closed_names]
        if self.drain.is_on:
            reasons.insert(0, self.drain.stage.value)
        if self.presence.epoch == 0:
            reasons.append("no lease: the directory store is not reached")
        reasons += [
            f"cluster {name}: {cluster.routes.trouble() or 'no store is up'}"
            for name, cluster in self._clusters.items()
            if not cluster.up_links()
        ]
        store = self._local.store if self._local is not None else None
        if store is not None and not store.is_healthy:
            reasons.append("the store cannot write")
        if self._services is None:
            reasons.append("starting")
        return reasons

    def _register_with(self) -> list[NameServerDoor]:
        own = self.loaded.config.cluster_auth
        local = self._local
        if local is not None and local.has_name_server:
            return [NameServerDoor(local.connect_name_server, signer(own))]
        return [
            NameServerDoor(over_tcp(address), signer(cluster.auth or own))
            for cluster in self.loaded.config.clusters.values()
            for address in cluster.namesrv
        ]

    def _describe(self) -> Facts:
        return describe(
            self.loaded.config,
            self.addresses(),
            self._clusters,
            connection_count=len(self.clients),
            message_count=self._pipeline.message_count if self._pipeline is not None else 0,
            is_draining=self.drain.is_on,
        )


def _sections(loaded: Loaded) -> dict[str, Section]:
    return {
        name: section_of(loaded, name)
        for name, listener in loaded.config.listeners.items()
        if listener.enabled and listener.protocol != ADMIN_PROTOCOL
    }
