"""What tools ask about messages: by key (12), a queue's entries (321), a group's delay (303)."""

from collections.abc import Sequence
from typing import Final

from protocols import clock
from protocols.canonical import StoredMessage
from protocols.errors import Code, Refused
from protocols.remoting import bodies
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.headers import bool_field, int_field, text_field
from protocols.remoting.inner_batches import MARK, batch_of
from protocols.remoting.records import decode_record
from store.handlers.clients import subscription_body
from store.handlers.connection import Connection
from store.handlers.context import Context, Handler
from store.handlers.filters import parse_filter
from store.handlers.inner_batches import whole
from store.log.messages import tag_hash_of

QUERY_COUNT_MAX: Final = 64
"""Messages of one answer to a key query (``maxMsgsNumBatch``)."""

KEY_CHARACTERS_MAX: Final = 1024
QUEUE_ENTRIES_MAX: Final = 64
"""Entries of one answer to 321."""


# ── by key ──────────────────────────────────────────────────────────────────────────────


def query_message(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """
    Messages with a key or a unique key, stored within a time window, newest first (12).

    Source: Apache RocketMQ 5, ``QueryMessageProcessor``; there the key is looked up in an index.
    """
    fields = request.fields
    topic, key = text_field(fields, "topic"), text_field(fields, "key")
    if not 0 < len(key) <= KEY_CHARACTERS_MAX:
        hint = f"a key has 1 to {KEY_CHARACTERS_MAX} characters"
        raise Refused(Code.ILLEGAL_MESSAGE_KEY, topic, hint)
    if context.searches.is_full:
        return request.answer(ResponseCode.SYSTEM_BUSY, remark="too many searches are waiting")
    count = max(1, min(int_field(fields, "maxNum"), QUERY_COUNT_MAX))
    begin_ms = int_field(fields, "beginTimestamp")
    end_ms = int_field(fields, "endTimestamp")
    is_unique = bool_field(fields, "_UNIQUE_KEY_QUERY")
    found: dict[int, tuple[StoredMessage, bytes]] = {}
    batch: list[tuple[StoredMessage, bytes]] = []

    def take(hits: list[int]) -> bool:
        for hit in hits:
            position = context.engine.record_around(hit)
            if position < 0 or position in found:
                continue
            message = _readable(context, position)
            if message is None or message.topic != topic:
                continue
            if not begin_ms <= message.store_ms <= end_ms:
                continue
            if has_key(message, key, is_unique=is_unique):
                found[position] = (message, message.record)
            elif not batch and batch_of(message)[0] == key:
                batch.append((message, whole(context, message)))
        return len(found) >= count

    def finish() -> None:
        records = [*found.values(), *batch][:count]
        connection.answer(request, _query_answer(request, records, key))

    context.searches.start(context.engine.search(needles(key), begin_ms, end_ms), take, finish)
    return None


def needles(key: str) -> list[bytes]:
    """What a record with the key has: as unique key, first or later word, or id of its batch."""
    word = key.encode("utf-8", "replace")
    return [
        b"UNIQ_KEY\x01" + word + b"\x02",
        b"KEYS\x01" + word,
        b" " + word + b" ",
        b" " + word + b"\x02",
        MARK.encode() + b"\x01" + word + b" ",
    ]


def has_key(message: StoredMessage, key: str, *, is_unique: bool) -> bool:
    """Whether the record has it; what was found may stand in its body."""
    properties = message.properties
    if properties.get("UNIQ_KEY") == key:
        return True
    return not is_unique and key in properties.get("KEYS", "").split(" ")


def _readable(context: Context, position: int) -> StoredMessage | None:
    try:
        return decode_record(context.engine.record_at(position))
    except Refused:
        return None


def _query_answer(
    request: RemotingCommand, found: Sequence[tuple[StoredMessage, bytes]], key: str
) -> RemotingCommand:
    if not found:
        return request.answer(
            ResponseCode.QUERY_NOT_FOUND,
            remark="no message has this key in that time range",
        )
    last = found[-1][0]
    fields = {
        "indexLastUpdateTimestamp": str(last.store_ms),
        "indexLastUpdatePhyoffset": str(last.log_position),
    }
    return request.answer(fields=fields, body=b"".join([record for _, record in found]))


# ── queues and groups ───────────────────────────────────────────────────────────────────


def query_queue(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Entries of a message queue, and whether a group's filter takes them (321)."""
    fields = request.fields
    topic, queue_id = text_field(fields, "topic"), int_field(fields, "queueId")
    group = fields.get("consumerGroup", "")
    count = max(0, min(int_field(fields, "count"), QUEUE_ENTRIES_MAX))
    config = context.topic(topic)
    if config is None or not 0 <= queue_id < config.read_queue_count:
        remark = f"{queue_id}@{topic} is not exist!"
        return request.answer(ResponseCode.SYSTEM_ERROR, remark=remark)
    low, high = context.engine.offset_range(topic, queue_id)
    start = max(int_field(fields, "index"), low)
    known = context.clients.subscription(group, topic) if group else None
    wants = parse_filter(known.expression_type, known.expression) if known is not None else None
    entries = []
    for offset in range(start, min(start + count, high)):
        position = context.engine.entry_position(topic, queue_id, offset)
        try:
            record = context.engine.record_at(position)
        except Refused:
            continue
        is_match = wants is None or wants.matches is None or wants.matches(record)
        entries.append(
            {
                "physicOffset": position,
                "physicSize": len(record),
                "tagsCode": tag_hash_of(record),
                "eval": is_match,
            }
        )
    body: dict[str, object] = {
        "queueData": entries,
        "maxQueueIndex": high,
        "minQueueIndex": low,
    }
    if known is not None:
        body["subscriptionData"] = subscription_body(known)
    return request.answer(body=bodies.encode_body(body))


def time_span(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Store times of a queue's ends and of where a group stands in it (303)."""
    fields = request.fields
    topic, group = text_field(fields, "topic"), text_field(fields, "group")
    config = context.topic(topic)
    if config is None:
        raise Refused(Code.TOPIC_NOT_FOUND, topic, f"topic[{topic}] not exist")
    now_ms = clock.wall_ms()
    spans = []
    for queue_id in range(config.write_queue_count):
        low, high = context.engine.offset_range(topic, queue_id)
        done = context.done_offset(group, topic, queue_id)
        consumed_ms = context.store_ms(topic, queue_id, max(done - 1, low)) if high > low else 0
        behind_ms = context.store_ms(topic, queue_id, done) if low <= done < high else now_ms
        spans.append(
            {
                "messageQueue": bodies.MessageQueue(
                    topic=topic, broker_name=context.config.name, queue_id=queue_id
                ),
                "minTimeStamp": context.store_ms(topic, queue_id, low) if high > low else 0,
                "maxTimeStamp": context.store_ms(topic, queue_id, high - 1) if high > low else 0,
                "consumeTimeStamp": consumed_ms,
                "delayTime": now_ms - behind_ms,
            }
        )
    return request.answer(body=bodies.encode_body({"consumeTimeSpanSet": spans}))


HANDLERS: dict[int, Handler] = {
    RequestCode.QUERY_MESSAGE: query_message,
    RequestCode.QUERY_CONSUME_QUEUE: query_queue,
    RequestCode.QUERY_CONSUME_TIME_SPAN: time_span,
}
