"""
A full store: each protocol refuses in its own words, what is stored is read and acknowledged,
and publishes are taken again once nobody is owed the oldest messages any more.
"""

import asyncio
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator

import aio_pika
import grpc
import grpc.aio
import pika
import pytest
from aio_pika.exceptions import DeliveryError

from protocols.errors import Code
from protocols.grpc.adapter import SERVICE
from protocols.grpc.v2 import definition_pb2 as v2
from protocols.grpc.v2 import service_pb2 as pb
from protocols.mqtt.packets import V5, V311, Connect, Puback, Publish
from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from tests.demo.cluster import create_topic
from tests.support.mqtt_client import MqttClient
from tests.support.patience import PATIENCE_S
from tests.support.processes import Daemon, Daemons

pytestmark = [pytest.mark.client, pytest.mark.timeout(120)]

TOPIC = "full"
BODY = b"x" * 60_000
SEND = {"a": "p", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0"}
SMALL = (
    "store.segment_bytes=1048576",
    "store.limits.log_bytes_max=4194304",
    "store.limits.disk_free_bytes_min=0",
)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemons(tmp_path_factory.mktemp("full")) as daemons:
        up = daemons.up(*SMALL)
        create_topic(up.addresses["store"], TOPIC)
        yield up


@pytest.fixture
async def inbox(up: Daemon) -> AsyncIterator[aio_pika.abc.AbstractQueue]:
    """A durable queue that is owed everything published."""
    connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{up.port('amqp')}/")
    async with connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("full-inbox", durable=True)
        await queue.bind("amq.topic", f"{TOPIC}.#")
        yield queue


def publish_http(up: Daemon) -> int:
    """The status of one event."""
    headers = {
        "ce-id": "1",
        "ce-source": "/full",
        "ce-type": "t",
        "ce-specversion": "1.0",
        "ce-subject": "s",
        "Content-Type": "application/octet-stream",
    }
    url = f"http://127.0.0.1:{up.port('events')}/topics/{TOPIC}"
    request = urllib.request.Request(url, BODY, headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            is_problem = error.headers["Content-Type"] == "application/problem+json"
            return error.code if is_problem else -1


async def publish_mqtt(up: Daemon, version: int) -> int | None:
    """The reason code of the PUBACK; None: no ack, the connection was closed."""
    connect = Connect(client_id=f"full-{version}", version=version)
    async with MqttClient(up.address("mqtt"), connect) as client:
        client.send(Publish(f"{TOPIC}/m", BODY, qos=1, packet_id=7))
        answer = await client.receive()
        if answer is None:
            return None
        assert isinstance(answer, Puback)
        assert answer.packet_id == 7
        return answer.reason


async def publish_amqp(up: Daemon) -> bool:
    """Whether the publish is confirmed; a nack is not."""
    connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{up.port('amqp')}/")
    async with connection:
        channel = await connection.channel()
        exchange = await channel.get_exchange("amq.topic")
        try:
            await exchange.publish(aio_pika.Message(BODY), routing_key=f"{TOPIC}.a")
        except DeliveryError:
            return False
        return True


def publish_pika(up: Daemon) -> list[str]:
    """What a connection hears that publishes once, until it hears that it may go on."""
    heard: list[str] = []
    parameters = pika.ConnectionParameters("127.0.0.1", up.port("amqp"))
    with pika.BlockingConnection(parameters) as connection:
        connection.add_on_connection_blocked_callback(
            lambda _, blocked: heard.append(blocked.method.reason)
        )
        connection.add_on_connection_unblocked_callback(lambda *_: heard.append("unblocked"))
        connection.channel().basic_publish("amq.topic", f"{TOPIC}.a", BODY)
        end = time.monotonic() + PATIENCE_S
        while "unblocked" not in heard and time.monotonic() < end:
            connection.process_data_events(time_limit=1)
    return heard


async def publish_grpc(up: Daemon) -> int:
    """The status code of SendMessage."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{up.port('grpc')}") as channel:
        method = channel.unary_unary(
            f"/{SERVICE}/SendMessage",
            request_serializer=pb.SendMessageRequest.SerializeToString,
            response_deserializer=pb.SendMessageResponse.FromString,
        )
        system = v2.SystemProperties(message_id="01" + "0" * 32)
        message = v2.Message(topic=v2.Resource(name=TOPIC), body=BODY, system_properties=system)
        request = pb.SendMessageRequest(messages=[message])
        metadata = (("x-mq-client-id", "host@1@0@abc"),)
        answer = await method(request, metadata=metadata, timeout=PATIENCE_S)
        return int(answer.status.code)


async def publish_remoting(up: Daemon) -> int:
    """The response code of SEND_MESSAGE_V2."""
    client = await RemotingClient.connect(up.addresses["remoting"])
    try:
        command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, dict(SEND), BODY)
        return (await client.request(command, PATIENCE_S)).code
    finally:
        await client.close()


async def fill(up: Daemon) -> int:
    """Publish until refused; how many were taken."""
    count = 0
    while (status := await asyncio.to_thread(publish_http, up)) == 202:
        count += 1
        assert count < 200, "the store never got full"
    assert status == 507
    return count


async def test_a_full_store_refuses_in_each_protocols_words(
    up: Daemon, inbox: aio_pika.abc.AbstractQueue
) -> None:
    """Refused five times over; then read, acknowledged, and open for publishes again."""
    count = await fill(up)
    assert count > 10
    assert await publish_mqtt(up, V5) == 0x97
    assert await publish_mqtt(up, V311) is None
    assert not await publish_amqp(up)
    assert await asyncio.to_thread(publish_pika, up) == ["low on disk", "unblocked"]
    assert await publish_grpc(up) == Code.MASTER_PERSISTENCE_TIMEOUT
    assert await publish_remoting(up) == ResponseCode.SERVICE_NOT_AVAILABLE
    for _ in range(count):
        message = await inbox.get(timeout=PATIENCE_S)
        assert len(message.body) == len(BODY)
        await message.ack()
    assert await inbox.get(fail=False) is None  # what was refused is not there
    async with asyncio.timeout(PATIENCE_S):
        while await asyncio.to_thread(publish_http, up) != 202:
            pass  # the store looks once a second at what may go
    assert await publish_mqtt(up, V5) == 0
    assert await publish_amqp(up)
    assert "Traceback" not in up.log()
