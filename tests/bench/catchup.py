"""
``python -m tests.bench.catchup``: what a reader that catches up costs those who send.

One store process. Serial sends of 1 KiB, each durable before the next, first alone, then while
another client pulls a backlog from its beginning as fast as it can. (The generators share the
cores with the store, so the difference is an upper bound.)
"""

import argparse
import subprocess
import sys
from typing import Any

from tests.bench import generator
from tests.bench.remoting import QUEUE_COUNT, create_topic
from tests.support.processes import Daemons

SEND = ("-conns", "1", "-inflight", "1", "-size", "1024")


def nothing() -> None:
    """Before and after a run that is not accounted."""


def sends(address: str, seconds: float) -> dict[str, Any]:
    command = ["rsend", "-addr", address, "-topic", "new", "-queues", str(QUEUE_COUNT), *SEND]
    arguments = [*command, "-secs", str(seconds), "-warm", "0.5"]
    return generator.run(arguments, before=nothing, after=nothing)


def fill(address: str, seconds: float) -> int:
    batches = ("-conns", "4", "-inflight", "8", "-size", "1024", "-batch", "32")
    command = ["rsend", "-addr", address, "-topic", "old", "-queues", str(QUEUE_COUNT), *batches]
    found = generator.run(
        [*command, "-secs", str(seconds), "-warm", "0"], before=nothing, after=nothing
    )
    return int(found["messages"])


def line(name: str, found: dict[str, Any]) -> str:
    latency = found["latency_us"]
    return (
        f"{name:22}{found['rate']:>9,.0f} sends/s  p50 {latency['p50'] / 1000:.2f} ms  "
        f"p99 {latency['p99'] / 1000:.2f} ms"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.catchup", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="measured, each")
    options = parser.parse_args()
    generator.build()
    with Daemons() as daemons:
        address = daemons.store(daemons.namesrv()).addresses["store"]
        for topic in ("old", "new"):
            create_topic(address, topic)
        print(f"backlog of {fill(address, options.seconds):,} messages of 1 KiB")
        alone = sends(address, options.seconds)
        print(line("alone", alone))
        pull = [str(generator.build()), "rpull", "-addr", address, "-topic", "old", "-conns", "1"]
        pull += ["-queues", str(QUEUE_COUNT), "-secs", str(options.seconds + 2), "-warm", "0"]
        reader = subprocess.Popen(pull, stdout=subprocess.PIPE, text=True)
        beside = sends(address, options.seconds)
        told, _ = reader.communicate()
        print(line("beside a catch-up read", beside))
        print(f"the reader: {told.strip()[:200]}")
        ratio = beside["latency_us"]["p99"] / alone["latency_us"]["p99"]
        print(f"p99 x {ratio:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
