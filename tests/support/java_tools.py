"""
Small Java programs beside all of Apache's jars: its evaluator, its admin tool, its clients.

Each is one file in ``tests/interop/java_tools``, compiled once into the cache.
"""

import hashlib
import os
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support import apache_rocketmq
from tests.support.java_clients import CACHE

SOURCES = Path(__file__).resolve().parent.parent / "interop" / "java_tools"
COMPILE_S_MAX = 120


def compiled(program: str) -> Path:
    """The folder with the classes of *program*; compiled when its source is new."""
    apache_rocketmq.require("javac")
    source = SOURCES / f"{program}.java"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    folder = CACHE / f"java-tools-{program}-{digest}"
    if not (folder / "done").exists():
        folder.mkdir(parents=True, exist_ok=True)
        jars = f"{apache_rocketmq.JARS}/*"
        command = ["javac", "-nowarn", "-proc:none", "-cp", jars, "-d", str(folder), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_S_MAX)
        assert done.returncode == 0, done.stderr
        (folder / "done").touch()
    return folder


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


class AdminShell:
    """One JVM that runs one ``mqadmin`` command after the other, and clients beside them."""

    def __init__(self, namesrv: str) -> None:
        self._folder = tempfile.TemporaryDirectory()  # some commands write into their folder
        self._process = subprocess.Popen(
            command_of("AdminShell", namesrv),
            cwd=self._folder.name,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "ROCKETMQ_HOME": str(CACHE)},
        )
        self._answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._folder.cleanup()

    def run(self, *words: str, timeout_s: float = 180.0) -> str:
        """The output of one command; the JVM is killed if it takes longer."""
        assert self._process.stdin is not None
        watchdog = threading.Timer(timeout_s, self._process.kill)
        watchdog.start()
        try:
            self._process.stdin.write("\t".join(words) + "\n")
            self._process.stdin.flush()
            return self._answer()
        finally:
            watchdog.cancel()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        lines: list[str] = []
        for line in self._process.stdout:
            if line.rstrip("\n") == "=== done":
                return "".join(lines)
            lines.append(line)
        raise AssertionError(f"the admin shell has ended:\n{''.join(lines)[-3000:]}")
