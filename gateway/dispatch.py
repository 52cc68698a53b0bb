"""
Late entries: what became visible at a store without a gateway, matched with today's tables.

Each gateway has a stream of the group ``$dispatch`` at each of our stores; they share the work.
A message that was taken is matched as a publish would be: queues at its own store get an index
record (no copy of the body), which is the ack of the delivery; queues pinned to another store get
a copy there first, under a once-key made of the message's place. A message that was stored by a
gateway never comes here, and what is sent here has no entry in ``$dispatch``: it cannot loop.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final

from gateway.clusters.client import ClusterClient
from gateway.clusters.link import LinkState, StoreLink
from gateway.clusters.tidegate import TidegateLink
from gateway.matching import MatchingTable
from protocols.canonical import (
    DISPATCH_NAME,
    INTERNAL,
    Call,
    Delivery,
    Head,
    Identity,
    Message,
    QueueKind,
    QueueRef,
    StoredMessage,
)
from protocols.errors import Code, GatewayError
from protocols.groups import GroupSpec, Read, Start
from protocols.observing import Metrics
from protocols.pipeline import Pipeline
from protocols.remoting.private import IndexItem
from protocols.remoting.settling import AckAction, AckItem
from protocols.stored_names import number_of, subject_of, tenant_and_name
from protocols.tasks import Tasks

logger = logging.getLogger("tidegate.dispatch")

CREDIT: Final = 1024
"""Messages of one store that may wait here to be matched."""

OPEN_RETRY_S: Final = 1.0
AGAIN_MS: Final = 1000
"""When a message comes again whose copy another store did not take."""

COPIED: Final = (Code.OK, Code.NOT_FOUND)
"""Outcomes of a copy that need no other try: stored, or its queues are gone."""

PACKING: Final = 0x703
"""sysFlag bits that describe the body: compression and multi-tags."""

QUEUE: Final = QueueRef(QueueKind.DISPATCH, DISPATCH_NAME)
TENANTS_MAX: Final = 10_000
"""Tenants whose caller is remembered."""


class Dispatcher:
    """Takes what the stores have for ``$dispatch``, as long as the gateway runs."""

    def __init__(
        self,
        clusters: Mapping[str, ClusterClient],
        matching: MatchingTable,
        pipeline: Pipeline,
        metrics: Metrics,
    ) -> None:
        self.matching = matching
        self.pipeline = pipeline
        self.tasks = Tasks("dispatch")
        self.matched = metrics.counter(
            "dispatch_matched", "Messages stored without a gateway that some subscription wanted."
        )
        self.unwanted = metrics.counter(
            "dispatch_unwanted", "Messages stored without a gateway that no subscription wanted."
        )
        self._clusters = clusters
        self._calls: dict[str, Call] = {}
        self._ports: dict[tuple[str, str], DispatchPort] = {}

    def start(self) -> None:
        """The directory has been read: what is matched from now on is matched rightly."""
        for cluster in self._clusters.values():
            cluster.listen(self)
            for link in cluster.up_links():
                self.link_changed(link)

    async def close(self) -> None:
        await self.tasks.close()

    def call(self, tenant: str) -> Call:
        """Who sends the copies of this tenant's messages."""
        found = self._calls.get(tenant)
        if found is None:
            if len(self._calls) >= TENANTS_MAX:
                self._calls.clear()
            identity = Identity(name="gateway")
            found = self._calls[tenant] = Call(
                protocol=INTERNAL, listener="dispatch", identity=identity, tenant=tenant
            )
        return found

    # ── ClusterListener ─────────────────────────────────────────────────────────────────

    def link_changed(self, link: StoreLink) -> None:
        if link.state is not LinkState.UP or not isinstance(link, TidegateLink):
            return
        key = (link.cluster, link.broker)
        port = self._ports.get(key)
        if port is None or port.link is not link:
            port = self._ports[key] = DispatchPort(self, link)
        if not port.is_open:
            port.is_open = True
            self.tasks.start(port.open(), name=f"open {link.broker}")

    def link_cleared(self) -> None:
        """Only publishers care."""

    def routes_changed(self, cluster: ClusterClient) -> None:
        """Links tell what matters here."""

    def reroute(self, runs: object) -> None:
        """Only the pipeline sends."""


class DispatchPort:
    """The stream of one store (``StreamPort``), and the messages of it that wait here."""

    def __init__(self, owner: Dispatcher, link: TidegateLink) -> None:
        self.link = link
        self.is_open = False
        """A stream stands, or is being opened."""

        self._owner = owner
        self._stream = 0
        self._credit = 0
        self._waiting: list[Delivery] = []
        self._is_running = False
        self._life = 0
        """Rises when the stream is lost: what was taken before has gone back to the store."""

    async def open(self) -> None:
        """Open group and stream; again until it works or the link is gone."""
        # A store we meet for the first time may have taken messages before it was known to us;
        # while nobody subscribes to anything, nobody misses them.
        start = Start.EPOCH if len(self._owner.matching) else Start.END
        spec = GroupSpec(
            name=DISPATCH_NAME, reads=(Read(QUEUE),), start=start, cluster=self.link.cluster
        )
        life = self._life
        while self.link.state is LinkState.UP and life == self._life:
            try:
                group = await self.link.open_group(spec)
                self._stream, self._credit = self.link.new_stream(), CREDIT
                await self.link.open_stream(
                    self._stream, group, spec, self, credit=CREDIT, holds=(), is_resuming=False
                )
                return
            except GatewayError as error:
                logger.warning("late entries of store %s: %s", self.link.broker, error)
                await asyncio.sleep(OPEN_RETRY_S)
        if life == self._life:
            self.is_open = False

    # ── StreamPort ──────────────────────────────────────────────────────────────────────

    def arrived(self, link: StoreLink, deliveries: Sequence[Delivery]) -> None:
        self._waiting += deliveries
        if not self._is_running:
            self._is_running = True
            self._owner.tasks.start(self._run(), name=f"match {link.broker}")

    def ended(self, link: StoreLink, code: Code, hint: str) -> None:
        """Our presence ended there, or this epoch is over: opened again when the link is up."""
        self._forget()

    def lost(self, link: StoreLink) -> None:
        self._forget()

    def _forget(self) -> None:
        self._life += 1
        self._waiting.clear()
        self.is_open = False

    # ── matching ────────────────────────────────────────────────────────────────────────

    async def _run(self) -> None:
        """All that waits, in order, one batch after the other."""
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                life = self._life
                try:
                    await self._answer(batch)
                except GatewayError as error:
                    logger.info("late entries of store %s: %s", self.link.broker, error)
                    self.link.connection.reset("late entries were not answered")
                    return
                if life == self._life:
                    self._credit += len(batch)
                    self.link.set_credit(self._stream, self._credit)
        finally:
            self._is_running = False

    async def _answer(self, batch: Sequence[Delivery]) -> None:
        """Copies first, then index records and acks. Raises GatewayError."""
        good: list[IndexItem] = []
        again: list[AckItem] = []
        copies: list[tuple[IndexItem, Call, Message]] = []
        for delivery in batch:
            tenant, subject = address_of(delivery.message)
            here, elsewhere = self._match(tenant, subject)
            item = _item(delivery, here)
            is_retained = delivery.message.properties.get("TG_RETAIN") == "1"
            (self._owner.matched if here or elsewhere else self._owner.unwanted).inc()
            if elsewhere or is_retained:
                copy = copy_of(delivery.message, subject, elsewhere, is_retained=is_retained)
                copies.append((item, self._owner.call(tenant), copy))
            else:
                good.append(item)
        sends = [self._owner.pipeline.send(call, [message]) for _, call, message in copies]
        for (item, _, _), (result,) in zip(copies, await asyncio.gather(*sends), strict=True):
            if result.code in COPIED:
                good.append(item)
            else:
                again.append(_again(item))
        epoch = batch[0].handle.store_epoch
        if good:
            good.sort(key=lambda item: item.position)
            await self.link.index(epoch, good)
        if again:
            self.link.ack(epoch, again, None)

    def _match(self, tenant: str, subject: str) -> tuple[list[bytes], list[QueueRef]]:
        """(keys of queues that an index record can serve, queues pinned to other stores)."""
        here: list[bytes] = []
        elsewhere: list[QueueRef] = []
        for queue in self._owner.matching.match(tenant, subject):
            is_ours = queue.cluster in ("", self.link.cluster)
            if is_ours and queue.store in ("", self.link.broker):
                here.append(queue.key())
            elif queue.store:
                elsewhere.append(queue)  # readers of a spread queue elsewhere read that cluster
        return here, elsewhere


def address_of(message: StoredMessage) -> tuple[str, str]:
    """(tenant, address): of a topic in a namespace without an address of its own, the bare name."""
    tenant, bare = tenant_and_name(message.topic)
    found = message.properties.get
    return tenant, subject_of(found("TG_SUBJECT", ""), found("originMqttTopic", ""), bare)


def copy_of(
    message: StoredMessage,
    subject: str,
    queues: Sequence[QueueRef],
    *,
    is_retained: bool,
) -> Message:
    """The message for light queues of other stores; with the store's once-key, a repeat is none."""
    properties = message.properties
    head = Head(
        subject=subject,
        topic=message.topic,
        tag=properties.get("TAGS", ""),
        retain=is_retained,
        clears_retained=is_retained and not message.body,
        queues=tuple(queues),
        is_in_topic=False,
    )
    expires_at = properties.get("TG_EXPIRES_AT", "")
    place = f"late\x00{message.cluster}\x00{message.broker}\x00{message.log_position}"
    return Message(
        head,
        message.body,
        message.property_pairs(),
        message_id=message.message_id,
        keys=properties.get("KEYS", ""),
        once_key=place.encode(),
        expires_at_ms=max(number_of(expires_at), 0),
        born_ms=message.born_ms,
        sys_flag=message.sys_flag & PACKING,
        flag=message.flag,
    )


def _item(delivery: Delivery, keys: list[bytes]) -> IndexItem:
    handle = delivery.handle
    return IndexItem(
        delivery.message.log_position, keys, handle.group, handle.position, handle.grant
    )


def _again(item: IndexItem) -> AckItem:
    """Another store did not take its copy: the same message once more, a little later."""
    return AckItem(item.group, item.position, item.grant, AckAction.CHANGE, AGAIN_MS)
