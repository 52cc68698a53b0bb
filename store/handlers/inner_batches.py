"""Batches to topics with ``queue.type=BatchCQ``: named as Apache's brokers name them."""

from collections.abc import Callable, Sequence
from typing import Final

from protocols.canonical import StoredMessage
from protocols.errors import Refused
from protocols.remoting.command import RemotingCommand
from protocols.remoting.headers import SendHeader
from protocols.remoting.inner_batches import MARK, batch_of, joined, mark, takes_batches
from protocols.remoting.records import decode_properties, decode_record
from store.answers import AppendResult, TopicConfig
from store.handlers.context import Context
from store.handlers.plain import BATCH_COUNT_MAX, Member

WHOLE_BYTES_MAX: Final = 8 << 20
"""A batch that is larger is not shown as one: an answer must fit a frame."""

Answer = Callable[[Sequence[AppendResult]], RemotingCommand]


def batch_id(config: TopicConfig, header: SendHeader) -> str:
    """The id that a client gave its batch; empty: its members are messages like others."""
    if not header.is_batch or not takes_batches(config.attributes):
        return ""
    return dict(decode_properties(header.properties)).get("UNIQ_KEY", "")


def marked(drafts: Sequence[Member], identifier: str) -> list[Member]:
    text = f"{MARK}\x01{mark(identifier, len(drafts))}\x02".encode()
    return [
        (body, flag, own + (b"" if own.endswith(b"\x02") or not own else b"\x02") + text)
        for body, flag, own in drafts
    ]


def answer(plain: Answer, identifier: str, results: Sequence[AppendResult]) -> RemotingCommand:
    """The answer to a batch as to one message."""
    made = plain(results)
    if made.fields.get("msgId"):
        made.fields["msgId"] = made.fields["msgId"].partition(",")[0]
        made.fields["batchUniqId"] = identifier
    return made


def whole(context: Context, message: StoredMessage, *, identifier: str = "") -> bytes:
    """
    The record that answers a question for *message*: of its whole batch, if it is one of a batch.

    With *identifier* only of the batch so named.
    """
    found, count = batch_of(message)
    if not 0 < count <= BATCH_COUNT_MAX or identifier not in ("", found):
        return message.record
    members = [message]
    for step in (-1, 1):
        at = message.queue_offset + step
        while len(members) < count and (other := _member(context, message, at)) is not None:
            if batch_of(other) != (found, count):
                break
            members.insert(0 if step < 0 else len(members), other)
            at += step
    if sum([len(member.record) for member in members]) > WHOLE_BYTES_MAX:
        return message.record
    return joined(members, found, context.config.cluster)


def _member(context: Context, message: StoredMessage, offset: int) -> StoredMessage | None:
    engine = context.engine
    low, high = engine.offset_range(message.topic, message.queue_id)
    if not low <= offset < high:
        return None
    try:
        position = engine.entry_position(message.topic, message.queue_id, offset)
        return decode_record(engine.record_at(position))
    except Refused:
        return None
