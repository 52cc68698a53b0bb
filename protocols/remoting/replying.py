"""
Request and reply: an answer travels as a send that nobody stores (324 to 326).

A request names in its properties who waits (``REPLY_TO_CLIENT``), by which id it will know the
answer (``CORRELATION_ID``) and how long it waits (``TTL``, in ms). The answer is pushed to that
client over its own connection.

Source: Apache RocketMQ 5, ``ReplyMessageProcessor``, ``MessageUtil.createReplyMessage``.
"""

from typing import Final

from protocols.remoting.codes import RequestCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.headers import int_field, send_header, text_field
from protocols.remoting.records import decode_properties
from protocols.rocketmq import Reply

REPLY_TO: Final = "REPLY_TO_CLIENT"
CORRELATION_ID: Final = "CORRELATION_ID"
CLUSTER: Final = "CLUSTER"
TTL: Final = "TTL"
TTL_MS: Final = 3000
"""Of a request that does not say how long it waits (Java's default)."""

REPLY_SUFFIX: Final = "_REPLY_TOPIC"
"""Answers are sent to ``<cluster>_REPLY_TOPIC``, by the ``CLUSTER`` property of the request."""


def reply_of(command: RemotingCommand, *, born_host: str = "") -> Reply:
    """What a SEND_REPLY_MESSAGE (324, 325) or a push (326) carries. Raises HeaderError."""
    if command.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
        fields = command.fields
        properties = text_field(fields, "properties", "")
        named = dict(decode_properties(properties.encode()))
        return Reply(
            producer_group=text_field(fields, "producerGroup", ""),
            topic=text_field(fields, "topic"),
            to=named.get(REPLY_TO, ""),
            request_id=named.get(CORRELATION_ID, ""),
            properties=properties,
            body=bytes(command.body),
            sys_flag=int_field(fields, "sysFlag", 0),
            flag=int_field(fields, "flag", 0),
            born_ms=int_field(fields, "bornTimestamp", 0),
            born_host=text_field(fields, "bornHost", ""),
        )
    header = send_header(command)
    named = dict(decode_properties(header.properties.encode()))
    return Reply(
        producer_group=header.producer_group,
        topic=header.topic,
        to=named.get(REPLY_TO, ""),
        request_id=named.get(CORRELATION_ID, ""),
        properties=header.properties,
        body=bytes(command.body),
        sys_flag=header.sys_flag,
        flag=header.flag,
        born_ms=header.born_ms,
        born_host=born_host,
    )


def send_reply(reply: Reply) -> RemotingCommand:
    """SEND_REPLY_MESSAGE, for a broker that may know the client."""
    return RemotingCommand(
        RequestCode.SEND_REPLY_MESSAGE, _fields(reply) | {"batch": "false"}, reply.body
    )


def push_reply(reply: Reply, *, store_host: str, now_ms: int) -> RemotingCommand:
    """PUSH_REPLY_MESSAGE_TO_CLIENT: the answer, with where and when it passed here."""
    fields = _fields(reply) | {
        "bornHost": reply.born_host,
        "storeHost": store_host,
        "storeTimestamp": str(now_ms),
    }
    if "PUSH_REPLY_TIME\x01" not in reply.properties:
        fields["properties"] += f"PUSH_REPLY_TIME\x01{now_ms}\x02"
    return RemotingCommand(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, fields, reply.body)


def _fields(reply: Reply) -> dict[str, str]:
    text = reply.properties
    return {
        "producerGroup": reply.producer_group,
        "topic": reply.topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": str(reply.sys_flag),
        "bornTimestamp": str(reply.born_ms),
        "flag": str(reply.flag),
        "properties": text if not text or text.endswith("\x02") else text + "\x02",
        "reconsumeTimes": "0",
        "unitMode": "false",
    }


def reply_answer(message_id: str, transaction_id: str) -> dict[str, str]:
    """Fields of a reply's answer: a send's, but this message has no place."""
    return {
        "msgId": message_id,
        "queueId": "0",
        "queueOffset": "0",
        "transactionId": transaction_id,
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "false",
    }
