"""
What tools ask a connected client, through the store: 220, 221, 223, 307, 309.

The store hands the question to the client's connection and the client's answer back. A client
that stays silent costs its asker one remark, nothing else.
"""

from functools import partial
from itertools import count
from typing import Final

from protocols.errors import Code, Refused
from protocols.remoting import bodies
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.headers import text_field
from protocols.remoting.records import parse_offset_message_id
from store.handlers.client_table import Client
from store.handlers.connection import Connection
from store.handlers.context import Context, Handler

RELAY_S: Final = 10.0
"""How long a client may take; the tools themselves wait 5 to 60 s."""

_numbers: Final = count()


class Answers:
    """The one answer of a client to a question that somebody else asked."""

    def __init__(self, context: Context, connection: Connection, request: RemotingCommand) -> None:
        self._context = context
        self._connection = connection
        self._request = request
        self._key = ("relay", next(_numbers))
        self._answer: RemotingCommand | None = None

    def ask(self, client: Client, command: RemotingCommand) -> None:
        link = client.link
        if not isinstance(link, Connection):
            raise Refused(Code.NOT_FOUND, client.client_id, "the client has no connection here")
        self._context.waits.add(
            self._connection,
            (self._key,),
            wait_s=RELAY_S,
            wake=self._give,
            expire=partial(self._late, client),
        )
        link.peer.call(command, self._answered)

    def _answered(self, answer: RemotingCommand | None) -> None:
        self._answer = answer or self._request.answer(
            ResponseCode.SYSTEM_ERROR, remark="the client's connection was lost"
        )
        self._context.waits.wake(self._key)

    def _give(self) -> bool:
        answer = self._answer
        assert answer is not None
        told = self._request.answer(answer.code, None, answer.body, remark=answer.remark)
        self._connection.answer(self._request, told)
        return True

    def _late(self, client: Client) -> None:
        remark = f"consumer <{client.client_id}> did not answer within {RELAY_S:.0f} s"
        self._connection.answer(
            self._request, self._request.answer(ResponseCode.CONSUME_MSG_TIMEOUT, remark=remark)
        )


def find_client(context: Context, group: str, client_id: str) -> Client:
    """A member of *group*; any if *client_id* is empty. Raises Refused."""
    members = context.clients.consumers(group)
    for member in members:
        if client_id in ("", member.client_id):
            return member
    raise Refused(
        Code.NOT_FOUND, group, f"the consumer <{group}> <{client_id or 'any'}> not online"
    )


def running_info(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """What a consumer says about itself, its threads if asked for (307)."""
    fields = request.fields
    group = text_field(fields, "consumerGroup")
    client = find_client(context, group, fields.get("clientId", ""))
    told = {
        "consumerGroup": group,
        "clientId": client.client_id,
        "jstackEnable": fields.get("jstackEnable", "false"),
    }
    command = RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO, told)
    Answers(context, connection, request).ask(client, command)
    return None


def consume_directly(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """One message is handed to one consumer now, apart from all offsets (309)."""
    fields = request.fields
    group = text_field(fields, "consumerGroup")
    client = find_client(context, group, fields.get("clientId", ""))
    named = parse_offset_message_id(fields.get("msgId", ""))
    if named is None:
        raise Refused(Code.ILLEGAL_MESSAGE_ID, "msgId", "is no offset message id")
    record = context.engine.message_at(named[1])
    told = {**fields, "brokerName": context.config.name}
    command = RemotingCommand(RequestCode.CONSUME_MESSAGE_DIRECTLY, told, record)
    Answers(context, connection, request).ask(client, command)
    return None


def consumer_status(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Offsets as the members of a group hold them (223); ours, for members of other languages."""
    fields = request.fields
    group, topic = text_field(fields, "group"), text_field(fields, "topic")
    wanted = fields.get("clientAddr", "")
    members = [
        member.client_id
        for member in context.clients.consumers(group)
        if wanted in ("", member.client_id)
    ]
    if not members:
        return request.answer(
            ResponseCode.CONSUMER_NOT_ONLINE, remark=f"the consumer group[{group}] not online"
        )
    config = context.topic(topic)
    items = []
    for queue_id in range(config.read_queue_count if config is not None else 0):
        offset = context.done_offset(group, topic, queue_id)
        if offset >= 0:
            queue = bodies.MessageQueue(
                topic=topic, broker_name=context.config.name, queue_id=queue_id
            )
            items.append((queue, offset))
    tables = b",".join(
        [
            bodies.encode_object_map(member, items)[1:-1]  # the member without the outer braces
            for member in members
        ]
    )
    body = b'{"consumerTable":{' + tables + b'},"messageQueueTable":{}}'
    return request.answer(body=body)


HANDLERS: dict[int, Handler] = {
    RequestCode.GET_CONSUMER_RUNNING_INFO: running_info,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: consume_directly,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: consumer_status,
}
