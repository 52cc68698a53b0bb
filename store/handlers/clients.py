"""Clients by standard codes: heartbeats, membership, assignments, order locks (34, 35, 38…)."""

from collections.abc import Iterable

from protocols import clock
from protocols.clock import Now
from protocols.errors import Refused
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
    RequestCode.SET_MESSAGE_REQUEST_MODE: set_request_mode,
    RequestCode.LOCK_BATCH_MQ: lock_queues,
    RequestCode.UNLOCK_BATCH_MQ: unlock_queues,
}
