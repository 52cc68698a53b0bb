"""The official Java client over gRPC (Maven rocketmq-client-java 5.2.0), one program per run."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.building import CACHE, filled

FOLDER = Path(__file__).resolve().parent.parent / "interop" / "java_grpc"
RUN_S_MAX = 300


def class_path() -> str:
    """The client's jar, fetched by Maven once; skipped where there is no Java or Maven."""
    folder = CACHE / "rocketmq-client-java-5.2.0"
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            reason = f"{program} is not installed"
            pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    goal = "dependency:copy-dependencies"
    command = ["mvn", "-q", "-B", "-f", str(FOLDER / "pom.xml"), goal]
    fetch = [*command, f"-DoutputDirectory={folder}"]
    filled(folder, lambda: subprocess.run(fetch, check=True, timeout=300))
    return str(folder / "*")


def run(program: str, address: str, name: str, folder: Path) -> list[str]:
    """
    The lines that *program* (a source file beside the pom) prints at the endpoint *address*.

    *name* begins the names of its topics; its logs go below *folder*.
    """
    options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", f"-Duser.home={folder}"]
    source = str(FOLDER / f"{program}.java")
    ended = subprocess.run(
        ["java", *options, "-cp", class_path(), source, address, name],
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        cwd=folder,
    )
    assert ended.returncode == 0, f"{ended.stdout[-3000:]}\n{ended.stderr[-3000:]}"
    return [line for line in ended.stdout.splitlines() if not line.startswith(" ")]


NAMES = [f"m{number}" for number in range(10)]
ATTEMPTS = [name + ("#2" if name == "m3" else "#1") for name in NAMES]

GRPC_CLIENT = {
    f"simple [{', '.join(name + 'blue' for name in NAMES)}]",
    f"push [{', '.join(ATTEMPTS)}]",
}
"""What ``GrpcClient`` prints: all ten, to both kinds of consumer; the one that failed twice."""

HELD_CLIENT = {
    "recall true",
    "delay [due true]",
    "asked forgotten",
    "transaction {commit=1, forgotten=1}",
    "fifo-s [s0, s1, s2, s3, s4]",
    "fifo-f [f0, f1, f2, f3, f4]",
    "fifo-free-first true",
}
"""What ``HeldClient`` prints: due in time, recalled, asked about; a stuck group blocks itself."""
