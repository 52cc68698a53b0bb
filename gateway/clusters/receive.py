"""
Between canonical groups and deliveries and the bodies of the private wire.

Each record of a DELIVER is decoded once, however many get it, and only if somebody asks.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from protocols.canonical import Delivery, ReceiptHandle
from protocols.delivery_runs import DeliveryRun, Shelf
from protocols.groups import GroupSpec
from protocols.remoting.delivering import decode_deliver
from protocols.remoting.private import GroupOpen, ReadItem
from protocols.remoting.records import decode_record
from protocols.remoting.sending import ItemFlag

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
) -> list[tuple[int, Sequence[Delivery]]]:
    """
    (stream number, its deliveries) in the order of the frame; runs stay runs.

    *groups* names the group of each stream, for the handles; the answer of a pop has stream 0.
    Raises PeerError.
    """
    frame = decode_deliver(body)
    decode = partial(decode_record, cluster=cluster, broker=broker)
    shelf = Shelf(cluster, broker, frame.store_epoch, frame.positions, frame.records, decode)
    found: dict[int, list[Delivery]] = {}
    for item in frame.deliveries:
        stream, index, position, grant, attempt, flags, stage, packet_id, group, tags = item
        message = shelf.message(index)
        handle = ReceiptHandle(
            cluster,
            broker,
            frame.store_epoch,
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
    streams: list[tuple[int, Sequence[Delivery]]] = [*found.items()]
    for stream, group, grant, _, flags, first, length, tags in frame.runs:
        run = DeliveryRun(
            shelf,
            first,
            first + length,
            group=group,
            group_name=groups.get(stream, ""),
            grant=grant,
            qos=flags & _QOS,
            retain=bool(flags & _RETAIN),
            reads=tags,
        )
        streams.append((stream, run))
    return streams


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
        is_priority=spec.is_priority,
        attempts_max=spec.attempts_max,
        dead_letter_topic=spec.dead_letter_topic,
        skips_qos0_on_resume=spec.skips_qos0_on_resume,
        start=start or spec.start.value,
        policy=dict(spec.policy),
    )
