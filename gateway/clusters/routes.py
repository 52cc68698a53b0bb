"""
What the name servers of one cluster know: its stores, its topics, their message queues.

Polled once a second from one name server at a time. When none answers, what is known stays in
use: traffic needs no name server, only news does. Nor does the word of one that was just started
count against a topic: until all stores that are known here have registered there, it lacks some.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple

from gateway.clusters import standard
from protocols import clock
from protocols.errors import Code, PeerError, Refused
from protocols.remoting.bodies import ClusterInfo, RouteData
from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import Permission

logger = logging.getLogger("tidegate.clusters")

POLL_S: Final = 1.0
"""A new store is noticed within three of these."""

REFRESH_SHARE: Final = 10
"""Each poll asks for one in so many of the routes in use again, all of them when stores change."""

MASTER_ID: Final = 0

FORGET_S: Final = 120.0
"""A store that left the name servers is remembered so long (Apache's name server keeps a dead
broker for as long): what must not fail over to another store is refused meanwhile."""

ConnectNameServer = Callable[[], Awaitable[RemotingClient]]


class TopicRoute(NamedTuple):
    """The message queues of one topic in one cluster."""

    topic: str
    queues: tuple[tuple[str, int, int, int], ...]
    """(broker, readable count, writable count, permission bits), by broker name."""

    @property
    def writable(self) -> tuple[tuple[str, int], ...]:
        """(broker, queue id) of every queue that takes messages, in a stable order."""
        return tuple(
            (broker, queue_id)
            for broker, _, count, perm in self.queues
            if perm & Permission.WRITE
            for queue_id in range(count)
        )


class RouteCache:
    """The one copy of these facts that a cluster's links, pipeline and topics read."""

    def __init__(
        self,
        cluster: str,
        name_servers: Sequence[ConnectNameServer],
        *,
        broker_cluster: str = "",
        changed: Callable[[], None],
    ) -> None:
        self.cluster = cluster
        self.broker_cluster = broker_cluster
        """Its name at the name servers; found if it is the only one there."""

        self.version = 1
        """Rises when a known route or the set of stores changes."""

        self.brokers: dict[str, str] = {}
        """Broker name → address of its master, those gone for less than FORGET_S included."""

        self.topics: frozenset[str] = frozenset()
        self._routes: dict[str, TopicRoute | None] = {}
        self._missing_since: dict[str, float] = {}
        self._informed: RemotingClient | None = None
        """The connection on which a name server named every store that is known here."""

        self._name_servers = name_servers
        self._turn = 0
        self._client: RemotingClient | None = None
        self._changed = changed
        self._refresh_at = 0
        self._last_error = ""
        self._polled = asyncio.Event()

    # ── reading ─────────────────────────────────────────────────────────────────────────

    def exists(self, topic: str) -> bool:
        return topic in self.topics or self._routes.get(topic) is not None

    def find(self, topic: str) -> TopicRoute | None:
        """The route if it is in the cache."""
        return self._routes.get(topic)

    async def load(self, topic: str) -> TopicRoute | None:
        """
        The route, asked for now if it is not in the cache; None: there is no such topic.

        Raises Refused: nobody can tell now, for example while only other name servers know it.
        """
        route = self._routes.get(topic)
        if route is None:
            await self._refresh(topic)
            route = self._routes.get(topic)
        if route is None and topic in self.topics:
            raise Refused(Code.HA_NOT_AVAILABLE, topic, "its stores have not registered yet")
        return route

    def created(self, topic: str, brokers: Iterable[str], queue_count: int) -> TopicRoute:
        """This gateway made the topic: known here before the name servers tell."""
        queues = tuple((broker, queue_count, queue_count, 6) for broker in sorted(brokers))
        route = TopicRoute(topic, queues)
        self.topics |= {topic}
        self._routes[topic] = route
        self._news()
        return route

    async def first_poll(self) -> None:
        """Return when a name server has answered once."""
        await self._polled.wait()

    # ── polling ─────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Poll until cancelled."""
        try:
            while True:
                try:
                    await self.poll()
                    self._last_error = ""
                except (Refused, PeerError) as error:
                    await self._failed(str(error))
                await asyncio.sleep(POLL_S)
        finally:
            if self._client is not None:
                await self._client.close()

    async def poll(self) -> None:
        """One round: stores, topics, a share of the routes in use."""
        client = await self._connected()
        info = await standard.cluster_info(client)
        are_stores_new = self._take_brokers(info)
        self._informed = None if self._missing_since else client
        topics = frozenset(await standard.topics_of_cluster(client, self.broker_cluster))
        if self._informed is None:
            topics |= self.topics
        are_topics_new = topics != self.topics
        self.topics = topics
        if are_stores_new or are_topics_new:
            self._news()
        known = list(self._routes)
        self._refresh_at = (self._refresh_at + 1) % REFRESH_SHARE
        stale = known if are_stores_new else known[self._refresh_at :: REFRESH_SHARE]
        for topic in stale:
            await self._refresh(topic)
        self._polled.set()

    async def _connected(self) -> RemotingClient:
        if self._client is None or not self._client.is_open:
            self._client = None
            connect = self._name_servers[self._turn % len(self._name_servers)]
            self._client = await connect()
        return self._client

    async def _failed(self, reason: str) -> None:
        """The next poll asks the next name server."""
        self._turn += 1
        client, self._client = self._client, None
        if client is not None:
            await client.close()
        if reason != self._last_error:
            self._last_error = reason
            logger.warning("cluster %s: name server: %s", self.cluster, reason)

    def _take_brokers(self, info: ClusterInfo) -> bool:
        if not self.broker_cluster:
            names = sorted(info.cluster_addr_table)
            if len(names) > 1:
                raise Refused(
                    Code.BAD_REQUEST,
                    self.cluster,
                    f"the name server knows {', '.join(names)}: set broker_cluster to one of them",
                )
            if not names:
                raise Refused(Code.NOT_FOUND, self.cluster, "no store has registered yet")
            self.broker_cluster = names[0]
        members = info.cluster_addr_table.get(self.broker_cluster, [])
        brokers = {
            name: data.broker_addrs[MASTER_ID]
            for name, data in info.broker_addr_table.items()
            if name in members and MASTER_ID in data.broker_addrs
        }
        now = clock.monotonic()
        for name, address in self.brokers.items():
            if name in brokers:
                self._missing_since.pop(name, None)
            elif now - self._missing_since.setdefault(name, now) < FORGET_S:
                brokers[name] = address
            else:
                del self._missing_since[name]
        is_new = brokers != self.brokers
        self.brokers = brokers
        return is_new

    async def _refresh(self, topic: str) -> None:
        try:
            client = await self._connected()
            data = await standard.route_of(client, topic)
        except (Refused, PeerError) as error:
            await self._failed(str(error))
            if self._routes.get(topic) is None:
                raise Refused(Code.HA_NOT_AVAILABLE, topic, "no name server answers") from error
            return
        route = self._route(topic, data, is_informed=client is self._informed)
        if route is None:
            if self._routes.pop(topic, None) is not None:
                self._news()
        elif route != self._routes.get(topic):
            self._routes[topic] = route
            self._news()

    def _route(self, topic: str, data: RouteData | None, *, is_informed: bool) -> TopicRoute | None:
        """The part of a route that lies in this cluster; what only its absence denies stays."""
        queues = [
            (item.broker_name, item.read_queue_nums, item.write_queue_nums, item.perm)
            for item in (data.queue_datas if data is not None else ())
            if item.broker_name in self.brokers
        ]
        old = self._routes.get(topic)
        named = {queue[0] for queue in queues}
        for queue in old.queues if old is not None else ():
            is_denied = is_informed or queue[0] not in self.brokers
            if queue[0] not in named and not is_denied:
                queues.append(queue)
        return TopicRoute(topic, tuple(sorted(queues))) if queues else None

    def _news(self) -> None:
        self.version += 1
        self._changed()
