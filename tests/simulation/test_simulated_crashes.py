"""Power fails at random moments; what was acknowledged is never lost, never doubled."""

import pytest

from tests.simulation.crash_script import RECYCLING, CrashScript

SEEDS = 60
STEPS = 120


@pytest.mark.parametrize("start", range(0, SEEDS, 10))
def test_acknowledged_survives_power_loss(start: int) -> None:
    """Sixty seeds, several crashes each, also while recovering."""
    crashes = 0
    for seed in range(start, start + 10):
        script = CrashScript(seed)
        script.run(STEPS)
        crashes += script.crashes
    assert crashes > 20


def test_stale_blocks_of_an_earlier_life_stay_dead() -> None:
    """Files of segments that went are used again; what they held before never comes back."""
    recycled = crashes = 0
    for seed in range(1000, 1010):
        script = CrashScript(seed, config=RECYCLING)
        script.run(4 * STEPS)
        recycled += script.recycled_count
        crashes += script.crashes
    assert recycled > 20
    assert crashes > 20


def test_the_script_finds_a_sync_that_does_nothing() -> None:
    """Without fdatasync the same script must see a promise broken."""
    broken = 0
    for seed in range(10):
        script = CrashScript(seed, syncs_nothing=True)
        try:
            script.run(STEPS)
        except Exception:  # a lost segment header may also stop the store from starting
            broken += 1
    assert broken >= 5


def test_one_seed_is_one_story() -> None:
    """The same seed ends the same way: a failure can be looked at again."""
    ends = []
    for _ in range(2):
        script = CrashScript(3)
        script.run(STEPS)
        ends.append((script.crashes, len(script.stored), len(script.consumed)))
    assert ends[0] == ends[1]
