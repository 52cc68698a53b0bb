"""
``python -m tests.bench.amqp``: our gateway and store beside RabbitMQ, AMQP 0-9-1.

The same generator against both, one after the other: persistent messages to durable queues, each
confirmed: here after its fdatasync, there when a classic queue has written it or a quorum queue
(of one node) has it in its log. Then the same with a consumer at each queue (prefetch 1000, acks
by the hundred): what it gets, and how long that was under way.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.bench import generator
from tests.bench.servers import cpu_s, sync_ms
from tests.support.processes import Daemons
from tests.support.rabbitmq import RabbitMq

CONNECTIONS = "4"
SIZES = (256, 4096)
KINDS = ("classic", "quorum")
ONLY = tuple(f"listeners.{name}.enabled=false" for name in ("events", "grpc", "remoting", "mqtt"))


MODES = {"publish": "apub", "publish and consume": "acons"}


class Case(NamedTuple):
    mode: str
    size: int
    kind: str


class Row(NamedTuple):
    """One run."""

    case: str
    server: str
    rate: float
    p50_ms: float
    p99_ms: float
    cpu_us: float


def run(server: str, port: int, pids: Sequence[int], case: Case, seconds: float) -> Row:
    mode, size, kind = case
    cpu: list[float] = []

    def count() -> None:
        cpu.append(sum(map(cpu_s, pids)))

    found = generator.run(
        [
            *(MODES[mode], "-addr", f"127.0.0.1:{port}", "-conns", CONNECTIONS),
            *("-inflight", "256", "-kind", kind, "-size", str(size), "-name", f"{mode}{size}"),
            *("-secs", str(seconds), "-warm", "2"),
        ],
        before=count,
        after=count,
    )
    latency = found["latency_us"] or {"p50": 0.0, "p99": 0.0}
    used = (cpu[1] - cpu[0]) / max(found["messages"], 1) * 1e6
    name = f"{mode} {size} B, {kind}"
    return Row(name, server, found["rate"], latency["p50"] / 1000, latency["p99"] / 1000, used)


def descendants(pid: int) -> list[int]:
    """A process and what it started: RabbitMQ's program is a script."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [item for child in task.read_text().split() for item in descendants(int(child))]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.amqp", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="measured, per row")
    options = parser.parse_args()
    generator.build()
    rows: list[Row] = []
    cases = [Case(mode, size, kind) for mode in MODES for kind in KINDS for size in SIZES]
    with RabbitMq() as rabbit:
        rabbit.wait_ready()
        pids = descendants(rabbit.pid)
        rows += [run("rabbitmq", rabbit.port, pids, case, options.seconds) for case in cases]
    with Daemons() as daemons:
        namesrv = daemons.namesrv()
        store = daemons.store(namesrv)
        gateway = daemons.gateway(namesrv, *ONLY)
        pids = [store.process.pid, gateway.process.pid]
        port = gateway.port("amqp")
        rows += [run("ours", port, pids, case, options.seconds) for case in cases]
    print(f"fdatasync {sync_ms():.3f} ms")
    print(f"{'case':38}{'server':10}{'msg/s':>10}{'p50 ms':>9}{'p99 ms':>9}{'CPU us':>9}")
    for row in sorted(rows, key=lambda row: row.case):
        print(
            f"{row.case:38}{row.server:10}{row.rate:>10,.0f}{row.p50_ms:>9.2f}{row.p99_ms:>9.2f}"
            f"{row.cpu_us:>9.1f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
