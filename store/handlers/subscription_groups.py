"""Consumer groups by standard codes: configuration, progress, reset (200, 201, 207, 208, 222…)."""

from collections.abc import Iterable

import msgspec

from protocols import clock
from protocols.clock import Now
from protocols.errors import Code, Refused
from protocols.remoting import bodies
from protocols.remoting.codes import RequestCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.handles import RETRY_PREFIX, retry_topic
from protocols.remoting.headers import int_field, text_field
from store.answers import TopicConfig
from store.handlers.connection import Connection
from store.handlers.context import Context, Handler
from store.handlers.names import check_group_name
from store.handlers.system_topics import READ_WRITE

TABLE = "group"
"""Table of the engine's settings that holds subscription groups, as JSON."""


def group_config(context: Context, name: str) -> bodies.GroupConfig | None:
    """A group's configuration; None if nobody has made or used it yet."""
    text = context.engine.settings(TABLE).get(name)
    return None if text is None else msgspec.json.decode(text, type=bodies.GroupConfig)


def use_group(context: Context, name: str, now: Now) -> bodies.GroupConfig:
    """
    A group's configuration; made with defaults on first use, with its retry topic.

    The retry topic exists before any client asks for its route, so that first retries do not
    wait for the client's next refresh.
    """
    config = group_config(context, name)
    if not context.counters.is_healthy:  # reads go on after the disk has failed
        return config or bodies.GroupConfig(group_name=name)
    if config is None:
        check_group_name(name)
        config = bodies.GroupConfig(group_name=name)
        context.engine.put_setting(TABLE, name, msgspec.json.encode(config), now)
    topic = retry_topic(name)
    if config.retry_queue_nums and topic not in context.engine.topics:
        count = config.retry_queue_nums
        context.engine.put_topic(TopicConfig(topic, count, count, READ_WRITE), now)
    return config


def update_group(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    return _update(
        context, connection, request, [bodies.decode_body(bodies.GroupConfig, request.body)]
    )


def update_groups(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    body = bodies.decode_body(bodies.GroupConfigList, request.body)
    return _update(context, connection, request, body.group_config_list)


def _update(
    context: Context,
    connection: Connection,
    request: RemotingCommand,
    configs: Iterable[bodies.GroupConfig],
) -> RemotingCommand | None:
    pending = None
    now = clock.read()
    for config in configs:
        check_group_name(config.group_name)
        text = msgspec.json.encode(config)
        pending = context.engine.put_setting(TABLE, config.group_name, text, now)
        use_group(context, config.group_name, now)
    if pending is None:
        return request.answer()
    context.when_durable(connection, request, pending, lambda _: request.answer())
    return None


def get_group(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    name = text_field(request.fields, "group")
    config = group_config(context, name)
    if config is None:
        raise Refused(Code.CONSUMER_GROUP_NOT_FOUND, name, f"no group in this broker. {name}")
    return request.answer(body=bodies.encode_body(config))


def get_all_groups(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    table = {
        name: msgspec.json.decode(text, type=bodies.GroupConfig)
        for name, text in context.engine.settings(TABLE).items()
    }
    version = bodies.DataVersion(timestamp=context.started.wall_ms, counter=len(table))
    body = bodies.GroupConfigTable(subscription_group_table=table, data_version=version)
    fields = {"totalGroupNum": str(len(table))}
    return request.answer(fields=fields, body=bodies.encode_body(body))


def delete_group(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Forget the configuration and what the group has popped."""
    name = text_field(request.fields, "groupName")
    now = clock.read()
    for group in context.pop_groups(name):
        context.engine.drop_group(group, 0, now)
    pending = context.engine.put_setting(TABLE, name, None, now)
    context.when_durable(connection, request, pending, lambda _: request.answer())
    return None


def consume_stats(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """
    Progress of a group (208): committed offsets of readers by offset.

    For topics that the group pops, the consumer offset of a queue is its first entry that is
    not done.
    """
    group = text_field(request.fields, "consumerGroup")
    topic = request.fields.get("topic", "")
    names = {name for name, _ in context.engine.offsets_of(group)} | context.popped_topics(group)
    if topic:
        names &= {topic}
    items = []
    for name in sorted(names):
        config = context.topic(name)
        if config is None:
            continue
        for queue_id in range(config.read_queue_count):
            queue = bodies.MessageQueue(
                topic=name, broker_name=context.config.name, queue_id=queue_id
            )
            items.append((queue, _progress(context, group, name, queue_id)))
    body = bodies.encode_object_map("offsetTable", items, consumeTps=0.0)
    return request.answer(body=body)


def _progress(context: Context, group: str, topic: str, queue_id: int) -> bodies.OffsetWrapper:
    low, high = context.engine.offset_range(topic, queue_id)
    offset = context.done_offset(group, topic, queue_id)
    if offset < 0:
        offset = low
    last_ms = context.store_ms(topic, queue_id, offset - 1) if low < offset else 0
    return bodies.OffsetWrapper(
        broker_offset=high, consumer_offset=offset, pull_offset=offset, last_timestamp=last_ms
    )


def reset_offset(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Move a group that reads by offset to a time or an offset (222)."""
    fields = request.fields
    group = text_field(fields, "group")
    topic = text_field(fields, "topic")
    timestamp = int_field(fields, "timestamp", -1)
    only_queue, only_offset = int_field(fields, "queueId", -1), int_field(fields, "offset", -1)
    config = context.topic(topic)
    if config is None:
        raise Refused(Code.TOPIC_NOT_FOUND, topic, f"topic {topic} does not exist")
    now = clock.read()
    chosen: dict[int, int] = {}
    for queue_id in range(config.read_queue_count):
        if only_queue not in (-1, queue_id):
            continue
        low, high = context.engine.offset_range(topic, queue_id)
        if only_offset >= 0:
            chosen[queue_id] = min(max(only_offset, low), high)
        elif timestamp < 0:
            chosen[queue_id] = high
        else:
            chosen[queue_id] = context.engine.offset_by_time(topic, queue_id, timestamp)
    offsets = [(group, topic, queue_id, offset) for queue_id, offset in chosen.items()]
    items = [
        (bodies.MessageQueue(topic=topic, broker_name=context.config.name, queue_id=q), offset)
        for q, offset in chosen.items()
    ]
    for queue_id, offset in chosen.items():
        context.resets[group, topic, queue_id] = offset
    pending = context.engine.commit_offsets(offsets, now)
    body = bodies.encode_object_map("offsetTable", items)
    context.when_durable(connection, request, pending, lambda _: request.answer(body=body))
    return None


def is_retry_topic(name: str) -> bool:
    return name.startswith(RETRY_PREFIX)


HANDLERS: dict[int, Handler] = {
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: update_group,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: update_groups,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: get_group,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: get_all_groups,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: delete_group,
    RequestCode.GET_CONSUME_STATS: consume_stats,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: reset_offset,
}
