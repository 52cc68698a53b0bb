"""
``python -m tests.bench.catchup``: what a reader that catches up costs those who send.

Serial sends of 1 KiB to one store, each durable before the next: alone, while another client pulls
a backlog of the same store from its beginning as fast as it can, and while it pulls one of another
store. The last says what the generators and the disk cost that all of them share: the first ratio
cannot be below the second.
"""

import argparse
import json
import subprocess
import sys
from typing import Any

from tests.bench import generator
from tests.bench.remoting import QUEUE_COUNT, create_topic
from tests.support.processes import Daemons

STORES = ("broker-a", "broker-b")
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
        f"{name:32}{found['rate']:>9,.0f} sends/s  p50 {latency['p50'] / 1000:.2f} ms  "
        f"p99 {latency['p99'] / 1000:.2f} ms"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.catchup", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="measured, each")
    options = parser.parse_args()
    generator.build()
    with Daemons() as daemons:
        namesrv = daemons.namesrv()
        addresses = [daemons.store(namesrv, name=name).addresses["store"] for name in STORES]
        for address in addresses:
            for topic in ("old", "new"):
                create_topic(address, topic)
            print(f"backlog of {fill(address, options.seconds):,} messages of 1 KiB")
        alone = sends(addresses[0], options.seconds)
        print(line("alone", alone))
        for name, address in zip(("its own", "another's"), addresses, strict=True):
            pull = [str(generator.build()), "rpull", "-addr", address, "-topic", "old"]
            pull += ["-conns", "1", "-queues", str(QUEUE_COUNT), "-warm", "0"]
            pull += ["-secs", str(options.seconds + 2)]
            reader = subprocess.Popen(pull, stdout=subprocess.PIPE, text=True)
            beside = sends(addresses[0], options.seconds)
            told, _ = reader.communicate()
            rate = json.loads(told.splitlines()[-1])["rate"]
            ratio = beside["latency_us"]["p99"] / alone["latency_us"]["p99"]
            print(f"{line(f'beside a reader of {name}', beside)} (x {ratio:.2f}), it {rate:,.0f}/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
