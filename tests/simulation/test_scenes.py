"""Each fault by name; and that each safety measure is what keeps its promise."""

import pytest

from tests.simulation.mutations import MUTATIONS, mutated
from tests.simulation.scenes import SCENES
from tests.simulation.soak import Order, run_seed

SHOWN = [(name, cause) for name, scene in SCENES.items() for cause in scene.caught_by]
BY_CHANCE = [name for name in MUTATIONS if name not in {cause for _, cause in SHOWN}]
SEEDS = range(1, 40, 4)
"""Those of stores with little room."""


@pytest.mark.parametrize("name", SCENES)
def test_a_scene(name: str) -> None:
    SCENES[name].run()


@pytest.mark.parametrize(("name", "mutation"), SHOWN)
def test_a_scene_shows_what_a_measure_is_for(name: str, mutation: str) -> None:
    """Without the measure the promise is broken."""
    with mutated(mutation), pytest.raises(Exception):  # noqa: B017, PT011 # however it shows
        SCENES[name].run()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutation", BY_CHANCE)
def test_chance_finds_what_a_measure_is_for(mutation: str) -> None:
    """Of the rest, the first few crash points of some seed tell."""
    outcomes = (run_seed(Order(seed, 120, mutation)) for seed in SEEDS)
    assert any(outcome.error for outcome in outcomes)
