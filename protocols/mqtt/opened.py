"""A session in the hands of one connection: who, what it owns, its streams."""

import asyncio
from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple, Protocol

import msgspec

from protocols.canonical import Call
from protocols.driver import Driver
from protocols.errors import Code, Refused
from protocols.groups import GroupSpec
from protocols.mqtt import wills
from protocols.mqtt.connection import MqttConnection
from protocols.mqtt.events import Event
from protocols.mqtt.feed import Feed
from protocols.mqtt.front import Front
from protocols.mqtt.groups import rows, session_group, share_group
from protocols.mqtt.naming import EXCLUSIVE, PLAIN, Naming
from protocols.mqtt.outbox import Outbox
from protocols.mqtt.packet_ids import with_doubts
from protocols.mqtt.packets import V5
from protocols.mqtt.receiving import Receiving
from protocols.mqtt.records import SessionRecord, SubscriptionRecord, subscription_records
from protocols.mqtt.rendering import Renderings
from protocols.mqtt.session import Subscribed, Subscriptions
from protocols.mqtt.sessions import Owned
from protocols.observing import ClientInfo
from protocols.pipeline import DeliveryStream


class Terms(NamedTuple):
    """What CONNECT says about what may be sent to the client."""

    inflight_max: int
    packet_bytes_max: int
    topic_alias_max: int


@lru_cache(maxsize=1000)
def terms(inflight_max: int, packet_bytes_max: int, topic_alias_max: int) -> Terms:
    """One object for all clients that say the same."""
    return Terms(inflight_max, packet_bytes_max, topic_alias_max)


class Holder(Protocol):
    """The connection that has the session."""

    def feed_ended(self, code: Code) -> None:
        """The session's own stream is over."""
        ...


class Opened:
    """
    A connected session: who, what it owns, its feeds.

    Most clients of a gateway are idle: what only publishing or subscribing needs is made then.
    """

    __slots__ = (
        "_connection",
        "_driver",
        "_feeds",
        "_outbox",
        "_renderings",
        "_saving",
        "_streams",
        "_subscriptions",
        "_terms",
        "call",
        "feed",
        "front",
        "holder",
        "naming",
        "owned",
    )

    def __init__(
        self,
        front: Front,
        call: Call,
        owned: Owned,
        connection: MqttConnection,
        driver: Driver[Event],
        *,
        terms: Terms,
        renderings: Renderings,
        naming: Naming = PLAIN,
    ) -> None:
        self.front = front
        self.call = call
        self.owned = owned
        self.naming = naming
        self.holder: Holder | None = None
        self.feed: Feed | None = None
        self._connection = connection
        self._driver = driver
        self._terms = terms
        self._renderings = renderings
        self._outbox: Outbox | None = None
        self._subscriptions: Subscriptions | None = None
        self._feeds: dict[str, Feed] | None = None
        self._streams: list[tuple[Feed, DeliveryStream]] | None = None
        self._saving: asyncio.Lock | None = None

    @property
    def saving(self) -> asyncio.Lock:
        """Held by who writes the session's record: each write names the version before."""
        if self._saving is None:
            self._saving = asyncio.Lock()
        return self._saving

    async def save(self, change: Callable[[SessionRecord], SessionRecord]) -> None:
        """Write the record with *change* made. Raises Refused if the session was taken over."""
        async with self.saving:
            record = change(self.owned.record)
            self.owned = await self.front.sessions.save(self.owned, record)

    def uncontested(self) -> None:
        """No other gateway serves the session any more; the next write of the record says so."""
        record = msgspec.structs.replace(self.owned.record, is_contested=False)
        self.owned = self.owned._replace(record=record)

    @property
    def is_kept(self) -> bool:
        return self.owned.record.is_kept

    @property
    def packet_bytes_max(self) -> int:
        """Largest packet that the client takes."""
        return self._terms.packet_bytes_max

    @property
    def outbox(self) -> Outbox:
        """Made when something is first sent, or to be put in order with it."""
        if self._outbox is None:
            self._outbox = self._new_outbox()
        return self._outbox

    def _new_outbox(self) -> Outbox:
        front, record, driver = self.front, self.owned.record, self._driver
        return Outbox(
            self._connection,
            self._renderings,
            client_id=self.call.client_id,
            inflight_max=self._terms.inflight_max,
            ids=record.ids,
            keeps=record.is_kept,
            packet_bytes_max=self._terms.packet_bytes_max,
            topic_alias_max=self._terms.topic_alias_max,
            flush_soon=driver.flush_soon,
            call_soon=asyncio.get_running_loop().call_soon,
            is_peer_slow=lambda: driver.is_peer_slow,
            sent=front.sent,
            dropped=front.dropped,
            may_receive=Receiving(front.services.permission, self.call),
            retained_ms_max=front.settings.retained_s_max * 1000,
            observer=front.services.observer,
            peer=driver.peer,
        )

    @property
    def has_outbox(self) -> bool:
        return self._outbox is not None

    @property
    def subscriptions(self) -> Subscriptions:
        if self._subscriptions is None:
            record, connection = self.owned.record, self._connection
            known = [item.subscribed() for item in record.subscriptions]
            if connection.version != V5 and not connection.is_bridge:  # [3.1.1: MQTT-3.3.1-9]
                known = [x._replace(no_local=False, retain_as_published=False) for x in known]
            self._subscriptions = Subscriptions(
                known,
                [item.subscribed() for item in record.given_up],
            )
        return self._subscriptions

    @property
    def given_up(self) -> tuple[SubscriptionRecord, ...]:
        """To be kept with the session: nothing, once nothing is under way."""
        if self._subscriptions is None:
            return self.owned.record.given_up
        if self._outbox is None or not self._outbox.window.flights:
            return ()
        return subscription_records(self._subscriptions.given_up)

    @property
    def subscription_count(self) -> int:
        if self._subscriptions is None:
            return len(self.owned.record.subscriptions)
        return len(self._subscriptions)

    @property
    def subscription_counts(self) -> tuple[int, int]:
        return self.subscription_count, len(self._feeds) if self._feeds is not None else 0

    @property
    def share_feeds(self) -> dict[str, Feed]:
        """Of its shared subscriptions, by filter."""
        if self._feeds is None:
            self._feeds = {}
        return self._feeds

    def last_record(self, received: tuple[int, ...], asked_s: int) -> SessionRecord:
        """The session as its connection leaves it; *asked_s*: DISCONNECT's expiry, -1: none."""
        record, limit_s = self.owned.record, self.front.settings.session_expiry_s_max
        is_late = self.front.services.pipeline.may_store_late(self.call)
        next_id, in_doubt = record.next_id, record.in_doubt
        if self._outbox is not None:
            window = self._outbox.window
            next_id, in_doubt = window.next_id, with_doubts(in_doubt, window.flights)
        return msgspec.structs.replace(
            record,
            is_contested=record.is_contested or is_late,
            received=received,
            given_up=self.given_up,
            next_id=next_id,
            in_doubt=in_doubt,
            expiry_s=min(asked_s, limit_s) if asked_s >= 0 else record.expiry_s,
        )

    def info(self, connected_ms: int) -> ClientInfo:
        """For the table of clients."""
        call, peer = self.call, self._driver.peer
        return ClientInfo(
            "mqtt",
            self.front.name,
            call.client_id,
            call.identity.name,
            peer,
            connected_ms,
            call.tenant,
        )

    # ── feeds ───────────────────────────────────────────────────────────────────────────

    def own_spec(self) -> GroupSpec:
        settings, subscriptions = self.front.settings, list(self.subscriptions)
        return settings.limited(
            session_group(self.owned.record, subscriptions, skips_qos0=not settings.queue_qos0)
        )

    async def open_feed(self) -> None:
        """Open the session's stream; deliveries wait until ``start_feed``."""
        feed = Feed(
            self.outbox,
            self.subscriptions,
            credit=self.front.settings.queue_max,
            is_auto_ack=not self.is_kept,
            is_marked=self.is_kept,
            ended=self._own_ended,
        )
        streams = self.front.services.streams
        stream = await streams.open(self.call, self.own_spec(), feed, credit=feed.credit)
        self.feed = feed
        self._opened(feed, stream)

    async def open_share(self, item: Subscribed) -> None:
        """Become a member of a shared subscription."""
        await self.front.sessions.join_share(self.owned.record, item)
        feed = Feed(
            self.outbox,
            Subscriptions.of_share(item),
            credit=self.front.settings.queue_max,
            is_auto_ack=False,
            is_marked=False,
            ended=self._share_ended,
        )
        self.share_feeds[item.topic_filter] = feed
        spec = share_group(
            self.call.tenant,
            item.share,
            item.subject_filter,
            strategy=self.front.settings.strategy_of(item.share),
            member=self.call.client_id,
        )
        spec = self.front.settings.limited(spec)
        streams = self.front.services.streams
        stream = await streams.open(self.call, spec, feed, credit=feed.credit)
        self._opened(feed, stream)

    def replace_share(self, item: Subscribed) -> None:
        """Of a member already: what comes from now on has its options [MQTT-3.8.4-3]."""
        feed = self.share_feeds.get(item.topic_filter)
        if feed is not None:
            feed.subscriptions = Subscriptions.of_share(item)

    def _opened(self, feed: Feed, stream: DeliveryStream) -> None:
        if self._streams is None:
            self._streams = []
        self._streams.append((feed, stream))

    def start_feed(self) -> None:
        """Let what was opened flow."""
        streams, self._streams = self._streams, None
        for feed, stream in streams or ():
            feed.start(stream)

    async def settle_wills(self) -> None:
        """Publish what earlier connections owe and no store took, as soon as one does."""
        while self.owned.record.owed and self.holder is not None:
            await asyncio.sleep(wills.AGAIN_MS / 1000)
            settled = await wills.publish_owed(self.front.services, self.owned.record)
            if settled.owed == self.owned.record.owed:
                continue
            try:
                await self.save(partial(wills.still_owed, settled.owed))
            except Refused as error:
                if error.code == Code.PRECONDITION_FAILED:
                    return  # another has the session, and what it owes

    def parted(self) -> None:
        """Its connection has let it go: what knew one another is not to wait for a collection."""
        self.holder = None
        for feed in self.feeds():
            feed.parted()
        if self._outbox is not None:
            self._outbox.window.forget()

    def settle(self) -> None:
        """The client reads again: give credit."""
        for feed in self.feeds():
            self.outbox.settle_soon(feed)

    def feeds(self) -> list[Feed]:
        own = [self.feed] if self.feed is not None else []
        return own + list(self._feeds.values()) if self._feeds else own

    async def close_feeds(self) -> None:
        """End all streams; a session that ends with its connection forgets its rows too."""
        self.start_feed()
        if self._outbox is not None:
            await self._outbox.close()
        if not self.subscription_count and not self.feeds():
            return
        shares = [item for item in self.subscriptions if item.share]
        for feed in self.feeds():
            await feed.close(drop_group=feed is self.feed and not self.is_kept)
        if self.is_kept:
            return
        filters = [item.subject_filter for item in self.subscriptions]
        if filters:
            await self.front.services.directory.subscribe(
                [], rows(self.owned.record, filters), tenant=self.call.tenant, is_bound=True
            )
        for item in shares:
            await self.front.sessions.leave_share(self.owned.record, item)
        for item in self.subscriptions:
            if item.topic_filter.startswith(EXCLUSIVE):
                await self.front.sessions.give_up(self.owned.record, item.subject_filter)

    def _own_ended(self, feed: Feed, code: Code) -> None:
        if feed is self.feed:
            self.feed = None
            self._tell_ended(code)

    def _tell_ended(self, code: Code) -> None:
        if self.holder is not None:
            self.holder.feed_ended(code)

    def _share_ended(self, feed: Feed, code: Code) -> None:
        """Somebody dropped the group while we joined, or the gateway lost its lease."""
        for topic_filter, known in list(self.share_feeds.items()):
            item = self.subscriptions.get(topic_filter)
            if known is feed:
                del self.share_feeds[topic_filter]
                if item is not None:
                    self.front.tasks.start(self._rejoin(item), name="rejoin")

    async def _rejoin(self, item: Subscribed) -> None:
        try:
            await self.open_share(item)
            self.start_feed()
        except Refused:
            self._tell_ended(Code.HA_NOT_AVAILABLE)
