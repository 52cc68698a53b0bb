"""
Moving one delivery to its group's dead-letter topic at the client's own wish.

What runs out of attempts is moved by its store; this is for protocols whose clients can say
"never again" (gRPC ForwardMessageToDeadLetterQueue, HTTP ``:reject``, webhooks).
"""

from typing import Final

from protocols.canonical import (
    INTERNAL,
    Call,
    Head,
    Message,
    Properties,
    ReceiptHandle,
    StoredMessage,
)
from protocols.errors import Code
from protocols.groups import AckResult
from protocols.pipeline import Services

PREFIX: Final = "%DLQ%"
QUEUE_COUNT: Final = 1
"""As RocketMQ makes dead-letter topics."""

OF_MESSAGE: Final = frozenset(
    ("UNIQ_KEY", "TAGS", "KEYS", "__SHARDINGKEY", "TG_SUBJECT", "TG_PRIORITY", "TG_EXPIRES_AT")
)
"""Properties that the new message gets from its own fields, or not at all."""


async def bury_delivery(
    services: Services, call: Call, handle: ReceiptHandle, topic: str, group: str
) -> AckResult:
    """
    Store the message of *handle*, a delivery from message queues of *topic*, in
    ``%DLQ%<group>``, then acknowledge it. A crash in between leaves both: never a loss.
    """
    stored: list[StoredMessage] = []
    if handle.queue_offset >= 0:
        stored, _, _ = await services.topics.read(
            topic, handle.broker, handle.queue_id, handle.queue_offset, 1, 0
        )
    if not stored:
        return AckResult(Code.INVALID_RECEIPT_HANDLE, hint="the message is gone")
    return await bury(services, call, stored[0], handle, group)


async def bury(
    services: Services,
    call: Call,
    stored: StoredMessage,
    handle: ReceiptHandle,
    group: str,
    *,
    reasons: Properties = (),
) -> AckResult:
    """Store *stored* in ``%DLQ%<group>`` with *reasons*, then acknowledge *handle*."""
    name = PREFIX + group
    if await services.topics.find(name) is None:
        await services.topics.create(name, queue_count=QUEUE_COUNT)
    own = Call(
        protocol=INTERNAL, listener=call.listener, identity=call.identity, client_id=call.client_id
    )
    (sent,) = await services.pipeline.send(own, [_message(stored, name, reasons)])
    services.pipeline.forget(own)
    if not sent.is_stored:
        return AckResult(sent.code, hint=sent.hint)
    (result,) = await services.pipeline.ack(call, [handle])
    return result


def _message(stored: StoredMessage, topic: str, reasons: Properties) -> Message:
    properties = tuple(
        (name, value) for name, value in stored.property_pairs() if name not in OF_MESSAGE
    )
    origin = (
        ("TG_ORIGIN_TOPIC", stored.topic),
        ("TG_ORIGIN_ID", stored.message_id),
    )
    # no light queue gets it: dead letters have no address that filters match
    head = Head(subject=topic, topic=topic, tag=stored.properties.get("TAGS", ""), queues=())
    return Message(
        head,
        stored.body,
        properties + origin + reasons,
        keys=stored.properties.get("KEYS", ""),
        born_ms=stored.born_ms,
        sys_flag=stored.sys_flag,
        flag=stored.flag,
    )
