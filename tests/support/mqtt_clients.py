"""
MQTT clients in their own environments, built once into a cache folder.

Each is a program ``URL VERSION TOPIC`` that subscribes to ``TOPIC/#``, publishes ``hello`` to
``TOPIC/0`` to ``TOPIC/2`` with that QoS, and prints what comes. Without its tool chain a test is
skipped, saying why, or fails where ``CI`` is set.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support.building import CACHE, digest_of, filled
from tests.support.java_clients import JAVA_OPTIONS, need

SOURCES = Path(__file__).resolve().parent.parent / "interop" / "mqtt_clients"
BUILD_S_MAX = 600
RUN_S_MAX = 180


def run(
    command: Sequence[str],
    url: str,
    version: int,
    topic: str,
    *,
    authority: str = "",
    scram: str = "",
) -> list[str]:
    """
    The lines that a client printed, sorted. AssertionError if it fails.

    Args:
        authority: file.
        scram: user and password of an enhanced authentication, for those that can.
    """
    env = {**os.environ}
    if authority:
        env["MQTT_CA"] = authority
    if scram:
        env["MQTT_SCRAM"] = scram
    done = subprocess.run(
        [*command, url, str(version), topic],
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        env=env,
    )
    assert done.returncode == 0, f"{command[0]}: {done.stdout}\n{done.stderr[-3000:]}"
    return sorted(done.stdout.splitlines())


def mqttjs() -> list[str]:
    """MQTT.js, from npm."""
    need("node")
    need("npm")
    files = [SOURCES / "mqttjs.js", SOURCES / "package.json"]
    install = ["npm", "install", "--no-audit", "--no-fund", "--silent"]
    folder = built("mqttjs", files, lambda folder: [install])
    return ["node", str(folder / "mqttjs.js")]


def go_paho() -> list[str]:
    """Eclipse's two Go clients: one for 3.1.1, one for 5."""
    need("go")
    files = [SOURCES / name for name in ("paho.go", "scram.go", "go.mod", "go.sum")]
    folder = built("go-paho", files, lambda folder: [["go", "build", "-o", "paho", "."]])
    return [str(folder / "paho")]


def hivemq() -> list[str]:
    """HiveMQ's Java client, from Maven."""
    need("java")
    need("mvn")
    files = [SOURCES / "hivemq" / name for name in ("HiveMq.java", "Scram.java", "pom.xml")]

    def commands(folder: Path) -> list[list[str]]:
        fetch = [
            *("mvn", "-q", "-B", "-f", "pom.xml", f"-DoutputDirectory={folder / 'lib'}"),
            *("-DincludeScope=runtime", "dependency:copy-dependencies"),
        ]
        return [fetch, ["javac", "-cp", f"{folder / 'lib'}/*", "HiveMq.java", "Scram.java"]]

    folder = built("hivemq", files, commands)
    path = os.pathsep.join((str(folder), f"{folder / 'lib'}/*"))
    return ["java", *JAVA_OPTIONS, "-cp", path, "HiveMq"]


def gmqtt() -> list[str]:
    """
    Python's gmqtt, in a folder of its own: it installs a package ``tests``, which would hide ours.
    """

    def commands(folder: Path) -> list[list[str]]:
        fetch = [sys.executable, "-m", "pip", "install", "-q", "--target", "lib", "gmqtt==0.7.0"]
        return [fetch]

    folder = built("gmqtt", [SOURCES / "gmqtt_client.py"], commands)
    start = f"import runpy, sys; sys.path.insert(0, {str(folder / 'lib')!r}); del sys.argv[0]; "
    program = str(folder / "gmqtt_client.py")
    start += f"sys.argv.insert(0, {program!r}); runpy.run_path({program!r}, run_name='__main__')"
    return [sys.executable, "-c", start]


CLIENTS: dict[str, Callable[[], list[str]]] = {
    "mqttjs": mqttjs,
    "go-paho": go_paho,
    "hivemq": hivemq,
    "gmqtt": gmqtt,
}


def built(
    name: str, files: Sequence[Path], commands: Callable[[Path], Sequence[Sequence[str]]]
) -> Path:
    """The folder where *files* were built by *commands*; the first call of a version builds."""
    folder = CACHE / f"mqtt-{name}-{digest_of(files)}"

    def build() -> None:
        for path in files:
            shutil.copy(path, folder / path.name)
        for command in commands(folder):
            built = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=BUILD_S_MAX
            )
            if built.returncode != 0:
                reason = f"{name} could not be built:\n{(built.stdout + built.stderr)[-3000:]}"
                if os.environ.get("CI"):
                    pytest.fail(reason)
                pytest.skip(reason)

    return filled(folder, build)
