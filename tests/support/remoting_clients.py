"""Go's client for RocketMQ's remoting, built once into a cache folder."""

import subprocess
from pathlib import Path

from tests.support.java_clients import need
from tests.support.mqtt_clients import built

SOURCES = Path(__file__).resolve().parent.parent / "interop" / "remoting_clients"
RUN_S_MAX = 200


def go(namesrv: str, *, tools: str, broker: str) -> list[str]:
    """
    A line per case. AssertionError if the program fails.

    Args:
        tools: a name server for its topics, which *broker* makes.
    """
    need("go")
    files = [SOURCES / name for name in ("client.go", "go.mod", "go.sum")]
    folder = built("remoting-go", files, lambda folder: [["go", "build", "-o", "client", "."]])
    words = [str(folder / "client"), namesrv, tools, broker]
    done = subprocess.run(words, capture_output=True, text=True, timeout=RUN_S_MAX)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}"
    return done.stdout.splitlines()
