"""Sends and pulls by RocketMQ's standard codes, as Apache's clients write them."""

from protocols.remoting import bodies
from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from tests.support.store_server import ask


def send_fields(topic: str = "T", queue_id: int = 0, **more: str) -> dict[str, str]:
    fields = {"a": "p", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id)}
    return fields | {"f": "0", "g": "1700000000000", "h": "0"} | more


async def send(
    client: RemotingClient, body: bytes, topic: str = "T", queue_id: int = 0, **more: str
) -> RemotingCommand:
    fields = send_fields(topic, queue_id, **more)
    answer = await ask(client, RequestCode.SEND_MESSAGE_V2, fields, body)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer


def pull_fields(offset: int, topic: str = "T", queue_id: int = 0, **more: str) -> dict[str, str]:
    fields = {
        "consumerGroup": "G",
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
    }
    return fields | more


async def pull(client: RemotingClient, offset: int, **more: str) -> RemotingCommand:
    return await ask(client, RequestCode.PULL_MESSAGE, pull_fields(offset, **more))


async def make_group(client: RemotingClient, name: str = "G") -> None:
    body = bodies.encode_body(bodies.GroupConfig(group_name=name))
    answer = await ask(client, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
