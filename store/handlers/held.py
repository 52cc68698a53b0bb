"""
Held messages by standard codes: recall (370), the end of a transaction (37), and the question
how one ended (39), which goes to a live producer of its group.

Source: Apache RocketMQ 5, ``RecallMessageProcessor``, ``EndTransactionProcessor``,
``AbstractTransactionalMessageCheckListener``.
"""

import logging
from typing import Final

from protocols import clock
from protocols.errors import Code, Refused
from protocols.remoting.codes import RequestCode, SysFlag
from protocols.remoting.command import ONEWAY_FLAG, RemotingCommand
from protocols.remoting.delays import parse_recall_handle
from protocols.remoting.headers import int_field, text_field
from protocols.remoting.records import offset_message_id
from store.handlers.connection import Connection
from store.handlers.context import Context, Handler
from store.log.messages import property_of, topic_of
from store.timers.holding import HalfCheck
from store.timers.records import check_record

logger = logging.getLogger("tidegate.store")

COMMIT: Final = int(SysFlag.TRANSACTION_COMMIT)
ROLLBACK: Final = int(SysFlag.TRANSACTION_ROLLBACK)


def recall(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Withdraw a delayed message; answered when that is durable."""
    topic = text_field(request.fields, "topic")
    if not context.config.recall:
        raise Refused(Code.FORBIDDEN, topic, "recall failed, operation is forbidden")
    handle = parse_recall_handle(text_field(request.fields, "recallHandle"))
    if handle is None:
        raise Refused(Code.PRECONDITION_FAILED, topic, "recall handle is invalid")
    if handle.topic != topic:
        raise Refused(Code.PRECONDITION_FAILED, topic, "topic of the recall handle is another")
    if handle.broker != context.config.name:
        raise Refused(Code.PRECONDITION_FAILED, topic, "broker of the recall handle is another")
    pending = context.engine.held.recall(topic, handle.due_ms, handle.message_id, clock.read())

    def answer(is_done: bool) -> RemotingCommand:
        if is_done:
            return request.answer(fields={"msgId": handle.message_id})
        hint = "no such message waits for its time any more"
        raise Refused(Code.PRECONDITION_FAILED, topic, hint)

    if not pending.value:
        return answer(False)
    context.when_durable(connection, request, pending, answer)
    return None


def end_transaction(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Commit, roll back, or say that it is not known yet; mostly oneway."""
    fields = request.fields
    group = text_field(fields, "producerGroup")
    position = int_field(fields, "commitLogOffset")
    what = int_field(fields, "commitOrRollback")
    if what not in (COMMIT, ROLLBACK):
        return request.answer()  # unknown: it is asked again
    if int_field(fields, "tranStateTableOffset", position) != position:
        hint = "the transaction state table offset wrong"
        raise Refused(Code.INTERNAL_ERROR, group, hint)
    pending = context.engine.held.end(position, group, clock.read(), is_commit=what == COMMIT)
    context.when_durable(connection, request, pending, lambda _: request.answer())
    return None


def send_checks(context: Context) -> None:
    """Ask a live producer of each group, in turn, how its transaction ended."""
    for check in context.engine.held.take_checks():
        links = [
            client.link
            for client in context.clients.producers(check.group)
            if isinstance(client.link, Connection) and client.link.is_open
        ]
        if not links:
            logger.info("no producer of %s to ask about the half message", check.group)
            continue
        context.check_turn += 1
        link = links[context.check_turn % len(links)]
        link.peer.send_oneway(_check_command(context, check))


def _check_command(context: Context, check: HalfCheck) -> RemotingCommand:
    """CHECK_TRANSACTION_STATE with the half message as its producer sent it."""
    record = check_record(check.record)
    message_id = property_of(record, b"UNIQ_KEY").decode("utf-8", "replace")
    fields = {
        "topic": topic_of(record),
        "tranStateTableOffset": str(check.position),
        "commitLogOffset": str(check.position),
        "msgId": message_id,
        "transactionId": message_id,
        "offsetMsgId": offset_message_id(context.store_host, check.position),
        "bname": context.config.name,
    }
    return RemotingCommand(RequestCode.CHECK_TRANSACTION_STATE, fields, record, flag=ONEWAY_FLAG)


HANDLERS: dict[int, Handler] = {
    RequestCode.RECALL_MESSAGE: recall,
    RequestCode.END_TRANSACTION: end_transaction,
}
