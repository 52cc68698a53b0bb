"""
Inner batches: what a client sends as one batch to a topic with ``queue.type=BatchCQ``.

Apache's brokers keep such a batch as one record that its readers take apart: tags, keys and ids of
its members are lost to the broker (a consumer of one tag gets none of them). We keep one record a
member, each with the mark ``TG_BATCH``, and show the batch where a client names it: in the answer
to its send and in questions by its id. What Apache's brokers keep is taken apart at their door.

Source: Apache RocketMQ 5.4, ``SendMessageProcessor.sendBatchMessage``, ``MessageDecoder``.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Final

from protocols.canonical import StoredMessage
from protocols.remoting.codes import SysFlag
from protocols.remoting.records import (
    NO_HOST,
    STORE_HOST_AT,
    decode_properties,
    decode_record,
    encode_host,
    encode_properties,
    encode_record,
)

MARK: Final = "TG_BATCH"
"""Property of each member: id of its batch, a space, number of members."""

INNER_BITS: Final = int(SysFlag.NEED_UNWRAP | SysFlag.INNER_BATCH)
_MEMBER: Final = struct.Struct(">IIIiI")
_U16: Final = struct.Struct(">H")


def takes_batches(attributes: Mapping[str, str]) -> bool:
    """Whether a topic with these attributes keeps batches together."""
    return attributes.get("queue.type", "") == "BatchCQ"


def mark(batch_id: str, count: int) -> str:
    return f"{batch_id} {count}"


def batch_of(message: StoredMessage) -> tuple[str, int]:
    """(id of the batch, number of its members) of a marked message; ("", 0): it is of none."""
    return read_mark(message.properties.get(MARK, ""))


def read_mark(text: str) -> tuple[str, int]:
    """(id, number of members) of a mark; ("", 0): it is none."""
    batch_id, _, count = text.partition(" ")
    return (batch_id, int(count)) if count.isascii() and count.isdigit() else ("", 0)


def joined(members: Sequence[StoredMessage], batch_id: str, cluster: str) -> bytes:
    """The record that an Apache broker would have: one for all *members*, in their order."""
    first = members[0]
    properties = (
        *(("INNER_NUM", str(len(members))), ("INNER_BASE", str(first.queue_offset))),
        *(("UNIQ_KEY", batch_id), ("CLUSTER", cluster), ("WAIT", "true")),
    )
    return encode_record(
        first.topic,
        packed(members),
        queue_id=first.queue_id,
        properties_text=encode_properties(properties),
        queue_offset=first.queue_offset,
        log_position=first.log_position,
        born_ms=first.born_ms,
        store_ms=first.store_ms,
        sys_flag=first.sys_flag | INNER_BITS,
        born_host=encode_host(first.born_host),
        store_host=first.record[STORE_HOST_AT : STORE_HOST_AT + len(NO_HOST)],
    )


def packed(members: Sequence[StoredMessage]) -> bytes:
    """The body of a batch, as its producer sends it."""
    return b"".join([_encode_member(member) for member in members])


def _encode_member(message: StoredMessage) -> bytes:
    pairs = [pair for pair in message.property_pairs() if pair[0] not in (MARK, "CLUSTER")]
    text = encode_properties(pairs)
    size = _MEMBER.size + len(message.body) + _U16.size + len(text)
    head = _MEMBER.pack(size, 0, 0, message.flag, len(message.body))
    return b"".join((head, message.body, _U16.pack(len(text)), text))


def last_offset(message: StoredMessage) -> int:
    """Of the last member of an inner batch, which an Apache broker pops as one; else its own."""
    if message.sys_flag & INNER_BITS != INNER_BITS:
        return message.queue_offset
    count = message.properties.get("INNER_NUM", "")
    more = int(count) - 1 if count.isascii() and count.isdigit() else 0
    return message.queue_offset + max(0, more)


def unpacked(messages: Sequence[StoredMessage], from_offset: int) -> list[StoredMessage]:
    """*messages* with the members of inner batches in their place, from *from_offset* on."""
    if not any([message.sys_flag & INNER_BITS == INNER_BITS for message in messages]):
        return list(messages)
    found: list[StoredMessage] = []
    for message in messages:
        if message.sys_flag & INNER_BITS == INNER_BITS:
            found += [each for each in _members(message) if each.queue_offset >= from_offset]
        else:
            found.append(message)
    return found


def _members(message: StoredMessage) -> list[StoredMessage]:
    """Of one record; the record itself if it cannot be taken apart."""
    body, at = message.body, 0
    members: list[StoredMessage] = []
    try:
        while at < len(body):
            size, _, _, flag, body_size = _MEMBER.unpack_from(body, at)
            start = at + _MEMBER.size
            (text_size,) = _U16.unpack_from(body, start + body_size)
            text_at = start + body_size + _U16.size
            if text_at + text_size != at + size or at + size > len(body):
                return [message]
            text = body[text_at : text_at + text_size]
            members.append(
                _member(message, len(members), body[start : start + body_size], flag, text)
            )
            at += size
    except struct.error:
        return [message]
    return members


def _member(
    message: StoredMessage, index: int, body: bytes, flag: int, text: bytes
) -> StoredMessage:
    cluster = message.properties.get("CLUSTER", "")
    if cluster:
        text = encode_properties((*decode_properties(text), ("CLUSTER", cluster)))
    record = encode_record(
        message.topic,
        body,
        queue_id=message.queue_id,
        properties_text=text,
        queue_offset=message.queue_offset + index,
        log_position=message.log_position,
        born_ms=message.born_ms,
        store_ms=message.store_ms,
        sys_flag=message.sys_flag & ~INNER_BITS,
        flag=flag,
        reconsume_count=message.reconsume_count,
        born_host=encode_host(message.born_host),
    )
    return decode_record(record, cluster=message.cluster, broker=message.broker)
