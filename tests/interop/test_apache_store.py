"""
An unmodified Apache RocketMQ 5.4 broker in our store's place, the directory on a store beside it.

MQTT publish → gRPC receive and AMQP publish → consume → ack, through the same gateway.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncIterator, Iterator

import aio_pika
import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from gateway.clusters.apache import requests
from protocols.canonical import StoredMessage
from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.records import decode_records
from tests.demo.cluster import create_topic
from tests.support import apache_rocketmq
from tests.support.apache_rocketmq import ApacheCluster
from tests.support.apache_rocketmq.front import gateway_before
from tests.support.paho_publish import published
from tests.support.patience import PATIENCE_S
from tests.support.processes import Daemon, Daemons
from tests.support.rocketmq_python import run_grpc_client

pytestmark = [pytest.mark.client, pytest.mark.java, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheCluster]:
    apache_rocketmq.require()
    with ApacheCluster(tmp_path_factory.mktemp("apache"), flush="SYNC_FLUSH") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def gateway(apache: ApacheCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("gateway")
    for topic in ("plants", "meters"):
        create_topic(apache.broker, topic)
    with Daemons(folder) as daemons:
        yield gateway_before(apache, daemons)


def publish(port: int, topic: str, bodies: list[bytes]) -> None:
    """paho, QoS 1; returns when every PUBACK is here."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="apache-publisher")
    client.connect("127.0.0.1", port)
    client.loop_start()
    for body in bodies:
        published(client, topic, body)
    client.disconnect()
    client.loop_stop()


@contextlib.asynccontextmanager
async def connected(address: str) -> AsyncIterator[RemotingClient]:
    client = await RemotingClient.connect(address)
    try:
        yield client
    finally:
        await client.close()


async def pulled(broker: RemotingClient, queue_name: str) -> list[StoredMessage]:
    """What a light queue has from its beginning, once it has something."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            command = requests.pull("%LMQ%node", queue_name, 0, 0, 32, broker="broker-a")
            answer = await broker.request(command, PATIENCE_S)
            if answer.code == ResponseCode.SUCCESS:
                return decode_records(answer.body)


def test_mqtt_publish_is_received_over_grpc(gateway: Daemon) -> None:
    """The official RocketMQ 5 client pops from Apache, through us, what paho published."""
    bodies = [b"reading %d" % number for number in range(10)]
    publish(gateway.port("mqtt"), "meters/9/temp", bodies)
    received = run_grpc_client(
        "receive", gateway.port("grpc"), topic="meters", group="grpc-readers", count=len(bodies)
    )
    assert sorted(received) == sorted(body.decode() for body in bodies)


async def test_amqp_publish_is_consumed_and_acknowledged(gateway: Daemon) -> None:
    """A queue's messages come in order, a rejected one again, an acknowledged one never."""
    url = f"amqp://guest:guest@127.0.0.1:{gateway.port('amqp')}/"
    bodies = [f"job {number}".encode() for number in range(20)]
    connection = await aio_pika.connect(url, timeout=PATIENCE_S)
    async with connection:
        channel = await connection.channel()
        jobs = await channel.declare_queue("jobs", durable=True)
        for body in bodies:
            message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await channel.default_exchange.publish(message, routing_key="jobs")
        received: list[bytes] = []
        async with asyncio.timeout(PATIENCE_S):
            async with jobs.iterator() as messages:
                async for message in messages:
                    if len(received) == 3 and not message.redelivered:
                        await message.nack(requeue=True)
                        continue
                    received.append(message.body)
                    await message.ack()
                    if len(received) == len(bodies):
                        break
        assert sorted(received) == sorted(bodies)
    connection = await aio_pika.connect(url, timeout=PATIENCE_S)
    async with connection:
        channel = await connection.channel()
        jobs = await channel.declare_queue("jobs", durable=True, passive=True)
        assert jobs.declaration_result.message_count == 0
        assert await jobs.get(fail=False) is None


def test_mqtt_subscriber_reads_from_apache(gateway: Daemon) -> None:
    """A filter is a light queue of the broker: live messages reach an MQTT subscriber."""
    got: queue.Queue[bytes] = queue.Queue()
    subscribed = threading.Event()
    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="apache-subscriber")
    client.on_message = lambda *arguments: got.put(arguments[2].payload)
    client.on_subscribe = lambda *arguments: subscribed.set()
    client.on_connect = lambda *arguments: client.subscribe("plants/+/alarm", qos=1)
    client.connect("127.0.0.1", gateway.port("mqtt"))
    client.loop_start()
    assert subscribed.wait(PATIENCE_S)
    publish(gateway.port("mqtt"), "plants/3/alarm", [b"fire"])
    assert got.get(timeout=PATIENCE_S) == b"fire"
    client.publish("plants/9/alarm", b"kept", 1, retain=True)  # by the store beside it
    assert got.get(timeout=PATIENCE_S) == b"kept"
    client.subscribe("plants/9/#", qos=1)
    assert got.get(timeout=PATIENCE_S) == b"kept"
    client.disconnect()
    client.loop_stop()


async def test_nodes_of_rocketmq_mqtt_find_what_is_published(
    apache: ApacheCluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """
    With ``apache_properties``, in the light queues that such a node pulls.

    The topic's own and the one of a filter that the name server lists, with the QoS in ``extData``.
    """
    create_topic(apache.broker, "boats")
    async with connected(apache.namesrv) as name_server:
        fields = {"namespace": "LMQ", "key": "boats", "value": "boats/+/speed"}
        command = RemotingCommand(RequestCode.PUT_KV_CONFIG, fields)
        assert (await name_server.request(command, PATIENCE_S)).code == ResponseCode.SUCCESS
    with Daemons(tmp_path_factory.mktemp("nodes")) as daemons:
        gateway = gateway_before(apache, daemons, "listeners.mqtt.apache_properties=true")
        await asyncio.to_thread(publish, gateway.port("mqtt"), "boats/7/speed", [b"12 kn"])
        async with connected(apache.broker) as broker:
            for queue_name in ("%LMQ%boats%7%speed%", "%LMQ%boats%+%speed%"):
                messages = await pulled(broker, queue_name)
                assert [message.body for message in messages] == [b"12 kn"]
                properties = dict(messages[0].properties)
                assert properties["originMqttTopic"] == "boats/7/speed"
                assert properties["extData"] == '{"qosLevel":"1"}'
                assert properties["TAGS"] == "MQTT_COMMON"
