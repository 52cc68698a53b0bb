"""A crash at every disk operation; what was acknowledged is never lost, never doubled."""

import os
import subprocess
import sys

import pytest

from tests.simulation.soak import Order, run_seed

CRASH_POINTS = 10_000
BULK_POINTS = 200
"""Of frames of hundreds; each look at the store takes longer."""


def first_seed() -> int:
    """The same in each run; ``TIDEGATE_SEED`` asks for others."""
    return int(os.environ.get("TIDEGATE_SEED", "") or 1)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("script", "count"), [("script", CRASH_POINTS), ("bulk", BULK_POINTS)])
def test_ten_thousand_crash_points(script: str, count: int) -> None:
    """On all cores, in far less than a minute; the line says how long, and which seeds."""
    seed = first_seed()
    arguments = ["--script", script, "--seed", str(seed), "--crash-points", str(count)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation.soak", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, f"TIDEGATE_SEED={seed}\n{done.stdout}{done.stderr}"
    assert int(done.stdout.split()[0]) >= count


def test_one_seed_is_one_story() -> None:
    """The same seed is the same run, operation by operation: a failure can be looked at again."""
    seed = first_seed() % 1000
    stories = [run_seed(Order(seed, 100)) for _ in range(2)]
    assert stories[0] == stories[1]
    assert stories[0].crash_points > 50
