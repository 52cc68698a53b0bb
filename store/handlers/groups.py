"""Groups and light queues of gateways, and what is taken from them: private codes 2001x to 3x."""

from collections.abc import Sequence

from protocols import clock
from protocols.clock import Now
from protocols.errors import Code
from protocols.groups import ShareStrategy
from protocols.remoting.command import RemotingCommand
from protocols.remoting.delivering import DeliveryItem, encode_deliver
from protocols.remoting.private import (
    FRAME_BYTES_MAX,
    FRAME_ITEMS_MAX,
    READY_COUNT,
    Adopt,
    GroupDrop,
    GroupOpen,
    Index,
    Pop,
    PrivateCode,
    QueueCreate,
    QueueDrop,
    QueuePurge,
    QueueStatRequest,
    Retained,
    StreamClose,
    StreamOpen,
    StreamOpened,
    encode_body,
)
from protocols.remoting.settling import (
    decode_acks,
    decode_credits,
    decode_marks,
    encode_ack_results,
)
from store.answers import Granted, Pending
from store.handlers.bodies import decode
from store.handlers.checks import (
    check_adopt,
    check_group_open,
    check_key,
    check_name,
    check_pop,
    check_stream_open,
)
from store.handlers.connection import Connection
from store.handlers.context import Context, Handler
from store.handlers.filters import parse_sql
from store.handlers.gateways import live_gateway
from store.policies.terms import check_policy

WAIT_MS_MAX = 60_000
"""Longest long poll that is granted; a client asks again."""


def open_group(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Create or adopt a group; a higher owner epoch ends the streams of the lower."""
    spec = decode(request, GroupOpen)
    check_group_open(spec)
    now = clock.read()
    pending = context.engine.open_group(spec, now)
    number = pending.value.group
    if spec.owner_epoch > context.owner_epochs.get(number, 0):
        context.owner_epochs[number] = spec.owner_epoch
        context.streams.end_group(number, Code.PRECONDITION_FAILED, "taken over", now)
    context.when_durable(
        connection, request, pending, lambda opened: request.answer(body=encode_body(opened))
    )
    return None


def drop_group(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Forget a group; its streams end."""
    told = decode(request, GroupDrop)
    now = clock.read()
    number = context.engine.group_number(told.name)
    pending = context.engine.drop_group(told.name, told.owner_epoch, now)
    if number:
        context.owner_epochs.pop(number, None)
        context.streams.end_group(number, Code.NOT_FOUND, "the group is gone", now)
    context.when_durable(connection, request, pending, lambda _: request.answer())
    return None


# ── streams ─────────────────────────────────────────────────────────────────────────────


def open_stream(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """A standing pop; the answer tells how many deliveries come first."""
    asked = decode(request, StreamOpen)
    check_stream_open(asked)
    gateway = live_gateway(context, connection, request)
    if isinstance(gateway, RemotingCommand):
        return gateway
    count = context.streams.open(
        connection,
        gateway,
        asked.stream,
        asked.group,
        credit=asked.credit,
        holds=asked.holds,
        now=clock.read(),
        is_exclusive=asked.is_exclusive,
        priority=asked.priority,
        strategy=ShareStrategy(asked.strategy),
        member=asked.member,
    )
    return request.answer(body=encode_body(StreamOpened(in_flight_count=count)))


def close_stream(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """End a stream, or only its appetite; answered after what it was sent before."""
    told = decode(request, StreamClose)
    if told.is_retired:
        context.streams.retire(connection, told.stream)
        context.streams.flush(connection)
    else:
        context.streams.close(connection, told.stream, clock.read())
    return request.answer()


def credit_streams(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """
    New totals, up or down. As a request it is answered after what the old ones allowed.

    Deliveries leave at the end of a tick, so at this point none is half-built beyond what was
    written or is queued before the answer: the outbox is flushed first.
    """
    for number, total in decode_credits(request.body):
        context.streams.allow(connection, number, total)
    if request.is_oneway:
        return None
    context.streams.flush(connection)
    return request.answer()


# ── pop, ack, mark ──────────────────────────────────────────────────────────────────────


def pop(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Take with a deadline; waits for the first message if asked to."""
    asked = decode(request, Pop)
    check_pop(asked)

    def attempt() -> bool:
        body = take_body(context, asked, clock.read())
        if body is None:
            return False
        fields: dict[str, str] = {}
        if asked.is_counted:
            fields[READY_COUNT] = str(
                context.engine.light_queues.ready_count(asked.group, clock.read())
            )
        connection.answer(request, request.answer(0, fields, body))
        return True

    def nothing() -> None:
        connection.answer(
            request, request.answer(body=encode_deliver(context.engine.epoch, (), ()))
        )

    if not attempt():
        context.waits.add(
            connection,
            (("group", asked.group),),
            wait_s=min(asked.wait_ms, WAIT_MS_MAX) / 1000,
            wake=attempt,
            expire=nothing,
        )
    return None


def take_body(context: Context, asked: Pop, now: Now) -> bytes | None:
    """A DELIVER body of what the group has, within one frame; None: nothing."""
    engine = context.engine
    granted = engine.take(
        asked.group,
        min(asked.count, FRAME_ITEMS_MAX),
        now,
        invisible_ms=asked.invisible_ms,
        topic=asked.topic,
        queue_id=asked.queue_id,
        tags=frozenset(asked.tags),
        matches=parse_sql(asked.sql).matches,
        attempt_id=asked.attempt_id,
        taker=asked.taker,
        in_runs=True,
    )
    records, items, left = pack(context, asked.group, granted, now, bytes_max=FRAME_BYTES_MAX >> 1)
    if left:
        context.release(asked.group, left, now)
    return encode_deliver(engine.epoch, records, items) if items else None


def adopt(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """What a client holds, for a gateway that it has come to; asked again for what follows."""
    asked = decode(request, Adopt)
    check_adopt(asked)
    now = clock.read()
    granted = context.engine.adopt(
        asked.group,
        asked.taker,
        asked.above,
        FRAME_ITEMS_MAX,
        now,
        invisible_ms=asked.invisible_ms,
    )
    records, items, _ = pack(context, asked.group, granted, now, bytes_max=FRAME_BYTES_MAX >> 1)
    return request.answer(body=encode_deliver(context.engine.epoch, records, items))


def pack(
    context: Context, group: int, granted: Sequence[Granted], now: Now, *, bytes_max: int
) -> tuple[list[tuple[int, bytes]], list[DeliveryItem], Sequence[Granted]]:
    """(records, deliveries, grants that did not fit); each record once, at least one delivery."""
    records: list[tuple[int, bytes]] = []
    items: list[DeliveryItem] = []
    indexes: dict[int, int] = {}
    size = 0
    for at, grant in enumerate(granted):
        index = indexes.get(grant.record_position, -1)
        if index < 0:
            record = context.read_record(group, grant, now)
            if record is None:
                continue
            if items and size + len(record) > bytes_max:
                return records, items, granted[at:]
            size += len(record)
            index = indexes[grant.record_position] = len(records)
            records.append((grant.record_position, record))
        items.append(
            DeliveryItem(
                0,
                index,
                grant.position,
                grant.grant,
                min(grant.attempt, 0xFFFF),
                grant.flags,
                grant.stage,
                grant.packet_id,
                group,
                grant.tags,
            )
        )
    return records, items, ()


def _answer_each(
    context: Context,
    connection: Connection,
    request: RemotingCommand,
    pending: Pending[list[tuple[int, int]]],
) -> None:
    """(grant, code) of each item, when they are durable."""
    context.when_durable(
        connection,
        request,
        pending,
        lambda results: request.answer(body=encode_ack_results(results)),
    )


def ack(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Ack, change or release; answered when durable."""
    epoch, items = decode_acks(request.body)
    pending = context.engine.ack(epoch, items, clock.read())
    _answer_each(context, connection, request, pending)
    return None


def mark(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Packet ids and stages of QoS 1 and 2."""
    epoch, items = decode_marks(request.body)
    pending = context.engine.mark(epoch, items, clock.read())
    _answer_each(context, connection, request, pending)
    return None


def index(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Late entries, with the acks of the deliveries that caused them."""
    gateway = live_gateway(context, connection, request)
    if isinstance(gateway, RemotingCommand):
        return gateway
    asked = decode(request, Index)
    for item in asked.items:
        for key in item.keys:
            check_key(key)
    pending = context.engine.index(asked.store_epoch, asked.items, clock.read())
    _answer_each(context, connection, request, pending)
    return None


# ── light queues ────────────────────────────────────────────────────────────────────────


def create_queue(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    asked = decode(request, QueueCreate)
    check_key(asked.key)
    check_name(asked.name, "queue")
    check_policy(asked.name, asked.policy)
    now, engine = clock.read(), context.engine
    group = str(asked.policy.get("group", ""))
    number = engine.group_number(group) if group else 0
    pending = engine.light_queues.create(asked.key, asked.name, asked.policy, now)
    if number and engine.group_number(group) != number:  # of an earlier queue of that name
        context.streams.end_group(number, Code.NOT_FOUND, "the queue was made anew", now)
    context.when_durable(connection, request, pending, lambda _: request.answer())
    return None


def drop_queue(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Forget queue and group; streams of the group end."""
    asked = decode(request, QueueDrop)
    check_key(asked.key)
    now = clock.read()
    number = context.engine.group_number(asked.group) if asked.group else 0
    pending = context.engine.light_queues.drop(asked.key, asked.group, now)
    if number:
        context.streams.end_group(number, Code.NOT_FOUND, "the queue is gone", now)
    context.when_durable(
        connection, request, pending, lambda counts: request.answer(body=encode_body(counts))
    )
    return None


def purge_queue(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    asked = decode(request, QueuePurge)
    check_key(asked.key)
    pending = context.engine.light_queues.purge(asked.key, asked.group, clock.read())
    context.when_durable(
        connection, request, pending, lambda counts: request.answer(body=encode_body(counts))
    )
    return None


def stat_queue(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    asked = decode(request, QueueStatRequest)
    check_key(asked.key)
    counts = context.engine.light_queues.stat(asked.key, asked.group, clock.read())
    return request.answer(body=encode_body(counts))


def retained(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """The last retained message of each address that any filter matches, back to back."""
    asked = decode(request, Retained)
    records = context.engine.retained(asked.tenant, *asked.subject_filters)
    return request.answer(body=b"".join(records))


HANDLERS: dict[int, Handler] = {
    PrivateCode.GROUP_OPEN: open_group,
    PrivateCode.GROUP_DROP: drop_group,
    PrivateCode.STREAM_OPEN: open_stream,
    PrivateCode.STREAM_CLOSE: close_stream,
    PrivateCode.STREAM_CREDIT: credit_streams,
    PrivateCode.POP: pop,
    PrivateCode.ADOPT: adopt,
    PrivateCode.ACK: ack,
    PrivateCode.MARK: mark,
    PrivateCode.INDEX: index,
    PrivateCode.QUEUE_CREATE: create_queue,
    PrivateCode.QUEUE_DROP: drop_queue,
    PrivateCode.QUEUE_PURGE: purge_queue,
    PrivateCode.QUEUE_STAT: stat_queue,
    PrivateCode.RETAINED: retained,
}
