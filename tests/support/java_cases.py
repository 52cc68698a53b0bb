"""
The Java cases: Apache's own clients, 5.4 or 4.9.8, through every kind of message and consumer.

``run`` starts one JVM that runs all cases of ``tests/interop/java_cases`` side by side, and
restarts the server when it asks for it.
"""

import os
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.support import apache_rocketmq, java_clients
from tests.support.building import CACHE, digest_of, filled

SOURCES = Path(__file__).resolve().parent.parent / "interop" / "java_cases"
RUN_S_MAX = 1200.0
FOUR, FIVE = "4.9.8", "5.4.0"

SITE_SETTINGS = (
    "store.transactions.timeout_ms=1000",
    "store.transactions.interval_ms=1000",
    "store.transactions.checks_max=300",
)
"""Settings of our store that make transactions ask soon, and long enough on a slow machine."""

APACHE_SETTINGS = """\
transactionTimeOut=1000
transactionCheckInterval=1000
transactionCheckMax=300
recallMessageEnable=true
traceTopicEnable=true
"""


class Result(NamedTuple):
    """One case."""

    name: str
    is_right: bool
    ms: int
    what: str
    """Empty, or why it failed."""


def jars(version: str) -> str:
    """The class path of a client version."""
    if version == FIVE:
        apache_rocketmq.require("javac")
        return f"{apache_rocketmq.JARS}/*"
    return java_clients.class_path(version)


def compiled(version: str) -> Path:
    """The folder with the classes for *version*; compiled when a source is new."""
    own = "five" if version == FIVE else "four"
    sources = sorted([*(SOURCES / "cases").glob("*.java"), *(SOURCES / own).glob("*.java")])
    folder = CACHE / f"java-cases-{version}-{digest_of(sources)}"
    class_path = jars(version)

    def compile_all() -> None:
        command = ["javac", "-nowarn", "-proc:none", "-encoding", "UTF-8", "-cp", class_path]
        words = [*command, "-d", str(folder), *map(str, sources)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr

    return filled(folder, compile_all)


def run(
    version: str,
    namesrv: str,
    *,
    restart: Callable[[], object],
    tools: str = "",
    prefix: str = "j-",
    choice: tuple[str, ...] = (),
    report: Callable[[Result], object] = lambda result: None,
) -> list[Result]:
    """
    All cases of *version* against *namesrv*, whose server *restart* kills and starts again.

    Args:
        tools: a name server for admin tools, where clients use a gateway.
        choice: ``-name`` leaves out what begins so, ``+name`` leaves only that.
        report: hears of each case as it ends.
    """
    words = [
        *("java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
        *("-Djava.net.preferIPv4Stack=true", "-Dfile.encoding=UTF-8", f"-Duser.home={CACHE}"),
        f"-Drocketmq.client.logRoot={CACHE / 'java-logs'}",
        f"-Drocketmq.client.localOffsetStoreDir={CACHE / 'java-offsets'}",
        *("-cp", os.pathsep.join((str(compiled(version)), jars(version))), "cases.Suite"),
        *(namesrv, tools or namesrv, prefix, *choice),
    ]
    results: list[Result] = []
    noise: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=folder,
            env={**os.environ, "ROCKETMQ_HOME": str(CACHE)},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        watchdog = threading.Timer(RUN_S_MAX, process.kill)
        watchdog.start()
        try:
            for line in process.stdout:
                parts = line.rstrip("\n").split("\t")
                if parts[0] == "case":
                    results.append(Result(parts[1], parts[2] == "pass", int(parts[3]), parts[4]))
                    report(results[-1])
                elif parts[0] == "restart":
                    restart()
                    process.stdin.write("restarted\n")
                    process.stdin.flush()
                else:
                    noise.append(line)
            assert process.wait() == 0, "".join(noise)[-3000:]
        finally:
            watchdog.cancel()
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()
    return sorted(results)


def table(columns: dict[str, list[Result]]) -> str:
    """Verdicts side by side, and their counts."""
    names = sorted({result.name for results in columns.values() for result in results})
    verdicts = {
        column: {result.name: ("pass" if result.is_right else "FAIL") for result in results}
        for column, results in columns.items()
    }
    lines = [f"| case | {' | '.join(columns)} |", f"| --- |{' --- |' * len(columns)}"]
    for name in names:
        cells = [verdicts[column].get(name, "") for column in columns]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    counts = [
        f"**{sum(result.is_right for result in results)} of {len(results)}**"
        for results in columns.values()
    ]
    lines.append(f"| passed | {' | '.join(counts)} |")
    return "\n".join(lines)
