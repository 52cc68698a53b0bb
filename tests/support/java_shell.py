"""A JVM that runs one thing after the other, told by lines; most cost less than its start."""

import os
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, Self

DONE = "=== done"
"""Begins the line that ends an output; an exit code may follow."""

RUN_S_MAX = 300.0


class Ended(NamedTuple):
    """What a program printed, and its exit code (0 where none is told)."""

    output: str
    code: int


class JavaShell:
    """One process; ``close`` it or use it as a context manager."""

    def __init__(self, command: Sequence[str], home: str) -> None:
        self._folder = tempfile.TemporaryDirectory()  # some commands write into their folder
        self._process = subprocess.Popen(
            command,
            cwd=self._folder.name,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "ROCKETMQ_HOME": home},
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
        self.close()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._folder.cleanup()

    def ask(self, *words: str, timeout_s: float = RUN_S_MAX) -> Ended:
        """One program to its end; the JVM is killed if it takes longer."""
        assert self._process.stdin is not None
        watchdog = threading.Timer(timeout_s, self._process.kill)
        watchdog.start()
        try:
            self._process.stdin.write("\t".join(words) + "\n")
            self._process.stdin.flush()
            return self._answer()
        finally:
            watchdog.cancel()

    def _answer(self) -> Ended:
        assert self._process.stdout is not None
        lines: list[str] = []
        for line in self._process.stdout:
            if line.startswith(DONE):
                return Ended("".join(lines), int(line.removeprefix(DONE).strip() or 0))
            lines.append(line)
        raise AssertionError(f"the JVM has ended:\n{''.join(lines)[-3000:]}")
