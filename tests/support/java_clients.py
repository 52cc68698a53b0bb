"""
Apache's Java client: programs built once by Maven into a cache folder, run in one JVM in turn.

Without Java or Maven the tests that need them are skipped, saying why; where ``CI`` is set they
fail instead, so that a green run there means that the real client passed.
"""

import atexit
import base64
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.building import CACHE, digest_of, filled
from tests.support.java_shell import RUN_S_MAX, Ended, JavaShell

PROJECT = Path(__file__).resolve().parent.parent / "interop" / "java"
BUILD_S_MAX = 600
JAVA_OPTIONS = ("-Xmx192m", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true")

SHELL = "tidegate.Shell"
PROGRAMS = {
    "send": "tidegate.Producer",
    "pull": "tidegate.PullConsumer",
    "push": "tidegate.PushConsumer",
}


class Received(NamedTuple):
    """One line of a consumer."""

    body: bytes
    message_id: str
    queue_id: int
    queue_offset: int
    reconsume_count: int
    properties: dict[str, str]


class Sent(NamedTuple):
    """One line of a producer."""

    message_id: str
    status: str
    broker: str
    queue_id: int
    queue_offset: int


def need(program: str) -> None:
    """Skip without *program*, or fail where CI promises it."""
    if shutil.which(program) is None:
        reason = f"{program} is not installed"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


def class_path(version: str = "") -> str:
    """
    The built programs and their jars; the first call of a version builds them.

    The client's *version* is by default ``TIDEGATE_JAVA_CLIENT`` or that of the pom.
    """
    need("java")
    version = version or os.environ.get("TIDEGATE_JAVA_CLIENT", "")
    sources = sorted([PROJECT / "pom.xml", *(PROJECT / "src").rglob("*.java")])
    folder = CACHE / f"java-clients-{digest_of(sources)}{version}"
    filled(folder, lambda: _build(folder, version))
    return os.pathsep.join((str(folder / "interop.jar"), str(folder / "lib" / "*")))


def _build(folder: Path, version: str) -> None:
    need("mvn")
    command = [
        "mvn",
        "-q",
        "-B",
        "-f",
        str(PROJECT / "pom.xml"),
        f"-DbuildDirectory={folder}",
        f"-DoutputDirectory={folder / 'lib'}",
        "-DincludeScope=runtime",
        *([f"-Drocketmq.version={version}"] if version else []),
        "package",
        "dependency:copy-dependencies",
    ]
    built = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S_MAX)
    if built.returncode != 0:
        reason = f"Maven could not build the Java clients:\n{built.stdout[-3000:]}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


def java_command(main: str, *arguments: str) -> list[str]:
    logs = CACHE / "java-logs"
    logs.mkdir(parents=True, exist_ok=True)
    return [
        "java",
        *JAVA_OPTIONS,
        f"-Drocketmq.client.logRoot={logs}",
        f"-Duser.home={logs}",
        "-cp",
        class_path(),
        main,
        *arguments,
    ]


class _Shells:
    """The JVM that runs all programs; another one where version or options differ."""

    def __init__(self) -> None:
        self._shell: JavaShell | None = None
        self._key: tuple[str, str] | None = None
        atexit.register(self.close)

    def close(self) -> None:
        if self._shell is not None:
            self._shell.close()
            self._shell = None

    def run(self, program: str, *arguments: str) -> Ended:
        key = (class_path(), os.environ.get("JAVA_TOOL_OPTIONS", ""))
        if key != self._key:
            self.close()
        if self._shell is None:
            self._shell, self._key = JavaShell(java_command(SHELL), str(CACHE)), key
        try:
            ended = self._shell.ask(program, *arguments)
        except AssertionError:
            self.close()
            raise
        if ended.code:
            self.close()  # its clients may still be there
        return ended


_shells = _Shells()


def run(main: str, *arguments: str) -> str:
    """Run a Java class to its end, in a JVM that others used before; its output.

    AssertionError if it fails.
    """
    ended = _shells.run(main, *arguments)
    assert ended.code == 0, f"{main} ended with {ended.code}:\n{ended.output[-8000:]}"
    return ended.output


def run_alone(main: str, *arguments: str) -> str:
    """In a JVM of its own."""
    done = subprocess.run(
        java_command(main, *arguments), capture_output=True, text=True, timeout=RUN_S_MAX
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def mqadmin(address: str, command: str, *arguments: str) -> str:
    """Apache's admin tool against the name server at *address*; what it prints."""
    return run("mqadmin", command, "-n", address, *arguments)


def options(
    address: str, *, topic: str, group: str, bodies: Sequence[str | bytes], count: int
) -> list[str]:
    arguments = ["--address", address, "--topic", topic, "--count", str(count)]
    if group:
        arguments += ["--group", group]
    for body in bodies:
        data = body.encode() if isinstance(body, str) else body
        arguments += ["--body", base64.b64encode(data).decode()]
    return arguments


def send(
    address: str, *, topic: str, bodies: Sequence[str | bytes], group: str = "", **more: str
) -> list[Sent]:
    """Send with ``DefaultMQProducer``; *more* are options such as ``tag``, ``batch``."""
    arguments = options(address, topic=topic, group=group, bodies=bodies, count=len(bodies))
    output = run(PROGRAMS["send"], *arguments, *_more(more))
    return [_sent(line) for line in output.splitlines() if line.startswith("sent\t")]


def receive(
    program: str, address: str, *, topic: str, count: int, group: str = "", **more: str
) -> list[Received]:
    """``pull`` or ``push`` until *count* messages came."""
    arguments = options(address, topic=topic, group=group, bodies=(), count=count)
    output = run(PROGRAMS[program], *arguments, *_more(more))
    return parse_received(output)


def parse_received(output: str) -> list[Received]:
    return [_received(line) for line in output.splitlines() if line.startswith("received\t")]


def _more(options: dict[str, str]) -> list[str]:
    return [
        word
        for name, value in options.items()
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]


def _sent(line: str) -> Sent:
    _, message_id, status, broker, queue_id, offset = line.split("\t")
    return Sent(message_id, status, broker, int(queue_id), int(offset))


def _received(line: str) -> Received:
    _, body, message_id, queue_id, offset, reconsumed, properties = line.split("\t")
    text = base64.b64decode(properties).decode()
    pairs = (item.partition("\x01") for item in text.split("\x02") if item)
    return Received(
        base64.b64decode(body),
        message_id,
        int(queue_id),
        int(offset),
        int(reconsumed),
        {name: value for name, _, value in pairs},
    )


def run_java(
    action: str,
    address: str,
    *,
    topic: str,
    group: str = "",
    count: int = 1,
    bodies: Sequence[str] = (),
) -> list[str]:
    """
    ``send``: message ids; ``pull`` and ``push``: bodies.

    *address* is a name server's, or a gateway's remoting listener, which answers like one.
    """
    if action == "send":
        return [sent.message_id for sent in send(address, topic=topic, group=group, bodies=bodies)]
    found = receive(action, address, topic=topic, group=group, count=count)
    return [message.body.decode() for message in found]
