"""
SUBSCRIBE and UNSUBSCRIBE over directory and streams.

The order is the promise: the group reads the new queues at every store, then the rows of the
matching table are written, then every gateway has applied them, then SUBACK. Whatever any
gateway receives afterwards reaches the client; retained values follow SUBACK, then what is live.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from protocols import clock
from protocols.canonical import StoredMessage
from protocols.errors import Refused
from protocols.mqtt.connection import MqttConnection
from protocols.mqtt.fields import PacketError
from protocols.mqtt.front import Front
from protocols.mqtt.groups import is_read, rows
from protocols.mqtt.naming import EXCLUSIVE, mount_point_of
from protocols.mqtt.opened import Opened
from protocols.mqtt.packets import (
    V5,
    Reason,
    Suback,
    Subscribe,
    SubscribeItem,
    Unsuback,
    Unsubscribe,
)
from protocols.mqtt.properties import Property, find_int
from protocols.mqtt.records import subscription_records
from protocols.mqtt.session import Plan, Subscribed
from protocols.mqtt.settings import MqttSettings
from protocols.mqtt.sources import is_allowed_still
from protocols.mqtt.topics import has_wildcard, is_local, is_share, parse_filter
from protocols.mqtt.tracing import trace_refusal
from protocols.subjects import matches

RETAINED_AGAIN_MS: Final = 30_000
"""Retained values that were sent longer ago count as acknowledged when a gateway dies."""

ANSWER_HEAD_BYTES: Final = 1 + 4 + 2 + 1
"""Of SUBACK and UNSUBACK at most: first byte, length, packet id, no properties."""


class Granted(NamedTuple):
    """One filter that the client may have."""

    item: SubscribeItem
    subscribed: Subscribed
    is_new: bool

    @property
    def wants_retained(self) -> bool:
        return _wants_retained(self.item, self.is_new)


def _wants_retained(item: SubscribeItem, is_new: bool) -> bool:
    """[MQTT-3.3.1-9, -10, -11]; never for shared ones [MQTT 5, 4.8.2]."""
    handling = item.retain_handling
    return not is_share(item.topic_filter) and (handling == 0 or (handling == 1 and is_new))


MANY_FILTERS: Final = 50
"""A SUBSCRIBE of more filters takes its turn with others of the kind."""


BREATH: Final = 200
"""After so many filters of one SUBSCRIBE others have their turn: each takes some 20 us."""


class Subscriber:
    """Changes the subscriptions of one session; one change at a time."""

    def __init__(self, opened: Opened, front: Front, connection: MqttConnection) -> None:
        self._opened = opened
        self._front = front
        self._connection = connection

    async def subscribe_in_turn(self, packet: Subscribe) -> None:
        if len(packet.items) <= MANY_FILTERS:
            await self.subscribe(packet)
            return
        async with self._front.many_filters:
            await self.subscribe(packet)

    async def subscribe(self, packet: Subscribe) -> None:
        """
        SUBACK when every gateway knows; then retained values; then live ones.

        Raises PacketError for a request that ends the connection; so does ``unsubscribe``.
        """
        opened = self._opened
        self._check_answer(len(packet.items))
        self._check_offered(packet)
        in_use = {item.subject_filter for item in opened.subscriptions}
        reasons, granted = await self._grant(packet)
        sent_ids: set[str] = set()
        opened.outbox.hold(frozenset(one.subscribed.tag for one in granted if one.is_new))
        try:
            await self._establish(granted, in_use)
        except Refused:
            failed = {one.item.topic_filter for one in granted}
            for one in granted:
                if one.is_new:
                    opened.subscriptions.remove(one.item.topic_filter)
            reasons = [
                Reason.UNSPECIFIED_ERROR if item.topic_filter in failed else reason
                for item, reason in zip(packet.items, reasons, strict=True)
            ]
            granted = []
        for item, reason in zip(packet.items, reasons, strict=True):
            if reason >= Reason.UNSPECIFIED_ERROR:
                self._trace_refusal(item.topic_filter, reason)
        local = [one for one in granted if is_local(one.subscribed.subject_filter)]
        retained = await self._retained(granted)
        if packet.packet_id:  # else nobody asked: an automatic subscription
            self._connection.send(Suback(packet.packet_id, tuple(reasons)))
        for one, messages in retained:
            identifier = one.subscribed.identifier
            plan = Plan(one.subscribed.qos, True, (identifier,) if identifier else ())
            sent_ids |= opened.outbox.send_retained(messages, plan)
        if local:
            self._tell(local)
        opened.start_feed()
        opened.outbox.let_go(sent_ids)

    def _trace_refusal(self, topic_filter: str, reason: int) -> None:
        call, observer = self._opened.call, self._front.services.observer
        name = Reason(reason).name
        trace_refusal(observer, call.client_id, call.peer, "subscribe", name, topic_filter)

    def _check_answer(self, count: int) -> None:
        """SUBACK or UNSUBACK of so many reasons must fit the client [MQTT-3.1.2-24]."""
        is_v5 = self._connection.version == V5
        if is_v5 and count + ANSWER_HEAD_BYTES > self._opened.packet_bytes_max:
            raise PacketError(Reason.PACKET_TOO_LARGE, f"an answer to {count} filters")

    def _check_offered(self, packet: Subscribe) -> None:
        """What CONNACK has told that is not there a 5.0 client does not ask for [3.2.2.3]."""
        settings = self._front.settings
        if self._connection.version != V5 or not packet.packet_id:
            return
        for item in packet.items:
            if is_share(item.topic_filter) and not settings.shared_subscriptions:
                raise PacketError(Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED, item.topic_filter)
            if has_wildcard(item.topic_filter) and not settings.wildcard_subscriptions:
                raise PacketError(Reason.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED, item.topic_filter)

    async def _retained(
        self, granted: Sequence[Granted]
    ) -> list[tuple[Granted, list[StoredMessage]]]:
        """Who gets which values, asked for in one go; those without any are left out."""
        wanting = [
            one
            for one in granted
            if one.wants_retained and not is_local(one.subscribed.subject_filter)
        ]
        if not wanting:
            return []
        filters = [one.subscribed.subject_filter for one in wanting]
        found = await self._front.services.streams.retained(self._opened.call.tenant, filters)
        if self._front.settings.checks_retained_source:
            permission = self._front.services.permission
            found = [
                value
                for value in found
                if is_allowed_still(permission, value.properties_text, value.subject)
            ]
        if not found:
            return []
        matched = [
            (one, [value for value in found if matches(subject_filter, value.subject)])
            for one, subject_filter in zip(wanting, filters, strict=True)
        ]
        return [(one, values) for one, values in matched if values]

    def _tell(self, local: list[Granted]) -> None:
        """Values of ``$SYS``, now and when they change."""
        opened, board = self._opened, self._front.board
        items = [one.subscribed for one in local if one.wants_retained]
        board.send_retained(opened, self._connection, items)
        board.follow(opened, self._connection)

    async def _grant(self, packet: Subscribe) -> tuple[list[int], list[Granted]]:
        """Ask the ACL for each filter; a reason each, in order, and those that may be."""
        opened, settings = self._opened, self._front.settings
        identifier = find_int(packet.properties, Property.SUBSCRIPTION_IDENTIFIER, 0)
        reasons: list[int] = []
        granted: list[Granted] = []
        for count, item in enumerate(packet.items, 1):
            if count % BREATH == 0:
                await asyncio.sleep(0)
            parts = parse_filter(item.topic_filter)
            assert parts is not None  # the codec has seen to it
            if self._connection.is_bridge:  # what it sent must not come back, nor lose its flag
                item = item._replace(no_local=not parts.share, retain_as_published=True)
            if item.topic_filter.count("/") >= settings.topic_levels_max:
                reasons.append(Reason.TOPIC_FILTER_INVALID)
                continue
            if packet.packet_id and not _is_offered(item, settings):
                reasons.append(Reason.UNSPECIFIED_ERROR)
                continue
            subject_filter = parts.subject_filter
            if not is_local(subject_filter):
                subject_filter = opened.naming.filter(subject_filter)
            is_exclusive = item.topic_filter.startswith(EXCLUSIVE)
            if not subject_filter or (parts.share and EXCLUSIVE in item.topic_filter):
                reasons.append(Reason.TOPIC_FILTER_INVALID)
                continue
            if not self._front.services.permission.is_allowed(
                opened.call, "subscribe", subject=subject_filter, qos=item.qos
            ):
                reasons.append(settings.subscribe_denied or min(item.qos, settings.qos_max))
                continue
            is_new = opened.subscriptions.get(item.topic_filter) is None
            if is_new and len(opened.subscriptions) >= settings.subscriptions_max:
                reasons.append(Reason.QUOTA_EXCEEDED)
                continue
            if is_exclusive and is_new and not await self._claim(subject_filter):
                reasons.append(Reason.QUOTA_EXCEEDED)
                continue
            qos = min(item.qos, settings.qos_max)
            asked_ms = clock.wall_ms() if qos and _wants_retained(item, is_new) else 0
            subscribed = opened.subscriptions.put(
                item, qos, identifier, subject_filter, asked_ms=asked_ms
            )
            reasons.append(qos)
            granted.append(Granted(item, subscribed, is_new))
        return reasons, granted

    async def _claim(self, subject_filter: str) -> bool:
        """``$exclusive/``: one session at a time, over all gateways."""
        try:
            return await self._front.sessions.claim(self._opened.owned.record, subject_filter)
        except Refused:
            return False

    async def _establish(self, granted: list[Granted], in_use: set[str]) -> None:
        """Read the queues everywhere, remember, write the rows, wait for every gateway."""
        if not granted:
            return
        opened, directory = self._opened, self._front.services.directory
        new = [one.subscribed for one in granted if one.is_new]
        if any(is_read(item) for item in new):
            await self._read()
        for one in granted:
            if one.subscribed.share and one.is_new:
                await opened.open_share(one.subscribed)
            elif one.subscribed.share:
                opened.replace_share(one.subscribed)
        await self._save()
        filters = [item.subject_filter for item in new if _is_routed(item, in_use)]
        if filters:
            version = await directory.subscribe(
                rows(opened.owned.record, filters),
                tenant=opened.call.tenant,
                is_bound=not opened.is_kept,
            )
            await directory.barrier(version)

    async def _read(self) -> None:
        """Make the session's group read what is subscribed now."""
        feed = self._opened.feed
        if feed is None:
            await self._opened.open_feed()
        elif feed.stream is not None:
            await feed.stream.change_reads(self._opened.own_spec())

    async def _save(self) -> None:
        """A kept session's subscriptions are in its record."""
        opened = self._opened
        if not opened.is_kept:
            return
        records = subscription_records(list(opened.subscriptions))
        has_read = any(is_read(item) for item in opened.subscriptions)
        given_up = opened.given_up
        await opened.save(
            lambda old: msgspec.structs.replace(
                old,
                subscriptions=records,
                given_up=given_up,
                has_group=old.has_group or has_read,
            )
        )

    async def unsubscribe(self, packet: Unsubscribe) -> None:
        """Nothing new once UNSUBACK is out; what is in flight finishes [MQTT-3.10.4-3]."""
        opened = self._opened
        self._check_answer(len(packet.topic_filters))
        gone = [opened.subscriptions.remove(name) for name in packet.topic_filters]
        removed = [item for item in gone if item is not None]
        in_use = {item.subject_filter for item in opened.subscriptions}
        unused = [item.subject_filter for item in removed if item.subject_filter not in in_use]
        if unused:
            await self._front.services.directory.subscribe(
                [],
                rows(opened.owned.record, unused),
                tenant=opened.call.tenant,
                is_bound=not opened.is_kept,
            )
        if any(is_read(item) for item in removed):
            await self._read()
        for item in removed:
            feed = opened.share_feeds.pop(item.topic_filter, None)
            if feed is not None:
                await feed.close(drop_group=False)
                await self._front.sessions.leave_share(opened.owned.record, item)
        for item in removed:
            if item.topic_filter.startswith(EXCLUSIVE):
                await self._front.sessions.give_up(opened.owned.record, item.subject_filter)
        if removed:
            await self._save()
        reasons = tuple(
            Reason.NO_SUBSCRIPTION_EXISTED if item is None else Reason.SUCCESS for item in gone
        )
        is_v5 = self._connection.version == V5
        self._connection.send(Unsuback(packet.packet_id, reasons if is_v5 else ()))


def _is_offered(item: SubscribeItem, settings: MqttSettings) -> bool:
    """A 5.0 client that asks for what is not is gone by now."""
    return (settings.shared_subscriptions or not is_share(item.topic_filter)) and (
        settings.wildcard_subscriptions or not has_wildcard(item.topic_filter)
    )


def _is_routed(item: Subscribed, in_use: set[str]) -> bool:
    """It needs a row of the matching table that the session does not have."""
    return item.subject_filter not in in_use and not is_local(item.subject_filter)


def _retained_again(opened: Opened) -> list[Subscribe]:
    """
    What has the retained values sent again that a connection may not have acknowledged.

    It subscribed a moment before it was cut off from whoever would have put them aside.
    """
    if not opened.owned.is_cut:
        return []
    since_ms = clock.wall_ms() - RETAINED_AGAIN_MS
    return [
        Subscribe(
            0,
            (SubscribeItem(one.topic_filter, one.qos, one.no_local, one.retain_as_published),),
            ((Property.SUBSCRIPTION_IDENTIFIER, one.identifier),) if one.identifier else (),
        )
        for one in opened.subscriptions
        if one.asked_ms > since_ms
    ]


def _automatic_items(opened: Opened) -> tuple[SubscribeItem, ...]:
    """What the listener subscribes every client to, as far as this session does not have it."""
    items: list[SubscribeItem] = []
    for entry in opened.front.settings.auto_subscribe:
        topic_filter = mount_point_of(entry.topic, opened.call)
        if topic_filter is None or parse_filter(topic_filter) is None:
            continue
        if opened.subscriptions.get(topic_filter) is None:
            items.append(
                SubscribeItem(
                    topic_filter,
                    entry.qos,
                    no_local=entry.no_local,
                    retain_handling=entry.retain_handling,
                )
            )
    return tuple(items)


def unasked(opened: Opened) -> list[Subscribe]:
    """SUBSCRIBEs of the server's own, when a connection begins."""
    found = _retained_again(opened)
    if items := _automatic_items(opened):
        found.append(Subscribe(0, items))
    return found
