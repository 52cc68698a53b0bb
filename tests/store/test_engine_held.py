"""Held messages: delayed ones come at their time, half ones by their producer's word."""

from dataclasses import replace

import pytest

from protocols.canonical import DISPATCH_KEY
from protocols.clock import Now
from protocols.errors import Code, Refused
from protocols.remoting.private import ReadItem
from protocols.remoting.sending import ItemFlag
from store.answers import AppendRecord, AppendResult
from store.log.messages import property_of
from tests.store.engine_kit import SMALL, Driver, body_of, filter_key, make_record

HALF = {"TRAN_MSG": "true", "PGROUP": "p"}


@pytest.fixture
def store() -> Driver:
    driver = Driver()
    driver.topic("t", 2)
    return driver


def append(
    store: Driver, body: bytes, *, in_ms: int = 0, half: bool = False, **facts: str
) -> AppendResult:
    """By the standard codes' door."""
    record = make_record("t", body, **(HALF if half else {}), **facts)
    due_ms = store.now.wall_ms + in_ms if in_ms else 0
    item = AppendRecord("t", 1, record, (DISPATCH_KEY,), due_ms=due_ms, is_half=half)
    pending = store.engine.append([item], store.now)
    store.drain()
    return pending.result()[0]


def visible(store: Driver, queue_id: int = 1) -> list[bytes]:
    store.drain()
    low, high = store.engine.offset_range("t", queue_id)
    if low == high:
        return []
    result = store.engine.read("t", queue_id, low, 1000, 1 << 24)
    return [body_of(record) for record in result.records]


def test_a_delayed_message_comes_at_its_time_to_the_millisecond(store: Driver) -> None:
    append(store, b"x", in_ms=1500, UNIQ_KEY="a")
    store.later(1.499)
    assert visible(store) == []
    store.later(0.001)
    assert visible(store) == [b"x"]
    assert store.engine.held.counts == (0, 0)
    assert store.engine.light_queues.stat(DISPATCH_KEY, "").stored_count == 1


def test_delayed_items_of_a_frame_go_to_their_queues_later(store: Driver) -> None:
    """With its neighbours that are not delayed, once each, under its order key and QoS."""
    reader = store.open("g", [ReadItem(tag=1, key=filter_key("a"))])
    at = str(store.now.wall_ms + 60_000)
    store.send(b"now", keys=[filter_key("a")])
    store.send(
        b"later", keys=[filter_key("a")], queue_id=1, order=7,
        item_flags=2 | ItemFlag.DELAYED, TIMER_DELIVER_MS=at,
    )  # fmt: skip
    assert store.bodies(store.take(reader)) == [b"now"]
    store.later(60)
    store.drain()
    (late,) = store.take(reader)
    assert store.bodies([late]) == [b"later"]
    assert late.flags == 2
    assert visible(store) == [b"later"]


def test_a_time_that_has_come_is_no_delay(store: Driver) -> None:
    past = str(store.now.wall_ms - 1)
    store.send(b"x", queue_id=1, item_flags=1 | ItemFlag.DELAYED, TIMER_DELIVER_MS=past)
    assert visible(store) == [b"x"]


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_timers_and_halves_survive_a_restart(store: Driver, *, has_snapshot: bool) -> None:
    """Those that fired do not fire again, those that wait do so once, months ahead as well."""
    append(store, b"fired", in_ms=1000, UNIQ_KEY="1")
    append(store, b"soon", in_ms=5000, UNIQ_KEY="2")
    append(store, b"far", in_ms=90 * 86_400_000, UNIQ_KEY="3")
    half = append(store, b"half", half=True)
    ended = append(store, b"ended", half=True)
    store.later(2)
    store.engine.held.end(ended.position, "p", store.now, is_commit=False)
    store.drain()
    if has_snapshot:
        work = store.engine.background.snapshot_due(store.now, is_forced=True)
        assert work is not None
        work.execute(store.disk)
        store.engine.background.snapshot_written(work)
        append(store, b"later still", in_ms=4000, UNIQ_KEY="4")
    store.restart()
    assert store.engine.held.counts == (3 if has_snapshot else 2, 1)
    store.later(10)
    expected = [b"fired", *([b"soon", b"later still"] if has_snapshot else [b"soon"])]
    assert visible(store) == expected
    store.engine.held.end(half.position, "p", store.now, is_commit=True)
    assert visible(store) == [*expected, b"half"]
    store.restart()
    store.later(91 * 86_400)
    assert visible(store) == [*expected, b"half", b"far"]
    assert store.engine.held.counts == (0, 0)


def test_a_clock_that_jumps_back_delays_nothing_twice(store: Driver) -> None:
    append(store, b"x", in_ms=10_000)
    monotonic, wall_ms = store.now
    store.now = Now(monotonic + 1, wall_ms - 3_600_000)
    store.engine.tick(store.now)
    assert visible(store) == []
    store.now = Now(monotonic + 2, wall_ms + 3_600_000)
    store.engine.tick(store.now)
    assert visible(store) == [b"x"]


def test_a_recalled_message_never_comes(store: Driver) -> None:
    at = store.now.wall_ms + 5000
    append(store, b"x", in_ms=5000, UNIQ_KEY="id")
    append(store, b"y", in_ms=5000, UNIQ_KEY="other")

    def recall(topic: str = "t", due_ms: int = at, name: str = "id") -> bool:
        pending = store.engine.held.recall(topic, due_ms, name, store.now)
        store.drain()
        return pending.result()

    assert not recall(topic="u")
    assert not recall(due_ms=at + 1)
    assert not recall(name="none")
    assert recall()
    assert not recall()
    store.restart()
    store.later(6)
    assert visible(store) == [b"y"]
    assert not recall(name="other")


def test_a_commit_makes_visible_and_a_rollback_does_not(store: Driver) -> None:
    first, second = append(store, b"yes", half=True), append(store, b"no", half=True)
    assert visible(store) == []
    with pytest.raises(Refused, match="producer group"):
        store.engine.held.end(first.position, "other", store.now, is_commit=True)
    done = store.engine.held.end(first.position, "p", store.now, is_commit=True)
    store.engine.held.end(second.position, "p", store.now, is_commit=False)
    assert visible(store) == [b"yes"]
    result = done.result()
    assert (result.code, result.queue_id, result.offset) == (Code.OK, 1, 0)
    record = store.engine.record_at(result.position)
    assert property_of(record, b"TRAN_MSG") == b""
    assert property_of(record, b"TG_HELD") == b""
    assert record[39] & 0xC == 0x8
    with pytest.raises(Refused, match="no open transaction"):
        store.engine.held.end(first.position, "p", store.now, is_commit=True)


def test_a_silent_producer_is_asked_and_in_the_end_given_up() -> None:
    """First after 6 s, then each 30 s, over a restart; then to RocketMQ's topic for those."""
    store = Driver(config=replace(SMALL, half_checks_max=3))
    store.topic("t", 2)
    half = append(store, b"x", half=True)
    store.later(5.9)
    assert store.engine.held.take_checks() == []
    store.later(0.1)
    (check,) = store.engine.held.take_checks()
    assert (check.position, check.group, body_of(check.record)) == (half.position, "p", b"x")
    store.drain()
    store.restart()
    for _ in range(2):
        store.later(29.9)
        assert store.engine.held.take_checks() == []
        store.later(0.1)
        assert len(store.engine.held.take_checks()) == 1
    store.later(30)
    assert store.engine.held.take_checks() == []
    store.drain()
    assert store.engine.held.counts == (0, 0)
    (record,) = store.engine.read("TRANS_CHECK_MAX_TIME_TOPIC", 0, 0, 9, 1 << 20).records
    assert body_of(record) == b"x"
    assert property_of(record, b"REAL_TOPIC") == b"t"


def test_a_producer_may_ask_for_more_time(store: Driver) -> None:
    append(store, b"x", half=True, CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    store.later(59)
    assert store.engine.held.take_checks() == []
    store.later(1)
    assert len(store.engine.held.take_checks()) == 1


def test_what_is_held_is_owed(store: Driver) -> None:
    """Its segment stays however much is sent and however old it gets."""
    append(store, b"far", in_ms=7 * 86_400_000, UNIQ_KEY="a")
    for number in range(200):
        store.send(b"%d" % number + bytes(4000))
        background = store.engine.background
        if number % 50 == 0 and (work := background.snapshot_due(store.now, is_forced=True)):
            work.execute(store.disk)
            background.snapshot_written(work)
    store.later(6 * 86_400)
    store.later(2)
    store.drain()
    store.later(86_400)
    assert visible(store)[-1] == b"far"


def test_too_many_are_refused() -> None:
    store = Driver(config=replace(SMALL, timers_max=1, halves_max=1))
    store.topic("t", 2)
    assert append(store, b"1", in_ms=5000).code == Code.OK
    assert append(store, b"2", in_ms=5000).code == Code.TOO_MANY_REQUESTS
    assert append(store, b"3", half=True).code == Code.OK
    assert append(store, b"4", half=True).code == Code.TOO_MANY_REQUESTS
    past = str(store.now.wall_ms + 5000)
    positions = store.send(b"x", item_flags=1 | ItemFlag.DELAYED, TIMER_DELIVER_MS=past)
    assert positions == [0]


def test_many_due_at_once_come_in_turn(store: Driver) -> None:
    for number in range(3000):
        record = make_record("t", b"%d" % number)
        item = AppendRecord("t", 1, record, due_ms=store.now.wall_ms + 1000)
        store.engine.append([item], store.now)
    store.drain()
    ends = []
    for _ in range(3):
        store.later(1)
        store.drain()
        ends.append(store.engine.offset_range("t", 1)[1])
    assert ends == [1024, 2048, 3000]
    assert store.engine.held.counts == (0, 0)
