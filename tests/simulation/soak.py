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
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from tests.simulation.bulk_script import BulkScript
from tests.simulation.churning_script import ChurningScript
from tests.simulation.compacted_script import CompactedScript
from tests.simulation.held_script import PRESSED, HeldScript
from tests.simulation.moving_script import MovingScript
from tests.simulation.mutations import MUTATIONS, mutated
from tests.simulation.policy_script import PolicyScript
from tests.simulation.script import Script

SEEDS_AT_ONCE = 8


class Runs(Protocol):
    """A script of one seed."""

    def run(self, steps: int) -> None: ...


SCRIPTS: dict[str, tuple[Callable[[int, float], Runs], int]] = {
    "script": (lambda seed, tries: Script(seed), 120),
    "bulk": (lambda seed, tries: BulkScript(seed), 80),
    "policies": (lambda seed, tries: PolicyScript(seed, tries=tries), 150),
    "held": (lambda seed, tries: HeldScript(seed, tries=tries), 150),
    "pressed": (lambda seed, tries: HeldScript(seed, PRESSED, tries=tries), 150),
    "moving": (lambda seed, tries: MovingScript(seed, tries=tries), 400),
    "churning": (lambda seed, tries: ChurningScript(seed, tries=tries), 300),
    "compacted": (lambda seed, tries: CompactedScript(seed, tries=tries), 200),
}
"""Name → what makes it, and steps per seed. The first two crash before every operation, the others
where they may, and a twin of theirs at that part of all operations."""


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
    script: str = "script"
    tries: float = 0.0


def run_seed(order: Order) -> Outcome:
    """The whole script of one seed; a broken promise is an outcome, not an exception."""
    script: Runs | None = None
    error = ""
    make, steps = SCRIPTS[order.script]
    with mutated(order.mutation):
        try:
            script = make(order.seed, order.tries)
            script.run(order.steps or steps)
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
    if not isinstance(script, Script):
        crashes, tried = getattr(script, "crashes", 0), getattr(script, "tried", 0)
        return Outcome(order.seed, crashes + tried, crashes, 0, 0, error)
    figures = script.figures
    return Outcome(
        order.seed,
        figures.crash_points,
        figures.crashes,
        figures.operations,
        figures.trace,
        error,
    )


def outcomes(
    first: int,
    steps: int,
    processes: int,
    mutation: str = "",
    script: str = "script",
    tries: float = 0.0,
) -> Iterator[Outcome]:
    """Seeds from *first* on, without end: stop when there are enough."""
    orders = (Order(seed, steps, mutation, script, tries) for seed in range(first, 1 << 31))
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
    parser.add_argument("--script", choices=[*SCRIPTS], default="script")
    parser.add_argument("--steps", type=int, default=0, help="per seed; 0: as the script wants")
    parser.add_argument("--tries", type=float, default=0.0, help="part of operations, for the rest")
    parser.add_argument("--crash-points", type=int, default=10_000, help="stop after so many")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so long")
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--mutation", choices=["", *MUTATIONS], default="", help="break the store")
    parser.add_argument("--failures", type=int, default=10, help="stop after so many")
    chosen = parser.parse_args()
    logging.disable(logging.CRITICAL)  # a thousand torn tails are no news here
    started = time.monotonic()
    crash_points = crashes = seeds = failures = 0
    asked = (chosen.seed, chosen.steps, chosen.processes, chosen.mutation, chosen.script)
    orders = outcomes(*asked, chosen.tries)
    for one in orders:
        seeds += 1
        crash_points += one.crash_points
        crashes += one.crashes
        if one.error:
            failures += 1
            again = f"--script {chosen.script} --seed {one.seed} --steps {chosen.steps}"
            again += f" --tries {chosen.tries}" if chosen.tries else ""
            print(f"FAILED {again}: {one.error[:600]}", flush=True)
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
