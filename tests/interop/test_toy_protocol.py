"""A protocol plug-in comes in by its entry point, without a change in the gateway."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_S
from tests.support.processes import Daemons, any_ports

pytestmark = pytest.mark.client

PLUGIN = Path(__file__).parent.parent / "support" / "toy_protocol"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plug-in, installed by pip into a folder of its own."""
    folder = tmp_path_factory.mktemp("site")
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "toy_protocol.py"):
        (source / name).write_text((PLUGIN / name).read_text())
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(folder), str(source)], check=True, timeout=2 * PATIENCE_S)
    return folder


def ask(stream: socket.SocketIO, line: str) -> str:
    stream.write(line.encode() + b"\n")
    return stream.readline().decode().strip()


def test_the_toy_protocol_sends_and_pops(installed: Path, tmp_path: Path) -> None:
    """What the plug-in publishes it pops again, once; nonsense gets an answer."""
    path = os.pathsep.join((str(installed), os.environ.get("PYTHONPATH", "")))
    with Daemons(tmp_path) as daemons:
        gateway = daemons.start(
            "up",
            *("--data", str(tmp_path / "data")),
            *("--set", "namesrv.bind=127.0.0.1:0", "--set", "store.bind=127.0.0.1:0"),
            *(f"--set={setting}" for setting in any_ports()),
            *("--set", "listeners.toy={protocol: toy, bind: 127.0.0.1:0}"),
            env={"PYTHONPATH": path},
        )
        with socket.create_connection(gateway.address("toy"), PATIENCE_S) as connection:
            stream = connection.makefile("rwb", buffering=0)
            assert ask(stream, "PUB toys hello there").startswith("OK ")
            assert ask(stream, "POP toys players") == "MSG hello there"
            assert ask(stream, "POP toys players") == "NONE"
            assert ask(stream, "SING").startswith("NO BAD_REQUEST")
