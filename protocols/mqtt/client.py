"""
One connected client: events of its connection into the pipeline, results back, in order.

``subscribing`` does SUBSCRIBE and UNSUBSCRIBE, ``outbox`` what goes to the client, ``sessions``
who owns the client id. Here is the order of things on one socket.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from protocols import clock
from protocols.canonical import Message, SendResults
from protocols.driver import Driver
from protocols.errors import Code, Refused
from protocols.exchanges import Proved
from protocols.mqtt.agreeing import Agreed
from protocols.mqtt.connection import MqttConnection
from protocols.mqtt.events import (
    NONE_WAITING,
    ORDERED,
    OVERRUN,
    WAITING_EVENTS_MAX,
    Acked,
    Behind,
    Event,
    Lost,
    Ordered,
    Overrun,
    PublishRun,
)
from protocols.mqtt.fields import PacketError
from protocols.mqtt.front import ANSWERS_S_MAX, LINGER_S, Front
from protocols.mqtt.inbound import Inbound
from protocols.mqtt.leaving import Leaving
from protocols.mqtt.leftovers import take_up
from protocols.mqtt.opened import Opened
from protocols.mqtt.opening import (
    UNOPENED,
    Caller,
    accept,
    hear,
    identify,
    open_session,
    server_reference,
)
from protocols.mqtt.outbox import Outbox
from protocols.mqtt.packets import (
    Auth,
    Connect,
    Disconnect,
    PacketProperties,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Reason,
    Subscribe,
    Unsubscribe,
)
from protocols.mqtt.proving import Proving
from protocols.mqtt.subscribing import Subscriber, unasked
from protocols.mqtt.tracing import trace_events, trace_refusal
from protocols.tasks import IDLE, Signal

logger = logging.getLogger("tidegate.mqtt")


class Client:
    """Glue of one socket: driver, connection, session, pipeline."""

    def __init__(self, front: Front) -> None:
        settings = front.settings
        self.front = front
        self.connection = MqttConnection(front.limits, now=clock.monotonic())
        self.driver: Driver[Event] = Driver(
            front.framed(self.connection),
            handle=self._handle,
            lost=self._lost,
            opened=self._opened,
            resumed=self._resumed,
            half_closed=self._half_closed,
            linger_s=LINGER_S,
            traffic=front.traffic,
        )
        self.opened: Opened | None = None
        self._waiting: deque[Ordered] = NONE_WAITING
        self._inbound: Inbound | None = None
        self._outbox: Outbox | None = None
        self._proving: Proving | None = None
        self._opening: asyncio.Task[None] | None = None
        self._receive_max = settings.receive_max
        self._is_busy = False
        self._is_congested = False
        self._is_gone = False
        self._leaving = Leaving(front, self.driver)
        self._idle = IDLE

    # ── Owner, and the operator's hand ──────────────────────────────────────────────────

    def take_over(self) -> None:
        """The client id is another connection's now [MQTT-3.1.4-3]. One that is leaving writes its
        end down first: an orderly DISCONNECT has no will."""
        if self._leaving.is_begun and not self._leaving.is_taken:
            self._withdraw(is_taken=True)
            return
        self._leaving.is_taken = True
        self.end(Reason.SESSION_TAKEN_OVER, "taken over by another connection")

    async def left(self) -> None:
        await self._leaving.done()

    def end(self, reason: Reason, text: str, properties: PacketProperties = ()) -> None:
        """Close from our side; a 5.0 client is told *reason*."""
        self._leaving.because(text)
        if not self.connection.is_closing:
            logger.info("client %s: %s", self._name, text)
            self.connection.fail(reason, text, properties=properties)
        self.driver.flush()
        self._leave()

    async def _end_overrun(self) -> None:
        await self._answered_all()
        self.end(Reason.RECEIVE_MAXIMUM_EXCEEDED, OVERRUN)

    async def _answered_all(self) -> None:
        await self._idle.wait()
        if self._inbound is not None:
            await self._inbound.stored()

    def feed_ended(self, code: Code) -> None:
        """The session's own stream is over: another gateway has it, or ours lost its lease."""
        if code == Code.PRECONDITION_FAILED:
            self.take_over()
        else:
            self.end(Reason.SERVER_BUSY, f"the session's stream ended: {code.name}")

    def shut_down(self) -> None:
        """The gateway stops: no will, the session stays for the next gateway."""
        self._leaving.sends_will = False
        self.end(Reason.SERVER_SHUTTING_DOWN, "the gateway stops")

    def move(self) -> None:
        """The gateway drains: as at its end, and a 5.0 client hears where to go."""
        self._leaving.sends_will = False
        elsewhere = server_reference(self.front)
        self.end(Reason.SERVER_MOVED, "sent to another gateway", elsewhere)

    def cut_off(self) -> None:
        self.driver.abort()

    @property
    def subscription_counts(self) -> tuple[int, int] | None:
        return self.opened.subscription_counts if self.opened is not None else None

    @property
    def _name(self) -> str:
        peer = self.driver.peer
        return f"{self.opened.call.client_id} at {peer}" if self.opened else peer

    # ── events ──────────────────────────────────────────────────────────────────────────

    def _handle(self, driver: Driver[Event], events: Sequence[Event]) -> None:
        if self.front.services.observer.is_tracing:
            client_id = self.opened.call.client_id if self.opened is not None else ""
            trace_events(self.front.services.observer, client_id, driver.peer, events)
        try:
            for event in events:
                self._handle_one(event)
        except PacketError as error:
            self._end_at_fault(error)
        if self.connection.is_closing:
            self._leave()

    def _end_at_fault(self, error: PacketError) -> None:
        """Nothing that came behind it is looked at, a DISCONNECT neither."""
        self._waiting.clear()
        self._leaving.sends_will = True
        self.end(error.reason, str(error))

    def _handle_one(self, event: Event) -> None:
        if type(event) is PublishRun and not self._is_busy:  # nearly all there is
            self._publishing().run(event)
        elif isinstance(event, ORDERED):
            if self._is_busy:
                if self._waiting is NONE_WAITING:
                    self._waiting = deque()
                self._waiting.append(event)
                self._set_reading()
            else:
                self._in_order(event)
        elif isinstance(event, Lost):
            self._leaving.because(event.text)
            logger.info("client %s: %s", self._name, event.text)
        elif isinstance(event, Disconnect):
            self._leaving.said(event)
        elif isinstance(event, Connect):
            self._opening = self.front.tasks.start(self._open(event), name="open")
        elif isinstance(event, Auth):
            self._proof().received(event)
        elif isinstance(event, Behind):
            self._set_reading()
            if self.opened is not None:
                asyncio.get_running_loop().call_soon(self._next_turn)
        elif isinstance(event, Overrun):
            self.front.tasks.start(self._end_overrun(), name="overrun")
        elif self.opened is not None:
            outbox = self._outbox = self._outbox or self.opened.outbox
            if isinstance(event, Acked):
                outbox.acked(event.packet_ids)
            elif isinstance(event, Pubrec):
                outbox.received(event)
            else:
                assert isinstance(event, Pubcomp)
                outbox.completed(event)

    def _in_order(self, event: Ordered) -> None:
        if isinstance(event, PublishRun):
            self._publishing().run(event)
        elif isinstance(event, Pubrel):
            self._publishing().release(event)
        elif isinstance(event, Publish) and not self._publishing().is_under_way(event):
            self._publishing().publish(event)
        else:
            self._is_busy = True
            if self._idle is IDLE:
                self._idle = Signal()
            self.front.tasks.start(self._behind_the_rest(event), name="behind the rest")

    def _publishing(self) -> Inbound:
        """Made with the first publish."""
        if self._inbound is None:
            assert self.opened is not None
            self._inbound = Inbound(self.front, self.connection, self.opened, self)
        return self._inbound

    async def _behind_the_rest(self, packet: Subscribe | Unsubscribe | Publish) -> None:
        """What waits until all that was published before it is stored."""
        try:
            assert self.opened is not None
            subscriber = Subscriber(self.opened, self.front, self.connection)
            if self._inbound is not None:  # what came before is no news to the subscription
                await self._inbound.stored()
            if isinstance(packet, Publish):
                self._publishing().publish(packet)
            elif isinstance(packet, Subscribe):
                await subscriber.subscribe_in_turn(packet)
            else:
                await subscriber.unsubscribe(packet)
        except PacketError as error:
            self._end_at_fault(error)
        except Refused as error:
            self.end(Reason.IMPLEMENTATION_SPECIFIC_ERROR, str(error))
        finally:
            self._is_busy = False
            self._go_on()

    def _go_on(self) -> None:
        """Handle what waited, up to the next thing to wait for."""
        try:
            while self._waiting and not self._is_busy:
                self._in_order(self._waiting.popleft())
        except PacketError as error:
            self._end_at_fault(error)
        if not self._is_busy:
            idle, self._idle = self._idle, IDLE
            idle.set()
        self._set_reading()
        self.driver.flush_soon()

    # ── opening ─────────────────────────────────────────────────────────────────────────

    async def _open(self, connect: Connect) -> None:
        try:
            caller = hear(self.front, self.connection, self.driver, connect)
            proved = None  # in none of the places for opening sessions: it may take others time
            if caller is not None and self.connection.auth is not None:
                proved = await self._proof().at_connect(caller)
            elif caller is not None:
                proved = await identify(self.front, self.connection, caller)
            if caller is None or proved is None or self.connection.is_closing:
                self._refused(connect)
            else:
                await self._open_in_turn(caller, proved)
        finally:
            if self.opened is None:
                self._leaving.is_done()
            self._opening = None

    async def _open_in_turn(self, caller: Caller, proved: Proved) -> None:
        connect = caller.connect
        if not await self.front.places.take(self.front.settings.opening_s_max):
            self.front.busy.inc()
            self.connection.refuse(Reason.SERVER_BUSY)
            self.driver.flush()
            return
        try:
            agreed = await open_session(
                self.front, self, self.connection, self.driver, caller, proved
            )
            if agreed is None:
                self._refused(connect)
                return
            self.opened = agreed.opened
            self.opened.holder = self
            if self._leaving.is_taken or self.connection.is_closing:
                self._leave()
            elif self._is_gone:  # what it sent behind CONNECT counts, its DISCONNECT too
                accept(self.front, self.connection, agreed)
                self.read_behind()
            else:
                self._welcome(connect, agreed)
        except Refused as error:
            logger.info("client %s: %s", connect.client_id, error)
            self.connection.refuse(UNOPENED.get(error.code, Reason.SERVER_UNAVAILABLE))
            self._refused(connect, str(error))
        finally:
            self.front.places.give()

    def _refused(self, connect: Connect, text: str = "") -> None:
        reason = text or (self.connection.refused or Reason.UNSPECIFIED_ERROR).name
        observer, peer = self.front.services.observer, self.driver.peer
        trace_refusal(observer, connect.client_id, peer, "connect", reason)
        self.driver.flush()

    def _welcome(self, connect: Connect, agreed: Agreed) -> None:
        """CONNACK, then what an earlier connection left open, then what came behind CONNECT."""
        opened, record = agreed.opened, agreed.opened.owned.record
        now_ms = clock.wall_ms()
        kick = partial(self.end, Reason.ADMINISTRATIVE_ACTION, "kicked")
        info = opened.info(now_ms)
        self._leaving.joined(now_ms, self.front.services.clients.joined(info, kick, self.move))
        accept(self.front, self.connection, agreed)
        if self.front.presence is not None:
            self.front.presence.online(record, connect, self.driver.peer)
        if self._proving is not None or opened.call.identity.expires_at_ms:
            self._proof().hold(opened.call.identity)
        take_up(opened)
        opened.start_feed()
        self.front.board.follow(opened, self.connection)
        for packet in unasked(opened):
            self._handle_one(packet)
        self.read_behind()

    def read_behind(self) -> None:
        """What came before we could answer."""
        self._read_on(self.connection.continue_reading(now=clock.monotonic()))

    def _next_turn(self) -> None:
        self._read_on(self.connection.next_turn(now=clock.monotonic()))

    def _read_on(self, events: Sequence[Event]) -> None:
        self._handle(self.driver, events)
        self._set_reading()
        self.driver.flush()
        if self._is_gone and not self.connection.is_behind:
            self._leave()

    def _proof(self) -> Proving:
        """Made for clients whose login has a method, or an end."""
        self._proving = self._proving or Proving(self.front, self.connection, self)
        return self._proving

    # ── publishing ──────────────────────────────────────────────────────────────────────

    def post(self, messages: Sequence[Message], done: Callable[[SendResults], None]) -> None:
        assert self.opened is not None
        pipeline, call = self.front.services.pipeline, self.opened.call
        self.front.received.inc(len(messages))
        pipeline.post(call, messages, done)
        if pipeline.is_congested(call) and not self._is_congested:
            self._is_congested = True
            self._set_reading()
            pipeline.when_clear(self._clear, call)
        elif self.connection.incoming.unanswered_count > self._receive_max:
            self._set_reading()

    def answered(self) -> None:
        self.driver.flush_soon()

    def read_on(self) -> None:
        self._set_reading()

    def _clear(self) -> None:
        self._is_congested = False
        self._set_reading()

    def _set_reading(self) -> None:
        connection = self.connection
        is_full = connection.incoming.unanswered_count > self._receive_max
        is_late = connection.is_behind or len(self._waiting) > WAITING_EVENTS_MAX
        connection.is_deaf = is_full or is_late or self._is_congested
        if connection.is_deaf:
            self.driver.pause_reading()
        else:
            self.driver.resume_reading()

    # ── leaving ─────────────────────────────────────────────────────────────────────────

    def _resumed(self, driver: Driver[Event]) -> None:
        if self.opened is not None:
            self.opened.settle()

    def _opened(self, driver: Driver[Event]) -> None:
        self.front.socket_count += 1
        self.front.clients.add(self)

    def _half_closed(self, driver: Driver[Event]) -> bool:
        """True: what it asked for before is still to be answered."""
        if self._opening is not None or self._is_busy or self.connection.incoming.unanswered_count:
            self.front.tasks.start(self._answer_out(), name="half-closed")
            return True
        return False

    async def _answer_out(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWERS_S_MAX):
                if self._opening is not None:
                    await asyncio.wait((self._opening,))
                await self._answered_all()
        self.driver.close()

    def _lost(self, driver: Driver[Event]) -> None:
        self._is_gone = True
        if self._proving is not None:
            self._proving.lost()
            self._proving = None
        self.front.clients.discard(self)
        if self.opened is not None and not self.connection.is_behind:
            self._leave()

    def _leave(self) -> None:
        """Begin to let the session go, once."""
        if not self._leaving.is_begun and self.opened is not None:
            self._leaving.is_begun = True
            self._withdraw(is_taken=self._leaving.is_taken)
            self.front.leaving.start(self._let_go(self.opened), name="leave")

    def _withdraw(self, *, is_taken: bool) -> None:
        """The session's next connection sends again what has no PUBREC."""
        if self._inbound is not None and self.opened is not None and self.opened.is_kept:
            self._inbound.is_over = True
            self.front.services.pipeline.withdraw(self.opened.call, is_taken=is_taken)

    async def _let_go(self, opened: Opened) -> None:
        await self._leaving.release(opened, self._idle)
        await self._leaving.write_down(opened, partial(self._received, opened))
        self.front.sessions.let_go(opened.owned, self, opened.call)
        self._leaving.is_done()
        opened.parted()
        self._inbound = self._outbox = None

    def _received(self, opened: Opened) -> tuple[int, ...]:
        return opened.owned.received if self._inbound is None else self._inbound.received
