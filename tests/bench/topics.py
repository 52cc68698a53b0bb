"""
``python -m tests.bench.topics``: 20,000 topics of four queues on one store.

What registering, heartbeats, route queries and a gateway's first look cost then; and whether
sends over all of them are as fast as to one topic.
"""

import argparse
import asyncio
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from protocols.remoting.bodies import TopicList, decode_body
from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import RequestCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.discovery import DEFLATED, RouteWatch
from protocols.remoting.private import PrivateCode
from protocols.remoting.server import RemotingServer, serve_remoting
from tests.bench import generator
from tests.bench.servers import cpu_s, sync_ms
from tests.support.processes import Daemon, Daemons, wait_until

QUEUE_COUNT = 4
TOGETHER = 200
WARM_PASSES = 2
"""Messages to each queue before the turns: with its first one the store looks at the topic, with
its second one it notes where they go; from then on all are alike."""

ROUNDS = 8
"""One topic and all of them, in turn: the machine's moods hit both."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.topics", description=__doc__)
    parser.add_argument("--topics", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=1.0, help="per send run")
    parser.add_argument("--conns", type=int, default=4)
    parser.add_argument("--inflight", type=int, default=256)
    options = parser.parse_args()
    generator.build()
    with Daemons() as daemons:
        names = daemons.namesrv(f"namesrv.topics_max={options.topics + 1000}")
        recorder = Recorder()
        store = daemons.store(names, "store.limits.log_bytes_max=17179869184")
        found: dict[str, Any] = {"fdatasync_ms": round(sync_ms(), 2)}
        found["create_s"] = timed(lambda: create(store, options.topics))
        wait_until(lambda: known(names) >= options.topics, "all are registered", 60)
        found |= asyncio.run(ask_name_server(names, options.topics))
        found |= sends(store, options)
        found |= registered(daemons, store, names, recorder, options.topics)
    print(json.dumps(found, indent=1))
    return 0


def timed(work: Callable[[], object]) -> float:
    begun = time.monotonic()
    work()
    return round(time.monotonic() - begun, 3)


def create(store: Daemon, count: int) -> None:
    async def ask() -> None:
        client = await RemotingClient.connect(store.addresses["store"])
        for start in range(0, count, TOGETHER):
            names = [f"many{number}" for number in range(start, min(start + TOGETHER, count))]
            await asyncio.gather(*(client.request(creation(name), 30) for name in names))
        await client.request(creation("single"), 30)
        await client.close()

    asyncio.run(ask())


def creation(name: str) -> RemotingCommand:
    queues = str(QUEUE_COUNT)
    fields = {"topic": name, "defaultTopic": "TBW102", "perm": "6", "topicFilterType": "SINGLE_TAG"}
    fields |= {"readQueueNums": queues, "writeQueueNums": queues, "topicSysFlag": "0"}
    return RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)


def known(names: Daemon) -> int:
    async def ask() -> int:
        client = await RemotingClient.connect(names.addresses["namesrv"])
        code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        answer = await client.request(RemotingCommand(code), 30)
        await client.close()
        return len(decode_body(TopicList, answer.body).topic_list)

    return asyncio.run(ask())


async def ask_name_server(names: Daemon, count: int) -> dict[str, Any]:
    """Sizes and times of what clients and gateways ask."""
    client = await RemotingClient.connect(names.addresses["namesrv"])

    async def cost(command: Callable[[int], RemotingCommand], times: int) -> dict[str, float]:
        took: list[float] = []
        size = 0
        for number in range(times):
            begun = time.perf_counter()
            answer = await client.request(command(number), 30)
            took.append((time.perf_counter() - begun) * 1000)
            size = len(answer.body)
        return {
            "bytes": size,
            "p50_ms": round(statistics.median(took), 3),
            "max_ms": round(max(took), 3),
        }

    def route(number: int) -> RemotingCommand:
        name = f"many{number * 37 % count}"
        return RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": name})

    def topic_list(_: int) -> RemotingCommand:
        return RemotingCommand(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)

    def first_watch(_: int) -> RemotingCommand:
        body = msgspec.msgpack.encode(RouteWatch())
        return RemotingCommand(PrivateCode.ROUTE_WATCH, {}, body, is_binary=True)

    found = {
        "route_query": await cost(route, 2000),
        "topic_list": await cost(topic_list, 10),
        "gateway_first_watch": await cost(first_watch, 10),
    }
    answer = await client.request(first_watch(0), 30)
    found["gateway_first_watch"]["is_deflated"] = float(DEFLATED in answer.fields)
    await client.close()
    return found


def sends(store: Daemon, options: argparse.Namespace) -> dict[str, Any]:
    """Rates and CPU time to one topic and over all of them, in short runs in turn."""
    common = ["rsend", "-addr", store.addresses["store"], "-queues", str(QUEUE_COUNT)]
    common += ["-conns", str(options.conns), "-inflight", str(options.inflight), "-size", "256"]
    spent: list[float] = []
    sent = 0

    def note() -> None:
        spent.append(cpu_s(store.process.pid))

    def go(seconds: float, warm: float, *topics: str) -> tuple[float, float]:
        nonlocal sent
        words = [*common, *topics, "-secs", str(seconds), "-warm", str(warm)]
        result = generator.run(words, before=note, after=note)
        sent += result["messages"]
        count = result["messages"] or math.nan
        return result["rate"], (spent[-1] - spent[-2]) / count * 1e6

    def every() -> tuple[str, ...]:
        return ("-topic", "many", "-topics", str(options.topics), "-from", str(sent))

    rss = store.rss_bytes()
    while sent < WARM_PASSES * options.topics * QUEUE_COUNT:
        go(options.seconds, 0, *every())
    one: list[tuple[float, float]] = []
    many: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        one.append(go(options.seconds, 0.2, "-topic", "single"))
        many.append(go(options.seconds, 0.2, *every()))
    return {
        "rss_mib": {"before": rss >> 20, "after": store.rss_bytes() >> 20},
        "send_one_topic": best(one),
        "send_all_topics": best(many),
        "rate_ratio": round(best(many)["per_s"] / best(one)["per_s"], 3),
        "cpu_ratio": round(best(one)["cpu_us"] / best(many)["cpu_us"], 3),
        "ratios_of_neighbours": neighbours(one, many),
    }


def neighbours(one: list[tuple[float, float]], many: list[tuple[float, float]]) -> dict[str, float]:
    """Medians over the pairs of turns that followed one another."""
    pairs = list(zip(one, many, strict=True))
    return {
        "rate": round(statistics.median([b[0] / a[0] for a, b in pairs]), 3),
        "cpu": round(statistics.median([a[1] / b[1] for a, b in pairs]), 3),
    }


def best(runs: list[tuple[float, float]]) -> dict[str, float]:
    """Of several: other work on the machine only ever makes it worse."""
    rates, costs = zip(*runs, strict=True)
    return {
        "per_s": round(max(rates)),
        "cpu_us": round(min(costs), 1),
        "cpu_us_median": round(statistics.median(costs), 1),
    }


# ── what a store tells ──────────────────────────────────────────────────────────────────


class Recorder:
    """A name server that notes what it is told, by request code."""

    def __init__(self) -> None:
        self.sizes: dict[int, list[int]] = {}
        self.server: RemotingServer | None = None
        self.has_heartbeats = asyncio.Event()

    async def serve(self) -> str:
        self.server = await serve_remoting(self, "127.0.0.1:0")
        return self.server.address

    def receive(self, peer: Any, commands: Any) -> None:
        for command in commands:
            self.sizes.setdefault(command.code, []).append(len(command.body))
            fields = {"takesChanges": "true"}
            peer.send((command.answer(0, fields),))
        if len(self.sizes.get(RequestCode.BROKER_HEARTBEAT, ())) > 1:
            self.has_heartbeats.set()


def registered(
    daemons: Daemons, store: Daemon, names: Daemon, recorder: Recorder, count: int
) -> dict[str, Any]:
    """Bytes of a registration, a change and a heartbeat; how soon a restarted store is back."""

    async def listen() -> dict[int, list[int]]:
        address = await recorder.serve()
        loop = asyncio.get_running_loop()
        store.command = [
            f"store.namesrv={names.addresses['namesrv']};{address}"
            if word.startswith("store.namesrv=")
            else word
            for word in store.command
        ]
        begun = time.monotonic()
        await loop.run_in_executor(None, store.restart)
        await loop.run_in_executor(
            None, lambda: wait_until(lambda: known(names) >= count, "back", 60)
        )
        back_s[0] = time.monotonic() - begun
        client = await RemotingClient.connect(store.addresses["store"])
        await client.request(creation("one_more"), 30)
        await client.close()
        async with asyncio.timeout(30):
            await recorder.has_heartbeats.wait()
        assert recorder.server is not None
        await recorder.server.close()
        return recorder.sizes

    back_s = [0.0]
    sizes = asyncio.run(listen())
    tables = sizes[RequestCode.REGISTER_BROKER]
    return {
        "register_bytes": tables[0],
        "change_bytes": tables[-1] if len(tables) > 1 else 0,
        "heartbeat_bytes": sizes[RequestCode.BROKER_HEARTBEAT][-1],
        "restart_to_routes_s": round(back_s[0], 3),
    }


if __name__ == "__main__":
    sys.exit(main())
