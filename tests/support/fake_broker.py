"""A broker cluster in memory, which fake gateways share: log, groups, topics, directory."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

from protocols import clock
from protocols.canonical import (
    Call,
    Delivery,
    Head,
    Message,
    QueueKind,
    QueueRef,
    ReceiptHandle,
    SendResult,
    StoredMessage,
)
from protocols.delivery_runs import DeliveryRun, Shelf
from protocols.directory import Put, PutResult, Record, Subscription
from protocols.errors import Code, Refused
from protocols.groups import GroupSpec
from protocols.remoting.records import encode_record
from protocols.subjects import FilterTree

if TYPE_CHECKING:
    from tests.support.fake_streams import FakeStream

CLUSTER, BROKER = "DefaultCluster", "broker-a"
QUEUES_PER_TOPIC = 4
HELD_AT = 7000


def as_runs(deliveries: Sequence[Delivery]) -> list[Sequence[Delivery]]:
    """Neighbours that differ in nothing but their message as runs, as a gateway hands them in."""
    parts: list[Sequence[Delivery]] = []
    for facts, same in groupby(deliveries, lambda d: (d[2:], d.handle.group, d.handle.grant)):
        (attempt, reads, qos, retain, packet_id, stage, _), group, grant = facts
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
        self.loss_count = 0
        self.forgotten: list[Call] = []
        """Whose connections have ended."""

        self.is_deaf = False
        """It is told of no exchange that is over."""

        self.half_refused_count = 0
        """Messages to come that another store, which also wanted them, has no room for."""

        self.lost_ack_count = 0
        """Acks that came while it was down."""

        self.lost_change_count = 0
        """Changes of the invisible time that came then."""

        self.unanswered_count = 0
        """Questions to come that find the store away."""

        self.is_congested = False
        self.clear_waiters: list[Callable[[], None]] = []

    # ── store ───────────────────────────────────────────────────────────────────────────

    @property
    def end(self) -> int:
        return self.first_position + len(self.log)

    def answer(self) -> None:
        """Raises Refused: away."""
        if self.unanswered_count:
            self.unanswered_count -= 1
            raise Refused(Code.HA_NOT_AVAILABLE, BROKER, "away")

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
        wanted = {ref for of, ref, _ in found if of == tenant and ref not in head.without}
        return sorted(wanted, key=repr)

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
