"""
Daemons as processes: started by their command, ready when they say so, ended hard or softly.

``Daemons`` is a context manager that a fixture hands out; whatever a test leaves running is
killed, and every log is there when an assertion fails.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from tests.support.patience import PATIENCE_S

NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"

READY_S_MAX = 180.0
"""A loaded two-core machine takes its time; an idle one needs under two seconds."""

STOP_S_MAX = PATIENCE_S


class Daemon:
    """One process of ours, its ready line parsed."""

    def __init__(
        self, name: str, command: Sequence[str], folder: Path, env: dict[str, str]
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log_path = folder / f"{name}.log"
        self.ready_text = ""
        self.addresses: dict[str, str] = {}
        self._env = env
        self._folder = folder
        self.process = self._spawn()

    def _spawn(self) -> "subprocess.Popen[str]":
        with self.log_path.open("a", encoding="utf-8") as log:
            return subprocess.Popen(
                self.command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self._folder,
                env=self._env,
            )

    def wait_ready(self, timeout_s: float = READY_S_MAX) -> "Daemon":
        """Read stdout up to the line ``ready …``; what comes after it goes to the log."""
        assert self.process.stdout is not None
        watchdog = threading.Timer(timeout_s, self.process.kill)
        watchdog.start()
        try:
            for line in self.process.stdout:
                self._note(line)
                if line.startswith("ready "):
                    self._parse(line.strip())
                    break
            else:
                code = self.process.wait()
                raise AssertionError(f"{self.name} ended with {code}, not ready:\n{self.log()}")
        finally:
            watchdog.cancel()
        threading.Thread(target=self._drain, args=(self.process.stdout,), daemon=True).start()
        return self

    def address(self, listener: str) -> tuple[str, int]:
        """(host, port) of a listener named in the ready line."""
        host, _, port = self.addresses[listener].rpartition(":")
        return host.strip("[]"), int(port)

    def port(self, listener: str) -> int:
        return self.address(listener)[1]

    def stop(self, timeout_s: float = STOP_S_MAX) -> int:
        """SIGTERM; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self._ended(timeout_s)

    def kill(self) -> None:
        """``kill -9``: no time to say anything."""
        if self.process.poll() is None:
            self.process.kill()
        self._ended(STOP_S_MAX)

    def signal(self, number: int) -> None:
        """SIGSTOP, SIGCONT, SIGHUP."""
        self.process.send_signal(number)

    def restart(self, **changes: str) -> "Daemon":
        """
        The same command again, on the same ports; waits until it is ready.

        Keyword arguments replace listeners' addresses in the command's ``--set`` options.
        """
        self.kill()
        self.command = _with_ports(self.command, {**self.addresses, **changes})
        self.process = self._spawn()
        return self.wait_ready()

    def log(self) -> str:
        """Everything it wrote to stderr, and to stdout."""
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def rss_bytes(self) -> int:
        """Resident memory now."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def _ended(self, timeout_s: float) -> int:
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"{self.name} did not stop:\n{self.log()}") from None
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code

    def _parse(self, line: str) -> None:
        self.ready_text = line
        pairs = (word.partition("=") for word in line.split()[3:])
        self.addresses = {name: value for name, sign, value in pairs if sign}

    def _note(self, line: str) -> None:
        with self.log_path.open("a", encoding="utf-8") as log:
            log.write(line)

    def _drain(self, stream: IO[str]) -> None:
        with contextlib.suppress(ValueError, OSError):  # closed under us by stop()
            for line in stream:
                self._note(line)


def _with_ports(command: list[str], addresses: dict[str, str]) -> list[str]:
    """*command* with the ports it got, so that a restart comes back where clients look."""
    result: list[str] = []
    for word in command:
        key, sign, value = word.partition("=")
        if sign and key.endswith(".bind") and value.endswith(":0"):
            name = key.removesuffix(".bind").removeprefix("listeners.")
            word = f"{key}={addresses.get(name, value)}"
        result.append(word)
    return result


class Daemons:
    """The processes of one test."""

    def __init__(self, folder: Path | None = None) -> None:
        self._own = tempfile.TemporaryDirectory(prefix="tidegate-") if folder is None else None
        self.folder = folder or Path(self._own.name if self._own else ".")
        self.all: list[Daemon] = []

    def __enter__(self) -> "Daemons":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for daemon in reversed(self.all):
            with contextlib.suppress(ProcessLookupError):
                daemon.signal(signal.SIGCONT)
            daemon.kill()
        if error is not None:
            for daemon in self.all:
                error.add_note(f"── {daemon.name}\n{daemon.log()[-4000:]}")
        if self._own is not None:
            self._own.cleanup()

    def start(
        self,
        *arguments: str,
        name: str = "",
        wait: bool = True,
        env: dict[str, str] | None = None,
    ) -> Daemon:
        """``tidegate`` with *arguments*, from this interpreter's environment."""
        command = [sys.executable, "-m", "gateway.cli", *arguments]
        daemon = Daemon(
            name or f"{arguments[0]}-{len(self.all)}",
            command,
            self.folder,
            {**environment(), "PYTHONUNBUFFERED": "1", **(env or {})},
        )
        self.all.append(daemon)
        return daemon.wait_ready() if wait else daemon

    # The daemons with every port picked by the kernel; *settings* are ``key=value`` texts.

    def namesrv(self, *settings: str, name: str = "namesrv") -> Daemon:
        return self.start("namesrv", *_sets("namesrv.bind=127.0.0.1:0", *settings), name=name)

    def store(self, namesrv: Daemon | str, *settings: str, name: str = "broker-a") -> Daemon:
        """
        A directory store unless *settings* say otherwise; its data outlives a restart.

        Where gateways die, let *settings* be `HURRIED` or the like.
        """
        address = namesrv if isinstance(namesrv, str) else namesrv.addresses["namesrv"]
        return self.start(
            "store",
            "--data",
            str(self.folder / name),
            *_sets(
                "store.bind=127.0.0.1:0",
                f"store.namesrv={address}",
                f"store.name={name}",
                "store.directory=true",
                *UNHURRIED,
                *settings,
            ),
            name=name,
        )

    def gateway(
        self,
        namesrv: Daemon | str,
        *settings: str,
        name: str = "gw-1",
        arguments: Sequence[str] = (),
    ) -> Daemon:
        """*namesrv* "": the configuration in *arguments* names its clusters."""
        address = namesrv if isinstance(namesrv, str) else namesrv.addresses["namesrv"]
        return self.start(
            "gateway",
            *(("--namesrvAddr", address) if address else ()),
            *arguments,
            *_sets(f"name={name}", *any_ports(), *settings),
            name=name,
        )

    def up(self, *settings: str, name: str = "up", arguments: Sequence[str] = ()) -> Daemon:
        """All in one process."""
        return self.start(
            "up",
            "--data",
            str(self.folder / name),
            *arguments,
            *_sets("namesrv.bind=127.0.0.1:0", "store.bind=127.0.0.1:0", *any_ports()),
            *_sets(*UNHURRIED, *settings),
            name=name,
        )


UNHURRIED = ("store.lease_ms=30000", "store.silence_ms_max=30000")
"""A gateway that a loaded machine stops for some seconds is not given up."""

HURRIED = ("store.lease_ms=5000", "store.silence_ms_max=5000")
"""
For tests whose gateways are killed: others wait for the end of the lease. Not shorter: a gateway
that stands still for three seconds must not lose its lease, or tests fail that kill nobody.
"""

LISTENERS = ("mqtt", "mqtt-ws", "amqp", "events", "grpc", "remoting", "admin")


class TwoGateways:
    """One name server, two stores, two gateways and more on demand; any of them may be killed."""

    def __init__(self, daemons: Daemons, *settings: str) -> None:
        """*settings* are the gateways'."""
        self.daemons = daemons
        self._settings = settings
        self.namesrv = daemons.namesrv()
        self.directory = daemons.store(self.namesrv, *HURRIED)
        self.other = daemons.store(self.namesrv, *HURRIED, "store.directory=false", name="broker-b")
        self.one = self.gateway("gw-1")
        self.two = self.gateway("gw-2")

    def gateway(self, name: str) -> Daemon:
        return self.daemons.gateway(self.namesrv, *self._settings, name=name)


def any_ports() -> list[str]:
    """Settings that let the kernel pick every listener's port."""
    return [f"listeners.{listener}.bind=127.0.0.1:0" for listener in LISTENERS]


def environment() -> dict[str, str]:
    """This process's; daemons keep their bytecode, as installed ones do."""
    return {name: value for name, value in os.environ.items() if name != NO_BYTECODE}


def _sets(*settings: str) -> Iterator[str]:
    for setting in settings:
        yield "--set"
        yield setting


def wait_until(condition, what: str, timeout_s: float = PATIENCE_S):  # type: ignore[no-untyped-def]
    """Poll *condition* until it is true and return its value; for processes, never for our code."""
    end = time.monotonic() + timeout_s
    while True:
        if value := condition():
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(0.02)
