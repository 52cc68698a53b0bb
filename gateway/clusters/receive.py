"""
Between canonical groups and deliveries and the bodies of the private wire.

Each record of a DELIVER is decoded once, however many get it.
"""

from collections.abc import Mapping
from typing import Final

from protocols.canonical import Delivery, GroupSpec, ReceiptHandle, StoredMessage
from protocols.remoting.private import GroupOpen, ItemFlag, ReadItem, decode_deliver
from protocols.remoting.records import decode_record

_QOS: Final = int(ItemFlag.QOS)
_RETAIN: Final = int(ItemFlag.RETAIN)


def deliveries_by_stream(
    body: bytes | memoryview,
    cluster: str,
    broker: str,
    groups: Mapping[int, str],
    *,
    popped_ms: int = 0,
    invisible_ms: int = 0,
) -> dict[int, list[Delivery]]:
    """
    Stream number → its deliveries, in the order of the frame.

    *groups* names the group of each stream, for the handles; the answer of a pop has stream 0.
    Raises PeerError.
    """
    store_epoch, records, items = decode_deliver(body)
    messages: list[StoredMessage | None] = [None] * len(records)
    found: dict[int, list[Delivery]] = {}
    for stream, index, position, grant, attempt, flags, stage, packet_id, group, tags in items:
        message = messages[index]
        if message is None:
            message = messages[index] = decode_record(
                records[index][1], cluster=cluster, broker=broker
            )
        handle = ReceiptHandle(
            cluster,
            broker,
            store_epoch,
            group,
            position,
            grant,
            message.queue_id,
            message.queue_offset,
            popped_ms,
            invisible_ms,
            groups.get(stream, ""),
            message.topic,
        )
        delivery = Delivery(
            message,
            handle,
            attempt,
            tags,
            flags & _QOS,
            bool(flags & _RETAIN),
            packet_id,
            stage,
        )
        found.setdefault(stream, []).append(delivery)
    return found


def group_open(spec: GroupSpec, start: str = "") -> GroupOpen:
    """The request that makes a group known to a store; *start* overrides the spec's."""
    return GroupOpen(
        name=spec.name,
        reads=[
            ReadItem(
                tag=read.tag,
                key=read.queue.key() if read.queue is not None else b"",
                topic=read.topic,
                name=read.queue.name if read.queue is not None else "",
            )
            for read in spec.reads
        ],
        incarnation=spec.incarnation,
        owner_epoch=spec.owner_epoch,
        is_volatile=spec.is_volatile,
        is_auto_ack=spec.is_auto_ack,
        is_inherited=spec.is_inherited,
        is_fifo=spec.is_fifo,
        attempts_max=spec.attempts_max,
        dead_letter_topic=spec.dead_letter_topic,
        skips_qos0_on_resume=spec.skips_qos0_on_resume,
        start=start or spec.start.value,
        policy=dict(spec.policy),
    )
