"""Pulls, which are pops or reads, and the offsets that clients ask for and commit."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from protocols import clock
from protocols.canonical import Call, StoredMessage
from protocols.errors import Code, Refused
from protocols.remoting.asking import as_said
from protocols.remoting.codes import PullFlag, RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.consumer import check_consume
from protocols.remoting.headers import PullHeader, int_field, pull_header, text_field
from protocols.remoting.holdings import Queue
from protocols.remoting.mapping import RETRY_BROKER, Wants, is_retry_topic, parse_filter, qualified
from protocols.remoting.numbering import ALL_BROKERS
from protocols.remoting.private import GROUP_IS_KNOWN

if TYPE_CHECKING:
    from protocols.remoting.consumer import Consumer
    from protocols.remoting.session import Session

T = TypeVar("T")

SUSPEND_MS_MAX: Final = 30_000
"""Longest hold of a pull, whatever the client asks for."""

ASKED_S: Final = 2.0
"""For the heartbeat of a client that has just connected; it waits some 3 s for an answer."""

TOLD_S: Final = 35.0
"""The same where no answer is wanted. 4.x clients send their heartbeats each 30 s."""

AWAY_S_MAX: Final = 2.0
"""How long a question waits for its store; clients wait 3 s and more, and ask again themselves."""

AGAIN_S: Final = 0.2

PULL_BYTES_MAX: Final = 256 << 10
"""Bytes of one pull answer (``maxTransferBytesOnMessageInMemory``)."""


# ── pull ────────────────────────────────────────────────────────────────────────────────


async def pull(session: "Session", call: Call, command: RemotingCommand) -> RemotingCommand:
    """11, 361: pop for push consumers, read by offset for everybody else."""
    header = pull_header(command.fields)
    queue = await _queue(session, call, header.topic, header.broker, header.queue_id)
    consumer = await _consumer(session, header.group)
    if consumer is None and _is_pushed(command, header) and session.is_unheard:
        consumer = await session.consumer(header.group, header.suspend_ms / 1000)
        if consumer is None and session.is_unheard:
            return _pulled(command, ResponseCode.PULL_NOT_FOUND, header.queue_offset)
    if header.sys_flag & PullFlag.COMMIT_OFFSET:
        _commit(session, call, header.group, queue, header.commit_offset)
    wait_ms = min(header.suspend_ms, SUSPEND_MS_MAX) if header.sys_flag & PullFlag.SUSPEND else 0
    if consumer is not None and is_retry_topic(queue.topic):
        records = await consumer.pop_returned(queue, header, wait_ms)
    elif consumer is None or consumer.reads_by_offset(queue):
        return await _read(session, call, command, header, queue, wait_ms)
    else:
        records = await consumer.pop(queue, header, wait_ms)
        if not records and consumer.holdings.returned_count:
            return _pulled(command, ResponseCode.PULL_RETRY_IMMEDIATELY, header.queue_offset)
    if not records:
        return _pulled(command, ResponseCode.PULL_NOT_FOUND, header.queue_offset)
    following = max(header.queue_offset, consumer.holdings.next_offset(queue))
    return _pulled(command, ResponseCode.SUCCESS, following, b"".join(records))


def _is_pushed(command: RemotingCommand, header: PullHeader) -> bool:
    """
    Of a push consumer: none else commits here, or leaves its filter to its heartbeat. Apache's
    brokers do not serve it before that either (24).
    """
    flags = header.sys_flag & (PullFlag.COMMIT_OFFSET | PullFlag.SUSPEND | PullFlag.SUBSCRIPTION)
    is_by_beat = flags & ~PullFlag.COMMIT_OFFSET == PullFlag.SUSPEND
    is_pull = command.code == RequestCode.PULL_MESSAGE
    return is_pull and bool(is_by_beat or flags & PullFlag.COMMIT_OFFSET)


async def _consumer(session: "Session", group: str) -> "Consumer | None":
    """The client as a member of *group*; a heartbeat under way may be about to make it one."""
    if group not in session.consumers and session.beating.locked():
        async with session.beating:
            pass
    return session.consumers.get(group)


async def _read(
    session: "Session",
    call: Call,
    command: RemotingCommand,
    header: PullHeader,
    queue: Queue,
    wait_ms: int,
) -> RemotingCommand:
    """Exactly by offset: no state but what the client commits."""
    check_consume(session.host.services, call, queue.topic, header.group)
    consumer = session.consumers.get(header.group)
    if consumer is not None:
        wants = consumer.wants(queue.topic, header)
    else:
        wants = parse_filter(header.expression_type, header.subscription)
    messages, smallest, end = await _insist(
        lambda: session.host.services.topics.read(
            qualified(call.tenant, queue.topic),
            queue.broker,
            queue.queue_id,
            header.queue_offset,
            max(1, min(header.count_max, 1024)),
            wait_ms,
        )
    )
    if not messages:
        if header.queue_offset < smallest:
            return _pulled(command, ResponseCode.PULL_OFFSET_MOVED, smallest, b"", smallest, end)
        if header.queue_offset > end:
            return _pulled(command, ResponseCode.PULL_OFFSET_MOVED, end, b"", smallest, end)
        offset = header.queue_offset
        return _pulled(command, ResponseCode.PULL_NOT_FOUND, offset, b"", smallest, end)
    body, following = _select(messages, wants, header.bytes_max)
    code = ResponseCode.SUCCESS if body else ResponseCode.PULL_RETRY_IMMEDIATELY
    return _pulled(command, code, following, body, smallest, end)


async def _insist(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask once more where the store was away: a link that broke is back in a moment."""
    until = clock.monotonic() + AWAY_S_MAX
    while True:
        try:
            return await ask()
        except Refused as error:
            if error.code != Code.HA_NOT_AVAILABLE or clock.monotonic() >= until:
                raise
        await asyncio.sleep(AGAIN_S)


def _select(messages: Sequence[StoredMessage], wants: Wants, bytes_max: int) -> tuple[bytes, int]:
    """(records that pass *wants*, offset to go on from); at least one is looked at."""
    left = min(bytes_max or PULL_BYTES_MAX, PULL_BYTES_MAX)
    records: list[bytes] = []
    following = messages[0].queue_offset
    for message in messages:
        if not wants.matches(message):
            following = message.queue_offset + 1
            continue
        if records and len(message.record) > left:
            break
        left -= len(message.record)
        records.append(message.record)
        following = message.queue_offset + 1
    return b"".join(records), following


def _pulled(
    command: RemotingCommand,
    code: ResponseCode,
    following: int,
    body: bytes = b"",
    smallest: int = 0,
    end: int = -1,
) -> RemotingCommand:
    fields = {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": str(following),
        "minOffset": str(smallest),
        "maxOffset": str(end if end >= 0 else following),
    }
    return command.answer(code, fields, body, remark="" if body else code.name)


async def _queue(session: "Session", call: Call, topic: str, broker: str, queue_id: int) -> Queue:
    """The queue; clients that name no broker have numbered them."""
    if is_retry_topic(topic) or broker not in ("", ALL_BROKERS):
        return Queue(topic, broker or RETRY_BROKER, queue_id)
    info = await session.host.topic(call, topic)
    if info is None:
        raise Refused(Code.TOPIC_NOT_FOUND, topic, "no such topic")
    places = await session.host.numbering.places(info)
    if 0 <= queue_id < len(places):
        return Queue(topic, *places[queue_id])
    raise Refused(Code.ILLEGAL_OFFSET, topic, f"it has no queue {queue_id}")


async def _queue_of(session: "Session", call: Call, fields: Mapping[str, str]) -> Queue:
    """The one that a request names."""
    topic, number = text_field(fields, "topic"), int_field(fields, "queueId")
    return await _queue(session, call, topic, fields.get("bname", ""), number)


# ── offsets ─────────────────────────────────────────────────────────────────────────────


async def update_offset(
    session: "Session", call: Call, command: RemotingCommand
) -> RemotingCommand:
    """15: ack of what the client holds below the offset, or the offset itself."""
    offset = int_field(command.fields, "commitOffset")
    wait_s = TOLD_S if command.is_oneway else ASKED_S
    await session.consumer(command.fields.get("consumerGroup", ""), wait_s)
    if command.fields.get("bname"):
        group, queue = await _group_and_queue(session, call, command)
        _commit(session, call, group, queue, offset)
    else:
        async with session.naming:  # a client that leaves commits first
            group, queue = await _group_and_queue(session, call, command)
            _commit(session, call, group, queue, offset)
    if not session.has_consumed and not session.host.members.of(group):
        return await _move(session, call, command, group, queue)
    return command.answer()


async def _move(
    session: "Session", call: Call, command: RemotingCommand, group: str, queue: Queue
) -> RemotingCommand:
    """A tool moves a group of which nobody is there (``resetOffsetByTimestampOld`` of Java)."""
    if is_retry_topic(queue.topic):
        return command.answer()
    topic = qualified(call.tenant, queue.topic)
    fields = {
        "consumerGroup": qualified(call.tenant, group),
        "topic": topic,
        "queueId": str(queue.queue_id),
        "commitOffset": text_field(command.fields, "commitOffset"),
        GROUP_IS_KNOWN: "true",
    }
    code = RequestCode.UPDATE_CONSUMER_OFFSET
    answer = await session.host.services.brokers.ask(topic, queue.broker, code, fields)
    return as_said(command, answer)


def _commit(session: "Session", call: Call, group: str, queue: Queue, offset: int) -> None:
    is_shared = False
    for consumer in (session.consumers.get(group), *session.leaving):
        if consumer is None or consumer.group != group or consumer.reads_by_offset(queue):
            continue
        consumer.commit(queue, offset)
        is_shared = True
    if not is_shared and not is_retry_topic(queue.topic):
        check_consume(session.host.services, call, queue.topic, group)
        session.host.members.commit(group, queue, offset)


async def query_offset(session: "Session", call: Call, command: RemotingCommand) -> RemotingCommand:
    """14: where the client begins, or begins anew; who pops is told where it stands."""
    group, queue = await _group_and_queue(session, call, command)
    consumer = await _consumer(session, group)
    if consumer is not None and not consumer.reads_by_offset(queue):
        offset: int | None = await consumer.begin(queue)
    else:
        offset = session.host.members.offset(group, queue)
        if offset is None and not is_retry_topic(queue.topic):
            return await _query_broker(session, call, command, group, queue)
    if offset is None:
        return command.answer(ResponseCode.QUERY_NOT_FOUND, remark="never committed")
    return command.answer(0, {"offset": str(offset)})


async def _query_broker(
    session: "Session", call: Call, command: RemotingCommand, group: str, queue: Queue
) -> RemotingCommand:
    """
    Nobody has committed here: the broker knows a group that came to it, and that of a young
    queue "from the last" means its beginning. A member that takes a queue over before the first
    commit would else begin behind what was sent meanwhile.
    """
    topic = qualified(call.tenant, queue.topic)
    told = {
        **command.fields,
        "consumerGroup": qualified(call.tenant, group),
        "topic": topic,
        "queueId": str(queue.queue_id),
    }
    answer = await session.host.services.brokers.ask(topic, queue.broker, command.code, told)
    return as_said(command, answer)


async def _group_and_queue(
    session: "Session", call: Call, command: RemotingCommand
) -> tuple[str, Queue]:
    queue = await _queue_of(session, call, command.fields)
    return text_field(command.fields, "consumerGroup"), queue


async def max_offset(session: "Session", call: Call, command: RemotingCommand) -> RemotingCommand:
    """30."""
    return await _offset_answer(session, call, command, at_ms=-1)


async def min_offset(session: "Session", call: Call, command: RemotingCommand) -> RemotingCommand:
    """31."""
    return await _offset_answer(session, call, command, at_ms=0)


async def search_offset(
    session: "Session", call: Call, command: RemotingCommand
) -> RemotingCommand:
    """29: the broker's own answer, which knows the first and the last offset of a time."""
    fields = command.fields
    queue = await _queue_of(session, call, fields)
    if is_retry_topic(queue.topic):
        return command.answer(0, {"offset": "0"})
    stored = qualified(call.tenant, queue.topic)
    asked = {**fields, "topic": stored, "timestamp": str(max(0, int_field(fields, "timestamp")))}
    brokers = session.host.services.brokers
    answer = await _insist(lambda: brokers.ask(stored, queue.broker, command.code, asked))
    return as_said(command, answer)


async def _offset_answer(
    session: "Session", call: Call, command: RemotingCommand, *, at_ms: int
) -> RemotingCommand:
    queue = await _queue_of(session, call, command.fields)
    if is_retry_topic(queue.topic):
        return command.answer(0, {"offset": "0"})
    offset = await _insist(
        lambda: session.host.services.topics.offset(
            qualified(call.tenant, queue.topic), queue.broker, queue.queue_id, at_ms=at_ms
        )
    )
    return command.answer(0, {"offset": str(offset)})
