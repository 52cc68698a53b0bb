"""
Messages in by standard codes: 10, 310, 320, and send-backs (36).

A record is built once, in the form it is stored in.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from protocols import clock
from protocols.canonical import DISPATCH_KEY, StoredMessage
from protocols.clock import Now
from protocols.errors import Code, Refused
from protocols.remoting.codes import Permission, RequestCode, ResponseCode, SysFlag
from protocols.remoting.command import RemotingCommand
from protocols.remoting.delays import (
    NAMES_OF_DELAY,
    RecallHandle,
    deliver_at_ms,
    send_back_delay_ms,
)
from protocols.remoting.handles import RETRY_PREFIX, dead_letter_topic, retry_topic
from protocols.remoting.headers import SendHeader, int_field, send_header, text_field
from protocols.remoting.records import (
    PROPERTIES_BYTES_MAX,
    decode_properties,
    decode_record,
    encode_host,
    encode_properties,
    encode_record,
    offset_message_id,
)
from protocols.remoting.sending import order_hash
from store.answers import AppendRecord, AppendResult, TopicConfig
from store.handlers import inner_batches
from store.handlers.answers import response_code
from store.handlers.appends import Seeming
from store.handlers.connection import Connection
from store.handlers.context import Context, Handler
from store.handlers.message_types import check_type, is_by_priority, queue_of_priority
from store.handlers.names import check_topic_name
from store.handlers.permissions import can, check_writing
from store.handlers.plain import (
    BATCH_COUNT_MAX,
    REGION,
    Member,
    add_apart,
    learn_lane,
    send_plain,
    split_batch,
)
from store.handlers.subscription_groups import use_group
from store.handlers.system_topics import FORBIDDEN_TO_CLIENTS, READ_WRITE, is_system_topic
from store.handlers.topics import no_such_topic
from store.late import is_addressed
from store.metadata.compacted import NO_KEY_HINT, is_compacted

Handle = Callable[[Handler, Connection, RemotingCommand], None]
"""Calls a handler and sees to what becomes of it."""

NAMES_STORE_OWNS: Final = frozenset(
    (
        "POP_CK",
        "POP_CK_OFFSET",
        "INNER_MULTI_DISPATCH",
        "INNER_MULTI_QUEUE_OFFSET",
        "CLUSTER",
        "TG_HELD",
    ),
)
"""Properties that a client may not set: dropped (semantics: Who gets a publish)."""

TRANSACTION_BITS: Final = int(SysFlag.TRANSACTION_ROLLBACK)
PREPARED: Final = int(SysFlag.TRANSACTION_PREPARED)


def send(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """One message, or a batch that is taken apart; answered when durable."""
    if request.code != RequestCode.SEND_MESSAGE and send_plain(context, connection, request):
        return None
    return _send_looked_at(context, connection, request)


def take_apart(context: Context, handle: Handle, seeming: Seeming) -> None:
    """A batch whose members are not as alike as they seemed; *handle* guards and answers."""
    batch, head = seeming.batch, seeming.head

    def send_apart(
        context: Context, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | None:
        if add_apart(context, connection, request, batch, head):
            return None
        return _send_looked_at(context, connection, request)

    handle(send_apart, seeming.connection, seeming.request)


def _send_looked_at(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """The same, the long way."""
    header = send_header(request)
    if context.is_busy:
        context.counters.busy += 1
        return request.answer(
            ResponseCode.SYSTEM_BUSY, remark="[OVERLOAD] too much is waiting for the disk"
        )
    now = clock.read()
    version = context.engine.catalog.topics_version
    config = _topic(context, header, now)
    if config is None:
        return no_such_topic(request, header.topic)
    is_made = version != context.engine.catalog.topics_version
    check_writing(context, config)
    if header.queue_id >= max(config.read_queue_count, config.write_queue_count):
        raise Refused(
            Code.BAD_REQUEST,
            header.topic,
            f"request queueId[{header.queue_id}] is illegal, {config.name} has "
            f"{config.write_queue_count}",
        )
    if header.is_batch:
        drafts = split_batch(request.body)
        if not 0 < len(drafts) <= BATCH_COUNT_MAX:
            hint = f"{len(drafts)} messages, 1 to {BATCH_COUNT_MAX}"
            raise Refused(Code.BAD_REQUEST, "batch", hint)
    else:
        drafts = [(request.body, header.flag, header.properties.encode())]
    learn_lane(context, header, config)
    batch_id = ""
    if config.attributes:
        header = _typed(context, config, header, drafts)
        if batch_id := inner_batches.batch_id(config, header):
            drafts = inner_batches.marked(drafts, batch_id)
    topic = _after_attempts(context, header, now)
    records, ids = _records(context, connection, header, topic, drafts, now)
    make = partial(_answer, context, request, header, records, ids)
    if batch_id:
        make = partial(inner_batches.answer, make, batch_id)
    told = partial(_answer_routed, context, connection, request, make) if is_made else make
    context.appends.add(connection, request, records, told, now)
    return None


def _answer_routed(
    context: Context,
    connection: Connection,
    request: RemotingCommand,
    make: Callable[[Sequence[AppendResult]], RemotingCommand],
    results: Sequence[AppendResult],
) -> None:
    """The first message of a topic: who starts a consumer next is to find it."""
    answer = make(results)
    context.when_routed(lambda: connection.answer(request, answer))


def _typed(
    context: Context, config: TopicConfig, header: SendHeader, drafts: Sequence[Member]
) -> SendHeader:
    """Check types where that is wanted; a priority chooses the queue. Raises Refused."""
    found = [dict(decode_properties(text)) for _, _, text in drafts]
    if context.config.check_message_type:
        for named in found:
            check_type(config, named)
    if is_compacted(config.attributes) and header.is_batch:  # all of its members, or none
        for named in found:
            if not named.get("KEYS", "").strip():
                raise Refused(Code.ILLEGAL_MESSAGE_KEY, config.name, NO_KEY_HINT)
    if is_by_priority(config) and (queue_id := queue_of_priority(config, found[0])) >= 0:
        return header._replace(queue_id=queue_id)
    return header


def _topic(context: Context, header: SendHeader, now: Now) -> TopicConfig | None:
    """The topic to send to, made if a producer may; None: there is none."""
    name = header.topic
    check_topic_name(name)
    if name in FORBIDDEN_TO_CLIENTS or name.startswith("rmq_sys_"):
        raise Refused(Code.FORBIDDEN, name, f"sending to the system topic [{name}] is forbidden")
    config = context.engine.catalog.topics.get(name)
    if config is not None:
        return config
    config = context.system_topics.get(name)
    if config is not None:  # registered by every broker; of the log with its first message
        context.engine.catalog.put_topic(config._replace(perm=READ_WRITE), now)
        return config
    if name.startswith(RETRY_PREFIX):
        use_group(context, name[len(RETRY_PREFIX) :], now)
        return context.topic(name)
    template = context.topic(header.default_topic)
    if template is None or not can(template, Permission.INHERIT) or is_system_topic(name):
        return None
    count = max(1, min(header.default_queue_count, template.write_queue_count))
    made = TopicConfig(name, count, count, READ_WRITE)
    context.engine.catalog.put_topic(made, now)
    return made


def _after_attempts(context: Context, header: SendHeader, now: Now) -> str:
    """
    Where a message really goes: one for a retry topic beyond its last attempt is dead.

    Java clients send to ``%RETRY%group`` themselves when 36 failed, and orderly ones what they
    have given up: who holds queue locks retries in place (Apache: ``handleRetryAndDLQ``).
    """
    if not header.topic.startswith(RETRY_PREFIX):
        return header.topic
    group = header.topic[len(RETRY_PREFIX) :]
    if context.locks.has(group, now.monotonic):
        return _dead_letter(context, group, now)
    limit = header.reconsume_max
    if limit < 0:
        limit = use_group(context, group, now).retry_max_times
    return _dead_letter(context, group, now) if header.reconsume_count > limit else header.topic


def _dead_letter(context: Context, group: str, now: Now) -> str:
    topic = dead_letter_topic(group)
    if topic not in context.engine.catalog.topics:
        context.engine.catalog.put_topic(TopicConfig(topic, 1, 1, READ_WRITE), now)
    return topic


def _records(
    context: Context,
    connection: Connection,
    header: SendHeader,
    topic: str,
    drafts: Sequence[Member],
    now: Now,
) -> tuple[list[AppendRecord], list[str]]:
    """(records, message ids) of a send."""
    bytes_max = context.config.limits.message_bytes_max
    born_host = connection.host
    queue_id = header.queue_id if topic == header.topic else -1
    keys = (DISPATCH_KEY,) if is_addressed(topic) else ()
    records: list[AppendRecord] = []
    ids: list[str] = []
    for body, flag, text in drafts:
        if len(body) > bytes_max:
            raise Refused(
                Code.MESSAGE_BODY_TOO_LARGE,
                topic,
                f"message body size: {len(body)}, max: {bytes_max}",
            )
        named = decode_properties(text)
        if topic != header.topic:  # dead: there is no next attempt to wait for
            named = tuple([pair for pair in named if pair[0] not in NAMES_OF_DELAY])
        properties, message_id = _properties(context, topic, named, now)
        facts = dict(named)
        due_ms, is_half = _held(header, facts, now)
        record = encode_record(
            topic,
            bytes(body),
            queue_id=max(queue_id, 0),
            properties_text=properties,
            born_ms=header.born_ms or now.wall_ms,
            sys_flag=header.sys_flag & ~TRANSACTION_BITS | (PREPARED if is_half else 0),
            flag=flag,
            reconsume_count=header.reconsume_count,
            born_host=born_host,
            store_host=context.store_host,
        )
        order = order_hash(facts.get("__SHARDINGKEY", ""))
        records.append(
            AppendRecord(topic, queue_id, record, keys, order, due_ms=due_ms, is_half=is_half)
        )
        ids.append(message_id)
    return records, ids


def _held(header: SendHeader, named: Mapping[str, str], now: Now) -> tuple[int, bool]:
    """(when it is due, 0: at once; whether it is a half message). Raises Refused."""
    is_half = named.get("TRAN_MSG", "").lower() == "true"
    due_ms = 0 if is_half else deliver_at_ms(named, now.wall_ms)
    if header.is_batch and (is_half or due_ms):
        hint = "members of a batch can be neither delayed nor transactional"
        raise Refused(Code.MESSAGE_CORRUPTED, header.topic, hint)
    if is_half and not named.get("PGROUP"):
        hint = "a half message names its producer group in PGROUP"
        raise Refused(Code.MESSAGE_CORRUPTED, header.topic, hint)
    return due_ms, is_half


def _properties(
    context: Context, topic: str, pairs: Sequence[tuple[str, str]], now: Now
) -> tuple[bytes, str]:
    """(properties as stored, message id). Raises Refused on what cannot be kept."""
    kept = [pair for pair in pairs if pair[0] not in NAMES_STORE_OWNS]
    message_id = next((value for name, value in pairs if name == "UNIQ_KEY"), "")
    if not message_id:
        message_id = context.ids.take(now.wall_ms).decode()
        kept.append(("UNIQ_KEY", message_id))
    kept.append(("CLUSTER", context.config.cluster))
    encoded = encode_properties(kept)
    if len(encoded) > PROPERTIES_BYTES_MAX:
        raise Refused(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            topic,
            f"message properties length: {len(encoded)}, max: {PROPERTIES_BYTES_MAX}",
        )
    return encoded, message_id


def _answer(
    context: Context,
    request: RemotingCommand,
    header: SendHeader,
    records: Sequence[AppendRecord],
    ids: Sequence[str],
    results: Sequence[AppendResult],
) -> RemotingCommand:
    """SendMessageResponseHeader; one refused member refuses a batch, which is one block."""
    for result in results:
        if result.code != Code.OK:
            return request.answer(response_code(result.code), remark=result.hint)
    first = results[0]
    host = context.store_host
    fields = {
        "msgId": ",".join([offset_message_id(host, result.position) for result in results]),
        "queueId": str(first.queue_id),
        "queueOffset": str(first.offset if first.offset >= 0 else first.position),
        "MSG_REGION": REGION,
        "TRACE_ON": "true" if context.config.trace else "false",
    }
    if not header.is_batch:
        fields["transactionId"] = ids[0]
    if first.offset < 0 and records[0].due_ms:
        broker, due_ms = context.config.name, records[0].due_ms
        fields["recallHandle"] = RecallHandle(header.topic, broker, due_ms, ids[0]).encode()
    return request.answer(fields=fields)


# ── send-back ───────────────────────────────────────────────────────────────────────────


def send_back(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """
    A consumer could not handle a message: again by ``%RETRY%group``, or dead (36).

    Source: Apache RocketMQ 5, ``AbstractSendMessageProcessor.consumerSendMsgBack``.
    """
    fields = request.fields
    group_name = text_field(fields, "group")
    now = clock.read()
    group = use_group(context, group_name, now)
    message = decode_record(context.engine.message_at(int_field(fields, "offset")))
    if group.retry_queue_nums <= 0:
        return request.answer()
    limit = int_field(fields, "maxReconsumeTimes", -1)
    limit = group.retry_max_times if limit < 0 else limit
    level = int_field(fields, "delayLevel")
    is_dead = level < 0 or message.reconsume_count >= limit
    topic = _dead_letter(context, group_name, now) if is_dead else retry_topic(group_name)
    record = retried(context, message, topic)
    origin = message.properties.get("RETRY_TOPIC", message.topic)
    context.rates.add(f"back {origin}@{group_name}", 1, now.monotonic)

    def answer(results: Sequence[AppendResult]) -> RemotingCommand:
        code = response_code(results[0].code)
        return request.answer(code, remark=results[0].hint)

    due_ms = 0
    if not is_dead:
        due_ms = now.wall_ms + send_back_delay_ms(level, message.reconsume_count)
    held = AppendRecord(topic, -1, record, due_ms=due_ms)
    context.appends.add(connection, request, [held], answer, now)
    return None


def retried(context: Context, message: StoredMessage, topic: str) -> bytes:
    """*message* as a record of its group's retry or dead-letter topic."""
    names = {name for name, _ in message.property_pairs()}
    pairs = [pair for pair in message.property_pairs() if pair[0] not in NAMES_OF_DELAY]
    if "RETRY_TOPIC" not in names:
        pairs.append(("RETRY_TOPIC", message.topic))
    if "ORIGIN_MESSAGE_ID" not in names:
        origin = offset_message_id(context.store_host, message.log_position)
        pairs.append(("ORIGIN_MESSAGE_ID", origin))
    if topic.startswith("%DLQ%"):
        pairs.append(("DLQ_ORIGIN_TOPIC", message.properties.get("RETRY_TOPIC", message.topic)))
        pairs.append(("DLQ_ORIGIN_MESSAGE_ID", message.message_id))
    return encode_record(
        topic,
        message.body,
        properties_text=encode_properties(pairs),
        born_ms=message.born_ms,
        sys_flag=message.sys_flag & ~SysFlag.BORN_HOST_V6 & ~SysFlag.STORE_HOST_V6,
        flag=message.flag,
        reconsume_count=message.reconsume_count + 1,
        born_host=encode_host(message.born_host),
        store_host=context.store_host,
    )


HANDLERS: dict[int, Handler] = {
    RequestCode.SEND_MESSAGE: send,
    RequestCode.SEND_MESSAGE_V2: send,
    RequestCode.SEND_BATCH_MESSAGE: send,
    RequestCode.CONSUMER_SEND_MSG_BACK: send_back,
}
