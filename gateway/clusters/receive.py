"""DELIVER bodies as canonical deliveries: each record decoded once, however many get it."""

from collections.abc import Mapping
from typing import Final

from protocols.canonical import Delivery, ReceiptHandle, StoredMessage
from protocols.remoting.private import ItemFlag, decode_deliver
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
