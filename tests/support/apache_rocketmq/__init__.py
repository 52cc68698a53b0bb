"""
An unmodified Apache RocketMQ 5.4 cluster on loopback, for the tests that need the real thing.

Jars come from Maven Central, once, into ``~/.cache/tidegate``. ``require`` skips a test with its
reason where Java or Maven is missing, and fails it in CI.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.support import java_clients
from tests.support.building import CACHE, filled

VERSION = "5.4.0"
JARS = CACHE / f"rocketmq-{VERSION}"
START_S_MAX = 180.0
PORTS = (12_000, 32_000)
"""Where its servers listen."""

NAMESRV_CONF = """\
listenPort={namesrv}
bindAddress=127.0.0.1
kvConfigPath={folder}/kvConfig.json
configStorePath={folder}/namesrv.properties
"""

BROKER_CONF = """\
brokerClusterName={cluster}
brokerName={broker_name}
brokerId=0
listenPort={broker}
haListenPort={ha}
bindAddress=127.0.0.1
brokerIP1=127.0.0.1
brokerIP2=127.0.0.1
namesrvAddr={namesrv_address}
storePathRootDir={folder}/store
storePathCommitLog={folder}/store/commitlog
mappedFileSizeCommitLog=67108864
mappedFileSizeConsumeQueue=1200000
mappedFileSizeTimerLog=5242880
maxHashSlotNum=50000
maxIndexNum=200000
diskMaxUsedSpaceRatio=95
flushDiskType={flush}
autoCreateTopicEnable=true
autoCreateSubscriptionGroup=true
enableLmq=true
enableMultiDispatch=true
enablePropertyFilter=true
timerWheelEnable=true
waitTimeMillsInSendQueue=3000
"""


def require(*programs: str) -> None:
    """Skip (in CI: fail) unless java and *programs* are there; fetch the jars if they are not."""
    for program in ("java", *programs):
        if shutil.which(program) is None:
            if os.environ.get("CI"):
                pytest.fail(f"{program} is not installed")
            pytest.skip(f"{program} is not installed")
    fetch_jars()


def fetch_jars() -> None:
    """Copy the jars of the pom beside this file into the cache, unless they are there."""
    filled(JARS, _fetch_jars)


def _fetch_jars() -> None:
    if shutil.which("mvn") is None:
        if os.environ.get("CI"):
            pytest.fail("Maven is not installed and the RocketMQ jars are not cached")
        pytest.skip("Maven is not installed and the RocketMQ jars are not cached")
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={JARS}", "-DincludeScope=runtime"]
    pom = Path(__file__).parent / "pom.xml"
    subprocess.run(["mvn", "-q", "-B", "-f", str(pom), *goal], check=True, timeout=600)


def free_port(*around: int) -> int:
    """
    A port that is free, as are those at the distances *around*.

    Below those that the system gives to clients: a JVM takes seconds to its first listener, and a
    client's port can be bound by nobody for a minute after its connection.
    """
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = PORTS[0] + int(probe.getsockname()[1]) % (PORTS[1] - PORTS[0])
        with contextlib.ExitStack() as probes:
            try:
                for number in (port, *(port + distance for distance in around)):
                    probe = probes.enter_context(socket.socket())
                    probe.bind(("127.0.0.1", number))
            except OSError:
                continue
            return port


class ApacheCluster:
    """Name server and broker; *namesrv* given: only a broker, registered there."""

    has_broker = True

    def __init__(
        self,
        folder: Path,
        *,
        namesrv: str = "",
        cluster: str = "DefaultCluster",
        broker_name: str = "broker-a",
        flush: str = "ASYNC_FLUSH",
        extra: str = "",
        is_measured: bool = False,
    ) -> None:
        self.folder = folder
        self.cluster = cluster
        self.broker_name = broker_name
        self.namesrv = namesrv or f"127.0.0.1:{free_port()}"
        self.broker = f"127.0.0.1:{free_port(-3, -2, -1, 1, 2, 3)}"  # it opens -2 and +1
        self._has_own_namesrv = not namesrv
        self._flush = flush
        self._extra = extra
        self._is_measured = is_measured
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        fetch_jars()
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            if self._has_own_namesrv:
                self._start_namesrv()
            if self.has_broker:
                self._start_broker()
                self._wait_registered()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def restart_broker(self) -> None:
        """Kill the broker and start it again on its port and files."""
        process = self._processes.pop()
        process.kill()
        process.wait()
        self._start_broker()
        self._wait_registered()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def admin(self, command: str, *arguments: str) -> str:
        """``mqadmin`` against this cluster's name server; what it printed."""
        return java_clients.mqadmin(self.namesrv, command, *arguments)

    def _start_namesrv(self) -> None:
        port = self.namesrv.rpartition(":")[2]
        conf = self.folder / "namesrv.conf"
        conf.write_text(NAMESRV_CONF.format(namesrv=port, folder=self.folder))
        main = "org.apache.rocketmq.namesrv.NamesrvStartup"
        self._launch("namesrv", "-Xmx256m", main, "-c", str(conf))
        self._wait_port(self.namesrv)

    def _start_broker(self) -> None:
        port = int(self.broker.rpartition(":")[2])
        conf = self.folder / "broker.conf"
        text = BROKER_CONF.format(
            cluster=self.cluster,
            broker_name=self.broker_name,
            broker=port,
            ha=port + 1,
            namesrv_address=self.namesrv,
            folder=self.folder,
            flush=self._flush,
        )
        conf.write_text(text + self._extra)
        main = "org.apache.rocketmq.broker.BrokerStartup"
        self._launch("broker", "-Xmx1g", main, "-c", str(conf))
        self._wait_port(self.broker)

    def _launch(self, name: str, heap: str, main: str, *arguments: str) -> None:
        log = (self.folder / f"{name}.out").open("wb")
        command = java(self.folder, heap, main, *arguments, is_measured=self._is_measured)
        env = {**os.environ, "ROCKETMQ_HOME": str(self.folder)}
        with log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=env, cwd=self.folder)
        self._processes.append(process)

    def _wait_port(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        deadline = time.monotonic() + START_S_MAX
        while time.monotonic() < deadline:
            if (code := self._processes[-1].poll()) is not None:
                raise AssertionError(f"Apache process ended with {code}:\n{self._logs()}")
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
                return
            time.sleep(0.1)
        raise AssertionError(f"{address} does not answer:\n{self._logs()}")

    def _wait_registered(self) -> None:
        from spark.client import SourceClient, SourceError

        deadline = time.monotonic() + START_S_MAX
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, SourceError), SourceClient(self.namesrv) as client:
                if client.queues(self.broker_name):  # a broker registers its own name as a topic
                    return
            time.sleep(0.1)
        raise AssertionError(f"{self.broker_name} did not register:\n{self._logs()}")

    def _logs(self) -> str:
        logs = [path.read_text(errors="replace")[-2000:] for path in self.folder.glob("*.out")]
        return "\n".join(logs)

    def _stop(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        self._processes.clear()


class ApacheNamesrv(ApacheCluster):
    """Only the name server."""

    has_broker = False


def java(
    folder: Path, heap: str, main: str, *arguments: str, is_measured: bool = False
) -> list[str]:
    """
    A command that runs *main* with all jars, its home and logs below *folder*.

    *is_measured*: with the JVM's own choices, which are fast in the long run; else a quick start.
    """
    options = [heap, f"-Duser.home={folder}"]
    if not is_measured:
        options += ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    options += ["-Djava.net.preferIPv4Stack=true", f"-Drocketmq.client.logRoot={folder}/logs"]
    return ["java", *options, "-cp", f"{JARS}/*", main, *arguments]
