"""
Messages of ``apache.rocketmq.v2`` and ours, both ways.

Stored names are those of RocketMQ (``MessageConst``), so remoting clients and Apache tools read
what gRPC clients send, and the reverse.
"""

import hashlib
import zlib
from typing import Final, cast

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from protocols.canonical import Delivery, Head, Message, StoredMessage, told_ms
from protocols.errors import Code, Refused
from protocols.grpc.properties import is_settable, visible_name
from protocols.grpc.v2 import definition_pb2 as v2
from protocols.stored_names import number_of

SUBJECT: Final = "TG_SUBJECT"
EXPIRES_AT: Final = "TG_EXPIRES_AT"
SHARDING_KEY: Final = "__SHARDINGKEY"
TRACE_CONTEXT: Final = "TRACE_CONTEXT"
STORED_PRIORITY: Final = "TG_PRIORITY"
ROCKETMQ_PRIORITY: Final = "_SYS_MSG_PRIORITY_"
DELIVER_AT: Final = "TIMER_DELIVER_MS"
TRANSACTION: Final = "TRAN_MSG"
CHECK_AFTER: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"

ORIGINS: Final = (
    ("DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID"),
    ("TG_ORIGIN_TOPIC", "TG_ORIGIN_ID"),
)
"""Where a dead letter came from: as Apache brokers write it, and as gateways do."""

COMPRESSED_FLAG: Final = 0x1
"""sysFlag: the body is compressed; bits 8 to 10 name how (0, 3: zlib)."""
COMPRESSION_MASK: Final = 0x700
ZLIB_TYPES: Final = (0x000, 0x300)

_CODES: Final = frozenset(v2.Code.values())

HEADS_MAX: Final = 4096
"""Heads kept per gateway; beyond, the oldest goes."""


def milliseconds(duration: Duration) -> int:
    return duration.seconds * 1000 + duration.nanos // 1_000_000


def duration_of(ms: int) -> Duration:
    return Duration(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)


def timestamp_of(ms: int) -> Timestamp:
    return Timestamp(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)


def status(code: int, message: str = "") -> v2.Status:
    """Never an empty text: clients show it."""
    known = code if code in _CODES else int(Code.INTERNAL_SERVER_ERROR)
    return v2.Status(code=cast("v2.Code", known), message=message or v2.Code.Name(known))


OK: Final = status(Code.OK)


def message_type(message: v2.Message) -> v2.MessageType:
    """By its properties, not by what the client calls it (proxy: ``TopicMessageType.parse``)."""
    system = message.system_properties
    if system.message_type == v2.TRANSACTION:
        return v2.TRANSACTION
    if system.HasField("delivery_timestamp"):
        return v2.DELAY
    if system.HasField("message_group"):
        return v2.FIFO
    if system.HasField("priority"):
        return v2.PRIORITY
    return v2.NORMAL


class Heads:
    """One head object per address, tag, group and priority, so that decisions are cached."""

    def __init__(self) -> None:
        self._heads: dict[tuple[str, str, str, str, int, bool], Head] = {}

    def get(self, message: v2.Message, *, is_by_priority: bool = False) -> Head:
        """*is_by_priority*: the message queues of the topic are priorities."""
        system, topic = message.system_properties, message.topic.name
        subject = message.user_properties.get(SUBJECT, "")
        if not subject.startswith(topic + "/"):
            subject = topic
        priority = system.priority if system.HasField("priority") else -1
        key = (topic, subject, system.tag, system.message_group, priority, is_by_priority)
        head = self._heads.get(key)
        if head is None:
            if len(self._heads) >= HEADS_MAX:
                del self._heads[next(iter(self._heads))]
            head = self._heads[key] = Head(
                subject=subject,
                topic=topic,
                tag=system.tag,
                order_key=system.message_group,
                is_fifo=bool(system.message_group),
                priority=priority,
                message_queue_id=priority if is_by_priority else -1,
            )
        return head


def message_in(
    message: v2.Message, head: Head, *, body_bytes_max: int, producer_group: str = ""
) -> Message:
    """
    A message to send; its properties were validated.

    *producer_group*: of a transactional message. A compressed body is stored plain, so that clients
    of every protocol can read it. Raises Refused if it cannot be inflated within *body_bytes_max*.
    """
    system = message.system_properties
    pairs = [(name, value) for name, value in message.user_properties.items() if is_settable(name)]
    if system.trace_context:
        pairs.append((TRACE_CONTEXT, system.trace_context))
    if system.HasField("priority"):
        pairs.append((ROCKETMQ_PRIORITY, str(system.priority)))
    expires = message.user_properties.get(EXPIRES_AT, "")
    is_half = message_type(message) == v2.TRANSACTION
    deliver_at = system.HasField("delivery_timestamp") and not is_half
    recovery_s = system.orphaned_transaction_recovery_duration.seconds
    if is_half and recovery_s:
        pairs.append((CHECK_AFTER, str(recovery_s)))
    body = message.body
    if system.body_encoding == v2.GZIP:
        body = inflate(body, body_bytes_max=body_bytes_max)
    return Message(
        head,
        body,
        tuple(pairs),
        message_id=system.message_id,
        keys=" ".join(system.keys),
        expires_at_ms=max(number_of(expires), 0),
        deliver_at_ms=system.delivery_timestamp.ToMilliseconds() if deliver_at else 0,
        born_ms=told_ms(system.born_timestamp.ToMilliseconds()),
        producer_group=producer_group if is_half else "",
    )


def message_out(delivery: Delivery) -> v2.Message:
    """What a consumer gets."""
    stored = delivery.message
    properties = stored.properties
    message = v2.Message(topic=v2.Resource(name=public_topic(stored)), body=stored.body)
    visible = message.user_properties
    for name, value in properties.items():
        if shown := visible_name(name):
            visible[shown] = value
    system = message.system_properties
    system.message_id = stored.message_id or f"{stored.log_position:032X}"
    system.keys.extend(properties.get("KEYS", "").split())
    system.body_digest.type = v2.MD5
    system.body_digest.checksum = (
        hashlib.md5(stored.body, usedforsecurity=False).hexdigest().upper()
    )
    system.body_encoding = v2.GZIP if is_zlib(stored) else v2.IDENTITY
    system.message_type = stored_type(properties)
    system.born_timestamp.CopyFrom(timestamp_of(stored.born_ms))
    system.born_host = stored.born_host
    system.store_timestamp.CopyFrom(timestamp_of(stored.store_ms))
    system.store_host = stored.broker
    system.receipt_handle = delivery.handle.encode()
    system.queue_id = max(stored.queue_id, 0)
    system.queue_offset = stored.queue_offset
    system.delivery_attempt = delivery.attempt
    _optional_out(system, properties)
    return message


def _optional_out(system: v2.SystemProperties, properties: dict[str, str]) -> None:
    if tag := properties.get("TAGS"):
        system.tag = tag
    if group := properties.get(SHARDING_KEY):
        system.message_group = group
    if trace := properties.get(TRACE_CONTEXT):
        system.trace_context = trace
    priority = properties.get(ROCKETMQ_PRIORITY) or properties.get(STORED_PRIORITY, "")
    if 0 <= (level := number_of(priority)) < 1 << 31:
        system.priority = level
    if (deliver := number_of(properties.get(DELIVER_AT, ""))) >= 0:
        system.delivery_timestamp.CopyFrom(timestamp_of(deliver))
    for topic_name, id_name in ORIGINS:
        if origin := properties.get(topic_name):
            system.dead_letter_queue.topic = origin
            system.dead_letter_queue.message_id = properties.get(id_name, "")


def public_topic(stored: StoredMessage) -> str:
    """The topic as its clients know it: without ``<tenant>%``."""
    if stored.topic.startswith("%"):
        return stored.topic
    return stored.topic.rpartition("%")[2]


def is_zlib(stored: StoredMessage) -> bool:
    """Whether a client can undo the compression: v2 has GZIP only, which SDKs sniff for zlib."""
    is_compressed = bool(stored.sys_flag & COMPRESSED_FLAG)
    return is_compressed and stored.sys_flag & COMPRESSION_MASK in ZLIB_TYPES


def stored_type(properties: dict[str, str]) -> v2.MessageType:
    if properties.get(TRANSACTION) == "true":
        return v2.TRANSACTION
    if DELIVER_AT in properties:
        return v2.DELAY
    if SHARDING_KEY in properties:
        return v2.FIFO
    return v2.PRIORITY if ROCKETMQ_PRIORITY in properties else v2.NORMAL


def inflate(body: bytes, *, body_bytes_max: int) -> bytes:
    """Undo zlib or gzip. Raises Refused(MESSAGE_CORRUPTED), also beyond *body_bytes_max*."""
    try:
        engine = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
        plain = engine.decompress(body, body_bytes_max + 1)
    except zlib.error as error:
        raise Refused(Code.MESSAGE_CORRUPTED, "body", f"not zlib or gzip: {error}") from error
    if len(plain) > body_bytes_max:
        raise Refused(Code.MESSAGE_BODY_TOO_LARGE, "body", f"over {body_bytes_max} bytes inflated")
    return plain
