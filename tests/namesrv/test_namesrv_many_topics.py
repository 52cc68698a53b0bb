"""One store with 20,000 topics of four queues: what goes over the wire for it."""

import zlib
from pathlib import Path

import msgspec

from namesrv.app import NameServer
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
from protocols.remoting.discovery import CHANGES_SINCE, DEFLATED, RouteChanges, RouteWatch
from protocols.remoting.discovery import encode_body as encode_private
from protocols.remoting.private import PrivateCode

COUNT = 20_000
WAIT_S = 60.0
FIELDS = {
    "brokerName": "broker-a",
    "brokerAddr": "127.0.0.1:10911",
    "clusterName": "c",
    "brokerId": "0",
    "haServerAddr": "",
    "heartbeatTimeoutMillis": "600000",
}


def registration(counter: int, names: list[str], **fields: str) -> RemotingCommand:
    table = {
        name: TopicConfig(topic_name=name, read_queue_nums=4, write_queue_nums=4) for name in names
    }
    version = DataVersion(timestamp=7, counter=counter)
    wrapper = TopicConfigWrapper(topic_config_table=table, data_version=version)
    body = encode_body(RegisterBody(topic_config_serialize_wrapper=wrapper))
    return RemotingCommand(RequestCode.REGISTER_BROKER, {**FIELDS, **fields}, body)


async def test_twenty_thousand_topics(tmp_path: Path) -> None:
    """
    Told whole once, in 160 bytes a topic; then a change is told alone, a heartbeat carries
    nothing, a client gets one route and a gateway what changed.
    """
    server = NameServer(NamesrvConfig(bind="127.0.0.1:0", data=tmp_path))
    await server.start()
    client = await RemotingClient.connect(server.address)
    try:
        whole = registration(1, [f"topic{n}" for n in range(COUNT)], isFullTable="true")
        assert len(whole.body) < 200 * COUNT
        assert (await client.request(whole, WAIT_S)).code == ResponseCode.SUCCESS

        fields = {"topic": f"topic{COUNT - 1}"}
        query = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
        answer = await client.request(query, WAIT_S)
        assert len(answer.body) < 400
        (queues,) = decode_body(RouteData, answer.body).queue_datas
        assert queues.write_queue_nums == 4

        first = await watch(client, RouteWatch())
        assert first.is_full
        assert len(first.topics["broker-a"]) == COUNT

        change = registration(2, ["one-more"], isFullTable="false", **{CHANGES_SINCE: "7:1"})
        assert len(change.body) < 1000
        assert (await client.request(change, WAIT_S)).code == ResponseCode.SUCCESS
        asked = RouteWatch(instance=first.instance, since=first.version, wait_ms=30_000)
        news = await watch(client, asked)
        assert (news.is_full, [row[0] for row in news.topics["broker-a"]]) == (False, ["one-more"])

        heartbeat = RemotingCommand(RequestCode.BROKER_HEARTBEAT, dict(FIELDS))
        assert (await client.request(heartbeat, WAIT_S)).code == ResponseCode.SUCCESS
    finally:
        await client.close()
        await server.stop()


async def watch(client: RemotingClient, asked: RouteWatch) -> RouteChanges:
    body = encode_private(asked)
    command = RemotingCommand(PrivateCode.ROUTE_WATCH, None, body, is_binary=True)
    answer = await client.request(command, WAIT_S)
    data = bytes(answer.body)
    assert len(data) < 200_000  # deflated where that pays
    if DEFLATED in answer.fields:
        data = zlib.decompress(data)
    return msgspec.msgpack.decode(data, type=RouteChanges)
