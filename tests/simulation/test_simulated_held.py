"""Timers and transactions over power cuts: each once, in time, and only if it should."""

import pytest

from tests.simulation.held_script import PRESSED, HeldScript

STEPS = 150


@pytest.mark.parametrize("start", range(0, 30, 10))
def test_held_messages_survive_power_loss(start: int) -> None:
    """Thirty seeds, several crashes each, also while recovering."""
    crashes = 0
    for seed in range(start, start + 10):
        script = HeldScript(seed)
        script.run(STEPS)
        crashes += script.crashes
    assert crashes > 20


def test_held_messages_survive_where_segments_go_at_once() -> None:
    """Files are used again around what is held."""
    for seed in range(100, 110):
        HeldScript(seed, PRESSED).run(STEPS)


def test_held_messages_survive_a_crash_at_one_of_many_operations() -> None:
    for seed in (200, 201):
        script = HeldScript(seed, tries=0.05)
        script.run(STEPS)
        assert script.tried


def test_the_script_reaches_what_it_promises() -> None:
    """Recalls, commits, rollbacks and questions do happen."""
    recalled = committed = rolled_back = asked = 0
    for seed in range(10):
        script = HeldScript(seed)
        script.run(STEPS)
        recalled += len(script.recalled)
        ends = [half for half in script.halves.values() if half.is_answered]
        committed += sum(bool(half.is_commit) for half in ends)
        rolled_back += sum(not half.is_commit for half in ends)
        asked += len(script.checked)
    assert min(recalled, committed, rolled_back, asked) >= 5
