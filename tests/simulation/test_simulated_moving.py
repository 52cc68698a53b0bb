"""
Relocation under power failures; many more seeds were run by hand.

The first five each found a defect: an index file of a segment whose tail was then written anew,
segments that were given up, whose files came back with the power, and what is left of segments that
lay between the last index file and the first segment without one.
"""

from tests.simulation.moving_script import MovingScript

STEPS = 400
SEEDS = (9246818, 1000129, 1001003, 1002114, 2011307, 1, 2, 3)


def test_relocated_messages_survive_crashes() -> None:
    relocated = crashes = 0
    for seed in SEEDS:
        script = MovingScript(seed)
        try:
            script.run(STEPS)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
        relocated += script.relocated_count + script.engine.counters.relocated
        crashes += script.crashes
    assert crashes > 20
    assert relocated > 20
