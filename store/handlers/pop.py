"""
The standard pop family: 200050, 200051, 200053, 200054, 200151.

A RocketMQ group that pops a topic is the engine's group ``rmq/<group>/<topic>``; ack and change
end in the same calls as those of gateways. Messages come again from their own queue and offset,
with ``reconsumeTimes`` set, and go to ``%DLQ%group`` after the last attempt: there is no retry
topic and no revive topic.
"""

import struct
from functools import partial
from typing import Final, NamedTuple

from protocols import clock
from protocols.clock import Now
from protocols.errors import Code, Refused
from protocols.remoting import bodies
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.handles import (
    PopHandle,
    dead_letter_topic,
    decode_bit_set,
    encode_message_offsets,
    encode_start_offsets,
    parse_pop_handle,
)
from protocols.remoting.headers import bool_field, int_field, text_field
from protocols.remoting.private import RELEASE_FIELD, GroupOpen, ReadItem
from protocols.remoting.records import QUEUE_ID_AT, QUEUE_OFFSET_AT, RECONSUME_COUNT_AT
from protocols.remoting.settling import AckAction, AckItem
from store.answers import TopicConfig
from store.handlers.connection import Connection
from store.handlers.context import Context, Handler
from store.handlers.filters import TAG, Wants, parse_filter
from store.handlers.message_types import is_by_priority
from store.handlers.permissions import reading_forbidden
from store.handlers.subscription_groups import use_group
from store.handlers.system_topics import READ_WRITE
from store.handlers.topics import no_such_topic

COUNT_MAX: Final = 32
"""Most messages of one pop; more is answered INVALID_PARAMETER, as by Apache."""

POLL_MS_MAX: Final = 60_000
INVISIBLE_MS_MAX: Final = 24 * 3600 * 1000
REVIVE_FROM: Final = 1000
REVIVE_MAX: Final = 0x7FFFFFFF - REVIVE_FROM
"""
A handle carries the grant where Apache's has the number of a revive queue, from 1000 on: 999 is
its mark of ordered pops. The store needs no memory of handles, and they outlive its restart.
"""

NORMAL: Final = "0"
"""The r of handles: the topic itself, never a retry topic."""

_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")


class PopAsk(NamedTuple):
    """A pop that may wait."""

    group: int
    name: str
    """Of the consumer group, for counts."""

    topic: str
    queue_id: int
    count_max: int
    invisible_ms: int
    wants: Wants
    is_fifo: bool
    attempt_id: str


def pop(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Take messages and hide them (200050)."""
    fields = request.fields
    topic = text_field(fields, "topic")
    config = context.topic(topic)
    if config is None:
        return no_such_topic(request, topic)
    name = text_field(fields, "consumerGroup")
    group = use_group(context, name, clock.read())
    forbidden = reading_forbidden(context, config, group)
    if forbidden is not None:
        return request.answer(ResponseCode.NO_PERMISSION, remark=forbidden[1])
    count, queue_id = int_field(fields, "maxMsgNums"), max(int_field(fields, "queueId"), -1)
    if not 1 <= count <= COUNT_MAX or queue_id >= max(config.read_queue_count, 1):
        raise Refused(Code.BAD_REQUEST, topic, f"maxMsgNums {count}, queueId {queue_id}")
    invisible_ms = int_field(fields, "invisibleTime")
    if not 0 < invisible_ms <= INVISIBLE_MS_MAX:
        raise Refused(Code.ILLEGAL_INVISIBLE_TIME, topic, f"invisibleTime {invisible_ms}")
    for reset in [key for key in context.resets if key[:2] == (name, topic)]:
        del context.resets[reset]  # what pops has been moved; nobody comes to read by offset
    asked = PopAsk(
        open_pop_group(context, request, config, group),
        name,
        topic,
        queue_id,
        count,
        invisible_ms,
        parse_filter(fields.get("expType", TAG), fields.get("exp", "")),
        bool_field(fields, "order"),
        text_field(fields, "attemptId", ""),
    )
    if not _attempt(context, connection, request, asked):
        context.waits.add(
            connection,
            (("group", asked.group),),
            wait_s=min(int_field(fields, "pollTime"), POLL_MS_MAX) / 1000,
            wake=partial(_attempt, context, connection, request, asked),
            expire=partial(_nothing, connection, request, asked),
        )
    return None


def open_pop_group(
    context: Context, request: RemotingCommand, topic: TopicConfig, config: bodies.GroupConfig
) -> int:
    """
    The engine's group behind (group, topic), as it is configured now. Raises Refused.

    Made on first use; once more when the group's configuration or what clients ask has changed.
    """
    name = config.group_name
    is_fifo = bool_field(request.fields, "order", False) or config.consume_message_orderly
    number = context.engine.group_number(f"rmq/{name}/{topic.name}")
    known = context.pop_specs.get(number) if number else None
    spec = GroupOpen(
        name=f"rmq/{name}/{topic.name}",
        reads=[ReadItem(tag=0, topic=topic.name)],
        is_fifo=is_fifo,
        is_priority=not is_fifo and is_by_priority(topic),
        attempts_max=config.retry_max_times + 1,
        dead_letter_topic=dead_letter_topic(name),
        start=known.start if known is not None else _start_of(context, request, topic),
    )
    if known == spec:
        return number
    now = clock.read()
    if spec.dead_letter_topic not in context.engine.catalog.topics:
        dead = TopicConfig(spec.dead_letter_topic, 1, 1, READ_WRITE)
        context.engine.catalog.put_topic(dead, now)
    number = context.engine.open_group(spec, now).value.group
    context.pop_specs[number] = spec
    return number


def _start_of(context: Context, request: RemotingCommand, topic: TopicConfig) -> str:
    """
    Where a new group begins. "Last" on a topic whose heads are all still there is its first
    message, as with Apache's ``initPopOffsetByCheckMsgInMem`` and as code 14 has it.
    """
    if int_field(request.fields, "initMode", 0) != 1:
        return "earliest"
    queues = range(max(topic.read_queue_count, 1))
    is_young = all(context.engine.offset_range(topic.name, at)[0] == 0 for at in queues)
    return "earliest" if is_young else "end"


def _attempt(
    context: Context, connection: Connection, request: RemotingCommand, asked: PopAsk
) -> bool:
    """Answer with what there is; True: answered."""
    now = clock.read()
    granted = context.engine.take(
        asked.group,
        asked.count_max,
        now,
        invisible_ms=asked.invisible_ms,
        topic=asked.topic,
        queue_id=asked.queue_id,
        tags=asked.wants.tags,
        matches=asked.wants.matches,
        attempt_id=asked.attempt_id,
        in_runs=True,
    )
    records: list[bytes] = []
    offsets: dict[tuple[str, int], list[int]] = {}
    attempts: dict[tuple[int, int], int] = {}
    size = 0
    for at, grant in enumerate(granted):
        record = context.read_record(asked.group, grant, now)
        if record is None:
            continue
        size += len(record)
        if records and size > context.config.limits.message_bytes_max * 2:
            context.release(asked.group, granted[at:], now)
            break
        queue_id = int(_I32.unpack_from(record, QUEUE_ID_AT)[0])
        offset = int(_I64.unpack_from(record, QUEUE_OFFSET_AT)[0])
        records.append(with_reconsume_count(record, grant.attempt - 1))
        offsets.setdefault((NORMAL, queue_id), []).append(offset)
        attempts[queue_id, offset] = grant.attempt
    if not records:
        return False
    fields = _answer_fields(
        asked, now, context.engine.ready_count(asked.group), revive_of(granted[0].grant)
    )
    starts = [(retry, queue, min(items)) for (retry, queue), items in offsets.items()]
    fields["startOffsetInfo"] = encode_start_offsets(starts)
    fields["msgOffsetInfo"] = encode_message_offsets(offsets)
    if asked.is_fifo:
        fields["orderCountInfo"] = ";".join(
            [f"{NORMAL} qo{queue}%{offset} {n - 1}" for (queue, offset), n in attempts.items()]
        )
    body = b"".join(records)
    context.rates.add(f"get {asked.topic}@{asked.name}", len(records), now.monotonic, len(body))
    answer = request.answer(fields=fields, body=body, remark="FOUND")
    connection.answer(request, answer)
    return True


def with_reconsume_count(record: bytes, count: int) -> bytes:
    """The stored bytes, with ``reconsumeTimes`` patched on redelivery (store page, rule 7)."""
    if count <= 0:
        return record
    patched = bytearray(record)
    _I32.pack_into(patched, RECONSUME_COUNT_AT, count)
    return bytes(patched)


def revive_of(grant: int) -> int:
    """What a handle says of a grant: fits Java's int."""
    return REVIVE_FROM + grant % REVIVE_MAX


def _answer_fields(asked: PopAsk, now: Now, rest: int, revive: int = 0) -> dict[str, str]:
    return {
        "popTime": str(now.wall_ms),
        "invisibleTime": str(asked.invisible_ms),
        "reviveQid": str(revive),
        "restNum": str(rest),
        "startOffsetInfo": "",
        "msgOffsetInfo": "",
    }


def _nothing(connection: Connection, request: RemotingCommand, asked: PopAsk) -> None:
    answer = request.answer(
        ResponseCode.POLLING_TIMEOUT,
        _answer_fields(asked, clock.read(), 0),
        remark="NO_MESSAGE_IN_QUEUE",
    )
    connection.answer(request, answer)


# ── ack and change ──────────────────────────────────────────────────────────────────────


class Named(NamedTuple):
    """A delivery as the engine names it."""

    group: int
    position: int
    grant: int


def ack(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Done (200051). A stale handle does nothing and is answered as done, as by Apache."""
    named = _named(context, request)
    if named.position < 0:
        return request.answer(ResponseCode.NO_MESSAGE, remark="no message at that offset")
    item = AckItem(*named)  # also one that is done: what ended it may not be durable yet
    pending = context.engine.ack(context.engine.epoch, [item], clock.read())
    context.when_durable(connection, request, pending, lambda _: request.answer())
    return None


def change_invisible_time(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Sooner or later visible again (200053); the answer makes the new handle."""
    named = _named(context, request)
    invisible_ms = int_field(request.fields, "invisibleTime")
    if named.position < 0 or not named.grant:
        return request.answer(ResponseCode.NO_MESSAGE, remark="the handle does not count any more")
    now = clock.read()
    action = AckAction.CHANGE
    if bool_field(request.fields, RELEASE_FIELD):
        action, invisible_ms = AckAction.RELEASE, 0
    item = AckItem(*named, action, max(invisible_ms, 0))
    pending = context.engine.ack(context.engine.epoch, [item], now)

    def answer(results: list[tuple[int, int]]) -> RemotingCommand:
        grant, code = results[0]
        if code != Code.OK:
            return request.answer(ResponseCode.NO_MESSAGE, remark="the handle is stale")
        fields = {
            "popTime": str(now.wall_ms),
            "invisibleTime": str(invisible_ms),
            "reviveQid": str(revive_of(grant)),
        }
        return request.answer(fields=fields)

    context.when_durable(connection, request, pending, answer)
    return None


def _named(context: Context, request: RemotingCommand) -> Named:
    """The delivery behind the request's handle; grant 0: it does not count any more."""
    fields = request.fields
    handle = parse_pop_handle(text_field(fields, "extraInfo"))
    if handle is None:
        raise Refused(Code.INVALID_RECEIPT_HANDLE, "extraInfo", "is no pop handle")
    topic, group = text_field(fields, "topic"), text_field(fields, "consumerGroup")
    return _find(context, group, topic, handle._replace(queue_offset=int_field(fields, "offset")))


def _find(context: Context, group: str, topic: str, handle: PopHandle) -> Named:
    number = context.engine.group_number(f"rmq/{group}/{topic}")
    position = context.engine.entry_position(topic, handle.queue_id, handle.queue_offset)
    if not number or position < 0:
        return Named(number, -1, 0)
    grant = context.engine.in_flight_grant(number, position)
    is_current = grant and handle.revive_queue_id == revive_of(grant)
    return Named(number, position, grant if is_current else 0)


def batch_ack(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Many at once (200151); what does not count is skipped."""
    body = bodies.decode_body(bodies.BatchAckBody, request.body)
    items: list[AckItem] = []
    for entry in body.acks:
        try:
            bits = decode_bit_set(entry.b)
        except ValueError as error:
            raise Refused(Code.BAD_REQUEST, "b", f"is no bit set: {error}") from error
        for bit in bits:
            handle = PopHandle(
                entry.so, entry.pt, entry.it, entry.rq, entry.r, "", entry.q, entry.so + bit
            )
            named = _find(context, entry.c, entry.t, handle)
            if named.grant:
                items.append(AckItem(*named))
    if not items:
        return request.answer()
    pending = context.engine.ack(context.engine.epoch, items, clock.read())
    context.when_durable(connection, request, pending, lambda _: request.answer())
    return None


def notification(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Whether a pop would find something (200054); waits for it if asked to."""
    topic = text_field(request.fields, "topic")
    config = context.topic(topic)
    if config is None:
        return no_such_topic(request, topic)
    name = text_field(request.fields, "consumerGroup")
    number = context.engine.group_number(f"rmq/{name}/{topic}")
    if not number:
        group = use_group(context, name, clock.read())
        number = open_pop_group(context, request, config, group)

    def answer(has_message: bool) -> None:
        word = "true" if has_message else "false"
        connection.answer(request, request.answer(fields={"hasMsg": word, "pollingFull": "false"}))

    def attempt() -> bool:
        if not context.engine.ready_count(number):
            return False
        answer(True)
        return True

    if not attempt():
        context.waits.add(
            connection,
            (("group", number),),
            wait_s=min(int_field(request.fields, "pollTime", 0), POLL_MS_MAX) / 1000,
            wake=attempt,
            expire=partial(answer, False),
        )
    return None


HANDLERS: dict[int, Handler] = {
    RequestCode.POP_MESSAGE: pop,
    RequestCode.ACK_MESSAGE: ack,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: change_invisible_time,
    RequestCode.NOTIFICATION: notification,
    RequestCode.BATCH_ACK_MESSAGE: batch_ack,
}
