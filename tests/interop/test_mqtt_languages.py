"""MQTT.js, Go paho, HiveMQ's Java client and gmqtt over TCP and WebSocket, 3.1.1 and 5."""

from collections.abc import Iterator

import pytest

from tests.support.mqtt_clients import CLIENTS, run
from tests.support.processes import Daemon, Daemons

pytestmark = [pytest.mark.client, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def gateway() -> Iterator[Daemon]:
    with Daemons() as daemons:
        yield daemons.up()


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
