"""
The connection to one name server, and its view kept fresh.

One of ours is watched: a held request that is answered when something changed. Any other is
polled with the codes that every name server has, and only one of those at a time.
"""

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import msgspec

from gateway.clusters import standard
from gateway.clusters.link import refusal_of
from gateway.clusters.views import View
from protocols.errors import MALFORMED, PeerError
from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.discovery import DEFLATED, RouteChanges, RouteWatch, encode_body
from protocols.remoting.private import PrivateCode

ConnectNameServer = Callable[[], Awaitable[RemotingClient]]

WATCH_MS: Final = 5000
"""How long a request may be held; a name server that hangs is noticed this much later."""

WATCH_LATE_S: Final = 2.0
"""How much later than promised its answer may come."""

CHANGES_BYTES_MAX: Final = 256 << 20
"""What a deflated answer may become."""

REFRESH_SHARE: Final = 10
"""Each poll asks for one in so many of the routes in use again, all of them when stores change."""


class Hears(Protocol):
    """Who is told of news: the route cache."""

    broker_cluster: str

    def heard(self, watch: "NameServerWatch", touched: set[str]) -> None:
        """Its view has changed, in these topics and perhaps in its brokers. Raises Refused."""
        ...

    def is_lacking(self, view: View) -> bool:
        """Some broker that is known here is not in this view."""
        ...


class NameServerWatch:
    """One name server of one cluster."""

    def __init__(self, label: str, connect: ConnectNameServer, cache: Hears) -> None:
        self.label = label
        """Address, for people."""

        self.view = View()
        self.is_standard = False
        """It does not know ROUTE_WATCH: it is polled."""

        self.error = ""
        self._connect = connect
        self._cache = cache
        self._client: RemotingClient | None = None
        self._connecting = asyncio.Lock()
        """Who asks meanwhile shares the connection; who closes, closes it."""

        self._has_spoken = False
        self._refresh_at = 0

    @property
    def is_live(self) -> bool:
        """The view came by a connection that is open."""
        return self._has_spoken and self._client is not None and self._client.is_open

    async def close(self) -> None:
        """Until the next ``round`` it says nothing; its last word is kept."""
        self._has_spoken = False
        async with self._connecting:
            client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def round(self, wait_ms: int = 0) -> None:
        """Ask once, or wait for news. Raises Refused and PeerError."""
        client = await self._connected()
        if not self.is_standard and await self._watch(client, wait_ms):
            return
        await self._poll(client)

    async def ask(self, topic: str) -> bool:
        """The route of one topic, now; whether it has any. Raises Refused and PeerError."""
        client = await self._connected()
        route = await standard.route_of(client, topic)
        if self.view.take_route(topic, route, denies=self.is_live):
            self._cache.heard(self, {topic})
        return route is not None

    # ── inside ──────────────────────────────────────────────────────────────────────────

    async def _connected(self) -> RemotingClient:
        async with self._connecting:
            if self._client is None or not self._client.is_open:
                self._has_spoken = self.is_standard = False
                self._client = None
                self._client = await self._connect()
            return self._client

    async def _watch(self, client: RemotingClient, wait_ms: int) -> bool:
        """False: it knows no ROUTE_WATCH."""
        view = self.view
        watch = RouteWatch(
            cluster=self._cache.broker_cluster,
            instance=view.instance if self.is_live else "",
            since=view.version,
            wait_ms=wait_ms if self.is_live else 0,
        )
        command = RemotingCommand(PrivateCode.ROUTE_WATCH, None, encode_body(watch), is_binary=True)
        answer = await client.request(command, wait_ms / 1000 + WATCH_LATE_S)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            self.is_standard = True
            return False
        if answer.code != ResponseCode.SUCCESS:
            raise refusal_of(answer, self.label)
        touched = view.take_changes(_changes_in(answer))
        self._has_spoken = True
        self._cache.heard(self, touched)
        return True

    async def _poll(self, client: RemotingClient) -> None:
        """Brokers, names of topics, a share of the routes in use."""
        view = self.view
        before = view.brokers
        view.take_brokers(await standard.cluster_info(client))
        self._has_spoken = True
        self._cache.heard(self, set())
        view.node_filters = await standard.node_filters(client)
        names = await standard.topics_of_cluster(client, self._cache.broker_cluster)
        old, view.names = view.names, frozenset(names)
        if self._cache.is_lacking(view):
            view.names |= old
        if old != view.names:
            self._cache.heard(self, set(old ^ view.names))
        known = view.asked_topics()
        self._refresh_at = (self._refresh_at + 1) % REFRESH_SHARE
        share = known if before != view.brokers else known[self._refresh_at :: REFRESH_SHARE]
        for topic in share:
            await self.ask(topic)


def _changes_in(answer: RemotingCommand) -> RouteChanges:
    body = bytes(answer.body)
    try:
        if answer.fields.get(DEFLATED) == "true":
            stream = zlib.decompressobj()
            body = stream.decompress(body, CHANGES_BYTES_MAX)
            if stream.unconsumed_tail:
                raise PeerError(f"routes of more than {CHANGES_BYTES_MAX} bytes")
        return msgspec.msgpack.decode(body, type=RouteChanges)
    except (zlib.error, *MALFORMED) as error:
        raise PeerError(f"ROUTE_WATCH: {error}") from error
