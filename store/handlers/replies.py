"""Request and reply: an answer goes to the client that asked, over its connection (324)."""

from protocols import clock
from protocols.errors import Code, Refused
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.records import decode_properties, offset_message_id
from protocols.remoting.replying import push_reply, reply_answer, reply_of
from store.handlers.connection import Connection
from store.handlers.context import Context, Handler


def reply(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """Push an answer to who asked; answered when that client has it."""
    answer = reply_of(request, born_host=connection.address)
    client_id = answer.to
    link = context.clients.link_of(client_id) if client_id else None
    if not isinstance(link, Connection) or not link.is_open:
        hint = f"push reply message fail, channel of <{client_id}> not found."
        raise Refused(Code.INTERNAL_ERROR, answer.topic, hint)

    def answered(told: RemotingCommand | None) -> None:
        if told is None or told.code != ResponseCode.SUCCESS:
            reason = told.remark if told is not None else "connection lost"
            hint = f"push reply message to {client_id} fail: {reason}"
            connection.answer(request, request.answer(ResponseCode.SYSTEM_ERROR, remark=hint))
            return
        own_id = dict(decode_properties(answer.properties.encode())).get("UNIQ_KEY", "")
        fields = reply_answer(offset_message_id(context.store_host, 0), own_id)
        connection.answer(request, request.answer(fields=fields))

    command = push_reply(answer, store_host=context.ip_address, now_ms=clock.wall_ms())
    link.peer.call(command, answered)
    return None


HANDLERS: dict[int, Handler] = {
    RequestCode.SEND_REPLY_MESSAGE: reply,
    RequestCode.SEND_REPLY_MESSAGE_V2: reply,
}
"""Answers to requests; the requests themselves are sends."""
