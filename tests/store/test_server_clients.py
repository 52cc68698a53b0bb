"""Clients that hear of one another, administration, and the name servers that are told."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from namesrv.app import NameServer
from namesrv.config import NamesrvConfig
from protocols.remoting import bodies
from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.nearly_json import parse
from protocols.remoting.peer import Peer
from protocols.remoting.records import decode_records
from store.app import Store
from tests.support.standard_codes import make_group, pull, send
from tests.support.store_server import POLL_S, WAIT_S, ask, connected, running_store


def heartbeat(client_id: str, group: str = "G") -> bytes:
    data = bodies.HeartbeatData(
        client_id=client_id,
        producer_data_set=[bodies.ProducerData(group_name="P")],
        consumer_data_set=[
            bodies.ConsumerData(
                group_name=group,
                subscription_data_set=[bodies.SubscriptionData(topic="T", sub_string="A")],
            )
        ],
    )
    return bodies.encode_body(data)


async def test_members_hear_of_one_another(store: Store) -> None:
    """A heartbeat of a new member and the loss of one are told to all others (40)."""
    told: list[str] = []
    changed = asyncio.Event()

    def pushed(peer: Peer, commands: list[RemotingCommand]) -> None:
        told.extend(command.fields["consumerGroup"] for command in commands)
        changed.set()

    first = await RemotingClient.connect(store.address, push=pushed)
    async with connected(store) as second:
        await ask(first, RequestCode.HEART_BEAT, None, heartbeat("b"))
        told.clear()
        changed.clear()
        await ask(second, RequestCode.HEART_BEAT, None, heartbeat("a"))
        await asyncio.wait_for(changed.wait(), WAIT_S)
        assert told == ["G"]
        listed = await ask(first, RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "G"})
        assert parse(listed.body) == {"consumerIdList": ["a", "b"]}
        changed.clear()
    await asyncio.wait_for(changed.wait(), WAIT_S)
    listed = await ask(first, RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "G"})
    assert parse(listed.body) == {"consumerIdList": ["b"]}
    connections = await ask(first, RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "G"})
    found = bodies.decode_body(bodies.ConsumerConnection, connections.body)
    assert found.subscription_table["T"].sub_string == "A"
    producers = await ask(first, RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "P"})
    assert len(bodies.decode_body(bodies.ProducerConnection, producers.body).connection_set) == 1
    await ask(first, RequestCode.UNREGISTER_CLIENT, {"clientID": "b", "consumerGroup": "G"})
    listed = await ask(first, RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "G"})
    assert listed.code == ResponseCode.SYSTEM_ERROR
    await first.close()


async def test_a_heartbeat_makes_the_retry_topic(client: RemotingClient) -> None:
    """The retry topic is there before the client first asks for its route."""
    await ask(client, RequestCode.HEART_BEAT, None, heartbeat("a"))
    answer = await ask(client, RequestCode.GET_TOPIC_CONFIG, {"topic": "%RETRY%G"})
    assert answer.code == ResponseCode.SUCCESS


async def test_queues_are_assigned_without_gaps(store: Store, client: RemotingClient) -> None:
    """400: all queues of a topic, each to one member; POP mode asks for any queue."""
    await send(client, b"x")
    async with connected(store) as other:
        await ask(client, RequestCode.HEART_BEAT, None, heartbeat("a"))
        await ask(other, RequestCode.HEART_BEAT, None, heartbeat("b"))
        queues: list[int] = []
        for end, name in ((client, "a"), (other, "b")):
            asked = bodies.QueryAssignmentBody(topic="T", consumer_group="G", client_id=name)
            body = bodies.encode_body(asked)
            answer = await ask(end, RequestCode.QUERY_ASSIGNMENT, None, body)
            found = bodies.decode_body(bodies.AssignmentAnswer, answer.body)
            queues += [item.message_queue.queue_id for item in found.message_queue_assignments]
        assert sorted(queues) == [0, 1, 2, 3]
        mode = bodies.encode_body({"topic": "T", "consumerGroup": "G", "mode": "POP"})
        await ask(client, RequestCode.SET_MESSAGE_REQUEST_MODE, None, mode)
        answer = await ask(client, RequestCode.QUERY_ASSIGNMENT, None, body)
        found = bodies.decode_body(bodies.AssignmentAnswer, answer.body)
        (item,) = found.message_queue_assignments
        assert (item.mode, item.message_queue.queue_id) == ("POP", -1)


async def test_queues_of_all_stores_are_assigned(tmp_path: Path) -> None:
    """A client asks any of them, and reads what the topic has on each."""
    server = NameServer(NamesrvConfig(bind="127.0.0.1:0", data=tmp_path / "ns"))
    await server.start()
    body = bodies.encode_body(
        bodies.QueryAssignmentBody(topic="T", consumer_group="G", client_id="c")
    )
    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.stop)
        clients: list[RemotingClient] = []
        for name in ("s1", "s2"):
            opening = running_store(
                tmp_path / name, namesrv=(server.address,), name=name, directory=name == "s1"
            )
            store = await stack.enter_async_context(opening)
            clients.append(await stack.enter_async_context(connected(store)))
            await send(clients[-1], b"x", d="2")
            await ask(clients[-1], RequestCode.HEART_BEAT, None, heartbeat("c", "G"))

        async def assigned(client: RemotingClient) -> list[tuple[str, int]]:
            answer = await ask(client, RequestCode.QUERY_ASSIGNMENT, None, body)
            told = bodies.decode_body(bodies.AssignmentAnswer, answer.body)
            queues = [one.message_queue for one in told.message_queue_assignments]
            return [(queue.broker_name, queue.queue_id) for queue in queues]

        everything = [("s1", 0), ("s1", 1), ("s2", 0), ("s2", 1)]
        for client in clients:
            for _ in range(int(WAIT_S / POLL_S)):
                if await assigned(client) == everything:
                    break
                await asyncio.sleep(POLL_S)
            assert await assigned(client) == everything
        await server.stop()
        assert await assigned(clients[0]) == everything


async def test_an_order_lock_has_one_owner(client: RemotingClient) -> None:
    """41 gives a queue to one client at a time, 42 takes it back."""

    async def lock(code: int, name: str) -> list[object]:
        queue = bodies.MessageQueue(topic="T", broker_name="broker-a", queue_id=0)
        body = bodies.LockBody(consumer_group="G", client_id=name, mq_set=[queue])
        answer = await ask(client, code, None, bodies.encode_body(body))
        return list(parse(answer.body)["lockOKMQSet"]) if answer.body else []

    assert len(await lock(RequestCode.LOCK_BATCH_MQ, "a")) == 1
    assert await lock(RequestCode.LOCK_BATCH_MQ, "b") == []
    await lock(RequestCode.UNLOCK_BATCH_MQ, "a")
    assert len(await lock(RequestCode.LOCK_BATCH_MQ, "b")) == 1


async def test_topics_are_made_listed_and_deleted(client: RemotingClient) -> None:
    """17, 21, 202, 215."""
    update = {"topic": "N", "readQueueNums": "3", "writeQueueNums": "3", "perm": "6"}
    update["attributes"] = "+message.type=FIFO"
    assert (await ask(client, RequestCode.UPDATE_AND_CREATE_TOPIC, update)).code == 0
    table = await ask(client, RequestCode.GET_ALL_TOPIC_CONFIG)
    topics = bodies.decode_body(bodies.TopicConfigWrapper, table.body).topic_config_table
    assert topics["N"].attributes == {"message.type": "FIFO"}
    for bad in ("+x=1", "x", "+message.type=Q", "+cleanup.policy=", "+reserve.time=-2", "+=1"):
        answer = await ask(
            client, RequestCode.UPDATE_AND_CREATE_TOPIC, update | {"attributes": bad}
        )
        assert (answer.code, bool(answer.remark)) == (ResponseCode.INVALID_PARAMETER, True)
    config = bodies.TopicConfig(
        topic_name="N",
        read_queue_nums=3,
        write_queue_nums=3,
        attributes={"+reserve.time": "5", "-x": ""},
    )
    body = bodies.encode_body(bodies.TopicConfigList(topic_config_list=[config]))
    await ask(client, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, body)
    one = await ask(client, RequestCode.GET_TOPIC_CONFIG, {"topic": "N"})
    changed = bodies.decode_body(bodies.TopicConfig, one.body).attributes
    assert changed == {"message.type": "FIFO", "reserve.time": "5"}
    assert "TBW102" in topics
    kept = {"+queue.type": "BatchCQ", "-cleanup.policy": "", "+cleanup.policy": "DELETE"}
    for name, value in kept.items():
        fields = update | {"attributes": f"{name}={value}"}
        answer = await ask(client, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        is_change = name != "-cleanup.policy"
        assert (answer.code == ResponseCode.INVALID_PARAMETER) == is_change, name
    stats = await ask(client, RequestCode.GET_TOPIC_STATS_INFO, {"topic": "N"})
    assert len(parse(stats.body)["offsetTable"]) == 3
    assert (await ask(client, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "N"})).code == 0
    gone = await ask(client, RequestCode.GET_TOPIC_CONFIG, {"topic": "N"})
    assert gone.code == ResponseCode.TOPIC_NOT_EXIST
    refused = await ask(client, RequestCode.UPDATE_AND_CREATE_TOPIC, update | {"topic": "TBW102"})
    assert refused.code == ResponseCode.INVALID_PARAMETER


async def test_groups_are_configured(client: RemotingClient) -> None:
    """200, 352, 201, 207."""
    body = bodies.encode_body(bodies.GroupConfig(group_name="N", retry_max_times=3))
    assert (
        await ask(client, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)
    ).code == 0
    one = await ask(client, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "N"})
    assert bodies.decode_body(bodies.GroupConfig, one.body).retry_max_times == 3
    table = await ask(client, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    groups = bodies.decode_body(bodies.GroupConfigTable, table.body).subscription_group_table
    assert list(groups) == ["N"]
    assert (await ask(client, RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "N"})).code == 0
    gone = await ask(client, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "N"})
    assert gone.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_a_group_has_the_attributes_that_it_was_given(client: RemotingClient) -> None:
    """As with topics: ``+k`` sets, ``-k`` takes away, what no group can have is refused."""

    async def change(**attributes: str) -> int:
        signed = {name.replace("_", "."): value for name, value in attributes.items()}
        changes = {("-" if not value else "+") + name: value for name, value in signed.items()}
        body = bodies.encode_body(bodies.GroupConfig(group_name="N", attributes=changes))
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        return (await ask(client, code, None, body)).code

    async def attributes() -> dict[str, str]:
        one = await ask(client, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "N"})
        return bodies.decode_body(bodies.GroupConfig, one.body).attributes

    assert await change(priority_factor="50") == 0
    assert await attributes() == {"priority.factor": "50"}
    for bad in ({"no_such": "1"}, {"priority_factor": "101"}, {"priority_factor": "x"}):
        assert await change(**bad) == ResponseCode.INVALID_PARAMETER
    assert await change() == 0
    assert await attributes() == {"priority.factor": "50"}
    assert await change(priority_factor="") == 0
    assert await attributes() == {}


@pytest.mark.parametrize(("clean", "left"), [("true", None), ("false", "1")])
async def test_a_deleted_group_forgets_where_it_stood_if_that_is_wanted(
    tmp_path: Path, clean: str, left: str | None
) -> None:
    """Over a restart, too: who comes under its name begins as anybody does."""
    at = {"consumerGroup": "G", "topic": "T", "queueId": "0"}
    async with running_store(tmp_path) as store, connected(store) as client:
        for _ in range(2):
            await send(client, b"x")
        await make_group(client)
        await ask(client, RequestCode.UPDATE_CONSUMER_OFFSET, at | {"commitOffset": "1"})
        gone = {"groupName": "G", "cleanOffset": clean}
        assert (await ask(client, RequestCode.DELETE_SUBSCRIPTIONGROUP, gone)).code == 0
    async with running_store(tmp_path) as store, connected(store) as client:
        asked = at | {"setZeroIfNotFound": "false"}
        answer = await ask(client, RequestCode.QUERY_CONSUMER_OFFSET, asked)
        assert answer.fields.get("offset") == left
        table = await ask(client, RequestCode.GET_CONSUME_STATS, {"consumerGroup": "G"})
        assert bool(parse(table.body)["offsetTable"]) == (left is not None)


async def test_a_queue_that_is_not_there_has_no_entries(client: RemotingClient) -> None:
    """321, with the code of Apache's broker."""
    await send(client, b"x")
    for topic, queue_id, code in (("T", 0, 0), ("T", 99, 1), ("T", -1, 1), ("no-such", 0, 1)):
        fields = {"topic": topic, "queueId": str(queue_id), "index": "0", "count": "1"}
        answer = await ask(client, RequestCode.QUERY_CONSUME_QUEUE, fields)
        assert answer.code == code, (topic, queue_id)


async def test_an_offset_is_reset(client: RemotingClient) -> None:
    """222 moves a group; its next pull is sent there once."""
    for _ in range(3):
        await send(client, b"x")
    at = {"consumerGroup": "G", "topic": "T", "queueId": "0"}
    reset = {"topic": "T", "group": "G", "timestamp": "0", "isForce": "true"}
    answer = await ask(client, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    await make_group(client)
    await ask(client, RequestCode.UPDATE_CONSUMER_OFFSET, at | {"commitOffset": "3"})
    beyond = await ask(
        client,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        reset | {"queueId": "0", "offset": "4"},
    )
    assert beyond.code == ResponseCode.SYSTEM_ERROR
    answer = await ask(client, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)
    assert len(parse(answer.body)["offsetTable"]) == 4
    moved = await pull(client, 3)
    assert (moved.code, moved.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "0")
    assert len(decode_records((await pull(client, 0)).body)) == 3


async def test_the_store_describes_itself(client: RemotingClient) -> None:
    """28 and 26 have what clusterList and getBrokerConfig read."""
    info = await ask(client, RequestCode.GET_BROKER_RUNTIME_INFO)
    table = bodies.decode_body(bodies.KvTable, info.body).table
    assert {"putTps", "getTransferredTps", "brokerVersionDesc", "commitLogMaxOffset"} <= set(table)
    config = await ask(client, RequestCode.GET_BROKER_CONFIG)
    assert b"flushDiskType=SYNC_FLUSH\n" in bytes(config.body)


async def test_a_store_is_known_to_its_name_servers(tmp_path: Path) -> None:
    """Routes have the store and its topics; a new topic follows at once; a stop ends them."""
    server = NameServer(NamesrvConfig(bind="127.0.0.1:0", data=tmp_path / "ns"))
    await server.start()
    naming = await RemotingClient.connect(server.address)

    async def route(topic: str, *, until: int = ResponseCode.SUCCESS) -> bodies.RouteData | None:
        async with asyncio.timeout(WAIT_S):
            while True:
                fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
                answer = await ask(naming, RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
                if answer.code == until:
                    body = answer.body
                    return bodies.decode_body(bodies.RouteData, body) if body else None
                await asyncio.sleep(0.02)

    async with running_store(tmp_path, namesrv=(server.address,)) as store:
        found = await route("TBW102")
        assert found is not None
        assert found.broker_datas[0].broker_addrs == {0: store.address}
        async with connected(store) as client:
            await send(client, b"x", topic="NEW")
        found = await route("NEW")
        assert found is not None
        assert found.queue_datas[0].read_queue_nums == 4
    await route("NEW", until=ResponseCode.TOPIC_NOT_EXIST)
    await naming.close()
    await server.stop()
