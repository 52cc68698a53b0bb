"""
``python -m tests.bench.catchup``: what a reader that catches up costs those who send.

Serial sends of 1 KiB to one store, each durable before the next, all the time; in turns of half a
second nobody reads, another client pulls a backlog of the same store from its beginning as fast as
it can, or it pulls one of another store. The last says what the generators and the disk cost that
all of them share: the first ratio cannot be below the second.

Readers have the machine's time that others leave: elsewhere they are on another one, and what is
to be told is what the store takes from those who send.

A p99 of a second is what the host did in that second. So the turns are short, change places, and
all sends of a kind count together; the ratios of parts of the run say how far to trust it.
"""

import argparse
import json
import signal
import subprocess
import sys
import time
from typing import NamedTuple

from tests.bench import generator
from tests.bench.remoting import QUEUE_COUNT, create_topic
from tests.support.processes import Daemons

STORES = ("broker-a", "broker-b")
ALONE, OWN, OTHER = KINDS = ("alone", "beside a reader of its own", "beside one of another's")

SEND = ("-conns", "1", "-inflight", "1", "-size", "1024", "-each")
BATCHES = ("-conns", "4", "-inflight", "8", "-size", "1024", "-batch", "32")
WARM_S = 1.0
TURN_S = 0.5
SETTLE_S = 0.05
"""After the readers have changed; what is sent meanwhile counts nowhere."""

READ_S_MAX = 600
"""A reader ends by itself then."""

PARTS = 5
"""The run as so many, each with turns from all of it."""


class Turn(NamedTuple):
    """Of one kind, between two times of day."""

    kind: str
    begun_us: float
    ended_us: float


class Reader:
    """One who catches up with all queues of a topic, in its turns."""

    def __init__(self, address: str) -> None:
        queues = str(QUEUE_COUNT)
        command = ["rpull", "-addr", address, "-topic", "old", "-queues", queues, "-conns", queues]
        command += ["-warm", "0", "-secs", str(READ_S_MAX)]
        self._process = subprocess.Popen(
            ["nice", "-n", "19", str(generator.build()), *command],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._process.send_signal(signal.SIGSTOP)
        self._read_s = 0.0

    def read(self, seconds: float) -> None:
        self._process.send_signal(signal.SIGCONT)
        time.sleep(seconds)
        self._process.send_signal(signal.SIGSTOP)
        self._read_s += seconds

    def rate(self) -> float:
        """Messages a second of its turns; ends it."""
        self._process.send_signal(signal.SIGINT)
        self._process.send_signal(signal.SIGCONT)
        told, _ = self._process.communicate()
        return float(json.loads(told.splitlines()[-1])["messages"]) / self._read_s


def fill(address: str, seconds: float) -> int:
    command = ["rsend", "-addr", address, "-topic", "old", "-queues", str(QUEUE_COUNT), *BATCHES]
    found = generator.run([*command, "-secs", str(seconds), "-warm", "0"], before=_go, after=_go)
    return int(found["messages"])


def _go() -> None:
    """Before and after a run that is not accounted."""


def take_turns(readers: dict[str, Reader], count: int) -> list[Turn]:
    turns: list[Turn] = []
    for number in range(count):
        for kind in KINDS if number % 2 == 0 else reversed(KINDS):
            begun_us = (time.time() + SETTLE_S) * 1e6
            if kind in readers:
                readers[kind].read(TURN_S)
            else:
                time.sleep(TURN_S)
            turns.append(Turn(kind, begun_us, time.time() * 1e6))
    return turns


def latencies_of(turns: list[Turn], sends: list[tuple[int, int]]) -> list[list[int]]:
    """Of the sends that lie in each turn; *sends* are (ended, latency), as they ended."""
    found: list[list[int]] = [[] for _ in turns]
    number = 0
    for ended_us, latency_us in sends:
        while number < len(turns) and turns[number].ended_us < ended_us:
            number += 1
        if number == len(turns):
            break
        if ended_us - latency_us >= turns[number].begun_us:
            found[number].append(latency_us)
    return found


def quantile_ms(latencies_us: list[int], part: float) -> float:
    return sorted(latencies_us)[int(part * (len(latencies_us) - 1))] / 1000


class Taken:
    """All sends of a kind, by turn."""

    def __init__(self, kind: str, turns: list[Turn], latencies: list[list[int]]) -> None:
        found = zip(turns, latencies, strict=True)
        self._by_turn = [values for turn, values in found if turn.kind == kind]

    @property
    def all(self) -> list[int]:
        return self._of_part(0, 1)

    def p99s_ms(self) -> list[float]:
        return [quantile_ms(self._of_part(part, PARTS), 0.99) for part in range(PARTS)]

    def _of_part(self, part: int, count: int) -> list[int]:
        return [value for found in self._by_turn[part::count] for value in found]


def line(kind: str, taken: Taken, alone: Taken) -> str:
    p50_ms, p99_ms = quantile_ms(taken.all, 0.5), quantile_ms(taken.all, 0.99)
    text = f"{kind:28}{len(taken.all):>8,} sends  p50 {p50_ms:.2f} ms  p99 {p99_ms:.2f} ms"
    if taken is alone:
        return text
    ratios = sorted([one / two for one, two in zip(taken.p99s_ms(), alone.p99s_ms(), strict=True)])
    ratio = p99_ms / quantile_ms(alone.all, 0.99)
    return f"{text} (x {ratio:.2f}; parts {ratios[0]:.2f} to {ratios[-1]:.2f})"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.catchup", description=__doc__)
    parser.add_argument("--turns", type=int, default=30, help="of half a second, of each kind")
    parser.add_argument("--backlog", type=float, default=4.0, help="seconds of sends before it")
    options = parser.parse_args()
    generator.build()
    with Daemons() as daemons:
        namesrv = daemons.namesrv()
        addresses = [daemons.store(namesrv, name=name).addresses["store"] for name in STORES]
        for address in addresses:
            for topic in ("old", "new"):
                create_topic(address, topic)
            print(f"backlog of {fill(address, options.backlog):,} messages of 1 KiB", flush=True)
        measure(addresses, max(options.turns, PARTS))
    return 0


def measure(addresses: list[str], count: int) -> None:
    """Sends, and who reads meanwhile; then what became of it."""
    seconds = count * len(KINDS) * (TURN_S + SETTLE_S)
    readers = {kind: Reader(at) for kind, at in zip((OWN, OTHER), addresses, strict=True)}
    turns: list[Turn] = []
    command = ["rsend", "-addr", addresses[0], "-topic", "new", "-queues", str(QUEUE_COUNT), *SEND]
    found = generator.run(
        [*command, "-warm", str(WARM_S), "-secs", str(seconds)],
        before=lambda: turns.extend(take_turns(readers, count)),
        after=_go,
    )
    latencies = latencies_of(turns, found["each_us"])
    takens = {kind: Taken(kind, turns, latencies) for kind in KINDS}
    for kind, taken in takens.items():
        read = f", it {readers[kind].rate():,.0f}/s" if kind in readers else ""
        print(line(kind, taken, takens[ALONE]) + read)


if __name__ == "__main__":
    sys.exit(main())
