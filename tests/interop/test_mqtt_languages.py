"""
MQTT.js, Go paho, HiveMQ's Java client and gmqtt over TCP and WebSocket, 3.1.1 and 5.

The first three also prove by SCRAM who they are; Go paho and HiveMQ once more while connected.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.authenticators.verifiers import DIGESTS, Verifier
from tests.support.mqtt_clients import CLIENTS, run
from tests.support.processes import Daemon, Daemons

pytestmark = [pytest.mark.client, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """There is one user, who has no password; everybody else is nameless."""
    kept = [str(Verifier.make(method, "pencil", b"salt" * 4, 4096)) for method in DIGESTS]
    config = {
        "version": 1,
        "users": [{"name": "ann", "scram": kept}],
        "acl": [{"allow": ["all"]}],
        "mqtt": {"anonymous": True},
    }
    path: Path = tmp_path_factory.mktemp("scram") / "gateway.yaml"
    path.write_text(json.dumps(config))  # JSON is YAML
    with Daemons() as daemons:
        yield daemons.up(arguments=("-c", str(path)))


def url_of(gateway: Daemon, transport: str) -> str:
    if transport == "ws":
        return f"ws://{gateway.addresses['mqtt-ws']}/mqtt"
    return f"tcp://{gateway.addresses['mqtt']}"


WITHOUT_WEBSOCKET = (("gmqtt", 4), ("gmqtt", 5), ("go-paho", 5))
"""These clients take a TCP address and nothing else."""

CASES = [
    (name, transport, version)
    for name in CLIENTS
    for transport in ("tcp", "ws")
    for version in (4, 5)
    if transport == "tcp" or (name, version) not in WITHOUT_WEBSOCKET
]


@pytest.mark.parametrize(("name", "transport", "version"), CASES)
def test_every_qos_comes_back(gateway: Daemon, name: str, transport: str, version: int) -> None:
    """Subscribe, publish QoS 0, 1, 2, receive; with 5.0 a user property comes along."""
    command = CLIENTS[name]()
    topic = f"{name}/{transport}/{version}"
    user = " v" if version == 5 else ""
    found = run(command, url_of(gateway, transport), version, topic)
    assert found == [f"{topic}/{qos} hello {qos}{user}" for qos in range(3)]


@pytest.mark.parametrize("name", ["mqttjs", "go-paho", "hivemq"])
def test_a_password_that_is_never_sent(gateway: Daemon, name: str) -> None:
    """The client checks the server's proof, too; a wrong password does not get in."""
    command, url = CLIENTS[name](), url_of(gateway, "tcp")
    found = run(command, url, 5, f"{name}/scram", scram="ann pencil")
    assert found == [f"{name}/scram/{qos} hello {qos} v" for qos in range(3)]
    with pytest.raises(AssertionError, match=r"(?i)not.?authorized|failed to connect"):
        run(command, url, 5, f"{name}/scram", scram="ann pen")
