"""The wheel gives timers back in order of time, whatever their distance."""

import random

from store.timers.wheel import HOUR_MS, Wheel, load_timers

START = 1_700_000_000_000


def drain(wheel: Wheel, wall_ms: int) -> list[tuple[int, int, int]]:
    wheel.advance(wall_ms)
    found = []
    while (timer := wheel.pop_due(wall_ms)) is not None:
        found.append(timer)
    return found


def test_timers_come_in_order_at_their_time() -> None:
    """From a millisecond to years ahead, none early, none late, however the clock steps."""
    rng = random.Random(1)
    wheel = Wheel()
    dues = [START + int(10 ** rng.uniform(0, 10.5)) for _ in range(3000)]
    for position, due in enumerate(dues):
        wheel.add(due, position, due)
    now = START
    found: list[tuple[int, int, int]] = []
    while wheel:
        following = wheel.next_ms(now)
        assert following is not None
        now = max(following, now + 1)
        due = drain(wheel, now)
        assert all(one[0] <= now for one in due)
        found += due
    assert [one[0] for one in found] == sorted(dues)


def test_a_step_of_the_clock_lets_everything_due_out() -> None:
    wheel = Wheel()
    for position in range(10_000):
        wheel.add(START + position * 1000, position, position)
    assert len(drain(wheel, START + 5_000_000)) == 5001
    wheel.add(START, 7, 7)  # the clock went back and somebody set a timer in what was the past
    assert drain(wheel, START - HOUR_MS) == []
    assert drain(wheel, START + 1) == [(START, 7, 7)]
    assert len(drain(wheel, START + HOUR_MS * 24)) == 4999


def test_a_timer_is_taken_back_by_time_and_name() -> None:
    """Wherever it lies: far, near or due; a name that is shared is told apart by position."""
    wheel = Wheel()
    places = {1: START + 30 * HOUR_MS, 2: START + 2000, 3: START - 5}
    wheel.add(START + 500, 4, 9)
    wheel.advance(START)
    for position, due in places.items():
        wheel.add(due, position, 9)
    for position, due in places.items():
        assert wheel.remove(due, 9, lambda at, wanted=position: at == wanted) == position  # type: ignore[misc]
        assert wheel.remove(due, 9, lambda at: True) == -1
    assert len(wheel) == 1


def test_what_was_dumped_is_loaded() -> None:
    wheel, again = Wheel(), Wheel()
    for position in range(100):
        wheel.add(START + position * 700_000, position, position)
    wheel.advance(START + 3_000_000)
    for timer in load_timers(wheel.dump()):
        again.add(*timer)
    late = START + 100 * HOUR_MS
    assert drain(again, late) == drain(wheel, late)
    assert len(again) == 0


def test_far_timers_cost_numbers_not_objects() -> None:
    """100,000 timers of the next year: some 24 bytes each."""
    wheel = Wheel()
    for position in range(100_000):
        wheel.add(START + HOUR_MS + position * 315_000, position, position)
    assert len(wheel._due) == 0
    assert len(wheel._hours) < 9000
    assert sum(len(bucket) for bucket in wheel._hours.values()) == 100_000
