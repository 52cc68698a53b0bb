"""One message store: its disk, engine, writer thread, listener and registration."""

import asyncio
import logging
import os
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from protocols import clock
from protocols.addresses import ANY_HOSTS, is_loopback, socket_address, split_bind
from protocols.daemon.config import ClusterAuth
from protocols.daemon.large_pages import keep_large_pages
from protocols.errors import ConfigError
from protocols.remoting.private import FRAME_BYTES_MAX
from protocols.remoting.records import MessageIds, encode_host
from protocols.remoting.server import RemotingHandler, RemotingServer, serve_remoting
from protocols.tasks import Tasks
from store.answers import EngineConfig
from store.committer import (
    IN_PLACE_BYTES_MAX,
    SHARED_BYTES_MAX,
    Committer,
    KernelCommits,
    LazyDisk,
    kernel_commits,
)
from store.config import StoreConfig
from store.disk import Disk, RealDisk
from store.engine import Engine
from store.handlers import configuration
from store.handlers.appends import Appends
from store.handlers.context import Context
from store.handlers.gateways import tell_closing
from store.handlers.presence import Presences
from store.handlers.searches import Searches
from store.handlers.streams import Streams
from store.handlers.system_topics import system_topics
from store.handlers.waits import Waits
from store.housekeeping import Housekeeping
from store.metrics import TEXTS, collect
from store.ownership import FolderLock
from store.prefetching import Prefetcher
from store.registration import Registration
from store.server import StoreServer

if TYPE_CHECKING:
    from protocols.daemon.pages import HttpPages

logger = logging.getLogger("tidegate.store")

DRAIN_STEP_S = 0.001

REMOTING_FRAME_BYTES_MAX = 16 << 20
"""Netty's default for brokers; private frames keep to ``FRAME_BYTES_MAX``."""


class Store:
    """
    A store as a daemon, or as a part of a LOCAL process.

    Args:
        config: the ``store:`` block.
        auth: the cluster's credential; without one the store binds to loopback only.
        disk: another disk than the folder ``config.data`` (tests of faults).
        is_alone: the process has nothing else to do, so that small syncs may block its loop.
    """

    metric_texts: Final = TEXTS
    """What the names of ``metrics`` mean."""

    def __init__(
        self,
        config: StoreConfig,
        *,
        auth: ClusterAuth | None = None,
        disk: Disk | None = None,
        is_alone: bool = False,
    ) -> None:
        self.config = config
        self._auth = auth
        self._is_alone = is_alone
        self._secret = auth.read_secret().decode() if auth is not None else ""
        if not self._secret and not is_loopback(config.bind):
            raise ConfigError(
                [f"store.bind: {config.bind} is not loopback: configure cluster_auth first"]
            )
        if config.auth.authentication and not self._secret:
            raise ConfigError(
                ["store.auth.authentication: configure cluster_auth first; it makes the first user"]
            )
        self._tasks = Tasks("store")
        self._background = ThreadPoolExecutor(1, thread_name_prefix="store-background")
        self._disk: Disk = disk or RealDisk(str(config.data))
        self._lock = FolderLock(str(config.data)) if disk is None else None
        self._writer_disk: Disk = self._disk
        if config.flush == "async" and isinstance(self._disk, RealDisk):
            self._writer_disk = LazyDisk(self._disk)
        self._engine: Engine | None = None
        self._server: StoreServer | None = None
        self._listener: RemotingServer | None = None
        self._committer: Committer | None = None
        self._prefetcher: Prefetcher | None = None
        self._registration: Registration | None = None
        self._http: HttpPages | None = None
        self._housekeeping: Housekeeping | None = None

    # ── life ────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Recover the log, listen, register. Returns when serving."""
        if self._lock is not None:
            await self._lock.acquire()
        engine = await self._recover()
        context = self._context(engine)
        configuration.restore(context)
        server = self._server = StoreServer(context)
        server.is_alone = self._is_alone
        context.topics_changed = server.topics_changed.set
        context.counters = server.counters
        context.comings.is_served, context.comings.hurry = True, server.tick_soon
        self._read_ahead(engine, server)
        committer = self._committer = Committer(
            self._writer_disk,
            done=server.committed,
            failed=server.failed,
            in_place_bytes_max=IN_PLACE_BYTES_MAX if self._is_alone else SHARED_BYTES_MAX,
            kernel=self._kernel_commits(),
        )
        committer.start()
        housekeeping = self._housekeeping = Housekeeping(engine, self._disk, self._background)
        self._listener = await serve_remoting(
            server,
            self.config.bind,
            frame_bytes_max=max(REMOTING_FRAME_BYTES_MAX, FRAME_BYTES_MAX),
            connections_max=self.config.limits.connections_max,
        )
        await self._advertise(context, self._listener.address)
        server.use(committer)
        self._serve_metrics()
        self._tasks.start(housekeeping.run(), name="housekeeping")
        self._tasks.start(keep_large_pages(), name="large pages")
        self._registration = Registration(context, server.topics_changed, auth=self._auth)
        self._registration.start()

    async def stop(self) -> None:
        """Unregister, make durable what was accepted, answer it, close."""
        if self._registration is not None:
            await self._registration.stop()
        if self._listener is not None:
            self._listener.stop_accepting()
        await self._tasks.close()
        if self._housekeeping is not None:
            await self._settle(self._housekeeping)
        if self._listener is not None:
            await self._listener.close()
        if self._http is not None:
            self._http.close()
        self._background.shutdown()
        if self._prefetcher is not None:
            self._prefetcher.close()
        self._disk.close()
        if self._writer_disk is not self._disk:
            self._writer_disk.close()
        if self._lock is not None:
            self._lock.release()

    async def reload(self) -> None:
        """Nothing of a store changes while it runs; its topics and groups do, by request."""
        raise ConfigError(["a store reads its settings at its start only"])

    def ready_line(self) -> str:
        http = f" metrics={self._http.address}" if self._http is not None else ""
        return f"store {self.config.name} store={self.bound_address}{http}"

    # ── for others ──────────────────────────────────────────────────────────────────────

    @property
    def address(self) -> str:
        """``host:port`` as advertised."""
        assert self._server is not None, "not started"
        return self._server.context.address

    @property
    def bound_address(self) -> str:
        """``host:port`` of the listener."""
        assert self._listener is not None, "not started"
        return self._listener.address

    @property
    def is_healthy(self) -> bool:
        """False before the start, and once a write or sync has failed."""
        return self._server is not None and self._server.counters.is_healthy

    def local_handler(self) -> RemotingHandler:
        """Where LOCAL mode's in-memory transport hands in its commands."""
        assert self._server is not None, "not started"
        return self._server

    def metrics(self) -> Mapping[str, float]:
        """Name → value, for ``tidegate_store_<name>``."""
        assert self._server is not None, "not started"
        context = self._server.context
        return {
            **collect(context.engine, self._server.counters),
            "connections": self._server.connection_count,
            "waiting_polls": len(context.waits),
        }

    # ── inside ──────────────────────────────────────────────────────────────────────────

    async def _recover(self) -> Engine:
        engine = self._engine = Engine(self._disk, self._engine_config())
        loop = asyncio.get_running_loop()
        report = await loop.run_in_executor(self._background, engine.recover, clock.read())
        logger.info(
            "recovered: epoch %d, %d records in %d blocks, log end %d, %d torn bytes",
            report.epoch,
            report.record_count,
            report.block_count,
            report.end,
            report.torn_bytes,
        )
        return engine

    def _context(self, engine: Engine) -> Context:
        config = self.config
        lost_s = config.lost_ms_max / 1000
        context = Context(
            config=config,
            engine=engine,
            appends=Appends(engine),
            waits=Waits(waiting_max=config.limits.waiting_max),
            streams=Streams(engine, lost_s=lost_s),
            presences=Presences(lost_s=lost_s, silence_s=config.silence_ms_max / 1000),
            searches=Searches(self._disk),
            secret=self._secret,
            access_key=self._auth.access_key if self._auth is not None else "",
            system_topics=system_topics(config),
        )
        context.appends.bytes_max = config.limits.pending_bytes_max
        return context

    def _read_ahead(self, engine: Engine, server: StoreServer) -> None:
        """What readers will ask for next is fetched beside the commits."""
        prefetcher = Prefetcher(self._disk, server.fetched, server.reads_allowed)
        self._prefetcher, server.commit_ended = prefetcher, prefetcher.commit_ended
        server.read_ahead = lambda: prefetcher.run(engine.background.take_prefetches())

    def _serve_metrics(self) -> None:
        if not self.config.metrics_bind:
            return
        from store.http import http_pages

        self._http = http_pages(self.metrics, lambda: self.is_healthy)
        logger.info("HTTP on %s", self._http.listen(self.config.metrics_bind))

    def _kernel_commits(self) -> KernelCommits | None:
        """Unless the disk is another one by order."""
        disk = self._writer_disk
        if isinstance(disk, RealDisk) and type(disk) in (RealDisk, LazyDisk):
            return kernel_commits(disk)
        return None

    def _engine_config(self) -> EngineConfig:
        config = self.config
        limits = config.limits
        return EngineConfig(
            segment_bytes=config.segment_bytes,
            log_bytes_max=limits.log_bytes_max,
            disk_free_bytes_min=limits.disk_free_bytes_min,
            retention_s=config.retention_hours * 3600,
            lease_s=config.lease_ms / 1000,
            cache_bytes_max=limits.cache_bytes_max,
            index_cache_bytes_max=limits.index_cache_bytes_max,
            relocated_bytes_max=limits.relocated_bytes_max,
            once_keys_max=limits.once_keys_max,
            timers_max=limits.timers_max,
            halves_max=limits.half_messages_max,
            retained_max=limits.retained_max,
            half_timeout_ms=config.transactions.timeout_ms,
            half_interval_ms=config.transactions.interval_ms,
            half_checks_max=config.transactions.checks_max,
            auto_create_queue_count=config.topic_queue_count if config.auto_create_topics else 0,
        )

    async def _advertise(self, context: Context, bound: str) -> None:
        """Settle by which address clients reach us, and the IP that records carry."""
        context.address = self.config.advertise or bound
        host, port = split_bind(context.address)
        if host in ANY_HOSTS:
            host = socket.gethostname()
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            raise ConfigError([f"store.advertise: {host} has no address: {error}"]) from error
        # of several the one that records can carry
        found.sort(key=lambda one: one[0] != socket.AF_INET)
        context.ip_address = socket_address(found[0][4])
        if not self.config.advertise:
            context.address = context.ip_address
        context.store_host = encode_host(context.ip_address)
        context.id_prefix = context.store_host.hex().upper()
        seed = int.from_bytes(os.urandom(4), "big")
        context.ids = MessageIds(context.store_host, os.getpid(), seed)

    async def _settle(self, housekeeping: Housekeeping) -> None:
        """The closing block and everything before it become durable; then the last snapshot."""
        engine, server, committer = self._engine, self._server, self._committer
        assert engine is not None
        assert server is not None
        assert committer is not None
        server.stop()
        if not committer.has_failed:
            engine.close(clock.read())
            await self._drain(engine, committer)
        await committer.close()
        if not committer.has_failed:
            await housekeeping.write_snapshot(is_forced=True)
            tell_closing(server.context)

    async def _drain(self, engine: Engine, committer: Committer) -> None:
        """Until all that the engine has built is durable, or the disk has failed."""
        while (engine.has_writes or committer.out_count) and not committer.has_failed:
            batch = engine.take_writes() if committer.has_room else None
            if batch is not None:
                committer.submit(batch)
            await asyncio.sleep(DRAIN_STEP_S)
