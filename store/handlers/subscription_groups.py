"""Consumer groups by standard codes: configuration, progress (200, 201, 207, 208, 225, 352)."""

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Final

import msgspec

from protocols import clock
from protocols.clock import Now
from protocols.errors import Code, Refused
from protocols.remoting import bodies
from protocols.remoting.codes import RequestCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.handles import RETRY_PREFIX, retry_topic
from protocols.remoting.headers import bool_field, text_field
from store.answers import TopicConfig
from store.handlers.connection import Connection
from store.handlers.context import Context, Handler
from store.handlers.names import check_group_name
from store.handlers.system_topics import READ_WRITE

TABLE = "group"
"""Table of the engine's settings that holds subscription groups, as JSON."""


PRIORITY_FACTOR: Final = "priority.factor"
"""How many of a hundred pops look at the highest queue first; ours always do."""

PRIORITY_FACTOR_MAX: Final = 100


def group_config(context: Context, name: str) -> bodies.GroupConfig | None:
    """A group's configuration; None if nobody has made or used it yet."""
    text = context.engine.catalog.settings(TABLE).get(name)
    return None if text is None else _decoded(text)


@lru_cache(maxsize=4096)
def _decoded(text: bytes) -> bodies.GroupConfig:
    """Asked for with each pull and pop; nobody changes it."""
    return msgspec.json.decode(text, type=bodies.GroupConfig)


def known_group(context: Context, name: str) -> bodies.GroupConfig | None:
    """``use_group`` of one that has all that it needs; None: look closer."""
    text = context.engine.catalog.settings(TABLE).get(name)
    if text is None:
        return None
    config = _decoded(text)
    if config.retry_queue_nums and retry_topic(name) not in context.engine.catalog.topics:
        return None
    return config


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
        if not context.config.auto_create_groups:
            hint = f"subscription group not exist, {name}"
            raise Refused(Code.CONSUMER_GROUP_NOT_FOUND, name, hint)
        config = bodies.GroupConfig(group_name=name)
        context.engine.catalog.put_setting(TABLE, name, msgspec.json.encode(config), now)
    topic = retry_topic(name)
    if config.retry_queue_nums and topic not in context.engine.catalog.topics:
        count = config.retry_queue_nums
        context.engine.catalog.put_topic(TopicConfig(topic, count, count, READ_WRITE), now)
    return config


def require_group(context: Context, name: str) -> None:
    """Raise Refused unless somebody made or used the group, at whichever door."""
    if name not in context.engine.catalog.settings(TABLE) and name not in context.groups_seen():
        raise Refused(Code.CONSUMER_GROUP_NOT_FOUND, name, f"Group {name} does not exist")


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
        known = group_config(context, config.group_name)
        config.attributes = altered(known.attributes if known else {}, config.attributes)
        text = msgspec.json.encode(config)
        pending = context.engine.catalog.put_setting(TABLE, config.group_name, text, now)
        use_group(context, config.group_name, now)
    if pending is None:
        return request.answer()
    context.when_durable(connection, request, pending, lambda _: request.answer())
    return None


def altered(known: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    """
    Attributes of a group, ``+k`` (or ``k``) set and ``-k`` taken away. Raises Refused for what no
    group can have. Source: ``SubscriptionGroupAttributes``.
    """
    found = dict(known)
    for change, value in changes.items():
        name = change.lstrip("+-")
        if name != PRIORITY_FACTOR:
            raise Refused(Code.BAD_REQUEST, name, f"unsupported key: {name}")
        if change.startswith("-"):
            found.pop(name, None)
            continue
        if not (value.isdecimal() and value.isascii() and int(value[:4]) <= PRIORITY_FACTOR_MAX):
            raise Refused(Code.BAD_REQUEST, name, f"{value!r} is no number up to 100")
        found[name] = value
    return found


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
        for name, text in context.engine.catalog.settings(TABLE).items()
    }
    version = bodies.DataVersion(timestamp=context.started.wall_ms, counter=len(table))
    body = bodies.GroupConfigTable(subscription_group_table=table, data_version=version)
    fields = {"totalGroupNum": str(len(table))}
    return request.answer(fields=fields, body=bodies.encode_body(body))


def delete_group(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Forget the configuration, what the group has popped and, if wanted, where it stood."""
    name = text_field(request.fields, "groupName")
    now = clock.read()
    for group in context.pop_groups(name):
        context.engine.drop_group(group, 0, now)
    if bool_field(request.fields, "cleanOffset"):
        context.engine.catalog.forget_offsets(name, now)
    pending = context.engine.catalog.put_setting(TABLE, name, None, now)
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
    fields = request.fields
    group = text_field(fields, "consumerGroup")
    topics = set(filter(None, [fields.get("topic", ""), *fields.get("topicList", "").split(";")]))
    items = consume_offsets(context, group, topics)
    seconds = 60.0
    start = clock.monotonic() - seconds
    count = sum(
        [
            context.rates.since(f"get {topic}@{group}", start)
            for topic in {queue.topic for queue, _ in items}
        ]
    )
    tps = round(count / seconds, 2)
    return request.answer(body=bodies.encode_object_map("offsetTable", items, consumeTps=tps))


def consume_offsets(
    context: Context, group: str, topics: Collection[str] = ()
) -> list[tuple[bodies.MessageQueue, bodies.OffsetWrapper]]:
    """Where *group* stands in every queue of what it reads, or of *topics* only."""
    committed = context.engine.catalog.offsets_of(group)
    names = {name for name, _ in committed} | context.popped_topics(group)
    if topics:
        names &= set(topics)
    items = []
    for name in sorted(names):
        config = context.topic(name)
        for queue_id in range(config.read_queue_count if config is not None else 0):
            queue = bodies.MessageQueue(
                topic=name, broker_name=context.config.name, queue_id=queue_id
            )
            items.append((queue, _progress(context, group, name, queue_id)))
    return items


def _progress(context: Context, group: str, topic: str, queue_id: int) -> bodies.OffsetWrapper:
    low, high = context.engine.offset_range(topic, queue_id)
    done, pulled = context.places(group, topic, queue_id)
    done = low if done < 0 else done
    last_ms = context.store_ms(topic, queue_id, done - 1) if low < done else 0
    return bodies.OffsetWrapper(
        broker_offset=high,
        consumer_offset=done,
        pull_offset=max(pulled, done),
        last_timestamp=last_ms,
    )


def is_retry_topic(name: str) -> bool:
    return name.startswith(RETRY_PREFIX)


HANDLERS: dict[int, Handler] = {
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: update_group,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: update_groups,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: get_group,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: get_all_groups,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: delete_group,
    RequestCode.GET_CONSUME_STATS: consume_stats,
}
