"""Between remoting and the canonical types: codes, sends, filters, groups, routes. Pure."""

import struct
import zlib
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Final, NamedTuple

from protocols import sql92
from protocols.canonical import Head, Message, SendResult, StoredMessage
from protocols.errors import Code, Refused
from protocols.groups import GroupSpec, Read, Start
from protocols.pipeline import TopicInfo
from protocols.remoting.bodies import BrokerData, ConsumerData, QueueData, RouteData
from protocols.remoting.codes import Permission, ResponseCode, SysFlag
from protocols.remoting.command import RemotingCommand
from protocols.remoting.delays import deliver_at_ms
from protocols.remoting.handles import RETRY_PREFIX, dead_letter_topic
from protocols.remoting.headers import SendHeader
from protocols.remoting.records import decode_properties, encode_host, offset_message_id
from protocols.stored_names import subject_of

TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
"""Clients write there what became of their messages; no subscription of a filter gets it."""

RETRY_BROKER: Final = "tidegate-retry"
"""Broker name under which clients see the queues of ``%RETRY%group``."""

RETRY_QUEUE_COUNT: Final = 16
"""Queues of ``%RETRY%group``: clients share them out, and each must get one."""

BATCH_COUNT_MAX: Final = 10_000
_BATCH_HEAD: Final = struct.Struct(">IIIiI")
_U16: Final = struct.Struct(">H")
_COMPRESSION: Final = 0x700
_KEPT_FLAGS: Final = int(SysFlag.COMPRESSED | SysFlag.MULTI_TAGS | _COMPRESSION)
_COMPRESSED: Final = int(SysFlag.COMPRESSED)
_ID_NAME: Final = "UNIQ_KEY\x01"

RESPONSE_OF: Final[Mapping[Code, ResponseCode]] = {
    Code.OK: ResponseCode.SUCCESS,
    Code.MULTIPLE_RESULTS: ResponseCode.SYSTEM_ERROR,
    Code.BAD_REQUEST: ResponseCode.INVALID_PARAMETER,
    Code.ILLEGAL_ACCESS_POINT: ResponseCode.INVALID_PARAMETER,
    Code.ILLEGAL_TOPIC: ResponseCode.INVALID_PARAMETER,
    Code.ILLEGAL_CONSUMER_GROUP: ResponseCode.INVALID_PARAMETER,
    Code.ILLEGAL_MESSAGE_TAG: ResponseCode.MESSAGE_ILLEGAL,
    Code.ILLEGAL_MESSAGE_KEY: ResponseCode.MESSAGE_ILLEGAL,
    Code.ILLEGAL_MESSAGE_GROUP: ResponseCode.MESSAGE_ILLEGAL,
    Code.ILLEGAL_MESSAGE_PROPERTY_KEY: ResponseCode.MESSAGE_ILLEGAL,
    Code.INVALID_TRANSACTION_ID: ResponseCode.TRANSACTION_FAILED,
    Code.ILLEGAL_MESSAGE_ID: ResponseCode.MESSAGE_ILLEGAL,
    Code.ILLEGAL_FILTER_EXPRESSION: ResponseCode.SUBSCRIPTION_PARSE_FAILED,
    Code.ILLEGAL_INVISIBLE_TIME: ResponseCode.INVALID_PARAMETER,
    Code.ILLEGAL_DELIVERY_TIME: ResponseCode.MESSAGE_ILLEGAL,
    Code.INVALID_RECEIPT_HANDLE: ResponseCode.NO_MESSAGE,
    Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE: ResponseCode.MESSAGE_ILLEGAL,
    Code.UNRECOGNIZED_CLIENT_TYPE: ResponseCode.INVALID_PARAMETER,
    Code.MESSAGE_CORRUPTED: ResponseCode.MESSAGE_ILLEGAL,
    Code.CLIENT_ID_REQUIRED: ResponseCode.INVALID_PARAMETER,
    Code.ILLEGAL_POLLING_TIME: ResponseCode.INVALID_PARAMETER,
    Code.ILLEGAL_OFFSET: ResponseCode.PULL_OFFSET_MOVED,
    Code.UNAUTHORIZED: ResponseCode.NO_PERMISSION,
    Code.PAYMENT_REQUIRED: ResponseCode.NO_PERMISSION,
    Code.FORBIDDEN: ResponseCode.NO_PERMISSION,
    Code.NOT_FOUND: ResponseCode.QUERY_NOT_FOUND,
    Code.MESSAGE_NOT_FOUND: ResponseCode.NO_MESSAGE,
    Code.TOPIC_NOT_FOUND: ResponseCode.TOPIC_NOT_EXIST,
    Code.CONSUMER_GROUP_NOT_FOUND: ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    Code.OFFSET_NOT_FOUND: ResponseCode.QUERY_NOT_FOUND,
    Code.REQUEST_TIMEOUT: ResponseCode.SYSTEM_BUSY,
    Code.PAYLOAD_TOO_LARGE: ResponseCode.MESSAGE_ILLEGAL,
    Code.MESSAGE_BODY_TOO_LARGE: ResponseCode.MESSAGE_ILLEGAL,
    Code.MESSAGE_BODY_EMPTY: ResponseCode.MESSAGE_ILLEGAL,
    Code.PRECONDITION_FAILED: ResponseCode.ILLEGAL_OPERATION,
    Code.TOO_MANY_REQUESTS: ResponseCode.SYSTEM_BUSY,
    Code.LITE_TOPIC_QUOTA_EXCEEDED: ResponseCode.SYSTEM_BUSY,
    Code.REQUEST_HEADER_FIELDS_TOO_LARGE: ResponseCode.MESSAGE_ILLEGAL,
    Code.MESSAGE_PROPERTIES_TOO_LARGE: ResponseCode.MESSAGE_ILLEGAL,
    Code.INTERNAL_ERROR: ResponseCode.SYSTEM_ERROR,
    Code.INTERNAL_SERVER_ERROR: ResponseCode.SYSTEM_ERROR,
    Code.HA_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    Code.NOT_IMPLEMENTED: ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    Code.PROXY_TIMEOUT: ResponseCode.SERVICE_NOT_AVAILABLE,
    Code.MASTER_PERSISTENCE_TIMEOUT: ResponseCode.SERVICE_NOT_AVAILABLE,
    Code.SLAVE_PERSISTENCE_TIMEOUT: ResponseCode.SERVICE_NOT_AVAILABLE,
    Code.UNSUPPORTED: ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    Code.VERSION_UNSUPPORTED: ResponseCode.VERSION_NOT_SUPPORTED,
    Code.VERIFY_FIFO_MESSAGE_UNSUPPORTED: ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    Code.FAILED_TO_CONSUME_MESSAGE: ResponseCode.SYSTEM_ERROR,
}
"""How each outcome is told to a Java client; a producer retries 2, 14, 16 and 17 elsewhere."""


def refusal(command: RemotingCommand, error: Refused) -> RemotingCommand:
    """In the protocol's own words."""
    return command.answer(RESPONSE_OF[error.code], remark=str(error))


# ── send ────────────────────────────────────────────────────────────────────────────────


class Heads:
    """Heads of one connection, so that the pipeline decides once for many messages."""

    HEADS_MAX: Final = 1024

    def __init__(self) -> None:
        self._heads: dict[tuple[str, str, str, str, str, int, int], Head] = {}

    def get(
        self,
        topic: str,
        subject: str,
        tag: str,
        group: str,
        broker: str,
        queue_id: int,
        priority: int = -1,
    ) -> Head:
        """
        A *priority* chooses the message queue, at any broker; so does the *queue_id* of clients
        that name no broker (older than ``bname``, or not Java's).
        """
        if priority >= 0:
            broker, queue_id = "", priority
        key = (topic, subject, tag, group, broker, queue_id, priority)
        head = self._heads.get(key)
        if head is None:
            if len(self._heads) >= self.HEADS_MAX:
                self._heads.clear()
            head = self._heads[key] = Head(
                subject=subject,
                topic=topic,
                tag=tag,
                order_key=group,
                is_fifo=bool(group),
                broker=broker,
                message_queue_id=max(-1, queue_id),
                priority=priority,
                queues=() if topic == TRACE_TOPIC else None,
            )
        return head

    def fit(
        self, messages: Sequence[Message], info: TopicInfo, *, is_numbered: bool
    ) -> list[Message]:
        """
        To a topic that was just made: its client took the template's queues, which it may not
        have. Numbered queues keep their numbers when they take nothing or are gone.
        """
        needed = Permission.WRITE if is_numbered else 0
        known = {
            (broker, queue_id)
            for broker, queue_id, permission in info.queues
            if permission & needed == needed
        }
        return [
            message
            if (message.head.broker, message.head.message_queue_id) in known
            else message._replace(head=self._anywhere(message.head))
            for message in messages
        ]

    def _anywhere(self, head: Head) -> Head:
        return self.get(head.topic, head.subject, head.tag, head.order_key, "", -1)


def to_messages(
    header: SendHeader, body: bytes, heads: Heads, *, now_ms: int, body_bytes_max: int
) -> list[Message]:
    """The messages of one send (10, 310) or client batch (320). Raises Refused."""
    if not header.is_batch:
        facts = body, header.properties, header.flag
        return [_to_message(header, *facts, heads, now_ms, body_bytes_max)]
    messages: list[Message] = []
    rest: str | None = None
    last_flag = 0
    for part, text, flag in _split_batch(body):
        before, message_id, behind = _id_apart(text)
        if message_id and flag == last_flag and rest == before + behind:
            message = _like(messages[-1], part, message_id, header, body_bytes_max)
        else:
            message = _to_message(header, part, text, flag, heads, now_ms, body_bytes_max)
            rest, last_flag = before + behind, flag
        messages.append(message)
    return messages


def _id_apart(text: str) -> tuple[str, str, str]:
    """Properties around the message id; none: it has none, or more than one."""
    before, name, value = text.partition(_ID_NAME)
    message_id, _, behind = value.partition("\x02")
    is_name = name and (not before or before[-1] == "\x02") and _ID_NAME not in behind
    return (before, message_id, behind) if is_name and "\x01" not in message_id else (text, "", "")


def _like(
    message: Message, body: bytes, message_id: str, header: SendHeader, body_bytes_max: int
) -> Message:
    """A member of a batch that differs in no more from the one before: most do not."""
    plain, sys_flag = plain_body(body, header.sys_flag & _KEPT_FLAGS, body_bytes_max)
    if sys_flag != message.sys_flag:
        return message._replace(body=plain, message_id=message_id, sys_flag=sys_flag)
    return Message._make((message[0], plain, message[2], message_id, *message[4:]))


def _split_batch(body: bytes) -> list[tuple[bytes, str, int]]:
    """``i32 total, magic 0, crc 0, flag, i32 n + body, i16 n + properties`` back to back."""
    parts: list[tuple[bytes, str, int]] = []
    at = 0
    try:
        while at < len(body):
            total, _, _, flag, size = _BATCH_HEAD.unpack_from(body, at)
            start = at + _BATCH_HEAD.size
            (text_size,) = _U16.unpack_from(body, start + size)
            end = start + size + 2 + text_size
            if end != at + total or end > len(body) or len(parts) >= BATCH_COUNT_MAX:
                raise Refused(Code.MESSAGE_CORRUPTED, "batch", f"damaged at byte {at}")
            text = body[start + size + 2 : end].decode()
            parts.append((body[start : start + size], text, flag))
            at = end
    except (struct.error, UnicodeDecodeError) as error:
        raise Refused(Code.MESSAGE_CORRUPTED, "batch", str(error)) from error
    if not parts:
        raise Refused(Code.MESSAGE_BODY_EMPTY, "batch", "it has no messages")
    return parts


def _to_message(
    header: SendHeader,
    body: bytes,
    text: str,
    flag: int,
    heads: Heads,
    now_ms: int,
    body_bytes_max: int,
) -> Message:
    pairs = decode_properties(text)
    named = dict(pairs)
    is_half = named.get("TRAN_MSG", "").lower() == "true"
    due_ms = 0 if is_half else deliver_at_ms(named, now_ms)
    if header.is_batch and (is_half or due_ms):
        hint = "members of a batch can be neither delayed nor transactional"
        raise Refused(Code.MESSAGE_CORRUPTED, header.topic, hint)
    body, sys_flag = plain_body(body, header.sys_flag & _KEPT_FLAGS, body_bytes_max)
    head = heads.get(
        header.topic,
        subject_of("", named.get("originMqttTopic", ""), header.topic),
        named.get("TAGS", ""),
        named.get("__SHARDINGKEY", ""),
        header.broker,
        header.queue_id,
        priority_of(named) if not (is_half or due_ms or "__SHARDINGKEY" in named) else -1,
    )
    return Message(
        head,
        body,
        tuple(pair for pair in pairs if pair[0] not in _TAKEN),
        message_id=named.get("UNIQ_KEY", ""),
        keys=named.get("KEYS", ""),
        deliver_at_ms=due_ms,
        born_ms=header.born_ms,
        sys_flag=sys_flag,
        producer_group=(named.get("PGROUP") or header.producer_group) if is_half else "",
        flag=flag,
    )


def priority_of(named: Mapping[str, str]) -> int:
    """``Message.getPriority``; -1: none."""
    text = named.get("_SYS_MSG_PRIORITY_", "")
    return int(text[:9]) if text.isascii() and text.isdigit() else -1


_TAKEN: Final = frozenset(
    (
        "TAGS",
        "KEYS",
        "UNIQ_KEY",
        "__SHARDINGKEY",
        "TRAN_MSG",
        "PGROUP",
        "DELAY",
        "TIMER_DELIVER_MS",
        "TIMER_DELAY_MS",
        "TIMER_DELAY_SEC",
    )
)
"""Properties that became fields of the head or the message."""


ZLIB_OR_GZIP: Final = zlib.MAX_WBITS | 32
"""Window bits that let zlib look at the header."""


def plain_body(body: bytes, sys_flag: int, bytes_max: int) -> tuple[bytes, int]:
    """
    The body unpacked and the flags without the compression, so that every protocol reads it.

    Java producers pack bodies from 4 KiB on with zlib, gRPC's behind Apache's proxy with gzip under
    the same flag. LZ4 and ZSTD stay as they are: only RocketMQ clients unpack them. Raises Refused.
    """
    if not sys_flag & _COMPRESSED:
        if len(body) > bytes_max:
            raise Refused(Code.MESSAGE_BODY_TOO_LARGE, "body", f"at most {bytes_max} bytes")
        return body, sys_flag
    if sys_flag & _COMPRESSION not in (0, SysFlag.COMPRESSION_ZLIB):
        return body, sys_flag
    unpacker = zlib.decompressobj(ZLIB_OR_GZIP)
    try:
        plain = unpacker.decompress(body, bytes_max)
    except zlib.error as error:
        raise Refused(Code.MESSAGE_CORRUPTED, "body", f"is no zlib stream: {error}") from error
    if not unpacker.eof and not unpacker.unconsumed_tail:
        raise Refused(Code.MESSAGE_CORRUPTED, "body", "is a zlib stream that ends too early")
    if not unpacker.eof:
        raise Refused(Code.MESSAGE_BODY_TOO_LARGE, "body", f"at most {bytes_max} bytes")
    return plain, sys_flag & ~(_COMPRESSED | _COMPRESSION)


def send_answer_fields(
    results: Sequence[SendResult], address: str, *, is_traced: bool
) -> dict[str, str]:
    """Of a send that was stored as a whole."""
    host = encode_host(address)
    first = results[0]
    return {
        "msgId": ",".join([offset_message_id(host, result.log_position) for result in results]),
        "queueId": str(first.queue_id),
        "queueOffset": str(first.queue_offset),
        "transactionId": first.message_id,
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true" if is_traced else "false",
    }


# ── consume ─────────────────────────────────────────────────────────────────────────────


def parse_tags(expression: str) -> tuple[str, ...]:
    """``A || B`` as tags; ``*`` and an empty text as none, which means all."""
    tags = tuple(part.strip() for part in expression.split("||"))
    tags = tuple(dict.fromkeys(tag for tag in tags if tag))
    return () if "*" in tags else tags


class Wants(NamedTuple):
    """A filter as the pipeline takes it."""

    tags: tuple[str, ...] = ()
    sql: str = ""

    def matches(self, message: StoredMessage) -> bool:
        """Whether a message read by offset passes."""
        if self.sql:
            return sql92.parse(self.sql).matches(message.properties)
        return not self.tags or message.properties.get("TAGS", "") in self.tags


def parse_filter(kind: str, expression: str) -> Wants:
    """What a subscription asks for. Raises Refused(ILLEGAL_FILTER_EXPRESSION)."""
    if kind in ("", "TAG"):
        return Wants(parse_tags(expression))
    if kind == "SQL92":
        return Wants(sql=sql92.parse(expression).text if expression else "")
    raise Refused(Code.ILLEGAL_FILTER_EXPRESSION, kind[:20], "filters are TAG or SQL92")


def qualified(tenant: str, name: str) -> str:
    """A topic or group in its tenant's namespace."""
    return f"{tenant}%{name}" if tenant else name


def start_of(consumer: ConsumerData, new_groups: str) -> Start:
    """Where a group begins that nobody has read with before."""
    if new_groups != "client":
        return Start(new_groups)
    is_last = consumer.consume_from_where == "CONSUME_FROM_LAST_OFFSET"
    return Start.END if is_last else Start.EARLIEST


def group_spec(
    tenant: str, group: str, info: TopicInfo, *, attempts_max: int, start: Start
) -> GroupSpec:
    """The group of a consumer group on one topic, the same for every protocol of RocketMQ's."""
    bare = info.name.removeprefix(f"{tenant}%") if tenant else info.name
    return GroupSpec(
        name=f"rmq/{qualified(tenant, group)}/{qualified(tenant, bare)}",
        reads=(Read(topic=bare),),
        attempts_max=attempts_max,
        dead_letter_topic=dead_letter_topic(qualified(tenant, group)),
        start=start,
        cluster=info.cluster,
    )


# ── routes ──────────────────────────────────────────────────────────────────────────────


def route_of(info: TopicInfo, address: str) -> RouteData:
    """Every broker of the topic under its own name, all at the gateway's *address*."""
    permissions: dict[str, list[int]] = {}
    for broker, _, permission in info.queues:
        permissions.setdefault(broker, []).append(permission)
    return RouteData(
        queue_datas=[
            QueueData(
                broker_name=broker,
                read_queue_nums=_count(found, Permission.READ),
                write_queue_nums=_count(found, Permission.WRITE),
                perm=reduce(or_, found),
            )
            for broker, found in sorted(permissions.items())
        ],
        broker_datas=[
            BrokerData(cluster=info.cluster, broker_name=broker, broker_addrs={0: address})
            for broker in sorted(permissions)
        ],
    )


def _count(permissions: Sequence[int], bit: Permission) -> int:
    """Queues that may be read, or written; all of them where none may: that is for all."""
    return sum([bool(one & bit) for one in permissions]) or len(permissions)


def retry_route(address: str) -> RouteData:
    """
    Of ``%RETRY%group``: there from the first question, so that retries never wait for a route.

    Messages that came back are read here, each client's own in any of the queues it got.
    """
    queue = QueueData(
        broker_name=RETRY_BROKER,
        read_queue_nums=RETRY_QUEUE_COUNT,
        write_queue_nums=RETRY_QUEUE_COUNT,
        perm=int(Permission.READ | Permission.WRITE),
    )
    broker = BrokerData(cluster="", broker_name=RETRY_BROKER, broker_addrs={0: address})
    return RouteData(queue_datas=[queue], broker_datas=[broker])


def is_retry_topic(topic: str) -> bool:
    return topic.startswith(RETRY_PREFIX)
