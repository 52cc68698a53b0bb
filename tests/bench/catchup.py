"""
``python -m tests.bench.catchup``: what a reader that catches up costs those who send.

Serial sends of 1 KiB to one store, each durable before the next: alone, while another client pulls
a backlog of the same store from its beginning as fast as it can, and while it pulls one of another
store. The last says what the generators and the disk cost that all of them share: the first ratio
cannot be below the second. The three follow one another in rounds, each second round backwards, and
all sends of a kind count together: a p99 of one run is what the host did in that second. The ratios
of the rounds say how far to trust it.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections import Counter
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


ALONE, OWN, OTHER = KINDS = ("alone", "beside a reader of its own", "beside one of another's")


class Taken:
    """All sends of a kind."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        """By bucket, as the generator has them."""

        self.p99s_ms: list[float] = []
        """Of each round."""

        self.read_rates: list[float] = []

    def add(self, found: dict[str, Any]) -> None:
        self.counts.update({int(bucket): count for bucket, count in found["histogram"].items()})
        self.p99s_ms.append(found["latency_us"]["p99"] / 1000)

    def quantile_ms(self, part: float) -> float:
        rest = part * self.counts.total()
        for bucket in sorted(self.counts):
            rest -= self.counts[bucket]
            if rest <= 0:
                return float(1.01**bucket / 1e6)
        return 0.0


def measure(kind: str, addresses: list[str], seconds: float, taken: Taken) -> None:
    """One run: sends to the first store, and who reads meanwhile."""
    if kind == ALONE:
        taken.add(sends(addresses[0], seconds))
        return
    pull = ["-addr", addresses[kind == OTHER], "-topic", "old", "-queues", str(QUEUE_COUNT)]
    pull += ["-conns", "1", "-warm", "0", "-secs", str(seconds + 1)]
    reader = subprocess.Popen(
        [str(generator.build()), "rpull", *pull], stdout=subprocess.PIPE, text=True
    )
    taken.add(sends(addresses[0], seconds))
    told, _ = reader.communicate()
    taken.read_rates.append(json.loads(told.splitlines()[-1])["rate"])


def line(kind: str, taken: Taken, alone: Taken) -> str:
    p50_ms, p99_ms = taken.quantile_ms(0.5), taken.quantile_ms(0.99)
    text = f"{kind:28}{taken.counts.total():>8,} sends  p50 {p50_ms:.2f} ms  p99 {p99_ms:.2f} ms"
    if taken is alone:
        return text
    ratios = sorted([one / two for one, two in zip(taken.p99s_ms, alone.p99s_ms, strict=True)])
    ratio = p99_ms / alone.quantile_ms(0.99)
    rounds = f"rounds {ratios[0]:.2f} to {ratios[-1]:.2f}, median {statistics.median(ratios):.2f}"
    read_rate = statistics.median(taken.read_rates)
    return f"{text} (x {ratio:.2f}; {rounds}), it {read_rate:,.0f}/s"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.catchup", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="measured, each")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--backlog", type=float, default=4.0, help="seconds of sends before it")
    options = parser.parse_args()
    generator.build()
    takens = {kind: Taken() for kind in KINDS}
    with Daemons() as daemons:
        namesrv = daemons.namesrv()
        addresses = [daemons.store(namesrv, name=name).addresses["store"] for name in STORES]
        for address in addresses:
            for topic in ("old", "new"):
                create_topic(address, topic)
            print(f"backlog of {fill(address, options.backlog):,} messages of 1 KiB", flush=True)
        for number in range(options.rounds):
            for kind in KINDS if number % 2 == 0 else reversed(KINDS):
                measure(kind, addresses, options.seconds, takens[kind])
    for kind, taken in takens.items():
        print(line(kind, taken, takens[ALONE]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
