"""
What the name servers of one cluster know together: its stores, its topics, their message queues.

Every name server of ours is watched, and the newest word about each broker counts (``views``).
When none answers, what is known stays in use: traffic needs no name server, only news does. A
store that all of them lack is remembered for a while, with its topics: a name server that was
just started takes nothing away.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from gateway.clusters.views import Entry, Sources, View, addresses_of, clusters_of, entry_of, merge
from gateway.clusters.watch import WATCH_MS, ConnectNameServer, NameServerWatch
from protocols import clock
from protocols.errors import Code, PeerError, Refused
from protocols.remoting.codes import Permission

logger = logging.getLogger("tidegate.clusters")

POLL_S: Final = 1.0
"""So often a name server that cannot be watched is asked, and one that is away tried again."""

FORGET_S: Final = 120.0
"""A store that left the name servers is remembered so long (Apache's name server keeps a dead
broker for as long): what must not fail over to another store is refused meanwhile."""

SETTLE_S: Final = 3.0
"""How long a gateway that starts waits for stores that a restarted name server still expects."""

ASK_S_MAX: Final = 1.0
"""How long a name server may take to tell one topic's route, when others have answered."""


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
        labels: Sequence[str] = (),
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

        labels = labels or [f"name server {index + 1}" for index in range(len(name_servers))]
        self.watches = [
            NameServerWatch(label, connect, self)
            for label, connect in zip(labels, name_servers, strict=True)
        ]
        self._sources: dict[str, Sources] = {}
        self._found: dict[str, TopicRoute] = {}
        self._missing_since: dict[str, float] = {}
        self._turn = 0
        self._changed = changed
        self._polled = asyncio.Event()
        self._settled = asyncio.Event()
        self._was_silent = False

    # ── reading ─────────────────────────────────────────────────────────────────────────

    @property
    def topics(self) -> frozenset[str]:
        """Names of all topics; made anew, for people and lists."""
        names = {topic for item in self._sources.values() for t in item.tables for topic in t}
        return frozenset(names.union(*(watch.view.names for watch in self.watches)))

    @property
    def topic_count(self) -> int:
        """Topics of the store that has most of them (cheap, for metrics)."""
        tables = [len(table) for item in self._sources.values() for table in item.tables]
        return max((*tables, *(len(watch.view.names) for watch in self.watches)), default=0)

    @property
    def node_filters(self) -> Mapping[str, Sequence[str]]:
        """First level → filters that nodes of Apache rocketmq-mqtt read queues of."""
        found: dict[str, Sequence[str]] = {}
        for watch in self.watches:
            found |= watch.view.node_filters
        return found

    @property
    def live_count(self) -> int:
        """Name servers that answer."""
        return sum(watch.is_live for watch in self.watches)

    def zone(self, broker: str) -> str:
        """As the broker registered it; empty: it has none."""
        found = self._sources.get(broker)
        return found.broker.zone if found is not None else ""

    def is_named(self, broker: str) -> bool:
        """A name server names it now, as far as is known."""
        return broker in self._sources and broker not in self._missing_since

    def takes_messages(self, broker: str) -> bool:
        """
        False: its write permission was taken, it is to be emptied.

        Told by the topic that has the broker's name, which every broker has.
        """
        source = self._sources.get(broker)
        entry = entry_of(source.tables, broker) if source is not None else None
        return entry is None or bool(entry.permission & Permission.WRITE)

    def exists(self, topic: str) -> bool:
        return self.find(topic) is not None or any(
            topic in watch.view.names for watch in self.watches
        )

    def find(self, topic: str) -> TopicRoute | None:
        """The route if it is known."""
        route = self._found.get(topic)
        if route is not None:
            return route
        queues: list[tuple[str, int, int, int]] = []
        for name in sorted(self._sources):
            entry = entry_of(self._sources[name].tables, topic)
            if entry is not None:
                queues.append((name, *entry))
        if not queues:
            return None
        route = self._found[topic] = TopicRoute(topic, tuple(queues))
        return route

    async def load(self, topic: str) -> TopicRoute | None:
        """
        The route, asked for now if it is not known; None: there is no such topic.

        Raises Refused: nobody can tell now, for example while only other name servers know it.
        """
        route = self.find(topic)
        if route is None:
            await self._ask(topic)
            route = self.find(topic)
        if route is None and self.exists(topic):
            raise Refused(Code.HA_NOT_AVAILABLE, topic, "its stores have not registered yet")
        return route

    def created(self, topic: str, made: Mapping[str, int]) -> TopicRoute:
        """
        These brokers have the topic, with so many queues each: known here before the name
        servers tell.
        """
        for broker, queue_count in made.items():
            for table in self._sources[broker].tables if broker in self._sources else ():
                table[topic] = Entry(queue_count, queue_count, 6)
        self._news({topic})
        return self.find(topic) or TopicRoute(topic, ())

    async def first_poll(self) -> None:
        """
        Return when a name server has answered once, and what it expects has come.

        One that was restarted a moment ago names the stores that were there before: their topics
        would be taken for missing, so a gateway that starts waits for them, up to SETTLE_S.
        """
        await self._polled.wait()
        try:
            async with asyncio.timeout(SETTLE_S):
                await self._settled.wait()
        except TimeoutError:
            names = sorted({name for watch in self.watches for name in watch.view.expected})
            logger.warning("cluster %s: %s not back: going on", self.cluster, ", ".join(names))

    def trouble(self) -> str:
        """Why nothing new can be learnt; empty: a name server answers."""
        if self.live_count:
            return ""
        reasons = "; ".join(f"{watch.label}: {watch.error or 'asked'}" for watch in self.watches)
        return f"no name server answers ({reasons})"

    # ── asking ──────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Watch all name servers until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for index, watch in enumerate(self.watches):
                    group.create_task(self._follow(index, watch))
        finally:
            for watch in self.watches:
                await watch.close()

    async def poll(self) -> None:
        """Ask one name server now; the next one next time if it fails. Raises Refused."""
        watch = self.watches[self._turn % len(self.watches)]
        try:
            await watch.round()
        except (Refused, PeerError) as error:
            await self._failed(watch, str(error))
            raise
        self._answered(watch)

    async def _follow(self, index: int, watch: NameServerWatch) -> None:
        while True:
            if watch.is_standard and not self._has_turn(index):
                await watch.close()
            else:
                try:
                    await watch.round(WATCH_MS)
                    self._answered(watch)
                    if not watch.is_standard:
                        continue  # it was held: no pause
                except (Refused, PeerError) as error:
                    await self._failed(watch, str(error))
            await asyncio.sleep(POLL_S)

    def _has_turn(self, index: int) -> bool:
        """Of those that have to be polled one is; the next one when it fails."""
        return self._turn % len(self.watches) == index

    async def _ask(self, topic: str) -> None:
        """All that take questions, at once. Raises Refused if none answers."""
        watches = [
            watch
            for index, watch in enumerate(self.watches)
            if not watch.is_standard or self._has_turn(index)
        ] or self.watches
        results = await asyncio.gather(
            *(self._ask_one(watch, topic) for watch in watches), return_exceptions=True
        )
        errors = [result for result in results if isinstance(result, BaseException)]
        for error in errors:
            if not isinstance(error, Refused | PeerError | TimeoutError):
                raise error
        if len(errors) == len(results):
            raise Refused(Code.HA_NOT_AVAILABLE, topic, "no name server answers") from errors[0]

    async def _ask_one(self, watch: NameServerWatch, topic: str) -> None:
        async with asyncio.timeout(ASK_S_MAX):
            await watch.ask(topic)

    def _answered(self, watch: NameServerWatch) -> None:
        if watch.error:
            logger.info("cluster %s: name server %s answers again", self.cluster, watch.label)
        watch.error = ""
        self._was_silent = False
        self._polled.set()

    async def _failed(self, watch: NameServerWatch, reason: str) -> None:
        if self._has_turn(self.watches.index(watch)):
            self._turn += 1
        await watch.close()
        if reason != watch.error:
            watch.error = reason
            logger.warning("cluster %s: name server %s: %s", self.cluster, watch.label, reason)
        if not self._was_silent and all(watch.error for watch in self.watches):
            self._was_silent = True
            logger.error(
                "cluster %s: none of its %d name servers answers: %s",
                self.cluster,
                len(self.watches),
                "what is known stays in use" if self._polled.is_set() else "nothing is known yet",
            )

    # ── hearing ─────────────────────────────────────────────────────────────────────────

    def is_lacking(self, view: View) -> bool:
        return any(name not in view.brokers for name in self.brokers)

    def heard(self, watch: NameServerWatch, touched: set[str]) -> None:
        """A name server said something: compare it with the others. Raises Refused."""
        live = [item for item in self.watches if item.is_live and item is not watch] + [watch]
        views = [item.view for item in live]
        self._choose_cluster(views)
        merged = merge(views, self.broker_cluster)
        now = clock.monotonic()
        for name, source in self._sources.items():
            if name in merged:
                self._missing_since.pop(name, None)
            elif now - self._missing_since.setdefault(name, now) < FORGET_S:
                merged[name] = source
            else:
                del self._missing_since[name]
        if not any(item.view.expected for item in live):
            self._settled.set()
        is_other = merged.keys() != self._sources.keys() or any(
            not _is_same(merged[name], source) for name, source in self._sources.items()
        )
        self._sources = merged
        self.brokers = addresses_of(merged)
        if is_other:
            self._news(None)
        elif touched:
            self._news(touched)

    def forget(self, broker: str) -> None:
        """It does not come back: it is remembered no longer, unless a name server names it."""
        if self._missing_since.pop(broker, None) is not None:
            del self._sources[broker]
            self.brokers = addresses_of(self._sources)
            self._news(None)

    def _choose_cluster(self, views: Sequence[View]) -> None:
        if self.broker_cluster:
            return
        names = clusters_of(views)
        if len(names) > 1:
            raise Refused(
                Code.BAD_REQUEST,
                self.cluster,
                f"the name server knows {', '.join(names)}: set broker_cluster to one of them",
            )
        if not names:
            raise Refused(Code.NOT_FOUND, self.cluster, "no store has registered yet")
        self.broker_cluster = names[0]

    def _news(self, topics: set[str] | None) -> None:
        """*topics*: those that may be others now; None: any."""
        if topics is None:
            self._found.clear()
        else:
            for topic in topics:
                self._found.pop(topic, None)
        self.version += 1
        self._changed()


def _is_same(one: Sources, other: Sources) -> bool:
    """The same place and the very same tables; a version alone changes nothing."""
    return (
        one.broker.address == other.broker.address
        and one.broker.zone == other.broker.zone
        and len(one.tables) == len(other.tables)
        and all(a is b for a, b in zip(one.tables, other.tables, strict=True))
    )
