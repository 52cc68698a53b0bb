"""
Crash points by the thousand: ``python -m tests.simulation.soak --help``.

Runs the script seed by seed, a process per core, and prints one line per failure with what it
takes to see it again: the seed, and the number of the disk operation. Ends when the wanted number
of crash points is reached, or the time is up.
"""

import argparse
import logging
import multiprocessing
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

from tests.simulation.mutations import MUTATIONS, mutated
from tests.simulation.script import Script

STEPS = 120
SEEDS_AT_ONCE = 8


class Outcome(NamedTuple):
    """One seed."""

    seed: int
    crash_points: int
    crashes: int
    operations: int
    trace: int
    error: str = ""


class Order(NamedTuple):
    """What a process is asked to do."""

    seed: int
    steps: int
    mutation: str = ""


def run_seed(order: Order) -> Outcome:
    """The whole script of one seed; a broken promise is an outcome, not an exception."""
    script: Script | None = None
    error = ""
    with mutated(order.mutation):
        try:
            script = Script(order.seed)
            script.run(order.steps)
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
    if script is None:
        return Outcome(order.seed, 0, 0, 0, 0, error)
    figures = script.figures
    return Outcome(
        order.seed,
        figures.crash_points,
        figures.crashes,
        figures.operations,
        figures.trace,
        error,
    )


def outcomes(first: int, steps: int, processes: int, mutation: str = "") -> Iterator[Outcome]:
    """Seeds from *first* on, without end: stop when there are enough."""
    orders = (Order(seed, steps, mutation) for seed in range(first, 1 << 31))
    if processes == 1:
        yield from map(run_seed, orders)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool:
        while True:
            chunk = [next(orders) for _ in range(SEEDS_AT_ONCE * processes)]
            yield from pool.imap_unordered(run_seed, chunk)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.soak")
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of the script per seed")
    parser.add_argument("--crash-points", type=int, default=10_000, help="stop after so many")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so long")
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--mutation", choices=["", *MUTATIONS], default="", help="break the store")
    parser.add_argument("--failures", type=int, default=10, help="stop after so many")
    chosen = parser.parse_args()
    logging.disable(logging.CRITICAL)  # a thousand torn tails are no news here
    started = time.monotonic()
    crash_points = crashes = seeds = failures = 0
    for one in outcomes(chosen.seed, chosen.steps, chosen.processes, chosen.mutation):
        seeds += 1
        crash_points += one.crash_points
        crashes += one.crashes
        if one.error:
            failures += 1
            print(f"FAILED --seed {one.seed} --steps {chosen.steps}: {one.error[:600]}", flush=True)
        is_late = time.monotonic() - started > chosen.seconds
        if crash_points >= chosen.crash_points or failures >= chosen.failures or is_late:
            break
    seconds = time.monotonic() - started
    print(
        f"{crash_points} crash points, {crashes} of them lived on, {seeds} seeds from "
        f"{chosen.seed}, {failures} failures, {seconds:.1f} s"
    )
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
