"""Consumer groups as tools look at and move them: 220, 222, 308, 314, 345, 353, 402."""

import msgspec

from protocols import clock
from protocols.clock import Now
from protocols.errors import Code, Refused
from protocols.remoting import bodies
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.headers import bool_field, int_field, text_field
from protocols.remoting.private import GROUP_IS_KNOWN
from store.answers import TopicConfig
from store.handlers.clients import MODES_TABLE, subscription_body
from store.handlers.connection import Connection
from store.handlers.context import Context, Handler
from store.handlers.permissions import FORBIDDEN_TABLE, is_readable
from store.handlers.subscription_groups import require_group


def reset_offset(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """
    Move a group to a time or an offset (222).

    Who reads by offset is told with its next pull, or at once when it holds one; a topic that
    the group pops begins there anew. Source: ``resetOffsetInner`` of Apache's broker.
    """
    fields = request.fields
    group, topic = text_field(fields, "group"), text_field(fields, "topic")
    config = context.topic(topic)
    if config is None:
        raise Refused(Code.TOPIC_NOT_FOUND, topic, f"topic {topic} does not exist")
    if not bool_field(fields, GROUP_IS_KNOWN, False):
        require_group(context, group)
    chosen = _chosen(context, config, request)
    now = clock.read()
    pop_from(context, group, topic, chosen, now)
    for queue_id, offset in chosen.items():
        context.resets[group, topic, queue_id] = offset
    pending = context.engine.catalog.commit_offsets(
        [(group, topic, queue_id, offset) for queue_id, offset in chosen.items()], now
    )
    for queue_id in chosen:
        context.waits.wake((topic, queue_id))
    items = [
        (bodies.MessageQueue(topic=topic, broker_name=context.config.name, queue_id=q), offset)
        for q, offset in chosen.items()
    ]
    body = bodies.encode_object_map("offsetTable", items)
    context.when_durable(connection, request, pending, lambda _: request.answer(body=body))
    return None


def _chosen(context: Context, config: TopicConfig, request: RemotingCommand) -> dict[int, int]:
    """Queue id → the offset that the request means."""
    fields, topic = request.fields, config.name
    timestamp = int_field(fields, "timestamp", -1)
    only_queue, only_offset = int_field(fields, "queueId", -1), int_field(fields, "offset", -1)
    chosen: dict[int, int] = {}
    for queue_id in range(config.read_queue_count):
        if only_queue not in (-1, queue_id):
            continue
        low, high = context.engine.offset_range(topic, queue_id)
        if only_queue >= 0 and only_offset >= 0:
            if not low <= only_offset <= high:
                hint = f"Target offset {only_offset} not in consume queue range [{low}-{high}]"
                raise Refused(Code.INTERNAL_ERROR, topic, hint)
            chosen[queue_id] = only_offset
        elif timestamp < 0:
            chosen[queue_id] = high
        else:
            chosen[queue_id] = context.engine.offset_by_time(topic, queue_id, timestamp)
    return chosen


def pop_from(context: Context, group: str, topic: str, chosen: dict[int, int], now: Now) -> None:
    """A group that pops begins at these offsets anew; what it holds is void."""
    name = f"rmq/{group}/{topic}"
    if context.engine.group_number(name):
        context.engine.seek_group(name, {(topic, q): offset for q, offset in chosen.items()}, now)


def clone_offsets(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """One group's offsets for another (314)."""
    fields = request.fields
    source, target = text_field(fields, "srcGroup"), text_field(fields, "destGroup")
    topic = fields.get("topic", "")
    topics = {topic} if topic else {name for name, _ in context.engine.catalog.offsets_of(source)}
    rows = []
    for name in sorted(topics):
        config = context.topic(name)
        if config is None:
            raise Refused(Code.TOPIC_NOT_FOUND, name, f"topic {name} does not exist")
        for queue_id in range(config.read_queue_count):
            offset = context.done_offset(source, name, queue_id)
            if offset >= 0:
                rows.append((target, name, queue_id, offset))
    if not rows:
        return request.answer()
    pending = context.engine.catalog.commit_offsets(rows, clock.read())
    context.when_durable(connection, request, pending, lambda _: request.answer())
    return None


def subscription(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """What a group filters a topic by (345)."""
    group, topic = text_field(request.fields, "group"), text_field(request.fields, "topic")
    body: dict[str, object] = {"group": group, "topic": topic}
    known = context.clients.subscription(group, topic)
    if known is not None:
        body["subscriptionData"] = subscription_body(known)
    return request.answer(body=bodies.encode_body(body))


def correction_offsets(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """The lowest offset per queue of the groups that read a topic (308)."""
    fields = request.fields
    topic = text_field(fields, "topic")
    ignored = set(filter(None, fields.get("filterGroups", "").split(",")))
    config = context.topic(topic)
    found: dict[str, int] = {}
    for queue_id in range(config.read_queue_count if config is not None else 0):
        offsets = [
            context.done_offset(group, topic, queue_id)
            for group in context.groups_seen()
            if group not in ignored
        ]
        known = [offset for offset in offsets if offset >= 0]
        if known:
            found[str(queue_id)] = min(known)
    return request.answer(body=bodies.encode_body({"correctionOffsets": found}))


def forbid(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Whether a group may read a topic: told or asked (353)."""
    fields = request.fields
    group, topic = text_field(fields, "group"), text_field(fields, "topic")
    told = fields.get("readable", "")
    key = f"{group}@{topic}"

    def answer(_: object) -> RemotingCommand:
        body = {"group": group, "topic": topic, "readable": is_readable(context, group, topic)}
        return request.answer(body=bodies.encode_body(body))

    if not told:
        return answer(None)
    value = None if bool_field(fields, "readable") else b"1"
    pending = context.engine.catalog.put_setting(FORBIDDEN_TABLE, key, value, clock.read())
    context.when_durable(connection, request, pending, answer)
    return None


def request_modes(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Every (topic, group) that was told to pull or pop (402)."""
    table: dict[str, dict[str, object]] = {}
    for key, value in context.engine.catalog.settings(MODES_TABLE).items():
        topic, _, group = key.rpartition("@")
        mode, _, share = value.decode().partition(" ")
        table.setdefault(topic, {})[group] = {
            "topic": topic,
            "consumerGroup": group,
            "mode": mode,
            "popShareQueueNum": int(share or 0),
        }
    body = {"messageRequestModeMap": table}
    return request.answer(ResponseCode.SUCCESS, body=msgspec.json.encode(body))


HANDLERS: dict[int, Handler] = {
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: reset_offset,
    RequestCode.CLONE_GROUP_OFFSET: clone_offsets,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: subscription,
    RequestCode.QUERY_CORRECTION_OFFSET: correction_offsets,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: forbid,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: request_modes,
}
