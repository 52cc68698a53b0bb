"""
What clients and tools ask about messages, topics and progress: the brokers know, all are asked.

A gateway shows many brokers at one address, so a question that reaches it is meant for each of
them: messages are put together, tables merged. Only questions, and resets of a group (which need
the right ``admin``); what else changes a cluster goes to name servers and stores.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from protocols import clock
from protocols.canonical import Call
from protocols.errors import Code, GatewayError, PeerError, Refused
from protocols.remoting.bodies import encode_object_map
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.headers import int_field, text_field
from protocols.remoting.holdings import Queue
from protocols.remoting.mapping import is_retry_topic, qualified
from protocols.remoting.nearly_json import parse
from protocols.remoting.private import GROUP_IS_KNOWN
from protocols.remoting.records import (
    STORE_HOST_AT,
    decode_record,
    encode_host,
    parse_offset_message_id,
    split_records,
)
from protocols.rocketmq import BrokerAnswer

if TYPE_CHECKING:
    from protocols.remoting.session import Session

logger = logging.getLogger("tidegate.remoting")

SEARCH_MS: Final = 10_000
"""A search by key reads the log."""

AWAY_S_MAX: Final = 3.0
AGAIN_S: Final = 0.2
"""How long a question waits for a broker, and how often it looks: one restarts in less."""

TABLE: Final = "offsetTable"
KINDS: Final = ("consume", "publish")


# ── asking ──────────────────────────────────────────────────────────────────────────────


async def ask_all(
    session: "Session",
    topic: str,
    code: int,
    fields: Mapping[str, str],
    *,
    wait_ms: int = 0,
) -> list[tuple[str, BrokerAnswer]]:
    """
    (broker, answer) of each broker that is there; waits a little for the first to come.

    Raises Refused if none does.
    """
    brokers = session.host.services.brokers
    found: list[tuple[str, BrokerAnswer]] = []
    failure: GatewayError = Refused(Code.HA_NOT_AVAILABLE, topic, "no store is up")
    until = clock.monotonic() + AWAY_S_MAX
    while not found:
        for broker in brokers.names(topic):
            try:
                answer = await brokers.ask(topic, broker, code, fields, wait_ms=wait_ms)
            except GatewayError as error:
                failure = error
                logger.info("asking %s for %d: %s", broker, code, error)
                continue
            found.append((broker, answer))
        if not found:
            if clock.monotonic() >= until:
                raise failure
            await asyncio.sleep(AGAIN_S)
    return found


def _first(command: RemotingCommand, found: Sequence[tuple[str, BrokerAnswer]]) -> RemotingCommand:
    """The first that could say something; else why none could."""
    answers = [answer for _, answer in found]
    chosen = next((each for each in answers if each.code == ResponseCode.SUCCESS), answers[0])
    return as_said(command, chosen)


def as_said(command: RemotingCommand, answer: BrokerAnswer) -> RemotingCommand:
    """The answer of a broker, handed on."""
    return command.answer(answer.code, dict(answer.fields), answer.body, remark=answer.remark)


def require(session: "Session", call: Call, topic: str, group: str, *operations: str) -> None:
    """Raises Refused unless one of *operations* is allowed."""
    permission = session.host.services.permission
    if not any(
        permission.is_allowed(call, operation, subject=topic, topic=topic, group=group)
        for operation in operations
    ):
        raise Refused(Code.FORBIDDEN, topic or group, "the ACL does not allow this question")


def _fields(call: Call, command: RemotingCommand) -> dict[str, str]:
    """The request's, with names as they are stored."""
    fields = dict(command.fields)
    for name in ("topic", "consumerGroup", "group"):
        if fields.get(name):
            fields[name] = qualified(call.tenant, fields[name])
    return fields


# ── messages ────────────────────────────────────────────────────────────────────────────


async def query_message(
    session: "Session", call: Call, command: RemotingCommand
) -> RemotingCommand:
    """12: by key or unique key, from all brokers of the topic, each message once."""
    topic = text_field(command.fields, "topic")
    require(session, call, topic, "", "consume")
    fields = _fields(call, command)
    brokers = session.host.services.brokers.names(fields["topic"])
    if session.repeats.is_repeated(fields, len(brokers), clock.monotonic()):
        remark = "what all brokers have was the answer to the same question, just before"
        return command.answer(ResponseCode.QUERY_NOT_FOUND, remark=remark)
    count = max(1, int_field(fields, "maxNum", 32))
    found = await ask_all(session, fields["topic"], command.code, fields, wait_ms=SEARCH_MS)
    records = [
        record
        for _, answer in found
        if answer.code == ResponseCode.SUCCESS
        for record in split_records(answer.body)
    ]
    if not records:
        return _first(command, found)
    told = next(answer for _, answer in found if answer.code == ResponseCode.SUCCESS)
    body = b"".join([_at_home(record, session.address) for record in records[:count]])
    return command.answer(0, dict(told.fields), body)


async def view_message(session: "Session", call: Call, command: RemotingCommand) -> RemotingCommand:
    """33: by the position in its offset id, which names this gateway, not its broker."""
    topic = text_field(command.fields, "topic", "")
    _, record = await find_message(session, call, topic, int_field(command.fields, "offset"))
    return command.answer(0, {}, record)


async def find_message(
    session: "Session", call: Call, topic: str, position: int
) -> tuple[str, bytes]:
    """
    (broker, record) of the message at *position*; of any topic, if none is named. Raises Refused.
    """
    stored = qualified(call.tenant, topic) if topic else ""
    fields = {"offset": str(position), "topic": stored}
    for broker, answer in await ask_all(session, stored, RequestCode.VIEW_MESSAGE_BY_ID, fields):
        if answer.code != ResponseCode.SUCCESS:
            continue
        message = decode_record(answer.body)
        if topic and message.topic != stored and not is_retry_topic(message.topic):
            continue
        bare = message.topic.removeprefix(f"{call.tenant}%") if call.tenant else message.topic
        if call.tenant and bare == message.topic:
            continue  # another tenant's
        require(session, call, bare, "", "consume")
        return broker, _at_home(answer.body, session.address)
    raise Refused(Code.NOT_FOUND, topic or str(position), "no message at that place")


def _at_home(record: bytes, address: str) -> bytes:
    """The record with this gateway as its store host: tools ask there for more about it."""
    host = encode_host(address)
    if decode_record(record).sys_flag & 0x30:  # hosts with IPv6 addresses lie elsewhere
        return record
    return record[:STORE_HOST_AT] + host + record[STORE_HOST_AT + len(host) :]


def position_of(message_id: str) -> int:
    """Raises Refused."""
    named = parse_offset_message_id(message_id)
    if named is None:
        raise Refused(Code.ILLEGAL_MESSAGE_ID, message_id[:40], "is no offset message id")
    return named[1]


# ── topics and groups ───────────────────────────────────────────────────────────────────


async def of_topic(session: "Session", call: Call, command: RemotingCommand) -> RemotingCommand:
    """351 configuration, 32 time of the first message: as the first broker has it."""
    require(session, call, text_field(command.fields, "topic"), "", *KINDS)
    fields = _fields(call, command)
    return _first(command, await ask_all(session, fields["topic"], command.code, fields))


async def of_group(session: "Session", call: Call, command: RemotingCommand) -> RemotingCommand:
    """352 configuration of a group."""
    require(session, call, "", text_field(command.fields, "group"), *KINDS)
    return _first(command, await ask_all(session, "", command.code, _fields(call, command)))


async def topic_stats(session: "Session", call: Call, command: RemotingCommand) -> RemotingCommand:
    """202: offsets of the queues of all brokers."""
    require(session, call, text_field(command.fields, "topic"), "", *KINDS)
    fields = _fields(call, command)
    found = await ask_all(session, fields["topic"], command.code, fields)
    return _merged(command, found, {})


async def names_of(session: "Session", call: Call, command: RemotingCommand) -> RemotingCommand:
    """300 groups that read a topic, 343 topics that a group reads."""
    topic, group = command.fields.get("topic", ""), command.fields.get("group", "")
    require(session, call, topic, group, *KINDS)
    fields = _fields(call, command)
    member = "groupList" if command.code == RequestCode.QUERY_TOPIC_CONSUME_BY_WHO else "topicList"
    names: set[str] = set()
    found = await ask_all(session, fields.get("topic", ""), command.code, fields)
    for _, answer in found:
        if answer.code == ResponseCode.SUCCESS:
            names |= set(_object(answer.body).get(member, ()))
    for each in session.host.clients():
        for name, consumer in each.consumers.items():
            if topic and consumer.subscription(topic) is not None:
                names.add(name)
    return command.answer(0, {}, msgspec.json.encode({member: sorted(names)}))


# ── progress ────────────────────────────────────────────────────────────────────────────


async def consume_stats(
    session: "Session", call: Call, command: RemotingCommand
) -> RemotingCommand:
    """
    208: who shares by pop stands where the brokers say; who reads by offset, where it committed.
    """
    topic, group = command.fields.get("topic", ""), text_field(command.fields, "consumerGroup")
    require(session, call, topic, group, "consume")
    fields = _fields(call, command)
    found = await ask_all(session, fields.get("topic", ""), command.code, fields)
    own: dict[Any, Any] = {}
    for queue, offset in session.host.members.offsets_of(group).items():
        if is_retry_topic(queue.topic) or topic not in ("", queue.topic):
            continue
        try:
            end = await session.host.services.topics.offset(
                qualified(call.tenant, queue.topic), queue.broker, queue.queue_id, at_ms=-1
            )
        except GatewayError:
            continue  # its broker is away
        own[_key_of(queue)] = {
            "brokerOffset": end, "consumerOffset": offset, "pullOffset": offset, "lastTimestamp": 0,
        }  # fmt: skip
    return _merged(command, found, own)


async def reset_offset(session: "Session", call: Call, command: RemotingCommand) -> RemotingCommand:
    """222: a group begins at a time anew, at all brokers."""
    topic, group = text_field(command.fields, "topic"), text_field(command.fields, "group")
    require(session, call, topic, group, "admin")
    fields = _fields(call, command)
    if session.host.members.offsets_of(group) or any(
        group in client.consumers for client in session.host.clients()
    ):
        fields[GROUP_IS_KNOWN] = "true"  # stores know only those that pop
    found = await ask_all(session, fields["topic"], command.code, fields)
    answer = _merged(command, found, {})
    if answer.code != ResponseCode.SUCCESS:
        return answer
    members = session.host.members
    body = bytes(answer.body)
    table = _object(body).get(TABLE, {})
    for key, offset in table.items():
        queue = _queue_of(key, topic)
        if members.offset(group, queue) is not None:
            members.commit(group, queue, int(offset))
    await members.write_offsets()
    _tell_readers(session, topic, group, body)
    return answer


def _tell_readers(session: "Session", topic: str, group: str, table: bytes) -> None:
    """220 to clients that read by offset: they drop what they hold and begin there."""
    fields = {"topic": topic, "group": group, "timestamp": "0", "isForce": "true"}
    for each in session.host.clients():
        consumer = each.consumers.get(group)
        if consumer is not None and (consumer.locked or not consumer.is_shared):
            code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
            each.peer.send_oneway(RemotingCommand(code, dict(fields), table))


# ── tables whose keys are objects ───────────────────────────────────────────────────────


def _object(body: bytes) -> dict[Any, Any]:
    """Raises PeerError."""
    found = parse(body) if body else {}
    if not isinstance(found, dict):
        raise PeerError("an answer of a broker is no object")
    return found


def _key_of(queue: Queue) -> tuple[tuple[str, str], ...]:
    return (
        ("brokerName", queue.broker),
        ("queueId", str(queue.queue_id)),
        ("topic", queue.topic),
    )


def _queue_of(key: Any, topic: str) -> Queue:
    named = dict(key)
    return Queue(topic, str(named.get("brokerName", "")), int(named.get("queueId", 0)))


def _merged(
    command: RemotingCommand, found: Sequence[tuple[str, BrokerAnswer]], own: Mapping[Any, Any]
) -> RemotingCommand:
    """The ``offsetTable`` of all answers; of a queue that *own* knows too, the later offset."""
    bodies = [_object(answer.body) for _, answer in found if answer.code == ResponseCode.SUCCESS]
    if not bodies and not own:
        return _first(command, found)
    table: dict[Any, Any] = {}
    members: dict[str, Any] = {}
    for body in bodies:
        table |= body.pop(TABLE, {})
        for name, value in body.items():
            is_rate = isinstance(value, float) and name in members
            members[name] = members[name] + value if is_rate else value
    for key, value in own.items():
        known = table.get(key)
        if known is None or int(known["consumerOffset"]) < value["consumerOffset"]:
            table[key] = value
    return command.answer(0, {}, _encode_table(table, members))


def _encode_table(table: Mapping[Any, Any], members: Mapping[str, Any]) -> bytes:
    items: list[tuple[object, object]] = []
    for key, value in table.items():
        named: dict[str, Any] = dict(key)
        items.append((named | {"queueId": int(named.get("queueId", 0))}, value))
    return encode_object_map(TABLE, items, **members)
