"""docker-compose.yml without Docker: each service's command as a process, one message through."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.commands import output_of
from tests.support.patience import PATIENCE_S
from tests.support.processes import Daemon, Daemons

ROOT = Path(__file__).parents[2]
SERVICES = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]

pytestmark = [
    pytest.mark.client,
    pytest.mark.skipif(shutil.which("mosquitto_pub") is None, reason="needs mosquitto-clients"),
]


def command_of(service: str, folder: Path, namesrv: str = "") -> list[str]:
    """The service's command with this machine's folders, free ports and name server."""
    words: list[str] = []
    for word in map(str, SERVICES[service]["command"]):
        word = word.replace("/etc/tidegate", str(folder))
        word = re.sub(r"^/data", str(folder / service), word)
        word = re.sub(r"0\.0\.0\.0:\d+", "127.0.0.1:0", word)
        words.append(word.replace("namesrv:9876", namesrv) if namesrv else word)
    return words


def publish(daemon: Daemon, topic: str, body: str, *credentials: str) -> None:
    command = ["mosquitto_pub", "-h", "127.0.0.1", "-p", str(daemon.port("mqtt")), "-q", "1"]
    subprocess.run(
        [*command, "-t", topic, "-m", body, *credentials], check=True, timeout=PATIENCE_S
    )


def test_the_services_pass_a_message(tmp_path: Path) -> None:
    """Generated credentials; published at gateway 1, received at gateway 2."""
    made = output_of(*command_of("init", tmp_path), "--json")
    password = json.loads(made)["passwords"]["admin"]
    with Daemons(tmp_path) as daemons:
        namesrv = daemons.start(*command_of("namesrv", tmp_path), name="ns")
        address = namesrv.addresses["namesrv"]
        for service in ("store-a", "store-b"):
            daemons.start(*command_of(service, tmp_path, address), name=service)
        gateways = [
            daemons.start(*command_of(service, tmp_path, address), name=service)
            for service in ("gateway-1", "gateway-2")
        ]
        login = ("-u", "admin", "-P", password)
        arguments = ["-h", "127.0.0.1", "-p", str(gateways[1].port("mqtt")), "-q", "1", *login]
        subscriber = subprocess.Popen(
            [
                "stdbuf",
                "-oL",
                "mosquitto_sub",
                *arguments,
                *["-t", "plants/#", "-C", "1", "-W", "100", "-d"],
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert subscriber.stdout is not None
        assert any(line.startswith("Subscribed") for line in subscriber.stdout)
        publish(gateways[0], "plants/1/t", "composed", *login)
        output, _ = subscriber.communicate(timeout=PATIENCE_S)
        assert "composed" in output


def test_every_profile_names_what_it_adds() -> None:
    """Spark and Apache are profiles; the default set is the six services and init."""
    default = [name for name, item in SERVICES.items() if "profiles" not in item]
    assert default == ["init", "namesrv", "store-a", "store-b", "gateway-1", "gateway-2"]
    profiles = {item["profiles"][0] for item in SERVICES.values() if "profiles" in item}
    assert profiles == {"spark", "apache"}
