"""
Pops of RocketMQ clients at the gateway: handed on to the broker that has the queues.

The gateway keeps nothing: a handle names its delivery by group, queue and offset, and the broker
knows the rest, so any gateway may acknowledge what another one popped. Messages that come for a
client that has gone meanwhile are given back.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from protocols import clock
from protocols.canonical import Call
from protocols.errors import Code, GatewayError, PeerError, Refused
from protocols.pipeline import TopicInfo
from protocols.remoting.asking import as_said
from protocols.remoting.bodies import (
    AssignmentAnswer,
    BatchAckBody,
    MessageQueue,
    QueryAssignmentBody,
    QueueAssignment,
    decode_body,
    encode_body,
)
from protocols.remoting.codes import Permission, RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.consumer import check_consume
from protocols.remoting.handles import (
    PopHandle,
    decode_message_offsets,
    decode_start_offsets,
    parse_pop_handle,
)
from protocols.remoting.headers import int_field, text_field
from protocols.remoting.holdings import Queue
from protocols.remoting.mapping import RETRY_BROKER, is_retry_topic, qualified, retry_route
from protocols.remoting.private import RELEASE_FIELD
from protocols.rocketmq import BrokerAnswer

if TYPE_CHECKING:
    from protocols.remoting.session import Session

logger = logging.getLogger("tidegate.remoting")

POLL_MS_MAX: Final = 60_000
BODY_ACKS_MAX: Final = 4096

AWAY_S_MAX: Final = 15.0
"""How long an ack waits for its broker; after that the message comes again."""

AGAIN_S: Final = 0.5


async def pop(session: "Session", call: Call, command: RemotingCommand) -> RemotingCommand:
    """200050."""
    topic, group = _named(session, call, command)
    wait_ms = min(max(int_field(command.fields, "pollTime", 0), 0), POLL_MS_MAX)
    fields = {**command.fields, "topic": topic, "consumerGroup": group, "pollTime": str(wait_ms)}
    broker = await _broker(session, call, command)
    answer = await session.host.services.brokers.ask(
        topic, broker, command.code, fields, bytes(command.body), wait_ms=wait_ms
    )
    if answer.code == ResponseCode.SUCCESS and not session.peer.is_open:
        await _give_back(session, answer, topic, group, broker)
    return as_said(command, answer)


async def change(session: "Session", call: Call, command: RemotingCommand) -> RemotingCommand:
    """200053."""
    topic, group = _named(session, call, command)
    fields = {**command.fields, "topic": topic, "consumerGroup": group}
    broker = await _broker(session, call, command)
    brokers = session.host.services.brokers
    return as_said(command, await brokers.ask(topic, broker, command.code, fields))


async def ack(session: "Session", call: Call, command: RemotingCommand) -> RemotingCommand:
    """200051. Clients send it once: a broker that is away gets it when it is back."""
    topic, group = _named(session, call, command)
    fields = {**command.fields, "topic": topic, "consumerGroup": group}
    broker = await _broker(session, call, command)
    answer = await _insist(session, topic, broker, command, fields)
    return as_said(command, answer)


async def _insist(
    session: "Session",
    topic: str,
    broker: str,
    command: RemotingCommand,
    fields: Mapping[str, str],
    body: bytes = b"",
) -> BrokerAnswer:
    """Ask again for a while where the broker is away. Raises Refused."""
    until = clock.monotonic() + AWAY_S_MAX
    while True:
        try:
            return await session.host.services.brokers.ask(
                topic, broker, command.code, fields, body
            )
        except GatewayError as error:
            if clock.monotonic() >= until:
                raise
            logger.info("an ack waits for broker %s: %s", broker, error)
        await asyncio.sleep(AGAIN_S)


async def batch_ack(session: "Session", call: Call, command: RemotingCommand) -> RemotingCommand:
    """200151: acks of one broker, of any groups and topics."""
    body = decode_body(BatchAckBody, command.body)
    if not body.acks:
        return command.answer()
    if len(body.acks) > BODY_ACKS_MAX:
        raise Refused(Code.BAD_REQUEST, "acks", f"more than {BODY_ACKS_MAX}")
    broker = body.broker_name or await _broker(session, call, command, body.acks[0].t)
    for ack in body.acks:
        check_consume(session.host.services, call, ack.t, ack.c)
        ack.t, ack.c = qualified(call.tenant, ack.t), qualified(call.tenant, ack.c)
    topic, data = body.acks[0].t, encode_body(body)
    return as_said(command, await _insist(session, topic, broker, command, command.fields, data))


async def notification(session: "Session", call: Call, command: RemotingCommand) -> RemotingCommand:
    """200054: whether a pop would find something."""
    topic, group = _named(session, call, command)
    wait_ms = min(max(int_field(command.fields, "pollTime", 0), 0), POLL_MS_MAX)
    fields = {**command.fields, "topic": topic, "consumerGroup": group, "pollTime": str(wait_ms)}
    broker = await _broker(session, call, command)
    brokers = session.host.services.brokers
    answer = await brokers.ask(topic, broker, command.code, fields, wait_ms=wait_ms)
    return as_said(command, answer)


def _named(session: "Session", call: Call, command: RemotingCommand) -> tuple[str, str]:
    """(topic, group) as stored. Raises Refused."""
    topic = text_field(command.fields, "topic")
    group = text_field(command.fields, "consumerGroup")
    check_consume(session.host.services, call, topic, group)
    return qualified(call.tenant, topic), qualified(call.tenant, group)


async def _broker(session: "Session", call: Call, command: RemotingCommand, topic: str = "") -> str:
    """Whom the request is for: named by itself or its handle; else the topic's first."""
    named = command.fields.get("bname", "")
    if named:
        return named
    handle = parse_pop_handle(command.fields.get("extraInfo", ""))
    if handle is not None:
        return handle.broker
    topic = topic or text_field(command.fields, "topic")
    info = await session.host.topic(call, topic)
    if info is None or not info.queues:
        raise Refused(Code.TOPIC_NOT_FOUND, topic, "no such topic")
    return info.queues[0][0]


async def _give_back(
    session: "Session", answer: BrokerAnswer, topic: str, group: str, broker: str
) -> None:
    """All of an answer that nobody is there to get; it counts as no attempt."""
    for handle in handles_of(answer.fields, broker):
        fields = {
            "topic": topic,
            "consumerGroup": group,
            "queueId": str(handle.queue_id),
            "offset": str(handle.queue_offset),
            "extraInfo": handle.encode(),
            "invisibleTime": "0",
            RELEASE_FIELD: "true",
        }
        try:
            code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
            await session.host.services.brokers.ask(topic, broker, code, fields)
        except GatewayError as error:
            logger.info("giving back to %s: %s", group, error)
            return


def handles_of(fields: Mapping[str, str], broker: str) -> list[PopHandle]:
    """Of each message of a pop's answer, as a client makes them. Raises PeerError."""
    try:
        starts = decode_start_offsets(fields.get("startOffsetInfo", ""))
        found = decode_message_offsets(fields.get("msgOffsetInfo", ""))
        popped_ms, revive = int(fields["popTime"]), int(fields["reviveQid"])
        invisible_ms = int(fields["invisibleTime"])
        return [
            PopHandle(
                starts[retry, queue], popped_ms, invisible_ms, revive, retry, broker, queue, offset
            )
            for (retry, queue), offsets in found.items()
            for offset in offsets
        ]
    except (KeyError, ValueError) as error:
        raise PeerError(f"answer to a pop: {error}") from error


# ── assignments ─────────────────────────────────────────────────────────────────────────


class RequestMode(msgspec.Struct, rename="camel"):
    """How a group's push consumers are to take a topic (401)."""

    mode: str = "PULL"
    pop_share_queue_num: int = 0


class _Modes(msgspec.Struct, rename="camel"):
    """``MessageRequestModeSerializeWrapper``: topic → group → mode."""

    message_request_mode_map: dict[str, dict[str, RequestMode]] = {}


async def query_assignment(
    session: "Session", call: Call, command: RemotingCommand
) -> RemotingCommand:
    """400: this client's share of a topic's queues, by pull (AVG) or by pop."""
    body = decode_body(QueryAssignmentBody, command.body)
    members = session.host.members.of(body.consumer_group)
    word = "PULL"
    if is_retry_topic(body.topic):
        found = retry_route(session.address)
        queues = [
            Queue(body.topic, RETRY_BROKER, i) for i in range(found.queue_datas[0].read_queue_nums)
        ]
        queues = share(queues, members, body.client_id)
    else:
        info = await session.host.topic(call, body.topic)
        if info is None:
            raise Refused(Code.TOPIC_NOT_FOUND, body.topic, "no such topic")
        queues = sorted(
            Queue(body.topic, broker, i)
            for broker, i, permission in info.queues
            if permission & Permission.READ
        )
        mode = await _mode(session, info, qualified(call.tenant, body.consumer_group))
        if mode.mode == "POP":
            word = "POP"
            queues = pop_share(queues, members, body.client_id, mode.pop_share_queue_num)
        elif body.message_model != "BROADCASTING":
            queues = share(queues, members, body.client_id)
    answer = AssignmentAnswer(
        message_queue_assignments=[
            QueueAssignment(
                message_queue=MessageQueue(
                    topic=queue.topic, broker_name=queue.broker, queue_id=queue.queue_id
                ),
                mode=word,
            )
            for queue in queues
        ]
    )
    return command.answer(0, {}, encode_body(answer))


async def _mode(session: "Session", info: TopicInfo, group: str) -> RequestMode:
    """As the first broker of the topic that can be asked has it (402)."""
    for broker in sorted({broker for broker, _, _ in info.queues}):
        try:
            answer = await session.host.services.brokers.ask(
                info.name, broker, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, {}
            )
        except GatewayError as error:
            logger.info("request modes of %s: %s", broker, error)
            continue
        if answer.code == ResponseCode.SUCCESS and answer.body:
            modes = decode_body(_Modes, answer.body).message_request_mode_map
            return modes.get(info.name, {}).get(group, RequestMode())
    return RequestMode()


def share(queues: Sequence[Queue], members: Sequence[str], client_id: str) -> list[Queue]:
    """``AllocateMessageQueueAveragely``: neighbours, the first members get one more."""
    if client_id not in members:
        return []
    index = members.index(client_id)
    size, rest = divmod(len(queues), len(members))
    start = index * size + min(index, rest)
    return list(queues[start : start + size + (index < rest)])


def pop_share(
    queues: Sequence[Queue], members: Sequence[str], client_id: str, count: int
) -> list[Queue]:
    """
    All queues of each broker at once (id -1), or a member's own and those of the *count* members
    that follow it. Source: ``QueryAssignmentProcessor.allocate4Pop``.
    """
    if count <= 0 or count >= len(members) - 1:
        return [
            Queue(queues[0].topic, broker, -1)
            for broker in sorted({each.broker for each in queues})
        ]
    if client_id not in members:
        return []
    index = members.index(client_id)
    mine: dict[Queue, None] = {}
    for step in range(count + 1):
        member = members[(index + step) % len(members)]
        mine |= dict.fromkeys(share(queues, members, member))
    return list(mine)
