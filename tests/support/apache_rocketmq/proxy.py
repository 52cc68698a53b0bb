"""An unmodified Apache Proxy 5.4.0 in cluster mode, in front of any name server."""

import contextlib
import json
import os
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.apache_rocketmq import START_S_MAX, free_port, java


class ApacheProxy:
    """One process; *grpc_port* answers when it is entered."""

    def __init__(self, folder: Path, namesrv: str, *, cluster: str = "DefaultCluster") -> None:
        self.folder = folder
        self.namesrv = namesrv
        self.cluster = cluster
        self.grpc_port = free_port()
        self.remoting_port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        conf = self.folder / "conf"
        conf.mkdir(parents=True, exist_ok=True)
        settings = {
            "rocketMQClusterName": self.cluster,
            "proxyMode": "CLUSTER",
            "namesrvAddr": self.namesrv,
            "grpcServerPort": self.grpc_port,
            "remotingListenPort": self.remoting_port,
            "localServeAddr": "127.0.0.1",
            "grpcBossLoopNum": 1,
            "grpcWorkerLoopNum": 2,
            "maxDelayTimeMills": 400 * 24 * 3600 * 1000,  # its default is one day
        }
        (conf / "rmq-proxy.json").write_text(json.dumps(settings))
        env = {
            **os.environ,
            "ROCKETMQ_HOME": str(self.folder),
            "RMQ_PROXY_HOME": str(self.folder),
        }
        env.pop("NAMESRV_ADDR", None)
        main = "org.apache.rocketmq.proxy.ProxyStartup"
        words = java(self.folder, "-Xmx512m", main, "-pc", str(conf / "rmq-proxy.json"))
        with (self.folder / "proxy.out").open("wb") as log:
            self._process = subprocess.Popen(
                words, stdout=log, stderr=log, env=env, cwd=self.folder
            )
        try:
            self._wait()
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

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def log(self) -> str:
        logs = self.folder.rglob("proxy*.log")
        parts = [(self.folder / "proxy.out").read_text(errors="replace")]
        parts += [path.read_text(errors="replace")[-4000:] for path in logs]
        return "\n".join(parts)

    def _wait(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + 2 * START_S_MAX
        while time.monotonic() < deadline:
            if (code := self._process.poll()) is not None:
                raise AssertionError(f"Apache Proxy ended with {code}:\n{self.log()}")
            address = ("127.0.0.1", self.grpc_port)
            with contextlib.suppress(OSError), socket.create_connection(address, 1):
                return
            time.sleep(0.1)
        raise AssertionError(f"Apache Proxy does not listen:\n{self.log()}")

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
