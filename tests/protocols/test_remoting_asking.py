"""What clients and tools ask the gateway's remoting front: all brokers, and its own clients."""

import json
from collections.abc import AsyncIterator

import pytest

from protocols.remoting.bodies import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
    encode_body,
)
from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.nearly_json import parse
from protocols.remoting.peer import Peer
from protocols.remoting.private import GROUP_IS_KNOWN
from protocols.remoting.records import (
    decode_records,
    encode_host,
    encode_record,
    offset_message_id,
)
from protocols.rocketmq import BrokerAnswer
from tests.support.fake_services import FakeServices
from tests.support.patience import PATIENCE_S
from tests.support.remoting_front import front

NOT_FOUND = BrokerAnswer(int(ResponseCode.QUERY_NOT_FOUND), {}, b"", "no such message")


class Client:
    """A client's end: it answers what it is asked with its own name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: list[RemotingCommand] = []
        self.remoting: RemotingClient

    async def connect(self, address: str) -> "Client":
        self.remoting = await RemotingClient.connect(address, push=self._asked)
        consumer = ConsumerData(
            group_name="g", subscription_data_set=[SubscriptionData(topic="T", sub_string="a")]
        )
        beat = HeartbeatData(
            client_id=self.name,
            consumer_data_set=[consumer],
            producer_data_set=[ProducerData(group_name="p")],
        )
        answer = await self.ask(RequestCode.HEART_BEAT, encode_body(beat))
        assert answer.code == 0, answer.remark
        return self

    def _asked(self, peer: Peer, commands: list[RemotingCommand]) -> None:
        self.asked += commands
        for command in commands:
            if not command.is_oneway:
                peer.send((command.answer(0, {}, self.name.encode()),))

    async def ask(self, code: int, body: bytes = b"", **fields: str) -> RemotingCommand:
        return await self.remoting.request(RemotingCommand(code, fields, body), PATIENCE_S)


@pytest.fixture
def services() -> FakeServices:
    services = FakeServices()
    services.broker.topics.add("T")
    services.brokers.brokers = ["a", "b"]
    return services


@pytest.fixture
async def address(services: FakeServices) -> AsyncIterator[str]:
    async with front(services) as (host, port):
        yield f"{host}:{port}"


@pytest.fixture
async def client(address: str) -> AsyncIterator[Client]:
    client = await Client("c1").connect(address)
    yield client
    await client.remoting.close()


def record(body: bytes, topic: str = "T") -> bytes:
    return encode_record(topic, body, log_position=7, store_host=encode_host("10.0.0.1:10911"))


async def test_messages_of_all_brokers(
    client: Client, services: FakeServices, address: str
) -> None:
    """A key is looked for everywhere; who asks for more about a message asks this gateway."""
    services.brokers.answers = [
        BrokerAnswer(0, {"indexLastUpdateTimestamp": "1"}, record(b"one") + record(b"two"), ""),
        BrokerAnswer(0, {}, record(b"three"), ""),
    ]
    answer = await client.ask(RequestCode.QUERY_MESSAGE, topic="T", key="k", maxNum="32")
    found = decode_records(answer.body)
    assert [message.body for message in found] == [b"one", b"two", b"three"]
    hosts = {message.record[64:72] for message in found}
    assert hosts == {encode_host(address)}
    services.brokers.answers = [NOT_FOUND, NOT_FOUND]
    answer = await client.ask(RequestCode.QUERY_MESSAGE, topic="T", key="x", maxNum="32")
    assert (answer.code, answer.remark) == (NOT_FOUND.code, NOT_FOUND.remark)


async def test_a_question_to_each_broker_is_answered_once_with_all_they_have(
    client: Client, services: FakeServices
) -> None:
    """Clients put the answers together: Java's found each message once per broker."""
    found = []
    for _ in range(2):
        services.brokers.answers = [BrokerAnswer(0, {}, record(b"one"), ""), NOT_FOUND]
        for _ in services.brokers.brokers:
            answer = await client.ask(RequestCode.QUERY_MESSAGE, topic="T", key="k", maxNum="32")
            found.append(len(decode_records(answer.body)))
    assert found == [1, 0, 1, 0]


async def test_the_offset_of_a_time_is_the_brokers(client: Client, services: FakeServices) -> None:
    """It is asked for the first or the last of that time; the gateway answered the first."""
    services.brokers.answers = [BrokerAnswer(0, {"offset": "3"}, b"", "")]
    wanted = {"topic": "T", "queueId": "0", "timestamp": "5", "boundaryType": "UPPER", "bname": "a"}
    answer = await client.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, **wanted)
    assert (answer.code, answer.fields["offset"]) == (0, "3")
    assert [(broker, fields) for _, broker, _, fields, _ in services.brokers.asked] == [
        ("a", wanted)
    ]


async def test_a_message_by_its_place(client: Client, services: FakeServices) -> None:
    """The id names the gateway: each broker is asked, and its topic decides."""
    services.brokers.answers = [
        BrokerAnswer(0, {}, record(b"other", "Other"), ""),
        BrokerAnswer(0, {}, record(b"this"), ""),
    ]
    answer = await client.ask(RequestCode.VIEW_MESSAGE_BY_ID, topic="T", offset="7")
    assert [message.body for message in decode_records(answer.body)] == [b"this"]
    services.denied.add(("consume", "Other"))  # clients of 4.9 name no topic
    services.brokers.answers = [BrokerAnswer(0, {}, record(b"x", "Other"), ""), NOT_FOUND]
    answer = await client.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset="7")
    assert answer.code == ResponseCode.NO_PERMISSION


def table(broker: str, queue_id: int, offset: int) -> bytes:
    row = f'{{"brokerName":"{broker}","queueId":{queue_id},"topic":"T"}}'
    value = f'{{"brokerOffset":9,"consumerOffset":{offset},"lastTimestamp":0}}'
    return f'{{"offsetTable":{{{row}:{value}}},"consumeTps":1.5}}'.encode()


async def test_progress_of_all_brokers(client: Client, services: FakeServices) -> None:
    services.brokers.answers = [
        BrokerAnswer(0, {}, table("a", 0, 3), ""),
        BrokerAnswer(0, {}, table("b", 0, 4), ""),
    ]
    answer = await client.ask(RequestCode.GET_CONSUME_STATS, topic="T", consumerGroup="g")
    found = parse(answer.body)
    assert found["consumeTps"] == 3.0
    offsets = {dict(key)["brokerName"]: row["consumerOffset"] for key, row in
               found["offsetTable"].items()}  # fmt: skip
    assert offsets == {"a": 3, "b": 4}


async def test_progress_of_who_reads_by_offset(client: Client, services: FakeServices) -> None:
    """It is the gateways' own; brokers do not know it."""
    await client.ask(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        topic="T", consumerGroup="pull", queueId="1", commitOffset="5", bname="a",
    )  # fmt: skip
    services.brokers.answers = [BrokerAnswer(0, {}, b'{"offsetTable":{}}', "")] * 2
    answer = await client.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="pull")
    ((key, row),) = parse(answer.body)["offsetTable"].items()
    assert (dict(key)["queueId"], row["consumerOffset"]) == ("1", 5)


async def test_a_tools_commit_moves_a_group_of_which_nobody_is_there(
    address: str, services: FakeServices
) -> None:
    """Old tools reset so; what pops is at the brokers, and moves only if it is told."""
    commit = {"topic": "T", "consumerGroup": "gone", "queueId": "1", "bname": "a"}
    services.brokers.answers = [BrokerAnswer(0, {}, b"", "")]
    tool = await RemotingClient.connect(address)
    fields = commit | {"commitOffset": "0"}
    answer = await tool.request(
        RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, fields), PATIENCE_S
    )
    assert answer.code == 0
    await tool.close()
    ((_, broker, code, fields, _),) = services.brokers.asked
    assert (broker, code) == ("a", RequestCode.UPDATE_CONSUMER_OFFSET)
    assert (fields["commitOffset"], fields[GROUP_IS_KNOWN]) == ("0", "true")


async def test_a_reset_moves_what_the_gateways_keep(client: Client, services: FakeServices) -> None:
    """Offsets of readers are the directory's; readers that are here are told (220)."""
    read = {"topic": "T", "consumerGroup": "g", "queueId": "1", "bname": "a"}
    lock = {"consumerGroup": "g", "clientId": "c1", "mqSet": [
        {"topic": "T", "brokerName": "a", "queueId": 1}]}  # fmt: skip
    await client.ask(RequestCode.LOCK_BATCH_MQ, json.dumps(lock).encode())
    await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **read, commitOffset="5")
    row = b'{"offsetTable":{{"brokerName":"a","queueId":1,"topic":"T"}:2}}'
    services.brokers.answers = [BrokerAnswer(0, {}, row, "")] * 2
    answer = await client.ask(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, topic="T", group="g", timestamp="0"
    )
    assert answer.code == 0
    answer = await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, **read)
    assert answer.fields["offset"] == "2"
    assert RequestCode.RESET_CONSUMER_CLIENT_OFFSET in [command.code for command in client.asked]
    services.denied.add(("admin", "T"))
    answer = await client.ask(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, topic="T", group="g", timestamp="0"
    )
    assert answer.code == ResponseCode.NO_PERMISSION


async def test_who_is_connected(client: Client, address: str) -> None:
    answer = await client.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="g")
    body = json.loads(answer.body)
    (connection,) = body["connectionSet"]
    assert (connection["clientId"], connection["clientAddr"]) == (
        "c1",
        client.remoting.peer.local_address,
    )
    assert body["subscriptionTable"]["T"]["subString"] == "a"
    answer = await client.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="none")
    assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
    answer = await client.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="p")
    assert len(json.loads(answer.body)["connectionSet"]) == 1
    answer = await client.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
    brokers = parse(answer.body)["brokerAddrTable"]
    assert {name: item["brokerAddrs"] for name, item in brokers.items()} == {
        "a": {"0": address},
        "b": {"0": address},
    }


async def test_clients_answer_for_themselves(client: Client, services: FakeServices) -> None:
    answer = await client.ask(
        RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup="g", clientId="c1", jstackEnable="true"
    )
    assert bytes(answer.body) == b"c1"
    assert client.asked[-1].fields["jstackEnable"] == "true"
    services.brokers.answers = [BrokerAnswer(0, {}, record(b"x"), ""), NOT_FOUND]
    answer = await client.ask(
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        consumerGroup="g", clientId="c1", topic="T",
        msgId=offset_message_id(encode_host("10.0.0.1:10911"), 7),
    )  # fmt: skip
    assert bytes(answer.body) == b"c1"
    assert [message.body for message in decode_records(client.asked[-1].body)] == [b"x"]
    answer = await client.ask(
        RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup="g", clientId="nobody"
    )
    assert answer.code == ResponseCode.QUERY_NOT_FOUND
