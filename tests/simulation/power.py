"""Power that fails at random moments, and what a store's background thread does in between."""

import random
from collections.abc import Callable, Sequence

from protocols.clock import Now
from store.engine import Engine
from tests.simulation.checks import Broken
from tests.simulation.simulated_disk import PowerLost, SimulatedDisk

ATTEMPTS_MAX = 20


def arm(disk: SimulatedDisk, chance: random.Random, probability: float) -> None:
    """At times: the power will fail in a few disk operations."""
    if disk.countdown < 0 and chance.random() < probability:
        disk.countdown = chance.randrange(8)


def fail_and_recover(
    disk: SimulatedDisk,
    chance: random.Random,
    ways: Sequence[str],
    *,
    start: Callable[[], None],
    settle: Callable[[], None],
) -> None:
    """The power has failed in one of *ways*; it may fail again while the store recovers."""
    disk.lose_power(chance.choice(ways))
    for _ in range(ATTEMPTS_MAX):
        try:
            if chance.random() < 0.2:
                disk.countdown = chance.randrange(6)
            start()
            disk.countdown = -1
            settle()
            return
        except PowerLost:
            disk.lose_power("torn")
    raise Broken("never came up")


# ── the background thread ───────────────────────────────────────────────────────────────


def write_snapshot(engine: Engine, disk: SimulatedDisk, now: Now) -> None:
    work = engine.background.snapshot_due(now)
    if work is not None:
        work.execute(disk)
        engine.background.snapshot_written(work)


def drop_files(engine: Engine, disk: SimulatedDisk) -> None:
    upkeep = engine.background.upkeep_due()
    if upkeep is not None:
        upkeep.execute(disk)
        engine.background.upkeep_done(upkeep)


def prepare_segment(engine: Engine, disk: SimulatedDisk) -> None:
    wanted = engine.background.segment_wanted()
    if wanted is not None:
        while not wanted.execute(disk):
            pass
        engine.background.segment_prepared(wanted)
