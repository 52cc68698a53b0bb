"""
Micro-bench of matching alone: what an address costs that was not asked for before, by the number of
filters that there are.

Run: ``python -m tests.bench.bench_matching``. Each of the filters is another one; every address is
asked for once, in random order, by way of the gateway's table, and is wanted by one queue. The
best of some turns counts.
"""

import argparse
import random
import time
from collections.abc import Callable

from gateway.matching import MatchingTable, encode_row, row_key
from protocols.canonical import QueueKind, QueueRef
from protocols.directory import Record, Subscription

COUNTS = (1_000, 100_000)
ASKED = 1_000
TURNS = 20

FORMS: dict[str, Callable[[int], tuple[str, str]]] = {
    "exact": lambda n: (f"plant/{n}/t", f"plant/{n}/t"),
    "one level": lambda n: (f"plant/{n}/+", f"plant/{n}/t"),
    "the rest": lambda n: (f"plant/{n}/#", f"plant/{n}/a/t"),
    "first level": lambda n: (f"+/{n}/t", f"plant/{n}/t"),
}
"""How filters look → (filter, address) number *n*."""


def record_of(subject_filter: str, number: int) -> Record:
    queue = QueueRef(QueueKind.FILTER, subject_filter)
    row = Subscription(subject_filter, queue, owner=f"session {number % 100}")
    return Record(row_key(row, ""), encode_row(row, ""), number + 1)


def table_of(form: Callable[[int], tuple[str, str]], count: int) -> MatchingTable:
    table = MatchingTable()
    for number in range(count):
        table.apply([record_of(form(number)[0], number)])
    return table


def nanoseconds(form: Callable[[int], tuple[str, str]], count: int) -> float:
    """Of a match."""
    table, rng, best = table_of(form, count), random.Random(1), 1e9
    numbers = rng.sample(range(count), min(count, ASKED * TURNS))
    for turn in range(TURNS):
        part = numbers[turn * ASKED % len(numbers) :][:ASKED]
        subjects = [form(number)[1] for number in part]
        table.apply([record_of(f"another/{turn}/#", count + turn)])  # forgets what was asked
        began = time.perf_counter_ns()
        for subject in subjects:
            table.match("", subject)
        best = min(best, (time.perf_counter_ns() - began) / len(subjects))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.bench_matching", description=__doc__
    )
    parser.parse_args()
    print(f"{'filters':12}" + "".join(f"{count:>12,}" for count in COUNTS) + "   ns a match")
    for name, form in FORMS.items():
        print(f"{name:12}" + "".join(f"{nanoseconds(form, count):12.0f}" for count in COUNTS))


if __name__ == "__main__":
    main()
