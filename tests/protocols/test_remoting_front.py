"""The gateway's remoting front over sockets, on services in memory."""

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Sequence

import pytest

from protocols.directory import Put, PutResult
from protocols.errors import Code, ConfigError, Refused
from protocols.pipeline import TopicInfo
from protocols.remoting.adapter import RemotingAdapter
from protocols.remoting.bodies import (
    ConsumerData,
    HeartbeatData,
    LockBody,
    MessageQueue,
    ProducerData,
    QueryAssignmentBody,
    RouteData,
    SubscriptionData,
    decode_body,
    encode_body,
)
from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import PullFlag, RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.headers import SendHeader
from protocols.remoting.peer import Peer
from protocols.remoting.records import decode_records
from protocols.remoting.signing import ACCESS_KEY, SIGNATURE, signed_content
from protocols.rocketmq import HalfCheck, HalfPlace
from tests.support.fake_broker import BROKER
from tests.support.fake_services import FakeServices
from tests.support.patience import PATIENCE_S
from tests.support.store_server import eventually


class Client:
    """A RocketMQ client's end, and what the gateway pushed to it."""

    def __init__(self) -> None:
        self.remoting: RemotingClient
        self.pushed: asyncio.Queue[RemotingCommand] = asyncio.Queue()

    async def connect(self, address: tuple[str, int]) -> "Client":
        self.remoting = await RemotingClient.connect(f"{address[0]}:{address[1]}", push=self._push)
        return self

    def _push(self, peer: Peer, commands: Sequence[RemotingCommand]) -> None:
        for command in commands:
            self.pushed.put_nowait(command)

    async def ask(self, code: int, body: bytes = b"", **fields: object) -> RemotingCommand:
        texts = {name: str(value) for name, value in fields.items()}
        return await self.remoting.request(RemotingCommand(code, texts, body), PATIENCE_S)

    async def send(self, topic: str, body: bytes, **changes: object) -> RemotingCommand:
        await self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic)  # as every client does
        header = SendHeader(producer_group="p", topic=topic, queue_id=0, broker=BROKER)
        header = header._replace(**changes)  # type: ignore[arg-type]
        command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, header.to_fields(), body)
        return await self.remoting.request(command, PATIENCE_S)

    async def join(self, group: str, topic: str, client_id: str = "c1", **changes: str) -> None:
        consumer = ConsumerData(
            group_name=group,
            consume_from_where="CONSUME_FROM_FIRST_OFFSET",
            subscription_data_set=[SubscriptionData(topic=topic)],
            **changes,  # type: ignore[arg-type]
        )
        beat = HeartbeatData(
            client_id=client_id,
            consumer_data_set=[consumer],
            producer_data_set=[ProducerData(group_name="p")],
        )
        answer = await self.ask(RequestCode.HEART_BEAT, encode_body(beat))
        assert answer.code == 0, answer.remark

    async def pull(
        self, group: str, topic: str, offset: int = 0, wait_ms: int = 0, **fields: object
    ) -> RemotingCommand:
        base: dict[str, object] = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": 0,
            "queueOffset": offset,
            "maxMsgNums": 32,
            "sysFlag": int(PullFlag.SUSPEND) if wait_ms else 0,
            "commitOffset": 0,
            "suspendTimeoutMillis": wait_ms,
            "subVersion": 0,
            "bname": BROKER,
        }
        return await self.ask(RequestCode.PULL_MESSAGE, **{**base, **fields})


@pytest.fixture
def services() -> FakeServices:
    return FakeServices()


@pytest.fixture
async def address(services: FakeServices) -> AsyncIterator[tuple[str, int]]:
    adapter = RemotingAdapter.from_config(
        "remoting", {"protocol": "remoting", "bind": "127.0.0.1:0"}
    )
    serving = asyncio.ensure_future(adapter.serve(services))
    yield await services.address("remoting")
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


@pytest.fixture
async def client(address: tuple[str, int]) -> AsyncIterator[Client]:
    client = await Client().connect(address)
    yield client
    await client.remoting.close()


def bodies(answer: RemotingCommand) -> list[bytes]:
    return [message.body for message in decode_records(answer.body)]


async def test_route_and_automatic_topic(client: Client, address: tuple[str, int]) -> None:
    """An unknown topic is made by the first question; its brokers are all at our address."""
    answer = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="New")
    route = decode_body(RouteData, answer.body)
    assert route.broker_datas[0].broker_addrs == {0: f"{address[0]}:{address[1]}"}
    assert route.queue_datas[0].broker_name == BROKER
    answer = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="%RETRY%g")
    assert decode_body(RouteData, answer.body).queue_datas[0].read_queue_nums == 16
    answer = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="TBW102")
    assert answer.code == 0
    answer = await client.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    assert "New" in json.loads(answer.body)["topicList"]


async def test_automatic_topics_can_be_off(services: FakeServices) -> None:
    section = {"protocol": "remoting", "bind": "127.0.0.1:0", "auto_create_topics": False}
    adapter = RemotingAdapter.from_config("off", section)
    serving = asyncio.ensure_future(adapter.serve(services))
    client = await Client().connect(await services.address("off"))
    answer = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="New")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    await client.remoting.close()
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


async def test_send_pull_commit(client: Client, services: FakeServices) -> None:
    """A sent message is popped by a pull; the commit above it acks it for the whole group."""
    sent = await client.send("T", b"one")
    assert sent.code == 0
    assert sent.fields["queueOffset"] == "0"
    await client.join("g", "T")
    answer = await client.pull("g", "T")
    assert bodies(answer) == [b"one"]
    assert answer.fields["nextBeginOffset"] == "1"
    commit = {"consumerGroup": "g", "topic": "T", "queueId": 0, "bname": BROKER}
    await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=1, **commit)
    await client.remoting.close()
    other = await Client().connect(services.listeners["remoting"])
    await other.join("g", "T", "c2")
    assert (await other.pull("g", "T")).code == ResponseCode.PULL_NOT_FOUND
    await other.remoting.close()


COMMIT = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 1}


async def assert_nothing_left(services: FakeServices) -> None:
    """Another member of the group finds no message."""
    other = await Client().connect(services.listeners["remoting"])
    await other.join("g", "T", "c2")
    assert (await other.pull("g", "T")).code == ResponseCode.PULL_NOT_FOUND
    await other.remoting.close()


async def test_a_commit_counts_though_the_store_was_away(
    client: Client, services: FakeServices
) -> None:
    """The client commits an offset once: an ack that fails is sent again."""
    await client.send("T", b"one")
    await client.join("g", "T")
    assert bodies(await client.pull("g", "T")) == [b"one"]
    services.broker.is_down = True
    await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, bname=BROKER, **COMMIT)
    await eventually(lambda: services.broker.lost_ack_count > 0, "an ack that fails")
    services.broker.is_down = False
    groups = services.broker.groups.values()
    await eventually(lambda: not any(group.in_flight for group in groups), "the ack")
    await client.remoting.close()
    await assert_nothing_left(services)


async def test_a_commit_may_come_behind_the_farewell(
    client: Client, services: FakeServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java sends its last commits first, but not always on the wire; leaving takes its time."""
    await client.send("T", b"one")
    await client.join("g", "T")
    assert bodies(await client.pull("g", "T")) == [b"one"]
    put, gate = services.directory.put, asyncio.Event()

    async def slow(puts: Sequence[Put]) -> list[PutResult]:
        await gate.wait()
        return await put(puts)

    monkeypatch.setattr(services.directory, "put", slow)
    leave = asyncio.ensure_future(client.ask(RequestCode.UNREGISTER_CLIENT, consumerGroup="g"))
    await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, bname=BROKER, **COMMIT)
    gate.set()
    await leave
    await client.remoting.close()
    await assert_nothing_left(services)


async def test_nothing_is_popped_while_members_share_the_queues_out(
    client: Client, services: FakeServices
) -> None:
    """A client drops without a word what arrives for a queue that it is about to give up."""
    services.broker.topics.add("T")
    await client.join("g", "T")
    waiting = asyncio.ensure_future(client.pull("g", "T", wait_ms=30_000))
    await client.ask(9999)  # the pull has come
    other = await Client().connect(services.listeners["remoting"])
    await other.join("g", "T", "c2")
    answer = await waiting
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    await client.send("T", b"one")
    assert bodies(await other.pull("g", "T", wait_ms=30_000)) == [b"one"]
    await other.remoting.close()


async def test_a_queue_that_a_client_gets_anew_begins_with_what_it_dropped(
    client: Client, services: FakeServices
) -> None:
    """It asks for an offset (14) only then; what it held, or still asked for, it has dropped."""
    services.broker.topics.add("T")
    await client.join("g", "T")
    await client.send("T", b"one")
    assert bodies(await client.pull("g", "T")) == [b"one"]
    stale = asyncio.ensure_future(client.pull("g", "T", 1, wait_ms=30_000))
    await client.ask(9999)  # the pull has come
    place = {"consumerGroup": "g", "topic": "T", "queueId": 0, "bname": BROKER}
    await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, **place)
    await client.send("T", b"two")
    assert bodies(await stale) == []
    found: list[bytes] = []
    while len(found) < 2:
        found += bodies(await client.pull("g", "T", 1))
        found += bodies(await client.pull("g", "%RETRY%g", bname="tidegate-retry"))
    assert sorted(found) == [b"one", b"two"]


def heartbeat(**topics: str) -> bytes:
    """Of one client: group → topic."""
    groups = [
        ConsumerData(
            group_name=group,
            consume_from_where="CONSUME_FROM_FIRST_OFFSET",
            subscription_data_set=[SubscriptionData(topic=topic)],
        )
        for group, topic in topics.items()
    ]
    return encode_body(HeartbeatData(client_id="c1", consumer_data_set=groups))


async def test_a_group_that_may_not_consume_keeps_no_other_away(
    client: Client, services: FakeServices
) -> None:
    """One client, one heartbeat, two groups: the second is in whatever becomes of the first."""
    services.broker.topics |= {"Closed", "T"}
    services.denied.add(("consume", "Closed"))
    answer = await client.ask(RequestCode.HEART_BEAT, heartbeat(closed="Closed", g="T"))
    assert answer.code == ResponseCode.NO_PERMISSION
    answer = await client.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="g")
    assert json.loads(answer.body) == {"consumerIdList": ["c1"]}


async def test_a_pull_waits_for_the_heartbeat_before_it(
    client: Client, services: FakeServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a push consumer whose group is just being opened would read by offset."""
    services.broker.topics.add("T")
    await client.send("T", b"one")
    put, gate = services.directory.put, asyncio.Event()

    async def slow(puts: Sequence[Put]) -> list[PutResult]:
        await gate.wait()
        return await put(puts)

    monkeypatch.setattr(services.directory, "put", slow)
    beat = client.ask(RequestCode.HEART_BEAT, heartbeat(first="T", g="T"))
    joining = asyncio.ensure_future(beat)
    await client.ask(9999)  # the heartbeat has come
    pulling = asyncio.ensure_future(client.pull("g", "T"))
    await client.ask(9999)
    gate.set()
    await joining
    assert bodies(await pulling) == [b"one"]
    await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, bname=BROKER, **COMMIT)
    await client.remoting.close()
    await assert_nothing_left(services)


async def test_an_orderly_consumer_gives_a_message_up(
    client: Client, services: FakeServices
) -> None:
    """It sends it to the retry topic itself; from others that is refused: they send it back."""
    header = {"topic": "%RETRY%g", "reconsume_count": 2, "reconsume_max": 2}
    text = "UNIQ_KEY\x01id\x02RETRY_TOPIC\x01T\x02DELAY\x013\x02"
    await client.join("g", "T")
    answer = await client.send(body=b"one", properties=text, **header)
    assert answer.code == ResponseCode.ILLEGAL_OPERATION
    queue = MessageQueue(topic="T", broker_name=BROKER, queue_id=0)
    lock = LockBody(consumer_group="g", client_id="c1", mq_set=[queue])
    await client.ask(RequestCode.LOCK_BATCH_MQ, encode_body(lock))
    answer = await client.send(body=b"one", properties=text, **header)
    assert answer.code == ResponseCode.SUCCESS
    answer = await client.pull("other", "%DLQ%g")
    (dead,) = decode_records(answer.body)
    assert (dead.body, dead.message_id) == (b"one", "id")
    assert dead.properties["RETRY_TOPIC"] == dead.properties["DLQ_ORIGIN_TOPIC"] == "T"


async def test_a_client_that_leaves_has_committed_before(
    client: Client, services: FakeServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that names no broker must look up its queue: leaving waits for it."""
    await client.send("T", b"one")
    await client.join("g", "T")
    assert bodies(await client.pull("g", "T")) == [b"one"]
    find, gate = services.topics.find, asyncio.Event()

    async def slow(topic: str, *, with_type: bool = True) -> TopicInfo | None:
        await gate.wait()
        return await find(topic, with_type=with_type)

    monkeypatch.setattr(services.topics, "find", slow)
    commit = asyncio.ensure_future(client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **COMMIT))
    leave = asyncio.ensure_future(client.ask(RequestCode.UNREGISTER_CLIENT, consumerGroup="g"))
    await client.ask(9999)  # both have come
    gate.set()
    assert [answer.code for answer in await asyncio.gather(commit, leave)] == [0, 0]
    await assert_nothing_left(services)


async def test_lost_client_gives_back(client: Client, services: FakeServices) -> None:
    """What a lost connection held goes to another member, through the retry topic."""
    await client.send("T", b"one")
    await client.join("g", "T")
    assert bodies(await client.pull("g", "T")) == [b"one"]
    other = await Client().connect(services.listeners["remoting"])
    await other.join("g", "T", "c2")
    client.remoting.peer.abort()
    async with asyncio.timeout(PATIENCE_S):  # the first pulls may end as the group changes
        while True:
            answer = await other.pull("g", "T", wait_ms=3000)
            if answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
                break
    answer = await other.pull("g", "%RETRY%g", bname="tidegate-retry")
    (message,) = decode_records(answer.body)
    assert (message.body, message.topic, message.queue_offset) == (b"one", "T", 0)
    assert message.reconsume_count >= 1
    await other.remoting.close()


async def test_a_client_that_comes_again_goes_on(client: Client, services: FakeServices) -> None:
    """
    Over a new connection it has what it held: its commits count, and what an answer did not bring
    it comes now. What it asks before its first heartbeat waits for that.
    """
    for body in (b"one", b"two", b"three"):
        await client.send("T", body)
    await client.join("g", "T")
    assert bodies(await client.pull("g", "T", maxMsgNums=2)) == [b"one", b"two"]
    assert bodies(await client.pull("g", "T", offset=2)) == [b"three"]  # never read
    other = await Client().connect(services.listeners["remoting"])
    (old,) = services.clients.connected
    client.remoting.peer.abort()
    flags = {"sysFlag": int(PullFlag.COMMIT_OFFSET | PullFlag.SUSPEND), "commitOffset": 1}
    asked = asyncio.ensure_future(other.pull("g", "T", offset=2, wait_ms=60_000, **flags))
    await eventually(lambda: old not in services.clients.connected, "the old connection has gone")
    assert not asked.done()
    await other.join("g", "T")
    assert bodies(await asked) == [b"three"]
    await other.ask(
        RequestCode.UPDATE_CONSUMER_OFFSET, bname=BROKER, **{**COMMIT, "commitOffset": 3}
    )
    groups = services.broker.groups.values()
    await eventually(lambda: not any(group.in_flight for group in groups), "the acks")
    await other.remoting.close()
    await assert_nothing_left(services)


async def test_the_end_of_an_old_connection_ends_no_membership(
    client: Client, services: FakeServices
) -> None:
    """A client that came back before that stays a member of its groups."""
    await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")
    await client.join("g", "T")
    other = await Client().connect(services.listeners["remoting"])
    await other.join("g", "T")
    client.remoting.peer.abort()
    await eventually(lambda: len(services.clients.connected) == 1, "the old connection has gone")
    await other.ask(9999)
    answer = await other.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="g")
    assert json.loads(answer.body) == {"consumerIdList": ["c1"]}
    await services.directory.put([Put("rmq/member/g/c1", None)])
    await other.join("g", "T")  # the next heartbeat mends what is lost
    answer = await other.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="g")
    assert json.loads(answer.body) == {"consumerIdList": ["c1"]}
    await other.remoting.close()


async def test_send_back(client: Client) -> None:
    """A message that was given back is not acked by the commit above it, and comes again."""
    await client.send("T", b"one")
    await client.join("g", "T")
    answer = await client.pull("g", "T")
    (message,) = decode_records(answer.body)
    back = {"offset": message.log_position, "group": "g", "bname": BROKER}
    answer = await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, delayLevel=1, **back)
    assert answer.code == 0
    commit = {"consumerGroup": "g", "topic": "T", "queueId": 0, "bname": BROKER}
    await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=1, **commit)
    await client.pull("g", "T", offset=1, wait_ms=3000)
    answer = await client.pull("g", "%RETRY%g", bname="tidegate-retry")
    assert bodies(answer) == [b"one"]


async def test_dead_letter_at_the_clients_wish(client: Client) -> None:
    """A send-back with a level below 0 goes to the dead-letter topic and never comes again."""
    await client.send("T", b"one")
    await client.join("g", "T")
    (message,) = decode_records((await client.pull("g", "T")).body)
    back = {"offset": message.log_position, "group": "g", "bname": BROKER, "delayLevel": -1}
    assert (await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, **back)).code == 0
    await client.join("dead", "%DLQ%g", consume_type="CONSUME_ACTIVELY")
    (dead,) = decode_records((await client.pull("dead", "%DLQ%g")).body)
    assert (dead.body, dead.properties["DLQ_ORIGIN_TOPIC"]) == (b"one", "T")
    assert (await client.pull("g", "T", offset=1)).code == ResponseCode.PULL_NOT_FOUND


async def test_a_question_waits_for_a_link_that_broke(
    client: Client, services: FakeServices
) -> None:
    """Java's sync pulls would fail at once; the link is back in a moment."""
    await client.send("T", b"1")
    services.broker.unanswered_count = 1
    assert bodies(await client.pull("g", "T")) == [b"1"]
    services.broker.unanswered_count = 1
    place = {"topic": "T", "queueId": 0, "bname": BROKER}
    assert (await client.ask(RequestCode.GET_MAX_OFFSET, **place)).fields == {"offset": "1"}


async def test_pull_consumer_reads_by_offset(client: Client) -> None:
    """Who pulls actively reads what is there, as often as asked; the offset is kept."""
    for body in (b"1", b"2", b"3"):
        await client.send("T", body)
    await client.join("g", "T", consume_type="CONSUME_ACTIVELY")
    assert bodies(await client.pull("g", "T", offset=1)) == [b"2", b"3"]
    assert bodies(await client.pull("g", "T", offset=1)) == [b"2", b"3"]
    place = {"topic": "T", "queueId": 0, "bname": BROKER}
    answer = await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="g", **place)
    assert answer.code == ResponseCode.QUERY_NOT_FOUND
    await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="g", commitOffset=2, **place)
    answer = await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="g", **place)
    assert answer.fields == {"offset": "2"}
    assert (await client.ask(RequestCode.GET_MAX_OFFSET, **place)).fields == {"offset": "3"}
    assert (await client.ask(RequestCode.GET_MIN_OFFSET, **place)).fields == {"offset": "0"}
    assert (await client.pull("g", "T", offset=9)).code == ResponseCode.PULL_OFFSET_MOVED
    assert (await client.pull("g", "T", offset=3)).code == ResponseCode.PULL_NOT_FOUND


async def test_members_and_notification(client: Client, services: FakeServices) -> None:
    """Members of a group are listed in one order; each change is pushed to the others (40)."""
    await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")
    await client.join("g", "T", "c1")
    other = await Client().connect(services.listeners["remoting"])
    await other.join("g", "T", "c0")
    answer = await client.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="g")
    assert json.loads(answer.body) == {"consumerIdList": ["c0", "c1"]}
    async with asyncio.timeout(PATIENCE_S):
        told = await client.pushed.get()
    assert told.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    body = QueryAssignmentBody(topic="T", consumer_group="g", client_id="c1")
    answer = await client.ask(RequestCode.QUERY_ASSIGNMENT, encode_body(body))
    mine = json.loads(answer.body)["messageQueueAssignments"]
    assert [item["messageQueue"]["queueId"] for item in mine] == [2, 3]
    await other.ask(RequestCode.UNREGISTER_CLIENT, clientID="c0", consumerGroup="g")
    answer = await client.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="g")
    assert json.loads(answer.body) == {"consumerIdList": ["c1"]}
    answer = await client.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="none")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    await other.remoting.close()


async def test_queue_locks(client: Client, services: FakeServices) -> None:
    """One member holds a queue; it is free again when that member has left."""
    await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")
    await client.join("g", "T", "c1")
    other = await Client().connect(services.listeners["remoting"])
    await other.join("g", "T", "c2")
    queue = MessageQueue(topic="T", broker_name=BROKER, queue_id=0)

    async def lock(asking: Client, client_id: str) -> list[object]:
        body = LockBody(consumer_group="g", client_id=client_id, mq_set=[queue])
        answer = await asking.ask(RequestCode.LOCK_BATCH_MQ, encode_body(body))
        found: list[object] = json.loads(answer.body)["lockOKMQSet"]
        return found

    assert len(await lock(client, "c1")) == 1
    assert len(await lock(client, "c1")) == 1
    assert await lock(other, "c2") == []
    body = LockBody(consumer_group="g", client_id="c1", mq_set=[queue])
    await client.ask(RequestCode.UNLOCK_BATCH_MQ, encode_body(body))
    assert len(await lock(other, "c2")) == 1
    await other.remoting.close()


async def test_signed_requests(services: FakeServices, client: Client) -> None:
    """Every request of a client is checked by its signature; a wrong one is refused alone."""
    command = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T", ACCESS_KEY: "k"})
    digest = hmac.new(b"secret", signed_content(command.fields), hashlib.sha1).digest()
    services.users["k"] = digest
    command.fields[SIGNATURE] = base64.b64encode(digest).decode()
    assert (await client.remoting.request(command, PATIENCE_S)).code == 0
    command.fields[SIGNATURE] = base64.b64encode(b"x" * 20).decode()
    answer = await client.remoting.request(command, PATIENCE_S)
    assert answer.code == ResponseCode.NO_PERMISSION
    answer = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")
    assert answer.code == ResponseCode.NO_PERMISSION


async def test_denied_consumer(client: Client, services: FakeServices) -> None:
    """The ACL speaks at the heartbeat and at the pull."""
    await client.send("Secret", b"x")
    services.denied.add(("consume", "Secret"))
    data = ConsumerData(group_name="g", subscription_data_set=[SubscriptionData(topic="Secret")])
    beat = encode_body(HeartbeatData(client_id="c", consumer_data_set=[data]))
    answer = await client.ask(RequestCode.HEART_BEAT, beat)
    assert answer.code == ResponseCode.NO_PERMISSION
    assert (await client.pull("g", "Secret")).code == ResponseCode.NO_PERMISSION


async def test_throttled_connection_is_closed(services: FakeServices, client: Client) -> None:
    """A connection over the limits is told so and closed."""
    services.admit_code = Code.TOO_MANY_REQUESTS
    answer = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")
    assert answer.code == ResponseCode.SYSTEM_BUSY
    with pytest.raises(Refused):
        await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")


@pytest.mark.parametrize(
    ("code", "fields", "expected"),
    [
        (RequestCode.PEEK_MESSAGE, {}, ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
        (RequestCode.PULL_MESSAGE, {}, ResponseCode.SYSTEM_ERROR),
        (RequestCode.SEND_MESSAGE_V2, {}, ResponseCode.SYSTEM_ERROR),
        (RequestCode.HEART_BEAT, {}, ResponseCode.SYSTEM_ERROR),
        (RequestCode.GET_ROUTEINFO_BY_TOPIC, {}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_malformed_requests(
    client: Client, code: int, fields: dict[str, str], expected: int
) -> None:
    """Each is answered with the reason; the connection goes on."""
    answer = await client.ask(code, **fields)
    assert answer.code == expected
    assert answer.remark
    assert (await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")).code == 0


async def test_sql_filter_is_refused(client: Client) -> None:
    body = b'{"clientId":"c","group":"g","subscriptionData":{"expressionType":"SQL92","topic":"T"}}'
    answer = await client.ask(RequestCode.CHECK_CLIENT_CONFIG, body)
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_bad_settings_name_their_keys() -> None:
    with pytest.raises(ConfigError) as caught:
        RemotingAdapter.from_config("r", {"bind": "127.0.0.1:0", "held_max": 1, "colour": "red"})
    assert any("listeners.r.held_max" in problem for problem in caught.value.problems)
    assert any("listeners.r.colour" in problem for problem in caught.value.problems)


# ── held messages ───────────────────────────────────────────────────────────────────────


async def test_a_half_message_is_ended_where_it_lies(
    client: Client, services: FakeServices
) -> None:
    """By the position in the answer; the broker's name, or what the connection remembers."""
    await client.join("g", "t")
    properties = "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01k\x02"
    positions = []
    for _ in range(2):
        answer = await client.send("t", b"x", sys_flag=4, properties=properties)
        assert (answer.code, answer.fields["transactionId"]) == (0, "k")
        positions.append(int(answer.fields["queueOffset"]))
        assert int(answer.fields["msgId"][16:], 16) == positions[-1]
    assert [message.producer_group for message in services.broker.held] == ["p", "p"]
    base: dict[str, object] = {"producerGroup": "p", "fromTransactionCheck": "false"}
    for position, how, more in ((positions[0], 8, {}), (positions[1], 12, {"bname": BROKER})):
        ended = await client.ask(
            RequestCode.END_TRANSACTION,
            tranStateTableOffset=position,
            commitLogOffset=position,
            commitOrRollback=how,
            **base,
            **more,
        )
        assert ended.code == 0, ended.remark
    found = [(place.broker, place.position, is_commit) for place, is_commit in services.held.ended]
    assert found == [(BROKER, positions[0], True), (BROKER, positions[1], False)]


async def test_a_producer_is_asked_while_it_is_there(
    client: Client, services: FakeServices
) -> None:
    await client.join("g", "t")
    await client.send("t", b"half", properties="UNIQ_KEY\x01k\x02PGROUP\x01p\x02")
    message = services.broker.log[-1].message
    place = HalfPlace("DefaultCluster", BROKER, 4711, 4711, "p")
    services.held.checks["p"][0](HalfCheck(place, message))
    asked = await client.pushed.get()
    while asked.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
        asked = await client.pushed.get()
    assert asked.code == RequestCode.CHECK_TRANSACTION_STATE
    assert (asked.fields["commitLogOffset"], asked.fields["bname"]) == ("4711", BROKER)
    assert decode_records(bytes(asked.body))[0].body == b"half"
    await client.ask(RequestCode.UNREGISTER_CLIENT, clientID="c1", producerGroup="p")
    assert services.held.checks == {}


async def test_a_delayed_send_tells_how_to_recall_it(
    client: Client, services: FakeServices
) -> None:
    answer = await client.send("t", b"x", properties="TIMER_DELAY_MS\x0190000\x02")
    handle = answer.fields["recallHandle"]
    recalled = await client.ask(
        RequestCode.RECALL_MESSAGE, producerGroup="p", topic="t", recallHandle=handle
    )
    assert (recalled.code, recalled.fields["msgId"]) == (0, "recalled-id")
    assert services.held.recalled == [("t", handle)]


async def test_a_request_is_answered_over_the_connection_that_asked(
    client: Client, services: FakeServices
) -> None:
    """The stored request names the gateway; its answer is pushed and acknowledged."""
    properties = "CORRELATION_ID\x017\x02REPLY_TO_CLIENT\x01c1\x02TTL\x015000\x02"
    assert (await client.send("t", b"?", properties=properties)).code == 0
    stored = services.broker.log[-1].message.properties
    assert (stored["REPLY_TO_CLIENT"], stored["CLUSTER"]) == ("requests@fake", "fake-cluster")
    header = SendHeader(
        producer_group="q",
        topic="fake-cluster_REPLY_TOPIC",
        properties="CORRELATION_ID\x017\x02REPLY_TO_CLIENT\x01requests@fake\x02",
    )
    reply = RemotingCommand(RequestCode.SEND_REPLY_MESSAGE_V2, header.to_fields(), b"!")
    replying = asyncio.ensure_future(client.remoting.request(reply, PATIENCE_S))
    asked = await client.pushed.get()
    assert (asked.code, bytes(asked.body)) == (RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, b"!")
    client.remoting.peer.send((asked.answer(),))
    assert (await replying).code == 0
    again = RemotingCommand(RequestCode.SEND_REPLY_MESSAGE_V2, header.to_fields(), b"!")
    assert (await client.remoting.request(again, PATIENCE_S)).code == ResponseCode.SYSTEM_ERROR
    answer = await client.ask(
        RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="DefaultCluster_REPLY_TOPIC"
    )
    assert answer.code == 0
