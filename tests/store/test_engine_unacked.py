"""The short way out of a group that nobody acks: what the long way gives, or nothing at all."""

from array import array

from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.remoting.private import ReadItem
from store.groups.unacked import Stretch
from tests.store.engine_kit import Driver, filter_key

A, B = filter_key("a"), filter_key("b")
READ_A = ReadItem(tag=1, key=A, name="a")


def opened(name: str, driver: Driver) -> int:
    return driver.open(name, [READ_A], is_volatile=True, is_auto_ack=True)


def check(driver: Driver, stretch: Stretch | None, group: int, count: int) -> None:
    """*stretch* is what ``take`` of a group with the same queue gives, bytes and all."""
    assert stretch is not None
    granted = driver.take(group, count)
    assert list(stretch.positions) == [item.position for item in granted]
    records = [driver.engine.record_at(item.position) for item in granted]
    assert stretch.lengths == [len(record) for record in records]
    assert b"".join(stretch.pieces) == b"".join(records)
    assert stretch.byte_count == sum(stretch.lengths)
    for item in granted:
        assert (item.grant, item.attempt) == (0, 1)
        assert (item.flags, item.tags) == (stretch.flags, stretch.tags)


@settings(deadline=None, max_examples=40)  # a loaded machine is slow, not wrong
@given(
    steps=st.lists(
        st.tuples(st.sampled_from([A, B]), st.integers(1, 6), st.integers(0, 5)), max_size=12
    )
)
def test_both_ways_give_the_same(steps: list[tuple[bytes, int, int]]) -> None:
    """Whatever stands between the messages of a queue, and however few are taken at a time."""
    driver = Driver()
    driver.topic("t", queues=1)
    short, long = opened("short", driver), opened("long", driver)
    for key, sent, taken in steps:
        driver.send(*[b"%d" % number * number for number in range(sent)], keys=[key])
        if taken:
            stretch = driver.engine.take_unacked(short, taken, driver.now)
            check(driver, stretch, long, taken)
    check(driver, driver.engine.take_unacked(short, 100, driver.now), long, 100)
    assert driver.take(short) == []


def test_parts_are_the_whole() -> None:
    """Where some records are in the frame already, the others still find their bytes."""
    driver = Driver()
    driver.topic("t", queues=1)
    group = opened("g", driver)
    for count in (3, 1, 4):
        driver.send(*[b"%d" % number * number for number in range(count)], keys=[A])
        driver.send(b"between", keys=[B])
    whole = driver.engine.take_unacked(group, 100, driver.now)
    assert whole is not None
    assert len(whole.pieces) == 3
    for start in range(8):
        for stop in range(start + 1, 9):
            part = whole.part(start, stop)
            assert part.positions == whole.positions[start:stop]
            records = [driver.engine.record_at(position) for position in part.positions]
            assert b"".join(part.pieces) == b"".join(records)
            assert part.byte_count == len(b"".join(records))


def test_mixed_kinds_take_the_long_way_and_lose_nothing() -> None:
    """QoS 0 and 1 differ: nothing has changed when the short way says no."""
    driver = Driver()
    driver.topic("t", queues=1)
    group = opened("g", driver)
    driver.send(b"zero", keys=[A], item_flags=0)
    driver.send(b"one", keys=[A], item_flags=1)
    assert driver.engine.take_unacked(group, 10, driver.now) is None
    assert driver.bodies(driver.take(group)) == [b"zero", b"one"]


def test_groups_of_another_kind_take_the_long_way() -> None:
    driver = Driver()
    driver.topic("t", queues=1)
    acked = driver.open("acked", [READ_A], is_volatile=True)
    kept = driver.open("kept", [READ_A])
    two = driver.open(
        "two", [READ_A, ReadItem(tag=2, key=B, name="b")], is_volatile=True, is_auto_ack=True
    )
    driver.send(b"m", keys=[A])
    for group in (acked, kept, two, 12345):
        assert driver.engine.take_unacked(group, 10, driver.now) is None


def test_an_idle_group_has_nothing_to_take() -> None:
    driver = Driver()
    group = opened("g", driver)
    stretch = driver.engine.take_unacked(group, 10, driver.now)
    assert stretch is not None
    assert stretch.positions == array("Q")
