"""
One basic.consume: the receiving end of a delivery stream, its credit, its bytes on the wire.

Credit is prefetch: the stream may hand over so many deliveries more than were settled. A limit
of the whole channel (``qos global``) is kept here: of what comes for several consumers at once
whoever has waited longest is served first, and what is over the limit goes back unseen.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from protocols.amqp.channel import CREDIT_MAX, Outcome, Unacked
from protocols.amqp.codec import content_frames
from protocols.amqp.delivering import TAG_AND_BIT, frames_of
from protocols.amqp.mapping import counted, wire_of
from protocols.amqp.method_codec import short_string
from protocols.canonical import Delivery, ReceiptHandle
from protocols.delivery_runs import DeliveryRun
from protocols.errors import Code
from protocols.pipeline import DeliveryStream

if TYPE_CHECKING:
    from protocols.amqp.channelwork import ChannelWork
    from protocols.amqp.topology import Queue

DELIVER: Final = b"\x00\x3c\x00\x3c"


def _credit(limit: int, channel_limit: int) -> int:
    return min(limit or CREDIT_MAX, channel_limit or CREDIT_MAX, CREDIT_MAX)


class Consumer:
    """See ``protocols.pipeline.DeliverySink``."""

    def __init__(
        self,
        work: "ChannelWork",
        queue: "Queue",
        tag: str,
        *,
        no_ack: bool,
        is_exclusive: bool,
        limit: int,
        channel_limit: int = 0,
    ) -> None:
        self.work = work
        self.queue = queue
        self.tag = tag
        self.no_ack = no_ack
        self.is_exclusive = is_exclusive
        self.credit = CREDIT_MAX if no_ack else _credit(limit, channel_limit)
        """Without a limit of its own no more than the channel's: what goes back is not there for
        others meanwhile."""

        self._own_limit = limit
        self.allowed = self.credit
        self.unsettled_count = 0
        self.stream: DeliveryStream | None = None
        self.is_cancelled = False
        self.turn = 0
        """When it was last served, among the consumers of a channel with a limit."""

        self._is_started = False
        self._owed = 0
        self._early: list[Delivery] = []
        self._head = DELIVER + short_string(tag)

    def start(self) -> None:
        """consume-ok is queued: what came before it may follow now."""
        self._is_started = True
        early, self._early = self._early, []
        if early:
            self.deliver(early)

    # ── sink ────────────────────────────────────────────────────────────────────────────

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        if not self._is_started:
            self._early += deliveries
            return
        if self.work.is_sharing:
            self.work.share_out(self, deliveries)
        else:
            self.take(deliveries)

    def take(self, deliveries: Sequence[Delivery]) -> int:
        """Send as many as the channel has room for, give back the others; how many were sent."""
        work = self.work
        if self.is_cancelled or not work.is_open:
            self._give_back([delivery.handle for delivery in deliveries])
            return 0
        room = work.room()
        if room < len(deliveries):
            over = deliveries[room:]
            deliveries = deliveries[:room]
            self._owed += len(over)
            self._give_back([delivery.handle for delivery in over])
        if type(deliveries) is DeliveryRun:
            handles = self._send_run(deliveries)
        else:
            for delivery in deliveries:
                self._send(delivery)
            handles = [delivery.handle for delivery in deliveries] if self.no_ack else []
        if handles:
            self.allowed += len(handles)
            self._settle(handles)
        work.flush_soon()
        return len(deliveries)

    def ended(self, code: Code, hint: str) -> None:
        """The queue went away or the store will not serve us: tell the client, if it can hear."""
        self.stream = None
        self.work.consumer_ended(self)

    # ── the channel's side ──────────────────────────────────────────────────────────────

    def settled(self, handles: Sequence[ReceiptHandle], outcome: Outcome) -> None:
        """The client has acked or returned these; their credit comes back."""
        self._count(-len(handles))
        self._owed += len(handles)
        if not self.work.limit:
            self.allowed, self._owed = self.allowed + self._owed, 0
        stream = self.stream
        if stream is None:
            return
        if outcome is Outcome.ACKED:
            stream.ack(handles)
        elif outcome is Outcome.REJECTED:
            stream.reject(handles)
        else:
            stream.release(handles)
        if not self.is_cancelled and not self.work.limit:
            stream.allow(self.allowed)

    async def close(self) -> None:
        """End the stream; what the client still holds returns to its place."""
        stream, self.stream = self.stream, None
        if stream is not None:
            await stream.close()

    async def retire(self) -> None:
        """Cancelled, but the client has yet to settle what it holds."""
        if self.stream is not None:
            await self.stream.retire()

    def limit_changed(self) -> None:
        """A higher limit of the channel is more credit; over a lower one more goes back."""
        wanted = _credit(self._own_limit, self.work.limit)
        if not self.no_ack and wanted > self.credit:
            self._owed += wanted - self.credit
            self.credit = wanted

    def pay_owed(self) -> None:
        """The channel has room again: allow what went back unseen to come once more."""
        if self._owed and self.stream is not None and not self.is_cancelled:
            self.allowed += self._owed
            self._owed = 0
            self.stream.allow(self.allowed)

    def resume(self) -> None:
        """The peer reads again (consumers without acks wait for that)."""
        if self.stream is not None and not self.is_cancelled:
            self.stream.allow(self.allowed)

    # ── inside ──────────────────────────────────────────────────────────────────────────

    def _count(self, change: int) -> None:
        self.unsettled_count += change
        self.work.delivered_count += change

    def _settle(self, done: list[ReceiptHandle]) -> None:
        assert self.stream is not None
        self.stream.ack(done)
        if self.work.is_peer_slow:
            self.work.when_drained(self.resume)
        else:
            self.stream.allow(self.allowed)

    def _give_back(self, handles: list[ReceiptHandle]) -> None:
        if self.stream is not None and handles:
            self.stream.release(handles, is_sent=False)

    def _send_run(self, run: DeliveryRun) -> list[ReceiptHandle]:
        """What is done with it, where the client does not say."""
        work = self.work
        frames = frames_of(
            run,
            channel=work.number,
            head=self._head,
            tag=work.unsettled.next_tag,
            is_quorum=self.queue.is_quorum,
            frame_bytes_max=work.frame_bytes_max,
        )
        work.write(frames)
        if self.no_ack:
            work.unsettled.next_tag += len(run)
            return run.handles()
        work.unsettled.hold(run, self.queue, self)
        self._count(len(run))
        return []

    def _send(self, delivery: Delivery) -> None:
        work = self.work
        content = wire_of(delivery.message)
        if self.queue.is_quorum:
            properties = counted(content.properties, delivery.attempt)
            content = content._replace(properties=properties)
        tag = work.unsettled.take_tag()
        if not self.no_ack:
            work.unsettled.by_tag[tag] = Unacked(tag, self.queue, delivery.handle, self)
            self._count(1)
        payload = b"%b%b%b" % (
            self._head,
            TAG_AND_BIT.pack(tag, delivery.attempt > 1),
            content.names,
        )
        work.write(
            content_frames(
                work.number, payload, content.properties, content.body, work.frame_bytes_max
            )
        )
