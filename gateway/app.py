"""
The life of a gateway process: admin, LOCAL mode's own parts, the core, listeners; reload and drain.

LOCAL builds the store, and without a name server of its own that too, in this process; the core's
cluster client gets an in-memory transport to them, and everything after that is the same code.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from gateway.admin.access import Access
from gateway.admin.door import AdminDoor
from gateway.checks import has_users, warnings
from gateway.clients import ClientTable
from gateway.config import ADMIN_PROTOCOL, GatewayConfig, Loaded
from gateway.connectors import over_tcp, signer
from gateway.core import Core
from gateway.draining import Drain
from gateway.explanation import answer
from gateway.guide import guide
from gateway.identity import Identities
from gateway.listeners import CannotListen, Listeners, Section
from gateway.local import LocalParts
from gateway.metrics import Registry
from gateway.plugins import build_adapter, build_adapters, section_of
from gateway.policy import Policy
from gateway.registration import Facts, NameServerDoor, Registration
from gateway.reloading import (
    in_force,
    refuse_new_clusters,
    refuse_unreadable_tls,
    waiting_keys,
)
from gateway.reporting import describe, doors
from gateway.services import Rules
from protocols.addresses import join_address
from protocols.daemon import lifecycle
from protocols.errors import ConfigError
from protocols.tasks import Tasks, close_all

if TYPE_CHECKING:
    from gateway.admin.server import AdminServer

logger = logging.getLogger("tidegate.gateway")


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
        self.listeners = Listeners(build_adapter)
        self.admin: AdminDoor | None = None
        self._read_again = read_again
        self._local = local
        self._shows_guide = shows_guide
        self._has_joined = False
        self._admin_address = ""
        self._tasks = Tasks("gateway")
        # Refuse what the adapters refuse before anything is opened.
        build_adapters(loaded)
        self._rules = Rules(Policy.from_config(loaded.config), Identities(loaded.config))
        self._core = Core(
            loaded.config,
            self._rules,
            metrics=self.metrics,
            clients=self.clients,
            weights_changed=self._weights_changed,
            local=local,
        )
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
        self._services = self._core.services(draining=self.drain, opened=self.listeners.opened)

    # ── life ────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Open everything, the listeners last. Raises GatewayError or OSError."""
        for line in warnings(self.loaded.config, self.loaded.document):
            logger.warning("%s", line)
        if self._local is not None:
            await self._local.start()
        await self._open_admin()
        await self._core.start(self._services)
        self._has_joined = True
        await self.listeners.apply(_sections(self.loaded), self._services)
        self._core.directory.on_ended(self._lease_ended)
        self._core.directory.on_joined(self._lease_joined)
        self._registration.start()

    async def stop(self) -> None:
        """
        Listeners first: clients are told and what is in flight is answered. None is opened again,
        though the lease may end and be given anew meanwhile.
        """
        await close_all(self.drain, self._registration)
        await self.listeners.shut()
        await self._tasks.close()
        await close_all(self._services, self._core)
        if self.admin is not None:
            await self.admin.stop()
        await self._rules.identities.close()
        if self._local is not None:
            await self._local.stop()

    async def reload(self) -> None:
        """Rules, users and listeners as the file says now. Raises ConfigError: nothing changed."""
        if self._read_again is None:
            return
        try:
            loaded = self._read_again()
            build_adapters(loaded)
            refuse_new_clusters(self.loaded.config, loaded)
            refuse_unreadable_tls(self.loaded.config, loaded)
            policy = self._policy_of(loaded.config)
            await self._replace(loaded, policy, Identities(loaded.config))
        except ConfigError:
            self.metrics.counter("config_reload_failed", "Reloads refused.").inc()
            raise
        waiting = waiting_keys(self._started, loaded, is_local=self._local is not None)
        if waiting:
            keys = ", ".join(waiting)
            logger.warning("%s changed: this takes effect at the next start", keys)
        self.metrics.counter("config_reloads", "Reloads applied.").inc()

    async def _replace(self, loaded: Loaded, policy: Policy, identities: Identities) -> None:
        """Rules before listeners: no door opens to who may no more. Raises ConfigError."""
        before = self.loaded, self._rules.policy, self._rules.identities
        self._put_in_force(
            replace(loaded, config=in_force(self._started.config, loaded.config)),
            policy,
            identities,
        )
        try:
            await self.listeners.apply(_sections(self.loaded), self._services)
        except CannotListen as error:
            self._put_in_force(*before)
            await identities.close()
            try:
                await self.listeners.apply(_sections(self.loaded), self._services)
            except CannotListen as again:
                raise ConfigError([f"{error}; nor as before: {again}"]) from again
            raise ConfigError([str(error)]) from error
        await before[2].close()

    def _put_in_force(self, loaded: Loaded, policy: Policy, identities: Identities) -> None:
        self.loaded = loaded
        self._use(policy)
        self._rules.identities = identities

    def _policy_of(self, config: GatewayConfig) -> Policy:
        """Raises ConfigError."""
        return Policy.from_config(self._core.weights.applied(config), self._rules.policy)

    def _use(self, policy: Policy) -> None:
        self._rules.policy = policy
        self._core.pipeline.use(policy)

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

    def _lease_ended(self) -> None:
        """Others have stopped counting on this gateway: no client may be served any more."""
        logger.warning("the lease has ended: closing all clients until joined again")
        self.clients.kick_all()
        self._tasks.start(self.listeners.close(), name="close listeners")

    def _lease_joined(self) -> None:
        self._tasks.start(self._open_again(), name="open listeners")

    async def _serve_again(self) -> None:
        await self.listeners.unshut(self._services)

    async def _open_again(self) -> None:
        presence = self._core.presence
        epoch = presence.epoch
        await self.listeners.open_again(self._services, lambda: presence.epoch == epoch)
        logger.info("joined again as epoch %d", epoch)

    async def _open_admin(self) -> None:
        """Health before anything else, so that a start that hangs can be looked at."""
        for name, listener in self.loaded.config.listeners.items():
            if listener.protocol != ADMIN_PROTOCOL or not listener.enabled:
                continue
            access = Access(
                name, self._rules, self._rules, is_open=lambda: not has_users(self.loaded.config)
            )
            self.admin = AdminDoor(access, partial(self._build_admin, access))
            host, port = await self.admin.start(listener.bind)
            self._admin_address = join_address(host, port)
            self._count()
            return

    def _build_admin(self, access: Access) -> "AdminServer":
        """For its first caller; only now is aiohttp imported."""
        from gateway.admin.clients import ClientRoutes
        from gateway.admin.operations import OperationRoutes
        from gateway.admin.server import AdminServer

        return AdminServer(
            gateway=self.loaded.config.name,
            access=access,
            metrics=self.metrics,
            clients=self.clients,
            client_routes=ClientRoutes(self.clients, self._core.bans, self._core.observer),
            operations=OperationRoutes(
                self.drain, self._core.weights, self._core.members, lambda: self.loaded.config
            ),
            unready=self._unready,
            listeners=self.addresses,
            explain=lambda request: answer(self.loaded, self._rules.policy, request),
        )

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
        if self._core.presence.epoch == 0:
            reasons.append("no lease: the directory store is not reached")
        reasons += [
            f"cluster {name}: {cluster.routes.trouble() or 'no store is up'}"
            for name, cluster in self._core.clusters.items()
            if not cluster.up_links()
        ]
        store = self._local.store if self._local is not None else None
        if store is not None and not store.is_healthy:
            reasons.append("the store cannot write")
        if not self._has_joined:
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
            self._core.clusters,
            connection_count=len(self.clients),
            message_count=self._core.pipeline.message_count,
            is_draining=self.drain.is_on,
        )


def _sections(loaded: Loaded) -> dict[str, Section]:
    return {
        name: section_of(loaded, name)
        for name, listener in loaded.config.listeners.items()
        if listener.enabled and listener.protocol != ADMIN_PROTOCOL
    }
