"""
A group over light queues of an Apache broker, kept by the gateway that reads it.

Apache has no state for such a group beyond one offset per queue, so what is in flight is known
here alone: entries are fetched by offset, handed out merged by log position, and the committed
offset of a queue is its first entry that is not done. A gateway that dies costs redeliveries
from there on (in order, without their attempts). Sans-I/O: the link fetches and commits.
"""

from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gateway.clusters.apache.requests import light_topic
from gateway.clusters.link import StreamPort
from protocols.canonical import Delivery, ReceiptHandle, StoredMessage
from protocols.errors import Code
from protocols.groups import GroupSpec
from protocols.remoting.settling import AckAction, AckItem, MarkItem

FETCHED_MAX: Final = 256
"""Entries of one queue held ready; fetching stops above it."""


@dataclass(slots=True, kw_only=True)
class LightQueue:
    """One queue of the read set."""

    tag: int
    topic: str
    next_offset: int
    """Where to fetch on."""

    committed: int
    open_offsets: list[int] = field(default_factory=list)
    """Fetched and not done, ascending."""

    @property
    def done_offset(self) -> int:
        """Everything below is done."""
        return self.open_offsets[0] if self.open_offsets else self.next_offset


@dataclass(slots=True, kw_only=True)
class Entry:
    """A fetched message, in one or several queues of the read set."""

    message: StoredMessage
    places: list[tuple[LightQueue, int]]
    grant: int = 0
    attempt: int = 1
    stream: int = 0
    """Who holds it; 0: nobody, or a pop."""

    is_in_flight: bool = False
    packet_id: int = 0
    stage: int = 0

    @property
    def position(self) -> int:
        return self.message.log_position


@dataclass(slots=True, kw_only=True)
class LightStream:
    """A standing reader of the group."""

    number: int
    port: StreamPort
    credit: int
    delivered_count: int = 0


class Granted(NamedTuple):
    stream: LightStream
    deliveries: list[Delivery]


class LightGroup:
    """One group: what is ready, what is in flight, who reads."""

    def __init__(self, number: int, spec: GroupSpec, cluster: str, broker: str) -> None:
        self.number = number
        self.spec = spec
        self.queues: dict[str, LightQueue] = {}
        self.streams: dict[int, LightStream] = {}
        self._cluster = cluster
        self._broker = broker
        self._entries: dict[int, Entry] = {}
        self._ready: list[int] = []  # positions, ascending
        self._grant = 0
        self._turn = 0

    # ── reads ───────────────────────────────────────────────────────────────────────────

    def missing_topics(self, spec: GroupSpec) -> list[tuple[str, int]]:
        """(light topic, tag) of the reads that this group does not have yet."""
        wanted = {light_topic(read.queue): read.tag for read in spec.reads if read.queue}
        return [(topic, tag) for topic, tag in wanted.items() if topic not in self.queues]

    def use(self, spec: GroupSpec) -> None:
        """Take over the read set of *spec*; queues it lacks end here."""
        wanted = {light_topic(read.queue) for read in spec.reads if read.queue}
        for topic in self.queues.keys() - wanted:
            del self.queues[topic]
        self.spec = spec

    def add_queue(self, topic: str, tag: int, start: int) -> None:
        self.queues[topic] = LightQueue(tag=tag, topic=topic, next_offset=start, committed=start)

    def wants_more(self, queue: LightQueue) -> bool:
        """Fetch on: somebody reads and not too much is held already."""
        return len(queue.open_offsets) < FETCHED_MAX and queue.topic in self.queues

    def fetched(
        self, queue: LightQueue, messages: Sequence[StoredMessage], next_offset: int
    ) -> None:
        """Entries of *queue*, in offset order, up to *next_offset*."""
        for offset, message in enumerate(messages, next_offset - len(messages)):
            if offset < queue.next_offset:
                continue
            queue.open_offsets.append(offset)
            entry = self._entries.get(message.log_position)
            if entry is None:
                entry = Entry(message=message, places=[])
                self._entries[message.log_position] = entry
                insort(self._ready, message.log_position)
            entry.places.append((queue, offset))
        queue.next_offset = max(queue.next_offset, next_offset)

    # ── out ─────────────────────────────────────────────────────────────────────────────

    def grant_streams(self) -> list[Granted]:
        """Hand what is ready to streams with credit, in turn."""
        granted: dict[int, list[Delivery]] = {}
        while self._ready and (stream := self._next_stream()) is not None:
            stream.delivered_count += 1
            granted.setdefault(stream.number, []).append(self._grant_next(stream.number, 0))
        return [Granted(self.streams[number], items) for number, items in granted.items()]

    def _next_stream(self) -> LightStream | None:
        """The next stream with credit, in turn."""
        streams = list(self.streams.values())
        for step in range(len(streams)):
            stream = streams[(self._turn + step) % len(streams)]
            if stream.delivered_count < stream.credit:
                self._turn += step + 1
                return stream
        return None

    def take(self, count: int, invisible_ms: int, popped_ms: int) -> list[Delivery]:
        """Pop up to *count*."""
        taken = min(count, len(self._ready))
        return [self._grant_next(0, popped_ms, invisible_ms) for _ in range(taken)]

    def _grant_next(self, stream: int, popped_ms: int, invisible_ms: int = 0) -> Delivery:
        entry = self._entries[self._ready.pop(0)]
        self._grant += 1
        entry.grant, entry.stream, entry.is_in_flight = self._grant, stream, True
        handle = ReceiptHandle(
            self._cluster,
            self._broker,
            0,
            self.number,
            entry.position,
            entry.grant,
            queue_id=entry.message.queue_id,
            queue_offset=entry.places[0][1],
            popped_ms=popped_ms,
            invisible_ms=invisible_ms,
            group_name=self.spec.name,
            topic=entry.message.topic,
        )
        qos = entry.message.properties.get("mqtt_qos", "1")
        return Delivery(
            message=entry.message,
            handle=handle,
            attempt=entry.attempt,
            reads=tuple(sorted(queue.tag for queue, _ in entry.places)),
            qos=int(qos) if qos in ("0", "1", "2") else 1,
            retain=entry.message.properties.get("TG_RETAIN") == "1",
            packet_id=entry.packet_id,
            stage=entry.stage,
        )

    # ── back ────────────────────────────────────────────────────────────────────────────

    def settle(self, item: AckItem) -> tuple[int, int]:
        """Ack, or return at once; (grant, code). A delayed return is the link's timer."""
        entry = self._entries.get(item.position)
        if entry is None:
            return item.grant, Code.OK  # done already: acks are idempotent
        if entry.grant != item.grant or not entry.is_in_flight:
            return item.grant, Code.INVALID_RECEIPT_HANDLE
        if item.action in (AckAction.ACK, AckAction.REJECT):  # nobody takes dead letters here
            self._done(entry)
        elif item.delay_ms == 0 or item.action == AckAction.RELEASE:
            self._return(entry, counts=item.action == AckAction.CHANGE)
        else:
            self._grant += 1
            entry.grant = self._grant
        return entry.grant, Code.OK

    def expire(self, position: int, grant: int) -> None:
        """The invisible time of a popped delivery is over."""
        entry = self._entries.get(position)
        if entry is not None and entry.is_in_flight and entry.grant == grant:
            self._return(entry, counts=True)

    def mark(self, item: MarkItem) -> tuple[int, int]:
        entry = self._entries.get(item.position)
        if entry is None or entry.grant != item.grant:
            return item.grant, Code.INVALID_RECEIPT_HANDLE
        entry.packet_id, entry.stage = item.packet_id, item.stage
        return entry.grant, Code.OK

    def end_stream(self, stream: int) -> None:
        """Its deliveries return in place."""
        self.streams.pop(stream, None)
        for entry in [e for e in self._entries.values() if e.stream == stream and e.is_in_flight]:
            self._return(entry, counts=True)

    def purge(self) -> int:
        """Everything ready is done; how much that was."""
        positions, self._ready = self._ready, []
        for position in positions:
            self._finish(self._entries[position])
        return len(positions)

    @property
    def ready_count(self) -> int:
        return len(self._ready)

    @property
    def in_flight_count(self) -> int:
        return len(self._entries) - len(self._ready)

    def due_commits(self) -> Iterable[tuple[LightQueue, int]]:
        """Queues whose first open entry has moved since the last commit."""
        for queue in self.queues.values():
            if queue.done_offset != queue.committed:
                queue.committed = queue.done_offset
                yield queue, queue.committed

    def _return(self, entry: Entry, *, counts: bool) -> None:
        entry.is_in_flight = False
        entry.stream = 0
        entry.attempt += counts
        insort(self._ready, entry.position)

    def _done(self, entry: Entry) -> None:
        entry.is_in_flight = False
        self._finish(entry)

    def _finish(self, entry: Entry) -> None:
        del self._entries[entry.position]
        for queue, offset in entry.places:
            queue.open_offsets.remove(offset)
