"""Kick and ban by the command line, at two gateways of one cluster."""

import json
from collections.abc import Iterator

import pytest

from protocols.mqtt.packets import V5, Connect, Disconnect, Reason
from tests.support.commands import output_of
from tests.support.mqtt_client import MqttClient
from tests.support.processes import Daemon, Daemons

pytestmark = pytest.mark.client

USER = "root:right"


@pytest.fixture(scope="module")
def gateways() -> Iterator[tuple[Daemon, Daemon]]:
    with Daemons() as daemons:
        namesrv = daemons.namesrv()
        daemons.store(namesrv)
        path = daemons.folder / "gateway.yaml"
        path.write_text(
            f"""
clusters: {{ default: {{ namesrv: "{namesrv.addresses["namesrv"]}" }} }}
users: [{{ name: root, password_hash: "{argon2("right")}" }}]
limits: {{ flapping: {{ connects: 5, window: 10s, ban: 1h }} }}
"""
        )
        arguments = ("-c", str(path))
        yield (
            daemons.gateway("", name="gw-1", arguments=arguments),
            daemons.gateway("", name="gw-2", arguments=arguments),
        )


def argon2(password: str) -> str:
    from gateway.identity import hash_password

    return hash_password(password)


def tidegate(gateway: Daemon, *words: str, code: int = 0) -> str:
    url = f"http://{gateway.addresses['admin']}"
    return output_of(*words, "--url", url, "--user", USER, code=code)


def login(client_id: str) -> Connect:
    return Connect(V5, client_id, user="root", password=b"right")


async def test_kick_and_ban_hold_everywhere(gateways: tuple[Daemon, Daemon]) -> None:
    """Told at one gateway, obeyed at the other; the list is the same at both."""
    here, there = gateways
    async with MqttClient(there.address("mqtt"), login("dev-1")) as client:
        listed = json.loads(tidegate(there, "client", "list", "--json"))
        assert [item["client_id"] for item in listed["clients"]] == ["dev-1"]
        tidegate(here, "client", "kick", "dev-1")
        assert await client.receive() == Disconnect(Reason.ADMINISTRATIVE_ACTION)
    async with MqttClient(there.address("mqtt"), login("dev-1")) as client:
        assert client.connack.reason == 0
        tidegate(here, "ban", "add", "client", "dev-1", "--for", "10m", "--reason", "stolen")
        assert await client.receive() == Disconnect(Reason.ADMINISTRATIVE_ACTION)
    assert "stolen" in tidegate(there, "ban", "list")
    for gateway in gateways:
        async with MqttClient(gateway.address("mqtt"), login("dev-1")) as client:
            assert client.connack.reason == Reason.BANNED
    tidegate(there, "ban", "remove", "client", "dev-1")
    tidegate(there, "ban", "remove", "client", "dev-1", code=1)
    async with MqttClient(there.address("mqtt"), login("dev-1")) as client:
        assert client.connack.reason == 0


async def test_who_flaps_is_banned_everywhere(gateways: tuple[Daemon, Daemon]) -> None:
    """Counted at one gateway, kept out at both."""
    here, there = gateways
    for _ in range(5):
        async with MqttClient(here.address("mqtt"), login("flappy")) as client:
            assert client.connack.reason == 0
    async with MqttClient(here.address("mqtt"), login("flappy")) as client:
        assert client.connack.reason == Reason.BANNED
    while "flapping" not in tidegate(there, "ban", "list"):
        pass
    async with MqttClient(there.address("mqtt"), login("flappy")) as client:
        assert client.connack.reason == Reason.BANNED


async def test_a_trace_by_the_command_line(gateways: tuple[Daemon, Daemon]) -> None:
    """The file says what the client did; the slow list answers."""
    here = gateways[0]
    path = tidegate(here, "client", "trace", "client", "traced", "--for", "1m").strip()
    async with MqttClient(here.address("mqtt"), login("traced")) as client:
        await client.publish("t/x", b"secret", 1)
    folder = here.log_path.parent
    text = ""
    while "offline" not in text:
        text = (folder / path).read_text()
    assert '"publish"' in text
    assert "secret" not in text
    assert tidegate(here, "client", "slow") == ""
