"""A name server on a socket: its codes, its refusals, its table on disk, its command."""

import asyncio
import json
import struct
import time
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from namesrv.app import NameServer
from namesrv.cli import command
from namesrv.config import NamesrvConfig
from protocols.daemon.config import ClusterAuth
from protocols.errors import ConfigError
from protocols.remoting.bodies import (
    ClusterInfo,
    RegisterBody,
    RouteData,
    TopicConfig,
    TopicConfigWrapper,
    decode_body,
    encode_body,
)
from protocols.remoting.client import RemotingClient, local_pair
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.discovery import GatewayRegister
from protocols.remoting.discovery import encode_body as encode_private
from protocols.remoting.nearly_json import parse
from protocols.remoting.private import PrivateCode
from protocols.remoting.signing import sign
from tests.support.patience import PATIENCE_S

TOPIC = TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NameServer]:
    server = NameServer(
        NamesrvConfig(bind="127.0.0.1:0", data=tmp_path, lost_ms_max=50, order_topics=True)
    )
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def client(server: NameServer) -> AsyncIterator[RemotingClient]:
    client = await RemotingClient.connect(server.address)
    yield client
    await client.close()


def register(body: bytes | None = None, **changes: str) -> RemotingCommand:
    wrapper = TopicConfigWrapper(topic_config_table={"T": TOPIC})
    fields = {
        "brokerName": "broker-a",
        "brokerAddr": "127.0.0.1:10911",
        "clusterName": "c",
        "haServerAddr": "127.0.0.1:10912",
        "brokerId": "0",
        "heartbeatTimeoutMillis": "60000",
        "isFullTable": "true",
    }
    if body is None:
        body = encode_body(RegisterBody(topic_config_serialize_wrapper=wrapper))
    return RemotingCommand(RequestCode.REGISTER_BROKER, {**fields, **changes}, body)


async def ask(client: RemotingClient, code: int, **fields: str) -> RemotingCommand:
    return await client.request(RemotingCommand(code, fields), PATIENCE_S)


async def test_register_route_cluster_lists(client: RemotingClient) -> None:
    """What mqadmin's topicRoute, clusterList and topicList ask for."""
    assert (await client.request(register(), PATIENCE_S)).code == ResponseCode.SUCCESS
    answer = await ask(client, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")
    route = decode_body(RouteData, answer.body)
    assert route.broker_datas[0].broker_addrs == {0: "127.0.0.1:10911"}
    assert route.queue_datas[0].read_queue_nums == 4
    answer = await ask(client, RequestCode.GET_BROKER_CLUSTER_INFO)
    assert decode_body(ClusterInfo, answer.body).cluster_addr_table == {"c": ["broker-a"]}
    answer = await ask(client, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    assert json.loads(answer.body) == {"topicList": ["T"]}
    answer = await ask(client, RequestCode.GET_TOPICS_BY_CLUSTER, cluster="c")
    assert json.loads(answer.body) == {"topicList": ["T"]}
    answer = await ask(client, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    assert json.loads(answer.body) == {
        "topicList": ["broker-a", "c"],
        "brokerAddr": "127.0.0.1:10911",
    }
    answer = await ask(
        client, RequestCode.GET_BROKER_MEMBER_GROUP, clusterName="c", brokerName="broker-a"
    )
    assert parse(answer.body)["brokerMemberGroup"]["brokerAddrs"] == {"0": "127.0.0.1:10911"}


@pytest.mark.parametrize(
    ("code", "fields", "expected"),
    [
        (RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST),
        (RequestCode.GET_ROUTEINFO_BY_TOPIC, {}, ResponseCode.SYSTEM_ERROR),
        (RequestCode.SEND_MESSAGE, {}, ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
        (RequestCode.GET_KV_CONFIG, {"namespace": "n", "key": "k"}, ResponseCode.QUERY_NOT_FOUND),
        (RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"}, ResponseCode.QUERY_NOT_FOUND),
        (RequestCode.REGISTER_BROKER, {}, ResponseCode.SYSTEM_ERROR),
        (
            RequestCode.BROKER_HEARTBEAT,
            {"clusterName": "c", "brokerAddr": "x:1", "brokerName": "b"},
            ResponseCode.BROKER_NOT_EXIST,
        ),
    ],
)
async def test_refusals(
    client: RemotingClient, code: int, fields: dict[str, str], expected: int
) -> None:
    """Each refusal has its code and a remark; the connection goes on."""
    answer = await ask(client, code, **fields)
    assert answer.code == expected
    assert answer.remark


async def test_every_code_answers(client: RemotingClient) -> None:
    """Each code in the table answers something, with or without its fields."""
    codes = [code for code in RequestCode if code in range(100, 107) or code in range(205, 330)]
    for code in [*codes, 901, 904]:
        assert (await ask(client, code)).is_response


async def test_broker_gone_from_routes(client: RemotingClient, server: NameServer) -> None:
    """A broker whose connection ends leaves the routes (here after 50 ms, by default 1 s)."""
    broker = await RemotingClient.connect(server.address)
    await broker.request(register(heartbeatTimeoutMillis="120000"), PATIENCE_S)
    assert (await ask(client, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")).code == 0
    await broker.close()
    async with asyncio.timeout(PATIENCE_S):
        while (await ask(client, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")).code == 0:
            pass
    answer = await ask(client, RequestCode.GET_BROKER_CLUSTER_INFO)
    assert json.loads(answer.body) == {"brokerAddrTable": {}, "clusterAddrTable": {}}


async def test_a_stopped_name_server_blames_no_broker(client: RemotingClient) -> None:
    """Heartbeats that came while it had no CPU are read before a lease ends."""
    await client.request(register(heartbeatTimeoutMillis="500"), PATIENCE_S)
    time.sleep(1.2)  # noqa: ASYNC251 - the whole process stands still
    for _ in range(20):  # turns of the loop: its timer comes first
        await asyncio.sleep(0)
    assert (await ask(client, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")).code == 0


async def test_unregister(client: RemotingClient) -> None:
    await client.request(register(), PATIENCE_S)
    fields = {"brokerName": "broker-a", "brokerAddr": "127.0.0.1:10911", "clusterName": "c"}
    answer = await ask(client, RequestCode.UNREGISTER_BROKER, brokerId="0", **fields)
    assert answer.code == 0
    answer = await ask(client, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


async def test_data_version(client: RemotingClient) -> None:
    """A broker asks whether its table is known before it sends it."""
    await client.request(register(), PATIENCE_S)
    question = RemotingCommand(
        RequestCode.QUERY_DATA_VERSION,
        {"brokerName": "broker-a", "brokerAddr": "127.0.0.1:10911", "clusterName": "c"},
        b'{"counter":0,"stateVersion":0,"timestamp":0}',
    )
    answer = await client.request(question, PATIENCE_S)
    assert answer.fields == {"changed": "false"}
    question.body = b'{"counter":1,"stateVersion":0,"timestamp":0}'
    assert (await client.request(question, PATIENCE_S)).fields == {"changed": "true"}


async def test_write_permission_and_topic_deletion(client: RemotingClient) -> None:
    await client.request(register(), PATIENCE_S)
    answer = await ask(client, RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="broker-a")
    assert answer.fields == {"wipeTopicCount": "1"}
    answer = await ask(client, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")
    assert decode_body(RouteData, answer.body).queue_datas[0].perm == 4
    answer = await ask(client, RequestCode.ADD_WRITE_PERM_OF_BROKER, brokerName="broker-a")
    assert answer.fields == {"addTopicCount": "1"}
    await ask(client, RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="T")
    answer = await ask(client, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


async def test_key_value_table_survives(
    client: RemotingClient, server: NameServer, tmp_path: Path
) -> None:
    """An answered change is in the file; a name server started on it knows it."""
    fields = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "broker-a:4"}
    assert (await ask(client, RequestCode.PUT_KV_CONFIG, **fields)).code == 0
    await client.request(register(), PATIENCE_S)
    answer = await ask(client, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")
    assert decode_body(RouteData, answer.body).order_topic_conf == "broker-a:4"
    again = NameServer(NamesrvConfig(bind="127.0.0.1:0", data=tmp_path))
    await again.start()
    other = await RemotingClient.connect(again.address)
    answer = await ask(other, RequestCode.GET_KV_CONFIG, namespace=fields["namespace"], key="T")
    assert answer.fields == {"value": "broker-a:4"}
    await ask(other, RequestCode.DELETE_KV_CONFIG, namespace=fields["namespace"], key="T")
    answer = await ask(other, RequestCode.GET_KVLIST_BY_NAMESPACE, namespace=fields["namespace"])
    assert answer.code == ResponseCode.QUERY_NOT_FOUND
    await other.close()
    await again.stop()


async def test_a_folder_that_cannot_be_written_is_found_at_the_start(tmp_path: Path) -> None:
    """Not when the first broker registers; a folder that is not there is made."""
    made = NameServer(NamesrvConfig(bind="127.0.0.1:0", data=tmp_path / "a" / "b"))
    await made.start()
    await made.stop()
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        await NameServer(NamesrvConfig(bind="127.0.0.1:0", data=tmp_path / "file")).start()


async def test_damaged_table_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "kvConfig.json").write_text("{")
    with pytest.raises(ConfigError, match="no key-value table"):
        await NameServer(NamesrvConfig(bind="127.0.0.1:0", data=tmp_path)).start()


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">I", len(data)) + data


async def test_compressed_registration(client: RemotingClient) -> None:
    """Brokers with compressedRegister send another encoding of the same table."""
    plain = (
        text('{"counter":1,"stateVersion":0,"timestamp":9}')
        + struct.pack(">I", 1)
        + text('C 8 8 6 SINGLE_TAG {"message.type":"FIFO"}')
        + text("[]")
        + struct.pack(">I", 0)
    )
    body = zlib.compress(plain)
    crc = str(zlib.crc32(body) & 0x7FFFFFFF)
    answer = await client.request(register(body, compressed="true", bodyCrc32=crc), PATIENCE_S)
    assert answer.code == 0
    answer = await ask(client, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="C")
    assert decode_body(RouteData, answer.body).queue_datas[0].read_queue_nums == 8


@pytest.mark.parametrize(
    ("body", "changes"),
    [
        (b"xx", {"compressed": "true"}),
        (b"{}", {"bodyCrc32": "7"}),
        (b"[1]", {}),
        (zlib.compress(b"\0\0\0\xff"), {"compressed": "true"}),
    ],
)
async def test_damaged_registration(
    client: RemotingClient, body: bytes, changes: dict[str, str]
) -> None:
    """Refused with the reason; nothing is registered."""
    answer = await client.request(register(body, **changes), PATIENCE_S)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark


async def test_credentials(tmp_path: Path) -> None:
    """With cluster credentials changes must be signed; reading is free."""
    auth = ClusterAuth(access_key="key", secret="secret")
    server = NameServer(NamesrvConfig(bind="127.0.0.1:0", data=tmp_path), auth=auth)
    await server.start()
    assert server.handler is not None
    client = local_pair(server.handler)
    assert (await client.request(register(), PATIENCE_S)).code == ResponseCode.NO_PERMISSION
    signed = register()
    sign(signed, "key", "secret")
    assert (await client.request(signed, PATIENCE_S)).code == 0
    assert (await ask(client, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")).code == 0
    delete = RequestCode.DELETE_TOPIC_IN_NAMESRV
    assert (await ask(client, delete, topic="T")).code == ResponseCode.NO_PERMISSION
    assert (await ask(client, delete, topic="gone")).code == 0  # mqadmin, behind the store's answer
    await client.close()
    await server.stop()


def test_open_bind_needs_credentials(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not loopback"):
        NameServer(NamesrvConfig(bind="0.0.0.0:0", data=tmp_path))


async def test_acting_master_notification(server: NameServer) -> None:
    """Replicas learn who has the lowest id when the master leaves (905)."""
    pushed: asyncio.Queue[RemotingCommand] = asyncio.Queue()
    master = await RemotingClient.connect(server.address)
    slave = await RemotingClient.connect(
        server.address, push=lambda peer, commands: pushed.put_nowait(commands[0])
    )
    await master.request(register(enableActingMaster="true"), PATIENCE_S)
    await slave.request(
        register(brokerId="1", brokerAddr="127.0.0.1:20911", enableActingMaster="true")
    )
    fields = {"brokerName": "broker-a", "brokerAddr": "127.0.0.1:10911", "clusterName": "c"}
    await ask(master, RequestCode.UNREGISTER_BROKER, brokerId="0", **fields)
    async with asyncio.timeout(PATIENCE_S):
        told = await pushed.get()
    assert told.code == RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE
    assert told.fields["minBrokerId"] == "1"
    await master.close()
    await slave.close()


async def test_gateways(client: RemotingClient, server: NameServer) -> None:
    """A gateway tells its listeners; the command lists them while it is connected."""
    gateway = await RemotingClient.connect(server.address)
    body = encode_private(GatewayRegister(gateway="gw-1", protocols={"mqtt": "127.0.0.1:1883"}))
    answer = await gateway.request(
        RemotingCommand(PrivateCode.GATEWAY_REGISTER, body=body), PATIENCE_S
    )
    assert answer.code == 0
    runner = CliRunner()
    arguments = ["gateways", "--namesrvAddr", server.address, "--json"]
    listed = await asyncio.to_thread(runner.invoke, command, arguments)
    assert json.loads(listed.output)[0]["protocols"] == {"mqtt": "127.0.0.1:1883"}
    listed = await asyncio.to_thread(runner.invoke, command, arguments[:-1])
    assert listed.output == "gw-1  connections=0 messages/s=0  mqtt=127.0.0.1:1883\n"
    await gateway.close()
    async with asyncio.timeout(PATIENCE_S):
        while True:
            answer = await ask(client, PrivateCode.GATEWAY_LIST)
            if msgspec.msgpack.decode(answer.body) in ({}, {"gateways": []}):
                break
