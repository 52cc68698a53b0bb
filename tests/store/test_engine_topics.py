"""Topics come and go: what of them stays, live and after a restart."""

import pytest

from protocols.remoting.private import ReadItem
from tests.store.engine_kit import Driver, body_of
from tests.store.test_index_files import snapshot

READ_T = ReadItem(tag=0, topic="t")


def bodies(store: Driver) -> list[bytes]:
    low, _ = store.engine.offset_range("t", 0)
    return [body_of(record) for record in store.engine.read("t", 0, low, 32, 1 << 20).records]


@pytest.mark.parametrize("is_snapshot", [False, True])
def test_a_topic_that_is_made_again_is_empty(is_snapshot: bool) -> None:
    """Neither its messages nor the offsets nor what groups were owed come back."""
    store = Driver()
    store.topic()
    group = store.open("rmq/g/t", [READ_T], start="earliest")
    store.send(b"out", b"back", b"unseen")
    out, back = store.take(group, 2)
    store.ack(group, [back], action=1)  # comes again
    store.engine.catalog.commit_offsets([("g", "t", 0, 3)], store.now)
    store.engine.catalog.delete_topic("t", store.now)
    store.drain()
    assert "t" not in store.engine.catalog.topics
    if is_snapshot:
        snapshot(store)
    store.restart()
    assert store.engine.offset_range("t", 0) == (0, 0)
    assert store.engine.catalog.query_offset("g", "t", 0) == -1
    assert not store.take(group)
    assert store.ack(group, [out]) != [0]
    store.topic()
    store.send(b"new")
    assert store.engine.offset_range("t", 0) == (0, 1)
    assert bodies(store) == [b"new"]
    assert store.bodies(store.take(group)) == [b"new"]
    store.restart()
    assert bodies(store) == [b"new"]


def test_messages_that_wait_for_their_turn_end_with_their_topic() -> None:
    store = Driver()
    store.topic()
    group = store.open("rmq/g/t", [READ_T], start="earliest", is_fifo=True)
    store.send(b"1", b"2", b"3", orders=(5, 5, 5))
    assert store.bodies(store.take(group)) == [b"1"]
    store.engine.catalog.delete_topic("t", store.now)
    store.drain()
    store.topic()
    store.send(b"4", orders=(5,))
    assert store.bodies(store.take(group)) == [b"4"]
    store.drain()
    store.restart()
    assert store.engine.ready_count(group) == 0
