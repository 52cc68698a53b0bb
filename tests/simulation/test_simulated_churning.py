"""Queues, subscriptions and leases that come and go over crashes; more seeds were run by hand."""

from tests.simulation.churning_script import ChurningScript

STEPS = 300
SEEDS = range(12)


def test_what_comes_and_goes_survives_crashes() -> None:
    crashes = ended = epochs = received = 0
    for seed in SEEDS:
        script = ChurningScript(seed)
        try:
            script.run(STEPS)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
        crashes += script.crashes
        ended += script.ended
        epochs += script.last_epoch > 0
        received += len(script.session.acked)
    assert crashes > 20
    assert ended > 20
    assert epochs > 6
    assert received > 50


def test_one_seed_is_one_story() -> None:
    """The same seed ends the same way: a failure can be looked at again."""
    ends = []
    for _ in range(2):
        script = ChurningScript(5)
        script.run(STEPS)
        ends.append((script.crashes, script.ended, sorted(script.session.acked), script.last_epoch))
    assert ends[0] == ends[1]
