"""The whole path by Mosquitto's clients: ``tidegate up``, and three daemons apart."""

import json
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_S
from tests.support.processes import Daemon, Daemons, wait_until

pytestmark = [
    pytest.mark.client,
    pytest.mark.skipif(shutil.which("mosquitto_pub") is None, reason="needs mosquitto-clients"),
]


def subscribe(daemon: Daemon, topic: str, count: int) -> "subprocess.Popen[str]":
    """A subscriber that has its SUBACK when this returns and ends after *count* messages."""
    command = ["mosquitto_sub", "-h", "127.0.0.1", "-p", str(daemon.port("mqtt")), "-q", "1"]
    process = subprocess.Popen(
        ["stdbuf", "-oL", *command, "-t", topic, "-C", str(count), "-W", "100", "-F", "%p", "-d"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("Subscribed"):
            break
    return process


def publish(daemon: Daemon, topic: str, body: str, version: str = "311") -> None:
    command = ["mosquitto_pub", "-h", "127.0.0.1", "-p", str(daemon.port("mqtt")), "-q", "1"]
    subprocess.run(
        [*command, "-t", topic, "-m", body, "-V", version], check=True, timeout=PATIENCE_S
    )


def received(process: "subprocess.Popen[str]") -> list[str]:
    output, _ = process.communicate(timeout=PATIENCE_S)
    return [line for line in output.splitlines() if not line.startswith(("Client", "Subscribed"))]


@pytest.mark.parametrize("version", ["311", "5"])
def test_up_passes_a_publish_to_a_subscriber(version: str) -> None:
    """One process: QoS 1 in, stored, QoS 1 out; the admin listener knows and counts."""
    with Daemons() as daemons:
        up = daemons.up()
        subscriber = subscribe(up, "plants/#", 1)
        publish(up, "plants/7/temp", "21.5", version)
        assert received(subscriber) == ["21.5"]
        ready = json.load(get(up, "/readyz"))
        assert ready == {"status": "ready", "reasons": []}
        assert b"tidegate_" in get(up, "/metrics").read()
        assert up.stop() == 0


def test_two_gateways_share_a_store() -> None:
    """Separate daemons: published at one gateway, received at the other."""
    with Daemons() as daemons:
        namesrv = daemons.namesrv()
        daemons.store(namesrv)
        one = daemons.gateway(namesrv, name="gw-1")
        two = daemons.gateway(namesrv, name="gw-2")
        subscriber = subscribe(two, "plants/+/temp", 2)
        publish(one, "plants/1/temp", "a")
        publish(one, "plants/2/temp", "b", "5")
        assert sorted(received(subscriber)) == ["a", "b"]
        assert [daemon.stop() for daemon in (two, one)] == [0, 0]


def test_two_local_nodes_share_a_name_server() -> None:
    """Each with a store of its own in process: the peer's store is reached over TCP."""
    with Daemons() as daemons:
        namesrv = daemons.namesrv()
        nodes = [
            daemons.gateway(
                namesrv,
                "store.bind=127.0.0.1:0",
                f"store.name=broker-{name}",
                f"store.directory={str(name == 'a').lower()}",
                name=f"gw-{name}",
                arguments=("--proxyMode", "LOCAL", "--data", str(Path(daemons.folder) / name)),
            )
            for name in ("a", "b")
        ]
        subscriber = subscribe(nodes[1], "plants/#", 8)
        for number in range(4):
            publish(nodes[0], f"plants/{number}", f"a{number}")
            publish(nodes[1], f"plants/{number}", f"b{number}")
        assert sorted(received(subscriber)) == [f"{x}{n}" for x in "ab" for n in range(4)]


def test_clients_are_listed_and_kicked() -> None:
    """One table over all protocols; a kick ends the connection."""
    with Daemons() as daemons:
        up = daemons.up()
        subscriber = subscribe(up, "plants/#", 1)
        (client,) = json.load(get(up, "/api/clients?protocol=mqtt"))["clients"]
        assert (client["listener"], client["identity"]) == ("mqtt", "anonymous")
        token = up.log().partition("?token=")[2].split()[0]
        request = urllib.request.Request(
            f"http://{up.addresses['admin']}/api/clients/{client['client_id']}",
            method="DELETE",
            headers={"Authorization": f"Bearer {token}"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            assert json.load(response) == {"kicked": 1}
        wait_until(
            lambda: (
                client["number"]
                not in [item["number"] for item in json.load(get(up, "/api/clients"))["clients"]]
            ),
            "the end of the connection",
        )
        subscriber.terminate()
        subscriber.communicate()


def get(daemon: Daemon, path: str):  # type: ignore[no-untyped-def]
    return urllib.request.urlopen(f"http://{daemon.addresses['admin']}{path}", timeout=PATIENCE_S)
