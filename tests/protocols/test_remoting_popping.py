"""Pops at the gateway's remoting front: handed on, nothing kept, nothing lost."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from protocols.errors import Refused
from protocols.remoting import popping
from protocols.remoting.bodies import BatchAck, BatchAckBody, QueryAssignmentBody, encode_body
from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.holdings import Queue
from protocols.remoting.private import RELEASE_FIELD
from protocols.rocketmq import BrokerAnswer
from tests.support.fake_broker import BROKER
from tests.support.fake_services import FakeServices
from tests.support.patience import PATIENCE_S
from tests.support.remoting_front import front
from tests.support.store_server import eventually

HANDLE = f"10 1700 30000 1005 0 {BROKER} 2 12"
NAMED = {"topic": "T", "consumerGroup": "g", "bname": BROKER}
FOUND = BrokerAnswer(
    0,
    {
        **{"popTime": "1700", "invisibleTime": "30000", "reviveQid": "1005"},
        **{"startOffsetInfo": "0 2 10;0 3 7", "msgOffsetInfo": "0 2 10,12;0 3 7"},
    },
    b"records",
    "FOUND",
)
DONE = BrokerAnswer(0, {}, b"", "")


@pytest.fixture
def services() -> FakeServices:
    services = FakeServices()
    services.broker.topics.add("T")
    return services


@pytest.fixture
async def client(services: FakeServices) -> AsyncIterator[RemotingClient]:
    async with front(services) as (host, port):
        client = await RemotingClient.connect(f"{host}:{port}")
        yield client
        await client.close()


async def ask(
    client: RemotingClient, code: int, body: bytes = b"", **fields: str
) -> RemotingCommand:
    return await client.request(RemotingCommand(code, {**NAMED, **fields}, body), PATIENCE_S)


async def test_a_pop_is_the_brokers(client: RemotingClient, services: FakeServices) -> None:
    services.brokers.answers = [FOUND]
    answer = await ask(client, RequestCode.POP_MESSAGE, queueId="-1", pollTime="90000")
    assert (answer.code, bytes(answer.body), answer.fields) == (0, b"records", FOUND.fields)
    ((topic, broker, code, fields, _),) = services.brokers.asked
    assert (topic, broker, code) == ("T", BROKER, RequestCode.POP_MESSAGE)
    assert fields["pollTime"] == "60000"  # whatever the client asks for


async def test_an_ack_goes_to_the_broker_of_its_handle(
    client: RemotingClient, services: FakeServices
) -> None:
    services.brokers.answers = [DONE]
    answer = await ask(
        client, RequestCode.ACK_MESSAGE, queueId="2", offset="12", extraInfo=HANDLE, bname=""
    )
    assert answer.code == 0
    assert services.brokers.asked[0][1] == BROKER


async def test_an_ack_waits_for_a_broker_that_is_away(
    client: RemotingClient, services: FakeServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client sends it once."""
    monkeypatch.setattr(popping, "AGAIN_S", 0.001)
    asking = asyncio.ensure_future(
        ask(client, RequestCode.ACK_MESSAGE, queueId="2", offset="12", extraInfo=HANDLE)
    )
    await eventually(lambda: len(services.brokers.asked) > 2, "it is asked again")
    services.brokers.answers = [DONE]
    assert (await asking).code == 0


async def test_what_comes_for_a_client_that_has_gone_is_given_back(
    client: RemotingClient, services: FakeServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, and its attempt does not count."""
    asked: list[tuple[int, dict[str, str]]] = []
    has_gone = asyncio.Event()

    async def hold(
        topic: str, broker: str, code: int, fields: dict[str, str], body: bytes = b"",
        *, wait_ms: int = 0,
    ) -> BrokerAnswer:  # fmt: skip
        asked.append((code, dict(fields)))
        if code != RequestCode.POP_MESSAGE:
            return DONE
        await has_gone.wait()
        return FOUND

    monkeypatch.setattr(services.brokers, "ask", hold)
    asking = asyncio.ensure_future(ask(client, RequestCode.POP_MESSAGE, queueId="-1"))
    await eventually(lambda: bool(asked), "the broker is asked")
    await client.close()
    with pytest.raises(Refused):
        await asking
    await eventually(lambda: not services.clients.connected, "the gateway knows")
    has_gone.set()
    await eventually(lambda: len(asked) == 4, "three messages are given back")
    for code, fields in asked[1:]:
        assert code == RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        assert (fields["invisibleTime"], fields[RELEASE_FIELD]) == ("0", "true")
    assert [(fields["queueId"], fields["offset"]) for _, fields in asked[1:]] == [
        ("2", "10"), ("2", "12"), ("3", "7"),
    ]  # fmt: skip


async def test_who_may_not_consume_pops_nothing(
    client: RemotingClient, services: FakeServices
) -> None:
    services.denied.add(("consume", "T"))
    acks = encode_body(BatchAckBody(broker_name=BROKER, acks=[BatchAck(c="g", t="T")]))
    for code, body in (
        (RequestCode.POP_MESSAGE, b""),
        (RequestCode.ACK_MESSAGE, b""),
        (RequestCode.CHANGE_MESSAGE_INVISIBLETIME, b""),
        (RequestCode.NOTIFICATION, b""),
        (RequestCode.BATCH_ACK_MESSAGE, acks),
    ):
        answer = await ask(client, code, body, extraInfo=HANDLE, offset="12")
        assert answer.code == ResponseCode.NO_PERMISSION
    assert services.brokers.asked == []


async def test_a_group_that_pops_is_told_so(client: RemotingClient, services: FakeServices) -> None:
    """As the brokers have it; while none can be asked it pulls."""
    modes = {"T": {"g": {"mode": "POP", "popShareQueueNum": 0}}}
    body = json.dumps({"messageRequestModeMap": modes}).encode()
    services.brokers.answers = [BrokerAnswer(0, {}, body, "")]
    asked = encode_body(QueryAssignmentBody(topic="T", consumer_group="g", client_id="c1"))
    answer = await ask(client, RequestCode.QUERY_ASSIGNMENT, asked)
    (mine,) = json.loads(answer.body)["messageQueueAssignments"]
    assert (mine["mode"], mine["messageQueue"]["queueId"]) == ("POP", -1)
    answer = await ask(client, RequestCode.QUERY_ASSIGNMENT, asked)
    assert json.loads(answer.body)["messageQueueAssignments"] == []  # it is no member


@pytest.mark.parametrize(("count", "mine"), [(0, [-1]), (1, [0, 1, 2]), (2, [-1]), (-1, [-1])])
def test_whose_queues_a_member_pops(count: int, mine: list[int]) -> None:
    queues = [Queue("T", BROKER, number) for number in range(4)]
    found = popping.pop_share(queues, ["a", "b", "c"], "a", count)
    assert [queue.queue_id for queue in found] == mine
