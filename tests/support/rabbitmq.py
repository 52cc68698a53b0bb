"""
A RabbitMQ of our own on free ports, to compare with; its data is gone with it.

Without RabbitMQ the tests that compare are skipped, saying why; where ``CI`` is set they fail.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

PROGRAM = shutil.which("rabbitmq-server") or "/usr/lib/rabbitmq/bin/rabbitmq-server"
READY_S_MAX = 300.0
STOP_S_MAX = 20.0


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


class RabbitMq:
    """One broker with the user guest; a context manager, usable after ``wait_ready``."""

    def __init__(self) -> None:
        if not Path(PROGRAM).exists():
            reason = "rabbitmq-server is not installed"
            if os.environ.get("CI"):
                pytest.fail(reason)
            pytest.skip(reason)
        self.port, distribution, self._mapper = free_ports(3)
        self._folder = tempfile.TemporaryDirectory(prefix="rabbitmq-")
        base = Path(self._folder.name)
        (base / "plugins").write_text("[].")
        env = {
            **os.environ,
            "HOME": str(base),
            "RABBITMQ_NODENAME": f"parity{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_MNESIA_BASE": str(base / "db"),
            "RABBITMQ_LOG_BASE": str(base / "log"),
            "RABBITMQ_PID_FILE": str(base / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(base / "plugins"),
            "ERL_EPMD_PORT": str(self._mapper),
            # Schedulers that have nothing to do sleep; no other test is held up.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none",
        }
        self._env = env
        self._reader: threading.Thread | None = None
        self._process = self._spawn()

    def _spawn(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [_unwrapped()],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self._folder.name,
            env=self._env,
            start_new_session=True,
        )

    def kill(self) -> None:
        """``kill -9``; what is durable is there after ``start_again``."""
        self._kill()
        self._process.wait(STOP_S_MAX)
        if self._reader is not None:
            self._reader.join(STOP_S_MAX)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def start_again(self) -> None:
        """On the same port and the same data; ready when it returns."""
        self._process = self._spawn()
        self.wait_ready()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self) -> None:
        """It boots for some seconds, while others may start."""
        stdout = self._process.stdout
        assert stdout is not None
        watchdog = threading.Timer(READY_S_MAX, self._kill)
        watchdog.start()
        lines: list[str] = []
        try:
            for line in stdout:
                lines.append(line)
                if "completed with" in line:
                    break
            else:
                raise AssertionError("RabbitMQ did not start:\n" + "".join(lines[-40:]))
        finally:
            watchdog.cancel()
        self._reader = threading.Thread(target=stdout.read)  # or it blocks on a full pipe
        self._reader.start()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # it ended by itself
            os.killpg(self._process.pid, signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()  # nothing of it is kept
        subprocess.run(["epmd", "-kill"], env=self._env, check=False, capture_output=True)
        self._folder.cleanup()


def _unwrapped() -> str:
    """The program behind Debian's wrapper, which insists on a user of its own."""
    plain = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
    return str(plain) if plain.exists() else PROGRAM
