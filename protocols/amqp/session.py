"""
One connected AMQP client: from the events of its connection to its channels, and back-pressure.

It owns what dies with the connection: channels, exclusive queues, the call.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from protocols import clock
from protocols.amqp import consuming, replies
from protocols.amqp.addresses import AMQ_TOPIC, filters_of
from protocols.amqp.channel import Outcome
from protocols.amqp.channelwork import ChannelWork, Work
from protocols.amqp.codec import Ack, Call, Oversize, Publish
from protocols.amqp.connection import AmqpConnection
from protocols.amqp.consumer import Consumer
from protocols.amqp.events import (
    ChannelEnded,
    ChannelOpened,
    Ended,
    Event,
    LoginRequested,
    OpenRequested,
    SecretRenewed,
)
from protocols.amqp.fields import text_of
from protocols.amqp.publishing import Publisher
from protocols.amqp.replies import AmqpFault
from protocols.amqp.topology import Queue
from protocols.canonical import Call as CanonicalCall
from protocols.canonical import Identity, ReceiptHandle
from protocols.doors import client_certificate
from protocols.driver import Driver
from protocols.errors import Code, GatewayError
from protocols.groups import InvisibleTimeChange
from protocols.observing import ClientInfo
from protocols.pipeline import Credentials

if TYPE_CHECKING:
    from protocols.amqp.server import AmqpServer

logger = logging.getLogger("tidegate.amqp")

WAITING_MAX: Final = 4096
"""Frames that may wait behind a method in progress before the socket is not read."""

THROTTLE_PAUSE_S: Final = 0.2
"""How long a throttled publisher is not read."""

CREDENTIALS_S_MAX: Final = 3600.0
"""Of one timer; credentials that last longer are looked at again."""

FULL_S: Final = 1.0
"""How long a publisher is told to wait for a full store, which looks once a second for room."""

UNAUTHENTICATED: Final = Identity(name="", is_anonymous=True)


class Session:
    """Glue of one socket: driver, connection, channels, pipeline."""

    def __init__(self, server: "AmqpServer", name: str) -> None:
        self.server = server
        self.settings = server.settings
        self.services = server.services
        self.topology = server.topology
        self.operations = server.operations
        self.registry = server.registry
        self.name = name
        """Unique over all gateways: owner of exclusive queues."""

        self.connection = AmqpConnection(
            now=clock.monotonic(),
            body_bytes_max=server.settings.message_bytes_max,
            heartbeat_s=server.settings.heartbeat_s,
            has_certificates=server.settings.has_certificates,
        )
        self.driver: Driver[Event] = Driver(
            self.connection,
            handle=self._handle,
            lost=self._lost,
            resumed=self._drained,
            opened=self._opened,
        )
        self.call = CanonicalCall(protocol="amqp", listener=server.name, identity=UNAUTHENTICATED)
        self.vhost = "/"
        self.user = ""
        self.channels: dict[int, ChannelWork] = {}
        self.exclusive_queues: set[str] = set()
        self.publisher = Publisher(self.topology, self.vhost, "", "")
        self.done = asyncio.Event()
        """Everything the connection held is given back."""

        self._identity = UNAUTHENTICATED
        self._forget: Callable[[], None] = lambda: None
        self._loop = asyncio.get_running_loop()
        self._expiring: asyncio.TimerHandle | None = None
        self._is_over = False
        self._pauses: set[str] = set()
        self._blocks: set[str] = set()
        self._waiting_count = 0
        self._drain_waiters: list[Callable[[], None]] = []
        self._confirming: list[ChannelWork] = []

    # ── events ──────────────────────────────────────────────────────────────────────────

    def _opened(self, driver: Driver[Event]) -> None:
        self.server.sessions.add(self)

    def _handle(self, driver: Driver[Event], events: Sequence[Event]) -> None:
        """All events of one read; those of one channel in a row go there together."""
        run: list[Work] = []
        number = 0
        for event in events:
            if isinstance(event, (Publish, Ack, Call, Oversize, ChannelEnded)):
                if event.channel != number:
                    self._feed(number, run)
                    run, number = [], event.channel
                run.append(event)
            else:
                self._feed(number, run)
                run = []
                self._control(event)
        self._feed(number, run)

    def _feed(self, number: int, run: list[Work]) -> None:
        channel = self.channels.get(number)
        if channel is not None and run:
            channel.feed(run)

    def _control(self, event: Event) -> None:
        if isinstance(event, ChannelOpened):
            self.channels[event.channel] = ChannelWork(self, event.channel)
        elif isinstance(event, LoginRequested):
            self.start(self._log_in(event), "login")
        elif isinstance(event, OpenRequested):
            self._open(event.virtual_host)
        elif isinstance(event, SecretRenewed):
            self.start(self._renew(event.secret), "secret")
        elif isinstance(event, Ended):
            if event.reason:
                logger.info("client %s: %s", self.driver.peer, event.reason)
            self._over()

    async def _log_in(self, event: LoginRequested) -> None:
        tls = self.settings.tls
        shown = client_certificate(self.driver).identity(tls.identity if tls else "cn")
        identity = None
        if shown or not event.is_external:
            identity = await self._identify(
                event.user, event.password, shown if event.is_external else ""
            )
        now = clock.monotonic()
        if identity is None:
            events = self.connection.refuse_login(now=now)
        else:
            self._identity = identity
            self.user = event.user or shown
            events = self.connection.accept_login(now=now)
        self._handle(self.driver, events)
        self.driver.flush_soon()

    async def _identify(self, user: str, secret: bytes, certificate_name: str) -> Identity | None:
        return await self.services.authenticator.authenticate(
            Credentials(
                protocol="amqp",
                listener=self.server.name,
                user=user,
                password=secret,
                certificate_name=certificate_name,
                client_id=text_of(self.connection.client_properties, "connection_name"),
                peer=self.driver.peer,
                has_credentials=not certificate_name,
            )
        )

    async def _renew(self, secret: bytes) -> None:
        """A new token in the place of one that will expire; it has to be the same identity's."""
        identity = await self._identify(self.user, secret, "")
        if identity is None or identity.name != self._identity.name:
            text = "New secret was refused by one of the backends"
            self.close(AmqpFault(replies.NOT_ALLOWED, text, method=0x000A0046))
            return
        self._end_with(identity.expires_at_ms)
        self.connection.accept_secret()
        self.driver.flush_soon()

    def _end_with(self, expires_at_ms: int) -> None:
        """Close when the credentials end; 0: they do not."""
        if self._expiring is not None:
            self._expiring.cancel()
        if not expires_at_ms or self._is_over:
            return
        left_s = (expires_at_ms - clock.wall_ms()) / 1000
        if left_s <= 0:
            self.close(AmqpFault(replies.CONNECTION_FORCED, "credential expired"))
            return
        delay_s = min(left_s, CREDENTIALS_S_MAX)
        self._expiring = self._loop.call_later(delay_s, self._end_with, expires_at_ms)

    def _open(self, vhost: str) -> None:
        now = clock.monotonic()
        if vhost not in self.settings.vhosts:
            fault = AmqpFault(replies.NOT_ALLOWED, f"vhost {vhost} not found", method=0x000A0028)
            self._handle(self.driver, self.connection.close(fault, now=now))
            return
        self.vhost = vhost
        self.call = CanonicalCall(
            protocol="amqp",
            listener=self.server.name,
            identity=self._identity,
            tenant=self.settings.tenant_of(vhost),
            client_id=text_of(self.connection.client_properties, "connection_name"),
            peer=self.driver.peer,
        )
        self.publisher = Publisher(self.topology, vhost, self.call.tenant, self.user)
        if self.services.draining.is_on:
            self._move()
            return
        if self.services.admit(self.call) != Code.OK:
            text = f"access to vhost '{vhost}' refused: connection limit is reached"
            fault = AmqpFault(replies.NOT_ALLOWED, text, method=0x000A0028)
            self._handle(self.driver, self.connection.close(fault, now=now))
            return
        info = ClientInfo(
            "amqp",
            self.server.name,
            self.call.client_id or self.driver.peer,
            self._identity.name,
            self.driver.peer,
            clock.wall_ms(),
            self.call.tenant,
        )
        self._forget = self.services.clients.joined(info, self._kick, self._move)
        self._end_with(self._identity.expires_at_ms)
        self._handle(self.driver, self.connection.accept_open(now=now))

    def _kick(self) -> None:
        self.close(AmqpFault(replies.CONNECTION_FORCED, "closed by an operator"))

    def _move(self) -> None:
        """The gateway drains; AMQP 0-9-1 has no redirect, so the text says where to go."""
        elsewhere = self.services.draining.another(self.server.name)
        hint = f" to {elsewhere}" if elsewhere else ""
        self.close(AmqpFault(replies.CONNECTION_FORCED, f"drained: connect again{hint}"))

    # ── the end ─────────────────────────────────────────────────────────────────────────

    def close(self, fault: AmqpFault) -> None:
        """From our side, in AMQP's words."""
        events = self.connection.close(fault, now=clock.monotonic())
        self._handle(self.driver, events)
        self.driver.flush_soon()

    def exclusive_gone(self, name: str, *, is_lost: bool) -> None:
        """
        One of its exclusive queues has ended. *is_lost*: not by a client or the queue's own terms
        but with this gateway's lease, so the client shall connect again and declare what it needs.
        """
        if name not in self.exclusive_queues:
            return
        self.exclusive_queues.discard(name)
        if is_lost and not self._is_over:
            text = f"exclusive queue '{name}' is gone with this gateway's lease"
            self.close(AmqpFault(replies.CONNECTION_FORCED, text))

    def _lost(self, driver: Driver[Event]) -> None:
        self._over()

    def _over(self) -> None:
        """Once: give back what the connection held."""
        if self._is_over:
            return
        self._is_over = True
        self._forget()
        self._end_with(0)
        channels = list(self.channels.values())
        self.channels.clear()
        for channel in channels:
            channel.is_open = False
        self.start(self._release(channels), "release")

    async def _release(self, channels: Sequence[ChannelWork]) -> None:
        try:
            for channel in channels:
                await channel.release()
            for name in list(self.exclusive_queues):
                queue = self.topology.queues.get((self.vhost, name))
                if queue is not None and queue.record.owner == self.name:
                    await self.operations.delete_queue(queue)
        except GatewayError as error:
            logger.warning("connection %s: %s", self.name, error)
        finally:
            self.connection.end_close(now=clock.monotonic())
            self.driver.flush_soon()
            self.server.sessions.discard(self)
            self.services.pipeline.forget(self.call)
            self.done.set()

    def drop_channel(self, channel: ChannelWork) -> None:
        """A channel that we closed: its deliveries return."""
        self.channels.pop(channel.number, None)
        self.start(channel.release(), f"channel {channel.number}")

    # ── back-pressure ───────────────────────────────────────────────────────────────────

    def waiting(self, change: int) -> None:
        """Frames that wait behind a method in progress."""
        self._waiting_count += change
        if self._waiting_count > WAITING_MAX:
            self._pause("waiting")
        elif self._waiting_count < WAITING_MAX // 2:
            self._unpause("waiting")

    def watch_congestion(self) -> None:
        """After a post: stop reading this publisher while the stores are behind."""
        pipeline = self.services.pipeline
        if "congested" not in self._pauses and pipeline.is_congested(self.call):
            self._pause("congested")
            self._block("congested", "the store is behind")
            pipeline.when_clear(self._clear, self.call)

    def _clear(self) -> None:
        self._unpause("congested")
        self._unblock("congested")

    def published(self, count: int, worst: Code) -> None:
        """Results of a run have come."""
        self.server.meters.published.inc(count)
        if worst == Code.OK:
            return
        self.server.meters.refused.inc()
        if worst == Code.TOO_MANY_REQUESTS and "throttled" not in self._pauses:
            self._pause("throttled")
            self._loop.call_later(THROTTLE_PAUSE_S, self._unpause, "throttled")
        elif worst == Code.MASTER_PERSISTENCE_TIMEOUT and "full" not in self._blocks:
            # it is read on all the same: acks are what makes room
            self._block("full", "low on disk")
            self._loop.call_later(FULL_S, self._unblock, "full")

    def _block(self, why: str, text: str) -> None:
        """Ask the client to publish nothing for now."""
        self._blocks.add(why)
        self.connection.block(text)
        self.driver.flush_soon()

    def _unblock(self, why: str) -> None:
        self._blocks.discard(why)
        if not self._blocks and not self._is_over:
            self.connection.unblock()
            self.driver.flush_soon()

    def _pause(self, why: str) -> None:
        if not self._pauses:
            self.driver.pause_reading()
            self.connection.is_deaf = True
        self._pauses.add(why)

    def _unpause(self, why: str) -> None:
        if why not in self._pauses:
            return
        self._pauses.discard(why)
        if not self._pauses:
            self.connection.is_deaf = False
            self.driver.resume_reading()

    def when_drained(self, resume: Callable[[], None]) -> None:
        """Call *resume* when the peer has read what waits for it."""
        self._drain_waiters.append(resume)

    def _drained(self, driver: Driver[Event]) -> None:
        waiters, self._drain_waiters = self._drain_waiters, []
        for resume in waiters:
            resume()

    # ── for the channels ────────────────────────────────────────────────────────────────

    def start(self, work: Coroutine[Any, Any, object], name: str) -> None:
        self.server.tasks.start(work, name=f"{self.name} {name}")

    def require_readable(self, queue: Queue) -> None:
        """
        Consume, get, purge. Raises AmqpFault 403.

        An exclusive queue is its connection's own: what may flow in was judged at bind.
        """
        name = queue.record.name
        if not queue.record.exclusive and not self._may("consume", name):
            raise self._refused("queue", name)

    def require_declarable(self, what: str, name: str) -> None:
        """Who may neither publish to nor consume from a name may not make it. Raises 403."""
        if not self._may("consume", name) and not self._may("publish", name):
            raise self._refused(what, name)

    def require_bindable(self, exchange: str, key: str) -> None:
        """
        A binding reads: addresses from ``amq.topic``, else what the exchange gets. Raises 403.
        """
        if exchange == AMQ_TOPIC:
            allowed = self.services.permission.is_allowed
            if all(allowed(self.call, "consume", subject=item) for item in filters_of(key)):
                return
        elif self._may("consume", exchange):
            return
        raise self._refused("exchange", exchange)

    def _may(self, operation: str, name: str) -> bool:
        return self.services.permission.is_allowed(self.call, operation, subject=name, topic=name)

    def _refused(self, what: str, name: str) -> AmqpFault:
        return AmqpFault(
            replies.ACCESS_REFUSED,
            f"access to {what} '{name}' in vhost '{self.vhost}' refused for user '{self.user}'",
        )

    def confirm_soon(self, channel: ChannelWork) -> None:
        """Many results of a tick become one ack."""
        if not self._confirming:
            asyncio.get_running_loop().call_soon(self._confirm)
        if channel not in self._confirming:
            self._confirming.append(channel)

    def _confirm(self) -> None:
        channels, self._confirming = self._confirming, []
        for channel in channels:
            channel.take_confirms()
        self.driver.flush()

    def close_stream(self, consumer: Consumer) -> None:
        """In the background: what it still held returns."""
        self.start(consumer.close(), f"close {consumer.tag}")

    def settle_popped(
        self, channel: ChannelWork, handles: list[ReceiptHandle], outcome: Outcome
    ) -> None:
        """Messages of basic.get; what comes next on the channel waits where it may matter."""
        count = channel.acking if outcome is Outcome.ACKED else channel.busy
        count(1)
        self.start(self._settle_popped(count, handles, outcome), "settle")

    async def _settle_popped(
        self, count: Callable[[int], None], handles: list[ReceiptHandle], outcome: Outcome
    ) -> None:
        try:
            if outcome is Outcome.ACKED:
                await self.services.pipeline.ack(self.call, handles)
            elif outcome is Outcome.REJECTED:
                await self.services.streams.reject(self.call, handles)
            else:
                await self.return_popped(handles)
        except GatewayError as error:
            logger.warning("connection %s: %s", self.name, error)
        finally:
            count(-1)

    async def return_popped(self, handles: Sequence[ReceiptHandle]) -> None:
        """Messages of basic.get go back to their place."""
        if handles:
            changes = [InvisibleTimeChange(handle, 0) for handle in handles]
            await self.services.pipeline.change_invisible_time(self.call, changes)

    async def renew(self) -> None:
        """Keep hidden what the client got and has not settled."""
        for channel in list(self.channels.values()):
            held = [item for item in channel.unsettled.by_tag.values() if item.consumer is None]
            if not held:
                continue
            changes = [
                InvisibleTimeChange(item.handle, consuming.GET_INVISIBLE_MS) for item in held
            ]
            results = await self.services.pipeline.change_invisible_time(self.call, changes)
            for item, result in zip(held, results, strict=True):
                if result.handle is not None and item.tag in channel.unsettled.by_tag:
                    channel.unsettled.by_tag[item.tag] = item._replace(handle=result.handle)


def make_session(server: "AmqpServer") -> Session:
    """A session with a name of its own."""
    directory = server.services.directory
    number = next(server.numbers)
    return Session(server, f"{directory.gateway}/{directory.gateway_epoch}/{number}")
