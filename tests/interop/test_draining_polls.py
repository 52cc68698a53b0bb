"""
A drain while clients wait in long polls.

gRPC and HTTP are answered; remoting clients lose the connection, as they do when Apache's broker
stops, and ask elsewhere. Then the ports refuse.
"""

import asyncio
import json
import urllib.request
from collections.abc import Iterator

import pytest

from protocols.errors import Code, Refused
from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import RequestCode
from protocols.remoting.command import RemotingCommand
from tests.demo.cluster import create_topic
from tests.interop.test_grpc_gateway import Client
from tests.support.patience import PATIENCE_S
from tests.support.processes import Daemon, Daemons

pytestmark = pytest.mark.client

TOPIC = "polled"
POLL_S = 25
"""Longer than the five seconds in which the last clients may go by themselves."""


@pytest.fixture(scope="module")
def up() -> Iterator[Daemon]:
    with Daemons() as daemons:
        up = daemons.up()
        create_topic(up.addresses["store"], TOPIC)
        yield up


def post(address: str, path: str, body: object, method: str = "POST", **headers: str) -> object:
    request = urllib.request.Request(
        f"http://{address}{path}", json.dumps(body).encode(), headers, method=method
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return json.load(answer)


def operate(up: Daemon, method: str, body: object = None) -> dict[str, object]:
    token = up.log().partition("?token=")[2].split()[0]
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    found = post(up.addresses["admin"], "/api/drain", body, method, **headers)
    assert isinstance(found, dict)
    return found


async def poll_grpc(up: Daemon) -> int:
    client = Client(up, TOPIC)
    try:
        items = [item async for item in client.receive(wait_ms=POLL_S * 1000)]
        return next(item.status.code for item in items if item.HasField("status"))
    finally:
        await client.channel.close()


async def poll_http(up: Daemon) -> object:
    path = f"/topics/{TOPIC}/subscriptions/http:receive"
    asked = {"maxWaitTime": POLL_S}
    return await asyncio.to_thread(post, up.addresses["events"], path, asked)


async def poll_remoting(client: RemotingClient) -> int:
    """PULL at the end of a queue, that may wait and brings its filter."""
    fields = {
        **{"consumerGroup": "puller", "topic": TOPIC, "queueId": "0", "queueOffset": "0"},
        **{"maxMsgNums": "8", "sysFlag": "6", "commitOffset": "0", "subVersion": "0"},
        **{"suspendTimeoutMillis": str(POLL_S * 1000), "subscription": "*"},
    }
    answer = await client.request(RemotingCommand(RequestCode.PULL_MESSAGE, fields), PATIENCE_S)
    return answer.code


async def waiting_count(store: RemotingClient) -> int:
    """Long polls at the store; the gateway's own of the directory is always among them."""
    while True:
        asked = RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO)
        found = json.loads((await store.request(asked, PATIENCE_S)).body)["table"]
        if count := int(found["pullThreadPoolQueueSize"]):
            return count


async def test_long_polls_are_answered_before_the_listeners_close(up: Daemon) -> None:
    """The closed ports refuse; undone, all is as before."""
    store = await RemotingClient.connect(up.addresses["store"])
    others = await waiting_count(store)
    client = await RemotingClient.connect(up.addresses["remoting"])
    polls = [asyncio.ensure_future(poll) for poll in (poll_grpc(up), poll_http(up))]
    polls.append(asyncio.ensure_future(poll_remoting(client)))
    async with asyncio.timeout(PATIENCE_S):
        while await waiting_count(store) < others + len(polls):
            pass
    assert not any(poll.done() for poll in polls)
    assert (await asyncio.to_thread(operate, up, "POST", {"over": "0s"}))["stage"] == "draining"
    answers = await asyncio.gather(*polls, return_exceptions=True)
    assert answers[0] == Code.MESSAGE_NOT_FOUND
    assert answers[1] == {"value": []}
    assert isinstance(answers[2], Refused)
    assert answers[2].code == Code.HA_NOT_AVAILABLE
    async with asyncio.timeout(PATIENCE_S):
        while (await asyncio.to_thread(operate, up, "GET"))["stage"] != "drained":
            pass
    await store.close()
    await client.close()
    for listener in ("grpc", "events", "remoting"):
        with pytest.raises(OSError):  # noqa: PT011  refused or reset, as the kernel says
            await asyncio.open_connection(*up.address(listener))
    assert (await asyncio.to_thread(operate, up, "DELETE"))["stage"] == "serving"
    grpc_client = Client(up, TOPIC)
    await grpc_client.send(b"after")
    (message,) = await grpc_client.messages()
    assert message.body == b"after"
    await grpc_client.channel.close()
