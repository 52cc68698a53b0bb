"""
One standing stream into a session's outbox: its own, or its part in a shared subscription.

Keeps the credit, gathers the acks and marks of a tick, and holds back what came too early.
"""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Protocol

from protocols.canonical import Delivery, ReceiptHandle
from protocols.delivery_runs import DeliveryRun
from protocols.errors import Code
from protocols.mqtt.session import Flight, Stage, Subscriptions, Window
from protocols.pipeline import DeliveryStream

Marks = list[tuple[ReceiptHandle, int, int]]


class Owner(Protocol):
    """The outbox, as far as a stream needs it."""

    window: Window

    def deliver(self, feed: "Feed", deliveries: Sequence[Delivery]) -> None: ...

    def resend(self, feed: "Feed", deliveries: Sequence[Delivery]) -> None: ...

    def settle_soon(self, feed: "Feed") -> None: ...

    @property
    def is_peer_slow(self) -> Callable[[], bool]: ...


def _nobody(feed: object, code: Code) -> None:
    """The session has been let go."""


def _in_turn(early: list[Delivery]) -> list[Delivery]:
    """
    Of each store up to the last that has a packet id, then the rest: what is new at one store takes
    no place in the window from what was under way at another.
    """
    last: dict[tuple[str, str], int] = {}
    for index, delivery in enumerate(early):
        if delivery.packet_id:
            last[delivery.handle.cluster, delivery.handle.broker] = index
    heads: list[Delivery] = []
    tails: list[Delivery] = []
    for index, delivery in enumerate(early):
        is_head = index <= last.get((delivery.handle.cluster, delivery.handle.broker), -1)
        (heads if is_head else tails).append(delivery)
    return heads + tails


class Feed:
    """One stream into the outbox: its credit, its acks, what came before it was ready."""

    def __init__(
        self,
        outbox: Owner,
        subscriptions: Subscriptions,
        *,
        credit: int,
        is_auto_ack: bool,
        is_marked: bool,
        ended: Callable[["Feed", Code], None],
    ) -> None:
        self.subscriptions = subscriptions
        self.is_marked = is_marked
        """Packet ids and stages are kept at the store: the session outlives us."""

        self.credit = credit
        self.early: list[Delivery] | None = []
        """What came before ``start``; None: started."""

        self.is_settle_due = False
        self.unnamed = Flight(self, None, 1, Stage.SENT)
        """All packet ids of its runs, whose deliveries have no names."""

        self._outbox = outbox
        self.is_auto_ack = is_auto_ack
        self._ended = ended
        self._stream: DeliveryStream | None = None
        self._finished_count = 0
        self._allowed = credit
        self._to_ack: list[ReceiptHandle] = []
        self._marks: Marks = []

    # DeliverySink

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        if self.early is not None:
            self.early += deliveries
        elif self.is_marked and type(deliveries) is not DeliveryRun and deliveries[0].packet_id:
            self._outbox.resend(self, deliveries)  # a stream gives such by themselves
        else:
            self._outbox.deliver(self, deliveries)

    def ended(self, code: Code, hint: str) -> None:
        self._stream = None
        self._ended(self, code)

    # owner

    def start(self, stream: DeliveryStream) -> None:
        """Deliveries flow from now on; those an earlier connection had sent go first."""
        self._stream = stream
        if self.is_marked:
            stream.when_unmarked(self._mark_again)
        early, self.early = self.early or [], None
        if any([delivery.packet_id for delivery in early]):
            early = _in_turn(early)
        for is_sent, stretch in groupby(early, lambda delivery: delivery.packet_id > 0):
            if is_sent:
                self._outbox.resend(self, [*stretch])
            else:
                self._outbox.deliver(self, [*stretch])

    @property
    def stream(self) -> DeliveryStream | None:
        return self._stream

    async def close(self, *, drop_group: bool) -> None:
        """End the stream; what was not acknowledged goes back or stays, as its group says."""
        stream = self._stream
        if stream is not None:
            self.settle()
            self._stream = None
            await stream.close(drop_group=drop_group)

    def parted(self) -> None:
        """Nobody is told of anything any more."""
        self.unnamed.source = None
        self._ended = _nobody

    # Source

    def done(self, handle: ReceiptHandle) -> None:
        self._finished_count += 1
        if not self.is_auto_ack:
            self._to_ack.append(handle)
        if not self.is_settle_due:
            self._outbox.settle_soon(self)

    def done_run(self, run: DeliveryRun) -> None:
        """All of it, without a wait for the client."""
        if self.is_auto_ack:
            self.done_unnamed(len(run))
            return
        self._finished_count += len(run)
        self._to_ack += run.handles()
        self._outbox.settle_soon(self)

    def done_unnamed(self, count: int) -> None:
        self._finished_count += count
        if not self.is_settle_due and self._is_credit_due():
            self._outbox.settle_soon(self)

    def _is_credit_due(self) -> bool:
        """A quarter of it is used up; less would be news too often."""
        return self._finished_count + self.credit - self._allowed >= self.credit >> 2

    def mark(self, handle: ReceiptHandle, packet_id: int, stage: int = Stage.SENT) -> None:
        """Note the packet id, of a QoS 1 publish if no *stage* is told; nobody waits for it."""
        self._marks.append((handle, packet_id, stage))
        self._outbox.settle_soon(self)

    def mark_run(self, handles: list[ReceiptHandle], numbers: list[bytes]) -> None:
        """``mark`` of a run; *numbers*: the packet ids, two bytes each."""
        for handle, number in zip(handles, numbers, strict=True):
            self._marks.append((handle, int.from_bytes(number, "big"), Stage.SENT))
        self._outbox.settle_soon(self)

    def _mark_again(self, handles: Sequence[ReceiptHandle]) -> None:
        """Their marks went with a connection to the store; of those that the client has."""
        places = {(handle.cluster, handle.broker, handle.position) for handle in handles}
        for packet_id, flight in self._outbox.window.flights.items():
            handle = flight.handle
            if handle is None or flight.source is not self or flight.stage == Stage.WAITING:
                continue
            if (handle.cluster, handle.broker, handle.position) in places:
                is_sent_qos2 = flight.qos == 2 and flight.stage == Stage.SENT
                stage = Stage.SENT_QOS2 if is_sent_qos2 else flight.stage
                self._marks.append((handle, packet_id, stage))
        if self._marks:
            self._outbox.settle_soon(self)

    async def mark_durably(self, marks: Marks) -> bool:
        return self._stream is not None and await self._stream.mark_durably(marks)

    async def mark_or_forget(self, handle: ReceiptHandle, packet_id: int, stage: int) -> bool:
        """Mark what the client has not seen; False: it is not on disk, and will come again."""
        stream = self._stream
        return stream is not None and await stream.mark_or_forget(handle, packet_id, stage)

    def forget(self, handle: ReceiptHandle) -> None:
        """The client has not seen it and shall get it later: its store hands it out anew."""
        if self._stream is not None:
            self._stream.release([handle], is_sent=False)

    def taken_back(self) -> None:
        """One delivery is the store's again."""
        self._finished_count += 1
        if not self.is_settle_due:
            self._outbox.settle_soon(self)

    def settle(self) -> None:
        """Send what this tick has gathered: marks, acks, more credit."""
        self.is_settle_due = False
        stream = self._stream
        if stream is None:
            return
        if self._marks:
            marks, self._marks = self._marks, []
            stream.mark(marks)
        if self._to_ack:
            handles, self._to_ack = self._to_ack, []
            stream.ack(handles)
        if self._is_credit_due() and not self._outbox.is_peer_slow():
            self._allowed = self._finished_count + self.credit
            stream.allow(self._allowed)
