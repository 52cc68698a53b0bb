"""
Pop, ack and changeInvisibleTime of RocketMQ groups on an Apache broker.

An Apache handle is eight texts (``PopHandle``); ours carries them so that any gateway can ack:
``store_epoch`` is the pop's start offset, ``group`` is revive queue times four plus the retry
kind. Redelivery, attempts and the retry topics are the broker's own.
"""

from collections.abc import Mapping
from typing import Final

from protocols.canonical import Delivery, ReceiptHandle, StoredMessage
from protocols.errors import PeerError
from protocols.groups import PopRequest
from protocols.remoting.codes import RequestCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.handles import PopHandle, decode_start_offsets, parse_pop_handle
from protocols.remoting.records import decode_records

POP_COUNT_MAX: Final = 32
RETRY_KINDS: Final = 4
ROCKETMQ_GROUPS: Final = "rmq/"


def is_popped_by_broker(group_name: str) -> bool:
    """RocketMQ consumer groups are the broker's; all others are kept by the gateway."""
    return group_name.startswith(ROCKETMQ_GROUPS)


def consumer_group(group_name: str) -> str:
    """The consumer group of ``rmq/<group>/<topic>``."""
    return group_name.removeprefix(ROCKETMQ_GROUPS).rpartition("/")[0]


def pop(
    request: PopRequest, *, count: int, wait_ms: int, now_ms: int, broker: str
) -> RemotingCommand:
    """POP_MESSAGE. Source: ``PopMessageRequestHeader``."""
    fields = {
        "consumerGroup": consumer_group(request.group.name),
        "topic": request.group.reads[0].topic,
        "queueId": str(request.queue_id),
        "maxMsgNums": str(min(count, POP_COUNT_MAX)),
        "invisibleTime": str(request.invisible_ms),
        "pollTime": str(wait_ms),
        "bornTime": str(now_ms),
        "initMode": "0",
        "expType": "SQL92" if request.sql else "TAG",
        "exp": request.sql or "||".join(request.tags) or "*",
        "order": "true" if request.group.is_fifo else "false",
        "bname": broker,
    }
    return RemotingCommand(RequestCode.POP_MESSAGE, fields)


def notification(request: PopRequest, *, wait_ms: int, now_ms: int, broker: str) -> RemotingCommand:
    """
    NOTIFICATION: answered when something may be there. Source: ``NotificationRequestHeader``.
    """
    fields = {
        "consumerGroup": consumer_group(request.group.name),
        "topic": request.group.reads[0].topic,
        "queueId": str(request.queue_id),
        "pollTime": str(wait_ms),
        "bornTime": str(now_ms),
        "order": "true" if request.group.is_fifo else "false",
        "bname": broker,
    }
    return RemotingCommand(RequestCode.NOTIFICATION, fields)


def deliveries(
    answer: RemotingCommand, request: PopRequest, cluster: str, broker: str
) -> list[Delivery]:
    """The messages of a successful answer. Raises PeerError."""
    fields = answer.fields
    try:
        starts = decode_start_offsets(fields.get("startOffsetInfo", ""))
        popped_ms, invisible_ms = int(fields["popTime"]), int(fields["invisibleTime"])
        revive = int(fields["reviveQid"])
    except (KeyError, ValueError) as error:
        raise PeerError(f"{broker}: answer to a pop: {error}") from error
    found = []
    for message in decode_records(answer.body, cluster=cluster, broker=broker):
        given = parse_pop_handle(message.properties.get("POP_CK", ""))
        handle = given or PopHandle(
            starts.get(("0", message.queue_id), message.queue_offset),
            popped_ms,
            invisible_ms,
            revive,
            "0",
            broker,
            message.queue_id,
            message.queue_offset,
        )
        found.append(_delivery(message, handle, request, cluster, broker))
    return found


def _delivery(
    message: StoredMessage, handle: PopHandle, request: PopRequest, cluster: str, broker: str
) -> Delivery:
    group = request.group
    receipt = ReceiptHandle(
        cluster,
        broker,
        handle.start_offset,
        handle.revive_queue_id * RETRY_KINDS + int(handle.retry or 0),
        message.log_position,
        1,
        queue_id=handle.queue_id,
        queue_offset=handle.queue_offset,
        popped_ms=handle.popped_ms,
        invisible_ms=handle.invisible_ms,
        group_name=group.name,
        topic=group.reads[0].topic,
    )
    return Delivery(message=message, handle=receipt, attempt=message.reconsume_count + 1)


def _handle_of(receipt: ReceiptHandle) -> PopHandle:
    revive, retry = divmod(receipt.group, RETRY_KINDS)
    return PopHandle(
        receipt.store_epoch,
        receipt.popped_ms,
        receipt.invisible_ms,
        revive,
        str(retry),
        receipt.broker,
        receipt.queue_id,
        receipt.queue_offset,
    )


def _fields_of(receipt: ReceiptHandle) -> dict[str, str]:
    """What ack and change have in common; the topic is the one the message was read from."""
    group = consumer_group(receipt.group_name)
    handle = _handle_of(receipt)
    topics: Mapping[str, str] = {
        "0": receipt.topic,
        "1": f"%RETRY%{group}_{receipt.topic}",
        "2": f"%RETRY%{group}+{receipt.topic}",
    }
    return {
        "consumerGroup": group,
        "topic": topics.get(handle.retry, receipt.topic),
        "queueId": str(handle.queue_id),
        "extraInfo": handle.encode(),
        "offset": str(handle.queue_offset),
        "bname": receipt.broker,
    }


def ack(receipt: ReceiptHandle) -> RemotingCommand:
    """ACK_MESSAGE."""
    return RemotingCommand(RequestCode.ACK_MESSAGE, _fields_of(receipt))


def change(receipt: ReceiptHandle, invisible_ms: int) -> RemotingCommand:
    """CHANGE_MESSAGE_INVISIBLETIME."""
    fields = {**_fields_of(receipt), "invisibleTime": str(max(1, invisible_ms))}
    return RemotingCommand(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)


def changed(receipt: ReceiptHandle, answer: RemotingCommand) -> ReceiptHandle:
    """The handle that counts after a change. Raises PeerError."""
    try:
        retry = receipt.group % RETRY_KINDS
        return receipt._replace(
            store_epoch=receipt.queue_offset,
            popped_ms=int(answer.fields["popTime"]),
            invisible_ms=int(answer.fields["invisibleTime"]),
            group=int(answer.fields["reviveQid"]) * RETRY_KINDS + retry,
        )
    except (KeyError, ValueError) as error:
        raise PeerError(f"{receipt.broker}: answer to a change: {error}") from error
