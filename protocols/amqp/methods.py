"""
Every AMQP 0-9-1 method as data: its id, its arguments, their wire types.

The id is ``class << 16 | method``. Wire types, one letter per argument: ``o`` octet, ``h`` u16,
``i`` u32, ``q`` u64, ``s`` short string, ``S`` long string, ``b`` bit (neighbours share an
octet), ``F`` field table; ``H`` and ``Z`` are a reserved u16 and short string that have no
attribute. Source: amqp0-9-1.extended.xml (RabbitMQ's).
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from protocols.amqp.fields import Table


class ConnectionStart(NamedTuple):
    version_major: int
    version_minor: int
    server_properties: Table
    mechanisms: bytes
    locales: bytes


class ConnectionStartOk(NamedTuple):
    client_properties: Table
    mechanism: str
    response: bytes
    locale: str


class ConnectionSecure(NamedTuple):
    challenge: bytes


class ConnectionSecureOk(NamedTuple):
    response: bytes


class ConnectionTune(NamedTuple):
    channel_max: int
    frame_max: int
    heartbeat: int


class ConnectionTuneOk(NamedTuple):
    channel_max: int
    frame_max: int
    heartbeat: int


class ConnectionOpen(NamedTuple):
    virtual_host: str
    insist: bool = False


class ConnectionOpenOk(NamedTuple):
    pass


class ConnectionClose(NamedTuple):
    reply_code: int
    reply_text: str
    class_id: int
    method_id: int


class ConnectionCloseOk(NamedTuple):
    pass


class ConnectionBlocked(NamedTuple):
    reason: str


class ConnectionUnblocked(NamedTuple):
    pass


class ConnectionUpdateSecret(NamedTuple):
    new_secret: bytes
    reason: str


class ConnectionUpdateSecretOk(NamedTuple):
    pass


class ChannelOpen(NamedTuple):
    pass


class ChannelOpenOk(NamedTuple):
    channel_id: bytes = b""


class ChannelFlow(NamedTuple):
    active: bool


class ChannelFlowOk(NamedTuple):
    active: bool


class ChannelClose(NamedTuple):
    reply_code: int
    reply_text: str
    class_id: int
    method_id: int


class ChannelCloseOk(NamedTuple):
    pass


class ExchangeDeclare(NamedTuple):
    exchange: str
    type: str
    passive: bool
    durable: bool
    auto_delete: bool
    internal: bool
    nowait: bool
    arguments: Table


class ExchangeDeclareOk(NamedTuple):
    pass


class ExchangeDelete(NamedTuple):
    exchange: str
    if_unused: bool
    nowait: bool


class ExchangeDeleteOk(NamedTuple):
    pass


class ExchangeBind(NamedTuple):
    destination: str
    source: str
    routing_key: str
    nowait: bool
    arguments: Table


class ExchangeBindOk(NamedTuple):
    pass


class ExchangeUnbind(NamedTuple):
    destination: str
    source: str
    routing_key: str
    nowait: bool
    arguments: Table


class ExchangeUnbindOk(NamedTuple):
    pass


class QueueDeclare(NamedTuple):
    queue: str
    passive: bool
    durable: bool
    exclusive: bool
    auto_delete: bool
    nowait: bool
    arguments: Table


class QueueDeclareOk(NamedTuple):
    queue: str
    message_count: int
    consumer_count: int


class QueueBind(NamedTuple):
    queue: str
    exchange: str
    routing_key: str
    nowait: bool
    arguments: Table


class QueueBindOk(NamedTuple):
    pass


class QueuePurge(NamedTuple):
    queue: str
    nowait: bool


class QueuePurgeOk(NamedTuple):
    message_count: int


class QueueDelete(NamedTuple):
    queue: str
    if_unused: bool
    if_empty: bool
    nowait: bool


class QueueDeleteOk(NamedTuple):
    message_count: int


class QueueUnbind(NamedTuple):
    queue: str
    exchange: str
    routing_key: str
    arguments: Table


class QueueUnbindOk(NamedTuple):
    pass


class BasicQos(NamedTuple):
    prefetch_size: int
    prefetch_count: int
    is_global: bool


class BasicQosOk(NamedTuple):
    pass


class BasicConsume(NamedTuple):
    queue: str
    consumer_tag: str
    no_local: bool
    no_ack: bool
    exclusive: bool
    nowait: bool
    arguments: Table


class BasicConsumeOk(NamedTuple):
    consumer_tag: str


class BasicCancel(NamedTuple):
    consumer_tag: str
    nowait: bool


class BasicCancelOk(NamedTuple):
    consumer_tag: str


class BasicPublish(NamedTuple):
    exchange: str
    routing_key: str
    mandatory: bool
    immediate: bool


class BasicReturn(NamedTuple):
    reply_code: int
    reply_text: str
    exchange: str
    routing_key: str


class BasicDeliver(NamedTuple):
    consumer_tag: str
    delivery_tag: int
    redelivered: bool
    exchange: str
    routing_key: str


class BasicGet(NamedTuple):
    queue: str
    no_ack: bool


class BasicGetOk(NamedTuple):
    delivery_tag: int
    redelivered: bool
    exchange: str
    routing_key: str
    message_count: int


class BasicGetEmpty(NamedTuple):
    pass


class BasicAck(NamedTuple):
    delivery_tag: int
    multiple: bool


class BasicReject(NamedTuple):
    delivery_tag: int
    requeue: bool


class BasicRecoverAsync(NamedTuple):
    requeue: bool


class BasicRecover(NamedTuple):
    requeue: bool


class BasicRecoverOk(NamedTuple):
    pass


class BasicNack(NamedTuple):
    delivery_tag: int
    multiple: bool
    requeue: bool


class ConfirmSelect(NamedTuple):
    nowait: bool


class ConfirmSelectOk(NamedTuple):
    pass


class TxSelect(NamedTuple):
    pass


class TxSelectOk(NamedTuple):
    pass


class TxCommit(NamedTuple):
    pass


class TxCommitOk(NamedTuple):
    pass


class TxRollback(NamedTuple):
    pass


class TxRollbackOk(NamedTuple):
    pass


Method = tuple[object, ...]
"""Any of the classes above."""

METHODS: Final[dict[int, tuple[Callable[..., Method], str]]] = {
    0x000A000A: (ConnectionStart, "ooFSS"),
    0x000A000B: (ConnectionStartOk, "FsSs"),
    0x000A0014: (ConnectionSecure, "S"),
    0x000A0015: (ConnectionSecureOk, "S"),
    0x000A001E: (ConnectionTune, "hih"),
    0x000A001F: (ConnectionTuneOk, "hih"),
    0x000A0028: (ConnectionOpen, "sZb"),
    0x000A0029: (ConnectionOpenOk, "Z"),
    0x000A0032: (ConnectionClose, "hshh"),
    0x000A0033: (ConnectionCloseOk, ""),
    0x000A003C: (ConnectionBlocked, "s"),
    0x000A003D: (ConnectionUnblocked, ""),
    0x000A0046: (ConnectionUpdateSecret, "Ss"),
    0x000A0047: (ConnectionUpdateSecretOk, ""),
    0x0014000A: (ChannelOpen, "Z"),
    0x0014000B: (ChannelOpenOk, "S"),
    0x00140014: (ChannelFlow, "b"),
    0x00140015: (ChannelFlowOk, "b"),
    0x00140028: (ChannelClose, "hshh"),
    0x00140029: (ChannelCloseOk, ""),
    0x0028000A: (ExchangeDeclare, "HssbbbbbF"),
    0x0028000B: (ExchangeDeclareOk, ""),
    0x00280014: (ExchangeDelete, "Hsbb"),
    0x00280015: (ExchangeDeleteOk, ""),
    0x0028001E: (ExchangeBind, "HsssbF"),
    0x0028001F: (ExchangeBindOk, ""),
    0x00280028: (ExchangeUnbind, "HsssbF"),
    0x00280033: (ExchangeUnbindOk, ""),
    0x0032000A: (QueueDeclare, "HsbbbbbF"),
    0x0032000B: (QueueDeclareOk, "sii"),
    0x00320014: (QueueBind, "HsssbF"),
    0x00320015: (QueueBindOk, ""),
    0x0032001E: (QueuePurge, "Hsb"),
    0x0032001F: (QueuePurgeOk, "i"),
    0x00320028: (QueueDelete, "Hsbbb"),
    0x00320029: (QueueDeleteOk, "i"),
    0x00320032: (QueueUnbind, "HsssF"),
    0x00320033: (QueueUnbindOk, ""),
    0x003C000A: (BasicQos, "ihb"),
    0x003C000B: (BasicQosOk, ""),
    0x003C0014: (BasicConsume, "HssbbbbF"),
    0x003C0015: (BasicConsumeOk, "s"),
    0x003C001E: (BasicCancel, "sb"),
    0x003C001F: (BasicCancelOk, "s"),
    0x003C0028: (BasicPublish, "Hssbb"),
    0x003C0032: (BasicReturn, "hsss"),
    0x003C003C: (BasicDeliver, "sqbss"),
    0x003C0046: (BasicGet, "Hsb"),
    0x003C0047: (BasicGetOk, "qbssi"),
    0x003C0048: (BasicGetEmpty, "Z"),
    0x003C0050: (BasicAck, "qb"),
    0x003C005A: (BasicReject, "qb"),
    0x003C0064: (BasicRecoverAsync, "b"),
    0x003C006E: (BasicRecover, "b"),
    0x003C006F: (BasicRecoverOk, ""),
    0x003C0078: (BasicNack, "qbb"),
    0x0055000A: (ConfirmSelect, "b"),
    0x0055000B: (ConfirmSelectOk, ""),
    0x005A000A: (TxSelect, ""),
    0x005A000B: (TxSelectOk, ""),
    0x005A0014: (TxCommit, ""),
    0x005A0015: (TxCommitOk, ""),
    0x005A001E: (TxRollback, ""),
    0x005A001F: (TxRollbackOk, ""),
}

IDS: Final[dict[object, int]] = {kind: number for number, (kind, _) in METHODS.items()}

HAS_CONTENT: Final = frozenset({0x003C0028, 0x003C0032, 0x003C003C, 0x003C0047})
"""publish, return, deliver, get-ok: a header frame and body frames follow."""


def name_of(method_id: int) -> str:
    """``queue.declare`` style, for texts and logs."""
    kind: str = getattr(METHODS[method_id][0], "__name__", "")
    cut = next(index for index in range(1, len(kind)) if kind[index].isupper())
    words = "".join(f"-{char.lower()}" if char.isupper() else char for char in kind[cut:])
    return f"{kind[:cut].lower()}.{words[1:]}"
