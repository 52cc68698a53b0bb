"""Garbage is looked for in pauses."""

import asyncio
import gc
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from protocols.daemon.garbage import BUSY_PART, YOUNG_MIN, Collector, is_worth_it


class Idle:
    """An event loop that has nothing to do; ``pass_time`` calls what is due."""

    def __init__(self) -> None:
        self.now = 100.0
        self.due: list[Callable[[], None]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> "Idle":
        self.due.append(callback)
        return self

    def cancel(self) -> None:
        self.due.clear()

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        due, self.due = self.due, []
        for callback in due:
            callback()


class Knot:
    """Dies in a collection only."""

    count = 0

    def __init__(self) -> None:
        self.itself = self
        Knot.count += 1

    def __del__(self) -> None:
        Knot.count -= 1


@pytest.fixture(autouse=True)
def by_hand() -> Iterator[None]:
    """Nothing is collected but by us."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.collect()


def collector(loop: Idle) -> Collector:
    return Collector(cast(asyncio.AbstractEventLoop, loop))


def tie(count: int) -> None:
    for _ in range(count):
        Knot()


def test_a_pause_is_used() -> None:
    loop = Idle()
    collector(loop)
    tie(YOUNG_MIN)
    loop.pass_time(1000.0)
    assert Knot.count < YOUNG_MIN // 100


def test_few_new_objects_are_left_alone() -> None:
    loop = Idle()
    collector(loop)
    tie(100)
    loop.pass_time(1000.0)
    assert Knot.count == 100


def test_what_outlived_a_look_is_looked_at_again() -> None:
    loop = Idle()
    collector(loop)
    kept: list[Any] = [Knot() for _ in range(YOUNG_MIN)]
    loop.pass_time(1000.0)
    del kept
    assert Knot.count == YOUNG_MIN
    for _ in range(12):
        tie(YOUNG_MIN)
        loop.pass_time(1000.0)
    assert Knot.count < YOUNG_MIN // 100


def test_who_is_busy_is_not_held_up() -> None:
    assert is_worth_it(YOUNG_MIN, 0.0)
    assert not is_worth_it(YOUNG_MIN, BUSY_PART)
    assert not is_worth_it(YOUNG_MIN - 1, 0.0)


def test_it_ends() -> None:
    loop = Idle()
    collector(loop).close()
    assert not loop.due
