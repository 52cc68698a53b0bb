"""Real MQTT clients at two gateways over one store: paho, aiomqtt, Mosquitto's, amqtt's."""

import asyncio
import queue
import shutil
import subprocess
import warnings
from collections.abc import Iterator

import aiomqtt
import paho.mqtt.client as paho
import pytest
from paho.mqtt.properties import Properties

from tests.support.paho_publish import published
from tests.support.patience import PATIENCE_S
from tests.support.processes import Daemon, Daemons

pytestmark = pytest.mark.client


@pytest.fixture(scope="module")
def gateways() -> Iterator[tuple[Daemon, Daemon]]:
    """Two gateways, one store, one name server, each a process."""
    with Daemons() as daemons:
        namesrv = daemons.namesrv()
        daemons.store(namesrv)
        yield daemons.gateway(namesrv, name="gw-1"), daemons.gateway(namesrv, name="gw-2")


Gateways = tuple[Daemon, Daemon]


class Paho:
    """paho with its callbacks turned into queues."""

    def __init__(self, client_id: str, version: int, transport: str = "tcp") -> None:
        self.client = paho.Client(
            paho.CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=version,  # type: ignore[arg-type] # an enum of integers
            transport=transport,  # type: ignore[arg-type] # "tcp" or "websockets"
        )
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self.done: queue.Queue[str] = queue.Queue()
        self.client.on_connect = lambda *_: self.done.put("connected")
        self.client.on_subscribe = lambda *_: self.done.put("subscribed")
        self.client.on_message = lambda _client, _data, message: self.messages.put(message)

    def connect(self, address: tuple[str, int]) -> None:
        self.client.connect(*address)
        self.client.loop_start()
        assert self.done.get(timeout=PATIENCE_S) == "connected"

    def subscribe(self, topic_filter: str, qos: int) -> None:
        self.client.subscribe(topic_filter, qos)
        assert self.done.get(timeout=PATIENCE_S) == "subscribed"

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()
        # no cycle: the collector would find its sockets before paho's __del__ closes them
        self.client.on_connect = self.client.on_subscribe = self.client.on_message = None


@pytest.mark.parametrize("version", [paho.MQTTv31, paho.MQTTv311, paho.MQTTv5])
@pytest.mark.parametrize("transport", ["tcp", "websockets"])
def test_paho(gateways: Gateways, version: int, transport: str) -> None:
    """Every version and QoS, TCP and WebSocket, subscriber and publisher at different gateways."""
    listener = "mqtt" if transport == "tcp" else "mqtt-ws"
    name = f"paho-{version}-{transport}"
    sub, pub = Paho(f"{name}-sub", version, transport), Paho(f"{name}-pub", version, transport)
    sub.connect(gateways[0].address(listener))
    pub.connect(gateways[1].address(listener))
    sub.subscribe(f"{name}/#", 2)
    for qos in (0, 1, 2):
        published(pub.client, f"{name}/{qos}", f"qos {qos}", qos)
    found = {sub.messages.get(timeout=PATIENCE_S).topic for _ in range(3)}
    assert found == {f"{name}/{qos}" for qos in (0, 1, 2)}
    sub.close()
    pub.close()


def test_paho_properties(gateways: Gateways) -> None:
    """Request and response, user properties: as sent."""
    sub, pub = Paho("props-sub", paho.MQTTv5), Paho("props-pub", paho.MQTTv5)
    sub.connect(gateways[0].address("mqtt"))
    pub.connect(gateways[1].address("mqtt"))
    sub.subscribe("props/+", 1)
    properties = Properties(paho.PacketTypes.PUBLISH)
    properties.ResponseTopic = "props/answers"
    properties.CorrelationData = b"\x00\xfe"
    properties.ContentType = "text/plain"
    properties.UserProperty = [("k", "1"), ("k", "2")]
    published(pub.client, "props/ask", "?", properties=properties)
    got = sub.messages.get(timeout=PATIENCE_S).properties
    assert got is not None
    assert (got.ResponseTopic, got.CorrelationData, got.ContentType, got.UserProperty) == (
        "props/answers",
        b"\x00\xfe",
        "text/plain",
        [("k", "1"), ("k", "2")],
    )
    sub.close()
    pub.close()


async def test_aiomqtt(gateways: Gateways) -> None:
    """Subscriber at one gateway, publisher at the other, retained included."""
    (host, port), (other, other_port) = (one.address("mqtt") for one in gateways)
    async with (
        aiomqtt.Client(host, port, identifier="aio-sub") as sub,
        aiomqtt.Client(other, other_port, identifier="aio-pub") as pub,
    ):
        await pub.publish("aio/kept", "r", qos=1, retain=True)
        await sub.subscribe("aio/#", qos=1)
        await pub.publish("aio/live", "l", qos=1)
        async with asyncio.timeout(PATIENCE_S):
            found = [(str(m.topic), m.payload, m.retain) async for m in take(sub, 2)]
    assert found == [("aio/kept", b"r", True), ("aio/live", b"l", False)]


async def take(client: aiomqtt.Client, count: int):  # type: ignore[no-untyped-def] # generator
    """The next *count* messages."""
    async for message in client.messages:
        yield message
        count -= 1
        if not count:
            return


@pytest.mark.skipif(not shutil.which("mosquitto_sub"), reason="mosquitto-clients not installed")
@pytest.mark.parametrize("version", ["31", "311", "5"])
def test_mosquitto_clients(gateways: Gateways, version: str) -> None:
    """mosquitto_sub at one gateway, mosquitto_pub at the other."""
    (host, port), (other, other_port) = (one.address("mqtt") for one in gateways)
    topic = f"mosquitto/{version}"
    common = ["-V", f"mqttv{version}", "-q", "2"]
    subscribing = subprocess.Popen(
        ["stdbuf", "-oL", "mosquitto_sub", "-h", host, "-p", str(port), "-t", f"{topic}/#",
         "-C", "2", "-W", "100", "-v", "-d", *common],
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert subscribing.stdout is not None
    while "SUBACK" not in subscribing.stdout.readline():
        pass
    for body in ("one", "two"):
        subprocess.run(
            ["mosquitto_pub", "-h", other, "-p", str(other_port), "-t", f"{topic}/x", "-m", body,
             *common],
            check=True,
            timeout=PATIENCE_S,
        )  # fmt: skip
    output, _ = subscribing.communicate(timeout=PATIENCE_S)
    lines = [line for line in output.splitlines() if line.startswith(topic)]
    assert lines == [f"{topic}/x one", f"{topic}/x two"]


async def test_amqtt_client(gateways: Gateways) -> None:
    """amqtt's client, 3.1.1, both ways."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its dependencies warn when imported
        from amqtt.client import MQTTClient
    (host, port), (other, other_port) = (one.address("mqtt") for one in gateways)
    sub = MQTTClient(client_id="amqtt-sub", config={"auto_reconnect": False})
    pub = MQTTClient(client_id="amqtt-pub", config={"auto_reconnect": False})
    await sub.connect(f"mqtt://{host}:{port}/")
    await pub.connect(f"mqtt://{other}:{other_port}/")
    await sub.subscribe([("amqtt/+", 1)])
    await pub.publish("amqtt/x", b"hello", qos=1)
    message = await sub.deliver_message(timeout_duration=10)
    assert message is not None
    assert (message.topic, bytes(message.data)) == ("amqtt/x", b"hello")
    await sub.disconnect()
    await pub.disconnect()
