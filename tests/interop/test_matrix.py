"""
One message, any protocol: what each of the five publishes, each of the five receives.

Real clients throughout: paho (MQTT 5), aio-pika, the CloudEvents SDK over HTTP, the official
RocketMQ 5 gRPC client in its own process, and the Java remoting client where Java is there.
"""

import asyncio
import base64
import json
import os
import queue
import shutil
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any, NamedTuple

import aio_pika
import paho.mqtt.client as mqtt
import pytest
from cloudevents.core.bindings.http import to_binary_event
from cloudevents.core.v1.event import CloudEvent
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.demo.cluster import create_topic
from tests.support.java_clients import run_java
from tests.support.paho_publish import published
from tests.support.patience import PATIENCE_S
from tests.support.processes import Daemon, Daemons, wait_until
from tests.support.rocketmq_python import run_grpc_client

pytestmark = [pytest.mark.client, pytest.mark.timeout(300)]

TOPIC = "matrix"
HAS_JAVA = shutil.which("java") is not None or bool(os.environ.get("CI"))
PUBLISHERS = ("mqtt", "amqp", "cloudevents", "grpc", *(("remoting",) if HAS_JAVA else ()))
BODIES = {name: f"from {name}" for name in PUBLISHERS}


class Received(NamedTuple):
    """One message as a receiver saw it: the body, and the value it had for ``color``."""

    body: str
    color: str


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemons(tmp_path_factory.mktemp("matrix")) as daemons:
        namesrv = daemons.namesrv()
        store = daemons.store(namesrv)
        create_topic(next(iter(store.addresses.values())), TOPIC)
        yield daemons.gateway(namesrv)


# ── receivers that must be there first ──────────────────────────────────────────────────


class MqttReceiver:
    """A paho subscriber of ``matrix/#``."""

    def __init__(self, port: int) -> None:
        self.received: list[Received] = []
        self._subscribed = threading.Event()
        self._client = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id="matrix-reader", protocol=mqtt.MQTTv5
        )
        self._client.on_message = self._take
        self._client.on_subscribe = lambda *arguments: self._subscribed.set()
        self._client.on_connect = lambda *a: self._client.subscribe(f"{TOPIC}/#", qos=1)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        assert self._subscribed.wait(PATIENCE_S)

    def _take(self, client: mqtt.Client, userdata: Any, message: mqtt.MQTTMessage) -> None:
        properties = dict(getattr(message.properties, "UserProperty", []))
        self.received.append(Received(message.payload.decode(), properties.get("color", "")))

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


class AmqpReceiver:
    """An aio-pika consumer of a queue bound to ``amq.topic`` with ``matrix.#``."""

    def __init__(self, port: int) -> None:
        self.received: list[Received] = []
        self._ready: queue.Queue[BaseException | None] = queue.Queue()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(port)))
        self._thread.start()
        error = self._ready.get(timeout=PATIENCE_S)
        assert error is None, error

    async def _run(self, port: int) -> None:
        try:
            connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{port}/")
            channel = await connection.channel()
            inbox = await channel.declare_queue("matrix-inbox", durable=True)
            await inbox.bind("amq.topic", f"{TOPIC}.#")
            await inbox.consume(self._take)
        except BaseException as error:
            self._ready.put(error)
            raise
        self._ready.put(None)
        await asyncio.to_thread(self._stop.wait)
        await connection.close()

    async def _take(self, message: aio_pika.abc.AbstractIncomingMessage) -> None:
        headers = {name: _text(value) for name, value in message.headers.items()}
        color = headers.get("color") or headers.get("ce-color") or ""
        self.received.append(Received(message.body.decode(), color))
        await message.ack()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


# ── publishers ──────────────────────────────────────────────────────────────────────────


def publish_mqtt(gateway: Daemon, body: str) -> None:
    properties = Properties(PacketTypes.PUBLISH)
    properties.ContentType = "text/plain"
    properties.UserProperty = ("color", "red")
    client = mqtt.Client(
        CallbackAPIVersion.VERSION2, client_id="matrix-writer", protocol=mqtt.MQTTv5
    )
    client.connect("127.0.0.1", gateway.port("mqtt"))
    client.loop_start()
    published(client, f"{TOPIC}/m", body, properties=properties)
    client.disconnect()
    client.loop_stop()


async def publish_amqp(gateway: Daemon, body: str) -> None:
    connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{gateway.port('amqp')}/")
    async with connection:
        channel = await connection.channel()
        exchange = await channel.get_exchange("amq.topic")
        message = aio_pika.Message(
            body.encode(), content_type="text/plain", headers={"color": "red"}
        )
        await exchange.publish(message, routing_key=f"{TOPIC}.a")


def publish_cloudevents(gateway: Daemon, body: str) -> None:
    attributes = {
        "id": "e-1",
        "source": "/matrix",
        "type": "example.matrix",
        "specversion": "1.0",
        "subject": "c",
        "datacontenttype": "text/plain",
        "color": "red",
    }
    message = to_binary_event(CloudEvent(attributes, body))
    url = f"http://127.0.0.1:{gateway.port('events')}/topics/{TOPIC}"
    request = urllib.request.Request(url, bytes(message.body), dict(message.headers), method="POST")
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        assert answer.status == 202


def publish_grpc(gateway: Daemon, body: str) -> None:
    port = gateway.port("grpc")
    run_grpc_client("send", port, topic=TOPIC, bodies=[body], properties={"color": "red"})


def publish_remoting(gateway: Daemon, body: str) -> None:
    run_java("send", gateway.addresses["remoting"], topic=TOPIC, bodies=[body])


# ── receivers that read what is stored ──────────────────────────────────────────────────


def receive_cloudevents(gateway: Daemon, count: int) -> list[Received]:
    """HTTP pull, acknowledged."""
    port = gateway.port("events")
    base = f"http://127.0.0.1:{port}/topics/{TOPIC}/subscriptions/http-readers"
    found: list[Received] = []

    def pull() -> bool:
        answer = _post(f"{base}:receive", {"maxEvents": 10, "maxWaitTime": 2})
        for item in answer["value"]:
            event = item["event"]
            data = event.get("data")
            if "data_base64" in event:
                data = base64.b64decode(event["data_base64"]).decode()
            found.append(Received(str(data), str(event.get("color", ""))))
        tokens = [item["brokerProperties"]["lockToken"] for item in answer["value"]]
        if tokens:
            _post(f"{base}:acknowledge", {"lockTokens": tokens})
        return len(found) >= count

    wait_until(pull, f"{count} events by HTTP pull")
    return found


def _post(url: str, body: dict[str, object]) -> dict[str, Any]:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
        answer: dict[str, Any] = json.load(response)
        return answer


async def test_what_each_protocol_publishes_each_receives(gateway: Daemon) -> None:
    """Five publishers, five receivers, twenty-five arrivals; a user's property comes along."""
    receivers = MqttReceiver(gateway.port("mqtt")), AmqpReceiver(gateway.port("amqp"))
    try:
        publish_mqtt(gateway, BODIES["mqtt"])
        await publish_amqp(gateway, BODIES["amqp"])
        publish_cloudevents(gateway, BODIES["cloudevents"])
        publish_grpc(gateway, BODIES["grpc"])
        if HAS_JAVA:
            publish_remoting(gateway, BODIES["remoting"])
        count = len(BODIES)
        wait_until(
            lambda: all(len(receiver.received) >= count for receiver in receivers),
            "every message at the MQTT and the AMQP receiver",
        )
    finally:
        for receiver in receivers:
            receiver.close()
    wanted = sorted(BODIES.values())
    arrivals = {
        "mqtt": receivers[0].received,
        "amqp": receivers[1].received,
        "cloudevents": receive_cloudevents(gateway, count),
    }
    for name, found in arrivals.items():
        assert sorted(message.body for message in found) == wanted, name
        without = [m.body for m in found if m.color != "red" and m.body != BODIES.get("remoting")]
        assert not without, f"{name} lost the property of {without}"
    bodies = run_grpc_client(
        "receive", gateway.port("grpc"), topic=TOPIC, group="matrix-grpc", count=count
    )
    assert sorted(bodies) == wanted
    if HAS_JAVA:
        bodies = run_java(
            "push", gateway.addresses["remoting"], topic=TOPIC, group="matrix-java", count=count
        )
        assert sorted(bodies) == wanted
