"""Power fails while policies drop, expire and hand over; nothing is lost, nothing comes twice."""

import pytest

from tests.simulation.policy_script import PolicyScript

STEPS = 150


@pytest.mark.parametrize("start", range(0, 40, 20))
def test_policies_survive_power_loss(start: int) -> None:
    """Forty seeds: every acknowledged message is consumed, waiting or handed over, once."""
    crashes = 0
    reasons: set[str] = set()
    for seed in range(start, start + 20):
        script = PolicyScript(seed)
        script.run(STEPS)
        crashes += script.crashes
        reasons.update(script.letters.values())
    assert crashes > 40
    assert reasons == {"expired", "maxlen", "rejected", "delivery_limit"}


def test_policies_survive_a_crash_at_one_of_many_operations() -> None:
    for seed in (200, 201, 202):
        script = PolicyScript(seed, tries=0.1)
        script.run(STEPS)
        assert script.tried


def test_one_seed_is_one_story() -> None:
    """The same seed ends the same way: a failure can be looked at again."""
    ends = []
    for _ in range(2):
        script = PolicyScript(5)
        script.run(STEPS)
        ends.append((script.crashes, sorted(script.letters.items()), len(script.consumed)))
    assert ends[0] == ends[1]
