"""What only our stores and gateways ask for: changes of tables, and what changed in the routes."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from namesrv import changes
from namesrv.app import NameServer
from namesrv.changes import ChangeLog
from namesrv.config import NamesrvConfig
from protocols.remoting.bodies import (
    DataVersion,
    RegisterBody,
    RouteData,
    TopicConfig,
    TopicConfigWrapper,
    decode_body,
    encode_body,
)
from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.discovery import (
    CHANGES_SINCE,
    DEFLATED,
    DROPPED_TOPICS,
    TAKES_CHANGES,
    RouteChanges,
    RouteWatch,
)
from protocols.remoting.discovery import encode_body as encode_private
from protocols.remoting.private import PrivateCode
from tests.support.patience import PATIENCE_S


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NameServer]:
    server = NameServer(NamesrvConfig(bind="127.0.0.1:0", data=tmp_path, lost_ms_max=0))
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def client(server: NameServer) -> AsyncIterator[RemotingClient]:
    client = await RemotingClient.connect(server.address)
    yield client
    await client.close()


def register(counter: int, *topics: str, broker: str = "a", **fields: str) -> RemotingCommand:
    table = {
        name: TopicConfig(topic_name=name, read_queue_nums=4, write_queue_nums=4) for name in topics
    }
    body = RegisterBody(
        topic_config_serialize_wrapper=TopicConfigWrapper(
            topic_config_table=table, data_version=DataVersion(timestamp=7, counter=counter)
        )
    )
    base = {
        "brokerName": broker,
        "brokerAddr": f"127.0.0.1:{ord(broker[0])}",
        "clusterName": "c",
        "brokerId": "0",
        "haServerAddr": "",
        "heartbeatTimeoutMillis": "60000",
        "isFullTable": "false" if CHANGES_SINCE in fields else "true",
    }
    return RemotingCommand(RequestCode.REGISTER_BROKER, {**base, **fields}, encode_body(body))


async def watch(client: RemotingClient, since: RouteChanges | None, wait_ms: int) -> RouteChanges:
    asked = RouteWatch(
        instance=since.instance if since else "",
        since=since.version if since else 0,
        wait_ms=wait_ms,
    )
    command = RemotingCommand(PrivateCode.ROUTE_WATCH, None, encode_private(asked), is_binary=True)
    answer = await client.request(command, PATIENCE_S)
    assert answer.code == 0
    assert DEFLATED not in answer.fields
    return msgspec.msgpack.decode(answer.body, type=RouteChanges)


async def topics(client: RemotingClient) -> set[str]:
    command = RemotingCommand(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "c"})
    return set(json.loads((await client.request(command, PATIENCE_S)).body)["topicList"])


async def test_a_changed_topic_is_registered_alone(client: RemotingClient) -> None:
    """The others stay; a name server that has another table asks for all of it."""
    answer = await client.request(register(1, "T", "U"), PATIENCE_S)
    assert answer.fields[TAKES_CHANGES] == "true"
    changed = register(3, "V", **{CHANGES_SINCE: "7:1", DROPPED_TOPICS: "U,never"})
    assert (await client.request(changed, PATIENCE_S)).code == ResponseCode.SUCCESS
    assert await topics(client) == {"T", "V"}
    stale = register(4, "W", **{CHANGES_SINCE: "7:1"})
    assert (await client.request(stale, PATIENCE_S)).code == ResponseCode.BROKER_NOT_EXIST
    unknown = register(4, "W", broker="b", **{CHANGES_SINCE: "7:1"})
    assert (await client.request(unknown, PATIENCE_S)).code == ResponseCode.BROKER_NOT_EXIST
    damaged = register(4, "W", **{CHANGES_SINCE: "x"})
    assert (await client.request(damaged, PATIENCE_S)).code == ResponseCode.SYSTEM_ERROR
    assert await topics(client) == {"T", "V"}


async def test_watching_is_answered_by_change(client: RemotingClient) -> None:
    """Everything first; then only what is new, when it is; nothing when the wait is over."""
    await client.request(register(1, "T", "U"), PATIENCE_S)
    first = await watch(client, None, 5000)
    assert first.is_full
    assert sorted(row[0] for row in first.topics["a"]) == ["T", "U"]
    assert first.brokers[0].table == (0, 7, 1)
    quiet = await watch(client, first, 30)
    assert (quiet.version, quiet.topics) == (first.version, {})
    held = asyncio.ensure_future(watch(client, first, 5000))
    await client.request(register(2, **{CHANGES_SINCE: "7:1", DROPPED_TOPICS: "U"}), PATIENCE_S)
    news = await held
    assert (news.is_full, news.topics) == (False, {"a": [("U", -1, -1, 0)]})
    held = asyncio.ensure_future(watch(client, news, 5000))
    other = await RemotingClient.connect(client.peer.address)
    await other.request(register(1, "B", broker="b"), PATIENCE_S)
    assert {item.name for item in (await held).brokers} == {"a", "b"}
    held = asyncio.ensure_future(watch(client, await watch(client, None, 0), 5000))
    await other.close()
    assert [item.name for item in (await held).brokers] == ["a"]


def test_who_is_too_far_behind_gets_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of changes is bounded; a topic that changed twice is in it once."""
    monkeypatch.setattr(changes, "CHANGES_MAX", 2)
    log = ChangeLog()
    start = log.version
    log.touch("a", "T")
    log.touch("a", "U")
    log.touch("a", "T")
    assert log.since(start) == [("a", "T"), ("a", "U")]
    log.touch("a", "V")
    assert log.since(start) is None
    assert log.since(log.version - 1) == [("a", "V")]
    assert log.since(log.version) == []


async def test_brokers_of_the_last_run_are_expected(tmp_path: Path) -> None:
    """Until they register; one that said goodbye is not."""
    config = NamesrvConfig(bind="127.0.0.1:0", data=tmp_path)
    for step in range(2):
        server = NameServer(config)
        await server.start()
        client = await RemotingClient.connect(server.address)
        if step == 0:
            for name in "abd":
                await client.request(register(1, "T", broker=name), PATIENCE_S)
            leave = register(1, broker="b")
            leave.code = RequestCode.UNREGISTER_BROKER
            await client.request(leave, PATIENCE_S)
        else:
            assert (await watch(client, None, 0)).expected == ["a", "d"]
            await client.request(register(1, "T"), PATIENCE_S)
            assert (await watch(client, None, 0)).expected == ["d"]
        await client.close()
        await server.stop()


async def test_hot_settings_are_an_allow_list(client: RemotingClient) -> None:
    """By our names or Apache's; any other key changes nothing and is named."""

    async def update(text: str) -> RemotingCommand:
        return await client.request(
            RemotingCommand(RequestCode.UPDATE_NAMESRV_CONFIG, {}, text.encode())
        )

    assert (await update("orderMessageEnable=true\ntopics_max=5\n")).code == 0
    refused = await update("supportActingMaster=true\nkvConfigPath=/etc/passwd\n")
    assert refused.code == ResponseCode.NO_PERMISSION
    assert "kvConfigPath" in refused.remark
    assert (await update("topics_max=many")).code == ResponseCode.NO_PERMISSION
    answer = await client.request(RemotingCommand(RequestCode.GET_NAMESRV_CONFIG), PATIENCE_S)
    lines = bytes(answer.body).decode().splitlines()
    assert {"order_topics=true", "topics_max=5", "supportActingMaster=false"} <= set(lines)


async def route(client: RemotingClient, version: int = 493, **fields: str) -> bytes:
    command = RemotingCommand(
        RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T", **fields}, version=version
    )
    answer = await client.request(command, PATIENCE_S)
    assert answer.code == 0, answer.remark
    return bytes(answer.body)


async def test_routes_have_the_bytes_of_apaches(client: RemotingClient) -> None:
    """As captured from 5.4.0; clients before 4.9.4 get broker ids without quotes."""
    await client.request(register(1, "T", broker="broker-a"), PATIENCE_S)
    whole = (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"127.0.0.1:98"},"brokerName":"broker-a",'
        b'"cluster":"c","enableActingMaster":false}],"filterServerTable":{},"queueDatas":'
        b'[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,'
        b'"writeQueueNums":4}]}'
    )
    assert await route(client) == whole
    assert await route(client, version=400) == whole.replace(b'"0"', b"0")
    assert await route(client, version=400, acceptStandardJsonOnly="true") == whole
    answer = await client.request(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO), PATIENCE_S)
    assert bytes(answer.body) == (
        b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"127.0.0.1:98"},"brokerName":'
        b'"broker-a","cluster":"c","enableActingMaster":false}},'
        b'"clusterAddrTable":{"c":["broker-a"]}}'
    )


async def test_clients_of_a_zone_are_shown_its_brokers(client: RemotingClient) -> None:
    """When they ask for it, as Apache's clients do with ``rocketmq.zone.mode``."""
    await client.request(register(1, "T", zoneName="z1"), PATIENCE_S)
    await client.request(register(1, "T", broker="b", zoneName="z2"), PATIENCE_S)
    for zone, names in (("Z1", ["a"]), ("z2", ["b"]), ("", ["a", "b"])):
        body = await route(client, __ZONE_MODE="true", __ZONE_NAME=zone)
        found = decode_body(RouteData, body)
        assert [item.broker_name for item in found.broker_datas] == names
        assert [item.broker_name for item in found.queue_datas] == names


async def test_a_replica_acts_for_its_master(client: RemotingClient) -> None:
    """For reading, when the name server is set so and the broker registered so."""
    fields = {"brokerId": "2", "enableActingMaster": "true"}
    await client.request(register(1, "T", **fields), PATIENCE_S)
    assert decode_body(RouteData, await route(client)).broker_datas[0].broker_addrs.keys() == {2}
    await client.request(
        RemotingCommand(RequestCode.UPDATE_NAMESRV_CONFIG, {}, b"supportActingMaster=true")
    )
    found = decode_body(RouteData, await route(client))
    assert found.broker_datas[0].broker_addrs == {0: "127.0.0.1:97"}
    assert found.queue_datas[0].perm == 4
