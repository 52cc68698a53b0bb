"""
Transactions and recalls of remoting clients at the gateway: 37 and 370 in, 39 out.

Where a half message lies is in what the producer was answered: broker name, and the position in
its offset id. Any gateway can end its transaction; older clients name no broker, so a connection
remembers what it sent.
"""

from functools import partial
from typing import TYPE_CHECKING, Final

from protocols.canonical import Call, Message, SendResult, StoredMessage
from protocols.errors import Code, Refused
from protocols.remoting.codes import RequestCode, SysFlag
from protocols.remoting.command import ONEWAY_FLAG, RemotingCommand
from protocols.remoting.delays import RecallHandle
from protocols.remoting.headers import int_field, text_field
from protocols.remoting.mapping import qualified
from protocols.remoting.numbering import ALL_BROKERS
from protocols.remoting.records import (
    encode_host,
    encode_properties,
    encode_record,
    offset_message_id,
)
from protocols.rocketmq import HalfCheck, HalfPlace

if TYPE_CHECKING:
    from protocols.remoting.session import Session

GROUPS_MAX: Final = 256
"""Producer groups of one connection."""

HALVES_MAX: Final = 4096
"""Half messages of one connection whose place is remembered."""


def held_fields(
    session: "Session", call: Call, message: Message, result: SendResult, now_ms: int
) -> dict[str, str]:
    """What the answer of a send says more, if nobody sees the message yet."""
    if result.queue_offset >= 0:
        if message.deliver_at_ms <= now_ms or message.producer_group:
            return {}
        fields = {}  # held in a queue of an Apache broker's own
    else:
        fields = {"queueOffset": str(result.log_position)}
    if message.producer_group:
        _remember(session, result.log_position, result.message_id, result.cluster, result.broker)
    elif message.deliver_at_ms > now_ms:
        topic = qualified(call.tenant, message.head.topic)
        handle = RecallHandle(topic, result.broker, message.deliver_at_ms, result.message_id)
        fields["recallHandle"] = handle.encode()
    return fields


def _remember(
    session: "Session", position: int, identifier: str, cluster: str, broker: str
) -> None:
    """For clients that name no broker when they end a transaction."""
    places = session.halves
    if len(places) >= HALVES_MAX:
        del places[next(iter(places))]
    places[position, identifier] = (cluster, broker)


async def end_transaction(
    session: "Session", call: Call, command: RemotingCommand
) -> RemotingCommand:
    """37: commit, roll back, or not known yet (then it is asked again)."""
    fields = command.fields
    how = int_field(fields, "commitOrRollback")
    if how not in (SysFlag.TRANSACTION_COMMIT, SysFlag.TRANSACTION_ROLLBACK):
        return command.answer()
    position = int_field(fields, "commitLogOffset")
    identifier = fields.get("transactionId", "") or fields.get("msgId", "")
    key = (position, identifier)
    if not identifier:  # two stores may have a half message at one position: rather the last
        key = next((each for each in reversed(session.halves) if each[0] == position), key)
    cluster, broker = session.halves.pop(key, ("", ""))
    if fields.get("bname", "") not in ("", ALL_BROKERS):
        broker = fields["bname"]
    if not broker:
        hint = "the request names no broker, and this connection did not send the message"
        raise Refused(Code.INVALID_TRANSACTION_ID, str(position), hint)
    group = qualified(call.tenant, text_field(fields, "producerGroup"))
    place = HalfPlace(
        cluster,
        broker,
        position,
        int_field(fields, "tranStateTableOffset"),
        group,
        identifier,
    )
    is_commit = how == SysFlag.TRANSACTION_COMMIT
    await session.host.services.held.end_transaction(place, is_commit=is_commit)
    return command.answer()


async def recall(session: "Session", call: Call, command: RemotingCommand) -> RemotingCommand:
    """370."""
    topic = text_field(command.fields, "topic")
    if not session.host.services.permission.is_allowed(call, "publish", subject=topic, topic=topic):
        raise Refused(Code.FORBIDDEN, topic, "the ACL does not allow this recall")
    stored_topic = qualified(call.tenant, topic)
    handle = text_field(command.fields, "recallHandle")
    message_id = await session.host.services.held.recall(stored_topic, handle)
    return command.answer(0, {"msgId": message_id})


# ── questions ───────────────────────────────────────────────────────────────────────────


def serve_checks(session: "Session", call: Call, groups: set[str]) -> None:
    """The client has producers of these groups: they may be asked, others not any more."""
    for group in session.checks.keys() - groups:
        session.checks.pop(group)()
    for group in groups - session.checks.keys():
        if len(session.checks) >= GROUPS_MAX:
            return
        session.checks[group] = session.host.services.held.answer_checks(
            qualified(call.tenant, group), partial(_ask, session, group)
        )


def _ask(session: "Session", group: str, check: HalfCheck) -> None:
    """CHECK_TRANSACTION_STATE to the client."""
    place, message = check.place, check.message
    _remember(session, place.position, message.message_id, place.cluster, place.broker)
    fields = {
        "topic": message.topic,
        "tranStateTableOffset": str(place.table_offset),
        "commitLogOffset": str(place.position),
        "msgId": message.message_id,
        "transactionId": message.message_id,
        "offsetMsgId": offset_message_id(encode_host(session.address), place.position),
        "bname": place.broker,
    }
    record = message.record if group == place.group else _of_group(message, group)
    command = RemotingCommand(RequestCode.CHECK_TRANSACTION_STATE, fields, record, flag=ONEWAY_FLAG)
    session.peer.send_oneway(command)


def _of_group(message: StoredMessage, group: str) -> bytes:
    """The record under the group's name as its client knows it, without the tenant."""
    pairs = [
        (name, group if name == "PGROUP" else value) for name, value in message.property_pairs()
    ]
    return encode_record(
        message.topic,
        message.body,
        queue_id=message.queue_id,
        properties_text=encode_properties(pairs),
        log_position=message.log_position,
        born_ms=message.born_ms,
        store_ms=message.store_ms,
        sys_flag=message.sys_flag & ~(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6),
        flag=message.flag,
    )
