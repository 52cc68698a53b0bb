"""A name server: its parts put together, started and stopped."""

import logging
from typing import TYPE_CHECKING

from namesrv.config import NamesrvConfig
from namesrv.files import check_writable
from namesrv.kvconfig import KvTable
from namesrv.members import MemberFile
from namesrv.metrics import Metrics
from namesrv.registry import Registry
from namesrv.server import NameServerHandler
from protocols import clock
from protocols.addresses import is_loopback
from protocols.daemon.config import ClusterAuth
from protocols.errors import ConfigError
from protocols.remoting.server import RemotingServer, serve_remoting

if TYPE_CHECKING:
    from protocols.daemon.pages import HttpPages

logger = logging.getLogger("tidegate.namesrv")


class NameServer:
    """One name server of this process; several of a cluster know nothing of one another."""

    def __init__(self, config: NamesrvConfig, *, auth: ClusterAuth | None = None) -> None:
        if auth is None and not is_loopback(config.bind):
            raise ConfigError(
                [f"namesrv.bind: {config.bind} is not loopback and there is no cluster_auth"]
            )
        self._config = config
        self._credentials = None if auth is None else (auth.access_key, auth.read_secret().decode())
        self._server: RemotingServer | None = None
        self._kv = KvTable(config.data)
        self._members = MemberFile(config.data)
        self.metrics = Metrics()
        self._http: HttpPages | None = None
        self.handler: NameServerHandler | None = None
        """What LOCAL mode joins without a socket; there once started."""

    @property
    def address(self) -> str:
        """``ip:port`` that is bound."""
        assert self._server is not None, "not started"
        return self._server.address

    async def start(self) -> None:
        """
        Serve.

        Raises ConfigError (damaged table) or OSError (address in use, folder not to be written).
        """
        config = self._config
        self._kv.load()
        check_writable(config.data)
        self._members.load(clock.monotonic())
        registry = Registry(lost_s_max=config.lost_ms_max / 1000, topics_max=config.topics_max)
        self.handler = NameServerHandler(
            config,
            registry,
            self._kv,
            self._members,
            self.metrics,
            credentials=self._credentials,
        )
        self._count(self.handler)
        if config.metrics_bind:
            from namesrv.http import http_pages

            self._http = http_pages(self.metrics.registry, self.handler)
            logger.info("HTTP on %s", self._http.listen(config.metrics_bind))
        self._server = await serve_remoting(
            self.handler, config.bind, connections_max=config.connections_max
        )
        logger.info("name server on %s", self._server.address)

    def _count(self, handler: NameServerHandler) -> None:
        registry, gauge = handler.registry, self.metrics.gauge
        gauge("brokers", "Broker processes alive.", lambda: len(registry.leases))
        gauge("topics", "Topics known.", lambda: registry.routes.topic_count)
        gauge("topics_max", "Topics known at most.", lambda: registry.topics_max)
        gauge("gateways", "Gateways registered.", lambda: len(handler.gateways))
        gauge("watchers", "Gateways that watch the routes.", lambda: len(handler.watchers))
        gauge("route_version", "Changes of the routes.", lambda: registry.routes.changes.version)
        gauge("kv_entries", "Entries of the key-value table.", lambda: self._kv.count)
        gauge(
            "connections",
            "Open connections.",
            lambda: len(self._server.peers) if self._server is not None else 0,
        )

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.close()
        if self.handler is not None:
            await self.handler.close()
        if self._http is not None:
            self._http.close()

    @property
    def http_address(self) -> str:
        """``host:port`` of ``/metrics`` and ``/gateways``; empty: not asked for."""
        return self._http.address if self._http is not None else ""

    async def reload(self) -> None:
        """SIGHUP: nothing of a name server's file counts before its next start."""
        raise ConfigError(["a name server reads its settings at its start only"])

    def ready_line(self) -> str:
        http = f" metrics={self.http_address}" if self.http_address else ""
        return f"namesrv namesrv namesrv={self.address}{http}"
