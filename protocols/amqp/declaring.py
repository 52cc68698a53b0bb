"""exchange.*, queue.*: arguments from the wire, the operation, its ok."""

from typing import TYPE_CHECKING

from protocols.amqp import replies
from protocols.amqp.changes import fault_of
from protocols.amqp.fields import encode_table
from protocols.amqp.methods import (
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    ExchangeUnbind,
    ExchangeUnbindOk,
    Method,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
    QueueUnbind,
    QueueUnbindOk,
)
from protocols.amqp.operations import require_no_default
from protocols.amqp.replies import AmqpFault
from protocols.amqp.replying import REPLY_TO
from protocols.amqp.replying import exists as reply_exists
from protocols.amqp.topology import BindingRecord
from protocols.errors import Refused

if TYPE_CHECKING:
    from protocols.amqp.channelwork import ChannelWork


async def exchange_declare(work: "ChannelWork", method: Method) -> None:
    assert isinstance(method, ExchangeDeclare)
    method = method._replace(exchange=_one_line(method.exchange))
    if not method.passive:
        work.session.require_declarable("exchange", method.exchange)
    await work.session.operations.declare_exchange(work.session.vhost, method)
    if not method.nowait:
        work.send(ExchangeDeclareOk())


async def exchange_delete(work: "ChannelWork", method: Method) -> None:
    assert isinstance(method, ExchangeDelete)
    method = method._replace(exchange=_one_line(method.exchange))
    work.session.require_declarable("exchange", method.exchange)
    session = work.session
    await session.operations.delete_exchange(
        session.vhost, method.exchange, tenant=session.call.tenant, if_unused=method.if_unused
    )
    if not method.nowait:
        work.send(ExchangeDeleteOk())


async def exchange_bind(work: "ChannelWork", method: Method) -> None:
    assert isinstance(method, ExchangeBind)
    work.session.require_bindable(method.source, method.routing_key)
    binding = _exchange_binding(work, method)
    await work.session.operations.bind_exchange(binding, tenant=work.session.call.tenant)
    if not method.nowait:
        work.send(ExchangeBindOk())


async def exchange_unbind(work: "ChannelWork", method: Method) -> None:
    assert isinstance(method, ExchangeUnbind)
    binding = _exchange_binding(work, method)
    await work.session.operations.unbind_exchange(binding, tenant=work.session.call.tenant)
    if not method.nowait:
        work.send(ExchangeUnbindOk())


def _one_line(name: str) -> str:
    """RabbitMQ takes line ends out of names that are declared or deleted."""
    return name.replace("\r", "").replace("\n", "")


def _exchange_binding(work: "ChannelWork", method: ExchangeBind | ExchangeUnbind) -> BindingRecord:
    return BindingRecord(
        vhost=work.session.vhost,
        source=method.source,
        destination=method.destination,
        is_exchange=True,
        key=method.routing_key,
        arguments=encode_table(method.arguments),
    )


async def queue_declare(work: "ChannelWork", method: Method) -> None:
    assert isinstance(method, QueueDeclare)
    method = method._replace(queue=_one_line(method.queue))
    session = work.session
    if method.queue.startswith(REPLY_TO):
        if not await reply_exists(work, method.queue):
            text = f"no queue '{method.queue}' in vhost '{session.vhost}'"
            raise AmqpFault(replies.NOT_FOUND, text)
        if not method.nowait:
            work.send(QueueDeclareOk(method.queue, 0, 1))
        return
    if not method.passive and not method.exclusive and method.queue:
        session.require_declarable("queue", method.queue)
    queue = await session.operations.declare_queue(
        session.vhost, method, connection=session.name, tenant=session.call.tenant
    )
    if queue.record.exclusive:
        session.exclusive_queues.add(queue.record.name)
    work.last_queue = queue.record.name
    if not method.nowait:
        stat = await session.operations.stat(queue)
        work.send(QueueDeclareOk(queue.record.name, stat.ready_count, stat.consumer_count))


async def queue_bind(work: "ChannelWork", method: Method) -> None:
    assert isinstance(method, QueueBind)
    session = work.session
    name = work.queue_name(method.queue)
    queue = await session.operations.queue(session.vhost, name, session.name)
    # binding without a queue or a key names the last queue in both places (AMQP 0-9-1, bind)
    key = method.routing_key if method.queue or method.routing_key else name
    session.require_bindable(method.exchange, key)
    await session.operations.bind_queue(queue, _queue_binding(work, method, name, key))
    if not method.nowait:
        work.send(QueueBindOk())


async def queue_unbind(work: "ChannelWork", method: Method) -> None:
    assert isinstance(method, QueueUnbind)
    session = work.session
    name = work.queue_name(method.queue)
    require_no_default(method.exchange)
    try:
        queue = await session.operations.queue(session.vhost, name, session.name)
    except AmqpFault as fault:
        if fault.code != replies.NOT_FOUND:
            raise
        queue = None
    binding = _queue_binding(work, method, name, method.routing_key)
    await session.operations.unbind_queue(queue, binding, tenant=session.call.tenant)
    work.send(QueueUnbindOk())


def _queue_binding(
    work: "ChannelWork", method: QueueBind | QueueUnbind, queue: str, key: str
) -> BindingRecord:
    return BindingRecord(
        vhost=work.session.vhost,
        source=method.exchange,
        destination=queue,
        key=key,
        arguments=encode_table(method.arguments),
    )


async def queue_purge(work: "ChannelWork", method: Method) -> None:
    assert isinstance(method, QueuePurge)
    session = work.session
    queue = await session.operations.queue(
        session.vhost, work.queue_name(method.queue), session.name
    )
    session.require_readable(queue)
    try:
        count = await session.services.streams.purge_queue(queue.ref, queue.spec)
    except Refused as refused:
        raise fault_of(refused) from refused
    if not method.nowait:
        work.send(QueuePurgeOk(count))


async def queue_delete(work: "ChannelWork", method: Method) -> None:
    assert isinstance(method, QueueDelete)
    method = method._replace(queue=_one_line(method.queue))
    session = work.session
    name = work.queue_name(method.queue)
    if name not in session.exclusive_queues:
        session.require_declarable("queue", name)
    count = 0
    try:
        queue = await session.operations.queue(session.vhost, name, session.name)
    except AmqpFault as fault:
        if fault.code != replies.NOT_FOUND:
            raise
    else:
        what = f"queue '{name}' in vhost '{session.vhost}'"
        if method.if_unused or method.if_empty:
            stat = await session.operations.stat(queue)
            if method.if_unused and stat.consumer_count:
                raise AmqpFault(replies.PRECONDITION_FAILED, f"{what} in use")
            if method.if_empty and stat.ready_count:
                raise AmqpFault(replies.PRECONDITION_FAILED, f"{what} not empty")
        session.exclusive_queues.discard(name)
        count = await session.operations.delete_queue(queue)
    if not method.nowait:
        work.send(QueueDeleteOk(count))
