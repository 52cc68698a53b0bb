"""
Bridges to other brokers: what routes send there waits in a light queue of ours until it is gone.

A message for a bridge is stored like any other, in the queue ``bridge/<name>``; one gateway at a
time, the one whose name stands in the directory record ``bridge/<name>``, carries it over and
acknowledges it here when the other side has. While the link is down the stores keep it; when the
gateway dies its lease ends, the record with it, and another one goes on. What comes from the
other side is acknowledged there when a store of ours has it.

No message goes in circles: what came over a bridge is never sent back over it, and of what we
sent, the copy that our own subscription there brings back is dropped.
"""

import asyncio
import contextlib
import logging
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Final, NamedTuple, Protocol

from gateway.bridge_queues import PREFIX, bridge_queue
from gateway.config import BridgeConfig, ClusterConfig
from protocols import clock, subjects
from protocols.canonical import Call, Delivery, Head, Identity, Message, ReceiptHandle, Right
from protocols.directory import Put, Record
from protocols.errors import Code, GatewayError, Refused
from protocols.groups import GroupSpec, Read
from protocols.pipeline import DeliveryStream, Services
from protocols.stored_names import number_of
from protocols.tasks import Tasks

logger = logging.getLogger("tidegate.bridges")

RETRY_S_MIN: Final = 0.5
"""Before the link is tried again for the first time; doubled each time, with jitter, up to
``retry_s_max``."""

STORE_AGAIN_S: Final = 1.0
"""How long what came in waits while our stores cannot take it; it is not acknowledged yet."""

ECHO_S: Final = 10.0
ECHOES_MAX: Final = 10_000
"""Messages whose coming back is awaited, and for how long."""

FINAL: Final = frozenset(
    (Code.FORBIDDEN, Code.ILLEGAL_TOPIC, Code.MESSAGE_BODY_TOO_LARGE, Code.TOPIC_NOT_FOUND)
)
"""Refusals that trying again does not mend: counted and dropped."""


class BridgeError(GatewayError):
    """The other broker cannot be reached, or does not answer."""


class Incoming(NamedTuple):
    """One message from the other side."""

    topic: str
    body: bytes
    qos: int
    retain: bool


class _Arrival(NamedTuple):
    """One that waits to be stored."""

    message: Message
    stored: "asyncio.Future[None]"


class Link(Protocol):
    """A connection to the other broker; lost links are not mended but made anew."""

    async def open(self, receive: Callable[[Incoming], Awaitable[None]]) -> None:
        """
        Connect and subscribe. *receive* returns when the message may be acknowledged.

        Raises BridgeError.
        """
        ...

    def takes(self, topic: str) -> bool:
        """Whether the other side can have such a name."""
        ...

    async def publish(self, topic: str, body: bytes, qos: int, retain: bool) -> None:
        """Returns when the other side has it. Raises BridgeError."""
        ...

    async def lost(self) -> None:
        """Wait until the link is gone."""
        ...

    async def close(self) -> None: ...


class Bridge:
    """One bridge, as far as this gateway is concerned."""

    def __init__(
        self,
        name: str,
        config: BridgeConfig,
        services: Services,
        make_link: Callable[[], Link],
    ) -> None:
        self.name = name
        self._key = PREFIX + name
        self._config = config
        self._services = services
        self._make_link = make_link
        self._call = Call(
            protocol="mqtt",
            listener=self._key,
            identity=Identity(name=self._key, rights=(Right(True, ("all",), "#"),)),
            client_id=self._key,
        )
        self._spec = GroupSpec(name=self._key, reads=(Read(bridge_queue(name)),))
        self._echoes: OrderedDict[bytes, float] = OrderedDict()
        self._heads: OrderedDict[tuple[str, int, bool], Head] = OrderedDict()
        self._tasks = Tasks(self._key)
        self._may_own = asyncio.Event()
        self._is_up = False
        self._incoming: list[_Arrival] = []
        self._is_storing = False
        metrics = services.metrics
        self._sent = metrics.counter("bridge_sent", "Messages the other side took", bridge=name)
        self._received = metrics.counter(
            "bridge_received", "Messages from the other side that were stored", bridge=name
        )
        self._dropped = metrics.counter(
            "bridge_dropped", "Messages that could not be carried over", bridge=name
        )
        metrics.gauge(
            "bridge_up", "1: this gateway has the link", lambda: float(self._is_up), bridge=name
        )
        self._undo = services.directory.watch(self._key, self._changed)

    def start(self) -> None:
        self._tasks.start(self._run(), name="run")

    async def close(self) -> None:
        self._undo()
        await self._tasks.close()
        with contextlib.suppress(Refused):
            await self._services.directory.put([Put(self._key, None, self._own_version())])

    # ── whose turn it is ────────────────────────────────────────────────────────────────

    def _own_version(self) -> int:
        found = self._services.directory.get(self._key)
        is_ours = found is not None and self._is_ours(found)
        return found.version if found is not None and is_ours else -1

    def _is_ours(self, record: Record) -> bool:
        directory = self._services.directory
        return record.value is not None and (record.gateway, record.gateway_epoch) == (
            directory.gateway,
            directory.gateway_epoch,
        )

    def _changed(self, records: Sequence[Record]) -> None:
        """The record went: whoever writes first has it."""
        if any(record.key == self._key for record in records):
            self._may_own.set()

    async def _run(self) -> None:
        while True:
            try:
                await self._services.streams.open_group(self._call, self._spec)
                if await self._own():
                    await self._carry()
            except Refused as error:
                logger.info("bridge %s: %s", self.name, error)
            await asyncio.sleep(RETRY_S_MIN)

    async def _own(self) -> bool:
        """Wait until the record is ours; False: look again."""
        self._may_own.clear()
        directory = self._services.directory
        found = directory.get(self._key)
        if found is None or found.value is None:
            put = Put(self._key, directory.gateway.encode(), 0, is_bound=True)
            (result,) = await directory.put([put])
            found = result.record
        if self._is_ours(found):
            return True
        await self._may_own.wait()
        return False

    # ── carrying ────────────────────────────────────────────────────────────────────────

    async def _carry(self) -> None:
        """Hold the link, and again, for as long as the record is ours."""
        wait_s = RETRY_S_MIN
        while self._own_version() >= 0:
            link = self._make_link()
            try:
                await link.open(self._receive)
                self._is_up = True
                logger.info("bridge %s is up", self.name)
                began = clock.monotonic()
                await self._pump(link)
                if clock.monotonic() - began > self._config.retry_s_max:
                    wait_s = RETRY_S_MIN
            except BridgeError as error:
                logger.warning("bridge %s: %s", self.name, error)
            finally:
                self._is_up = False
                await link.close()
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
            wait_s = min(wait_s * 2, self._config.retry_s_max)

    async def _pump(self, link: Link) -> None:
        """Send what waits until the link or the record is lost. Raises BridgeError, Refused."""
        sink = _Sink(self._config.inflight_max)
        stream = await self._services.streams.open(
            self._call, self._spec, sink, credit=self._config.inflight_max
        )
        sending = Tasks(f"{self._key} sending")
        ends = [
            sending.start(link.lost(), name="lost"),
            sending.start(self._lost_record(), name="record"),
            sending.start(sink.over.wait(), name="stream"),
            sending.start(self._send_all(link, stream, sink, sending), name="send"),
        ]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await sending.close()
            await stream.close()

    async def _lost_record(self) -> None:
        while self._own_version() >= 0:
            self._may_own.clear()
            await self._may_own.wait()

    async def _send_all(
        self, link: Link, stream: DeliveryStream, sink: "_Sink", sending: Tasks
    ) -> None:
        """Start each in order; return at the first that fails."""
        failed = asyncio.Event()
        watching = sending.start(failed.wait(), name="failed")
        while not failed.is_set():
            getting = sending.start(sink.queue.get(), name="next")
            await asyncio.wait({getting, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not getting.done():
                return
            delivery = getting.result()
            sending.start(
                self._send(link, delivery, partial(sink.done, stream), failed), name="one"
            )

    async def _send(
        self,
        link: Link,
        delivery: Delivery,
        done: Callable[[ReceiptHandle], None],
        failed: asyncio.Event,
    ) -> None:
        message = delivery.message
        expires_at = message.properties.get("TG_EXPIRES_AT", "")
        is_expired = 0 <= number_of(expires_at) <= clock.wall_ms()
        if is_expired or message.properties.get("TG_CLIENT") == self._key:
            done(delivery.handle)
            return
        topic = self._config.remote_prefix + message.subject
        is_name = subjects.is_valid_filter(topic) and not subjects.has_wildcard(topic)
        if not is_name or not link.takes(topic):
            self._dropped.inc()
            done(delivery.handle)
            return
        qos = min(delivery.qos, self._config.qos)
        self._await_echo(topic, message.body)
        try:
            await link.publish(topic, message.body, qos, delivery.retain)
        except BridgeError as error:
            logger.info("bridge %s: %s: again when the link is back", self.name, error)
            failed.set()
            return
        self._sent.inc()
        done(delivery.handle)

    # ── from the other side ─────────────────────────────────────────────────────────────

    async def _receive(self, incoming: Incoming) -> None:
        """Returns when it is stored, or never will be. In the order of the calls."""
        if self._is_echo(incoming.topic, incoming.body):
            return
        message = Message(self._head(incoming), incoming.body)
        stored = asyncio.get_running_loop().create_future()
        self._incoming.append(_Arrival(message, stored))
        if not self._is_storing:
            self._is_storing = True
            self._tasks.start(self._store_all(), name="store")
        await stored

    async def _store_all(self) -> None:
        """What came while a batch was under way is the next one."""
        batch: list[_Arrival] = []
        try:
            while self._incoming:
                batch, self._incoming = self._incoming, []
                await self._store(batch)
        finally:
            self._is_storing = False
            for one in batch:  # if that failed, the other side sends them again
                one.stored.cancel()

    async def _store(self, batch: "list[_Arrival]") -> None:
        """What our stores cannot take now is tried again before anything that came later."""
        while batch := [one for one in batch if not one.stored.done()]:  # cancelled: comes again
            messages = [one.message for one in batch]
            results = await self._services.pipeline.send(self._call, messages)
            for one, result in zip(batch, results, strict=True):
                if result.is_stored:
                    self._received.inc()
                elif result.code in FINAL:
                    subject = one.message.head.subject
                    logger.warning("bridge %s: %s: %s", self.name, subject, result.hint)
                    self._dropped.inc()
                else:
                    continue
                if not one.stored.done():
                    one.stored.set_result(None)
            if not all([one.stored.done() for one in batch]):
                await asyncio.sleep(STORE_AGAIN_S)

    def _head(self, incoming: Incoming) -> Head:
        subject = self._local_name(incoming.topic)
        key = (subject, incoming.qos, incoming.retain)
        head = self._heads.get(key)
        if head is None:
            head = self._heads[key] = Head(
                subject=subject,
                tag="mqtt_proxy",
                qos=incoming.qos,
                retain=incoming.retain,
                order_key=self._key,
                properties=(("mqtt_topic", subject), ("mqtt_qos", str(incoming.qos))),
            )
            if len(self._heads) > 1024:
                self._heads.popitem(last=False)
        return head

    def _local_name(self, topic: str) -> str:
        for entry in self._config.receive:
            if subjects.matches(entry.topic, topic):
                return entry.local_prefix + topic
        return topic

    # ── what comes back ─────────────────────────────────────────────────────────────────

    def _await_echo(self, topic: str, body: bytes) -> None:
        """Our subscription there covers what we send there: it will come back once."""
        if not any(subjects.matches(entry.topic, topic) for entry in self._config.receive):
            return
        self._echoes[_digest(topic, body)] = clock.monotonic() + ECHO_S
        while len(self._echoes) > ECHOES_MAX:
            self._echoes.popitem(last=False)

    def _is_echo(self, topic: str, body: bytes) -> bool:
        until = self._echoes.pop(_digest(topic, body), 0.0) if self._echoes else 0.0
        return until > clock.monotonic()


def _digest(topic: str, body: bytes) -> bytes:
    return blake2b(topic.encode() + b"\x00" + body, digest_size=16).digest()


class _Sink:
    """Deliveries of the bridge's stream, in order, never more than the credit."""

    def __init__(self, credit: int) -> None:
        self.queue: asyncio.Queue[Delivery] = asyncio.Queue()
        self.over = asyncio.Event()
        self._allowed = credit

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            self.queue.put_nowait(delivery)

    def ended(self, code: Code, hint: str) -> None:
        self.over.set()

    def done(self, stream: DeliveryStream, handle: ReceiptHandle) -> None:
        stream.ack([handle])
        self._allowed += 1
        stream.allow(self._allowed)


def start_bridges(clusters: Mapping[str, ClusterConfig], services: Services) -> list[Bridge]:
    """A bridge for each cluster of another kind. Raises ConfigError: the extra is missing."""
    bridges: list[Bridge] = []
    for name, cluster in clusters.items():
        if cluster.type == "rocketmq":
            continue
        make_link: Callable[[], Link]
        if cluster.type == "mqtt":
            from gateway.clusters import mqtt_bridge

            make_link = mqtt_bridge.link_maker(name, cluster)
        else:
            from gateway.clusters import amqp_bridge

            make_link = amqp_bridge.link_maker(name, cluster)
        bridges.append(Bridge(name, cluster.bridge, services, make_link))
        bridges[-1].start()
    return bridges
