"""The short way out of a group that nobody acks: what the long way gives, or nothing at all."""

from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.remoting.private import ReadItem
from store.groups.unacked import Stretch
from tests.store.engine_kit import Driver, filter_key

A, B = filter_key("a"), filter_key("b")
READ_A = ReadItem(tag=1, key=A, name="a")
READ_B = ReadItem(tag=2, key=B, name="b")


def opened(name: str, driver: Driver, *reads: ReadItem) -> int:
    return driver.open(name, list(reads), is_volatile=True, is_auto_ack=True)


def check(driver: Driver, stretches: list[Stretch] | None, group: int, count: int) -> None:
    """*stretches* are what ``take`` of a group with the same queues gives, bytes and all."""
    assert stretches is not None
    granted = driver.take(group, count)
    found = [
        (position, stretch.flags, stretch.tags)
        for stretch in stretches
        for position in stretch.positions
    ]
    assert found == [(item.position, item.flags, item.tags) for item in granted]
    assert all((item.grant, item.attempt) == (0, 1) for item in granted)
    for stretch in stretches:
        records = [driver.engine.record_at(position) for position in stretch.positions]
        assert stretch.lengths == [len(record) for record in records]
        assert b"".join(stretch.pieces) == b"".join(records)
        assert stretch.byte_count == sum(stretch.lengths)


@settings(deadline=None, max_examples=60)  # a loaded machine is slow, not wrong
@given(
    reads=st.sampled_from([(READ_A,), (READ_A, READ_B)]),
    steps=st.lists(
        st.tuples(
            st.sampled_from([[A], [B], [A, B], [B, A]]), st.integers(1, 6), st.integers(0, 5)
        ),
        max_size=12,
    ),
)
def test_both_ways_give_the_same(
    reads: tuple[ReadItem, ...], steps: list[tuple[list[bytes], int, int]]
) -> None:
    """Whatever stands between the messages of a queue, and however few are taken at a time."""
    driver = Driver()
    driver.topic("t", queues=1)
    short, long = opened("short", driver, *reads), opened("long", driver, *reads)
    for keys, sent, taken in steps:
        driver.send(*[b"%d" % number * number for number in range(sent)], keys=keys)
        if taken:
            check(driver, driver.engine.take_unacked(short, taken, driver.now), long, taken)
    check(driver, driver.engine.take_unacked(short, 100, driver.now), long, 100)
    assert driver.take(short) == []


def test_parts_are_the_whole() -> None:
    """Where some records are in the frame already, the others still find their bytes."""
    driver = Driver()
    driver.topic("t", queues=1)
    group = opened("g", driver, READ_A)
    for count in (3, 1, 4):
        driver.send(*[b"%d" % number * number for number in range(count)], keys=[A])
        driver.send(b"between", keys=[B])
    (whole,) = driver.engine.take_unacked(group, 100, driver.now) or ()
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
    one, two = opened("one", driver, READ_A), opened("two", driver, READ_A, READ_B)
    driver.send(b"zero", keys=[A], item_flags=0)
    driver.send(b"first", keys=[A], item_flags=1)
    driver.send(b"other", keys=[B], item_flags=1)
    for group, bodies in ((one, [b"zero", b"first"]), (two, [b"zero", b"first", b"other"])):
        assert driver.engine.take_unacked(group, 10, driver.now) is None
        assert driver.bodies(driver.take(group)) == bodies


def test_groups_of_another_kind_take_the_long_way() -> None:
    driver = Driver()
    driver.topic("t", queues=1)
    acked = driver.open("acked", [READ_A], is_volatile=True)
    kept = driver.open("kept", [READ_A])
    driver.send(b"m", keys=[A])
    for group in (acked, kept, 12345):
        assert driver.engine.take_unacked(group, 10, driver.now) is None


def test_an_idle_group_has_nothing_to_take() -> None:
    driver = Driver()
    group = opened("g", driver, READ_A)
    assert driver.engine.take_unacked(group, 10, driver.now) == []
