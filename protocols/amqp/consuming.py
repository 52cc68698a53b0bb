"""basic.consume, cancel, get, qos, ack, nack, reject, recover."""

import secrets
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from protocols.amqp import replies
from protocols.amqp.arguments import consumer_priority
from protocols.amqp.changes import fault_of
from protocols.amqp.channel import Outcome, Unacked, group_by_consumer
from protocols.amqp.consumer import Consumer
from protocols.amqp.mapping import content_of, counted
from protocols.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicNack,
    BasicQos,
    BasicQosOk,
    BasicRecover,
    BasicRecoverAsync,
    BasicRecoverOk,
    BasicReject,
    Method,
)
from protocols.amqp.operations import in_exclusive_use
from protocols.amqp.replies import AmqpFault
from protocols.amqp.replying import REPLY_TO, close_reply_queue, open_reply_queue
from protocols.canonical import Delivery
from protocols.errors import Code, Refused
from protocols.groups import InvisibleTimeChange, PopRequest

if TYPE_CHECKING:
    from protocols.amqp.channelwork import ChannelWork

GET_INVISIBLE_MS: Final = 60_000
"""How long a message from basic.get stays hidden without a renewal; renewed at a third."""

Later = Coroutine[object, object, None] | None
"""What a handler leaves to be awaited; None: it is done."""


def qos(work: "ChannelWork", method: Method) -> Later:
    """RabbitMQ's meaning: not global = consumers started from now on; global = the channel."""
    assert isinstance(method, BasicQos)
    if method.prefetch_size:
        raise AmqpFault(
            replies.NOT_IMPLEMENTED, "prefetch_size!=0 (" + str(method.prefetch_size) + ")"
        )
    if method.is_global:
        work.limit = method.prefetch_count
        for consumer in work.consumers.values():
            consumer.limit_changed()
        work.pay_owed()
    else:
        work.prefetch = method.prefetch_count
    work.send(BasicQosOk())
    return None


# ── consumers ───────────────────────────────────────────────────────────────────────────


def consume(work: "ChannelWork", method: Method) -> Later:
    assert isinstance(method, BasicConsume)
    tag = method.consumer_tag or "amq.ctag-" + secrets.token_urlsafe(16)
    if tag in work.consumers:
        text = f"attempt to reuse consumer tag '{tag}'"
        raise AmqpFault(replies.NOT_ALLOWED, text)
    return _consume(work, method, tag)


async def _consume(work: "ChannelWork", method: BasicConsume, tag: str) -> None:
    session = work.session
    if method.queue == REPLY_TO:
        queue = await open_reply_queue(work, no_ack=method.no_ack)
    else:
        queue = await session.operations.queue(
            session.vhost, work.queue_name(method.queue), session.name
        )
    session.require_readable(queue)
    priority = consumer_priority(queue.record.name, queue.record.vhost, method.arguments)
    consumer = Consumer(
        work,
        queue,
        tag,
        no_ack=method.no_ack,
        is_exclusive=method.exclusive,
        limit=work.prefetch,
        channel_limit=work.limit,
    )
    work.consumers[tag] = consumer
    session.registry.add(consumer)
    try:
        if queue.record.auto_delete:
            await session.operations.add_reader(queue)
        spec = queue.spec
        if method.exclusive or priority:
            spec = replace(spec, is_exclusive=method.exclusive, stream_priority=priority)
        consumer.stream = await session.services.streams.open(
            session.call, spec, consumer, credit=consumer.credit
        )
    except (Refused, AmqpFault) as error:
        work.consumers.pop(tag, None)
        session.registry.discard(consumer)
        if isinstance(error, AmqpFault):
            raise
        if error.code == Code.FORBIDDEN:
            raise in_exclusive_use(queue.record.vhost, queue.record.name) from error
        raise fault_of(error) from error
    if not work.is_open:
        await consumer.stream.close()
        session.registry.discard(consumer)
        return
    if not method.nowait:
        work.send(BasicConsumeOk(tag))
    consumer.start()


def cancel(work: "ChannelWork", method: Method) -> Later:
    assert isinstance(method, BasicCancel)
    return _cancel(work, method)


async def _cancel(work: "ChannelWork", method: BasicCancel) -> None:
    consumer = work.consumers.pop(method.consumer_tag, None)
    if consumer is not None:
        await end_consumer(work, consumer)
    if not method.nowait:
        work.send(BasicCancelOk(method.consumer_tag))


async def end_consumer(work: "ChannelWork", consumer: Consumer) -> None:
    """No more deliveries; what the client still holds keeps the stream until it is settled."""
    consumer.is_cancelled = True
    if consumer.unsettled_count and work.is_open:
        work.ending.add(consumer)
        await consumer.retire()
    else:
        await consumer.close()
    await work.session.registry.leave(consumer)
    await close_reply_queue(work, consumer.queue)


# ── get ─────────────────────────────────────────────────────────────────────────────────


def get(work: "ChannelWork", method: Method) -> Later:
    assert isinstance(method, BasicGet)
    return _get(work, method)


async def _get(work: "ChannelWork", method: BasicGet) -> None:
    session = work.session
    queue = await session.operations.queue(
        session.vhost, work.queue_name(method.queue), session.name
    )
    session.require_readable(queue)
    request = PopRequest(group=queue.spec, count=1, invisible_ms=GET_INVISIBLE_MS, is_counted=True)
    pipeline = session.services.pipeline
    try:
        found = await pipeline.pop(session.call, request)
    except Refused as refused:
        raise fault_of(refused) from refused
    if not found:
        work.send(BasicGetEmpty())
        return
    if not work.is_open:
        await pipeline.change_invisible_time(
            session.call, [InvisibleTimeChange(found[0].handle, 0)]
        )
        return
    ready = found[0].left_count
    if ready < 0:
        ready = (await session.operations.stat(queue)).ready_count
    tag = work.unsettled.take_tag()
    if method.no_ack:
        session.settle_popped(work, [found[0].handle], Outcome.ACKED)
    else:
        work.unsettled.by_tag[tag] = Unacked(tag, queue, found[0].handle)
    _send_got(work, found[0], tag, ready, is_quorum=queue.is_quorum)


def _send_got(
    work: "ChannelWork", delivery: Delivery, tag: int, ready: int, *, is_quorum: bool
) -> None:
    content = content_of(delivery.message)
    if is_quorum:
        content = content._replace(properties=counted(content.properties, delivery.attempt))
    method = BasicGetOk(tag, delivery.attempt > 1, content.exchange, content.routing_key, ready)
    work.session.connection.send_content(work.number, method, content.properties, content.body)


# ── settling ────────────────────────────────────────────────────────────────────────────


def ack(work: "ChannelWork", method: Method) -> Later:
    """Only the generic form; the fast path calls ``settle`` itself."""
    assert isinstance(method, BasicAck)
    settle(work, method.delivery_tag, is_multiple=method.multiple, method=0x003C0050)
    return None


def nack(work: "ChannelWork", method: Method) -> Later:
    assert isinstance(method, BasicNack)
    settle(
        work,
        method.delivery_tag,
        is_multiple=method.multiple,
        method=0x003C0078,
        outcome=Outcome.RETURNED if method.requeue else Outcome.REJECTED,
    )
    return None


def reject(work: "ChannelWork", method: Method) -> Later:
    assert isinstance(method, BasicReject)
    settle(
        work,
        method.delivery_tag,
        is_multiple=False,
        method=0x003C005A,
        outcome=Outcome.RETURNED if method.requeue else Outcome.REJECTED,
    )
    return None


def settle(
    work: "ChannelWork",
    tag: int,
    *,
    is_multiple: bool,
    method: int,
    outcome: Outcome = Outcome.ACKED,
) -> None:
    """Raises AmqpFault 406: a tag that is not outstanding."""
    entries = work.unsettled.settle(tag, is_multiple=is_multiple, method=method)
    if work.transaction is not None:
        work.transaction.settled.append((entries, outcome))
        return
    finish(work, entries, outcome)


def finish(work: "ChannelWork", entries: Sequence[Unacked], outcome: Outcome) -> None:
    """Tell the streams and the pipeline; free what an ended consumer was kept for."""
    streams, popped = group_by_consumer(entries)
    for consumer, handles in streams.items():
        consumer.settled(handles, outcome)
        if consumer in work.ending and not consumer.unsettled_count:
            work.ending.discard(consumer)
            work.session.close_stream(consumer)
    if popped:
        work.session.settle_popped(work, [entry.handle for entry in popped], outcome)
    work.pay_owed()


def recover(work: "ChannelWork", method: Method) -> Later:
    """All that the channel holds goes back to its place and comes again."""
    assert isinstance(method, (BasicRecover, BasicRecoverAsync))
    if not method.requeue:
        raise AmqpFault(replies.NOT_IMPLEMENTED, "requeue=false")
    finish(work, work.unsettled.take_all(), Outcome.RETURNED)
    if isinstance(method, BasicRecover):
        work.send(BasicRecoverOk())
    return None
