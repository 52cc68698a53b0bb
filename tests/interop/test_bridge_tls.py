"""Bridges to a Mosquitto over TLS, WebSocket and both, and to one that is not what it should be."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from protocols.mqtt.packets import V5, V311, Connect, Publish, SubscribeItem
from tests.interop.test_bridge_mosquitto import MOSQUITTO, Mosquitto
from tests.support.certificates import Authority
from tests.support.mqtt_client import MqttClient
from tests.support.processes import HURRIED, Daemon, Daemons, wait_until

pytestmark = [
    pytest.mark.client,
    pytest.mark.skipif(not Path(MOSQUITTO).exists(), reason="needs mosquitto"),
]

GOOD = ("mtls", "ws", "wss")
BAD = {
    "nobody": "certificate required",  # we show none where one is wanted
    "expired": "certificate has expired",
    "stranger": "self-signed certificate in certificate chain",  # of another authority
    "nofile": "No such file",
}


class Site(NamedTuple):
    upstream: Mosquitto
    gateway: Daemon


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("certificates")
    authority, other = Authority(folder), Authority(folder, "other")
    name = ("CN", "localhost")
    server, old = authority.issue("server", name), authority.issue("old", name, days=0)
    ours = authority.issue("ours", ("CN", "gateway"))
    ports = dict(zip(("mtls", "expired", "wss", "ws"), free_ports(4), strict=True))
    secure = f"cafile {authority.path}\ncertfile {server.cert}\nkeyfile {server.key}\n"
    more = {
        "mtls": secure + "require_certificate true\n",
        "expired": f"certfile {old.cert}\nkeyfile {old.key}\n",
        "wss": secure + "protocol websockets\n",
        "ws": "protocol websockets\n",
    }
    lines = "".join(f"listener {port} 127.0.0.1\n{more[kind]}" for kind, port in ports.items())
    # started by root it would become a user that may not read the keys
    upstream = Mosquitto(folder, lines + "user root\n")
    trusting = {"ca_file": authority.path}
    bridges = {
        "mtls": ("mtls", {**trusting, "cert_file": ours.cert, "key_file": ours.key}),
        "ws": ("ws", {}),
        "wss": ("wss", trusting),
        "nobody": ("mtls", trusting),
        "expired": ("expired", trusting),
        "stranger": ("wss", {"ca_file": other.path}),
        "nofile": ("mtls", {"ca_file": str(folder / "none.pem")}),
    }
    clusters: dict[str, object] = {}
    for bridge, (kind, settings) in bridges.items():
        url = f"{'mqtts' if kind in ('mtls', 'expired') else kind}://localhost:{ports[kind]}/mqtt"
        receive = {"receive": [{"topic": f"down/{bridge}"}]}
        clusters[bridge] = {"type": "mqtt", "url": url, "bridge": {**settings, **receive}}
    routes: list[object] = [
        {"name": bridge, "when": {"topic": f"up/{bridge}/#"}, "to": [{"cluster": bridge}]}
        for bridge in bridges
    ]
    with Daemons() as daemons:
        namesrv = daemons.namesrv()
        daemons.store(namesrv, *HURRIED)
        clusters["default"] = {"namesrv": namesrv.addresses["namesrv"]}
        routes.append({"name": "default", "to": [{"cluster": "default"}]})
        path = folder / "gateway.yaml"
        path.write_text(json.dumps({"clusters": clusters, "routes": routes}))  # JSON is YAML
        gateway = daemons.gateway("", name="gw-1", arguments=("-c", str(path)))
        yield Site(upstream, gateway)
        upstream.kill()


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def here(site: Site) -> MqttClient:
    return MqttClient(site.gateway.address("mqtt"), Connect(V5, "here"))


def there(site: Site) -> MqttClient:
    return MqttClient(site.upstream.address, Connect(V311, "there"))


def test_a_link_that_is_not_to_be_trusted_does_not_come_up(site: Site) -> None:
    """And the log says why."""

    def reasons() -> dict[str, str]:
        told = {}
        for line in site.gateway.log().splitlines():
            bridge, found, why = line.partition(": no connection: ")
            if found:
                told[bridge.rpartition(" ")[2]] = why.replace("_", " ").casefold()
        return told

    def are_told() -> bool:
        return all(why.casefold() in reasons().get(bridge, "") for bridge, why in BAD.items())

    wait_until(are_told, "a reason for each")
    assert not {*BAD} & up(site)


def up(site: Site) -> set[str]:
    """The bridges that ever had a link."""
    lines = site.gateway.log().split("bridge ")
    return {line.partition(" ")[0] for line in lines if line.partition(" ")[2][:5] == "is up"}


async def test_both_ways_before_and_after_the_link_was_cut(site: Site) -> None:
    """What is sent meanwhile waits at the store; QoS 0 to be told without answers of ours."""
    wait_until(lambda: up(site) >= {*GOOD}, "the good links")
    async with there(site) as remote, here(site) as local:
        await remote.subscribe(SubscribeItem("up/#", 0))
        await local.subscribe(SubscribeItem("down/#", 0))
        for bridge in GOOD:
            await local.publish(f"up/{bridge}/one", b"x", 1)
        assert {one.topic for one in await remote.publishes(3)} == {f"up/{b}/one" for b in GOOD}
        for bridge in GOOD:
            await remote.publish(f"down/{bridge}", b"x", 1)
        assert {one.topic for one in await local.publishes(3)} == {f"down/{b}" for b in GOOD}
    site.upstream.kill()
    wanted = {f"up/{bridge}/kept/{number}" for bridge in GOOD for number in range(20)}
    async with here(site) as local:
        for topic in sorted(wanted):
            await local.publish(topic, b"x", 1, retain=True)
    site.upstream.start_again()
    async with there(site) as remote:
        await remote.subscribe(SubscribeItem("up/+/kept/+", 0))
        found: set[str] = set()
        while found != wanted:
            packet = await remote.receive()
            assert isinstance(packet, Publish)
            found.add(packet.topic)
