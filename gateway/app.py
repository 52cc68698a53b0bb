"""
The gateway, put together: the only place that knows all its parts, and LOCAL from CLUSTER.

LOCAL builds the store, and without a name server of its own that too, in this process and hands
the cluster client an in-memory transport; everything after that is the same code.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, create_model

from gateway.autotopics import AutoTopics
from gateway.bans import Bans
from gateway.bridges import Bridge, start_bridges
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
from gateway.explanation import answer
from gateway.guide import guide
from gateway.held import GatewayHeld
from gateway.identity import Identities
from gateway.listeners import Listeners, Section
from gateway.matching import MatchingTable
from gateway.metrics import Registry
from gateway.observing import Observer
from gateway.pipeline import GatewayPipeline
from gateway.plugins import build_adapter, build_adapters, section_of
from gateway.policy import Policy
from gateway.registration import Facts, Registration
from gateway.replies import GatewayReplies
from gateway.reporting import count_cluster, count_core, describe
from gateway.services import GatewayServices, Rules
from gateway.topics import GatewayTopics
from protocols.daemon import lifecycle
from protocols.daemon.config import ClusterAuth, section
from protocols.errors import ConfigError
from protocols.remoting.client import RemotingClient, local_pair
from protocols.remoting.peer import Receive
from protocols.tasks import Tasks, close_all

if TYPE_CHECKING:
    from gateway.admin.server import AdminServer
    from namesrv.app import NameServer
    from namesrv.config import NamesrvConfig
    from store.app import Store
    from store.config import StoreConfig

logger = logging.getLogger("tidegate.gateway")


FIRST_ROUTES_S_MAX: Final = 2 * SETTLE_S
"""How long a start waits for the name servers of any one cluster."""


class LocalParts:
    """
    The store, and the name server unless there is one elsewhere, in this process.

    Args:
        store: its checked block.
        namesrv: None: the store registers with the name servers its block names.
    """

    def __init__(
        self,
        store: "StoreConfig",
        namesrv: "NamesrvConfig | None",
        *,
        auth: ClusterAuth | None = None,
    ) -> None:
        self.store_config = store
        self.namesrv_config = namesrv
        self.store: Store | None = None
        self.name_server: NameServer | None = None
        self._auth = auth

    @property
    def instance(self) -> str:
        """
        Who this process is to the directory. Only one process can hold the data folder, so one
        that comes back after a crash need not wait for the end of its own old lease.
        """
        return f"local:{socket.gethostname()}:{self.store_config.data.absolute()}"

    async def start(self) -> None:
        """Name server first, then the store, registered with it."""
        from store.app import Store

        config = self.store_config
        if self.namesrv_config is not None:
            from namesrv.app import NameServer

            self.name_server = NameServer(self.namesrv_config, auth=self._auth)
            await self.name_server.start()
            config = config.model_copy(
                update={"namesrv": (*config.namesrv, self.name_server.address)}
            )
        self.store = Store(config, auth=self._auth)
        await self.store.start()

    async def stop(self) -> None:
        if self.store is not None:
            await self.store.stop()
        if self.name_server is not None:
            await self.name_server.stop()

    async def connect_store(self, push: Receive) -> RemotingClient:
        """The in-memory transport to the store."""
        assert self.store is not None, "not started"
        return local_pair(self.store.local_handler(), push=push)

    async def connect_name_server(self) -> RemotingClient:
        """The in-memory transport to the name server."""
        assert self.name_server is not None, "not started"
        assert self.name_server.handler is not None, "not started"
        return local_pair(self.name_server.handler)

    def addresses(self) -> dict[str, str]:
        """What the ready line says of them."""
        found: dict[str, str] = {}
        if self.name_server is not None:
            found["namesrv"] = self.name_server.address
        if self.store is not None:
            found["store"] = self.store.bound_address
        return found

    def is_home_of(self, cluster: ClusterConfig, *, only: bool) -> bool:
        """Whether the local store belongs to this cluster entry."""
        if cluster.type != "rocketmq":
            return False
        return only or cluster.broker_cluster == self.store_config.cluster


def local_parts(loaded: Loaded, *, namesrv: tuple[str, ...], data: Path) -> LocalParts:
    """
    The blocks ``store`` and ``namesrv`` of the same file, checked; data in folders under *data*.

    A process that runs its own name server has the directory store, unless the file says not.
    Raises ConfigError.
    """
    from namesrv.config import NamesrvConfig
    from store.config import StoreConfig

    document = loaded.document
    store = section(document, "store", StoreConfig)
    given = document.value.get("store") or {}
    changes: dict[str, object] = {}
    if not store.zone:
        changes["zone"] = loaded.config.zone
    if "data" not in given:
        changes["data"] = data / "store"
    if "directory" not in given and not namesrv:
        changes["directory"] = True
    if namesrv and not store.namesrv:
        changes["namesrv"] = namesrv
    store = store.model_copy(update=changes)
    own: NamesrvConfig | None = None
    if not namesrv:
        own = section(document, "namesrv", NamesrvConfig)
        if "data" not in (document.value.get("namesrv") or {}):
            own = own.model_copy(update={"data": data / "namesrv"})
    return LocalParts(store, own, auth=loaded.config.cluster_auth)


def other_models() -> dict[str, type[BaseModel]]:
    """The blocks that the other daemons check, for schema and manual."""
    from namesrv.config import NamesrvConfig
    from store.config import StoreConfig

    return {"store": StoreConfig, "namesrv": NamesrvConfig}


def full_schema() -> dict[str, Any]:
    """JSON Schema of the whole file, the other daemons' blocks included."""
    blocks: dict[str, Any] = {name: (model, model()) for name, model in other_models().items()}
    blocks["spark"] = (dict[str, Any], {})
    whole = create_model("Tidegate", __base__=GatewayConfig, **blocks)
    schema = whole.model_json_schema()
    # What the file may leave out of a listener is filled in by its name.
    listener = schema["$defs"]["ListenerConfig"]
    listener["required"] = []
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


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
        self.loaded = loaded
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
        self._streams: Streams | None = None
        self._bans: Bans | None = None
        self._bridges: list[Bridge] = []
        self._observer = Observer.from_config(loaded.config.limits)
        self._directory: DirectoryClient | None = None
        self._dispatcher: Dispatcher | None = None
        self._held: GatewayHeld | None = None
        self._replies: GatewayReplies | None = None
        self._services: GatewayServices | None = None
        self._admin_address = ""
        self._registration: Registration | None = None
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
        self._registration = Registration(self._register_with(), self._describe)
        self._registration.start()

    async def stop(self) -> None:
        """Listeners first: clients are told and what is in flight is answered."""
        await close_all(self._registration, self.listeners, self._tasks, *self._bridges)
        await close_all(
            self._bans, self._held, self._replies, self._dispatcher, self._services, self._observer
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
            identities = Identities(loaded.config)
            policy = Policy.from_config(loaded.config, self._policy)
        except ConfigError:
            self.metrics.counter("config_reload_failed", "Reloads refused.").inc()
            raise
        if loaded.config.clusters != self.loaded.config.clusters:
            logger.warning("clusters changed: this takes effect at the next start")
        self._policy = policy
        old, self._rules.identities = self._rules.identities, identities
        await old.close()
        self._rules.policy = self._policy
        self._pipeline.use(self._policy)
        self.loaded = loaded
        await self.listeners.apply(_sections(loaded), self._services)
        self.metrics.counter("config_reloads", "Reloads applied.").inc()

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
        self._pipeline = GatewayPipeline(self._clusters, matching, policy=self._policy)
        self._directory = DirectoryClient(
            self.presence,
            self._clusters,
            matching,
            self._pipeline,
            cluster=config.directory.cluster,
            store=config.directory.store,
            instance=self._local.instance if self._local is not None else "",
        )
        self._pipeline.auto_topics = AutoTopics(
            self._directory, lambda: self._policy.addressing.auto_topics_max
        )
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
            rules=self._rules,
            metrics=self.metrics,
            clients=self.clients,
            bans=self._bans,
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
        self._bans.start()
        if self.admin is not None:
            self.admin.client_routes.joined(self._bans, self._observer)
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
            from gateway.admin.server import AdminServer

            access = Access(
                name, self._rules, self._rules, is_open=not has_users(self.loaded.config)
            )
            self.admin = AdminServer(
                gateway=self.loaded.config.name,
                access=access,
                metrics=self.metrics,
                clients=self.clients,
                unready=self._unready,
                listeners=self.addresses,
                explain=lambda request: answer(self.loaded, self._policy, request),
            )
            host, port = await self.admin.start(listener.bind)
            self._admin_address = f"{host}:{port}"
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
            (f"store_{name}", "Of the store.", value) for name, value in store.metrics().items()
        ]

    def _unready(self) -> list[str]:
        """Why ``/readyz`` says no; empty when serving."""
        reasons = [f"listener {name} is closed" for name in self.listeners.closed_names]
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

    def _register_with(self) -> list[ConnectNameServer]:
        local = self._local
        if local is not None and local.name_server is not None:
            return [local.connect_name_server]
        return [
            over_tcp(address)
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
        )


def _sections(loaded: Loaded) -> dict[str, Section]:
    return {
        name: section_of(loaded, name)
        for name, listener in loaded.config.listeners.items()
        if listener.enabled and listener.protocol != ADMIN_PROTOCOL
    }
