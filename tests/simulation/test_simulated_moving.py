"""Relocation under power failures; many more seeds were run by hand."""

import random

from tests.simulation.moving_script import MovingScript

STEPS = 400


def test_relocated_messages_survive_crashes() -> None:
    """Seeds of each run are new; a failure names its own."""
    relocated = crashes = 0
    start = random.SystemRandom().randrange(1 << 24)
    for seed in range(start, start + 8):
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
