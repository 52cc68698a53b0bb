"""
``python -m tests.bench.remoting``: our store beside a warm Apache broker, RocketMQ remoting.

The same generator against both, one after the other: single sends, client batches of 32, pulls
and pops (with an ack each) of a backlog. ``--flush async`` compares the two without a sync before
the answer; with ``--front`` all goes through our gateway and through Apache's proxy. The broker is
warmed by the same kinds of request before anything is measured. Sends of all kinds take turns, and
their rows are means of these: a machine whose speed changes does so on either side of a ratio.
``x`` is ours beside Apache's, ``x single`` beside the server's own single sends, ``disk B/B`` what
it had written to disk for each byte of a body.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import RequestCode
from protocols.remoting.command import RemotingCommand
from tests.bench import generator
from tests.bench.servers import cpu_s, disk_bytes, sync_ms, write_mb_s
from tests.support.apache_rocketmq import ApacheCluster
from tests.support.apache_rocketmq.proxy import ApacheProxy
from tests.support.processes import Daemons

QUEUE_COUNT = 4
APACHE_EXTRA = "mappedFileSizeCommitLog=1073741824\nosPageCacheBusyTimeOutMills=5000\n"
"""The broker's own default for its files (the tests use small ones), and no refusals by it."""


TURNS = 4
"""Of each kind of sends."""

TURN_WARM_S = 0.4
"""Before a turn that is not the first: connections are new, the server is not."""


class Case(NamedTuple):
    """One row."""

    name: str
    command: str
    arguments: tuple[str, ...]
    fills: int = 0
    """Messages sent to the topic before, so that there is a backlog."""


CASES = (
    Case("send", "rsend", ("-conns", "4", "-inflight", "256")),
    Case("send, batches of 32", "rsend", ("-conns", "4", "-inflight", "16", "-batch", "32")),
    Case("send, 64 batches of 32", "rsend", ("-conns", "4", "-inflight", "64", "-batch", "32")),
    Case("pull backlog", "rpull", ("-conns", "4"), fills=100_000),
    Case("pop + ack backlog", "rpop", ("-conns", "4"), fills=400_000),
)


class Result(NamedTuple):
    """What a run measured."""

    rate: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    gen_cpu_pct: float
    written: float
    """Bytes that went to the disk for each of a body."""


def mean(results: Sequence[Result]) -> Result:
    """Of turns that were equally long."""
    return Result(*[sum(column) / len(results) for column in zip(*results, strict=True)])


class Server(NamedTuple):
    """Where requests go, and who has work with them."""

    address: str
    broker: str
    """Where topics are made."""

    pids: list[int]


def run(case: Case, server: Server, topic: str, size: int, seconds: float, warm_s: float) -> Result:
    """One case against one server."""
    cpu: list[float] = []
    written: list[int] = []

    def note() -> None:
        cpu.append(sum([cpu_s(pid) for pid in server.pids]))
        written.append(sum([disk_bytes(pid) for pid in server.pids]))

    found = generator.run(
        [
            *(case.command, "-addr", server.address, "-topic", topic),
            *("-queues", str(QUEUE_COUNT), *case.arguments, "-size", str(size)),
            *("-secs", str(seconds), "-warm", str(warm_s)),
        ],
        before=note,
        after=note,
    )
    latency = found["latency_us"] or {"p50": 0.0, "p99": 0.0}
    return Result(
        found["rate"],
        latency["p50"] / 1000,
        latency["p99"] / 1000,
        (cpu[1] - cpu[0]) / max(found["messages"], 1) * 1e6,
        found["gen_cpu_pct"],
        (written[1] - written[0]) / max(found["messages"] * size, 1),
    )


def create_topic(address: str, name: str) -> None:
    async def ask() -> None:
        client = await RemotingClient.connect(address)
        count = str(QUEUE_COUNT)
        fields = {"topic": name, "defaultTopic": "TBW102", "perm": "6", "topicSysFlag": "0"}
        fields |= {"readQueueNums": count, "writeQueueNums": count, "order": "false"}
        fields |= {"topicFilterType": "SINGLE_TAG"}
        request = RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        answer = await client.request(request, 10)
        assert answer.code == 0, answer.remark
        await client.close()

    asyncio.run(ask())


def fill(case: Case, address: str, topic: str, size: int) -> None:
    """A backlog for pulls and pops."""
    seconds = max(1.0, case.fills / 60_000)
    generator.run(
        [
            *("rsend", "-addr", address, "-topic", topic, "-queues", str(QUEUE_COUNT)),
            *("-conns", "4", "-inflight", "8", "-size", str(size), "-batch", "32"),
            *("-secs", str(seconds), "-warm", "0"),
        ],
        before=lambda: None,
        after=lambda: None,
    )


def measure(server: Server, options: argparse.Namespace, warm_s: float) -> dict[str, Result]:
    """All chosen cases against one server."""
    found: dict[str, list[Result]] = {}
    cases = [case for case in CASES if options.case in case.name]
    sends = [case for case in cases if case.command == "rsend"]
    others = [case for case in cases if case.command != "rsend"]
    for case in cases:
        create_topic(server.broker, topic_of(case))
    turns = [(case, turn, options.seconds / TURNS) for turn in range(TURNS) for case in sends]
    for case, turn, seconds in [*turns, *[(case, 0, options.seconds) for case in others]]:
        if case.fills:
            fill(case, server.address, topic_of(case), options.size)
        turn_warm_s = TURN_WARM_S if turn else warm_s
        try:
            result = run(case, server, topic_of(case), options.size, seconds, turn_warm_s)
        except generator.LoadFailed as error:
            print(f"  {case.name}: {error}", file=sys.stderr)
            continue
        found.setdefault(case.name, []).append(result)
        print(f"  {case.name}: {result.rate:,.0f}/s", file=sys.stderr)
    return {name: mean(results) for name, results in found.items()}


def topic_of(case: Case) -> str:
    return f"bench_{case.command}_{len(case.arguments)}"


def apache(options: argparse.Namespace, work: Callable[[Server], None]) -> None:
    flush = "SYNC_FLUSH" if options.flush == "sync" else "ASYNC_FLUSH"
    with (
        tempfile.TemporaryDirectory() as folder,
        ApacheCluster(Path(folder), flush=flush, extra=APACHE_EXTRA, is_measured=True) as cluster,
        contextlib.ExitStack() as fronts,
    ):
        server = Server(cluster.broker, cluster.broker, cluster.pids[-1:])
        if options.front:
            proxy = fronts.enter_context(ApacheProxy(Path(folder) / "proxy", cluster.namesrv))
            address = f"127.0.0.1:{proxy.remoting_port}"
            server = Server(address, cluster.broker, [*server.pids, proxy.pid])
        create_topic(cluster.broker, "warm")
        for code in ("1", "32"):
            arguments = ["-conns", "4", "-inflight", "64"]
            arguments += ["-size", str(options.size), "-batch", code]
            generator.run(
                [
                    *("rsend", "-addr", server.address, "-topic", "warm", *arguments),
                    *("-secs", str(options.warm / 2), "-warm", "0"),
                ],
                before=lambda: None,
                after=lambda: None,
            )
        work(server)


def ours(options: argparse.Namespace, work: Callable[[Server], None]) -> None:
    with Daemons() as daemons:
        namesrv = daemons.namesrv()
        store = daemons.store(namesrv, f"store.flush={options.flush}")
        server = Server(store.addresses["store"], store.addresses["store"], [store.process.pid])
        if options.front:
            gateway = daemons.gateway(namesrv)
            pids = [*server.pids, gateway.process.pid]
            server = Server(gateway.addresses["remoting"], server.broker, pids)
        work(server)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.remoting", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="measured, per row, all its turns"
    )
    parser.add_argument("--warm", type=float, default=30.0, help="seconds the JVM is warmed")
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body")
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    parser.add_argument("--flush", choices=("sync", "async"), default="sync")
    parser.add_argument(
        "--front", action="store_true", help="through our gateway and through Apache's proxy"
    )
    parser.add_argument("--only", choices=("ours", "apache", ""), default="")
    parser.add_argument("--json", default="", help="where the report goes")
    options = parser.parse_args()
    generator.build()
    results: dict[str, dict[str, Result]] = {}
    servers = {"apache": apache, "ours": ours}
    for name, server in servers.items():
        if options.only in ("", name):
            print(name, file=sys.stderr)

            def work(server: Server, name: str = name) -> None:
                results[name] = measure(server, options, warm_s=1.0)

            server(options, work)
    print_table(results, options)
    if options.json:
        report = {
            name: {case: row._asdict() for case, row in rows.items()}
            for name, rows in results.items()
        }
        Path(options.json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


def print_table(results: dict[str, dict[str, Result]], options: argparse.Namespace) -> None:
    disk = f"fdatasync {sync_ms():.3f} ms, a plain writer {write_mb_s():,.0f} MB/s"
    print(f"{options.flush} flush, bodies of {options.size} B; {disk}")
    print(f"{'case':26}{'server':10}{'msg/s':>10}{'x':>7}{'x single':>10}{'p50 ms':>9}{'p99 ms':>9}"
          f"{'CPU us':>8}{'gen CPU':>9}{'disk B/B':>10}")  # fmt: skip
    for case in CASES:
        for name, rows in results.items():
            if (row := rows.get(case.name)) is None:
                continue
            peer, single = results.get("apache", {}).get(case.name), rows.get(CASES[0].name)
            ratio = f"{row.rate / peer.rate:.2f}" if peer and name == "ours" else ""
            alone = f"{row.rate / single.rate:.2f}" if single and case.command == "rsend" else ""
            print(f"{case.name:26}{name:10}{row.rate:>10,.0f}{ratio:>7}{alone:>10}"
                  f"{row.p50_ms:>9.2f}{row.p99_ms:>9.2f}{row.cpu_us:>8.1f}"
                  f"{row.gen_cpu_pct:>7.0f} %{row.written:>10.2f}")  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
