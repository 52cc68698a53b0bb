"""Many records at once: the same bytes as one by one, wherever they lie."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.store.engine_kit import Driver


@pytest.fixture(scope="module")
def stored() -> tuple[Driver, list[int]]:
    """Blocks of small and large frames; the older ones are on disk only after a restart."""
    driver = Driver()
    driver.topic("t", queues=1)
    positions: list[int] = []
    for count in (1, 3, 1, 200, 2):
        positions += driver.send(*[b"%d" % number * (number % 7) for number in range(count)])
    driver.restart()
    for count in (2, 150, 1, 40):
        positions += driver.send(*[b"x" * (number % 5) for number in range(count)])
    return driver, positions


@settings(deadline=None)  # a loaded machine is slow, not wrong
@given(chosen=st.sets(st.integers(0, 399), min_size=1, max_size=60))
def test_some_records(stored: tuple[Driver, list[int]], chosen: set[int]) -> None:
    """With gaps, over block edges, from the cache and from disk."""
    driver, positions = stored
    check(driver, [positions[number] for number in sorted(chosen)])


def test_all_records(stored: tuple[Driver, list[int]]) -> None:
    """Neighbours in the cache come as one piece."""
    driver, positions = stored
    assert len(positions) == 400
    check(driver, positions)
    _, pieces = driver.engine.records_at(positions[-40:])
    assert len(pieces) == 1


def check(driver: Driver, positions: list[int]) -> None:
    alone = [driver.engine.record_at(position) for position in positions]
    lengths, pieces = driver.engine.records_at(positions)
    assert lengths == [len(record) for record in alone]
    assert b"".join(pieces) == b"".join(alone)
