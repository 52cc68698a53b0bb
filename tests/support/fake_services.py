"""
``Services`` in memory: one ``FakeBroker`` is the cluster, ``FakeServices`` one gateway on it.

Honest where adapters could notice: results come later and in order, matching uses the real
filter tree, deliveries respect credit, lost streams return or keep what they held, directory
writes are conditional, owner epochs fence. Not here: durability, several stores, time jumps.
Two gateways are ``FakeServices(broker, "gw-1")`` and ``FakeServices(broker, "gw-2")``.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from protocols import clock
from protocols.canonical import (
    AckResult,
    Call,
    Delivery,
    GroupSpec,
    Head,
    Identity,
    InvisibleTimeChange,
    Message,
    PopRequest,
    QueueKind,
    QueueRef,
    QueueStat,
    ReceiptHandle,
    SendResult,
    SendResultList,
    SendResults,
    StoredMessage,
)
from protocols.delivery_runs import DeliveryRun, Shelf
from protocols.errors import Code, Refused
from protocols.pipeline import (
    ClientInfo,
    Credentials,
    DeliverySink,
    GroupPolicy,
    Put,
    PutResult,
    Record,
    Subscription,
    TopicInfo,
)
from protocols.remoting.records import encode_record
from protocols.subjects import FilterTree, matches
from tests.support.fake_held import FakeHeld, FakeReplies
from tests.support.patience import PATIENCE_S

CLUSTER, BROKER = "DefaultCluster", "broker-a"
QUEUES_PER_TOPIC = 4
HELD_AT = 7000


def as_runs(deliveries: Sequence[Delivery]) -> list[Sequence[Delivery]]:
    """Neighbours that differ in nothing but their message as runs, as a gateway hands them in."""
    parts: list[Sequence[Delivery]] = []
    for facts, same in groupby(deliveries, lambda d: (d[2:], d.handle.group, d.handle.grant)):
        (attempt, reads, qos, retain, packet_id, stage), group, grant = facts
        found = list(same)
        if attempt != 1 or packet_id or stage:
            parts.append(found)
            continue
        messages = [delivery.message for delivery in found]
        positions = [delivery.handle.position for delivery in found]
        by_record = {message.record: message for message in messages}
        records = [message.record for message in messages]
        shelf = Shelf(CLUSTER, BROKER, 1, positions, records, by_record.__getitem__)
        run = DeliveryRun(
            shelf,
            0,
            len(found),
            group=group,
            group_name=found[0].handle.group_name,
            grant=grant,
            qos=qos,
            retain=retain,
            reads=reads,
        )
        parts.append(run)
    return parts


@dataclass(slots=True)
class Entry:
    """One stored message and the queues that list it; its place in ``log`` is its position."""

    position: int
    message: StoredMessage
    keys: frozenset[bytes]
    qos: int
    retain: bool


@dataclass(slots=True)
class InFlight:
    """One delivery that is out."""

    entry: Entry
    grant: int
    holder: object
    packet_id: int = 0
    stage: int = 0
    timer: asyncio.TimerHandle | None = None


@dataclass(slots=True)
class FakeGroup:
    """A group: read set, cursor (``scanned``), returned entries, what is in flight."""

    spec: GroupSpec
    number: int
    scanned: int
    queue_from: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    topic_from: dict[str, tuple[int, int]] = field(default_factory=dict)
    returned: list[Entry] = field(default_factory=list)
    in_flight: dict[int, InFlight] = field(default_factory=dict)
    attempts: dict[int, int] = field(default_factory=dict)
    streams: "list[FakeStream]" = field(default_factory=list)
    turn: int = 0
    skip_qos0_below: int = 0


class FakeBroker:
    """Log, groups, topics, directory: everything that gateways share."""

    def __init__(self) -> None:
        self.log: list[Entry] = []
        self.first_position = 1000
        self.topics: set[str] = {"mqtt", "amqp"}
        self.topic_log: dict[tuple[str, int], list[Entry]] = {}
        self.turn: dict[str, int] = {}
        self.groups: dict[str, FakeGroup] = {}
        self.retained: dict[tuple[str, str], StoredMessage] = {}
        self.records: dict[str, Record] = {}
        self.version = 0
        self.filters: FilterTree[tuple[str, QueueRef, str]] = FilterTree()
        self.rows: dict[str, tuple[str, Subscription]] = {}
        self.row_count = 0
        self.watchers: list[tuple[str, Callable[[Sequence[Record]], None]]] = []
        self.created: dict[QueueRef, dict[str, int | str]] = {}
        self.live: set[tuple[str, int]] = set()
        self.once: dict[bytes, SendResult] = {}
        self.held: list[Message] = []
        """Delayed and half messages, in order; their positions begin at ``HELD_AT``."""

        self.is_down = False
        self.lost_ack_count = 0
        """Acks that came while it was down."""

        self.is_congested = False
        self.clear_waiters: list[Callable[[], None]] = []

    # ── store ───────────────────────────────────────────────────────────────────────────

    @property
    def end(self) -> int:
        return self.first_position + len(self.log)

    def store(self, call: Call, message: Message) -> SendResult:
        """Append one message; the topic, queues and properties as the real pipeline does it."""
        if message.once_key and message.once_key in self.once:
            return self.once[message.once_key]
        head = message.head
        if message.producer_group or message.deliver_at_ms > clock.wall_ms():
            return self._hold(message)
        refs = self.match(call.tenant, head)
        gone = tuple(ref for ref in refs if ref.kind is QueueKind.AMQP and ref not in self.created)
        refs = [ref for ref in refs if ref not in gone]
        if head.queues is not None and not head.is_in_topic and not refs:
            return SendResult(matched_count=0, refused=gone)
        topic = head.topic or self.topic_of(head.subject)
        queue_id = head.message_queue_id
        if queue_id < 0:
            queue_id = self.turn[topic] = (self.turn.get(topic, -1) + 1) % QUEUES_PER_TOPIC
        queue_log = self.topic_log.setdefault((topic, queue_id), [])
        stored = self._stored(call, message, topic, queue_id, len(queue_log))
        keys = frozenset(ref.key() for ref in refs)
        entry = Entry(self.end, stored, keys, head.qos, head.retain)
        self.log.append(entry)
        if head.is_in_topic:
            queue_log.append(entry)
        if head.retain:
            self._retain(call.tenant, head.subject, stored)
        result = SendResult(
            message_id=stored.message_id,
            cluster=CLUSTER,
            broker=BROKER,
            queue_id=queue_id,
            queue_offset=stored.queue_offset,
            log_position=entry.position,
            matched_count=len(refs),
            refused=gone,
        )
        if message.once_key:
            self.once[message.once_key] = result
        return result

    def _hold(self, message: Message) -> SendResult:
        """Nobody sees it: tests look at ``held``."""
        self.held.append(message)
        return SendResult(
            message_id=message.message_id or f"{len(self.held):032X}",
            cluster=CLUSTER,
            broker=BROKER,
            queue_id=0,
            log_position=HELD_AT + len(self.held),
        )

    def match(self, tenant: str, head: Head) -> list[QueueRef]:
        if head.queues is not None:
            return list(head.queues)
        found = self.filters.match(head.subject)
        return sorted({ref for of, ref, _ in found if of == tenant}, key=repr)

    def topic_of(self, subject: str) -> str:
        first = subject.split("/")[0]
        return first if first in self.topics else "mqtt"

    def _stored(
        self, call: Call, message: Message, topic: str, queue_id: int, offset: int
    ) -> StoredMessage:
        head, now_ms = message.head, clock.wall_ms()
        pairs = [
            ("UNIQ_KEY", message.message_id or f"{self.end:032X}"),
            ("TAGS", head.tag),
            ("KEYS", message.keys),
            ("TG_SUBJECT", head.subject if head.subject != topic else ""),
            ("TG_PROTOCOL", call.protocol),
            ("TG_CLIENT", call.client_id),
            ("TG_RETAIN", "1" if head.retain else ""),
            ("TG_PRIORITY", str(head.priority) if head.priority >= 0 else ""),
            ("TG_EXPIRES_AT", str(message.expires_at_ms) if message.expires_at_ms else ""),
            ("__SHARDINGKEY", head.order_key if head.is_fifo else ""),
            *head.properties,
            *message.properties,
        ]
        text = "".join(f"{name}\x01{value}\x02" for name, value in pairs if value)
        record = encode_record(
            topic,
            message.body,
            queue_id=queue_id,
            queue_offset=offset,
            log_position=self.end,
            born_ms=message.born_ms or now_ms,
            store_ms=now_ms,
            sys_flag=message.sys_flag,
            properties_text=text.encode(),
        )
        return StoredMessage(
            record=record,
            topic=topic,
            body=message.body,
            properties_text=text.encode(),
            queue_id=queue_id,
            queue_offset=offset,
            log_position=self.end,
            born_ms=message.born_ms or now_ms,
            store_ms=now_ms,
            sys_flag=message.sys_flag,
            cluster=CLUSTER,
            broker=BROKER,
        )

    def _retain(self, tenant: str, subject: str, stored: StoredMessage) -> None:
        if stored.body:
            self.retained[tenant, subject] = stored
        else:
            self.retained.pop((tenant, subject), None)

    # ── groups ──────────────────────────────────────────────────────────────────────────

    def open_group(self, spec: GroupSpec) -> FakeGroup:
        group = self.groups.get(spec.name)
        if group is None:
            start = self.first_position if spec.start.value == "earliest" else self.end
            group = FakeGroup(spec, len(self.groups) + 1, start)
            self.groups[spec.name] = group
        elif spec.owner_epoch < group.spec.owner_epoch:
            raise Refused(Code.PRECONDITION_FAILED, spec.name, "owner epoch is stale")
        if spec.owner_epoch > group.spec.owner_epoch:
            for stream in list(group.streams):
                stream.end(Code.PRECONDITION_FAILED, "taken over")
        group.spec = spec
        begin = group.scanned if spec.start.value == "earliest" else self.end
        old_queues, old_topics = group.queue_from, group.topic_from
        group.queue_from, group.topic_from = {}, {}
        for read in spec.reads:
            if read.queue is not None:
                key = read.queue.key()
                group.queue_from[key] = (read.tag, old_queues.get(key, (0, begin))[1])
            else:
                kept = old_topics.get(read.topic, (0, begin))[1]
                group.topic_from[read.topic] = (read.tag, kept)
        return group

    def take(self, group: FakeGroup, count: int, holder: object) -> list[Delivery]:
        """Grant up to *count*: returned entries first, in order, then from the cursor on."""
        taken: list[Delivery] = []
        group.returned.sort(key=lambda entry: entry.position)
        while group.returned and len(taken) < count:
            taken.append(self._grant(group, group.returned.pop(0), holder))
        while group.scanned < self.end and len(taken) < count:
            entry = self.log[group.scanned - self.first_position]
            group.scanned += 1
            is_skipped = entry.qos == 0 and entry.position < group.skip_qos0_below
            expires_at = int(entry.message.properties.get("TG_EXPIRES_AT", 1 << 62))
            is_skipped = is_skipped or expires_at <= clock.wall_ms()
            if self.reads_of(group, entry) and not is_skipped:
                taken.append(self._grant(group, entry, holder))
        return taken

    def reads_of(self, group: FakeGroup, entry: Entry) -> tuple[int, ...]:
        found = [
            tag
            for key, (tag, begin) in group.queue_from.items()
            if key in entry.keys and entry.position >= begin
        ]
        place = group.topic_from.get(entry.message.topic)
        listed = self.topic_log.get((entry.message.topic, entry.message.queue_id), [])
        if place and entry.position >= place[1] and entry in listed:
            found.append(place[0])
        return tuple(sorted(found))

    def _grant(self, group: FakeGroup, entry: Entry, holder: object) -> Delivery:
        attempt = group.attempts[entry.position] = group.attempts.get(entry.position, 0) + 1
        if not group.spec.is_auto_ack:
            group.in_flight[entry.position] = InFlight(entry, attempt, holder)
        return self.delivery(group, InFlight(entry, attempt, holder))

    def delivery(self, group: FakeGroup, flight: InFlight) -> Delivery:
        entry = flight.entry
        handle = ReceiptHandle(
            CLUSTER,
            BROKER,
            1,
            group.number,
            entry.position,
            flight.grant,
            entry.message.queue_id,
            entry.message.queue_offset,
            group_name=group.spec.name,
            topic=entry.message.topic,
        )
        return Delivery(
            entry.message,
            handle,
            flight.grant,
            self.reads_of(group, entry) or (0,),
            entry.qos,
            entry.retain,
            flight.packet_id,
            flight.stage,
        )

    def flight_of(self, handle: ReceiptHandle) -> InFlight | None:
        group = self.groups.get(handle.group_name)
        flight = group.in_flight.get(handle.position) if group else None
        return flight if flight is not None and flight.grant == handle.grant else None

    def done(self, handle: ReceiptHandle) -> bool:
        flight = self.flight_of(handle)
        if flight is None:
            return False
        if flight.timer:
            flight.timer.cancel()
        del self.groups[handle.group_name].in_flight[handle.position]
        return True

    def put_back(self, handle: ReceiptHandle, *, is_sent: bool = True) -> bool:
        flight = self.flight_of(handle)
        if flight is None or not self.done(handle):
            return False
        group = self.groups[handle.group_name]
        if not is_sent:
            group.attempts[handle.position] -= 1
        limit = group.spec.attempts_max
        if not limit or group.attempts[handle.position] < limit:
            group.returned.append(flight.entry)
        self.wake()
        return True

    def wake(self) -> None:
        for group in list(self.groups.values()):
            for stream in list(group.streams):
                stream.pump_soon()

    # ── directory ───────────────────────────────────────────────────────────────────────

    def live_records(self, prefix: str) -> list[str]:
        return [key for key in self.records if key.startswith(prefix)]

    def write(self, put: Put, gateway: str, epoch: int) -> PutResult:
        old = self.records.get(put.key)
        has = old.version if old is not None and old.value is not None else 0
        if put.if_version is not None and put.if_version != has:
            return PutResult(False, old or Record(put.key, None, 0))
        self.version += 1
        bound = (gateway, epoch) if put.is_bound else ("", 0)
        record = Record(put.key, put.value, self.version, *bound)
        if put.value is None:
            self.records.pop(put.key, None)
        else:
            self.records[put.key] = record
        self._tell(record)
        return PutResult(True, record)

    def _tell(self, record: Record) -> None:
        for prefix, listener in list(self.watchers):
            if record.key.startswith(prefix):
                listener([record])

    def end_lease(self, gateway: str, epoch: int) -> None:
        """The directory store judges that gateway dead: bound records and rows go."""
        self.live.discard((gateway, epoch))
        for record in list(self.records.values()):
            if (record.gateway, record.gateway_epoch) == (gateway, epoch):
                self.write(Put(record.key, None), "", 0)
        self.write(Put(f"lease/{gateway}", None), "", 0)
        for group in list(self.groups.values()):
            for stream in list(group.streams):
                if stream.gateway == gateway:
                    stream.lose()

    def add_row(self, tenant: str, row: Subscription) -> None:
        self.row_count += 1
        self.rows[f"filter/{tenant}/{row.owner}/{self.row_count}"] = (tenant, row)
        self.filters.add(row.subject_filter, (tenant, row.queue, row.owner))

    def remove_row(self, tenant: str, row: Subscription) -> None:
        for key, known in list(self.rows.items()):
            if known == (tenant, row):
                del self.rows[key]
        self.filters.remove(row.subject_filter, (tenant, row.queue, row.owner))


class FakeStream:
    """A standing stream of one group."""

    def __init__(
        self, broker: FakeBroker, gateway: str, group: FakeGroup, sink: DeliverySink, credit: int
    ) -> None:
        self.broker, self.gateway, self.group, self.sink = broker, gateway, group, sink
        self.credit, self.delivered = credit, 0
        self.is_open, self._is_due = True, False
        self.is_retired = False
        self.is_exclusive = False
        self.marks: list[tuple[ReceiptHandle, int, int]] = []
        group.streams.append(self)

    def adopt(self) -> None:
        """Hand over what an earlier owner had in flight, in its order."""
        for flight in list(self.group.in_flight.values()):
            if flight.holder is None:
                flight.holder = self
                self.delivered += 1
                self.sink.deliver([self.broker.delivery(self.group, flight)])

    def pump_soon(self) -> None:
        if not self._is_due and self.is_open:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._is_due = False
        streams = self.group.streams
        if not self.is_open or not streams:
            return
        if len(streams) > 1:
            self._pump_shared()
            return
        taken = self.broker.take(self.group, self.credit - self.delivered, self)
        self.delivered += len(taken)
        for part in as_runs(taken):
            self.sink.deliver(part)

    def _pump_shared(self) -> None:
        """Members take turns, one message each."""
        streams, idle = self.group.streams, 0
        while idle < len(streams):
            stream = streams[self.group.turn % len(streams)]
            self.group.turn += 1
            room = stream.credit - stream.delivered
            taken = self.broker.take(self.group, 1, stream) if room > 0 else []
            stream.delivered += len(taken)
            idle = 0 if taken else idle + 1
            if taken:
                stream.sink.deliver(taken)

    def end(self, code: Code, hint: str) -> None:
        if self.is_open:
            self.lose()
            self.sink.ended(code, hint)

    def lose(self) -> None:
        """The connection is gone: deliveries return, or wait for the next owner."""
        if not self.is_open:
            return
        self.is_open = False
        self.group.streams.remove(self)
        for position, flight in list(self.group.in_flight.items()):
            if flight.holder is not self:
                continue
            if self.group.spec.is_inherited:
                flight.holder = None
            else:
                del self.group.in_flight[position]
                self.group.returned.append(flight.entry)
        if self.group.spec.is_volatile and not self.group.streams:
            self.broker.groups.pop(self.group.spec.name, None)
        self.broker.wake()

    # DeliveryStream

    def allow(self, total: int) -> None:
        self.credit = max(self.credit, total) if not self.is_retired else self.credit
        self.pump_soon()

    def ack(self, handles: Sequence[ReceiptHandle]) -> None:
        for handle in handles:
            self.broker.done(handle)

    def release(self, handles: Sequence[ReceiptHandle], *, is_sent: bool = True) -> None:
        for handle in handles:
            self.broker.put_back(handle, is_sent=is_sent)

    def reject(self, handles: Sequence[ReceiptHandle]) -> None:
        self.ack(handles)

    async def retire(self) -> None:
        self.credit = self.delivered
        self.is_retired = True
        await asyncio.sleep(0)

    def mark(self, marks: Sequence[tuple[ReceiptHandle, int, int]]) -> None:
        for handle, packet_id, stage in marks:
            self.marks.append((handle, packet_id, stage))
            if (flight := self.broker.flight_of(handle)) is not None:
                flight.packet_id, flight.stage = packet_id, stage

    async def mark_durably(self, marks: Sequence[tuple[ReceiptHandle, int, int]]) -> bool:
        self.mark(marks)
        await asyncio.sleep(0)
        return True

    async def change_reads(self, spec: GroupSpec) -> None:
        self.broker.open_group(spec)
        await asyncio.sleep(0)
        self.pump_soon()

    async def close(self, *, drop_group: bool = False) -> None:
        self.lose()
        if drop_group:
            self.broker.groups.pop(self.group.spec.name, None)
        await asyncio.sleep(0)


class FakePipeline:
    """The four verbs."""

    def __init__(self, services: "FakeServices") -> None:
        self._services, self._broker = services, services.broker
        self.sent: list[Message] = []

    def post(
        self, call: Call, messages: Sequence[Message], done: Callable[[SendResults], None]
    ) -> None:
        self.sent += messages
        asyncio.get_running_loop().call_soon(lambda: done(self._store(call, messages)))

    def _store(self, call: Call, messages: Sequence[Message]) -> SendResultList:
        results = SendResultList()
        for message in messages:
            if self._broker.is_down or self._services.is_cut_off:
                results.append(SendResult(Code.HA_NOT_AVAILABLE, hint="the store is down"))
            elif not self._services.is_allowed(call, "publish", subject=message.head.subject):
                results.append(SendResult(Code.FORBIDDEN, hint="not allowed"))
            else:
                results.append(self._broker.store(call, message))
        self._broker.wake()
        return results

    def release_once(self, call: Call, key: bytes, done: Callable[[bool], None]) -> None:
        is_good = not (self._broker.is_down or self._services.is_cut_off)
        if is_good:
            self._broker.once.pop(key, None)
        asyncio.get_running_loop().call_soon(done, is_good)

    async def send(self, call: Call, messages: Sequence[Message]) -> Sequence[SendResult]:
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[SendResults] = loop.create_future()
        self.post(call, messages, waiting.set_result)
        results = await waiting
        return [results[index] for index in range(len(results))]

    async def pop(self, call: Call, request: PopRequest) -> list[Delivery]:
        group = self._broker.open_group(request.group)
        until = clock.monotonic() + request.wait_ms / 1000
        holder = object()
        while not (taken := self._broker.take(group, request.count, holder)):
            if clock.monotonic() >= until:
                return []
            await asyncio.sleep(0.005)
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
        return [
            AckResult() if self._broker.done(handle) else AckResult(Code.INVALID_RECEIPT_HANDLE)
            for handle in handles
        ]

    async def change_invisible_time(
        self, call: Call, changes: Sequence[InvisibleTimeChange]
    ) -> list[AckResult]:
        await asyncio.sleep(0)
        results: list[AckResult] = []
        for change in changes:
            flight = self._broker.flight_of(change.handle)
            if flight is None:
                results.append(AckResult(Code.INVALID_RECEIPT_HANDLE))
            elif change.invisible_ms <= 0:
                self._broker.put_back(change.handle)
                results.append(AckResult())
            else:
                flight.grant += 1
                handle = change.handle._replace(grant=flight.grant)
                self._hide(handle, change.invisible_ms)
                results.append(AckResult(handle=handle))
        return results

    def is_congested(self, call: Call) -> bool:
        return self._broker.is_congested

    def when_clear(self, resume: Callable[[], None], call: Call | None = None) -> None:
        self._broker.clear_waiters.append(resume)


class FakeStreams:
    """Groups, streams and pinned queues."""

    def __init__(self, services: "FakeServices") -> None:
        self._services, self._broker = services, services.broker

    async def open_group(self, call: Call, spec: GroupSpec) -> None:
        await asyncio.sleep(0)
        self._broker.open_group(spec)

    async def open(
        self, call: Call, spec: GroupSpec, sink: DeliverySink, *, credit: int
    ) -> FakeStream:
        await asyncio.sleep(0)
        if self._broker.is_down:
            raise Refused(Code.HA_NOT_AVAILABLE, spec.name, "the store is down")
        group = self._broker.open_group(spec)
        others = [stream for stream in group.streams if not stream.is_retired]
        if any(stream.is_exclusive for stream in others) or (spec.is_exclusive and others):
            raise Refused(Code.FORBIDDEN, spec.name, "in exclusive use")
        if spec.skips_qos0_on_resume:
            group.skip_qos0_below = self._broker.end
        stream = FakeStream(self._broker, self._services.name, group, sink, credit)
        stream.is_exclusive = spec.is_exclusive
        stream.adopt()
        stream.pump_soon()
        return stream

    async def drop_group(self, call: Call, spec: GroupSpec) -> None:
        await asyncio.sleep(0)
        group = self._broker.groups.pop(spec.name, None)
        for stream in list(group.streams) if group else []:
            stream.lose()

    async def create_queue(self, ref: QueueRef, policy: Mapping[str, int | str]) -> QueueRef:
        await asyncio.sleep(0)
        placed = ref._replace(store=ref.store or BROKER)
        self._broker.created.setdefault(placed, dict(policy))
        return placed

    async def delete_queue(self, ref: QueueRef) -> QueueStat:
        await asyncio.sleep(0)
        stat = self._stat(ref)
        self._broker.created.pop(ref, None)
        for group in self._readers(ref):
            del self._broker.groups[group.spec.name]
            for stream in list(group.streams):
                stream.end(Code.NOT_FOUND, "the queue was deleted")
        return stat

    async def reject(self, call: Call, handles: Sequence[ReceiptHandle]) -> None:
        await asyncio.sleep(0)
        for handle in handles:
            self._broker.done(handle)

    async def purge_queue(self, ref: QueueRef, spec: GroupSpec) -> int:
        await asyncio.sleep(0)
        group = self._broker.open_group(spec)
        ready = self._ready(group)
        group.returned.clear()
        group.scanned = self._broker.end
        return ready

    async def stat_queue(self, ref: QueueRef, spec: GroupSpec) -> QueueStat:
        await asyncio.sleep(0)
        self._broker.open_group(spec)
        return self._stat(ref)

    async def retained(self, tenant: str, subject_filters: Sequence[str]) -> list[StoredMessage]:
        await asyncio.sleep(0)
        return [
            message
            for (of, subject), message in self._broker.retained.items()
            if of == tenant and any(matches(one, subject) for one in subject_filters)
        ]

    def _readers(self, ref: QueueRef) -> list[FakeGroup]:
        key = ref.key()
        return [group for group in self._broker.groups.values() if key in group.queue_from]

    def _ready(self, group: FakeGroup) -> int:
        waiting = self._broker.log[group.scanned - self._broker.first_position :]
        return len(group.returned) + sum(
            bool(self._broker.reads_of(group, entry)) for entry in waiting
        )

    def _stat(self, ref: QueueRef) -> QueueStat:
        key = ref.key()
        stored = sum(key in entry.keys for entry in self._broker.log)
        readers = self._readers(ref)
        if not readers:
            return QueueStat(stored, 0, stored)
        streams = [stream for stream in readers[0].streams if not stream.is_retired]
        return QueueStat(self._ready(readers[0]), len(readers[0].in_flight), stored, len(streams))


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
        self.groups: dict[str, GroupPolicy] = {}

    async def find(self, topic: str) -> TopicInfo | None:
        if topic not in self._broker.topics:
            return None
        queues = tuple((BROKER, number, 6) for number in range(QUEUES_PER_TOPIC))
        return TopicInfo(topic, CLUSTER, queues, self.types.get(topic, ""))

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
        entries = self._broker.topic_log.get((topic, queue_id), [])
        found = [entry.message for entry in entries[offset : offset + count]]
        return found, 0, len(entries)

    async def offset(self, topic: str, broker: str, queue_id: int, *, at_ms: int) -> int:
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
        item = (info, kick)
        self.connected.append(item)
        if leave is not None:
            self.leaving.append((info, leave))
        return lambda: self.connected.remove(item) if item in self.connected else None


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
