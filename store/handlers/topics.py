"""Topics by standard codes: 17, 18, 21, 202, 215, 305, 351."""

from collections.abc import Mapping
from typing import Final

from protocols import clock
from protocols.errors import Code, Refused
from protocols.remoting import bodies
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.handles import RETRY_PREFIX
from protocols.remoting.headers import bool_field, int_field, text_field
from protocols.remoting.private import IF_ABSENT
from store.answers import TopicConfig
from store.handlers.connection import Connection
from store.handlers.context import Context, Handler
from store.handlers.names import check_topic_name
from store.handlers.system_topics import is_system_topic
from store.handlers.topic_bodies import topic_body, topic_table
from store.metadata.topics import RESERVE_TIME

QUEUE_COUNT_MAX = 1024
"""Message queues of a topic at one store."""

ATTRIBUTES: Final = {
    "message.type": ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "MIXED"),
    "cleanup.policy": ("DELETE", "COMPACTION"),
    "queue.type": ("SimpleCQ", "BatchCQ"),
}
"""What a topic can have beside ``reserve.time``, and the values."""

UNCHANGEABLE: Final = ("queue.type", "cleanup.policy")
"""As long as the topic lives (``TopicAttributes``)."""


def update_topic(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Create or change a topic (17); known to the name servers right after."""
    fields = request.fields
    name = text_field(fields, "topic")
    known = context.engine.catalog.topics.get(name)
    if known is not None and bool_field(fields, IF_ABSENT):
        return request.answer(fields={"writeQueueNums": str(known.write_queue_count)})
    config = TopicConfig(
        name,
        int_field(fields, "readQueueNums"),
        int_field(fields, "writeQueueNums"),
        int_field(fields, "perm"),
        int_field(fields, "topicSysFlag", 0),
        bool_field(fields, "order"),
        altered(known, changes_of(fields.get("attributes", ""))),
    )
    check_topic(config)
    pending = context.engine.catalog.put_topic(config, clock.read())
    context.when_topics_known(connection, request, pending)
    return None


def update_topics(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Several topics at once (18)."""
    body = bodies.decode_body(bodies.TopicConfigList, request.body)
    known = context.engine.catalog.topics
    configs = [
        TopicConfig(
            item.topic_name,
            item.read_queue_nums,
            item.write_queue_nums,
            item.perm,
            item.topic_sys_flag,
            item.order,
            altered(known.get(item.topic_name), item.attributes),
        )
        for item in body.topic_config_list
    ]
    for config in configs:
        check_topic(config)
    if not configs:
        return request.answer()
    now = clock.read()
    pendings = [context.engine.catalog.put_topic(config, now) for config in configs]
    context.when_topics_known(connection, request, pendings[-1])
    return None


def check_topic(config: TopicConfig) -> None:
    """Raise Refused unless a client may have this topic."""
    check_topic_name(config.name)
    if is_system_topic(config.name):
        raise Refused(Code.ILLEGAL_TOPIC, config.name, f"{config.name} is a system topic")
    counts = (config.read_queue_count, config.write_queue_count)
    if not all(0 <= count <= QUEUE_COUNT_MAX for count in counts) or not any(counts):
        raise Refused(
            Code.BAD_REQUEST, config.name, f"queue counts {counts}: 1 to {QUEUE_COUNT_MAX}"
        )
    if config.perm & ~15 or config.perm == 0:
        raise Refused(Code.BAD_REQUEST, config.name, f"perm {config.perm} has no such bits")


def changes_of(text: str) -> dict[str, str]:
    """``+k=v,-k`` as ``{+k: v, -k: ""}`` (Apache: ``AttributeParser``). Raises Refused."""
    changes: dict[str, str] = {}
    for part in filter(None, (item.strip() for item in text.split(","))):
        name, _, value = part.partition("=")
        if part[0] not in "+-" or len(name) < 2:
            raise Refused(Code.BAD_REQUEST, part, "attributes are +name=value or -name")
        changes[name] = value
    return changes


def altered(known: TopicConfig | None, changes: Mapping[str, str]) -> dict[str, str]:
    """
    The attributes of *known*, ``+k`` (or ``k``) set and ``-k`` taken away. Raises Refused for
    what no topic can have. Source: ``AttributeUtil.alterCurrentAttributes``, ``TopicAttributes``.
    """
    found = dict(known.attributes) if known is not None else {}
    for change, value in changes.items():
        name = change.removeprefix("+")
        if name.startswith("-"):
            found.pop(name[1:], None)
            continue
        if name != RESERVE_TIME and name not in ATTRIBUTES:
            hint = f"unsupported key: {name}, known are {RESERVE_TIME}, {', '.join(ATTRIBUTES)}"
            raise Refused(Code.BAD_REQUEST, name, hint)
        is_number = value.removeprefix("-").isdecimal() and len(value) < 20
        if name == RESERVE_TIME and not (is_number and int(value) >= -1):
            raise Refused(Code.BAD_REQUEST, name, f"{value!r} is no number of hours, or -1")
        if name != RESERVE_TIME and value not in ATTRIBUTES[name]:
            hint = f"{value!r} is not in {', '.join(ATTRIBUTES[name])}"
            raise Refused(Code.BAD_REQUEST, name, hint)
        found[name] = value
    if known is not None:
        check_unchanged(known.attributes, found)
    return found


def check_unchanged(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Raise Refused where a topic that is there would become another kind of topic."""
    for name in UNCHANGEABLE:
        if before.get(name) != after.get(name):
            hint = f"attempt to update an unchangeable attribute. key: {name}"
            raise Refused(Code.BAD_REQUEST, name, hint)


def delete_topic(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    name = text_field(request.fields, "topic")
    if is_system_topic(name) or name in context.system_topics:
        raise Refused(Code.ILLEGAL_TOPIC, name, f"{name} is a system topic")
    pending = context.engine.catalog.delete_topic(name, clock.read())
    context.when_topics_known(connection, request, pending)
    return None


def get_topic(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    name = text_field(request.fields, "topic")
    config = context.topic(name)
    if config is None:
        raise Refused(Code.TOPIC_NOT_FOUND, name, f"no topic in this broker. topic: {name}")
    return request.answer(body=bodies.encode_body(topic_body(config)))


def get_all_topics(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    table = topic_table(context)
    count = str(len(table.topic_config_table))
    return request.answer(fields={"totalTopicNum": count}, body=bodies.encode_body(table))


def get_system_topics(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    names = sorted(context.system_topics)
    body = bodies.TopicList(topic_list=names, broker_addr=context.address)
    return request.answer(body=bodies.encode_body(body))


def topic_stats(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Offsets of every queue (202); the time of the last message where there is one."""
    name = text_field(request.fields, "topic")
    config = context.topic(name)
    if config is None:
        raise Refused(Code.TOPIC_NOT_FOUND, name, f"topic[{name}] not exist")
    items = []
    for queue_id in range(max(config.read_queue_count, config.write_queue_count)):
        low, high = context.engine.offset_range(name, queue_id)
        queue = bodies.MessageQueue(topic=name, broker_name=context.config.name, queue_id=queue_id)
        stored_ms = context.store_ms(name, queue_id, high - 1) if high > low else 0
        offsets = bodies.TopicOffset(
            min_offset=low, max_offset=high, last_update_timestamp=stored_ms
        )
        items.append((queue, offsets))
    body = bodies.encode_object_map("offsetTable", items, topicPutTps=0.0)
    return request.answer(body=body)


def topics_of_consumer(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Topics that a group has offsets or subscriptions for (343)."""
    group = text_field(request.fields, "group")
    names = {topic for topic, _ in context.engine.catalog.offsets_of(group)}
    names |= context.popped_topics(group)
    body = bodies.TopicList(topic_list=sorted(names))
    return request.answer(body=bodies.encode_body(body))


def groups_of_topic(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Groups that read a topic (300)."""
    topic = text_field(request.fields, "topic")
    groups = {
        group
        for group in context.engine.catalog.offset_groups()
        if any(name == topic for name, _ in context.engine.catalog.offsets_of(group))
    }
    groups |= {
        group
        for group in context.clients.consumer_groups()
        if context.clients.subscription(group, topic) is not None
    }
    groups |= {
        name.split("/", 2)[1]
        for name in context.engine.group_names()
        if name.startswith("rmq/") and name.split("/", 2)[2] == topic
    }
    if topic.startswith(RETRY_PREFIX):
        groups.add(topic[len(RETRY_PREFIX) :])
    return request.answer(body=bodies.encode_body({"groupList": sorted(groups)}))


def no_such_topic(request: RemotingCommand, name: str) -> RemotingCommand:
    return request.answer(
        ResponseCode.TOPIC_NOT_EXIST, remark=f"topic[{name}] not exist, apply first please!"
    )


HANDLERS: dict[int, Handler] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: update_topic,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: update_topics,
    RequestCode.GET_ALL_TOPIC_CONFIG: get_all_topics,
    RequestCode.GET_TOPIC_STATS_INFO: topic_stats,
    RequestCode.DELETE_TOPIC_IN_BROKER: delete_topic,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: get_system_topics,
    RequestCode.GET_TOPIC_CONFIG: get_topic,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: topics_of_consumer,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: groups_of_topic,
}
