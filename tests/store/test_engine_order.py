"""Order as RocketMQ groups know it: FIFO with and without message groups, priorities, attempts."""

from collections.abc import Sequence

import pytest

from protocols.errors import Code
from protocols.remoting.private import ReadItem
from protocols.remoting.settling import AckAction, AckItem
from store.answers import Granted
from tests.store.engine_kit import Driver

READ_T = ReadItem(tag=7, topic="t")


@pytest.fixture
def store() -> Driver:
    driver = Driver()
    driver.topic("t")
    return driver


def test_messages_without_a_group_keep_the_order_of_their_queue(store: Driver) -> None:
    """One that comes back is still ahead of the next; another queue goes on; so after a restart."""
    group = store.open("rmq/g/t", [READ_T], is_fifo=True, start="earliest")
    store.send(b"a1", b"a2", queue_id=0)
    store.send(b"b1", b"b2", queue_id=1)
    first = store.take(group, invisible_ms=5000)
    assert store.bodies(first) == [b"a1", b"b1"]
    assert store.take(group, invisible_ms=5000) == []
    store.ack(group, first[:1], AckAction.CHANGE)
    store.ack(group, first[1:])
    store.restart()
    again = store.take(group, invisible_ms=5000)
    assert sorted(store.bodies(again)) == [b"a1", b"b2"]
    store.ack(group, again)
    assert store.bodies(store.take(group, invisible_ms=5000)) == [b"a2"]


def test_a_stuck_message_group_blocks_only_itself(store: Driver) -> None:
    group = store.open("rmq/g/t", [READ_T], is_fifo=True)
    store.send(b"s1", b"f1", b"s2", b"f2", b"s3", orders=(7, 8, 7, 8, 7))
    stuck, free = store.take(group, invisible_ms=60_000)
    assert store.bodies([stuck, free]) == [b"s1", b"f1"]
    store.ack(group, [free])
    (next_free,) = store.take(group, invisible_ms=60_000)
    assert store.bodies([next_free]) == [b"f2"]
    store.ack(group, [next_free])
    assert store.take(group, invisible_ms=60_000) == []
    store.later(61)
    (again,) = store.take(group, invisible_ms=60_000)
    assert (store.bodies([again]), again.attempt) == ([b"s1"], 2)


def test_a_run_comes_together_and_holds_back_the_rest(store: Driver) -> None:
    """What comes back of it waits for what is before it; so after restarts."""
    group = store.open("rmq/g/t", [READ_T], is_fifo=True)
    store.send(*(b"%d" % number for number in range(6)), orders=(7,) * 6)

    def run(count: int = 32) -> Sequence[Granted]:
        store.drain()
        store.restart()
        return store.take(group, count, invisible_ms=60_000, in_runs=True)

    first = run(4)
    assert store.bodies(first) == [b"0", b"1", b"2", b"3"]
    assert run() == []
    store.ack(group, first[2:3])
    store.ack(group, first[1:2], AckAction.CHANGE)
    assert run() == []
    store.ack(group, first[:1])
    (again,) = run()
    assert (store.bodies([again]), again.attempt) == ([b"1"], 2)
    store.ack(group, [again])
    assert run() == []
    store.ack(group, first[3:], AckAction.CHANGE)
    last = run(2)
    assert store.bodies(last) == [b"3", b"4"]
    store.ack(group, last, AckAction.CHANGE)
    rest = run()
    assert store.bodies(rest) == [b"3", b"4", b"5"]
    store.ack(group, rest)
    assert store.engine.ready_count(group) == 0


def test_a_commit_ends_what_lies_below(store: Driver) -> None:
    """Of a group that pops and whose other members read by offset; so after a restart."""
    group = store.open("rmq/g/t", [READ_T], start="earliest")
    store.send(*(b"%d" % number for number in range(5)), queue_id=0)
    held = store.take(group, 2, invisible_ms=60_000)
    store.engine.catalog.commit_offsets([("g", "t", 0, 1)], store.now)
    store.drain()
    assert store.take(group, 1, invisible_ms=60_000)[0].position > held[1].position
    store.engine.catalog.commit_offsets([("g", "t", 0, 4), ("other", "t", 0, 1)], store.now)
    store.drain()
    for _ in range(2):
        assert store.engine.group_places("rmq/g/t", "t", 0) == (4, 4)
        store.restart()
    assert store.bodies(store.take(group, invisible_ms=60_000)) == [b"4"]


def test_a_group_may_become_fifo_and_cease_to_be(store: Driver) -> None:
    """Nothing is lost: what waited for its turn is free, what came back waits for its turn."""
    group = store.open("rmq/g/t", [READ_T], is_fifo=True)
    store.send(*(b"%d" % number for number in range(5)))
    (first,) = store.take(group, invisible_ms=60_000)
    assert store.open("rmq/g/t", [READ_T], is_fifo=False) == group
    rest = store.take(group, invisible_ms=60_000)
    assert store.bodies(rest) == [b"1", b"2", b"3", b"4"]
    store.ack(group, [first])
    store.ack(group, rest, AckAction.CHANGE)
    store.open("rmq/g/t", [READ_T], is_fifo=True)
    for number in range(1, 5):
        (one,) = store.take(group, invisible_ms=60_000)
        assert store.bodies([one]) == [b"%d" % number]
        store.ack(group, [one])
        store.restart()
    assert store.take(group) == []


def test_higher_queues_of_a_priority_topic_come_first(store: Driver) -> None:
    """Within a queue in order; what is left behind is neither lost nor forgotten."""
    group = store.open("rmq/g/t", [READ_T], is_priority=True)
    for queue_id in (0, 3, 1, 0, 3):
        store.send(b"p%d" % queue_id, queue_id=queue_id)
    high = store.take(group, 3, invisible_ms=5000)
    assert store.bodies(high) == [b"p3", b"p3", b"p1"]
    store.ack(group, high)
    store.restart()
    store.send(b"late", queue_id=2)
    rest = store.take(group, invisible_ms=5000)
    assert store.bodies(rest) == [b"late", b"p0", b"p0"]
    assert store.ack(group, rest) == [Code.OK] * 3
    assert store.engine.ready_count(group) == 0


def test_the_same_attempt_gets_the_same_messages(store: Driver) -> None:
    """Its answer was lost: again, as the same attempt of each; the older handles are void."""
    group = store.open("rmq/g/t", [READ_T], is_fifo=True)
    store.send(b"a1", b"a2", b"b1", orders=(1, 1, 2))
    first = store.take(group, invisible_ms=60_000, attempt_id="x")
    assert store.bodies(first) == [b"a1", b"b1"]
    assert store.take(group, invisible_ms=60_000, attempt_id="y") == []
    again = store.take(group, invisible_ms=60_000, attempt_id="x")
    assert store.bodies(again) == [b"a1", b"b1"]
    assert [one.attempt for one in again] == [1, 1]
    assert store.ack(group, first) == [Code.INVALID_RECEIPT_HANDLE] * 2
    assert store.ack(group, again[1:]) == [Code.OK]
    (left,) = store.take(group, invisible_ms=60_000, attempt_id="x")
    assert store.bodies([left]) == [b"a1"]
    store.ack(group, [left])
    assert store.bodies(store.take(group, invisible_ms=60_000, attempt_id="x")) == [b"a2"]


def test_a_client_asks_for_what_it_holds(store: Driver) -> None:
    """By its name, at whichever gateway, before and after a restart; no further attempt of any."""
    group = store.open("rmq/g/t", [READ_T])
    store.send(b"1", b"2", b"3", b"back", b"of c2")
    first = store.take(group, 4, invisible_ms=60_000, taker="c1")
    store.take(group, 1, invisible_ms=60_000, taker="c2")
    store.ack(group, first[:1])
    store.ack(group, first[1:2], AckAction.RENEW, 90_000)
    store.ack(group, first[3:], AckAction.CHANGE, 90_000)  # it wants that one later, as any other
    store.drain()

    def adopt(above: int = -1) -> list[Granted]:
        found = store.engine.adopt(group, "c1", above, 10, store.now, invisible_ms=60_000)
        return list(found)

    held = adopt()
    assert store.bodies(held) == [b"2", b"3"]
    assert [one.attempt for one in held] == [1, 1]
    assert store.ack(group, first[2:]) == [Code.INVALID_RECEIPT_HANDLE] * 2
    assert store.bodies(adopt(held[0].position)) == [b"3"]
    assert store.engine.adopt(group, "", -1, 10, store.now, invisible_ms=60_000) == []
    store.drain()
    store.restart()
    again = adopt()
    assert store.bodies(again) == [b"2", b"3"]
    assert store.ack(group, again[:1]) == [Code.OK]
    store.keep_house()
    store.restart()
    assert store.bodies(again := adopt()) == [b"3"]
    assert store.ack(group, again) == [Code.OK]
    assert adopt() == []
    store.drain()
    store.restart()
    assert adopt() == []


def test_a_store_that_did_not_run_ends_nobodys_time(store: Driver) -> None:
    """What a client holds is renewed by its gateway: the store heard no renewal while it stood."""
    group = store.open("rmq/g/t", [READ_T])
    store.send(b"held", b"popped")
    store.take(group, 1, invisible_ms=60_000, taker="c1")
    store.take(group, 1, invisible_ms=60_000)
    store.now = store.now._replace(monotonic=store.now.monotonic + 61)
    store.engine.gateways.prolong_leases(58.0, store.now)
    store.engine.tick(store.now)
    assert store.bodies(store.take(group, 2, invisible_ms=60_000)) == [b"popped"]
    store.now = store.now._replace(monotonic=store.now.monotonic + 58)
    store.engine.tick(store.now)
    assert store.bodies(store.take(group, 2, invisible_ms=60_000)) == [b"held"]


def test_a_renewal_leaves_the_handle_good(store: Driver) -> None:
    """Also over a restart of the store, whose epoch is another then."""
    group = store.open("rmq/g/t", [READ_T])
    store.send(b"1", b"2")
    epoch = store.engine.epoch
    granted = store.take(group, invisible_ms=10_000)
    for _ in range(3):
        store.later(8.0)
        assert store.ack(group, granted, AckAction.RENEW, 10_000) == [Code.OK] * 2
        store.drain()
        store.restart()
    assert store.take(group, invisible_ms=10_000) == []
    first, second = (AckItem(group, one.position, one.grant) for one in granted)
    pending = store.engine.ack(epoch, [first], store.now)
    store.drain()
    assert [code for _, code in pending.result()] == [Code.OK]
    store.later(11.0)
    store.engine.tick(store.now)
    assert store.engine.ack(epoch, [second], store.now).result()[0][1] != Code.OK
    (again,) = store.take(group, invisible_ms=10_000)
    assert (store.bodies([again]), again.attempt) == ([b"2"], 2)
