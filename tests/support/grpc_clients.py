"""
The official gRPC clients for Node.js and Go, built once into a cache folder.

Each is a program ``ENDPOINTS PREFIX`` that sends all types of messages, receives and is pushed to,
and prints what it got, the same for both.
"""

import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.support.java_clients import need
from tests.support.mqtt_clients import built

SOURCES = Path(__file__).resolve().parent.parent / "interop" / "grpc_clients"
RUN_S_MAX = 300


def node() -> list[str]:
    """From npm."""
    need("node")
    need("npm")
    files = [SOURCES / "client.js", SOURCES / "package.json"]
    install = ["npm", "install", "--no-audit", "--no-fund", "--silent"]
    return ["node", str(built("grpc-node", files, lambda folder: [install]) / "client.js")]


def go() -> list[str]:
    """From the module proxy."""
    need("go")
    files = [SOURCES / name for name in ("client.go", "go.mod", "go.sum")]
    folder = built("grpc-go", files, lambda folder: [["go", "build", "-o", "client", "."]])
    return [str(folder / "client")]


CLIENTS: dict[str, Callable[[], list[str]]] = {"node": node, "go": go}


def run(name: str, endpoints: str) -> list[str]:
    """The lines that a client printed. AssertionError if it fails."""
    done = subprocess.run(
        [*CLIENTS[name](), endpoints, name],
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
    )
    assert done.returncode == 0, f"{name}: {done.stdout}\n{done.stderr[-3000:]}"
    return done.stdout.splitlines()
