"""
Apache's Java client as processes: built once by Maven into a cache folder, run with arguments.

Without Java or Maven the tests that need them are skipped, saying why; where ``CI`` is set they
fail instead, so that a green run there means that the real client passed.
"""

import base64
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

PROJECT = Path(__file__).resolve().parent.parent / "interop" / "java"
CACHE = Path(os.environ.get("TIDEGATE_CACHE", Path.home() / ".cache" / "tidegate"))
BUILD_S_MAX = 600
JAVA_OPTIONS = ("-Xmx192m", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true")

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
    digest = hashlib.sha256(b"".join([path.read_bytes() for path in sources])).hexdigest()[:16]
    folder = CACHE / f"java-clients-{digest}{version}"
    if not (folder / "done").exists():
        need("mvn")
        _build(folder, version)
    return os.pathsep.join((str(folder / "interop.jar"), str(folder / "lib" / "*")))


def _build(folder: Path, version: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
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
    (folder / "done").touch()


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


def run(main: str, *arguments: str, timeout_s: float = 300.0, is_checked: bool = True) -> str:
    """Run a Java class to its end; its output. AssertionError if it fails."""
    try:
        done = subprocess.run(
            java_command(main, *arguments), capture_output=True, text=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired as error:
        output = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout
        raise AssertionError(f"{main} did not end in {timeout_s} s:\n{output}") from None
    if is_checked and done.returncode != 0:
        raise AssertionError(
            f"{main} ended with {done.returncode}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        )
    return done.stdout + ("" if is_checked else done.stderr)


def mqadmin(address: str, command: str, *arguments: str, is_checked: bool = True) -> str:
    """Apache's admin tool against the name server at *address*; what it prints."""
    tool = "org.apache.rocketmq.tools.command.MQAdminStartup"
    os.environ.setdefault("ROCKETMQ_HOME", str(CACHE))
    return run(tool, command, "-n", address, *arguments, is_checked=is_checked)


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
