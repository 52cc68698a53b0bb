"""Power fails while values of keys are replaced and segments go; the last of each key stays."""

import pytest

from tests.simulation.compacted_script import CompactedScript

STEPS = 150


@pytest.mark.parametrize("start", [0, 6])
def test_last_values_survive_power_loss(start: int) -> None:
    """Of a third the wall clock jumps."""
    crashes = 0
    for seed in range(start, start + 6):
        script = CompactedScript(seed)
        script.run(STEPS)
        crashes += script.crashes
    assert crashes > 15


def test_a_crash_at_one_of_many_operations() -> None:
    """The script goes on as if nothing had been, so that each is a crash of the same run."""
    script = CompactedScript(1, tries=0.05)
    script.run(STEPS)
    assert script.tried >= 5
