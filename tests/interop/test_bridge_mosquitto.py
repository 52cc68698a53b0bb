"""A bridge to Debian's Mosquitto, which is killed and started again, and so is a gateway."""

import asyncio
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocols.mqtt.packets import V5, V311, Connect, Publish, SubscribeItem
from tests.support.mqtt_client import MqttClient
from tests.support.patience import PATIENCE_S
from tests.support.processes import HURRIED, Daemon, Daemons, wait_until

MOSQUITTO = shutil.which("mosquitto") or "/usr/sbin/mosquitto"

pytestmark = [
    pytest.mark.client,
    pytest.mark.skipif(not Path(MOSQUITTO).exists(), reason="needs mosquitto"),
]


class Mosquitto:
    """A broker in memory on one port; *more*: lines of its configuration."""

    def __init__(self, folder: Path, more: str = "") -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address: tuple[str, int] = probe.getsockname()
        self._path = folder / f"mosquitto-{self.address[1]}.conf"
        listener = f"listener {self.address[1]} 127.0.0.1\nallow_anonymous true\n"
        self._path.write_text(listener + more)
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            [MOSQUITTO, "-c", str(self._path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                socket.create_connection(self.address, 1).close()
                return process
            except OSError:
                assert time.monotonic() < end
                time.sleep(0.02)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def start_again(self) -> None:
        self.process = self._start()


class Site:
    def __init__(self, daemons: Daemons) -> None:
        self.upstream = Mosquitto(daemons.folder)
        namesrv = daemons.namesrv()
        daemons.store(namesrv, *HURRIED)
        path = daemons.folder / "gateway.yaml"
        path.write_text(
            f"""
clusters:
  default: {{ namesrv: "{namesrv.addresses["namesrv"]}" }}
  plant:
    type: mqtt
    url: "mqtt://127.0.0.1:{self.upstream.address[1]}"
    bridge:
      receive: [{{ topic: "cmd/#", local_prefix: "plant/" }}, {{ topic: "both/#" }}]
routes:
  - {{ name: up, when: {{ topic: "up/#" }}, to: [{{ cluster: plant }}] }}
  - {{ name: both, when: {{ topic: "both/#" }}, to: [{{ cluster: default }}],
       mirror: [{{ cluster: plant }}] }}
  - {{ name: default, to: [{{ cluster: default }}] }}
"""
        )
        arguments = ("-c", str(path))
        self.gateways: list[Daemon] = [
            daemons.gateway("", name=name, arguments=arguments) for name in ("gw-1", "gw-2")
        ]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Daemons() as daemons:
        made = Site(daemons)
        yield made
        made.upstream.kill()


def here(site: Site, name: str, gateway: int = 0) -> MqttClient:
    return MqttClient(site.gateways[gateway].address("mqtt"), Connect(V5, name))


def there(site: Site, name: str) -> MqttClient:
    return MqttClient(site.upstream.address, Connect(V311, name))


def texts(packets: list[Publish]) -> list[tuple[str, bytes]]:
    return [(packet.topic, packet.payload) for packet in packets]


async def test_both_ways_without_circles(site: Site) -> None:
    """What is routed there arrives there, what comes from there arrives here: each once."""
    async with here(site, "a") as local, there(site, "b") as remote:
        filters = ("up/flow/+", "cmd/go", "both/#")
        await remote.subscribe(*(SubscribeItem(name, 1) for name in filters))
        await local.subscribe(SubscribeItem("plant/cmd/go", 1), SubscribeItem("both/#", 1))
        for number in range(5):
            local.send(Publish(f"up/flow/{number}", b"up", 1, packet_id=100 + number))
        assert sorted(texts(await remote.publishes(5))) == [
            (f"up/flow/{n}", b"up") for n in range(5)
        ]
        async with there(site, "c") as other:
            await other.publish("cmd/go", b"down", 1)
            await other.publish("both/x", b"from there", 1)
        assert sorted(texts(await remote.publishes(2))) == [
            ("both/x", b"from there"),
            ("cmd/go", b"down"),
        ]
        async with here(site, "d", 1) as other:
            await other.publish("both/y", b"from here", 1)
        assert texts(await remote.publishes(1)) == [("both/y", b"from here")]
        found: list[Publish] = []
        while len(found) < 3:
            packet = await local.receive()
            if isinstance(packet, Publish):  # between the answers to what it published
                found.append(packet)
        assert sorted(texts(found)) == [
            ("both/x", b"from there"),
            ("both/y", b"from here"),
            ("plant/cmd/go", b"down"),
        ]
        assert await remote.is_silent()


async def test_a_mosquitto_that_bridges_to_us(site: Site, tmp_path: Path) -> None:
    """As to its own kind: nothing comes back to it, and what is live keeps its retain flag."""
    host, port = site.gateways[0].address("mqtt")
    edge = Mosquitto(
        tmp_path,
        f"connection up\naddress {host}:{port}\ntopic edge/# both 1\nrestart_timeout 1\n"
        "notifications false\ncleansession true\n",
    )
    try:
        async with MqttClient(edge.address, Connect(V311, "e")) as there, here(site, "h") as local:
            await there.subscribe(SubscribeItem("edge/#", 1))
            await local.subscribe(SubscribeItem("edge/#", 1))
            for number in range(100_000):  # until the bridge stands
                await local.publish("edge/hello", b"%d" % number, 0)
                if not await there.is_silent():
                    while isinstance(await there.receive(), Publish):
                        pass  # up to the answer to the ping
                    break
                await asyncio.sleep(0.1)
            async with MqttClient(edge.address, Connect(V311, "e2")) as device:
                await device.publish("edge/up", b"once", 1)
            async with here(site, "h2") as other:
                await other.publish("edge/down", b"kept", 1, retain=True)
            found = [("", b"")]
            while found[-1] != ("edge/down", b"kept"):
                found += texts(await there.publishes(1))
            assert found.count(("edge/up", b"once")) == 1
            async with MqttClient(edge.address, Connect(V311, "e3")) as late:
                await late.subscribe(SubscribeItem("edge/down", 1))
                assert texts(await late.publishes(1)) == [("edge/down", b"kept")]
    finally:
        edge.kill()


async def test_what_is_sent_while_the_other_side_is_down_is_kept(site: Site) -> None:
    """Acknowledged here at once, carried over when it is back; retained there to be counted."""
    site.upstream.kill()
    async with here(site, "a") as local:
        for number in range(50):
            await local.publish(f"up/kept/{number}", b"x", 1, retain=True)
    site.upstream.start_again()
    async with there(site, "b") as remote:
        await remote.subscribe(SubscribeItem("up/kept/#", 1))
        found: set[str] = set()
        while len(found) < 50:
            found.update(packet.topic for packet in await remote.publishes(1))
    assert found == {f"up/kept/{number}" for number in range(50)}


async def test_another_gateway_carries_on(site: Site) -> None:
    """The one that holds the link is killed."""
    holder = wait_until(lambda: holders(site), "a gateway that holds the link")[0]
    other = 1 - holder
    site.gateways[holder].kill()
    async with there(site, "b") as remote, here(site, "a", other) as local:
        await remote.subscribe(SubscribeItem("up/#", 1))
        await local.publish("up/after", b"x", 1)
        while ("up/after", b"x") not in texts(await remote.publishes(1)):
            pass  # what the other one had not been told of may come again
        await local.subscribe(SubscribeItem("plant/cmd/after", 1))
        async with there(site, "c") as third:
            await third.publish("cmd/after", b"y", 1)
        assert texts(await local.publishes(1)) == [("plant/cmd/after", b"y")]
    site.gateways[holder].restart()


def holders(site: Site) -> list[int]:
    """Which gateways have a link to the other broker."""
    name = 'tidegate_bridge_up{bridge="plant"}'
    return [index for index, gateway in enumerate(site.gateways) if _metric(gateway, name) == 1]


def _metric(gateway: Daemon, name: str) -> float:
    url = f"http://{gateway.addresses['admin']}/metrics"
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(name + " "):
                return float(line.split()[1])
    return -1.0
