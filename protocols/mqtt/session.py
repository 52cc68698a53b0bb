"""
What a session knows apart from sockets and stores: its subscriptions, its packet ids, its window.

``Subscriptions`` decides how a delivery that was found in some of the session's queues goes out;
``Window`` gives packet ids and keeps what is unacknowledged within the client's limit.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

from protocols.canonical import ReceiptHandle
from protocols.mqtt.packet_ids import ALL, PACKET_ID_MAX, Block
from protocols.mqtt.packets import SubscribeItem
from protocols.mqtt.rendering import Column, Rendering
from protocols.mqtt.topics import parse_filter
from protocols.tuples import new_tuple

GIVEN_UP_MAX: Final = 100
"""Subscriptions of a session that are remembered after UNSUBSCRIBE for what is under way."""


@lru_cache(maxsize=1)
def packet_id_bytes() -> list[bytes]:
    """Every packet id as its two bytes, by number."""
    return [number.to_bytes(2, "big") for number in range(PACKET_ID_MAX + 1)]


# ── subscriptions ───────────────────────────────────────────────────────────────────────


SHARE_TAG = 0
"""Stands for the one queue that the group of a shared subscription reads: members agree on it."""


class Subscribed(NamedTuple):
    """One subscription of a session."""

    topic_filter: str
    """As the client wrote it, ``$share/name/`` included; its key in the session."""

    share: str
    subject_filter: str
    qos: int
    no_local: bool
    retain_as_published: bool
    identifier: int
    """Subscription identifier; 0: none."""

    tag: int
    """Stands for it in the read set of the session's group; 1 or more."""

    asked_ms: int = 0
    """Wall time at which its retained values were last sent above QoS 0; 0: never."""


class Plan(NamedTuple):
    """How a delivery goes out."""

    qos: int
    retain: bool
    identifiers: tuple[int, ...]


class Subscriptions:
    """By filter and by tag; what is decided once per kind of delivery is remembered."""

    def __init__(
        self, known: Iterable[Subscribed] = (), given_up: Iterable[Subscribed] = ()
    ) -> None:
        self._by_filter = {item.topic_filter: item for item in known}
        self._by_tag = {item.tag: item for item in self._by_filter.values()}
        self._given_up = {item.tag: item for item in given_up}
        """What something under way was found by; see ``plan_again``."""

        self._next_tag = max((*self._by_tag, *self._given_up), default=0) + 1
        self._plans: dict[tuple[tuple[int, ...], int, bool, bool], Plan | None] = {}
        self.has_no_local = any(item.no_local for item in self._by_filter.values())
        self.is_partial = False
        """Some of what the filters match is denied: each delivery is to be asked."""

        self.judged_at = -1
        """Version of the rules that ``is_partial`` holds for."""

    @classmethod
    def of_share(cls, item: Subscribed) -> "Subscriptions":
        """What the stream of a shared subscription delivers for."""
        return cls([item._replace(tag=SHARE_TAG)])

    def __len__(self) -> int:
        return len(self._by_filter)

    def __iter__(self) -> Iterator[Subscribed]:
        return iter(list(self._by_filter.values()))

    def get(self, topic_filter: str) -> Subscribed | None:
        return self._by_filter.get(topic_filter)

    def put(
        self,
        item: SubscribeItem,
        qos: int,
        identifier: int,
        subject_filter: str = "",
        *,
        asked_ms: int = 0,
    ) -> Subscribed:
        """
        Add, or replace the options of the one with the same filter, which keeps its tag.

        *subject_filter*: what the client's filter stands for; empty: itself.
        """
        parts, old = parse_filter(item.topic_filter), self._by_filter.get(item.topic_filter)
        assert parts is not None
        if old is None:
            tag, self._next_tag = self._next_tag, self._next_tag + 1
        else:
            tag = old.tag
        new = Subscribed(
            item.topic_filter,
            parts.share,
            subject_filter or parts.subject_filter,
            qos,
            item.no_local,
            item.retain_as_published,
            identifier,
            tag,
            asked_ms,
        )
        self._by_filter[item.topic_filter] = new
        self._by_tag[tag] = new
        self._changed(had_no_local=old is not None and old.no_local, has_no_local=new.no_local)
        return new

    def remove(self, topic_filter: str) -> Subscribed | None:
        gone = self._by_filter.pop(topic_filter, None)
        if gone is not None:
            del self._by_tag[gone.tag]
            self._given_up[gone.tag] = gone
            if len(self._given_up) > GIVEN_UP_MAX:
                del self._given_up[next(iter(self._given_up))]
            self._changed(had_no_local=gone.no_local)
        return gone

    @property
    def given_up(self) -> list[Subscribed]:
        """The newest of those that were removed."""
        return list(self._given_up.values())

    def plan(self, reads: tuple[int, ...], qos: int, retain: bool, is_own: bool) -> Plan | None:
        """
        One PUBLISH for all subscriptions that matched [MQTT 5, 3.3.4]; None: nobody wants it.

        Args:
            reads: tags of the queues it was found in.
            qos: of the publish.
            retain: retain flag of the publish.
            is_own: published by this very client (no-local).
        """
        if len(reads) == 1:  # a client of a thousand filters remembers nothing for each
            item = self._by_tag.get(reads[0])
            if item is None or (is_own and item.no_local):
                return None
            plan: Plan = new_tuple(
                Plan,
                (
                    item.qos if item.qos < qos else qos,
                    retain and item.retain_as_published,
                    (item.identifier,) if item.identifier else (),
                ),
            )
            return plan
        key = (reads, qos, retain, is_own and self.has_no_local)
        if key not in self._plans:
            self._plans[key] = self._decide(*key)
        return self._plans[key]

    def plan_again(
        self, reads: tuple[int, ...], qos: int, sent_qos: int, retain: bool
    ) -> Plan | None:
        """
        How what was sent at *sent_qos* is sent again, subscribed to or not [MQTT-3.10.4-3].

        None: nothing is known of what it was sent for.
        """
        both = ((self._by_tag.get(tag) or self._given_up.get(tag)) for tag in reads)
        found = [item for item in both if item is not None]
        return _planned(found, qos, retain)._replace(qos=sent_qos) if found else None

    def _decide(self, reads: tuple[int, ...], qos: int, retain: bool, is_own: bool) -> Plan | None:
        wanting = [
            item
            for tag in reads
            if (item := self._by_tag.get(tag)) is not None and not (is_own and item.no_local)
        ]
        return _planned(wanting, qos, retain) if wanting else None

    def _changed(self, *, had_no_local: bool, has_no_local: bool = False) -> None:
        if has_no_local:
            self.has_no_local = True
        elif had_no_local:
            self.has_no_local = any(item.no_local for item in self._by_filter.values())
        self._plans.clear()
        self.judged_at = -1


def _planned(wanting: Sequence[Subscribed], qos: int, retain: bool) -> Plan:
    """One PUBLISH for all of them."""
    return Plan(
        min(qos, max(item.qos for item in wanting)),
        retain and any(item.retain_as_published for item in wanting),
        tuple(item.identifier for item in wanting if item.identifier),
    )


# ── out ─────────────────────────────────────────────────────────────────────────────────


class Source(Protocol):
    """Where a delivery came from, and who hears that it is done."""

    is_marked: bool
    """Packet ids and stages are kept at the store: the session outlives its connection."""

    def done(self, handle: ReceiptHandle) -> None:
        """The client has it, or never will."""
        ...

    def done_unnamed(self, count: int) -> None:
        """The same of deliveries that nobody acknowledges to the store."""
        ...

    def mark(self, handle: ReceiptHandle, packet_id: int) -> None:
        """Note the packet id of a QoS 1 publish at the store; nobody waits for it."""
        ...


class Outgoing(NamedTuple):
    """A publish above QoS 0 on its way to the client."""

    rendering: Rendering
    plan: Plan
    source: Source | None
    """None: a retained value, which nobody waits for."""

    handle: ReceiptHandle | None


class OutgoingRun:
    """Publishes of QoS 1 on their way, rendered for all who get the same; nobody acks them."""

    __slots__ = ("at", "column", "flight")

    def __init__(self, column: Column, flight: "Flight") -> None:
        self.column = column
        self.flight = flight
        self.at = 0
        """What comes before is in flight or done."""

    @property
    def count_left(self) -> int:
        return len(self.column) - self.at


class Remaining(Protocol):
    """What was taken up from the session's record; see ``leftovers``."""

    def received(self, packet_id: int, pubrel: bytes) -> bool:
        """PUBREC; True: it is one of these, and *pubrel* follows once that is written down."""
        ...

    def done(self, packet_ids: Sequence[int]) -> None:
        """Of whatever was sent to the client."""
        ...

    def end(self) -> None: ...


class Stage:
    """Of an unacknowledged publish; as marked in the store."""

    WAITING: Final = 0  # QoS 2: its mark is not durable yet
    SENT: Final = 1
    RECEIVED: Final = 2  # QoS 2: PUBREC came, PUBREL is out
    SENT_QOS2: Final = 3  # only as a mark: SENT at QoS 2, whatever is subscribed by the next time


class Flight:
    """One packet id in use, or all those of a stream's runs."""

    __slots__ = ("handle", "message", "qos", "source", "stage")

    def __init__(
        self, source: Source | None, handle: ReceiptHandle | None, qos: int, stage: int
    ) -> None:
        self.source = source
        self.handle = handle
        self.qos = qos
        self.stage = stage
        self.message: tuple[Rendering | None, Plan] | None = None
        """Of a kept session, where no group would send it again."""

    def finish(self, count: int = 1) -> None:
        """*count*: packet ids of a run, which has no handles."""
        if self.source is None:
            return
        if self.handle is not None:
            self.source.done(self.handle)
        else:
            self.source.done_unnamed(count)


NONE_WAITING: Final[deque[Outgoing | OutgoingRun]] = deque(maxlen=0)
"""A deque has a kilobyte from the beginning; a client that subscribes to nothing needs none."""


class Window:
    """
    Packet ids and unacknowledged publishes of one session, and what waits for a place.

    Never more than *limit* in flight: the client's Receive Maximum and our own bound.
    """

    def __init__(self, limit: int, *, ids: Block = ALL, next_id: int = 0) -> None:
        self.limit = limit
        self._first_id, self._last_id = ids
        self.waiting: deque[Outgoing | OutgoingRun] = NONE_WAITING
        self.flights: dict[int, Flight] = {}
        self._next_id = next_id or ids.first
        self.had: set[int] | frozenset[int] = frozenset()
        """Ids of earlier connections that the client is done with; their store was away."""

    def forget(self) -> None:
        """The connection is gone, and what was under way is put aside."""
        self.flights.clear()
        self.waiting = NONE_WAITING

    @property
    def next_id(self) -> int:
        """Where the session's next connection goes on counting."""
        return self._next_id

    def wait(self, outgoing: Outgoing | OutgoingRun) -> None:
        """Send it when there is room."""
        if self.waiting is NONE_WAITING:
            self.waiting = deque()
        self.waiting.append(outgoing)

    @property
    def has_room(self) -> bool:
        return len(self.flights) < self.limit

    def take(self, source: Source | None, handle: ReceiptHandle | None, qos: int) -> int:
        """Put into flight; the packet id it got. There must be room."""
        return self._put(Flight(source, handle, qos, Stage.WAITING if qos == 2 else Stage.SENT))

    def _put(self, flight: Flight) -> int:
        packet_id = self._next_id
        while packet_id in self.flights:
            packet_id = self._after(packet_id)
        self._next_id = self._after(packet_id)
        self.flights[packet_id] = flight
        return packet_id

    def _after(self, packet_id: int) -> int:
        return packet_id + 1 if packet_id < self._last_id else self._first_id

    def note_had(self, packet_id: int) -> None:
        """PUBREC has come for an id that is not in use; this connection has not given it."""
        if not self._first_id <= packet_id <= self._last_id:
            if isinstance(self.had, frozenset):
                self.had = set()
            self.had.add(packet_id)

    def take_run(self, run: OutgoingRun, out: list[bytes]) -> int:
        """Put into flight what there is room for, its packets into *out*; how many."""
        count = min(run.count_left, self.limit - len(self.flights))
        if count <= 0:
            return 0
        first = self._next_id
        stop = first + count
        packet_ids = range(first, stop)
        if stop <= self._last_id and self.flights.keys().isdisjoint(packet_ids):
            self.flights.update(dict.fromkeys(packet_ids, run.flight))
            self._next_id = stop
            numbers = packet_id_bytes()[first:stop]
        else:
            numbers = [self._put(run.flight).to_bytes(2, "big") for _ in packet_ids]
        out += run.column.packets(run.at, numbers)
        run.at += count
        return count

    def take_at_once(self, count: int, flight: Flight | None) -> list[bytes]:
        """
        Put so many into flight: their packet ids, two bytes each. None: the caller does.

        Empty if others wait, there is no room for all, or their ids are not neighbours.
        """
        first, flights = self._next_id, self.flights
        stop = first + count
        if not self.has_room_for(count) or stop > self._last_id:
            return []
        packet_ids = range(first, stop)
        if flights and not flights.keys().isdisjoint(packet_ids):
            return []
        if flight is not None:
            for packet_id in packet_ids:
                flights[packet_id] = flight
        self._next_id = stop
        return packet_id_bytes()[first:stop]

    def has_room_for(self, count: int) -> bool:
        """Nobody waits, and so many more may be in flight."""
        return not self.waiting and len(self.flights) + count <= self.limit

    def take_each(self, source: Source, handles: list[ReceiptHandle]) -> list[bytes]:
        """``take_at_once`` of publishes of QoS 1 that are acknowledged one by one."""
        first = self._next_id
        numbers = self.take_at_once(len(handles), None)
        flights = self.flights
        for packet_id, handle in enumerate(handles if numbers else (), first):
            flights[packet_id] = Flight(source, handle, 1, Stage.SENT)
        return numbers

    def skip(self) -> None:
        """One that will not be sent takes an id as if it had been [MQTT-3.1.2-25]."""
        self._next_id = self._after(self._next_id)

    def adopt(self, packet_id: int, flight: Flight) -> None:
        """An id that an earlier connection of the session gave [MQTT-4.4.0-1]."""
        self.flights[packet_id] = flight
        if self._next_id <= packet_id <= self._last_id:
            self._next_id = self._after(packet_id)

    def acknowledged(self, packet_ids: Sequence[int]) -> bool:
        """PUBACKs; False: one of them names a QoS 2 publish. Unknown ids are ignored."""
        flights = self.flights
        last: Flight | None = None
        count = 0
        for packet_id in packet_ids:
            flight = flights.pop(packet_id, None)
            if flight is last:
                count += 1
                continue
            if last is not None:
                last.finish(count)
            if flight is not None and flight.qos != 1:
                flights[packet_id] = flight
                return False
            last, count = flight, 1
        if last is not None:
            last.finish(count)
        return True

    def finish(self, packet_id: int) -> None:
        """This exchange is over."""
        flight = self.flights.pop(packet_id, None)
        if flight is not None:
            flight.finish()
