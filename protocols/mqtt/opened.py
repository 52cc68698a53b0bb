"""A session in the hands of one connection: who, what it owns, its streams."""

from collections.abc import Callable

from protocols.canonical import Call, GroupSpec
from protocols.errors import Code, Refused
from protocols.mqtt.feed import Feed
from protocols.mqtt.front import Front
from protocols.mqtt.mapping import Heads
from protocols.mqtt.naming import EXCLUSIVE, PLAIN, Naming
from protocols.mqtt.outbox import Outbox
from protocols.mqtt.packets import Connack
from protocols.mqtt.session import Subscribed, Subscriptions
from protocols.mqtt.sessions import Owned, rows, session_group, share_group
from protocols.pipeline import DeliveryStream


class Opened:
    """A connected session: who, what it owns, its feeds."""

    def __init__(
        self,
        front: Front,
        call: Call,
        owned: Owned,
        outbox: Outbox,
        *,
        connack: Connack,
        keep_alive_s: int,
        naming: Naming = PLAIN,
    ) -> None:
        self.front = front
        self.call = call
        self.owned = owned
        self.outbox = outbox
        self.connack = connack
        self.keep_alive_s = keep_alive_s
        self.naming = naming
        self.heads = Heads(call.client_id, naming, writes_apache=front.settings.apache_properties)
        self.subscriptions = Subscriptions(item.subscribed() for item in owned.record.subscriptions)
        self.feed: Feed | None = None
        self.share_feeds: dict[str, Feed] = {}
        self.ended: Callable[[Code], None] = lambda code: None
        self._streams: list[tuple[Feed, DeliveryStream]] = []

    @property
    def is_kept(self) -> bool:
        return self.owned.record.is_kept

    # ── feeds ───────────────────────────────────────────────────────────────────────────

    def own_spec(self) -> GroupSpec:
        return session_group(
            self.owned.record,
            list(self.subscriptions),
            skips_qos0=not self.front.settings.queue_qos0,
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
        self._streams.append((feed, stream))

    async def open_share(self, item: Subscribed) -> None:
        """Become a member of a shared subscription."""
        await self.front.sessions.join_share(self.owned.record, item)
        feed = Feed(
            self.outbox,
            Subscriptions([item]),
            credit=self.front.settings.queue_max,
            is_auto_ack=False,
            is_marked=False,
            ended=self._share_ended,
        )
        self.share_feeds[item.topic_filter] = feed
        spec = share_group(self.call.tenant, item.share, item.subject_filter, item.tag)
        streams = self.front.services.streams
        stream = await streams.open(self.call, spec, feed, credit=feed.credit)
        self._streams.append((feed, stream))

    def start_feed(self) -> None:
        """Let what was opened flow."""
        streams, self._streams = self._streams, []
        for feed, stream in streams:
            feed.start(stream)

    def settle(self) -> None:
        """The client reads again: give credit."""
        for feed in self.feeds():
            self.outbox.settle_soon(feed)

    def feeds(self) -> list[Feed]:
        own = [self.feed] if self.feed is not None else []
        return own + list(self.share_feeds.values())

    async def close_feeds(self) -> None:
        """End all streams; a session that ends with its connection forgets its rows too."""
        self.start_feed()
        await self.outbox.close()
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
            self.ended(code)

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
            self.ended(Code.HA_NOT_AVAILABLE)
