"""What enters a queue after it was stored (timers, commits, direct producers) obeys its policy."""

import pytest

from protocols.errors import Code
from protocols.remoting.private import IndexItem
from tests.store.test_engine_policies import KEY, LETTERS, Store


@pytest.fixture
def store() -> Store:
    made = Store()
    made.topic()
    return made


def come_late(store: Store, *bodies: bytes, **facts: object) -> None:
    """Stored in their topic alone, then matched by a gateway."""
    items = [IndexItem(position, [KEY]) for position in store.send(*bodies, **facts)]
    found = store.engine.index(store.engine.epoch, items, store.now).value
    assert [code for _, code in found] == [Code.OK] * len(bodies)
    store.drain()
    store.enforce()


def test_the_oldest_make_room(store: Store) -> None:
    group = store.queue(max_length=2, **LETTERS)
    store.put(b"0")
    come_late(store, b"1", b"2")
    assert store.letters() == [(b"0", "maxlen")]
    store.restart()
    assert store.all_bodies(group) == [b"1", b"2"]


@pytest.mark.parametrize("overflow", ["reject", "reject-dead-letter"])
def test_a_full_queue_takes_no_more(store: Store, overflow: str) -> None:
    """There is no publisher to be told; what it does not take is handed over, if it should be."""
    group = store.queue(max_length=2, overflow=overflow, **LETTERS)
    store.put(b"0")
    come_late(store, b"1", b"2", b"3")
    wanted = [(b"2", "maxlen"), (b"3", "maxlen")] if overflow == "reject-dead-letter" else []
    assert store.letters() == wanted
    store.restart()
    assert store.letters() == wanted
    assert store.all_bodies(group) == [b"0", b"1"]
    come_late(store, b"4")
    assert store.all_bodies(group) == [b"4"]


def test_what_has_expired_meanwhile_is_handed_over(store: Store) -> None:
    """Its own time to live runs from its publish, that of the queue from when it was stored."""
    store.queue(expire_ms=60_000, **LETTERS)
    come_late(store, b"1", expires=store.now.wall_ms + 1000)
    assert store.letters() == []
    store.pass_time(2)
    assert store.letters() == [(b"1", "expired")]


def test_priorities_count(store: Store) -> None:
    group = store.queue(max_priority=5)
    come_late(store, b"low", TG_PRIORITY="1")
    come_late(store, b"high", TG_PRIORITY="4")
    assert store.all_bodies(group) == [b"high", b"low"]
