"""
From the streams of a session to its socket: what goes out, in which order, how much at a time.

The ``Outbox`` plans, renders, numbers and sends what the feeds of a session hand in, and tells
them when the client has it.
"""

from collections import deque
from collections.abc import Callable, Sequence

from protocols import clock
from protocols.canonical import Delivery, ReceiptHandle, StoredMessage
from protocols.delivery_runs import DeliveryRun
from protocols.mqtt.connection import MqttConnection
from protocols.mqtt.encoder import encode_ack
from protocols.mqtt.feed import Feed
from protocols.mqtt.fields import protocol_error
from protocols.mqtt.marking import Marked, Marking
from protocols.mqtt.packet_ids import ALL, Block
from protocols.mqtt.packets import V5, Pubcomp, Pubrec
from protocols.mqtt.receiving import Receiving
from protocols.mqtt.records import LeftoverRecord
from protocols.mqtt.rendering import Rendering, Renderings
from protocols.mqtt.resending import PUBREL, Resending
from protocols.mqtt.session import (
    Flight,
    Outgoing,
    OutgoingRun,
    Plan,
    Remaining,
    Source,
    Stage,
    Window,
)
from protocols.mqtt.tracing import trace_deliveries
from protocols.observing import Meter, Observer
from protocols.remoting.records import decode_record, store_ms_of
from protocols.stored_names import publisher_name


class Outbox:
    """Everything between the feeds of one session and its connection."""

    def __init__(
        self,
        connection: MqttConnection,
        renderings: Renderings,
        *,
        client_id: str,
        inflight_max: int,
        ids: Block = ALL,
        keeps: bool = False,
        packet_bytes_max: int,
        topic_alias_max: int,
        flush_soon: Callable[[], None],
        call_soon: Callable[[Callable[[], None]], object],
        is_peer_slow: Callable[[], bool],
        sent: Meter,
        dropped: Meter,
        may_receive: Receiving,
        retained_ms_max: int = 0,
        observer: Observer,
        peer: str = "",
    ) -> None:
        self.window = Window(inflight_max, ids=ids)
        self._keeps = keeps
        self.is_peer_slow = is_peer_slow
        self._connection = connection
        self._renderings = renderings
        self._client_id, self._publisher = client_id, publisher_name(client_id)
        self._packet_bytes_max, self._topic_alias_max = packet_bytes_max, topic_alias_max
        self._aliases: dict[bytes, int] = {}
        self._flush_soon = flush_soon
        self._call_soon = call_soon
        self._sent, self._dropped = sent, dropped
        self._may_receive = may_receive
        self._retained_ms_max = retained_ms_max
        self._observer, self._peer = observer, peer
        self._slow_ms, self._since_ms = observer.slow_ms, clock.wall_ms()
        self._marking = Marking(client_id, self.send_marked, self._taken_back)
        self._resending: Resending | None = None
        self.remaining: Remaining | None = None
        self._held_tags: frozenset[int] = frozenset()
        self._held: list[tuple[Feed, Delivery]] = []
        self.own_posted = 0
        """Posts of this very client that will be acknowledged to it."""

        self._own_answered = 0
        self._own: deque[tuple[int, Feed, Delivery]] | None = None
        """Its own messages, each behind so many acknowledgements."""

    # ── in from the feeds ───────────────────────────────────────────────────────────────

    def deliver(self, feed: Feed, deliveries: Sequence[Delivery]) -> None:
        """Send what fits the window; the rest waits in order."""
        if type(deliveries) is DeliveryRun and self._deliver_run(feed, deliveries):
            return
        if self._may_receive.is_judged(feed.subscriptions):
            deliveries = self._receivable(feed, deliveries)
        if self.own_posted != self._own_answered or self._own:
            deliveries = self._hold_own(feed, deliveries)
        self._plan(feed, deliveries)

    def _deliver_run(self, feed: Feed, run: DeliveryRun) -> bool:
        """A run all of which goes out alike; False: look at each."""
        subscriptions, version = feed.subscriptions, self._connection.version
        is_each = (
            subscriptions.has_no_local
            or self._held_tags
            or self._observer.is_tracing
            or self._marking.publish_count
            or self._may_receive.is_judged(subscriptions)
            or (version == V5 and self._topic_alias_max)
            or self._own
            or self.own_posted != self._own_answered
        )
        if is_each:
            return False
        plan = subscriptions.plan(run.reads, run.qos, run.retain, False)
        if plan is None:
            feed.done_run(run)
            return True
        if plan.qos and not feed.is_auto_ack and not self.window.has_room_for(len(run)):
            return False
        column = None if plan.qos == 2 else self._renderings.column(run, version, *plan)
        if column is None or column.bytes_max > self._packet_bytes_max:
            return False
        now_ms = clock.wall_ms()
        if now_ms - store_ms_of(run.shelf.record(run.start)) >= self._slow_ms:
            self._note_slow(run[0], now_ms)
        if plan.qos and not feed.is_auto_ack:
            handles = run.handles()
            numbers = self.window.take_each(feed, handles)
            if not numbers:
                return False
            if feed.is_marked:
                feed.mark_run(handles, numbers)
            packets = column.joined(numbers)
        elif plan.qos:
            numbers = self.window.take_at_once(len(column), feed.unnamed)
            if not numbers:
                self.window.wait(OutgoingRun(column, feed.unnamed))
                self._pump([], now_ms)
                return True
            packets = column.joined(numbers)
        else:
            feed.done_run(run)
            packets = column.whole
        self._sent.inc(len(run))
        self._connection.queue(packets)
        self._flush_soon()
        return True

    def _plan(self, feed: Feed, deliveries: Sequence[Delivery]) -> None:
        out: list[bytes] = []
        now_ms = clock.wall_ms()
        if self._observer.is_tracing:
            trace_deliveries(self._observer, self._client_id, self._peer, deliveries)
        if deliveries and now_ms - deliveries[0].message.store_ms >= self._slow_ms:
            self._note_slow(deliveries[0], now_ms)
        subscriptions, held, find = feed.subscriptions, self._held_tags, self._renderings.find
        has_no_local, publisher = subscriptions.has_no_local, self._publisher
        window, sent_count = self.window, 0
        waiting, flights, limit = window.waiting, window.flights, window.limit
        plan, kind = None, None
        for delivery in deliveries:
            reads = delivery.reads
            if held and held.issuperset(reads):
                self._held.append((feed, delivery))
                continue
            rendering = find(delivery.message)
            tail = rendering.tail
            is_own = has_no_local and tail.publisher == publisher
            like = (reads, delivery.qos, delivery.retain, is_own)
            if like != kind:
                kind = like
                plan = subscriptions.plan(*like)
            if plan is None or not tail.topic or 0 < tail.expires_at_ms <= now_ms:
                if plan is not None and plan.qos:
                    window.skip()
                feed.done(delivery.handle)
            elif not plan.qos:
                self._add_qos0(rendering, plan, out, now_ms)
                feed.done(delivery.handle)
            elif waiting or len(flights) >= limit:
                window.wait(Outgoing(rendering, plan, feed, delivery.handle))
                waiting = window.waiting
            else:
                sent_count += self._add(rendering, plan, feed, delivery.handle, out, now_ms)
        self._pump(out, now_ms, sent_count)

    def _note_slow(self, delivery: Delivery, now_ms: int) -> None:
        """The first of a batch stands for it; what waited for an absent client is not late."""
        latency_ms = now_ms - max(delivery.message.store_ms, self._since_ms)
        if latency_ms >= self._slow_ms:
            self._observer.slow(self._client_id, delivery.message.subject, latency_ms)

    def _receivable(self, feed: Feed, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Without those that the client may not receive; they are done, and counted."""
        found: list[Delivery] = []
        for delivery in deliveries:
            tail = self._renderings.find(delivery.message).tail
            if tail.topic and not self._may_receive.allows(tail.address, delivery.qos):
                self._dropped.inc()
                feed.done(delivery.handle)
            else:
                found.append(delivery)
        return found

    def _hold_own(self, feed: Feed, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Without the client's own messages, which follow their PUBACK or PUBREC."""
        others: list[Delivery] = []
        for delivery in deliveries:
            if self._renderings.find(delivery.message).tail.publisher == self._publisher:
                if self._own is None:
                    self._own = deque()
                self._own.append((self.own_posted, feed, delivery))
            else:
                others.append(delivery)
        return others

    def own_answered(self) -> None:
        """The acknowledgements of one post are queued."""
        self._own_answered += 1
        while self._own and self._own[0][0] <= self._own_answered:
            _, feed, delivery = self._own.popleft()
            self._plan(feed, [delivery])

    def send_retained(self, messages: Sequence[StoredMessage], plan: Plan) -> set[str]:
        """Retained values of a new subscription; the ids of those that went."""
        out: list[bytes] = []
        now_ms, ids = clock.wall_ms(), set[str]()
        for message in messages:
            rendering = self._renderings.find(message)
            qos = min(plan.qos, rendering.tail.qos)
            if not rendering.tail.topic or rendering.is_expired(now_ms):
                continue
            if 0 < self._retained_ms_max <= now_ms - message.store_ms:
                continue
            if not self._may_receive.allows(rendering.tail.address, qos):
                continue
            ids.add(message.message_id)
            one = Plan(qos, True, plan.identifiers)
            if qos:
                self.window.wait(Outgoing(rendering, one, None, None))
            else:
                self._add_qos0(rendering, one, out, now_ms)
        self._pump(out, now_ms)
        return ids

    def hold(self, tags: frozenset[int]) -> None:
        """Deliveries for these new subscriptions alone wait until ``let_go``."""
        self._held_tags = tags

    def let_go(self, sent_ids: set[str]) -> None:
        """Deliver what was held, without the messages that went as retained values."""
        held, self._held, self._held_tags = self._held, [], frozenset()
        for feed, delivery in held:
            if sent_ids and delivery.message.message_id in sent_ids:
                feed.done(delivery.handle)
            else:
                self.deliver(feed, [delivery])

    def resend(self, feed: Feed, deliveries: Sequence[Delivery]) -> None:
        """What an earlier connection left open: same ids, same order, DUP [MQTT-4.4.0-1]."""
        if not deliveries:
            return
        again, now_ms = self._again(), clock.wall_ms()
        for delivery in deliveries:
            is_used = delivery.packet_id in self.window.flights
            if is_used and delivery.stage != Stage.RECEIVED:
                self._plan(feed, [delivery])  # its store was away, and the ids went round
            elif is_used or not again.delivery(feed, delivery, now_ms):
                feed.done(delivery.handle)
        self.pump()

    def take_up(self, leftovers: Sequence[LeftoverRecord]) -> None:
        """What an earlier connection left open that no group keeps; see ``leftovers``."""
        again, now_ms = self._again(), clock.wall_ms()
        for item in leftovers:
            if item.packet_id:
                again.leftover(item, now_ms)
            else:
                rendering = self._renderings.find(decode_record(item.record))
                plan = Plan(item.qos, item.retain, item.identifiers)
                self.window.wait(Outgoing(rendering, plan, None, None))
        self.pump()

    def _again(self) -> Resending:
        """Made for those that an earlier connection left something open for."""
        if self._resending is None:
            self._resending = Resending(
                self.window,
                self._renderings,
                version=self._connection.version,
                packet_bytes_max=self._packet_bytes_max,
                dropped=self._dropped,
            )
        return self._resending

    # ── in from the client ──────────────────────────────────────────────────────────────

    def acked(self, packet_ids: Sequence[int]) -> None:
        """PUBACKs. Raises PacketError if one answers a QoS 2 publish."""
        if not self.window.acknowledged(packet_ids):
            raise protocol_error("PUBACK of a QoS 2 publish")
        if self.remaining is not None:
            self.remaining.done(packet_ids)
        self.pump()

    def received(self, packet: Pubrec) -> None:
        """PUBREC: the publish is there, or was refused."""
        flight = self.window.flights.get(packet.packet_id)
        version = self._connection.version
        if flight is None:
            if packet.reason < 0x80:  # 0x92 is allowed; 0 as from Mosquitto, whose cases want it
                self._connection.queue(encode_ack(PUBREL, packet.packet_id, 0, version))
                self.window.note_had(packet.packet_id)
            return
        if flight.qos != 2 or flight.stage == Stage.WAITING:
            raise protocol_error("PUBREC of what is no QoS 2 publish")
        if packet.reason >= 0x80:
            self._finish(packet.packet_id)
            return
        flight.stage = Stage.RECEIVED
        if flight.source is not None and not flight.source.is_marked:
            flight.finish()  # the client has it: it goes to no other member of its share
            flight.source = flight.handle = None
        answer = encode_ack(PUBREL, packet.packet_id, 0, version)
        waits = self.remaining is not None and self.remaining.received(packet.packet_id, answer)
        if not waits and not self._waits_for_mark(flight, packet.packet_id, Stage.RECEIVED, answer):
            self.send_marked(answer)

    def completed(self, packet: Pubcomp) -> None:
        """PUBCOMP: done."""
        flight = self.window.flights.get(packet.packet_id)
        if flight is None:
            return
        if flight.qos != 2 or flight.stage != Stage.RECEIVED:
            raise protocol_error("PUBCOMP before PUBREC")
        self._finish(packet.packet_id)

    def _finish(self, packet_id: int) -> None:
        self.window.finish(packet_id)
        if self.remaining is not None:
            self.remaining.done((packet_id,))
        self.pump()

    # ── out ─────────────────────────────────────────────────────────────────────────────

    def pump(self) -> None:
        """Send as much of what waits as the window takes."""
        self._pump([], clock.wall_ms())

    def _pump(self, out: list[bytes], now_ms: int, sent_count: int = 0) -> None:
        window = self.window
        if self._resending is not None:
            self._resending.pump(self._marking, out)
        waiting, flights, limit = window.waiting, window.flights, window.limit
        while waiting and len(flights) < limit:
            following = waiting[0]
            if isinstance(following, OutgoingRun):
                sent_count += window.take_run(following, out)
                if not following.count_left:
                    waiting.popleft()
                continue
            del waiting[0]
            rendering, plan, source, handle = following
            if rendering.is_expired(now_ms):  # [MQTT-3.3.2-5]
                window.skip()
                if source is not None and handle is not None:
                    source.done(handle)
                continue
            sent_count += self._add(rendering, plan, source, handle, out, now_ms)
        if sent_count:
            self._sent.inc(sent_count)
        if out:
            self._connection.queue(b"".join(out))
            self._flush_soon()

    def _add(
        self,
        rendering: Rendering,
        plan: Plan,
        source: Source | None,
        handle: ReceiptHandle | None,
        out: list[bytes],
        now_ms: int,
    ) -> int:
        """Number and send one; 0 if it was too large for the client."""
        head, tail = self._parts(rendering, plan, now_ms, source)
        if len(head) + len(tail) + 2 > self._packet_bytes_max:
            self._dropped.inc()  # as if delivered [MQTT-3.1.2-25]
            self.window.skip()
            if source is not None and handle is not None:
                source.done(handle)
            return 0
        packet_id = self.window.take(source, handle, plan.qos)
        if self._keeps and (source is None or not source.is_marked):
            self.window.flights[packet_id].message = rendering, plan
        number = packet_id.to_bytes(2, "big")
        if plan.qos == 1:
            if source is not None and handle is not None and source.is_marked:
                source.mark(handle, packet_id)
                packet = b"".join((head, number, tail)) if self._marking.publish_count else b""
                if packet and self._marking.behind(handle, packet):
                    return 1  # in order, whatever the QoS: as other brokers
            out += (head, number, tail)
        else:
            flight, packet = self.window.flights[packet_id], b"".join((head, number, tail))
            if not self._waits_for_mark(flight, packet_id, Stage.SENT, packet):
                out.append(packet)
        return 1

    def _add_qos0(self, rendering: Rendering, plan: Plan, out: list[bytes], now_ms: int) -> None:
        head, tail = self._parts(rendering, plan, now_ms)
        if len(head) + len(tail) > self._packet_bytes_max:
            self._dropped.inc()
        else:
            out += (head, tail)
            self._sent.inc()

    def send_packet(self, packet: bytes) -> None:
        """A QoS 0 publish that comes from no store."""
        if len(packet) > self._packet_bytes_max or self.is_peer_slow():
            self._dropped.inc()
            return
        self._sent.inc()
        self._connection.queue(packet)
        self._flush_soon()

    def _parts(
        self, rendering: Rendering, plan: Plan, now_ms: int, source: Source | None = None
    ) -> tuple[bytes, bytes]:
        """
        What stands before and behind the packet id.

        An alias is given by what goes out at once: a publish of QoS 2 that waits for its mark, or
        one behind it, would be overtaken by one that knows its topic by the alias alone.
        """
        version = self._connection.version
        if version != V5 or not self._topic_alias_max:
            return rendering.parts(version, plan.qos, plan.retain, plan.identifiers, now_ms)
        topic = rendering.tail.topic
        alias = self._aliases.get(topic)
        if alias is not None:
            return rendering.aliased_parts(b"", alias, plan, now_ms)
        is_waiting = source is not None and source.is_marked
        is_waiting = is_waiting and (plan.qos == 2 or self._marking.publish_count > 0)
        if len(self._aliases) < self._topic_alias_max and not is_waiting:
            alias = len(self._aliases) + 1
            head, tail = rendering.aliased_parts(topic, alias, plan, now_ms)
            if len(head) + len(tail) + 2 <= self._packet_bytes_max:  # else it is not sent
                self._aliases[topic] = alias
                return head, tail
        return rendering.parts(version, plan.qos, plan.retain, plan.identifiers, now_ms)

    def _waits_for_mark(self, flight: Flight, packet_id: int, stage: int, packet: bytes) -> bool:
        """Whether *packet* goes once the store has the stage on disk; else it need not keep it."""
        source, handle = flight.source, flight.handle
        if handle is None or not isinstance(source, Feed) or not source.is_marked:
            flight.stage = stage
            return False
        self._marking.after(Marked(source, handle, flight, packet_id, stage, packet))
        return True

    def send_marked(self, packet: bytes) -> None:
        self._connection.queue(packet)
        self._flush_soon()

    def _taken_back(self, packet_id: int) -> None:
        """It never left: its store delivers it again."""
        flight = self.window.flights.pop(packet_id)
        if isinstance(flight.source, Feed):
            flight.source.taken_back()
        self.pump()

    # ── once per tick ───────────────────────────────────────────────────────────────────

    def settle_soon(self, feed: Feed) -> None:
        """Call the feed's ``settle`` at the end of this tick, once."""
        if not feed.is_settle_due:
            feed.is_settle_due = True
            self._call_soon(feed.settle)

    async def close(self) -> None:
        await self._marking.close()
