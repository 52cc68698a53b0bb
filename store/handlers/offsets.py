"""Consumer offsets and offsets of queues by standard codes: 14, 15, 29 to 33, 43."""

import msgspec

from protocols import clock
from protocols.errors import Code, Refused
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.headers import bool_field, int_field, text_field
from protocols.remoting.inner_batches import MARK
from protocols.remoting.private import GROUP_IS_KNOWN
from protocols.remoting.records import decode_record
from store.handlers.checks import I64_MAX
from store.handlers.connection import Connection
from store.handlers.context import Context, Handler
from store.handlers.group_tools import pop_from
from store.handlers.inner_batches import whole
from store.handlers.subscription_groups import is_retry_topic, require_group

I32_MAX = 0x7FFFFFFF


def query_offset(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """
    Where a group stands in a queue (14), also if it popped so far; 22 when it has not begun.

    A group without an offset on a queue whose head is still there starts at 0, as Apache's
    does: "start from last" on a young queue sees it whole.
    """
    fields = request.fields
    group, topic = text_field(fields, "consumerGroup"), text_field(fields, "topic")
    queue_id = int_field(fields, "queueId")
    offset = context.done_offset(group, topic, queue_id)
    if offset < 0 and fields.get("setZeroIfNotFound", "true").lower() != "false":
        low, _ = context.engine.offset_range(topic, queue_id)
        if low == 0 and not is_retry_topic(topic) and context.topic(topic) is not None:
            offset = 0
    if offset < 0:
        return request.answer(
            ResponseCode.QUERY_NOT_FOUND,
            remark="not found, there is no offset of this group on this queue",
        )
    return request.answer(fields={"offset": str(offset)})


def update_offset(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Commit (15), usually oneway; void while an operator's reset waits to be picked up."""
    fields = request.fields
    group, topic = text_field(fields, "consumerGroup"), text_field(fields, "topic")
    queue_id = int_field(fields, "queueId")
    offset = int_field(fields, "commitOffset")
    if (group, topic, queue_id) in context.resets:
        return request.answer(remark="Offset has been previously reset")
    is_known = bool_field(fields, GROUP_IS_KNOWN, False)
    if not is_known:
        require_group(context, group)
    if context.topic(topic) is None:
        raise Refused(Code.TOPIC_NOT_FOUND, topic, f"topic {topic} does not exist")
    if not 0 <= queue_id <= I32_MAX or not 0 <= offset <= I64_MAX:
        raise Refused(Code.ILLEGAL_OFFSET, topic, f"queue {queue_id}, offset {offset}")
    now = clock.read()
    if is_known:
        low, high = context.engine.offset_range(topic, queue_id)
        pop_from(context, group, topic, {queue_id: min(max(offset, low), high)}, now)
    pending = context.engine.catalog.commit_offsets([(group, topic, queue_id, offset)], now)
    context.when_durable(connection, request, pending, lambda _: request.answer())
    return None


def search_offset(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """First message stored at or after a time; UPPER: the last one before or at it (29)."""
    fields = request.fields
    topic, queue_id = _queue(context, request)
    at_ms = int_field(fields, "timestamp")
    if fields.get("boundaryType", "LOWER").upper() == "UPPER":
        low, _ = context.engine.offset_range(topic, queue_id)
        offset = max(low, context.engine.offset_by_time(topic, queue_id, at_ms + 1) - 1)
    else:
        offset = context.engine.offset_by_time(topic, queue_id, at_ms)
    return request.answer(fields={"offset": str(offset)})


def max_offset(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    topic, queue_id = _queue(context, request)
    return request.answer(fields={"offset": str(context.engine.offset_range(topic, queue_id)[1])})


def min_offset(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    topic, queue_id = _queue(context, request)
    return request.answer(fields={"offset": str(context.engine.offset_range(topic, queue_id)[0])})


def earliest_time(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Store time of the first message that is kept; -1: none (32)."""
    topic, queue_id = _queue(context, request)
    low, high = context.engine.offset_range(topic, queue_id)
    stored_ms = context.store_ms(topic, queue_id, low) if high > low else -1
    return request.answer(fields={"timestamp": str(stored_ms or -1)})


def _queue(context: Context, request: RemotingCommand) -> tuple[str, int]:
    """(topic, queue id) of a request; a queue we do not have is empty."""
    return text_field(request.fields, "topic"), int_field(request.fields, "queueId")


def view_message(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """One message by its log position (33); an inner batch as a whole."""
    position = int_field(request.fields, "offset")
    try:
        record = context.engine.message_at(position)
        message = decode_record(record)
    except Refused as error:
        return request.answer(
            ResponseCode.SYSTEM_ERROR,
            remark=f"can not find message by the offset, {position}: {error.hint}",
        )
    return request.answer(body=whole(context, message) if MARK in message.properties else record)


def all_offsets(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """The text of Apache's ``consumerOffset.json`` (43)."""
    table: dict[str, dict[str, int]] = {}
    for group in context.engine.catalog.offset_groups():
        for (topic, queue_id), offset in context.engine.catalog.offsets_of(group).items():
            table.setdefault(f"{topic}@{group}", {})[str(queue_id)] = offset
    return request.answer(body=msgspec.json.encode({"offsetTable": table}))


HANDLERS: dict[int, Handler] = {
    RequestCode.QUERY_CONSUMER_OFFSET: query_offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: update_offset,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: search_offset,
    RequestCode.GET_MAX_OFFSET: max_offset,
    RequestCode.GET_MIN_OFFSET: min_offset,
    RequestCode.GET_EARLIEST_MSG_STORETIME: earliest_time,
    RequestCode.VIEW_MESSAGE_BY_ID: view_message,
    RequestCode.GET_ALL_CONSUMER_OFFSET: all_offsets,
}
