"""
Which stores a cluster has, those included that no name server names now.

Each is a row of the directory with when it was last seen, so that a gateway that starts while a
store is away knows of it. One that nobody saw for ``GONE_S`` counts as gone for good; so does one
of which an operator said so. Of one that stopped in order with every exchange ended nothing can be
sent again, so nobody has to ask it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from gateway.clusters.client import LINK_KEPT_S, ClusterClient
from gateway.clusters.link import LinkState
from gateway.clusters.tidegate import TidegateLink
from protocols import clock
from protocols.directory import Directory, Put, Record
from protocols.errors import Code, Refused
from protocols.remoting.private import Closing, HelloAnswer
from protocols.tasks import Tasks

logger = logging.getLogger("tidegate.clusters")

Place = tuple[str, str]
"""Cluster and store."""

PREFIX: Final = "store/"

GONE_S: Final = LINK_KEPT_S
"""What a gateway has to tell an absent store is kept as long."""

NOTED_S: Final = GONE_S / 6
"""How old a row may become; the first gateway that finds it older writes it anew."""

EMPTY: Final = 0
FORGOTTEN: Final = -1
"""In the place of when it was last seen: it is away, and has nothing that may be sent again; and it
does not come back."""

LOOK_S: Final = 60.0
AGAIN_S: Final = 2.0
"""Between looks at the rows; after a write that failed."""


class StoreMembers:
    """Keeps the rows of the stores that this gateway sees."""

    def __init__(self, directory: Directory, clusters: Mapping[str, ClusterClient]) -> None:
        self._directory = directory
        self._clusters = clusters
        self._news = asyncio.Event()
        self._fresh: set[Place] = set()
        """Said HELLO, and their rows have not been looked at since."""

        self._closed: set[Place] = set()
        """Stopped with nothing that may be sent again, and not back."""

        self._closed_rows: dict[Place, int] = {}
        """Those of which it is to be written down, and the versions of their rows."""

        self._tasks = Tasks("store-members")
        for cluster in clusters.values():
            cluster.on_greeted(self._greeted)
            cluster.on_closing(self._closing)
        self._undo = directory.watch(PREFIX, self._changed)

    def start(self) -> None:
        """Once the directory can be written."""
        self._tasks.start(self._note_for_ever(), name="note")

    async def close(self) -> None:
        self._undo()
        await self._tasks.close()

    def known(self) -> set[Place]:
        """Every one that is there, or may come back with what may be sent again."""
        oldest_ms = clock.wall_ms() - int(GONE_S * 1000)
        found = known_links(self._clusters)
        for record in self._directory.items(PREFIX):
            place, seen_ms = _place_of(record), _seen_ms(record.value)
            if seen_ms <= EMPTY and not self._is_there(place):
                found.discard(place)
            elif place[0] in self._clusters and seen_ms >= oldest_ms:
                found.add(place)
        return found

    def table(self) -> list[dict[str, object]]:
        """For people: each with its state at this gateway, and whether others wait for it."""
        known = self.known()
        rows = {
            _place_of(record): _seen_ms(record.value) for record in self._directory.items(PREFIX)
        }
        return [
            {
                "cluster": cluster,
                "store": broker,
                "state": self._state(cluster, broker).value,
                "seen_ms": max(rows.get((cluster, broker), 0), 0),
                "is_waited_for": (cluster, broker) in known,
            }
            for cluster, broker in sorted(known | rows.keys())
        ]

    async def forget(self, cluster: str, broker: str) -> None:
        """
        A store will not come back: no gateway waits for it any more.

        Raises Refused: it is there, or a name server names it; there is none of that name; the
        directory is away.
        """
        place = cluster, broker
        key = _key_of(place)
        record = self._directory.get(key)
        if cluster not in self._clusters or (record is None and place not in self.known()):
            raise Refused(Code.NOT_FOUND, broker, f"cluster {cluster} has no store {broker}")
        if self._is_there(place) or self._clusters[cluster].routes.is_named(broker):
            raise Refused(Code.PRECONDITION_FAILED, broker, f"store {broker} is there: stop it")
        version = record.version if record is not None else 0
        put = Put(key, msgspec.msgpack.encode(FORGOTTEN), version)
        (result,) = await self._directory.put([put])
        if not result.is_ours:
            raise Refused(Code.PRECONDITION_FAILED, broker, f"store {broker} has just come back")
        logger.warning("store %s of cluster %s is gone for good, by order", broker, cluster)

    def _changed(self, records: Sequence[Record]) -> None:
        for record in records:
            cluster, broker = _place_of(record)
            if _seen_ms(record.value) == FORGOTTEN and cluster in self._clusters:
                self._clusters[cluster].forget(broker)
        self._news.set()  # one that is there has another row than these say

    def _greeted(self, link: TidegateLink, hello: HelloAnswer) -> None:
        place = link.cluster, link.broker
        self._fresh.add(place)
        self._closed.discard(place)
        self._closed_rows.pop(place, None)
        self._news.set()

    def _closing(self, link: TidegateLink, closing: Closing) -> None:
        if closing.exchange_count == 0:
            place = link.cluster, link.broker
            record = self._directory.get(_key_of(place))
            self._closed.add(place)
            self._closed_rows[place] = record.version if record is not None else 0
            self._news.set()

    def _state(self, cluster: str, broker: str) -> LinkState:
        found = self._clusters[cluster].links.get(broker) if cluster in self._clusters else None
        return found.state if found is not None else LinkState.DOWN

    def _is_there(self, place: Place) -> bool:
        """Or was a moment ago, and has not said that it stops."""
        is_away = place in self._closed or self._state(*place) is LinkState.DOWN
        return place in self._fresh or not is_away

    async def _note_for_ever(self) -> None:
        while True:
            wait_s = LOOK_S
            try:
                await self._note()
            except Refused as error:
                logger.info("stores are not written down: %s", error)
                wait_s = AGAIN_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._news.wait()
            self._news.clear()

    async def _note(self) -> None:
        """Rows for the stores that are up, where there are none or old ones. Raises Refused."""
        now_ms, fresh, closed = clock.wall_ms(), set(self._fresh), dict(self._closed_rows)
        puts = [
            Put(_key_of(place), msgspec.msgpack.encode(EMPTY), version)
            for place, version in closed.items()
        ]
        for cluster in self._clusters.values():
            for link in cluster.links.values():
                place = cluster.name, link.broker
                is_seen = link.state is LinkState.UP or place in fresh
                if place in self._closed or not is_seen or not link.capabilities.has_once_keys:
                    continue
                key = _key_of(place)
                record = self._directory.get(key)
                seen_ms = _seen_ms(record.value) if record is not None else 0
                if not 0 <= now_ms - seen_ms < NOTED_S * 1000:
                    version = record.version if record is not None else 0
                    puts.append(Put(key, msgspec.msgpack.encode(now_ms), version))
        if puts:
            await self._directory.put(puts)
        self._fresh -= fresh
        for place in closed:  # whoever wrote first: it says the same, or that the store is back
            self._closed_rows.pop(place, None)


def known_links(clusters: Mapping[str, ClusterClient]) -> set[Place]:
    """Those that this gateway has met and that know once-keys."""
    return {
        (cluster.name, link.broker)
        for cluster in clusters.values()
        for link in cluster.links.values()
        if link.capabilities.has_once_keys
    }


def _key_of(place: Place) -> str:
    return f"{PREFIX}{place[0]}/{place[1]}"


def _place_of(record: Record) -> Place:
    cluster, _, broker = record.key.removeprefix(PREFIX).partition("/")
    return cluster, broker


def _seen_ms(value: bytes | None) -> int:
    try:
        return msgspec.msgpack.decode(value, type=int) if value else 0
    except msgspec.MsgspecError:
        return 0


def known_stores(members: StoreMembers | None, clusters: Mapping[str, ClusterClient]) -> set[Place]:
    """Those that *members* knows; without a directory: those that this gateway has met."""
    return members.known() if members is not None else known_links(clusters)
