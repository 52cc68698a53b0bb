"""Clients by standard codes: heartbeats, membership, assignments, order locks (34, 35, 38…)."""

from collections.abc import Iterable

from protocols import clock
from protocols.clock import Now
from protocols.errors import Code, Refused
from protocols.remoting import bodies
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import ONEWAY_FLAG, RemotingCommand
from protocols.remoting.headers import text_field
from store.handlers.client_table import Client, Membership, Subscription
from store.handlers.connection import Connection
from store.handlers.context import Context, Handler
from store.handlers.filters import TAG, parse_filter
from store.handlers.subscription_groups import use_group

MODES_TABLE = "mode"
"""Table of the engine's settings: ``topic@group`` → request mode (401)."""


def heartbeat(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Who is there, in which groups, subscribed to what (34). Groups come into being here."""
    told = bodies.decode_body(bodies.HeartbeatData, request.body)
    now = clock.read()
    consumers = [data for data in told.consumer_data_set if _may_join(context, data, now)]
    changed = context.clients.heartbeat(
        connection,
        told.client_id,
        language=request.language,
        version=request.version,
        producer_groups=[producer.group_name for producer in told.producer_data_set],
        memberships=[_membership(consumer) for consumer in consumers],
        now=now.monotonic,
    )
    tell_members(context, changed)
    return request.answer()


def _may_join(context: Context, consumer: bodies.ConsumerData, now: Now) -> bool:
    """Whether the group is there or may come into being; as by Apache, a heartbeat goes on."""
    try:
        use_group(context, consumer.group_name, now)
    except Refused:
        return False
    return True


def _membership(consumer: bodies.ConsumerData) -> Membership:
    return Membership(
        consumer.group_name,
        consumer.consume_type,
        consumer.message_model,
        consumer.consume_from_where,
        tuple(
            Subscription(
                item.topic,
                item.sub_string,
                item.expression_type,
                item.sub_version,
                tuple(item.tags_set),
            )
            for item in consumer.subscription_data_set
        ),
    )


def unregister(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    changed = context.clients.unregister(
        connection,
        text_field(request.fields, "clientID"),
        producer_group=request.fields.get("producerGroup", ""),
        consumer_group=request.fields.get("consumerGroup", ""),
    )
    tell_members(context, changed)
    return request.answer()


def tell_members(context: Context, groups: Iterable[str]) -> None:
    """NOTIFY_CONSUMER_IDS_CHANGED to every member of *groups*: they rebalance at once (40)."""
    for group in groups:
        for member in context.clients.consumers(group):
            if isinstance(member.link, Connection) and member.link.is_open:
                command = RemotingCommand(
                    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
                    {"consumerGroup": group},
                    flag=ONEWAY_FLAG,
                )
                member.link.peer.send_oneway(command)


def check_client(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Whether we understand a subscription (46)."""
    told = bodies.decode_body(bodies.CheckClientBody, request.body).subscription_data
    parse_filter(told.expression_type or TAG, told.sub_string)
    return request.answer()


def consumer_list(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    group = text_field(request.fields, "consumerGroup")
    members = [client.client_id for client in context.clients.consumers(group)]
    if not members:
        return request.answer(
            ResponseCode.SYSTEM_ERROR, remark=f"no consumer for this group, {group}"
        )
    body = bodies.ConsumerList(consumer_id_list=members)
    return request.answer(body=bodies.encode_body(body))


def subscription_body(item: Subscription) -> bodies.SubscriptionData:
    """As tools and other members are told of it."""
    return bodies.SubscriptionData(
        topic=item.topic,
        sub_string=item.expression,
        expression_type=item.expression_type,
        sub_version=item.version,
        tags_set=list(item.tags),
    )


def consumer_connections(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    group = text_field(request.fields, "consumerGroup")
    members = context.clients.consumers(group)
    if not members:
        return request.answer(
            ResponseCode.CONSUMER_NOT_ONLINE, remark=f"the consumer group[{group}] not online"
        )
    membership = members[-1].memberships[group]
    subscriptions = {item.topic: subscription_body(item) for item in membership.subscriptions}
    body = bodies.ConsumerConnection(
        connection_set=[_connection(client) for client in members],
        subscription_table=subscriptions,
        consume_type=membership.consume_type,
        message_model=membership.message_model,
        consume_from_where=membership.consume_from,
    )
    return request.answer(body=bodies.encode_body(body))


def producer_connections(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    group = text_field(request.fields, "producerGroup")
    producers = context.clients.producers(group)
    if not producers:
        return request.answer(
            ResponseCode.SYSTEM_ERROR, remark=f"the producer group[{group}] not exist"
        )
    body = bodies.ProducerConnection(connection_set=[_connection(item) for item in producers])
    return request.answer(body=bodies.encode_body(body))


def _connection(client: Client) -> bodies.Connection:
    return bodies.Connection(
        client_id=client.client_id,
        client_addr=client.link.address,
        language=client.language,
        version=client.version,
    )


# ── assignments ─────────────────────────────────────────────────────────────────────────


def query_assignment(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Which queues a client reads, and by pull or pop (400)."""
    asked = bodies.decode_body(bodies.QueryAssignmentBody, request.body)
    config = context.topic(asked.topic)
    if config is None:
        raise Refused(Code.TOPIC_NOT_FOUND, asked.topic, f"topic {asked.topic} does not exist")
    queues = [
        bodies.MessageQueue(topic=asked.topic, broker_name=context.config.name, queue_id=queue_id)
        for queue_id in range(config.read_queue_count)
    ]
    modes = context.engine.catalog.settings(MODES_TABLE)
    told = modes.get(f"{asked.topic}@{asked.consumer_group}", b"")
    mode, _, share = told.decode().partition(" ")
    if mode == "POP":
        mine, word = pop_share_of(context, asked, queues, int(share or 0)), "POP"
    elif asked.message_model == "BROADCASTING":
        mine, word = queues, "PULL"
    else:
        members = [c.client_id for c in context.clients.consumers(asked.consumer_group)]
        mine, word = share_of(queues, members, asked.client_id, asked.strategy_name), "PULL"
    body = bodies.AssignmentAnswer(
        message_queue_assignments=[
            bodies.QueueAssignment(message_queue=queue, mode=word) for queue in mine
        ]
    )
    return request.answer(body=bodies.encode_body(body))


def pop_share_of(
    context: Context,
    asked: bodies.QueryAssignmentBody,
    queues: list[bodies.MessageQueue],
    share: int,
) -> list[bodies.MessageQueue]:
    """
    What a client pops: all queues at once (id -1), or its own and those of the *share* members
    that follow it. Source: ``QueryAssignmentProcessor.allocate4Pop``.
    """
    members = [client.client_id for client in context.clients.consumers(asked.consumer_group)]
    if share <= 0 or share >= len(members) - 1:
        return [
            bodies.MessageQueue(topic=asked.topic, broker_name=context.config.name, queue_id=-1)
        ]
    if asked.client_id not in members:
        return []
    index = members.index(asked.client_id)
    mine: dict[bodies.MessageQueue, None] = {}
    for step in range(share + 1):
        member = members[(index + step) % len(members)]
        mine |= dict.fromkeys(share_of(queues, members, member, asked.strategy_name))
    return list(mine)


def share_of(
    queues: list[bodies.MessageQueue], members: list[str], client_id: str, strategy: str
) -> list[bodies.MessageQueue]:
    """A member's queues; ``AllocateMessageQueueAveragely`` and its ``ByCircle``."""
    if client_id not in members:
        return []
    index, count = members.index(client_id), len(members)
    if strategy == "AVG_BY_CIRCLE":
        return queues[index::count]
    size, rest = divmod(len(queues), count)
    start = index * size + min(index, rest)
    return queues[start : start + size + (1 if index < rest else 0)]


def set_request_mode(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Whether a group's push consumers pull or pop a topic (401)."""
    told = bodies.decode_body(bodies.RequestModeBody, request.body)
    pending = context.engine.catalog.put_setting(
        MODES_TABLE,
        f"{told.topic}@{told.consumer_group}",
        f"{told.mode} {told.pop_share_queue_num}".encode(),
        clock.read(),
    )
    context.when_durable(connection, request, pending, lambda _: request.answer())
    return None


# ── order locks ─────────────────────────────────────────────────────────────────────────


def lock_queues(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    asked = bodies.decode_body(bodies.LockBody, request.body)
    now = clock.monotonic()
    got = [
        queue
        for queue in asked.mq_set
        if context.locks.lock(
            asked.consumer_group, queue.topic, queue.queue_id, asked.client_id, now
        )
    ]
    return request.answer(body=bodies.encode_body(bodies.LockAnswer(lock_ok_mq_set=got)))


def unlock_queues(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    asked = bodies.decode_body(bodies.LockBody, request.body)
    for queue in asked.mq_set:
        context.locks.unlock(asked.consumer_group, queue.topic, queue.queue_id, asked.client_id)
    return request.answer()


HANDLERS: dict[int, Handler] = {
    RequestCode.HEART_BEAT: heartbeat,
    RequestCode.UNREGISTER_CLIENT: unregister,
    RequestCode.CHECK_CLIENT_CONFIG: check_client,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: consumer_list,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: consumer_connections,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: producer_connections,
    RequestCode.QUERY_ASSIGNMENT: query_assignment,
    RequestCode.SET_MESSAGE_REQUEST_MODE: set_request_mode,
    RequestCode.LOCK_BATCH_MQ: lock_queues,
    RequestCode.UNLOCK_BATCH_MQ: unlock_queues,
}
