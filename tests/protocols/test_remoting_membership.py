"""Members of groups at the gateway's remoting front: who comes, shares, commits and leaves."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence

import pytest

from protocols.directory import Put, PutResult
from protocols.pipeline import TopicInfo
from protocols.remoting.bodies import (
    ConsumerData,
    HeartbeatData,
    LockBody,
    MessageQueue,
    QueryAssignmentBody,
    SubscriptionData,
    encode_body,
)
from protocols.remoting.codes import PullFlag, RequestCode, ResponseCode
from protocols.remoting.records import decode_records
from tests.support.fake_broker import BROKER
from tests.support.fake_services import FakeServices
from tests.support.patience import PATIENCE_S
from tests.support.remoting_front import Client, bodies, front
from tests.support.store_server import eventually


@pytest.fixture
async def address(services: FakeServices) -> AsyncIterator[tuple[str, int]]:
    async with front(services) as address:
        yield address


@pytest.fixture
async def client(address: tuple[str, int]) -> AsyncIterator[Client]:
    client = await Client().connect(address)
    yield client
    await client.remoting.close()


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


async def test_what_a_client_held_returns_though_the_store_was_away(
    client: Client, services: FakeServices
) -> None:
    """A return that fails is sent again: it would be hidden for a minute."""
    await client.send("T", b"one")
    await client.join("g", "T")
    assert bodies(await client.pull("g", "T")) == [b"one"]
    services.broker.is_down = True
    place = {"consumerGroup": "g", "topic": "T", "queueId": 0, "bname": BROKER}
    await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, **place)  # it begins anew
    assert services.broker.lost_change_count == 1
    services.broker.is_down = False
    groups = services.broker.groups.values()
    await eventually(lambda: not any(group.in_flight for group in groups), "the return")


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


async def test_who_may_not_consume_moves_and_locks_nothing(
    client: Client, services: FakeServices
) -> None:
    """Offsets and locks of a group are for those who may read its topic."""
    services.broker.topics.add("T")
    services.denied.add(("consume", "T"))
    answer = await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, bname=BROKER, **COMMIT)
    assert answer.code == ResponseCode.NO_PERMISSION
    queue = MessageQueue(topic="T", broker_name=BROKER, queue_id=0)
    body = encode_body(LockBody(consumer_group="g", client_id="c1", mq_set=[queue]))
    for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
        assert (await client.ask(code, body)).code == ResponseCode.NO_PERMISSION


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
