"""The requests that wait for something: one function each, one table."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from protocols.canonical import Call, Head, Message, StoredMessage
from protocols.errors import Code, Refused
from protocols.remoting.bodies import (
    AssignmentAnswer,
    BrokerData,
    CheckClientBody,
    ConsumerData,
    ConsumerList,
    HeartbeatData,
    LockAnswer,
    LockBody,
    MessageQueue,
    QueryAssignmentBody,
    QueueAssignment,
    QueueData,
    RouteData,
    decode_body,
    encode_body,
    encode_route,
)
from protocols.remoting.codes import PullFlag, RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.consumer import Consumer
from protocols.remoting.handles import dead_letter_topic
from protocols.remoting.headers import PullHeader, int_field, pull_header, text_field
from protocols.remoting.holdings import Held, Queue
from protocols.remoting.mapping import (
    RETRY_BROKER,
    is_retry_topic,
    parse_tags,
    qualified,
    retry_route,
    route_of,
    send_back_delay_ms,
)

if TYPE_CHECKING:
    from protocols.remoting.session import Session

SUSPEND_MS_MAX: Final = 30_000
"""Longest hold of a pull, whatever the client asks for."""

PULL_BYTES_MAX: Final = 256 << 10
"""Bytes of one pull answer (``maxTransferBytesOnMessageInMemory``)."""

GROUPS_MAX: Final = 256
"""Consumer groups of one connection."""

TEMPLATE: Final = "TBW102"


# ── routes and clients ──────────────────────────────────────────────────────────────────


async def route(session: "Session", call: Call, command: RemotingCommand) -> RemotingCommand:
    """105: every broker at this gateway's address; an unknown topic may come into being."""
    topic = text_field(command.fields, "topic")
    if is_retry_topic(topic):
        return command.answer(0, {}, encode_route(retry_route(session.address)))
    info = await session.host.topic(call, topic)
    if info is not None:
        return command.answer(0, {}, encode_route(route_of(info, session.address)))
    if topic == TEMPLATE:
        return command.answer(0, {}, encode_route(_template_route(session.address)))
    return command.answer(
        ResponseCode.TOPIC_NOT_EXIST,
        remark=f"No topic route info in name server for the topic: {topic}",
    )


def _template_route(address: str) -> RouteData:
    """Of TBW102 where no broker has it: somewhere to send the first message of a topic to."""
    queue = QueueData(broker_name=RETRY_BROKER, read_queue_nums=4, write_queue_nums=4, perm=7)
    broker = BrokerData(cluster="", broker_name=RETRY_BROKER, broker_addrs={0: address})
    return RouteData(queue_datas=[queue], broker_datas=[broker])


async def heartbeat(session: "Session", call: Call, command: RemotingCommand) -> RemotingCommand:
    """34: the client's groups; a new group is opened at the stores before the answer."""
    beat = decode_body(HeartbeatData, command.body)
    session.client_id = beat.client_id
    session.producer_groups = {item.group_name for item in beat.producer_data_set}
    for data in beat.consumer_data_set:
        consumer = session.consumers.get(data.group_name)
        if consumer is not None:
            consumer.data = data
            continue
        if len(session.consumers) >= GROUPS_MAX or "/" in data.group_name:
            raise Refused(Code.ILLEGAL_CONSUMER_GROUP, data.group_name, "not this one")
        await _join(session, call, data)
    return command.answer()


async def _join(session: "Session", call: Call, data: ConsumerData) -> None:
    host = session.host
    consumer = Consumer(data.group_name, data, call, host.services, host.settings, host.tasks)
    session.consumers[data.group_name] = consumer
    try:
        await consumer.open()
        await host.members.join(data.group_name, session.client_id)
    except BaseException:
        if session.consumers.get(data.group_name) is consumer:
            del session.consumers[data.group_name]
        raise
    if not session.peer.is_open:  # it went while we waited: nobody else would clean up
        await session.drop_consumer(data.group_name)


async def unregister(session: "Session", call: Call, command: RemotingCommand) -> RemotingCommand:
    """35: a producer or consumer group of this client is over."""
    group = command.fields.get("consumerGroup", "")
    if group:
        await session.drop_consumer(group)
    session.producer_groups.discard(command.fields.get("producerGroup", ""))
    return command.answer()


async def check_client(session: "Session", call: Call, command: RemotingCommand) -> RemotingCommand:
    """46: whether a subscription's filter can be had."""
    body = decode_body(CheckClientBody, command.body)
    if body.subscription_data.expression_type not in ("", "TAG"):
        raise Refused(
            Code.ILLEGAL_FILTER_EXPRESSION,
            body.subscription_data.topic,
            "only TAG filters are supported",
        )
    return command.answer()


async def consumer_list(
    session: "Session", call: Call, command: RemotingCommand
) -> RemotingCommand:
    """38: client ids of a group, over all gateways, in the same order for all."""
    group = text_field(command.fields, "consumerGroup")
    members = session.host.members.of(group)
    if not members:
        return command.answer(ResponseCode.SYSTEM_ERROR, remark=f"no consumer for {group}")
    return command.answer(0, {}, encode_body(ConsumerList(consumer_id_list=members)))


async def query_assignment(
    session: "Session", call: Call, command: RemotingCommand
) -> RemotingCommand:
    """400: this client's share of a topic's queues (AVG), as it would compute it itself."""
    body = decode_body(QueryAssignmentBody, command.body)
    if is_retry_topic(body.topic):
        found = retry_route(session.address)
        queues = [
            Queue(body.topic, RETRY_BROKER, i) for i in range(found.queue_datas[0].read_queue_nums)
        ]
    else:
        info = await session.host.topic(call, body.topic)
        if info is None:
            raise Refused(Code.TOPIC_NOT_FOUND, body.topic, "no such topic")
        queues = sorted(Queue(body.topic, broker, i) for broker, i, _ in info.queues)
    if body.message_model != "BROADCASTING":
        members = session.host.members.of(body.consumer_group)
        queues = share(queues, members, body.client_id)
    answer = AssignmentAnswer(
        message_queue_assignments=[
            QueueAssignment(
                message_queue=MessageQueue(
                    topic=queue.topic, broker_name=queue.broker, queue_id=queue.queue_id
                )
            )
            for queue in queues
        ]
    )
    return command.answer(0, {}, encode_body(answer))


def share(queues: Sequence[Queue], members: Sequence[str], client_id: str) -> list[Queue]:
    """``AllocateMessageQueueAveragely``: neighbours, the first members get one more."""
    if client_id not in members:
        return []
    index = members.index(client_id)
    size, rest = divmod(len(queues), len(members))
    start = index * size + min(index, rest)
    return list(queues[start : start + size + (index < rest)])


# ── pull ────────────────────────────────────────────────────────────────────────────────


async def pull(session: "Session", call: Call, command: RemotingCommand) -> RemotingCommand:
    """11, 361: pop for push consumers, read by offset for everybody else."""
    header = pull_header(command.fields)
    queue = await _queue(session, call, header.topic, header.broker, header.queue_id)
    consumer = session.consumers.get(header.group)
    if header.sys_flag & PullFlag.COMMIT_OFFSET:
        _commit(session, header.group, queue, header.commit_offset)
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


async def _read(
    session: "Session",
    call: Call,
    command: RemotingCommand,
    header: PullHeader,
    queue: Queue,
    wait_ms: int,
) -> RemotingCommand:
    """Exactly by offset: no state but what the client commits."""
    _check_consume(session, call, queue.topic, header.group)
    if header.expression_type not in ("", "TAG"):
        raise Refused(Code.ILLEGAL_FILTER_EXPRESSION, queue.topic, "only TAG filters")
    messages, smallest, end = await session.host.services.topics.read(
        qualified(call.tenant, queue.topic),
        queue.broker,
        queue.queue_id,
        header.queue_offset,
        max(1, min(header.count_max, 1024)),
        wait_ms,
    )
    if not messages:
        if header.queue_offset < smallest:
            return _pulled(command, ResponseCode.PULL_OFFSET_MOVED, smallest, b"", smallest, end)
        if header.queue_offset > end:
            return _pulled(command, ResponseCode.PULL_OFFSET_MOVED, end, b"", smallest, end)
        offset = header.queue_offset
        return _pulled(command, ResponseCode.PULL_NOT_FOUND, offset, b"", smallest, end)
    consumer = session.consumers.get(header.group)
    known = consumer.subscription(queue.topic) if consumer is not None else None
    expression = header.subscription or (known.sub_string if known is not None else "")
    body, following = _select(messages, parse_tags(expression), header.bytes_max)
    code = ResponseCode.SUCCESS if body else ResponseCode.PULL_RETRY_IMMEDIATELY
    return _pulled(command, code, following, body, smallest, end)


def _select(
    messages: Sequence[StoredMessage], tags: tuple[str, ...], bytes_max: int
) -> tuple[bytes, int]:
    """(records with one of *tags*, offset to go on from); at least one is looked at."""
    left = min(bytes_max or PULL_BYTES_MAX, PULL_BYTES_MAX)
    records: list[bytes] = []
    following = messages[0].queue_offset
    for message in messages:
        if tags and message.properties.get("TAGS", "") not in tags:
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
    """The queue; clients older than ``bname`` name no broker: the first that has such a queue."""
    if broker or is_retry_topic(topic):
        return Queue(topic, broker or RETRY_BROKER, queue_id)
    info = await session.host.topic(call, topic)
    if info is None:
        raise Refused(Code.TOPIC_NOT_FOUND, topic, "no such topic")
    for name, number, _ in info.queues:
        if number == queue_id:
            return Queue(topic, name, queue_id)
    raise Refused(Code.ILLEGAL_OFFSET, topic, f"it has no queue {queue_id}")


def _check_consume(session: "Session", call: Call, topic: str, group: str) -> None:
    if not session.host.services.permission.is_allowed(
        call, "consume", subject=topic, topic=topic, group=group
    ):
        raise Refused(Code.FORBIDDEN, topic, "the ACL does not allow this consumer")


# ── offsets ─────────────────────────────────────────────────────────────────────────────


async def update_offset(
    session: "Session", call: Call, command: RemotingCommand
) -> RemotingCommand:
    """15: ack of what the client holds below the offset, or the offset itself."""
    group, queue = await _group_and_queue(session, call, command)
    _commit(session, group, queue, int_field(command.fields, "commitOffset"))
    return command.answer()


def _commit(session: "Session", group: str, queue: Queue, offset: int) -> None:
    consumer = session.consumers.get(group)
    if consumer is not None and not consumer.reads_by_offset(queue):
        consumer.commit(queue, offset)
    elif not is_retry_topic(queue.topic):
        session.host.members.commit(group, queue, offset)


async def query_offset(session: "Session", call: Call, command: RemotingCommand) -> RemotingCommand:
    """14: where the client begins; who pops is told where this connection stands."""
    group, queue = await _group_and_queue(session, call, command)
    consumer = session.consumers.get(group)
    if consumer is not None and not consumer.reads_by_offset(queue):
        offset: int | None = consumer.holdings.next_offset(queue)
    else:
        offset = session.host.members.offset(group, queue)
    if offset is None:
        return command.answer(ResponseCode.QUERY_NOT_FOUND, remark="never committed")
    return command.answer(0, {"offset": str(offset)})


async def _group_and_queue(
    session: "Session", call: Call, command: RemotingCommand
) -> tuple[str, Queue]:
    fields = command.fields
    queue = await _queue(
        session,
        call,
        text_field(fields, "topic"),
        fields.get("bname", ""),
        int_field(fields, "queueId"),
    )
    return text_field(fields, "consumerGroup"), queue


async def max_offset(session: "Session", call: Call, command: RemotingCommand) -> RemotingCommand:
    """30."""
    return await _offset_answer(session, call, command, at_ms=-1)


async def min_offset(session: "Session", call: Call, command: RemotingCommand) -> RemotingCommand:
    """31."""
    return await _offset_answer(session, call, command, at_ms=0)


async def search_offset(
    session: "Session", call: Call, command: RemotingCommand
) -> RemotingCommand:
    """29."""
    at_ms = max(0, int_field(command.fields, "timestamp"))
    return await _offset_answer(session, call, command, at_ms=at_ms)


async def _offset_answer(
    session: "Session", call: Call, command: RemotingCommand, *, at_ms: int
) -> RemotingCommand:
    fields = command.fields
    topic = text_field(fields, "topic")
    queue = await _queue(
        session, call, topic, fields.get("bname", ""), int_field(fields, "queueId")
    )
    if is_retry_topic(topic):
        return command.answer(0, {"offset": "0"})
    offset = await session.host.services.topics.offset(
        qualified(call.tenant, topic), queue.broker, queue.queue_id, at_ms=at_ms
    )
    return command.answer(0, {"offset": str(offset)})


# ── send back, locks ────────────────────────────────────────────────────────────────────


async def send_back(session: "Session", call: Call, command: RemotingCommand) -> RemotingCommand:
    """
    36: visible to the group again after the delay of its level; below 0: dead.

    What the client does not hold any more is the group's again already: nothing to do.
    """
    fields = command.fields
    group = text_field(fields, "group")
    level = int_field(fields, "delayLevel", 0)
    consumer = session.consumers.get(group)
    held = (
        consumer.holdings.find(fields.get("bname", ""), int_field(fields, "offset"))
        if consumer is not None
        else None
    )
    if consumer is None or held is None:
        return command.answer()
    if level < 0:
        await _bury(session, call, consumer, held)
    else:
        await consumer.send_back(held, send_back_delay_ms(level, held.reconsume_count))
    return command.answer()


async def _bury(session: "Session", call: Call, consumer: Consumer, held: Held) -> None:
    """To the dead-letter topic now, whatever its count; then done."""
    topic = held.handle.topic or text_topic(consumer)
    messages, _, _ = await session.host.services.topics.read(
        qualified(call.tenant, topic),
        held.handle.broker,
        held.handle.queue_id,
        held.handle.queue_offset,
        1,
        0,
    )
    if messages:
        dead = dead_letter_topic(consumer.group)
        if await session.host.services.topics.find(qualified(call.tenant, dead)) is None:
            await session.host.services.topics.create(qualified(call.tenant, dead), queue_count=1)
        source = messages[0]
        message = Message(
            Head(subject=dead, topic=dead, tag=source.properties.get("TAGS", "")),
            source.body,
            tuple(pair for pair in source.property_pairs() if pair[0] not in ("TAGS", "KEYS")),
            message_id=source.message_id,
            keys=source.properties.get("KEYS", ""),
            sys_flag=source.sys_flag,
        )
        (result,) = await session.host.services.pipeline.send(call, [message])
        if result.code != Code.OK:
            raise Refused(result.code, dead, result.hint)
    await consumer.settle(held)


def text_topic(consumer: Consumer) -> str:
    """The one topic of a consumer whose handles do not say."""
    topics = [item.topic for item in consumer.data.subscription_data_set]
    return next((topic for topic in topics if not is_retry_topic(topic)), "")


async def lock(session: "Session", call: Call, command: RemotingCommand) -> RemotingCommand:
    """41: an orderly consumer takes queues for itself; from then on it reads by offset."""
    body = decode_body(LockBody, command.body)
    queues = [Queue(item.topic, item.broker_name, item.queue_id) for item in body.mq_set]
    taken = await session.host.members.lock(body.consumer_group, body.client_id, queues)
    consumer = session.consumers.get(body.consumer_group)
    if consumer is not None:
        consumer.locked |= {queue for queue in taken if not is_retry_topic(queue.topic)}
    answer = LockAnswer(
        lock_ok_mq_set=[
            MessageQueue(topic=queue.topic, broker_name=queue.broker, queue_id=queue.queue_id)
            for queue in taken
        ]
    )
    return command.answer(0, {}, encode_body(answer))


async def unlock(session: "Session", call: Call, command: RemotingCommand) -> RemotingCommand:
    """42."""
    body = decode_body(LockBody, command.body)
    queues = [Queue(item.topic, item.broker_name, item.queue_id) for item in body.mq_set]
    consumer = session.consumers.get(body.consumer_group)
    if consumer is not None:
        consumer.locked -= set(queues)
    await session.host.members.write_offsets()
    await session.host.members.unlock(body.consumer_group, body.client_id, queues)
    return command.answer()


HANDLERS: Final[
    dict[int, "Callable[[Session, Call, RemotingCommand], Awaitable[RemotingCommand]]"]
] = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: route,
    RequestCode.HEART_BEAT: heartbeat,
    RequestCode.UNREGISTER_CLIENT: unregister,
    RequestCode.CHECK_CLIENT_CONFIG: check_client,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: consumer_list,
    RequestCode.QUERY_ASSIGNMENT: query_assignment,
    RequestCode.PULL_MESSAGE: pull,
    RequestCode.LITE_PULL_MESSAGE: pull,
    RequestCode.UPDATE_CONSUMER_OFFSET: update_offset,
    RequestCode.QUERY_CONSUMER_OFFSET: query_offset,
    RequestCode.GET_MAX_OFFSET: max_offset,
    RequestCode.GET_MIN_OFFSET: min_offset,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: search_offset,
    RequestCode.CONSUMER_SEND_MSG_BACK: send_back,
    RequestCode.LOCK_BATCH_MQ: lock,
    RequestCode.UNLOCK_BATCH_MQ: unlock,
}
