"""
Direct reply-to: a consumer's private queue that exists at one store and in no directory.

Its name tells where it is, so that whoever replies, at whatever gateway, finds it without asking.
The queue is volatile: visible before the sync, forgotten at a restart, ended with its consumer.
Source: RabbitMQ's direct reply-to, as measured on 3.10.
"""

import base64
import binascii
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec

from protocols import clock
from protocols.amqp import replies
from protocols.amqp.properties import decode_properties, encode_properties
from protocols.amqp.replies import AmqpFault
from protocols.amqp.topology import Queue, QueueRecord
from protocols.canonical import QueueKind, QueueRef
from protocols.errors import Code, PeerError, Refused
from protocols.groups import Read

if TYPE_CHECKING:
    from protocols.amqp.channelwork import ChannelWork

REPLY_TO: Final = "amq.rabbitmq.reply-to"
PREFIX: Final = REPLY_TO + "."
MARK: Final = REPLY_TO.encode()
"""A property block without these bytes does not ask for it."""

IDLE_MS: Final = 60_000
"""A queue whose consumer vanished without a word is ended after so long."""

TOKEN_BYTES: Final = 12


def reply_name(ref: QueueRef) -> str:
    """What clients see as reply-to; carries token, incarnation, store and cluster."""
    token = ref.name.rpartition(".")[2]
    packed = msgspec.msgpack.encode((token, ref.incarnation, ref.store, ref.cluster))
    return PREFIX + base64.urlsafe_b64encode(packed).decode().rstrip("=")


def reply_ref(vhost: str, tenant: str, name: str) -> QueueRef | None:
    """The queue behind a reply-to name; None: the name is none of ours."""
    text = name[len(PREFIX) :]
    try:
        packed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        token, incarnation, store, cluster = msgspec.msgpack.decode(
            packed, type=tuple[str, int, str, str]
        )
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        return None
    return QueueRef(QueueKind.AMQP, f"{vhost}/{PREFIX}{token}", tenant, incarnation, store, cluster)


async def open_reply_queue(work: "ChannelWork", *, no_ack: bool) -> Queue:
    """
    The queue of a channel that consumes from the pseudo-queue.

    Raises AmqpFault 406 in RabbitMQ's words, or what hinders its creation.
    """
    if work.reply_name:
        raise AmqpFault(replies.PRECONDITION_FAILED, "reply consumer already set")
    if not no_ack:
        raise AmqpFault(replies.PRECONDITION_FAILED, "reply consumer cannot acknowledge")
    session = work.session
    token = secrets.token_urlsafe(TOKEN_BYTES)
    incarnation = clock.wall_ms() << 12 | secrets.randbits(12)
    tenant = session.call.tenant
    ref = QueueRef(QueueKind.AMQP, f"{session.vhost}/{PREFIX}{token}", tenant, incarnation)
    ref = await session.operations.place(ref, {"volatile": 1, "idle_ms": IDLE_MS})
    name = reply_name(ref)
    work.reply_name = name
    queue = Queue(
        QueueRecord(
            vhost=session.vhost,
            name=name,
            exclusive=True,
            tenant=tenant,
            incarnation=incarnation,
            store=ref.store,
            cluster=ref.cluster,
            owner=session.name,
        )
    )
    queue.ref = ref
    queue.spec = replace(queue.spec, name=f"amqp/{ref.name}", reads=(Read(ref),), is_volatile=True)
    return queue


async def close_reply_queue(work: "ChannelWork", queue: Queue) -> None:
    """Its consumer is gone."""
    if queue.record.name == work.reply_name:
        work.reply_name = ""
        try:
            await work.session.services.streams.delete_queue(queue.ref)
        except Refused:
            return  # its store is away; the queue ends there by itself


def with_reply_name(work: "ChannelWork", block: bytes) -> bytes:
    """
    A property block whose reply-to is the pseudo-queue gets the channel's own name instead.

    Raises AmqpFault 406 without a consumer on the channel.
    """
    try:
        properties = decode_properties(block)
    except PeerError as error:
        raise AmqpFault(replies.FRAME_ERROR, str(error)) from error
    if properties.reply_to != REPLY_TO:
        return block
    if not work.reply_name:
        raise AmqpFault(replies.PRECONDITION_FAILED, "fast reply consumer does not exist")
    return encode_properties(properties._replace(reply_to=work.reply_name))


async def exists(work: "ChannelWork", name: str) -> bool:
    """Whether a reply can still be sent to *name* (a passive declare asks)."""
    session = work.session
    if name == REPLY_TO:
        return True
    ref = reply_ref(session.vhost, session.call.tenant, name)
    if ref is None:
        return False
    try:
        await session.services.streams.stat_queue(ref, Queue(QueueRecord(vhost="", name="")).spec)
    except Refused as refused:
        if refused.code != Code.NOT_FOUND:
            raise
        return False
    return True
