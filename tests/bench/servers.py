"""What is measured: our processes in CLUSTER and LOCAL mode, and Mosquitto beside them."""

import asyncio
import json
import os
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import RequestCode
from protocols.remoting.command import RemotingCommand
from tests.support.processes import Daemons

ONLY_MQTT = [f"listeners.{name}.enabled=false" for name in ("amqp", "events", "grpc", "remoting")]
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Counters(NamedTuple):
    """Read before and after a run."""

    cpu_s: float
    commits: float
    """Of the stores: one fdatasync each. 0: not known."""


class Server:
    """One system under test."""

    name = ""
    note = ""
    port = 0

    def pids(self) -> list[int]:
        return []

    def commits(self) -> float:
        return 0.0

    def counters(self) -> Counters:
        return Counters(sum(cpu_s(pid) for pid in self.pids()), self.commits())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


def cpu_s(pid: int) -> float:
    """User and system seconds of a process so far (proc(5): fields 14 and 15)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def store_commits(address: str) -> float:
    """How many group commits a store has made, from its runtime information."""

    async def ask() -> float:
        client = await RemotingClient.connect(address)
        try:
            request = RemotingCommand(code=RequestCode.GET_BROKER_RUNTIME_INFO)
            answer = await client.request(request, 5)
            return float(json.loads(answer.body)["table"].get("commits_total", 0))
        finally:
            await client.close()

    return asyncio.run(ask())


class Mosquitto(Server):
    """Debian's Mosquitto: one thread, everything in memory, no limit on what is in flight."""

    name = "mosquitto"
    note = "memory"

    def __enter__(self) -> Self:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._folder = tempfile.TemporaryDirectory()
        config = Path(self._folder.name) / "mosquitto.conf"
        config.write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\npersistence false\n"
            "max_inflight_messages 0\nmax_queued_messages 0\nlog_type none\nset_tcp_nodelay true\n"
        )
        self._process = subprocess.Popen(
            ["mosquitto", "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return self
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def pids(self) -> list[int]:
        return [self._process.pid]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()


class Cluster(Server):
    """Name server, store and gateway, a process each; fdatasync before every PUBACK."""

    name = "tidegate CLUSTER"
    note = "fdatasync"

    def __enter__(self) -> Self:
        self._daemons = Daemons().__enter__()
        namesrv = self._daemons.namesrv()
        self._store = self._daemons.store(namesrv)
        self._gateway = self._daemons.gateway(namesrv, *ONLY_MQTT)
        self.port = self._gateway.port("mqtt")
        return self

    def pids(self) -> list[int]:
        return [self._store.process.pid, self._gateway.process.pid]

    def commits(self) -> float:
        return store_commits(self._store.addresses["store"])

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._daemons.__exit__(kind, error, trace)


class Local(Cluster):
    """``tidegate up``: the same in one process."""

    name = "tidegate LOCAL"

    def __enter__(self) -> Self:
        self._daemons = Daemons().__enter__()
        self._gateway = self._daemons.up(*ONLY_MQTT)
        self.port = self._gateway.port("mqtt")
        return self

    def pids(self) -> list[int]:
        return [self._gateway.process.pid]

    def commits(self) -> float:
        return store_commits(self._gateway.addresses["store"])


def sync_ms(folder: str | None = None, count: int = 200) -> float:
    """The disk's own median: write 4 KiB over written blocks, fdatasync, in milliseconds."""
    times: list[float] = []
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        file.write(bytes(1 << 20))
        file.flush()
        os.fdatasync(file.fileno())
        for number in range(count):
            started = time.perf_counter()
            os.pwrite(file.fileno(), b"x" * 4096, number % 256 * 4096)
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - started)
    return sorted(times)[count // 2] * 1000
