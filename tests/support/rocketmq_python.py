"""
The official RocketMQ 5 client for Python (gRPC), in its own environment and process.

It registers the same protobuf names as the gateway, so the two cannot share a process.
"""

import json
import os
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.building import CACHE, filled

REQUIREMENT = "rocketmq-python-client==5.1.2"
FOLDER = CACHE / REQUIREMENT
INSTALL_S_MAX = 240
RUN_S_MAX = 240

_NOTHING: Mapping[str, str] = {}


def client_python() -> Path:
    """
    The interpreter of the client's environment, made on first use.

    Skips the test when it cannot be made (no registry), and fails it where CI is set.
    """
    return filled(FOLDER, _install) / "bin" / "python"


def _install() -> None:
    python = FOLDER / "bin" / "python"
    try:
        venv.create(FOLDER, with_pip=True, clear=True)
        install = [str(python), "-m", "pip", "install", "-q", REQUIREMENT]
        subprocess.run(install, check=True, timeout=INSTALL_S_MAX, capture_output=True, text=True)
    except (OSError, subprocess.SubprocessError) as error:
        reason = f"{REQUIREMENT} cannot be installed: {getattr(error, 'stderr', error)}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


def run_case(
    case: str,
    port: int,
    *,
    topic: str,
    group: str = "",
    credentials: Sequence[str] = (),
    **more: Any,
) -> Any:
    """Run one case of the program; raises AssertionError with its output if it fails."""
    request = {
        "endpoints": f"127.0.0.1:{port}",
        "case": case,
        "topic": topic,
        "group": group,
        "credentials": list(credentials),
        **more,
    }
    program = Path(__file__).with_name("rocketmq_python_program.py")
    try:
        ended = subprocess.run(
            [str(client_python()), str(program)],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=RUN_S_MAX,
            env={"HOME": os.environ.get("HOME", "/tmp"), "PATH": os.environ.get("PATH", "")},
        )
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"{case} took over {RUN_S_MAX} s: {error.stdout}") from error
    assert ended.returncode == 0, f"{case} failed:\n{ended.stdout}\n{ended.stderr}"
    return json.loads(ended.stdout.splitlines()[-1])


def run_grpc_client(
    action: str,
    port: int,
    *,
    topic: str,
    group: str = "",
    count: int = 1,
    bodies: Sequence[str] = (),
    properties: Mapping[str, str] = _NOTHING,
) -> list[str]:
    """``send``: the message ids; ``receive``, ``push``: the bodies, acknowledged."""
    if action == "send":
        more = {"bodies": list(bodies), "properties": dict(properties)}
        sent: list[str] = run_case("send", port, topic=topic, group=group, **more)
        return sent
    case = {"receive": "receive", "push": "collect"}[action]
    return [one["body"] for one in run_case(case, port, topic=topic, group=group, count=count)]


if __name__ == "__main__":
    print(client_python(), file=sys.stdout)
