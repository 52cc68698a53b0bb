"""What is measured: our processes in CLUSTER and LOCAL mode, and Mosquitto beside them."""

import asyncio
import json
import os
import socket
import subprocess
import tempfile
import time
from mmap import mmap
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

    rss_bytes: int
    """Resident memory of what holds the connections."""


class Server:
    """One system under test."""

    name = ""
    note = ""
    port = 0

    def pids(self) -> list[int]:
        return []

    def front_pids(self) -> list[int]:
        """The processes that clients are connected to."""
        return self.pids()

    @property
    def address(self) -> str:
        """``host:port``, of several servers with commas between."""
        return f"127.0.0.1:{self.port}"

    @property
    def late_address(self) -> str:
        """Where another server listens after ``join``; empty: there is none."""
        return ""

    def join(self) -> None:
        """Another server joins, in the midst of the load."""

    def commits(self) -> float:
        return 0.0

    def counters(self) -> Counters:
        rss = sum(rss_bytes(pid) for pid in self.front_pids())
        return Counters(sum(cpu_s(pid) for pid in self.pids()), self.commits(), rss)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def cpu_s(pid: int) -> float:
    """User and system seconds of a process so far (proc(5): fields 14 and 15)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def rss_bytes(pid: int) -> int:
    """Resident memory (proc(5), statm)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


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
        self.port = free_port()
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

    def front_pids(self) -> list[int]:
        return [self._gateway.process.pid]

    def commits(self) -> float:
        return store_commits(self._store.addresses["store"])

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._daemons.__exit__(kind, error, trace)


class Pair(Cluster):
    """Two gateways, and a third that joins later."""

    name = "tidegate 2 gateways"

    def __enter__(self) -> Self:
        self._daemons = Daemons().__enter__()
        self._namesrv = self._daemons.namesrv()
        self._store = self._daemons.store(self._namesrv)
        self._gateways = [
            self._daemons.gateway(self._namesrv, *ONLY_MQTT, name=f"gw-{number}")
            for number in (1, 2)
        ]
        self._late_port = free_port()
        return self

    @property
    def address(self) -> str:
        return ",".join([f"127.0.0.1:{gateway.port('mqtt')}" for gateway in self._gateways])

    @property
    def late_address(self) -> str:
        return f"127.0.0.1:{self._late_port}"

    def join(self) -> None:
        bind = f"listeners.mqtt.bind=127.0.0.1:{self._late_port}"
        self._gateways.append(self._daemons.gateway(self._namesrv, *ONLY_MQTT, bind, name="gw-3"))

    def pids(self) -> list[int]:
        return [self._store.process.pid, *self.front_pids()]

    def front_pids(self) -> list[int]:
        return [gateway.process.pid for gateway in self._gateways]


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


def write_mb_s(folder: str | None = None, count: int = 192) -> float:
    """What a plain writer gets of the disk: 1 MiB at a time, each durable, over written blocks."""
    size = 1 << 20
    with tempfile.NamedTemporaryFile(dir=folder) as file, mmap(-1, size) as piece:
        piece.write(os.urandom(size))  # at the start of a page, as O_DIRECT wants it
        for _ in range(64):
            file.write(piece)
        file.flush()
        os.fdatasync(file.fileno())
        try:
            descriptor = os.open(file.name, os.O_WRONLY | os.O_DSYNC | os.O_DIRECT)
        except OSError:  # a file system without
            descriptor = os.open(file.name, os.O_WRONLY | os.O_DSYNC)
        started = time.perf_counter()
        for number in range(count):
            os.pwrite(descriptor, piece, number % 64 * size)
        took = time.perf_counter() - started
        os.close(descriptor)
    return count * size / took / 1e6


def disk_bytes(pid: int) -> int:
    """What the process has had written to disk so far."""
    for line in Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(": ")
        if name == "write_bytes":
            return int(value)
    return 0
