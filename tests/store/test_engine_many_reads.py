"""Groups that read many queues: which tags stand beside a delivery, and what is looked through."""

import pytest

from protocols.remoting.private import ReadItem
from protocols.remoting.settling import AckAction
from store.answers import Granted
from store.groups.group import Group
from tests.store.engine_kit import Driver, filter_key

COUNT = 300
KEYS = [filter_key(f"f/{number}") for number in range(COUNT)]
READS = [ReadItem(tag=number, key=key) for number, key in enumerate(KEYS)]


@pytest.fixture
def store() -> Driver:
    driver = Driver()
    driver.topic("t")
    return driver


def group_of(store: Driver, number: int) -> Group:
    group = store.engine._parts.groups.get(number)
    assert group is not None
    return group


def tags_of(granted: list[Granted]) -> list[tuple[int, ...]]:
    return [one.tags for one in granted]


def test_a_delivery_names_all_reads_that_hold_its_entry(store: Driver) -> None:
    group = store.open("g", READS)
    for numbers in [(7,), (250, 3), (3,), (299, 0, 8)]:
        store.send(b"x", keys=[KEYS[number] for number in numbers])
    assert tags_of(store.take(group)) == [(7,), (3, 250), (3,), (0, 8, 299)]


@pytest.mark.parametrize("restarts", [False, True])
def test_one_that_came_back_names_them_again(store: Driver, restarts: bool) -> None:
    group = store.open("g", READS)
    for numbers in [(7,), (250, 3), (9,)]:
        store.send(b"x", keys=[KEYS[number] for number in numbers])
    granted = store.take(group)
    store.ack(group, granted[:1])
    store.ack(group, granted[1:], AckAction.CHANGE)
    if restarts:
        store.restart()
    store.send(b"x", keys=[KEYS[11], KEYS[250]])
    assert tags_of(store.take(group)) == [(3, 250), (9,), (11, 250)]


def test_a_read_that_gets_another_tag_shows_it_also_on_what_came_back(store: Driver) -> None:
    group = store.open("g", READS[:3])
    store.send(b"x", keys=[KEYS[0], KEYS[2]])
    store.ack(group, store.take(group), AckAction.CHANGE)
    store.open("g", [*READS[:2], ReadItem(tag=77, key=KEYS[2])])
    assert tags_of(store.take(group)) == [(0, 77)]


def test_a_take_leaves_only_reads_that_have_more_to_look_through(store: Driver) -> None:
    """What the next take costs does not depend on how many queues the group reads."""
    number = store.open("g", READS)
    assert store.take(number) == []
    group = group_of(store, number)
    assert not group.ready
    store.send(b"1", b"2", keys=[KEYS[5]])
    store.send(b"3", keys=[KEYS[6], KEYS[5]])
    assert [read.tag for read in group.ready] == [5, 6]
    assert store.bodies(store.take(number, 2)) == [b"1", b"2"]
    assert [read.tag for read in group.ready] == [5, 6]
    assert store.bodies(store.take(number, 9)) == [b"3"]
    assert not group.ready


def test_what_is_done_is_not_remembered(store: Driver) -> None:
    number = store.open("g", READS)
    store.send(b"1", b"2", keys=[KEYS[5]])
    granted = store.take(number)
    assert group_of(store, number).tags.keys() == {one.position for one in granted}
    store.ack(number, granted)
    assert not group_of(store, number).tags
