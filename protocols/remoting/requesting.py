"""Request and reply at the gateway: a client asks, a client answers (324 to 326)."""

from functools import partial
from typing import TYPE_CHECKING

from protocols import clock
from protocols.canonical import Call, Message
from protocols.errors import Code, Refused
from protocols.remoting.codes import ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.records import decode_properties, encode_host, offset_message_id
from protocols.remoting.replying import (
    CLUSTER,
    CORRELATION_ID,
    REPLY_TO,
    TTL,
    TTL_MS,
    push_reply,
    reply_answer,
    reply_of,
)
from protocols.rocketmq import Reply

if TYPE_CHECKING:
    from protocols.remoting.session import Session

PUSH_S_MAX = 3.0
"""How long the client that asked may take to accept an answer."""


async def request_of(session: "Session", message: Message) -> Message:
    """The message as it is to be stored: answers to it come to this gateway. Raises Refused."""
    named = dict(message.properties)
    topic, request_id = message.head.topic, named.get(CORRELATION_ID, "")
    if not request_id:
        raise Refused(Code.MESSAGE_CORRUPTED, topic, f"a request needs a {CORRELATION_ID}")
    told = named.get(TTL, "")
    wait_ms = int(told) if told.isascii() and told.isdigit() else TTL_MS
    replies = session.host.services.replies
    push = partial(_push, session)
    reply_to, cluster = await replies.asking(topic, request_id, wait_ms, push)
    changed = {REPLY_TO: reply_to, CLUSTER: cluster}
    kept = [pair for pair in message.properties if pair[0] not in changed]
    return message._replace(properties=(*kept, *changed.items()))


async def _push(session: "Session", reply: Reply) -> None:
    """The client that asked gets its answer. Raises Refused."""
    command = push_reply(reply, store_host=session.address, now_ms=clock.wall_ms())
    answer = await session.peer.request(command, PUSH_S_MAX)
    if answer.code != ResponseCode.SUCCESS:
        raise Refused(Code.INTERNAL_ERROR, reply.topic, answer.remark)


async def reply(session: "Session", call: Call, command: RemotingCommand) -> RemotingCommand:
    """324, 325: answered when the client that asked has it."""
    answer = reply_of(command, born_host=session.peer.address)
    if not session.host.services.permission.is_allowed(
        call, "publish", subject=answer.topic, topic=answer.topic
    ):
        raise Refused(Code.FORBIDDEN, answer.topic, "the ACL does not allow this answer")
    await session.host.services.replies.answer(answer)
    own_id = dict(decode_properties(answer.properties.encode())).get("UNIQ_KEY", "")
    host = encode_host(session.address)
    return command.answer(0, reply_answer(offset_message_id(host, 0), own_id))
