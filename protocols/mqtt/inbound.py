"""
What one client publishes: into the pipeline, and its PUBACK, PUBREC and PUBCOMP, in order.

QoS 2 is exactly once over reconnects and gateways: a kept session's publish carries a once-key of
(session, packet id), which every store that keeps a copy remembers until PUBREL has released it, or
until it was refused at another. One that is away then would take the next message under this id for
a repeat: before the client hears the session's record gets a new generation for the id, which
makes another key of it. A gateway that has lost the session to this one may still store what it had
read: nothing is released before all gateways have seen the takeover.
A session that ends with its connection can never send again, so its packet ids are known here.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b
from typing import Final, Protocol

from protocols import clock
from protocols.canonical import (
    ONCE_BYTES,
    RELEASED_ONCE_PREFIX,
    Message,
    SendResults,
)
from protocols.errors import Code, Refused
from protocols.message_runs import MessageRun
from protocols.mqtt.cloudevents import from_structured
from protocols.mqtt.connection import MqttConnection
from protocols.mqtt.encoder import encode_ack
from protocols.mqtt.events import PublishRun
from protocols.mqtt.fields import PacketError, protocol_error
from protocols.mqtt.front import Front
from protocols.mqtt.mapping import clearing, delayed, message_of
from protocols.mqtt.opened import Opened
from protocols.mqtt.packets import V5, V31, Publish, Pubrel, Reason
from protocols.mqtt.properties import is_as_it_says
from protocols.mqtt.records import SessionRecord, with_generations
from protocols.mqtt.tracing import trace_refusal
from protocols.tasks import Signal

logger = logging.getLogger("tidegate.mqtt")

PUBACK, PUBREC, PUBCOMP = 0x40, 0x50, 0x70

STORED_S_MAX: Final = 10.0
"""How long a SUBSCRIBE waits for the publishes before it on the same connection."""

RELEASE_AGAIN_S: Final = 1.0
"""Between attempts to end an exchange that nobody can write down."""

REPEATS_MAX: Final = 2
"""
PUBRECs of one QoS 2 publish on one connection; repeats are for new ones [MQTT-4.4.0-1]. What has
the packet id and another content is the work of two hands, and answered [MQTT-4.3.3-10].
"""

# What a publisher is told of a refusal [MQTT 5, table 3-4]; 3.x can be told nothing: it is
# closed, so that it sends again, except where sending again would not help.
REFUSALS: Final[dict[Code, Reason]] = {
    Code.FORBIDDEN: Reason.NOT_AUTHORIZED,
    Code.ILLEGAL_TOPIC: Reason.TOPIC_NAME_INVALID,
    Code.ILLEGAL_MESSAGE_KEY: Reason.IMPLEMENTATION_SPECIFIC_ERROR,  # a compacted topic's rule
    Code.TOO_MANY_REQUESTS: Reason.QUOTA_EXCEEDED,
    Code.LITE_TOPIC_QUOTA_EXCEEDED: Reason.QUOTA_EXCEEDED,
    Code.MASTER_PERSISTENCE_TIMEOUT: Reason.QUOTA_EXCEEDED,  # the store is full
    Code.PAYLOAD_TOO_LARGE: Reason.QUOTA_EXCEEDED,  # "an implementation imposed limit"
    Code.MESSAGE_BODY_TOO_LARGE: Reason.QUOTA_EXCEEDED,
    Code.MESSAGE_PROPERTIES_TOO_LARGE: Reason.QUOTA_EXCEEDED,
}
FINAL_REFUSALS: Final = frozenset(
    (
        Code.FORBIDDEN,
        Code.ILLEGAL_TOPIC,
        Code.ILLEGAL_MESSAGE_KEY,
        Code.PAYLOAD_TOO_LARGE,
        Code.MESSAGE_BODY_TOO_LARGE,
        Code.MESSAGE_PROPERTIES_TOO_LARGE,
    )
)
"""A 3.x client that is refused so is acknowledged and its message dropped."""

AWAY: Final = frozenset((Code.HA_NOT_AVAILABLE, Code.PROXY_TIMEOUT, Code.PRECONDITION_FAILED))
"""Nobody knows or nobody could: no acknowledgement says that. The connection ends, so that the
client sends again; an acknowledgement with an error would make it forget the message."""


NOWHERE: Final = frozenset((Code.FORBIDDEN, Code.TOO_MANY_REQUESTS))
"""Refused before any store was asked."""


class _Late:
    """A PUBREC that waits."""

    __slots__ = ("code", "is_due", "packet_id")

    def __init__(self, packet_id: int, code: Code) -> None:
        self.packet_id = packet_id
        self.code = code
        self.is_due = False


class Line(Protocol):
    """The client, as far as publishing needs it."""

    def post(self, messages: Sequence[Message], done: Callable[[SendResults], None]) -> None:
        """To the pipeline; stops reading when that is behind."""
        ...

    def end(self, reason: Reason, text: str) -> None: ...

    def answered(self) -> None:
        """Something was queued; send it at the end of the tick."""
        ...

    def read_on(self) -> None:
        """A place became free."""
        ...


class Inbound:
    """The publishing side of one connection."""

    def __init__(
        self, front: Front, connection: MqttConnection, opened: Opened, line: Line
    ) -> None:
        self._front = front
        self._connection, self._incoming = connection, connection.incoming
        self._opened = opened
        self._line = line
        self._repeats = dict.fromkeys(opened.owned.received, 0)
        # QoS 2 between PUBLISH and PUBREL: packet id → PUBRECs sent; -1: not stored yet
        self._repeated = (0, 0)
        """Packet id and hash of the last repeat."""

        self._posted: dict[int, int] = {}
        """Packet id → how many stores had been lost when it was posted."""

        self._unheard: dict[int, Callable[[], None]] = {}
        """Ended exchanges that a store that is away has not heard of, and what comes after."""

        self._late: deque[_Late] = deque()
        """PUBRECs behind one that waits until no store knows its packet id [MQTT-4.6.0-3]."""

        self._is_renewing = False
        self._behind: list[tuple[int, Callable[[], None]]] = []
        """Ended exchanges, and what comes after, that wait until all have seen the takeover."""

        self.is_over = False
        """The connection lets its session go."""

        self._released_early: set[int] = set()
        """PUBRELs that came before the store had the publish."""

        self._session = session_digest(opened.owned.record)
        self._generations = dict(opened.owned.record.generations)
        settings = front.settings
        self._receive_max = settings.receive_max
        self._tells_unmatched = settings.tells_unmatched
        self._is_structured = settings.cloudevents == "structured"
        self._outbox = opened.outbox
        self._under_way = 0
        """Posts without an answer, also those that the client gets none for."""

        self._done_count = 0
        self._checks_format = settings.checks_payload_format
        self._refused: list[tuple[int, Publish, Reason]] = []
        """What is refused here, each behind so many posts that are done [MQTT-4.6.0-2]."""

        self._all_stored = Signal(is_set=True)
        """Cleared by who wants to know."""

    @property
    def received(self) -> tuple[int, ...]:
        """Packet ids of what is stored and not released."""
        return tuple(number for number, repeats in self._repeats.items() if repeats >= 0)

    async def stored(self) -> None:
        """Wait, within reason, until everything so far is stored or refused."""
        if self._under_way:
            self._all_stored.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STORED_S_MAX):
                    await self._all_stored.wait()

    def _answered(self) -> None:
        self._done_count += 1
        self._under_way -= 1
        if not self._under_way and not self._all_stored.is_set:
            self._all_stored.set()

    # ── QoS 0 and 1 ─────────────────────────────────────────────────────────────────────

    def run(self, event: PublishRun) -> None:
        """Publishes without properties."""
        messages = event.messages
        head = messages.head if type(messages) is MessageRun else messages[0].head
        if head.retain:  # all of a run have the same first byte
            messages = clearing(messages, self._incoming.heads)
        if self._incoming.heads.has_delayed:
            messages = delayed(messages, wall_ms=clock.wall_ms())
        if self._is_structured and self._connection.version != V5:
            messages = from_structured(messages, is_implied=True)
        self._post(messages, event.packet_ids)

    def _post(self, messages: Sequence[Message], packet_ids: bytes) -> None:
        if packet_ids:
            self._outbox.own_posted += 1
        self._under_way += 1
        self._line.post(messages, partial(self._stored, packet_ids))

    def _stored(self, packet_ids: bytes, results: SendResults) -> None:
        self._answered()
        if not packet_ids:
            if self._front.settings.denied == "disconnect" and not results.is_all_stored:
                self._end_if_denied([results[index].code for index in range(len(results))])
            if self._refused:
                self._refuse_due()
            return
        connection = self._connection
        was_full = self._incoming.unanswered_count > self._receive_max
        if results.is_all_stored and not self._tells_unmatched:
            connection.acknowledge(packet_ids)
        else:
            for index in range(len(packet_ids) >> 1):
                result = results[index]
                number = packet_ids[2 * index] << 8 | packet_ids[2 * index + 1]
                self._answer(PUBACK, number, result.code, is_matched=result.matched_count > 0)
            self._incoming.unanswered_count -= len(packet_ids) >> 1
        if self._refused:
            self._refuse_due()
        if was_full:
            self._line.read_on()
        self._outbox.own_answered()
        self._line.answered()

    # ── QoS 2 ───────────────────────────────────────────────────────────────────────────

    def publish(self, packet: Publish) -> None:
        """
        One with properties, or of QoS 2.

        Raises PacketError for a repeat that no specification allows, and for one that is no text
        though it says so and cannot be answered.
        """
        packet_id = packet.packet_id
        if packet.qos == 2 and packet_id in self._repeats:
            self._repeat(packet)
            return
        if self._checks_format and not is_as_it_says(packet.properties, packet.payload):
            if not packet.qos:
                raise PacketError(Reason.PAYLOAD_FORMAT_INVALID, "text that is no UTF-8")
            due = self._done_count + self._under_way
            self._refused.append((due, packet, Reason.PAYLOAD_FORMAT_INVALID))
            self._refuse_due()
            return
        head = self._incoming.heads.find(packet.topic, packet.qos, packet.retain)
        if packet.retain and not packet.payload:
            head = self._incoming.heads.clearing(head)
        key = self._once_key(packet_id) if packet.qos == 2 else b""
        wall_ms = clock.wall_ms()
        message = message_of(head, packet.payload, packet.properties, wall_ms=wall_ms, once_key=key)
        if packet.dup and key and self._opened.owned.is_present:
            message = message._replace(is_resend=True)
        if self._is_structured:
            is_implied = self._connection.version != V5
            (message,) = from_structured([message], is_implied=is_implied)
        if packet.qos == 2:
            self._repeats[packet_id] = -1
            if not message.is_resend:
                self._posted[packet_id] = self._front.services.pipeline.loss_count
            self._outbox.own_posted += 1
            self._under_way += 1
            self._line.post([message], partial(self._received, packet_id))
        else:
            self._post([message], packet_id.to_bytes(2, "big") if packet.qos else b"")

    def is_under_way(self, packet: Publish) -> bool:
        """Whether the store has yet to take the publish that has its packet id."""
        return packet.qos == 2 and self._repeats.get(packet.packet_id) == -1

    def _repeat(self, packet: Publish) -> None:
        """The same packet id before PUBREL is the same publish, whatever is in it."""
        packet_id = packet.packet_id
        repeats = self._repeats[packet_id]
        if repeats < 0:
            return  # its PUBREC follows the store's answer
        content = hash((packet.topic, packet.payload))
        is_same, self._repeated = self._repeated == (packet_id, content), (packet_id, content)
        if repeats >= REPEATS_MAX and is_same and self._connection.version != V31:
            raise protocol_error("a QoS 2 publish once more on the same connection")
        self._repeats[packet_id] = min(repeats + 1, REPEATS_MAX)
        self._answer(PUBREC, packet_id, Code.OK)
        self._line.answered()

    def _once_key(self, packet_id: int) -> bytes:
        if not self._opened.is_kept:
            return b""
        start = self._session
        if generation := self._generations.get(packet_id, 0):
            start = session_digest(self._opened.owned.record, generation)
        return start + packet_id.to_bytes(2, "big")

    def _received(self, packet_id: int, results: SendResults) -> None:
        self._answered()
        code = results[0].code
        if code == Code.OK and not self._late:
            self._receive(packet_id, code)
            return
        late = _Late(packet_id, code)
        self._late.append(late)
        is_ended = self._connection.version == V5 and code not in AWAY and code != Code.OK
        if is_ended and code not in NOWHERE:  # of two copies one may be stored
            self._end(packet_id, partial(self._receive_late, late))
        else:
            self._receive_late(late)

    def _receive_late(self, late: "_Late") -> None:
        late.is_due = True
        while self._late and self._late[0].is_due:
            due = self._late.popleft()
            self._receive(due.packet_id, due.code)

    def _receive(self, packet_id: int, code: Code) -> None:
        """PUBREC."""
        if code == Code.OK or (self._connection.version != V5 and code in FINAL_REFUSALS):
            self._repeats[packet_id] = 1
        else:
            self._repeats.pop(packet_id, None)
            self._incoming.open_qos2.discard(packet_id)
        self._answer(PUBREC, packet_id, code)
        if self._refused:
            self._refuse_due()
        self._outbox.own_answered()
        self._line.answered()
        if packet_id in self._released_early:
            self._released_early.remove(packet_id)
            self._release(packet_id)

    def release(self, packet: Pubrel) -> None:
        """PUBCOMP once every store may take the packet id for another message."""
        if self._repeats.get(packet.packet_id) == -1:
            self._released_early.add(packet.packet_id)  # it must not overtake its publish
        else:
            self._release(packet.packet_id)

    def _release(self, packet_id: int) -> None:
        self._repeats.pop(packet_id, None)
        self._end(packet_id, partial(self._complete, packet_id))

    def _end(self, packet_id: int, then: Callable[[], None]) -> None:
        """*then* when no store takes another message under this packet id for a repeat."""
        key = self._once_key(packet_id)
        if not key:
            then()
            return
        if self._opened.owned.record.is_contested:
            self._behind.append((packet_id, then))
            if len(self._behind) == 1:
                self._front.tasks.start(self._be_alone(), name="alone")
            return
        since = self._posted.pop(packet_id, -1)
        done = partial(self._ended, packet_id, then)
        self._front.services.pipeline.release_once(self._opened.call, key, done, since=since)

    async def _be_alone(self) -> None:
        """
        What the gateway that had the session stores late is a repeat, for as long as its key is
        there: the key goes when that gateway has let go of the session, or is fenced.
        """
        opened = self._opened
        while opened.owned.record.is_contested and not self.is_over:
            try:
                await self._front.services.directory.barrier(opened.owned.version)
            except Refused as error:
                logger.info("client %s: the end of QoS 2 waits: %s", opened.call.client_id, error)
                await asyncio.sleep(RELEASE_AGAIN_S)
            else:
                opened.uncontested()
        behind, self._behind = self._behind, []
        if not self.is_over:
            for packet_id, then in behind:
                self._end(packet_id, then)

    def _ended(self, packet_id: int, then: Callable[[], None], is_everywhere: bool) -> None:
        if is_everywhere:
            then()
            return
        self._unheard[packet_id] = then
        if not self._is_renewing and not self.is_over:
            self._is_renewing = True
            self._front.tasks.start(self._renew(), name="renew")

    async def _renew(self) -> None:
        """New generations for packet ids that a store may still know."""
        while self._unheard and not self.is_over:
            unheard, self._unheard = self._unheard, {}
            is_written = False
            try:
                await self._opened.save(self._with_generations(set(unheard)))
                is_written = True
            except Refused as error:
                # the directory is away, with that store perhaps: until one of them is back
                client_id = self._opened.call.client_id
                logger.info("client %s: the end of QoS 2 waits: %s", client_id, error)
                await asyncio.sleep(RELEASE_AGAIN_S)
            if is_written:
                self._generations = dict(self._opened.owned.record.generations)
            if not self.is_over:
                for number, then in unheard.items():
                    if is_written:
                        then()
                    else:
                        self._end(number, then)
        self._is_renewing = False

    @staticmethod
    def _with_generations(numbers: set[int]) -> Callable[[SessionRecord], SessionRecord]:
        wall_s = clock.wall_ms() // 1000
        return lambda old: with_generations(old, numbers, wall_s=wall_s)

    def _complete(self, packet_id: int) -> None:
        self._incoming.open_qos2.discard(packet_id)
        # of unknown ids too: they were released; 0x92 would be an error to some clients' callers
        self._answer(PUBCOMP, packet_id, Code.OK)
        self._line.answered()

    # ── answers ─────────────────────────────────────────────────────────────────────────

    def _answer(self, first: int, packet_id: int, code: Code, *, is_matched: bool = True) -> None:
        """An acknowledgement of what was stored, refused or released."""
        connection, version = self._connection, self._connection.version
        if code == Code.OK:
            is_told = not is_matched and version == V5 and self._tells_unmatched
            reason = Reason.NO_MATCHING_SUBSCRIBERS if is_told else Reason.SUCCESS
            connection.queue(encode_ack(first, packet_id, reason, version))
            return
        self._front.refused.inc()
        call, observer = self._opened.call, self._front.services.observer
        trace_refusal(observer, call.client_id, call.peer, f"publish {packet_id}", code.name)
        if self._front.settings.denied == "disconnect" and code == Code.FORBIDDEN:
            self._end_if_denied([code])
        elif code in AWAY:
            self._line.end(Reason.SERVER_BUSY, f"a publish could not be stored: {code.name}")
        elif version == V5:
            reason = REFUSALS.get(code, Reason.UNSPECIFIED_ERROR)
            connection.queue(encode_ack(first, packet_id, reason, version))
        elif code in FINAL_REFUSALS:
            connection.queue(encode_ack(first, packet_id, 0, version))
        else:
            self._line.end(Reason.SERVER_UNAVAILABLE, f"a publish was refused: {code.name}")

    def _refuse_due(self) -> None:
        """Answer what was refused here, once all before it has been answered."""
        connection = self._connection
        while self._refused and self._refused[0][0] <= self._done_count:
            _, packet, reason = self._refused.pop(0)
            self._front.refused.inc()
            if packet.qos == 1:
                self._incoming.unanswered_count -= 1
            else:
                self._incoming.open_qos2.discard(packet.packet_id)
            first = PUBACK if packet.qos == 1 else PUBREC
            connection.queue(encode_ack(first, packet.packet_id, reason, connection.version))
            self._line.answered()

    def _end_if_denied(self, codes: Sequence[Code]) -> None:
        if Code.FORBIDDEN in codes:
            self._line.end(Reason.NOT_AUTHORIZED, "a publish was denied")


def session_digest(record: SessionRecord, generation: int = 0) -> bytes:
    """How the once-keys of a session begin, or those of one generation of a packet id."""
    text = f"{record.tenant}\x00{record.client_id}\x00{record.incarnation}"
    if generation:
        text += f"\x00{generation}"
    start = RELEASED_ONCE_PREFIX + b"\x00"
    size = ONCE_BYTES - len(start) - 2
    return start + blake2b(text.encode(), digest_size=size).digest()
