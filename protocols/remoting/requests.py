"""The requests that wait for something: one function each, one table."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final

from protocols.canonical import INTERNAL, Call, Head, Message, SendResult, StoredMessage
from protocols.errors import Code, GatewayError, Refused
from protocols.remoting import asking, popping, pulling, telling
from protocols.remoting.bodies import (
    BrokerData,
    CheckClientBody,
    ConsumerData,
    ConsumerList,
    HeartbeatData,
    LockAnswer,
    LockBody,
    MessageQueue,
    QueueData,
    RouteData,
    decode_body,
    encode_body,
    encode_route,
)
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.consumer import Consumer, check_consume
from protocols.remoting.delays import send_back_delay_ms
from protocols.remoting.handles import dead_letter_topic
from protocols.remoting.headers import int_field, text_field
from protocols.remoting.held import end_transaction, recall, serve_checks
from protocols.remoting.holdings import Held, Queue
from protocols.remoting.mapping import (
    RETRY_BROKER,
    is_retry_topic,
    parse_filter,
    qualified,
    retry_route,
    route_of,
)
from protocols.remoting.numbering import ALL_BROKERS, names_no_broker
from protocols.remoting.records import decode_record, encode_host, offset_message_id
from protocols.remoting.replying import REPLY_SUFFIX
from protocols.remoting.requesting import reply

if TYPE_CHECKING:
    from protocols.remoting.session import Session

GROUPS_MAX: Final = 256
"""Consumer groups of one connection."""

TEMPLATE: Final = "TBW102"


# ── routes and clients ──────────────────────────────────────────────────────────────────


async def route(session: "Session", call: Call, command: RemotingCommand) -> RemotingCommand:
    """105: every broker at this gateway's address; an unknown topic may come into being."""
    topic = text_field(command.fields, "topic")
    if is_retry_topic(topic):
        return command.answer(0, {}, encode_route(retry_route(session.address)))
    if topic.endswith(REPLY_SUFFIX):
        return command.answer(0, {}, encode_route(_template_route(session.address)))
    info = await session.host.topic(call, topic)
    if info is not None:
        numbered: RouteData | None = None
        if names_no_broker(command):
            numbered = await session.host.numbering.route(info, session.address)
        return command.answer(0, {}, encode_route(numbered or route_of(info, session.address)))
    if topic == TEMPLATE:
        return command.answer(0, {}, encode_route(_template_route(session.address)))
    return command.answer(
        ResponseCode.TOPIC_NOT_EXIST,
        remark=f"No topic route info in name server for the topic: {topic}",
    )


async def topic_list(session: "Session", call: Call, command: RemotingCommand) -> RemotingCommand:
    """206: the topics that this client may publish to or consume from."""
    services = session.host.services
    names = [
        name
        for name in services.topics.names()
        if any(
            services.permission.is_allowed(call, operation, subject=name, topic=name)
            for operation in ("publish", "consume")
        )
    ]
    return command.answer(0, {}, encode_body({"topicList": names}))


def _template_route(address: str) -> RouteData:
    """Of TBW102 where no broker has it, and of reply topics: somewhere to send to."""
    queue = QueueData(broker_name=RETRY_BROKER, read_queue_nums=4, write_queue_nums=4, perm=7)
    broker = BrokerData(cluster="", broker_name=RETRY_BROKER, broker_addrs={0: address})
    return RouteData(queue_datas=[queue], broker_datas=[broker])


async def heartbeat(session: "Session", call: Call, command: RemotingCommand) -> RemotingCommand:
    """34: the client's groups; a new group is opened at the stores before the answer."""
    beat = decode_body(HeartbeatData, command.body)
    async with session.beating:
        session.client_id = beat.client_id
        session.language, session.version = command.language, command.version
        session.producer_groups = {item.group_name for item in beat.producer_data_set}
        serve_checks(session, call, session.producer_groups)
        failure: GatewayError | None = None
        for data in beat.consumer_data_set:  # one that may not consume keeps no other away
            try:
                await _take_in(session, call, data)
            except GatewayError as error:
                failure = error
    session.has_beaten()
    if failure is not None:
        raise failure
    return command.answer()


async def _take_in(session: "Session", call: Call, data: ConsumerData) -> None:
    """A group of a heartbeat: as it was told last, or new."""
    consumer = session.consumers.get(data.group_name)
    if consumer is not None:
        consumer.data = data
        if not session.host.members.has(data.group_name, session.client_id):
            await _enter(session, consumer)  # it went with a lease, or with another connection
        return
    if len(session.consumers) >= GROUPS_MAX or "/" in data.group_name:
        raise Refused(Code.ILLEGAL_CONSUMER_GROUP, data.group_name, "not this one")
    await _join(session, call, data)


async def _join(session: "Session", call: Call, data: ConsumerData) -> None:
    host = session.host
    session.has_consumed = True
    consumer = Consumer(
        data.group_name, session.client_id, data, call, host.services, host.settings, host.tasks
    )
    await consumer.open()
    # Of a connection that has gone what the client holds is for the one that it has made since.
    is_current = session.peer.is_open and not host.is_elsewhere(session, data.group_name)
    if is_current:
        await consumer.adopt()
    await _enter(session, consumer)
    locked = host.members.locked_by(data.group_name, session.client_id)
    consumer.locked |= {queue for queue in locked if not is_retry_topic(queue.topic)}
    session.consumers[data.group_name] = consumer
    if not session.peer.is_open:  # it went while we waited: nobody else would clean up
        await consumer.stop()
        await session.drop_consumer(data.group_name)


async def _enter(session: "Session", consumer: Consumer) -> None:
    members = session.host.members
    consumer.member_version = await members.join(consumer.group, session.client_id)


async def unregister(session: "Session", call: Call, command: RemotingCommand) -> RemotingCommand:
    """35: a producer or consumer group of this client is over."""
    group = command.fields.get("consumerGroup", "")
    async with session.beating:
        if group:
            await session.leave_group(group)
        session.producer_groups.discard(command.fields.get("producerGroup", ""))
        serve_checks(session, call, session.producer_groups)
    return command.answer()


async def check_client(session: "Session", call: Call, command: RemotingCommand) -> RemotingCommand:
    """46: whether a subscription's filter can be had."""
    body = decode_body(CheckClientBody, command.body)
    told = body.subscription_data
    parse_filter(told.expression_type, told.sub_string)
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


# ── send back, locks ────────────────────────────────────────────────────────────────────


async def send_back(session: "Session", call: Call, command: RemotingCommand) -> RemotingCommand:
    """
    36: visible to the group again after the delay of its level; dead below 0, or when the client
    has tried as often as it says it will.

    What the client does not hold any more is the group's again already: nothing to do.
    """
    fields = command.fields
    group = text_field(fields, "group")
    level = int_field(fields, "delayLevel", 0)
    consumer = await session.consumer(group, pulling.ASKED_S)
    held = (
        consumer.holdings.find(
            "" if fields.get("bname") == ALL_BROKERS else fields.get("bname", ""),
            int_field(fields, "offset"),
            qualified(call.tenant, fields.get("originTopic", "")),
        )
        if consumer is not None
        else None
    )
    if consumer is None or held is None:
        return command.answer()
    limit = int_field(fields, "maxReconsumeTimes", -1)
    if level < 0 or 0 <= limit <= held.reconsume_count:
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
    source = messages[0] if messages else None
    if source is not None and source.log_position != held.position:
        source = await _copy_at(session, call, topic, held)
    if source is not None:
        await _store_dead(session, call, consumer.group, source, topic)
    await consumer.settle(held)


async def _copy_at(session: "Session", call: Call, topic: str, held: Held) -> StoredMessage | None:
    """What an Apache broker gave again lies in a topic for that: by its place in the log."""
    fields = {"offset": str(held.position)}
    name, code = qualified(call.tenant, topic), RequestCode.VIEW_MESSAGE_BY_ID
    answer = await session.host.services.brokers.ask(name, held.handle.broker, code, fields)
    return decode_record(answer.body) if answer.code == ResponseCode.SUCCESS else None


async def _store_dead(
    session: "Session", call: Call, group: str, source: StoredMessage, topic: str
) -> None:
    """As it was, with where it comes from."""
    origin = offset_message_id(encode_host(session.address), source.log_position)
    message = Message(
        Head(subject="", tag=source.properties.get("TAGS", "")),
        source.body,
        tuple(pair for pair in source.property_pairs() if pair[0] not in ("TAGS", "KEYS")),
        message_id=source.message_id,
        keys=source.properties.get("KEYS", ""),
        sys_flag=source.sys_flag,
        flag=source.flag,
    )
    await bury_message(session, call, group, message, qualified(call.tenant, topic), origin)


async def bury_message(
    session: "Session", call: Call, group: str, message: Message, topic: str, origin: str
) -> SendResult:
    """
    Into ``%DLQ%group``; sent by the gateway itself: no rule speaks of this topic.

    Raises Refused.
    """
    services = session.host.services
    dead = dead_letter_topic(qualified(call.tenant, group))
    if await services.topics.find(dead) is None:
        await services.topics.create(dead, queue_count=1)
    named = {
        "DLQ_ORIGIN_TOPIC": topic,
        "DLQ_ORIGIN_MESSAGE_ID": message.message_id,
        "RETRY_TOPIC": topic,
        "ORIGIN_MESSAGE_ID": origin,
    }
    head = Head(subject=dead, topic=dead, tag=message.head.tag, properties=tuple(named.items()))
    message = message._replace(head=head, deliver_at_ms=0)
    own = Call(protocol=INTERNAL, listener=call.listener, identity=call.identity, peer=call.peer)
    (result,) = await services.pipeline.send(own, [message])
    services.pipeline.forget(own)
    if result.code != Code.OK:
        raise Refused(result.code, dead, result.hint)
    return result


def text_topic(consumer: Consumer) -> str:
    """The one topic of a consumer whose handles do not say."""
    topics = [item.topic for item in consumer.data.subscription_data_set]
    return next((topic for topic in topics if not is_retry_topic(topic)), "")


async def lock(session: "Session", call: Call, command: RemotingCommand) -> RemotingCommand:
    """41: an orderly consumer takes queues for itself; from then on it reads by offset."""
    body = decode_body(LockBody, command.body)
    asked = _meant(session, call, body)
    _check_queues(session, call, body.consumer_group, asked)
    taken = await session.host.members.lock(body.consumer_group, body.client_id, list(asked))
    consumer = session.consumers.get(body.consumer_group)
    if consumer is not None:
        consumer.locked |= {queue for queue in taken if not is_retry_topic(queue.topic)}
    answer = LockAnswer(lock_ok_mq_set=[asked[queue] for queue in taken])
    return command.answer(0, {}, encode_body(answer))


def _meant(session: "Session", call: Call, body: LockBody) -> dict[Queue, MessageQueue]:
    """Queue → as the client names it."""
    meant = session.host.numbering.meant
    return {meant(qualified(call.tenant, item.topic), item): item for item in body.mq_set}


def _check_queues(session: "Session", call: Call, group: str, queues: Iterable[Queue]) -> None:
    """Raises Refused unless the ACL lets the group read them; its retry topic is its own."""
    for topic in sorted({queue.topic for queue in queues}):
        if is_retry_topic(topic):
            asking.require(session, call, "", group, "consume")
        else:
            check_consume(session.host.services, call, topic, group)


async def unlock(session: "Session", call: Call, command: RemotingCommand) -> RemotingCommand:
    """42."""
    body = decode_body(LockBody, command.body)
    queues = list(_meant(session, call, body))
    _check_queues(session, call, body.consumer_group, queues)
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
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: topic_list,
    RequestCode.HEART_BEAT: heartbeat,
    RequestCode.UNREGISTER_CLIENT: unregister,
    RequestCode.CHECK_CLIENT_CONFIG: check_client,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: consumer_list,
    RequestCode.QUERY_ASSIGNMENT: popping.query_assignment,
    RequestCode.PULL_MESSAGE: pulling.pull,
    RequestCode.LITE_PULL_MESSAGE: pulling.pull,
    RequestCode.UPDATE_CONSUMER_OFFSET: pulling.update_offset,
    RequestCode.QUERY_CONSUMER_OFFSET: pulling.query_offset,
    RequestCode.GET_MAX_OFFSET: pulling.max_offset,
    RequestCode.GET_MIN_OFFSET: pulling.min_offset,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: pulling.search_offset,
    RequestCode.CONSUMER_SEND_MSG_BACK: send_back,
    RequestCode.END_TRANSACTION: end_transaction,
    RequestCode.RECALL_MESSAGE: recall,
    RequestCode.SEND_REPLY_MESSAGE: reply,
    RequestCode.SEND_REPLY_MESSAGE_V2: reply,
    RequestCode.POP_MESSAGE: popping.pop,
    RequestCode.ACK_MESSAGE: popping.ack,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: popping.change,
    RequestCode.BATCH_ACK_MESSAGE: popping.batch_ack,
    RequestCode.NOTIFICATION: popping.notification,
    RequestCode.QUERY_MESSAGE: asking.query_message,
    RequestCode.VIEW_MESSAGE_BY_ID: asking.view_message,
    RequestCode.GET_TOPIC_CONFIG: asking.of_topic,
    RequestCode.GET_EARLIEST_MSG_STORETIME: asking.of_topic,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: asking.of_group,
    RequestCode.GET_TOPIC_STATS_INFO: asking.topic_stats,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: asking.names_of,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: asking.names_of,
    RequestCode.GET_CONSUME_STATS: asking.consume_stats,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: asking.reset_offset,
    RequestCode.GET_BROKER_CLUSTER_INFO: telling.cluster_info,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: telling.consumer_connections,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: telling.producer_connections,
    RequestCode.GET_CONSUMER_RUNNING_INFO: telling.running_info,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: telling.consume_directly,
    RequestCode.LOCK_BATCH_MQ: lock,
    RequestCode.UNLOCK_BATCH_MQ: unlock,
}
