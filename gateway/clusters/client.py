"""
One broker cluster: its routes and a link to each of its stores.

Everything else in the gateway asks this object which stores there are and which are up; what is
particular to a kind of broker hides behind the link.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from gateway.clusters.batches import Run
from gateway.clusters.connection import Connect, NotTidegate, Sign
from gateway.clusters.link import LinkState, StoreLink
from gateway.clusters.presence import GatewayPresence
from gateway.clusters.routes import RouteCache, TopicRoute
from gateway.clusters.selector import rendezvous
from gateway.clusters.tidegate import TidegateLink
from gateway.clusters.watch import ConnectNameServer
from protocols import clock
from protocols.errors import Code, Refused
from protocols.remoting.client import RemotingClient
from protocols.remoting.peer import Receive
from protocols.remoting.private import Closing, HelloAnswer
from protocols.tasks import Tasks

logger = logging.getLogger("tidegate.clusters")

CHECK_S: Final = 1.0

LINK_KEPT_S: Final = 3600.0
"""How long a store that the name servers no longer name is waited for: until then its link keeps
what the store has to be told when it is back, acknowledgements above all."""


class RunningLink(StoreLink, Protocol):
    """A link with the life that its cluster gives it."""

    async def run(self) -> None: ...

    def check(self, now: float) -> None: ...


MakeLink = Callable[["ClusterClient", str, Connect], RunningLink]
"""Makes the link to a broker that does not know HELLO (Apache's)."""


class ClusterListener(Protocol):
    """Who wants to know: the pipeline, the streams, the directory client."""

    def link_changed(self, link: StoreLink) -> None:
        """Its state changed."""
        ...

    def link_cleared(self) -> None:
        """A link that was congested is no longer."""
        ...

    def routes_changed(self, cluster: "ClusterClient") -> None: ...

    def reroute(self, runs: list[Run]) -> None:
        """Messages that reached no store: decide again where they go."""
        ...


class ClusterClient:
    """Implements "one broker cluster" for the pipeline."""

    def __init__(
        self,
        name: str,
        presence: GatewayPresence,
        *,
        name_servers: Sequence[str | ConnectNameServer],
        broker_cluster: str = "",
        zones: Mapping[str, str] | None = None,
        local_stores: Mapping[str, Connect] | None = None,
        sign: Sign | None = None,
        make_foreign_link: MakeLink | None = None,
    ) -> None:
        self.name = name
        self.presence = presence
        self.links: dict[str, RunningLink] = {}
        self.sign = sign
        self._zones = dict(zones or {})
        self._local_stores = dict(local_stores or {})
        self._make_foreign_link = make_foreign_link
        self._listeners: list[ClusterListener] = []
        self._greeted: list[Callable[[TidegateLink, HelloAnswer], None]] = []
        self._closing: list[Callable[[TidegateLink, Closing], None]] = []
        self._tasks = Tasks(f"cluster {name}")
        self._link_tasks: dict[str, asyncio.Task[None]] = {}
        self._addresses: dict[str, str] = {}
        self._unnamed_at: dict[str, float] = {}
        """Store → since when no name server has named it."""

        self._states_version = 0
        self.routes = RouteCache(
            name,
            [_name_server(item) for item in name_servers],
            labels=[item if isinstance(item, str) else "in this process" for item in name_servers],
            broker_cluster=broker_cluster,
            changed=self._routes_changed,
        )

    # ── life ────────────────────────────────────────────────────────────────────────────

    def listen(self, listener: ClusterListener) -> None:
        self._listeners.append(listener)

    def on_greeted(self, listener: Callable[[TidegateLink, HelloAnswer], None]) -> None:
        """Call *listener* with each store's HELLO, before it takes traffic."""
        self._greeted.append(listener)

    def on_closing(self, listener: Callable[[TidegateLink, Closing], None]) -> None:
        """Call *listener* when a store says that it stops."""
        self._closing.append(listener)

    def start(self) -> None:
        """Begin to poll the name servers and to connect to what they name."""
        self._tasks.start(self.routes.run(), name="routes")
        self._tasks.start(self._check(), name="check")

    async def ready(self) -> None:
        """Return when a name server has answered and every store it named was tried."""
        await self.routes.first_poll()

    async def close(self) -> None:
        await self._tasks.close()

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            now = clock.monotonic()
            for link in list(self.links.values()):
                link.check(now)
            self._forget_links(now)

    # ── stores ──────────────────────────────────────────────────────────────────────────

    @property
    def version(self) -> int:
        """Rises with every change of routes or link states."""
        return self.routes.version + self._states_version

    def up_links(self) -> list[RunningLink]:
        """Stores that take traffic now, by name."""
        return [link for _, link in sorted(self.links.items()) if link.state is LinkState.UP]

    def open_stores(self, brokers: Iterable[str]) -> list[str]:
        """Those of *brokers* that are not being emptied; all, when each of them is."""
        names = list(brokers)
        return [name for name in names if self.routes.takes_messages(name)] or names

    def open_links(self) -> list[RunningLink]:
        """Of the stores that take traffic those that are not being emptied; all, when each is."""
        return [
            self.links[name] for name in self.open_stores(link.broker for link in self.up_links())
        ]

    def link(self, broker: str) -> RunningLink:
        """The link to a store that takes traffic, or will in a moment. Raises Refused."""
        link = self.links.get(broker)
        if link is None or link.state is LinkState.DOWN:
            raise Refused(Code.HA_NOT_AVAILABLE, broker, f"store {broker} is away")
        return link

    def zone_of(self, broker: str) -> str:
        """As the configuration says, or else the store itself."""
        return self._zones.get(broker) or self.routes.zone(broker)

    def place(self, key: str) -> str:
        """The store that a new pinned queue of this key goes to. Raises Refused."""
        broker = rendezvous(key, (link.broker for link in self.open_links()))
        if not broker:
            raise Refused(Code.HA_NOT_AVAILABLE, self.name, "no store of the cluster is up")
        return broker

    async def create_topic(self, topic: str, queue_count: int) -> TopicRoute:
        """
        On every store that is up and not being emptied; one that has it keeps it as it is.

        Raises Refused if none is up, or all refuse.
        """
        links = self.open_links()
        if not links:
            raise Refused(Code.HA_NOT_AVAILABLE, topic, "no store of the cluster is up")
        results = await asyncio.gather(
            *(link.create_topic(topic, queue_count) for link in links), return_exceptions=True
        )
        made = {
            link.broker: result
            for link, result in zip(links, results, strict=True)
            if not isinstance(result, BaseException)
        }
        for result in results:
            if isinstance(result, BaseException) and (not made or not isinstance(result, Refused)):
                raise result
        return self.routes.created(topic, made)

    def forget(self, broker: str) -> None:
        """Wait for a store no longer, unless it is there or a name server names it."""
        link = self.links.get(broker)
        if link is not None and link.state is not LinkState.DOWN:
            return
        self.routes.forget(broker)
        if broker not in self.routes.brokers:
            self._stop_link(broker)

    # ── inside ──────────────────────────────────────────────────────────────────────────

    def _routes_changed(self) -> None:
        for broker, address in self.routes.brokers.items():
            if self._addresses.get(broker) != address:
                self._addresses[broker] = address
                self._start_link(broker, address)
            self._unnamed_at.pop(broker, None)
        for broker in self.links:
            if broker not in self.routes.brokers:
                self._unnamed_at.setdefault(broker, clock.monotonic())
        for listener in self._listeners:
            listener.routes_changed(self)

    def _forget_links(self, now: float) -> None:
        """Those of stores that are gone for good."""
        for broker, since in list(self._unnamed_at.items()):
            link = self.links.get(broker)
            if link is not None and link.state is not LinkState.DOWN:
                continue
            if link is None or now - since > LINK_KEPT_S:
                self._stop_link(broker)

    def _start_link(self, broker: str, address: str) -> None:
        """A store is new, or came back under another address."""
        connect = self._local_stores.get(broker)
        if broker in self.links:
            return  # its connector asks for the address each time; the old one will be lost
        if connect is None:
            connect = self._connector(broker)
        self.links[broker] = fresh = TidegateLink(
            self.name,
            broker,
            connect,
            self.presence,
            changed=self._link_changed,
            cleared=self.link_cleared,
            greeted=self._link_greeted,
            closing=self._link_closing,
            reroute=self._reroute,
            sign=self.sign,
        )
        self._link_tasks[broker] = self._tasks.start(
            self._run_link(fresh, connect), name=f"link {broker}"
        )

    def _connector(self, broker: str) -> Connect:
        async def connect(push: Receive) -> RemotingClient:
            return await RemotingClient.connect(self._addresses[broker], push=push)

        return connect

    async def _run_link(self, link: TidegateLink, connect: Connect) -> None:
        try:
            await link.run()
        except NotTidegate:
            if self._make_foreign_link is None:
                logger.error(
                    "store %s/%s is an Apache broker, which this gateway cannot use yet",
                    self.name,
                    link.broker,
                )
                return
            foreign = self._make_foreign_link(self, link.broker, connect)
            self.links[link.broker] = foreign
            await foreign.run()

    def _stop_link(self, broker: str) -> None:
        self.links.pop(broker, None)
        self._addresses.pop(broker, None)
        self._unnamed_at.pop(broker, None)
        task = self._link_tasks.pop(broker, None)
        if task is not None:
            task.cancel()

    def _link_greeted(self, link: TidegateLink, hello: HelloAnswer) -> None:
        for listener in self._greeted:
            listener(link, hello)

    def _link_closing(self, link: TidegateLink, closing: Closing) -> None:
        for listener in self._closing:
            listener(link, closing)

    def link_changed(self, link: StoreLink) -> None:
        """For links: the state changed."""
        self._states_version += 1
        for listener in self._listeners:
            listener.link_changed(link)

    def link_cleared(self) -> None:
        """For links: congestion ended."""
        for listener in self._listeners:
            listener.link_cleared()

    def _link_changed(self, link: TidegateLink) -> None:
        self.link_changed(link)

    def _reroute(self, runs: list[Run]) -> None:
        for listener in self._listeners:
            listener.reroute(runs)


def _name_server(item: str | ConnectNameServer) -> ConnectNameServer:
    if not isinstance(item, str):
        return item

    async def connect() -> RemotingClient:
        return await RemotingClient.connect(item)

    return connect
