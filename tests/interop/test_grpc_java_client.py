"""The official Java client over gRPC (Maven rocketmq-client-java 5.2.0) at the gateway."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.demo.cluster import create_topic
from tests.support.processes import Daemon, Daemons

pytestmark = [pytest.mark.client, pytest.mark.java, pytest.mark.timeout(600)]

FOLDER = Path(__file__).parent / "java_grpc"
CACHE = Path(os.environ.get("TIDEGATE_CACHE", Path.home() / ".cache" / "tidegate"))


@pytest.fixture(scope="module")
def class_path() -> str:
    """The client's jar, fetched by Maven once; skipped where there is no Java or Maven."""
    folder = CACHE / "rocketmq-client-java-5.2.0"
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            reason = f"{program} is not installed"
            pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    if not list(folder.glob("rocketmq-client-java-*.jar")):
        goal = "dependency:copy-dependencies"
        command = ["mvn", "-q", "-B", "-f", str(FOLDER / "pom.xml"), goal]
        subprocess.run([*command, f"-DoutputDirectory={folder}"], check=True, timeout=300)
    return str(folder / "*")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemons(tmp_path_factory.mktemp("grpc-java")) as daemons:
        namesrv = daemons.namesrv()
        settings = ("timeout_ms=1000", "interval_ms=1000", "checks_max=1000")
        store = daemons.store(namesrv, *(f"store.transactions.{one}" for one in settings))
        for kind in ("DELAY", "TRANSACTION", "FIFO"):
            address = next(iter(store.addresses.values()))
            create_topic(address, f"held-{kind.lower()}", f"+message.type={kind}")
        yield daemons.gateway(namesrv)


def test_java_producer_simple_and_push_consumer(
    gateway: Daemon, class_path: str, tmp_path: Path
) -> None:
    """Ten messages to both kinds of consumer; the one that failed once comes again."""
    address = f"127.0.0.1:{gateway.port('grpc')}"
    command = ["java", "-Xmx256m", f"-Duser.home={tmp_path}", "-cp", class_path]
    ended = subprocess.run(
        [*command, str(FOLDER / "GrpcClient.java"), address, "java-topic"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
    )
    lines = dict(line.split(" ", 1) for line in ended.stdout.splitlines() if " [" in line)
    names = [f"m{number}" for number in range(10)]
    assert lines.get("simple") == f"[{', '.join(name + 'blue' for name in names)}]", ended
    attempts = [f"{name}#{2 if name == 'm3' else 1}" for name in names]
    assert lines.get("push") == f"[{', '.join(attempts)}]", ended


def test_java_delays_recalls_transactions_and_message_groups(
    gateway: Daemon, class_path: str, tmp_path: Path
) -> None:
    """On topics of these types: due in time, recalled, asked about; a stuck group blocks itself."""
    address = f"127.0.0.1:{gateway.port('grpc')}"
    command = ["java", "-Xmx256m", f"-Duser.home={tmp_path}", "-cp", class_path]
    ended = subprocess.run(
        [*command, str(FOLDER / "HeldClient.java"), address, "held"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
    )
    lines = [line for line in ended.stdout.splitlines() if not line.startswith(" ")]
    assert sorted(lines) == sorted(
        [
            "recall true",
            "delay [due true]",
            "asked forgotten",
            "transaction {commit=1, forgotten=1}",
            "fifo-s [s0, s1, s2, s3, s4]",
            "fifo-f [f0, f1, f2, f3, f4]",
            "fifo-free-first true",
        ]
    ), ended
