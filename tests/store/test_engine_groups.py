"""Groups: order, attempts, deadlines, holders, filters, and what a restart keeps."""

from dataclasses import replace

import pytest

from protocols.canonical import QueueKind, queue_key
from protocols.errors import Code, Refused
from protocols.remoting.private import GroupOpen, ReadItem
from protocols.remoting.settling import AckAction, AckItem, MarkItem
from store.answers import AppendRecord, GrantedRun
from store.log.messages import property_of, topic_of
from tests.store.engine_kit import SMALL, Driver, filter_key, make_frame, make_record

A, B = filter_key("a"), filter_key("b")
READ_A = ReadItem(tag=1, key=A, name="a")
READ_T = ReadItem(tag=7, topic="t")


@pytest.fixture
def store() -> Driver:
    driver = Driver()
    driver.topic("t")
    return driver


# ── take and ack ────────────────────────────────────────────────────────────────────────


def test_nothing_is_seen_before_it_is_durable(store: Driver) -> None:
    group = store.open("g", [READ_A])
    store.engine.send("gw", make_frame(1, 99, [b"x"], keys=[A]), store.now)
    assert store.take(group) == []
    store.drain()
    assert len(store.take(group)) == 1


def test_each_message_goes_out_once_and_is_gone_when_acked(store: Driver) -> None:
    group = store.open("g", [READ_A])
    store.send(b"1", b"2", b"3", keys=[A])
    first, rest = store.take(group, 1), store.take(group, 10)
    assert store.bodies([*first, *rest]) == [b"1", b"2", b"3"]
    assert store.ack(group, [*first, *rest]) == [Code.OK] * 3
    assert store.take(group) == []
    store.restart()
    assert store.take(group) == []


def test_what_is_marked_or_came_back_keeps_the_rest_no_run(store: Driver) -> None:
    """First attempts go as a run, whatever is known of others; those that came back do not."""
    group = store.open("g", [READ_A], is_inherited=True)
    store.send(b"1", b"2", keys=[A])
    before = store.take(group)
    assert isinstance(before, GrantedRun)
    marks = [MarkItem(group, item.position, item.grant, 5, 1) for item in before]
    store.engine.mark(store.engine.epoch, marks, store.now)
    store.send(b"3", b"4", keys=[A])
    after = store.take(group)
    assert isinstance(after, GrantedRun)
    assert store.bodies(after) == [b"3", b"4"]
    assert store.ack(group, before[:1], AckAction.CHANGE) == [Code.OK]
    store.send(b"5", keys=[A])
    mixed = store.take(group)
    assert [(item.attempt, item.packet_id) for item in mixed] == [(2, 0), (1, 0)]


def test_ack_is_idempotent_and_checks_grant_and_epoch(store: Driver) -> None:
    group = store.open("g", [READ_A])
    store.send(b"1", b"2", keys=[A])
    one, two = store.take(group)
    assert store.ack(group, [one]) == [Code.OK]
    assert store.ack(group, [one]) == [Code.OK]
    assert store.ack(group, [two._replace(grant=99)]) == [Code.INVALID_RECEIPT_HANDLE]
    stale = store.engine.ack(9, [AckItem(group, two.position, two.grant)], store.now)
    assert stale.result() == [(two.grant, Code.INVALID_RECEIPT_HANDLE)]
    assert store.ack(12345, [two]) == [Code.INVALID_RECEIPT_HANDLE]


def test_a_repeated_ack_is_told_when_the_first_is_durable(store: Driver) -> None:
    group = store.open("g", [READ_A])
    store.send(b"1", keys=[A])
    (one,) = store.take(group)
    items = [AckItem(group, one.position, one.grant)]
    first = store.engine.ack(store.engine.epoch, items, store.now)
    again = store.engine.ack(store.engine.epoch, items, store.now)
    assert not first.is_done
    assert not again.is_done
    store.drain()
    assert again.result() == [(one.grant, Code.OK)]
    assert store.engine.ack(store.engine.epoch, items, store.now).is_done


def test_a_handle_of_an_earlier_epoch_stays_good_while_its_grant_stands(store: Driver) -> None:
    """Deadlines run anew after a restart, and so do the handles that clients hold."""
    group = store.open("g", [READ_A])
    store.send(b"1", keys=[A])
    (one,) = store.take(group, invisible_ms=30_000)
    store.drain()
    epoch = store.engine.epoch
    engine = store.restart()
    assert store.take(group) == []
    pending = engine.ack(epoch, [AckItem(group, one.position, one.grant)], store.now)
    store.drain()
    assert pending.result() == [(one.grant, Code.OK)]


def test_a_topic_group_reads_all_its_message_queues_in_position_order(store: Driver) -> None:
    group = store.open("rmq/g/t", [READ_T])
    for queue_id in (2, 0, 1):
        store.send(b"q%d" % queue_id, queue_id=queue_id)
    granted = store.take(group)
    assert store.bodies(granted) == [b"q2", b"q0", b"q1"]
    assert {one.tags for one in granted} == {(7,)}


def test_a_take_of_one_message_queue_leaves_the_others(store: Driver) -> None:
    group = store.open("rmq/g/t", [READ_T])
    for queue_id in (2, 0, 1, 0):
        store.send(b"q%d" % queue_id, queue_id=queue_id)
    assert store.bodies(store.take(group, topic="t", queue_id=0)) == [b"q0", b"q0"]
    assert store.bodies(store.take(group)) == [b"q2", b"q1"]


def test_what_came_back_may_be_behind_what_is_new_elsewhere(store: Driver) -> None:
    """The records of a run are read as neighbours, so it must ascend."""
    group = store.open("rmq/g/t", [READ_T])
    for queue_id in (0, 1):
        store.send(b"q%d" % queue_id * 50, queue_id=queue_id)
    taken = store.take(group, topic="t", queue_id=1)
    assert store.ack(group, taken, AckAction.RELEASE) == [Code.OK]
    granted = store.engine.take(group, 10, store.now, holder=1)
    positions = [one.position for one in granted]
    assert store.bodies(granted) == [b"q1" * 50, b"q0" * 50]
    assert type(granted) is not GrantedRun or positions == sorted(positions)


def test_a_queue_added_to_the_topic_is_read_from_its_beginning(store: Driver) -> None:
    group = store.open("rmq/g/t", [READ_T])
    store.topic("t", 6)
    store.send(b"late", queue_id=5)
    store.restart()
    assert store.bodies(store.take(group)) == [b"late"]


def test_start_earliest_reads_all_that_is_kept(store: Driver) -> None:
    store.send(b"old", keys=[A])
    group = store.open("g", [READ_A], start="earliest")
    assert store.bodies(store.take(group)) == [b"old"]


def test_start_epoch_reads_what_came_since_the_store_started(store: Driver) -> None:
    store.send(b"old", keys=[A])
    store.restart()
    store.send(b"new", keys=[A])
    group = store.open("g", [READ_A], start="epoch")
    assert store.bodies(store.take(group)) == [b"new"]


# ── back in place ───────────────────────────────────────────────────────────────────────


def test_a_missed_deadline_returns_in_place_with_one_more_attempt(store: Driver) -> None:
    group = store.open("g", [READ_A])
    store.send(b"1", b"2", b"3", keys=[A])
    one, _ = store.take(group, 2, invisible_ms=5000)
    store.later(4.9)
    assert store.bodies(store.take(group, 1)) == [b"3"]
    store.later(0.2)
    assert group in store.engine.take_woken().groups
    again = store.take(group)
    assert store.bodies(again) == [b"1", b"2"]
    assert [item.attempt for item in again] == [2, 2]
    assert store.ack(group, [one]) == [Code.INVALID_RECEIPT_HANDLE]


def test_change_makes_a_new_grant_and_zero_returns_at_once(store: Driver) -> None:
    group = store.open("g", [READ_A])
    store.send(b"1", keys=[A])
    (one,) = store.take(group, invisible_ms=5000)
    item = AckItem(group, one.position, one.grant, AckAction.CHANGE, 60_000)
    pending = store.engine.ack(store.engine.epoch, [item], store.now)
    store.drain()
    ((grant, code),) = pending.result()
    assert (code, grant > one.grant) == (Code.OK, True)
    store.later(30)
    assert store.take(group) == []
    assert store.ack(group, [one]) == [Code.INVALID_RECEIPT_HANDLE]
    assert store.ack(group, [one._replace(grant=grant)], AckAction.CHANGE) == [Code.OK]
    assert store.take(group)[0].attempt == 2


def test_release_does_not_count_an_attempt(store: Driver) -> None:
    group = store.open("g", [READ_A], attempts_max=1)
    store.send(b"1", keys=[A])
    for _ in range(3):
        (one,) = store.take(group)
        assert one.attempt == 1
        store.ack(group, [one], AckAction.RELEASE)


def test_a_lost_holder_returns_its_deliveries(store: Driver) -> None:
    group = store.open("g", [READ_A])
    store.send(b"1", b"2", keys=[A])
    store.engine.resume(group, 5, [], store.now)
    store.take(group, holder=5)
    store.engine.end_holder(5, store.now)
    assert [one.attempt for one in store.take(group)] == [2, 2]


def test_a_stream_that_comes_back_keeps_what_it_lists(store: Driver) -> None:
    """The rest returns in place at once."""
    group = store.open("g", [READ_A])
    store.send(b"1", b"2", keys=[A])
    store.engine.resume(group, 5, [], store.now)
    one, _ = store.take(group, holder=5)
    store.drain()
    engine = store.restart()
    engine.resume(group, 6, [(one.position, one.grant)], store.now)
    assert store.bodies(store.take(group, holder=6)) == [b"2"]
    store.engine.end_holder(6, store.now)
    assert store.bodies(store.take(group)) == [b"1", b"2"]


def test_what_a_stream_kept_over_a_restart_is_acked_under_the_new_epoch(store: Driver) -> None:
    group = store.open("g", [READ_A])
    store.send(b"1", keys=[A])
    store.engine.resume(group, 5, [], store.now)
    (one,) = store.take(group, holder=5)
    store.drain()
    store.restart().resume(group, 6, [(one.position, one.grant)], store.now)
    assert store.ack(group, [one]) == [Code.OK]
    assert store.engine.group_state(group).in_flight == ()


def test_a_lost_grant_number_is_never_used_again(store: Driver) -> None:
    """A grant that was not synced is forgotten; its holder's ack must not hit another one."""
    group = store.open("g", [READ_A])
    store.send(b"1", keys=[A])
    grants = set()
    for _ in range(3):
        (lost,) = store.take(group, holder=5)
        grants.add(lost.grant)
        item = AckItem(group, lost.position, lost.grant)
        engine = store.restart()
        store.take(group, holder=6)
        pending = engine.ack(engine.epoch, [item], store.now)
        assert pending.result() == [(lost.grant, Code.INVALID_RECEIPT_HANDLE)]
        store.restart()
    assert len(grants) == 3


def test_streams_that_do_not_come_back_lose_their_deliveries_in_time(store: Driver) -> None:
    group = store.open("g", [READ_A])
    store.send(b"1", keys=[A])
    store.take(group, holder=5)
    store.drain()
    store.restart()
    assert store.take(group) == []
    store.later(SMALL.orphan_s + 0.1)
    assert len(store.take(group)) == 1


def test_after_the_last_attempt_a_copy_goes_to_the_dead_letter_topic(store: Driver) -> None:
    """Copy and ack are one block; the copy names where it came from."""
    group = store.open("g", [READ_A], attempts_max=2, dead_letter_topic="%DLQ%g")
    store.send(b"poison", keys=[A], UNIQ_KEY="ID1")
    for _ in range(2):
        store.ack(group, store.take(group), AckAction.CHANGE)
    assert store.take(group) == []
    for _ in range(2):
        found = store.engine.read("%DLQ%g", 0, 0, 10, 1 << 20)
        (record,) = found.records
        assert topic_of(record) == "%DLQ%g"
        assert property_of(record, b"DLQ_ORIGIN_TOPIC") == b"t"
        assert property_of(record, b"DLQ_ORIGIN_MESSAGE_ID") == b"ID1"
        store.restart()
        assert store.take(group) == []


def test_without_a_dead_letter_topic_the_message_is_discarded_and_counted(store: Driver) -> None:
    group = store.open("g", [READ_A], attempts_max=1)
    store.send(b"poison", keys=[A])
    store.ack(group, store.take(group), AckAction.CHANGE)
    assert store.take(group) == []
    assert store.engine.counters.discarded == 1


# ── order, tags, expiry ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("restarts", [False, True])
def test_a_stuck_key_blocks_only_itself(store: Driver, restarts: bool) -> None:
    """FIFO by order key: the next of a key comes when the one before it is done."""
    group = store.open("g", [READ_A], is_fifo=True)
    store.send(b"x1", b"x2", b"y1", b"x3", b"y2", keys=[A], orders=[1, 1, 2, 1, 2])
    granted = store.take(group)
    assert store.bodies(granted) == [b"x1", b"y1"]
    if restarts:
        store.drain()
        store.restart()
        store.later(SMALL.orphan_s + 0.1)
        granted = store.take(group)
        assert store.bodies(granted) == [b"x1", b"y1"]
    assert store.take(group) == []
    store.ack(group, granted[1:])
    assert store.bodies(store.take(group)) == [b"y2"]
    store.ack(group, granted[:1], AckAction.CHANGE)
    (again,) = store.take(group)
    assert store.bodies([again]) == [b"x1"]
    store.ack(group, [again])
    assert store.bodies(store.take(group)) == [b"x2"]


@pytest.mark.parametrize("by_frame", [True, False])
def test_entries_of_other_tags_are_done(store: Driver, by_frame: bool) -> None:
    """Also where the tag was not computed when the message was stored."""

    group = store.open("rmq/g/t", [READ_T])
    for tag in ("red", "blue", "red"):
        if by_frame:
            store.send(tag.encode(), TAGS=tag)
        else:
            record = make_record("t", tag.encode(), TAGS=tag)
            store.engine.append([AppendRecord("t", 0, record)], store.now)
            store.drain()
    assert store.bodies(store.take(group, tags=frozenset(["red"]))) == [b"red", b"red"]
    assert store.take(group) == []


def test_what_has_expired_is_not_handed_out(store: Driver) -> None:
    group = store.open("g", [READ_A])
    store.send(b"soon", keys=[A], expires=store.now.wall_ms + 1000)
    store.send(b"later", keys=[A], expires=store.now.wall_ms + 100_000)
    store.later(2)
    assert store.bodies(store.take(group)) == [b"later"]


def test_qos_0_is_live_only_for_a_group_that_says_so(store: Driver) -> None:
    group = store.open("g", [READ_A], is_inherited=True, skips_qos0_on_resume=True)
    store.send(b"zero", keys=[A], item_flags=0)
    store.send(b"one", keys=[A], item_flags=1)
    store.engine.resume(group, 5, [], store.now)
    assert store.bodies(store.take(group, holder=5)) == [b"one"]
    store.send(b"live", keys=[A], item_flags=0)
    assert store.bodies(store.take(group, holder=5)) == [b"live"]


# ── volatile and light queues ───────────────────────────────────────────────────────────


def test_a_volatile_group_sees_messages_before_the_sync_and_logs_nothing(store: Driver) -> None:
    group = store.open("v", [READ_A], is_volatile=True, is_auto_ack=True)
    store.drain()
    store.engine.send("gw", make_frame(1, 50, [b"now"], keys=[A]), store.now)
    assert group in store.engine.take_woken().groups
    granted = store.take(group)
    assert store.bodies(granted) == [b"now"]
    assert store.take(group) == []
    store.drain()
    end = store.engine.end
    store.take(group)
    assert store.engine.end == end
    store.restart()
    assert store.engine.group_number("v") == 0


def test_a_volatile_group_ends_with_its_gateways_presence(store: Driver) -> None:
    group = store.open("v", [READ_A], is_volatile=True)
    store.engine.resume(group, 5, [], store.now)
    store.engine.end_holder(5, store.now)
    assert store.engine.group_number("v") == group
    store.engine.resume(group, 6, [], store.now)
    store.engine.end_holder(6, store.now, is_lost=True)
    assert store.engine.group_number("v") == 0


def amqp_key(name: str) -> bytes:
    return queue_key("/", QueueKind.AMQP, name)


def test_a_pinned_queue_must_be_created_and_counts_exactly(store: Driver) -> None:
    key = amqp_key("q")
    with pytest.raises(Refused, match="no such queue"):
        store.open("amqp//q", [ReadItem(tag=1, key=key)])
    store.engine.light_queues.create(key, "//q", {}, store.now)
    group = store.open("amqp//q", [ReadItem(tag=1, key=key)])
    store.send(b"1", b"2", b"3", keys=[key], set_flags=0)
    store.take(group, 1)
    counts = store.engine.light_queues.stat(key, "amqp//q")
    assert (counts.ready_count, counts.in_flight_count, counts.stored_count) == (2, 1, 3)
    store.drain()
    store.restart()
    counts = store.engine.light_queues.stat(key, "amqp//q")
    assert (counts.ready_count, counts.in_flight_count, counts.stored_count) == (2, 1, 3)


@pytest.mark.parametrize("restarts", [False, True])
def test_purge_ends_what_is_ready_only(store: Driver, restarts: bool) -> None:
    key = amqp_key("q")
    store.engine.light_queues.create(key, "//q", {}, store.now)
    group = store.open("amqp//q", [ReadItem(tag=1, key=key)])
    store.send(b"1", b"2", b"3", keys=[key], set_flags=0)
    (one,) = store.take(group, 1)
    purged = store.engine.light_queues.purge(key, "amqp//q", store.now)
    store.drain()
    assert purged.result().ready_count == 2
    if restarts:
        store.restart()
    assert store.take(group) == []
    store.later(SMALL.orphan_s + 1)
    if restarts:
        assert [item.position for item in store.take(group)] == [one.position]


def test_a_send_to_a_dropped_queue_says_which_one_is_gone(store: Driver) -> None:
    gone, there = amqp_key("gone"), amqp_key("there")
    for key in (gone, there):
        store.engine.light_queues.create(key, "", {}, store.now)
    store.engine.light_queues.drop(gone, "", store.now)
    both = make_frame(1, 1, [b"x"], keys=[gone, there], set_flags=0)
    pending = store.engine.send("gw", both, store.now)
    only = store.engine.send("gw", make_frame(1, 2, [b"x"], keys=[gone], set_flags=0), store.now)
    store.drain()
    assert pending.result().partial == [(0, gone, Code.NOT_FOUND)]
    assert pending.result().refused == {}
    assert only.result().refused[0][0] == Code.NOT_FOUND


def test_a_volatile_queue_is_gone_after_a_restart(store: Driver) -> None:
    key = amqp_key("tmp")
    store.engine.light_queues.create(key, "//tmp", {"volatile": 1}, store.now)
    store.drain()
    store.restart()
    with pytest.raises(Refused):
        store.engine.light_queues.stat(key, "")


def test_a_group_of_a_newer_incarnation_starts_anew(store: Driver) -> None:
    store.open("g", [READ_A], incarnation=1)
    store.send(b"old", keys=[A])
    group = store.open("g", [READ_A], incarnation=2)
    assert store.take(group) == []
    with pytest.raises(Refused, match="newer"):
        store.open("g", [READ_A], incarnation=1)


def test_opening_again_adopts_the_cursor(store: Driver) -> None:
    group = store.open("g", [READ_A])
    store.send(b"1", b"2", keys=[A])
    store.ack(group, store.take(group, 1))
    spec = GroupOpen(name="g", reads=[READ_A, ReadItem(tag=2, key=B)])
    opened = store.engine.open_group(spec, store.now)
    store.drain()
    assert (opened.result().group, opened.result().is_new) == (group, False)
    assert store.bodies(store.take(group)) == [b"2"]


def test_a_dropped_group_takes_nothing(store: Driver) -> None:
    group = store.open("g", [READ_A])
    store.send(b"1", keys=[A])
    store.engine.drop_group("g", 0, store.now)
    assert store.take(group) == []
    store.drain()
    store.restart()
    assert store.engine.group_number("g") == 0


def test_a_snapshot_holds_a_group_whole(store: Driver) -> None:
    """In flight, returned, held, marks, attempts: the same after a start from the snapshot."""
    driver = Driver(config=replace(SMALL, snapshot_bytes=1))
    driver.topic("t")
    group = driver.open("g", [READ_A], is_fifo=True)
    driver.send(b"x1", b"x2", b"y1", b"z1", keys=[A], orders=[1, 1, 2, 3])
    granted = driver.take(group, invisible_ms=60_000)
    driver.ack(group, granted[1:2])
    driver.ack(group, granted[2:], AckAction.CHANGE)
    driver.drain()
    before = driver.engine.group_state(group)
    work = driver.engine.background.snapshot_due(driver.now, is_forced=True)
    assert work is not None
    work.execute(driver.disk)
    driver.restart()
    assert driver.report.snapshot_position == work.position
    after = driver.engine.group_state(group)
    assert after._replace(in_flight=()) == before._replace(in_flight=())
    assert [(one.position, one.grant) for one in after.in_flight] == [
        (one.position, one.grant) for one in before.in_flight
    ]
    assert driver.bodies(driver.take(group)) == [b"z1"]
    driver.later(61)
    (x1,) = driver.take(group)
    driver.ack(group, [x1])
    assert driver.bodies(driver.take(group)) == [b"x2"]
