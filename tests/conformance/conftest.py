"""One ``tidegate up`` for all clauses; its limits are low where a clause is about one."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import Daemons


@pytest.fixture(scope="session")
def addresses() -> Iterator[dict[str, tuple[str, int]]]:
    with Daemons() as daemons:
        up = daemons.up(arguments=("-c", str(Path(__file__).parent / "clauses.yaml")))
        yield {name: up.address(name) for name in ("mqtt", "mqtt-ws", "bounded", "modest", "acme")}


@pytest.fixture
def server(addresses: dict[str, tuple[str, int]]) -> tuple[str, int]:
    """The plain listener."""
    return addresses["mqtt"]


@pytest.fixture
def word() -> str:
    """Of this test alone: topics and client ids begin with it."""
    return f"w{next(_numbers)}"


_numbers = itertools.count(1)
