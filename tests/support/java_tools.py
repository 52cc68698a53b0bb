"""
Small Java programs beside all of Apache's jars: its evaluator, its admin tool, its clients.

Each is one file in ``tests/interop/java_tools``, compiled once into the cache.
"""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support import apache_rocketmq
from tests.support.building import CACHE, digest_of, filled
from tests.support.java_shell import JavaShell

SOURCES = Path(__file__).resolve().parent.parent / "interop" / "java_tools"
SHARED = SOURCES.parent / "java" / "src" / "main" / "java"
COMPILE_S_MAX = 120


def compiled(program: str) -> Path:
    """The folder with the classes of *program*; compiled when its source is new."""
    apache_rocketmq.require("javac")
    source = SOURCES / f"{program}.java"
    digest = digest_of([source, SHARED / "tidegate" / "Endings.java"])
    folder = CACHE / f"java-tools-{program}-{digest}"

    def compile_it() -> None:
        jars = f"{apache_rocketmq.JARS}/*"
        command = ["javac", "-nowarn", "-proc:none", "-cp", jars, "-sourcepath", str(SHARED)]
        command += ["-d", str(folder), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_S_MAX)
        assert done.returncode == 0, done.stderr

    return filled(folder, compile_it)


def command_of(program: str, *arguments: str, heap: str = "-Xmx256m") -> list[str]:
    """A command line that runs *program*."""
    folder = compiled(program)
    return [
        "java",
        heap,
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        "-Djava.net.preferIPv4Stack=true",
        f"-Duser.home={CACHE}",
        f"-Drocketmq.client.logRoot={CACHE / 'java-logs'}",
        "-cp",
        os.pathsep.join((str(folder), f"{apache_rocketmq.JARS}/*")),
        program,
        *arguments,
    ]


def run(
    program: str, *arguments: str, lines: Sequence[str] = (), timeout_s: float = 120.0
) -> list[str]:
    """Run *program* with *lines* on its stdin; the lines of its stdout."""
    done = subprocess.run(
        command_of(program, *arguments),
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, "ROCKETMQ_HOME": str(CACHE)},
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout.splitlines()


class AdminShell(JavaShell):
    """One JVM that runs one ``mqadmin`` command after the other, and clients beside them."""

    def __init__(self, namesrv: str) -> None:
        super().__init__(command_of("AdminShell", namesrv), str(CACHE))

    def run(self, *words: str) -> str:
        """The output of one command."""
        return self.ask(*words).output
