"""
What each standard code needs of the user who sends it, as RocketMQ's request headers say it.

Codes that Apache's brokers leave to any user, though they read or change the broker (its
configuration, groups, all topics), need a right on the cluster or the group here. What is not in
the tables needs ``Cluster: Update``.

Source: ``@RocketMQAction``, ``@RocketMQResource``, ``DefaultAuthorizationContextBuilder`` (5.4).
"""

from collections.abc import Callable, Mapping
from typing import Final

from protocols.errors import Refused
from protocols.remoting import bodies
from protocols.remoting.acl import Need, group_need, topic_need
from protocols.remoting.codes import RequestCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.headers import int_field, text_field
from protocols.remoting.records import decode_record
from store.handlers.context import Context

PUB: Final = ("Pub",)
SUB: Final = ("Sub",)
GET: Final = ("Get",)
CREATE: Final = ("Create",)
UPDATE: Final = ("Update",)
DELETE: Final = ("Delete",)
READ: Final = ("Sub", "Get")
COMMIT: Final = ("Sub", "Update")

Fields = tuple[tuple[str, tuple[str, ...]], ...]
"""(header field, one of these actions); a field whose name has "roup" names a group."""

_TOPIC_GROUP_SUB: Final[Fields] = (("topic", SUB), ("consumerGroup", SUB))

OF_FIELDS: Final[Mapping[int, Fields]] = {
    RequestCode.SEND_MESSAGE: (("topic", PUB),),
    RequestCode.SEND_MESSAGE_V2: (("b", PUB),),
    RequestCode.SEND_BATCH_MESSAGE: (("b", PUB),),
    RequestCode.SEND_REPLY_MESSAGE: (),  # reaches who asked, and nobody else
    RequestCode.SEND_REPLY_MESSAGE_V2: (),
    RequestCode.RECALL_MESSAGE: (("topic", PUB),),
    RequestCode.END_TRANSACTION: (("topic", PUB),),
    RequestCode.PULL_MESSAGE: _TOPIC_GROUP_SUB,
    RequestCode.LITE_PULL_MESSAGE: _TOPIC_GROUP_SUB,
    RequestCode.POP_MESSAGE: _TOPIC_GROUP_SUB,
    RequestCode.ACK_MESSAGE: _TOPIC_GROUP_SUB,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _TOPIC_GROUP_SUB,
    RequestCode.NOTIFICATION: _TOPIC_GROUP_SUB,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: _TOPIC_GROUP_SUB,
    RequestCode.UNREGISTER_CLIENT: (("consumerGroup", SUB),),
    RequestCode.CHECK_CLIENT_CONFIG: (),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: (("consumerGroup", READ),),
    RequestCode.QUERY_CONSUMER_OFFSET: (("topic", READ), ("consumerGroup", READ)),
    RequestCode.UPDATE_CONSUMER_OFFSET: (("topic", COMMIT), ("consumerGroup", COMMIT)),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: (("topic", READ),),
    RequestCode.GET_MAX_OFFSET: (("topic", READ),),
    RequestCode.GET_MIN_OFFSET: (("topic", READ),),
    RequestCode.GET_EARLIEST_MSG_STORETIME: (("topic", READ),),
    RequestCode.QUERY_MESSAGE: (("topic", READ),),
    RequestCode.UPDATE_AND_CREATE_TOPIC: (("topic", CREATE),),
    RequestCode.DELETE_TOPIC_IN_BROKER: (("topic", DELETE),),
    RequestCode.GET_TOPIC_CONFIG: (("topic", GET),),
    RequestCode.GET_TOPIC_STATS_INFO: (("topic", GET),),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: (("topic", GET),),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: (("groupName", DELETE),),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: (("group", GET),),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: (("consumerGroup", GET),),
    RequestCode.GET_CONSUMER_RUNNING_INFO: (("consumerGroup", GET),),
    RequestCode.GET_CONSUME_STATS: (("consumerGroup", GET), ("topic", GET)),
    RequestCode.QUERY_CONSUME_TIME_SPAN: (("topic", GET), ("group", GET)),
    RequestCode.QUERY_CONSUME_QUEUE: (("topic", GET), ("consumerGroup", GET)),
    RequestCode.QUERY_CORRECTION_OFFSET: (("compareGroup", GET), ("topic", GET)),
    RequestCode.QUERY_TOPICS_BY_CONSUMER: (("group", GET),),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: (("group", GET), ("topic", GET)),
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: (("topic", GET), ("group", GET)),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: (("group", UPDATE), ("topic", UPDATE)),
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: (("group", UPDATE), ("topic", UPDATE)),
    RequestCode.CLONE_GROUP_OFFSET: (("srcGroup", GET), ("destGroup", UPDATE), ("topic", UPDATE)),
}

READS_CLUSTER: Final = frozenset(
    (
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_BROKER_CONFIG,
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_PRODUCER_CONNECTION_LIST,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
        RequestCode.VIEW_BROKER_STATS_DATA,
        RequestCode.GET_BROKER_CONSUME_STATS,
        RequestCode.GET_ALL_PRODUCER_INFO,
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
        RequestCode.GET_BROKER_HA_STATUS,
        RequestCode.AUTH_GET_USER,
        RequestCode.AUTH_LIST_USER,
        RequestCode.AUTH_GET_ACL,
        RequestCode.AUTH_LIST_ACL,
    )
)


def needs_of(context: Context, command: RemotingCommand) -> list[Need]:
    """All that the request needs. Raises PeerError (a body that is none) and HeaderError."""
    code = command.code
    fields = OF_FIELDS.get(code)
    if fields is not None:
        found = [(name, command.fields.get(name, ""), actions) for name, actions in fields]
        return [
            group_need(value, *actions) if "roup" in name else topic_need(value, *actions)
            for name, value, actions in found
            if value
        ]
    of_body = OF_BODY.get(code)
    if of_body is not None:
        return of_body(context, command)
    return [Need("Cluster", context.config.cluster, GET if code in READS_CLUSTER else UPDATE)]


# ── needs that stand in bodies ──────────────────────────────────────────────────────────


def _of_heartbeat(context: Context, command: RemotingCommand) -> list[Need]:
    needs: list[Need] = []
    for data in bodies.decode_body(bodies.HeartbeatData, command.body).consumer_data_set:
        needs.append(group_need(data.group_name, *SUB))
        needs += [topic_need(item.topic, *SUB) for item in data.subscription_data_set]
    return needs


def _of_lock(context: Context, command: RemotingCommand) -> list[Need]:
    body = bodies.decode_body(bodies.LockBody, command.body)
    topics = {queue.topic for queue in body.mq_set}
    return [
        group_need(body.consumer_group, *SUB),
        *[topic_need(topic, *SUB) for topic in sorted(topics)],
    ]


def _of_assignment(context: Context, command: RemotingCommand) -> list[Need]:
    body = bodies.decode_body(bodies.QueryAssignmentBody, command.body)
    return [group_need(body.consumer_group, *SUB), topic_need(body.topic, *SUB)]


def _of_acks(context: Context, command: RemotingCommand) -> list[Need]:
    acks = bodies.decode_body(bodies.BatchAckBody, command.body).acks
    groups, topics = {ack.c for ack in acks}, {ack.t for ack in acks}
    return [
        *[group_need(group, *SUB) for group in sorted(groups)],
        *[topic_need(topic, *SUB) for topic in sorted(topics)],
    ]


def _of_topics(context: Context, command: RemotingCommand) -> list[Need]:
    body = bodies.decode_body(bodies.TopicConfigList, command.body)
    return [topic_need(item.topic_name, *CREATE) for item in body.topic_config_list]


def _of_groups(context: Context, command: RemotingCommand) -> list[Need]:
    body = bodies.decode_body(bodies.GroupConfigList, command.body)
    return [group_need(item.group_name, *UPDATE) for item in body.group_config_list]


def _of_group(context: Context, command: RemotingCommand) -> list[Need]:
    return [group_need(bodies.decode_body(bodies.GroupConfig, command.body).group_name, *UPDATE)]


def _of_mode(context: Context, command: RemotingCommand) -> list[Need]:
    body = bodies.decode_body(bodies.RequestModeBody, command.body)
    return [group_need(body.consumer_group, *UPDATE), topic_need(body.topic, *UPDATE)]


# ── needs that stand in the message which a request names by its position ───────────────


def _of_position(context: Context, command: RemotingCommand) -> list[Need]:
    """The topic of the message itself, whatever the request says."""
    try:
        record = context.engine.message_at(int_field(command.fields, "offset"))
    except Refused:
        return []  # there is nothing to be had
    return [topic_need(decode_record(record).topic, *READ)]


def _of_send_back(context: Context, command: RemotingCommand) -> list[Need]:
    group = group_need(text_field(command.fields, "group"), *SUB)
    return [group, *_of_position(context, command)]


OF_BODY: Final[Mapping[int, Callable[[Context, RemotingCommand], list[Need]]]] = {
    RequestCode.HEART_BEAT: _of_heartbeat,
    RequestCode.LOCK_BATCH_MQ: _of_lock,
    RequestCode.UNLOCK_BATCH_MQ: _of_lock,
    RequestCode.QUERY_ASSIGNMENT: _of_assignment,
    RequestCode.BATCH_ACK_MESSAGE: _of_acks,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: _of_topics,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _of_groups,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _of_group,
    RequestCode.SET_MESSAGE_REQUEST_MODE: _of_mode,
    RequestCode.VIEW_MESSAGE_BY_ID: _of_position,
    RequestCode.CONSUMER_SEND_MSG_BACK: _of_send_back,
}
