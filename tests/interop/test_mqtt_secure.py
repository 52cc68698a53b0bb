"""Real MQTT clients over TLS and secure WebSocket; aiomqtt and amqtt over WebSocket too."""

import asyncio
import json
import queue
import shutil
import ssl
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import aiomqtt
import paho.mqtt.client as paho
import pytest

from tests.support.certificates import Authority
from tests.support.mqtt_clients import CLIENTS, run
from tests.support.patience import PATIENCE_S
from tests.support.processes import Daemon, Daemons

pytestmark = [pytest.mark.client, pytest.mark.timeout(400)]


class Gateway(NamedTuple):
    daemon: Daemon
    authority: str
    """File that clients trust."""

    def port(self, listener: str) -> int:
        return self.daemon.port(listener)

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.authority)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Listeners ``mqtts`` and ``mqtt-wss`` besides the default ones."""
    folder: Path = tmp_path_factory.mktemp("tls")
    authority = Authority(folder)
    pair = authority.issue("server", ("CN", "localhost"))
    common = {
        "protocol": "mqtt",
        "bind": "127.0.0.1:0",
        "tls": {"cert": pair.cert, "key": pair.key},
    }
    listeners = {"mqtts": common, "mqtt-wss": {**common, "websocket": True}}
    config = folder / "gateway.yaml"
    config.write_text(json.dumps({"version": 1, "listeners": listeners}))  # JSON is YAML
    with Daemons() as daemons:
        yield Gateway(daemons.up(arguments=("-c", str(config))), authority.path)


LANGUAGES = [
    ("mqttjs", "mqtts", 5),
    ("mqttjs", "wss", 4),
    ("go-paho", "tls", 5),
    ("go-paho", "wss", 4),
    ("hivemq", "tls", 5),
    ("hivemq", "wss", 4),
    ("gmqtt", "tls", 5),
]


@pytest.mark.parametrize(("name", "scheme", "version"), LANGUAGES)
def test_other_languages(gateway: Gateway, name: str, scheme: str, version: int) -> None:
    """Every QoS comes back."""
    command = CLIENTS[name]()
    port = gateway.port("mqtt-wss" if scheme == "wss" else "mqtts")
    url = f"{scheme}://localhost:{port}" + ("/mqtt" if scheme == "wss" else "")
    topic = f"{name}/{scheme}/{version}"
    user = " v" if version == 5 else ""
    found = run(command, url, version, topic, authority=gateway.authority)
    assert found == [f"{topic}/{qos} hello {qos}{user}" for qos in range(3)]


@pytest.mark.parametrize("version", [paho.MQTTv311, paho.MQTTv5])
@pytest.mark.parametrize("transport", ["tcp", "websockets"])
def test_paho(gateway: Gateway, version: int, transport: str) -> None:
    """Publishes to itself at every QoS."""
    topic = f"paho-tls/{version}/{transport}"
    client = paho.Client(
        paho.CallbackAPIVersion.VERSION2,
        client_id=topic,
        protocol=version,  # type: ignore[arg-type] # an enum of integers
        transport=transport,  # type: ignore[arg-type] # "tcp" or "websockets"
    )
    client.tls_set_context(gateway.context())
    got: queue.Queue[str] = queue.Queue()
    client.on_message = lambda _client, _data, message: got.put(message.topic)
    client.on_subscribe = lambda *_: got.put("subscribed")
    client.on_connect = lambda *_: got.put("connected")
    client.connect("localhost", gateway.port("mqtts" if transport == "tcp" else "mqtt-wss"))
    client.loop_start()
    assert got.get(timeout=PATIENCE_S) == "connected"
    client.subscribe(f"{topic}/#", 2)
    assert got.get(timeout=PATIENCE_S) == "subscribed"
    for qos in (0, 1, 2):
        client.publish(f"{topic}/{qos}", f"qos {qos}", qos)
    found = {got.get(timeout=PATIENCE_S) for _ in range(3)}
    assert found == {f"{topic}/{qos}" for qos in (0, 1, 2)}
    client.disconnect()
    client.loop_stop()
    client.on_message = client.on_subscribe = client.on_connect = None


@pytest.mark.parametrize("listener", ["mqtts", "mqtt-ws", "mqtt-wss"])
async def test_aiomqtt(gateway: Gateway, listener: str) -> None:
    is_websocket, topic = listener != "mqtts", f"aio-{listener}"
    async with aiomqtt.Client(
        "127.0.0.1" if listener == "mqtt-ws" else "localhost",
        gateway.port(listener),
        identifier=topic,
        transport="websockets" if is_websocket else "tcp",
        websocket_path="/mqtt" if is_websocket else None,
        tls_context=None if listener == "mqtt-ws" else gateway.context(),
    ) as client:
        await client.subscribe(f"{topic}/#", qos=1)
        await client.publish(f"{topic}/x", "hello", qos=1)
        async with asyncio.timeout(PATIENCE_S):
            async for message in client.messages:
                assert message.payload == b"hello"
                break


@pytest.mark.parametrize("scheme", ["mqtts", "ws", "wss"])
async def test_amqtt_client(gateway: Gateway, scheme: str) -> None:
    """3.1.1, to itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its dependencies warn when imported
        from amqtt.client import MQTTClient
    listener = {"mqtts": "mqtts", "ws": "mqtt-ws", "wss": "mqtt-wss"}[scheme]
    host = "127.0.0.1" if scheme == "ws" else "localhost"
    path = "/" if scheme == "mqtts" else "/mqtt"
    config = {"auto_reconnect": False, "check_hostname": True}
    client = MQTTClient(client_id=f"amqtt-{scheme}", config=config)
    cafile = None if scheme == "ws" else gateway.authority
    await client.connect(f"{scheme}://{host}:{gateway.port(listener)}{path}", cafile=cafile)
    await client.subscribe([(f"amqtt-{scheme}/+", 1)])
    await client.publish(f"amqtt-{scheme}/x", b"hello", qos=1)
    message = await client.deliver_message(timeout_duration=PATIENCE_S)
    assert message is not None
    assert (message.topic, bytes(message.data)) == (f"amqtt-{scheme}/x", b"hello")
    await client.disconnect()


@pytest.mark.skipif(not shutil.which("mosquitto_pub"), reason="mosquitto-clients not installed")
def test_mosquitto_clients(gateway: Gateway) -> None:
    """mosquitto_pub leaves a retained value, mosquitto_sub gets it."""
    common = ["-h", "localhost", "-p", str(gateway.port("mqtts")), "-V", "5", "-q", "1"]
    common += ["--cafile", gateway.authority, "-t", "mosquitto-tls/x"]
    subprocess.run(["mosquitto_pub", *common, "-m", "kept", "-r"], check=True, timeout=PATIENCE_S)
    found = subprocess.run(
        ["mosquitto_sub", *common, "-C", "1", "-W", "100"],
        check=True,
        timeout=PATIENCE_S,
        capture_output=True,
        text=True,
    )
    assert found.stdout == "kept\n"
