"""
One channel at work: its methods in order, one at a time.

What can be done at once (publish, ack, qos) is done while the read buffer is walked; what must
wait for the directory or a store runs in a task, and everything behind it on this channel waits.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from protocols import clock
from protocols.amqp import consuming, declaring, publishing, replies
from protocols.amqp.changes import fault_of
from protocols.amqp.channel import Confirms, Mode, Outcome, Unacked, Unsettled
from protocols.amqp.codec import Ack, Call, Oversize, Publish
from protocols.amqp.consumer import Consumer
from protocols.amqp.consuming import Later
from protocols.amqp.events import ChannelEnded
from protocols.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicGet,
    BasicNack,
    BasicQos,
    BasicRecover,
    BasicRecoverAsync,
    BasicReject,
    ConfirmSelect,
    ConfirmSelectOk,
    ExchangeBind,
    ExchangeDeclare,
    ExchangeDelete,
    ExchangeUnbind,
    Method,
    QueueBind,
    QueueDeclare,
    QueueDelete,
    QueuePurge,
    QueueUnbind,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
    TxSelectOk,
)
from protocols.amqp.replies import AmqpFault
from protocols.canonical import Delivery
from protocols.errors import Refused

if TYPE_CHECKING:
    from protocols.amqp.session import Session

logger = logging.getLogger("tidegate.amqp")

Work = Publish | Ack | Call | Oversize | ChannelEnded
"""What a channel has to do, in order."""

GET: Final = 0x003C0046
"""basic.get, which no ack before it can change: it does not wait until they are durable."""

TRANSACTION_BYTES_MAX: Final = 64 << 20
"""Bodies that one transaction may hold before it is committed."""


class Transaction:
    """What a channel in tx mode has not committed."""

    def __init__(self) -> None:
        self.publishes: list[Publish] = []
        self.size_bytes = 0
        self.settled: list[tuple[list[Unacked], Outcome]] = []


class Awaited:
    """A number of answers, and the moment when there is none to come."""

    def __init__(self) -> None:
        self._count = 0
        self._is_none = asyncio.Event()
        self._is_none.set()

    def add(self, change: int) -> None:
        self._count += change
        if self._count:
            self._is_none.clear()
        else:
            self._is_none.set()

    async def none(self) -> None:
        await self._is_none.wait()


class ChannelWork:
    """State and order of one channel; the verbs are in the modules beside this."""

    def __init__(self, session: "Session", number: int) -> None:
        self.session = session
        self.number = number
        self.is_open = True
        self.mode = Mode.PLAIN
        self.unsettled = Unsettled()
        self.confirms = Confirms()
        self.transaction: Transaction | None = None
        self.consumers: dict[str, Consumer] = {}
        self.ending: set[Consumer] = set()
        """Cancelled, but the client still holds deliveries of theirs."""

        self.prefetch = 0
        self.limit = 0
        """Deliveries that the channel may hold over all consumers; 0: no limit."""

        self.delivered_count = 0
        """Deliveries of consumers that are not settled; those of basic.get are no part of it."""

        self._offers: list[tuple[Consumer, Sequence[Delivery]]] = []
        self._turns = 0
        self.last_queue = ""
        self.reply_name = ""
        """Where direct replies to this channel go; empty: it has not asked for them."""

        self._waiting: deque[Work] = deque()
        self._is_busy = False
        self._notices: list[BasicCancel] = []
        """Consumers that ended, to be told behind the answer to the method in progress: who deletes
        its own queue hears of that first."""

        self._answers = Awaited()
        self._acks = Awaited()

    # ── order ───────────────────────────────────────────────────────────────────────────

    def feed(self, events: Sequence[Work]) -> None:
        """The next events of this channel."""
        if self._is_busy:
            self._waiting += events
            self.session.waiting(len(events))
        else:
            self._walk(events)

    def _walk(self, events: Sequence[Work]) -> None:
        """Do what can be done now; the first that must wait takes the rest with it."""
        index, count = 0, len(events)
        while index < count and self.is_open:
            event = events[index]
            start = index
            index += 1
            if isinstance(event, Publish):
                while index < count and isinstance(events[index], Publish):
                    index += 1
            method_id = event.method_id if isinstance(event, Call) else 0
            try:
                later = self._do(events[start:index])
            except AmqpFault as fault:
                fault.method = fault.method or method_id
                self.fail(fault)
                return
            if later is not None:
                self._is_busy = True
                self._waiting += events[index:]
                self.session.waiting(count - index)
                self.session.start(self._finish(later, method_id), f"channel {self.number}")
                return

    def _do(self, events: Sequence[Work]) -> Later:
        """One event, or a run of publishes."""
        event = events[0]
        if isinstance(event, Publish):
            return self._publish([item for item in events if isinstance(item, Publish)])
        if isinstance(event, Ack):
            consuming.settle(
                self, event.tag, is_multiple=event.is_multiple, method=publishing.METHOD + 0x28
            )
            return None
        if isinstance(event, Call):
            handler = HANDLERS.get(type(event.method))
            if handler is None:
                raise AmqpFault(
                    replies.COMMAND_INVALID,
                    "unimplemented method",
                    method=event.method_id,
                )
            return handler(self, event.method)
        if isinstance(event, Oversize):
            limit = self.session.settings.message_bytes_max
            raise AmqpFault(
                replies.PRECONDITION_FAILED,
                f"message size {event.body_bytes} is larger than configured max size {limit}",
                method=publishing.METHOD,
            )
        return self._end()

    async def _finish(self, later: Later, method_id: int) -> None:
        """Await one method, then go on with what came behind it."""
        assert later is not None
        try:
            await self._answers.none()  # what came before it is done first
            if method_id != GET:
                await self._acks.none()
            await later
        except AmqpFault as fault:
            fault.method = fault.method or method_id
            self.fail(fault)
        except Refused as refused:
            refusal = fault_of(refused)
            refusal.method = method_id
            self.fail(refusal)
        except Exception as error:
            logger.exception("channel %d of %s", self.number, self.session.name)
            self.session.close(AmqpFault(replies.INTERNAL_ERROR, str(error), method=method_id))
        self._is_busy = False
        self._send_notices()
        events = list(self._waiting)
        self._waiting.clear()
        self.session.waiting(-len(events))
        self._walk(events)
        self.flush_soon()

    def busy(self, change: int) -> None:
        """So many answers more (or fewer) are awaited before the next method may run."""
        self._answers.add(change)

    def acking(self, change: int) -> None:
        """So many acks of gets more (or fewer) are awaited: by every method but a get."""
        self._acks.add(change)

    # ── publish, confirm, tx ────────────────────────────────────────────────────────────

    def _publish(self, run: Sequence[Publish]) -> Later:
        if self.transaction is not None:
            self.transaction.publishes += run
            self.transaction.size_bytes += sum(len(item.body) for item in run)
            if self.transaction.size_bytes > TRANSACTION_BYTES_MAX:
                raise AmqpFault(replies.PRECONDITION_FAILED, "transaction too large")
            return None
        publisher = self.session.publisher
        if not all(publisher.is_known(item) for item in run):
            return self._publish_after_look(run)
        self._post(run)
        return None

    async def _publish_after_look(self, run: Sequence[Publish]) -> None:
        """An exchange is not known here: another gateway may have declared it just now."""
        await self.session.services.directory.catch_up()
        self._post(run)

    def _post(self, run: Sequence[Publish]) -> None:
        outcomes, messages, fault = publishing.prepare(self, run)
        if outcomes:
            publishing.post(self, outcomes, messages)
        if fault is not None:
            raise fault

    def confirm_soon(self) -> None:
        """Acks for all that is decided, in one write at the end of this tick."""
        if self.mode is Mode.CONFIRM:
            self.session.confirm_soon(self)

    def take_confirms(self) -> None:
        if self.is_open:
            for tag, is_multiple, is_ack in self.confirms.take_runs():
                self.send(BasicAck(tag, is_multiple) if is_ack else BasicNack(tag, False, False))

    def select(self, mode: Mode) -> None:
        """Raises AmqpFault 406: confirms and transactions exclude each other."""
        if self.mode is not mode and self.mode is not Mode.PLAIN:
            names = {Mode.CONFIRM: "confirm", Mode.TX: "tx"}
            raise AmqpFault(
                replies.PRECONDITION_FAILED,
                f"cannot switch from {names[self.mode]} to {names[mode]} mode",
            )
        self.mode = mode
        if mode is Mode.TX and self.transaction is None:
            self.transaction = Transaction()

    def require_transaction(self) -> Transaction:
        if self.transaction is None:
            raise AmqpFault(replies.PRECONDITION_FAILED, "channel is not transactional")
        return self.transaction

    async def commit(self) -> None:
        """Publishes first, then acks: a crash between them repeats messages, loses none."""
        transaction = self.require_transaction()
        self.transaction = Transaction()
        if transaction.publishes:
            await self.session.services.directory.catch_up()
            self._post(transaction.publishes)
            await self._answers.none()
        for entries, outcome in transaction.settled:
            consuming.finish(self, entries, outcome)
        await self._answers.none()
        await self._acks.none()
        self.send(TxCommitOk())

    def roll_back(self) -> None:
        """Acks are taken back: those deliveries are outstanding again."""
        transaction = self.require_transaction()
        self.transaction = Transaction()
        for entries, _ in transaction.settled:
            for entry in entries:
                self.unsettled.by_tag[entry.tag] = entry
        self.unsettled.by_tag = dict(sorted(self.unsettled.by_tag.items()))
        self.send(TxRollbackOk())

    # ── deliveries ──────────────────────────────────────────────────────────────────────

    def room(self) -> int:
        """Deliveries that the channel's own limit still admits."""
        if not self.limit:
            return 1 << 30
        return max(self.limit - self.delivered_count, 0)

    def pay_owed(self) -> None:
        """Consumers that were held back by the channel's limit may go on."""
        if self.limit and not self.room():
            return
        for consumer in self.consumers.values():
            consumer.pay_owed()

    @property
    def is_sharing(self) -> bool:
        """Also as long as something waits to be served: nothing overtakes it."""
        return bool(self.limit or self._offers)

    def share_out(self, consumer: Consumer, deliveries: Sequence[Delivery]) -> None:
        """What stores bring in one frame is for all consumers of the channel: whoever was served
        last comes last, so that none of them goes without."""
        if not self._offers:
            asyncio.get_running_loop().call_soon(self._serve)
        self._offers.append((consumer, deliveries))

    def _serve(self) -> None:
        offers, self._offers = self._offers, []
        offers.sort(key=lambda offer: offer[0].turn)
        for consumer, deliveries in offers:
            if consumer.take(deliveries):
                self._turns += 1
                consumer.turn = self._turns

    def consumer_ended(self, consumer: Consumer) -> None:
        """Not by the client: tell it, if it said that it can hear."""
        if self.consumers.get(consumer.tag) is consumer:
            del self.consumers[consumer.tag]
            consumer.is_cancelled = True
            self.session.registry.discard(consumer)
            self.session.close_stream(consumer)
            if self.is_open and self.session.connection.has_capability("consumer_cancel_notify"):
                self._notices.append(BasicCancel(consumer.tag, True))
                if not self._is_busy:
                    self._send_notices()

    def _send_notices(self) -> None:
        notices, self._notices = self._notices, []
        for notice in notices if self.is_open else ():
            self.send(notice)
            self.flush_soon()

    def queue_name(self, name: str) -> str:
        """An empty name is the queue that was last declared on this channel."""
        if name:
            return name
        if not self.last_queue:
            raise AmqpFault(replies.NOT_FOUND, "no previously declared queue")
        return self.last_queue

    # ── the end ─────────────────────────────────────────────────────────────────────────

    def fail(self, fault: AmqpFault) -> None:
        """End this channel, or by a hard fault the connection."""
        if not self.is_open:
            return
        if fault.is_hard:
            self.session.close(fault)
            return
        self.is_open = False
        self.session.connection.close_channel(self.number, fault)
        self.flush_soon()
        self.session.drop_channel(self)

    def _end(self) -> Later:
        return self._leave()

    async def _leave(self) -> None:
        """The client closes the channel: close-ok follows when all is back in its place."""
        self.session.channels.pop(self.number, None)
        await self.release()
        self.session.connection.end_channel(self.number)

    async def release(self) -> None:
        """Give back, in order, what the client has not settled; end the consumers."""
        self.is_open = False
        entries = self.unsettled.take_all()
        if self.transaction is not None:
            entries += [entry for group, _ in self.transaction.settled for entry in group]
        popped = [entry.handle for entry in entries if entry.consumer is None]
        await self.session.return_popped(popped)
        consumers = [*self.consumers.values(), *self.ending]
        self.consumers.clear()
        self.ending.clear()
        for consumer in consumers:
            await consuming.end_consumer(self, consumer)
        await self._acks.none()

    # ── out ─────────────────────────────────────────────────────────────────────────────

    def send(self, method: Method) -> None:
        if self.is_open:
            self.session.connection.send(self.number, method)

    def write(self, frames: bytes) -> None:
        self.session.connection.write(frames)

    def flush_soon(self) -> None:
        self.session.driver.flush_soon()

    @property
    def frame_bytes_max(self) -> int:
        return self.session.connection.frame_bytes_max

    @property
    def is_peer_slow(self) -> bool:
        return self.session.driver.is_peer_slow

    def when_drained(self, resume: Callable[[], None]) -> None:
        self.session.when_drained(resume)

    def wall_ms(self) -> int:
        return clock.wall_ms()


def _confirm_select(work: ChannelWork, method: Method) -> Later:
    assert isinstance(method, ConfirmSelect)
    work.select(Mode.CONFIRM)
    if not method.nowait:
        work.send(ConfirmSelectOk())
    return None


def _tx_select(work: ChannelWork, method: Method) -> Later:
    work.select(Mode.TX)
    work.send(TxSelectOk())
    return None


def _tx_commit(work: ChannelWork, method: Method) -> Later:
    work.require_transaction()
    return work.commit()


def _tx_rollback(work: ChannelWork, method: Method) -> Later:
    work.roll_back()
    return None


HANDLERS: Final[dict[type[Method], Callable[[ChannelWork, Method], Later]]] = {
    ExchangeDeclare: declaring.exchange_declare,
    ExchangeDelete: declaring.exchange_delete,
    ExchangeBind: declaring.exchange_bind,
    ExchangeUnbind: declaring.exchange_unbind,
    QueueDeclare: declaring.queue_declare,
    QueueBind: declaring.queue_bind,
    QueueUnbind: declaring.queue_unbind,
    QueuePurge: declaring.queue_purge,
    QueueDelete: declaring.queue_delete,
    BasicQos: consuming.qos,
    BasicConsume: consuming.consume,
    BasicCancel: consuming.cancel,
    BasicGet: consuming.get,
    BasicAck: consuming.ack,
    BasicNack: consuming.nack,
    BasicReject: consuming.reject,
    BasicRecover: consuming.recover,
    BasicRecoverAsync: consuming.recover,
    ConfirmSelect: _confirm_select,
    TxSelect: _tx_select,
    TxCommit: _tx_commit,
    TxRollback: _tx_rollback,
}
"""Methods that clients send on a channel (flow, open and close are the connection's)."""
