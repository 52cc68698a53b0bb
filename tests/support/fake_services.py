"""
``Services`` in memory: one ``FakeBroker`` is the cluster, ``FakeServices`` one gateway on it.

Honest where adapters could notice: results come later and in order, matching uses the real
filter tree, deliveries respect credit, lost streams return or keep what they held, directory
writes are conditional, owner epochs fence. Not here: durability, several stores, time jumps.
Two gateways are ``FakeServices(broker, "gw-1")`` and ``FakeServices(broker, "gw-2")``.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial

from protocols import clock
from protocols.adapter import ProtocolAdapter
from protocols.canonical import (
    Call,
    Delivery,
    Identity,
    Message,
    ReceiptHandle,
    SendResult,
    SendResultList,
    SendResults,
    StoredMessage,
)
from protocols.directory import Put, PutResult, Record, Subscription
from protocols.errors import Code, Refused
from protocols.exchanges import Exchange
from protocols.groups import AckResult, GroupSpec, InvisibleTimeChange, PopRequest
from protocols.observing import ClientInfo
from protocols.pipeline import Credentials, GroupPolicy, TopicInfo
from protocols.subjects import matches
from tests.support.fake_broker import (
    BROKER,
    CLUSTER,
    QUEUES_PER_TOPIC,
    FakeBroker,
)
from tests.support.fake_held import FakeBrokers, FakeHeld, FakeReplies
from tests.support.fake_streams import FakeStreams
from tests.support.patience import PATIENCE_S


class FakePipeline:
    """The four verbs."""

    def __init__(self, services: "FakeServices") -> None:
        self._services, self._broker = services, services.broker
        self.sent: list[Message] = []
        self.is_store_away = False
        """Posts wait for it."""
        self.waiting: dict[Call, list[Callable[[], None]]] = {}
        self.ack_gate: asyncio.Event | None = None
        """Acks are done, and answered when it is open."""
        self._taken: dict[tuple[str, str], list[Delivery]] = {}
        """(group, taker) → what it popped."""

    def post(
        self, call: Call, messages: Sequence[Message], done: Callable[[SendResults], None]
    ) -> None:
        self.sent += messages

        def store() -> None:
            done(self._store(call, messages))

        if self.is_store_away:
            self.waiting.setdefault(call, []).append(store)
        else:
            asyncio.get_running_loop().call_soon(store)

    def _store(self, call: Call, messages: Sequence[Message]) -> SendResultList:
        results = SendResultList()
        for message in messages:
            if self._broker.is_down or self._services.is_cut_off:
                results.append(SendResult(Code.HA_NOT_AVAILABLE, hint="the store is down"))
            elif not self._services.is_allowed(call, "publish", subject=message.head.subject):
                results.append(SendResult(Code.FORBIDDEN, hint="not allowed"))
            else:
                result = self._broker.store(call, message)
                if self._broker.half_refused_count:
                    self._broker.half_refused_count -= 1
                    result = SendResult(Code.MASTER_PERSISTENCE_TIMEOUT, hint="another is full")
                results.append(result)
        self._broker.wake()
        return results

    def withdraw(self, call: Call, *, is_taken: bool) -> None:
        """What waits here came last: it goes when the client is elsewhere."""
        if is_taken:
            self.waiting.pop(call, None)

    def may_store_late(self, call: Call) -> bool:
        return call in self.waiting

    def store_comes_back(self) -> None:
        for posts in self.waiting.values():
            for store in posts:
                store()
        self.waiting.clear()

    def forget(self, call: Call) -> None:
        self._broker.forgotten.append(call)

    @property
    def loss_count(self) -> int:
        return self._broker.loss_count

    def release_once(
        self, call: Call, key: bytes, done: Callable[[bool], None], *, since: int
    ) -> None:
        is_deaf = self._broker.is_deaf
        is_told = not (self._broker.is_down or self._services.is_cut_off or is_deaf)
        if is_told:
            self._broker.once.pop(key, None)
        is_sure = since == self._broker.loss_count and not is_deaf
        asyncio.get_running_loop().call_soon(done, is_told or is_sure)

    async def send(self, call: Call, messages: Sequence[Message]) -> Sequence[SendResult]:
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[SendResults] = loop.create_future()
        self.post(call, messages, waiting.set_result)
        results = await waiting
        return [results[index] for index in range(len(results))]

    async def adopt(
        self, call: Call, spec: GroupSpec, taker: str, invisible_ms: int
    ) -> list[Delivery]:
        await asyncio.sleep(0)
        return [
            delivery
            for delivery in self._taken.get((spec.name, taker), ())
            if self._broker.flight_of(delivery.handle) is not None
        ]

    def mark(self, marks: Sequence[tuple[ReceiptHandle, int, int]]) -> None:
        for handle, packet_id, stage in marks:
            for taken in self._taken.values():
                taken[:] = [
                    one._replace(packet_id=packet_id, stage=stage)
                    if one.handle.position == handle.position
                    else one
                    for one in taken
                ]

    async def pop(self, call: Call, request: PopRequest) -> list[Delivery]:
        group = self._broker.open_group(request.group)
        until = clock.monotonic() + request.wait_ms / 1000
        holder = object()
        while not (taken := self._broker.take(group, request.count, holder)):
            if clock.monotonic() >= until:
                return []
            await asyncio.sleep(0.005)
        self._taken.setdefault((request.group.name, request.taker), []).extend(taken)
        for delivery in taken:
            self._hide(delivery.handle, request.invisible_ms)
        return [
            delivery._replace(
                handle=delivery.handle._replace(
                    popped_ms=clock.wall_ms(), invisible_ms=request.invisible_ms
                )
            )
            for delivery in taken
        ]

    def _hide(self, handle: ReceiptHandle, invisible_ms: int) -> None:
        flight = self._broker.flight_of(handle)
        if flight is None:
            return
        if flight.timer:
            flight.timer.cancel()
        flight.timer = asyncio.get_running_loop().call_later(
            invisible_ms / 1000, self._broker.put_back, handle
        )

    async def ack(self, call: Call, handles: Sequence[ReceiptHandle]) -> list[AckResult]:
        await asyncio.sleep(0)
        if self._broker.is_down:
            self._broker.lost_ack_count += len(handles)
            return [AckResult(Code.HA_NOT_AVAILABLE)] * len(handles)
        results = [
            AckResult() if self._broker.done(handle) else AckResult(Code.INVALID_RECEIPT_HANDLE)
            for handle in handles
        ]
        if self.ack_gate is not None:
            await self.ack_gate.wait()
        return results

    async def change_invisible_time(
        self, call: Call, changes: Sequence[InvisibleTimeChange]
    ) -> list[AckResult]:
        await asyncio.sleep(0)
        if self._broker.is_down:
            self._broker.lost_change_count += len(changes)
            return [AckResult(Code.HA_NOT_AVAILABLE)] * len(changes)
        results: list[AckResult] = []
        for change in changes:
            flight = self._broker.flight_of(change.handle)
            if flight is None:
                results.append(AckResult(Code.INVALID_RECEIPT_HANDLE))
            elif change.invisible_ms <= 0:
                self._broker.put_back(change.handle)
                results.append(AckResult())
            else:
                flight.grant += not change.is_renewal
                handle = change.handle._replace(grant=flight.grant)
                self._hide(handle, change.invisible_ms)
                results.append(AckResult(handle=handle))
        return results

    def is_congested(self, call: Call) -> bool:
        return self._broker.is_congested

    def when_clear(self, resume: Callable[[], None], call: Call | None = None) -> None:
        self._broker.clear_waiters.append(resume)


class FakeDirectory:
    """The shared table as one gateway sees it, without lag."""

    def __init__(self, services: "FakeServices") -> None:
        self._services, self._broker = services, services.broker
        self.barriers: list[int] = []
        self.barrier_gate: asyncio.Event | None = None

    def get(self, key: str) -> Record | None:
        return self._broker.records.get(key)

    def items(self, prefix: str) -> Iterable[Record]:
        return [rec for key, rec in self._broker.records.items() if key.startswith(prefix)]

    def watch(
        self, prefix: str, listener: Callable[[Sequence[Record]], None]
    ) -> Callable[[], None]:
        item = (prefix, listener)
        self._broker.watchers.append(item)
        return lambda: self._broker.watchers.remove(item)

    async def put(self, puts: Sequence[Put]) -> list[PutResult]:
        await asyncio.sleep(0)
        self._check_alive()
        return [self._broker.write(put, self.gateway, self.gateway_epoch) for put in puts]

    async def subscribe(
        self,
        add: Sequence[Subscription],
        remove: Sequence[Subscription] = (),
        *,
        tenant: str = "",
        is_bound: bool = False,
    ) -> int:
        await asyncio.sleep(0)
        self._check_alive()
        for row in add:
            self._broker.add_row(tenant, row)
        for row in remove:
            self._broker.remove_row(tenant, row)
        self._broker.version += 1
        return self._broker.version

    def _check_alive(self) -> None:
        if self._services.is_cut_off:
            raise Refused(Code.HA_NOT_AVAILABLE, "directory", "cut off")

    async def barrier(self, version: int) -> None:
        if self.barrier_gate is not None:
            await self.barrier_gate.wait()
        await asyncio.sleep(0)
        self.barriers.append(version)

    async def catch_up(self) -> None:
        await asyncio.sleep(0)

    @property
    def gateway(self) -> str:
        return self._services.name

    @property
    def gateway_epoch(self) -> int:
        return self._services.epoch

    def is_live(self, gateway: str, gateway_epoch: int) -> bool:
        return (gateway, gateway_epoch) in self._broker.live


class FakeTopics:
    """Topics with four queues each on one broker."""

    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker
        self.types: dict[str, str] = {}
        self.batches: set[str] = set()
        self.groups: dict[str, GroupPolicy] = {}

    async def find(self, topic: str, *, with_type: bool = True) -> TopicInfo | None:
        if topic not in self._broker.topics:
            return None
        queues = tuple((BROKER, number, 6) for number in range(QUEUES_PER_TOPIC))
        return TopicInfo(topic, CLUSTER, queues, self.types.get(topic, ""), topic in self.batches)

    async def group(self, group: str, topic: str) -> GroupPolicy | None:
        return self.groups.get(group)

    async def create(self, topic: str, *, queue_count: int = QUEUES_PER_TOPIC) -> TopicInfo:
        await asyncio.sleep(0)  # others may ask meanwhile
        self._broker.topics.add(topic)
        queues = tuple((BROKER, number, 6) for number in range(queue_count))
        return TopicInfo(topic, CLUSTER, queues)

    def names(self) -> list[str]:
        return sorted(self._broker.topics)

    async def read(
        self, topic: str, broker: str, queue_id: int, offset: int, count: int, wait_ms: int
    ) -> tuple[list[StoredMessage], int, int]:
        self._broker.answer()
        entries = self._broker.topic_log.get((topic, queue_id), [])
        found = [entry.message for entry in entries[offset : offset + count]]
        return found, 0, len(entries)

    async def offset(self, topic: str, broker: str, queue_id: int, *, at_ms: int) -> int:
        self._broker.answer()
        entries = self._broker.topic_log.get((topic, queue_id), [])
        if at_ms == -1:
            return len(entries)
        return next(
            (place for place, entry in enumerate(entries) if entry.message.store_ms >= at_ms),
            len(entries),
        )


class FakeMeter:
    """Counts."""

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1) -> None:
        self.value += amount


class FakeMetrics:
    """Meters by name and labels; ``value("mqtt_…")`` sums over labels."""

    def __init__(self) -> None:
        self.meters: dict[tuple[str, tuple[tuple[str, str], ...]], FakeMeter] = {}
        self.gauges: dict[str, Callable[[], float]] = {}

    def counter(self, name: str, help_text: str, **labels: str) -> FakeMeter:
        return self.meters.setdefault((name, tuple(sorted(labels.items()))), FakeMeter())

    def gauge(self, name: str, help_text: str, read: Callable[[], float], **labels: str) -> None:
        self.gauges[name] = read

    def value(self, name: str) -> float:
        return sum(meter.value for (of, _), meter in self.meters.items() if of == name)


class FakeObserver:
    """What was traced, and who was slow."""

    def __init__(self) -> None:
        self.is_tracing = False
        self.slow_ms = 1 << 60
        self.traced: list[tuple[str, str, str, str]] = []
        self.slow_ones: list[tuple[str, str]] = []

    def trace(
        self, event: str, *, client_id: str, peer: str, topic: str = "", detail: str = ""
    ) -> None:
        self.traced.append((event, client_id, topic, detail))

    def slow(self, client_id: str, topic: str, latency_ms: int) -> None:
        self.slow_ones.append((client_id, topic))


class FakeClients:
    """Who is connected; call a ``kick`` to see what happens."""

    def __init__(self) -> None:
        self.connected: list[tuple[ClientInfo, Callable[[], None]]] = []
        self.leaving: list[tuple[ClientInfo, Callable[[], None]]] = []
        """How each is asked to go elsewhere."""

    def joined(
        self,
        info: ClientInfo,
        kick: Callable[[], None],
        leave: Callable[[], None] | None = None,
    ) -> Callable[[], None]:
        self.connected.append((info, kick))
        if leave is not None:
            self.leaving.append((info, leave))
        return partial(self._left, info)

    def _left(self, info: ClientInfo) -> None:
        for clients in (self.connected, self.leaving):
            clients[:] = [client for client in clients if client[0] is not info]


class FakeDraining:
    """Another gateway's address by listener, while it is on."""

    def __init__(self) -> None:
        self.is_on = False
        self.elsewhere: dict[str, str] = {}

    def another(self, listener: str) -> str:
        return self.elsewhere.get(listener, "")


class FakeServices:
    """One gateway. *users* empty: everybody is anonymous and welcome."""

    def __init__(
        self, broker: FakeBroker | None = None, name: str = "gw-1", *, epoch: int = 1
    ) -> None:
        self.broker = broker or FakeBroker()
        self.name, self.epoch = name, epoch
        self.users: dict[str, bytes] = {}
        self.recalled: dict[str, Identity] = {}
        self.methods: dict[str, Callable[[], Exchange]] = {}
        self.denied: set[tuple[str, str]] = set()
        self.admit_code = Code.OK
        self.is_cut_off = False
        """Killed, as far as the cluster can tell: nothing it sends or writes arrives."""

        self.listeners: dict[str, tuple[str, int]] = {}
        self._listening = asyncio.Event()
        self.pipeline = FakePipeline(self)
        self.streams = FakeStreams(self)
        self.directory = FakeDirectory(self)
        self.topics = FakeTopics(self.broker)
        self.held = FakeHeld()
        self.replies = FakeReplies()
        self.brokers = FakeBrokers()
        self.metrics = FakeMetrics()
        self.clients = FakeClients()
        self.draining = FakeDraining()
        self.observer = FakeObserver()
        self.authenticator = self
        self.permission = self
        self.checks_receive = False
        self.banned_ids: set[str] = set()
        self.broker.live.add((name, epoch))

    async def authenticate(self, credentials: Credentials) -> Identity | None:
        if not self.users:
            return Identity(name=credentials.user or "anonymous", is_anonymous=True)
        if self.users.get(credentials.user) != credentials.password:
            return None
        return Identity(name=credentials.user)

    def recall(self, credentials: Credentials) -> Identity | None:
        return self.recalled.get(credentials.user)

    def begin(self, method: str, credentials: Credentials) -> Exchange | None:
        """As ``methods`` says."""
        make = self.methods.get(method)
        return make() if make is not None else None

    def is_allowed(
        self,
        call: Call,
        operation: str,
        *,
        subject: str = "",
        topic: str = "",
        group: str = "",
        qos: int = -1,
    ) -> bool:
        """``denied`` holds (operation, filter) pairs."""
        address = subject or topic or group
        names = (operation, *(("consume",) if operation in ("subscribe", "receive") else ()))
        return not any(
            of in names and (denied == address or matches(denied, address))
            for of, denied in self.denied
        )

    def sees_all(self, call: Call, subject_filter: str) -> bool:
        """Any pair of ``denied`` may hide something."""
        return not self.denied

    @property
    def version(self) -> int:
        return len(self.denied)

    def admit(self, call: Call) -> Code:
        return self.admit_code

    def is_banned(self, *, peer: str, tenant: str = "", client_id: str = "") -> bool:
        return client_id in self.banned_ids

    def listening(self, listener: str, host: str, port: int) -> None:
        self.listeners[listener] = (host, port)
        self._listening.set()

    async def address(self, listener: str) -> tuple[str, int]:
        """Wait until an adapter has opened that listener."""
        while listener not in self.listeners:
            self._listening.clear()
            await asyncio.wait_for(self._listening.wait(), PATIENCE_S)
        return self.listeners[listener]

    @contextlib.asynccontextmanager
    async def serving(
        self, adapter: ProtocolAdapter, listener: str
    ) -> AsyncIterator[tuple[str, int]]:
        """*adapter* runs inside the ``async with``; its address. What it fails with is raised."""
        serving = asyncio.create_task(adapter.serve(self))
        try:
            yield await self.address(listener)
        finally:
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving
