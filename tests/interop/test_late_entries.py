"""A Java producer that knows nothing of gateways: MQTT, AMQP and webhooks get what it sends."""

import json
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aio_pika
import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.demo.cluster import create_topic
from tests.support import java_clients
from tests.support.patience import PATIENCE_S
from tests.support.processes import HURRIED, Daemon, Daemons, wait_until
from tests.support.webhook_sink import WebhookSink

pytestmark = [pytest.mark.client, pytest.mark.java, pytest.mark.timeout(240)]

TOPIC = "late"


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Daemons]:
    with Daemons(tmp_path) as daemons:
        yield daemons


class MqttReader:
    """A durable session; ``bodies`` outlives its connections."""

    def __init__(self) -> None:
        self.bodies: set[str] = set()

    def connect(self, port: int) -> None:
        ready = threading.Event()
        client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="late", protocol=mqtt.MQTTv5)
        client.on_message = self._take
        client.on_subscribe = lambda *arguments: ready.set()
        client.on_connect = lambda *a: client.subscribe(f"{TOPIC}/#", qos=1)
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 3600
        client.connect("127.0.0.1", port, clean_start=False, properties=properties)
        client.loop_start()
        assert ready.wait(PATIENCE_S)
        self._client = client

    def _take(self, client: mqtt.Client, userdata: Any, message: mqtt.MQTTMessage) -> None:
        self.bodies.add(message.payload.decode())

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


async def bind_queue(port: int) -> None:
    connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{port}/")
    async with connection:
        channel = await connection.channel()
        inbox = await channel.declare_queue("late-inbox", durable=True)
        await inbox.bind("amq.topic", f"{TOPIC}.#")


async def read_queue(port: int, count: int) -> set[str]:
    """Until so many different ones have come; those that the dead gateway knew may come twice."""
    connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{port}/")
    found: set[str] = set()
    async with connection:
        channel = await connection.channel()
        inbox = await channel.get_queue("late-inbox")
        async with inbox.iterator(timeout=PATIENCE_S) as messages:
            async for message in messages:
                found.add(message.body.decode())
                await message.ack()
                if len(found) == count:
                    break
    return found


def add_webhook(port: int, url: str) -> None:
    document = {
        "sink": url,
        "protocol": "HTTP",
        "config": {"topic": TOPIC},
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/subscriptions",
        json.dumps(document).encode(),
        {"Content-Type": "application/json"},
        method="POST",
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        assert answer.status in (200, 201)


async def test_direct_sends_reach_everybody_over_the_death_of_the_gateway(
    daemons: Daemons,
) -> None:
    """Half of them is sent while no gateway is alive; each comes at least once to each protocol."""
    namesrv = daemons.namesrv()
    store = daemons.store(namesrv, *HURRIED)
    create_topic(next(iter(store.addresses.values())), TOPIC)
    gateway = daemons.gateway(namesrv)
    reader = MqttReader()
    with WebhookSink() as sink:
        reader.connect(gateway.port("mqtt"))
        await bind_queue(gateway.port("amqp"))
        add_webhook(gateway.port("events"), sink.url)
        first, second = [f"a{n}" for n in range(5)], [f"b{n}" for n in range(5)]
        send(namesrv, first)
        wait_until(lambda: len(reader.bodies) == len(first), "the first half by MQTT")
        gateway.kill()
        reader.close()
        send(namesrv, second)
        gateway.restart()
        reader.connect(gateway.port("mqtt"))
        wanted = {*first, *second}
        wait_until(lambda: wanted <= reader.bodies, "all of them by MQTT")
        wait_until(lambda: len(set(sink.bodies)) >= len(wanted), "all of them at the webhook")
        assert reader.bodies == wanted
        assert {body.decode() for body in sink.bodies} == wanted
        assert await read_queue(gateway.port("amqp"), len(wanted)) == wanted
        reader.close()


def send(namesrv: Daemon, bodies: list[str]) -> None:
    """By Apache's client, name server and store alone."""
    address = next(iter(namesrv.addresses.values()))
    sent = java_clients.send(address, topic=TOPIC, bodies=bodies)
    assert [one.status for one in sent] == ["SEND_OK"] * len(bodies)
