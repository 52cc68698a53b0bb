"""Policies of light queues: what leaves unseen, who is refused, what is handed over."""

from collections.abc import Mapping

import pytest

from protocols.canonical import QueueKind, queue_key
from protocols.errors import Code, Refused
from protocols.remoting.private import GroupOpen, QueueCounts, ReadItem
from protocols.remoting.settling import AckAction
from store.answers import EngineConfig, Granted, GrantedRun
from store.log.messages import property_of
from store.policies.levels import subqueue_key
from store.policies.terms import check_policy
from store.sending import QUEUE_FULL
from tests.store.engine_kit import Driver, body_of, filter_key, make_frame

KEY = queue_key("", QueueKind.AMQP, "//q", 7)
OTHER = queue_key("", QueueKind.AMQP, "//other", 8)
DEAD = queue_key("", QueueKind.DEAD_LETTER, "amqp//")
GROUP = "amqp//q"
LETTERS: dict[str, int | str] = {"dead_letter": "amqp//", "dead_letter_note": "dlx\x00key"}


class Store(Driver):
    """An engine with one policed queue and whoever reads its dead letters."""

    def queue(self, **policy: int | str) -> int:
        """Create the queue; the number of its group."""
        self.create(KEY, "//q", {"group": GROUP, "incarnation": 7, **policy})
        return self.engine.group_number(GROUP)

    def create(self, key: bytes, name: str, policy: Mapping[str, int | str]) -> None:
        self.engine.light_queues.create(key, name, policy, self.now)
        self.drain()

    def put(self, *bodies: bytes, key: bytes = KEY, **facts: object) -> list[int]:
        """Publish to queues only."""
        positions = self.send(*bodies, keys=[key], set_flags=0, **facts)
        self.enforce()
        return positions

    def enforce(self) -> None:
        """The end of a tick."""
        self.engine.take_woken()
        self.engine.enforce(self.now)
        self.drain()

    def pass_time(self, seconds: float) -> None:
        self.later(seconds)
        self.enforce()

    def counts(self) -> QueueCounts:
        return self.engine.light_queues.stat(KEY, GROUP)

    def letters(self) -> list[tuple[bytes, str]]:
        """(body, reason) of all dead letters, in order; they stay unacknowledged."""
        reads = [ReadItem(tag=0, key=DEAD, name="amqp//")]
        group = self.open("dead", reads, start="earliest")
        found: list[tuple[bytes, str]] = []
        for one in self.take(group, 1000, holder=99):
            record = self.engine.record_at(one.record_position)
            found.append((body_of(record), property_of(record, b"TG_DEAD_REASON").decode()))
        return found

    def all_bodies(self, group: int, count: int = 32) -> list[bytes]:
        return self.bodies(self.take(group, count))


@pytest.fixture
def store() -> Store:
    return Store()


def give_back(store: Store, group: int, granted: list[Granted]) -> None:
    store.ack(group, granted, AckAction.CHANGE)
    store.enforce()


# ── length ──────────────────────────────────────────────────────────────────────────────


def test_the_oldest_make_room(store: Store) -> None:
    group = store.queue(max_length=3, **LETTERS)
    store.put(b"1", b"2")
    store.put(b"3", b"4", b"5")
    assert store.counts().ready_count == 3
    assert store.letters() == [(b"1", "maxlen"), (b"2", "maxlen")]
    store.restart()
    assert store.counts().ready_count == 3
    assert store.all_bodies(group) == [b"3", b"4", b"5"]


def test_queues_that_come_and_go_leave_nothing(store: Store) -> None:
    """Thousands of workers declare queues of their own that go with them."""
    for incarnation in range(7, 10):
        key = queue_key("", QueueKind.AMQP, "//q", incarnation)
        store.create(key, "//q", {"group": GROUP, "incarnation": incarnation, "max_length": 2})
        store.put(b"1", key=key)
        store.engine.light_queues.drop(key, GROUP, store.now)
        store.drain()
    keeper = store.engine._keeper
    assert (len(keeper._guards), len(keeper.judges)) == (0, 0)


def test_groups_that_come_and_go_leave_nothing(store: Store) -> None:
    store.topic("t", 1)
    groups = store.engine._parts.groups
    for number in range(3):
        store.open(f"g{number}", [ReadItem(tag=0, topic="t")])
        store.open(f"g{number}", [ReadItem(tag=0, key=filter_key("f"))])
        store.open(f"g{number}", [ReadItem(tag=0, topic="t"), ReadItem(tag=1, topic="t")])
        assert len(groups._by_topic["t"]) == 1
        store.engine.drop_group(f"g{number}", 0, store.now)
        store.drain()
    assert not groups._by_topic


def test_only_ready_messages_count_and_returned_ones_go_first(store: Store) -> None:
    """Limit 2, two out, three published, both returned: the last two stay (as RabbitMQ does)."""
    group = store.queue(max_length=2)
    store.put(b"0", b"1")
    out = store.take(group)
    store.put(b"2", b"3", b"4")
    assert store.counts() == QueueCounts(
        ready_count=2, in_flight_count=2, stored_count=5, consumer_count=1
    )
    give_back(store, group, out)
    assert store.all_bodies(group) == [b"3", b"4"]


def test_who_waits_gets_it_whatever_the_limit(store: Store) -> None:
    """Handed out before the end of the tick: it never was ready."""
    group = store.queue(max_length=0)
    store.send(b"1", b"2", keys=[KEY], set_flags=0)
    assert store.all_bodies(group, 1) == [b"1"]
    store.enforce()
    assert store.counts().ready_count == 0


def test_bytes_are_those_of_bodies(store: Store) -> None:
    group = store.queue(max_bytes=1000)
    store.put(bytes(400), bytes(300), PROPERTY="x" * 5000)
    assert store.counts().ready_count == 2
    store.put(bytes(500))
    assert [len(body) for body in store.all_bodies(group)] == [300, 500]


def test_bytes_are_counted_anew_after_a_restart(store: Store) -> None:
    store.queue(max_bytes=1000)
    store.put(bytes(400), bytes(500))
    store.restart()
    store.put(bytes(200))
    assert store.counts().ready_count == 2


def test_a_full_queue_refuses_and_tells_the_publisher(store: Store) -> None:
    group = store.queue(max_length=2, overflow="reject")
    store.put(b"1")
    store.frame += 1
    frame = make_frame(1, store.frame, [b"2", b"3", b"4"], keys=[KEY], set_flags=0)
    answer = store.engine.send("gw", frame, store.now)
    store.drain()
    assert set(answer.result().refused) == {1, 2}
    assert answer.result().refused[1][0] == QUEUE_FULL
    assert store.all_bodies(group) == [b"1", b"2"]
    store.put(b"5")
    assert store.all_bodies(group) == [b"5"]


def test_one_full_queue_of_two_is_a_partial_refusal(store: Store) -> None:
    store.queue(max_length=1, overflow="reject")
    store.create(OTHER, "//other", {"group": "amqp//other"})
    frame = make_frame(1, 1, [b"1", b"2"], keys=[KEY, OTHER], set_flags=0)
    pending = store.engine.send("gw", frame, store.now)
    store.drain()
    assert pending.result().partial == [(1, KEY, QUEUE_FULL)]
    assert store.counts().ready_count == 1
    assert store.engine.light_queues.stat(OTHER, "amqp//other").ready_count == 2
    store.restart()
    assert store.counts().ready_count == 1
    assert store.engine.light_queues.stat(OTHER, "amqp//other").ready_count == 2


def test_consumers_that_wait_leave_room(store: Store) -> None:
    """What they will take at once does not count as waiting."""
    store.queue(max_length=1, overflow="reject")
    store.engine.use_credit(lambda group: 2)
    assert 0 not in store.put(b"1", b"2", b"3")


def test_refused_messages_may_be_handed_over(store: Store) -> None:
    store.queue(max_length=1, overflow="reject-dead-letter", **LETTERS)
    store.put(b"1", b"2")
    assert store.letters() == [(b"2", "maxlen")]


def test_a_group_may_keep_the_oldest(store: Store) -> None:
    """Its queue is shared with others: what comes last leaves for this group alone."""
    key = filter_key("a")
    reads = [ReadItem(tag=1, key=key, name="a")]
    few = store.open("few", reads, policy={"max_length": 2, "overflow": "drop-new"})
    late = store.open("late", reads, policy={"max_length": 2, "overflow": "drop-head"})
    everything = store.open("all", reads)
    for body in (b"1", b"2", b"3", b"4"):
        store.put(body, key=key)
    store.restart()
    assert store.all_bodies(few) == [b"1", b"2"]
    assert store.all_bodies(late) == [b"3", b"4"]
    assert len(store.take(everything)) == 4


# ── expiry ──────────────────────────────────────────────────────────────────────────────


def test_the_head_expires_by_a_timer(store: Store) -> None:
    group = store.queue(expire_ms=1000, **LETTERS)
    store.put(b"1")
    store.pass_time(0.5)
    store.put(b"2")
    assert store.counts().ready_count == 2
    store.pass_time(0.6)
    assert store.counts().ready_count == 1
    assert store.letters() == [(b"1", "expired")]
    assert store.all_bodies(group) == [b"2"]


def test_the_timer_of_the_head_is_told(store: Store) -> None:
    store.queue(expire_ms=1000)
    store.send(b"1", keys=[KEY], set_flags=0)
    assert store.engine.enforce(store.now) == pytest.approx(store.now.monotonic + 1.0)


def test_behind_a_good_head_the_expired_still_count_but_never_come(store: Store) -> None:
    group = store.queue()
    store.put(b"stays")
    store.put(b"goes", expires=store.now.wall_ms + 100)
    store.put(b"last")
    store.pass_time(1.0)
    assert store.counts().ready_count == 3
    assert store.all_bodies(group) == [b"stays"]
    assert store.all_bodies(group) == [b"last"]
    assert store.counts().ready_count == 0


def test_the_shorter_time_counts(store: Store) -> None:
    store.queue(expire_ms=1000)
    store.put(b"1", expires=store.now.wall_ms + 100)
    store.put(b"2", expires=store.now.wall_ms + 90_000)
    store.pass_time(0.2)
    assert store.counts().ready_count == 1
    store.pass_time(1.0)
    assert store.counts().ready_count == 0


def test_no_time_at_all_is_enough_for_who_waits(store: Store) -> None:
    group = store.queue(expire_ms=0)
    store.send(b"1", keys=[KEY], set_flags=0)
    assert store.all_bodies(group) == [b"1"]
    store.put(b"2")
    assert store.counts().ready_count == 0


def test_what_is_out_does_not_expire_until_it_returns(store: Store) -> None:
    group = store.queue(expire_ms=1000, **LETTERS)
    store.put(b"1")
    out = store.take(group)
    store.pass_time(5.0)
    assert store.letters() == []
    give_back(store, group, out)
    assert store.letters() == [(b"1", "expired")]


def test_expiry_is_wall_time_over_a_restart(store: Store) -> None:
    store.queue(expire_ms=1000)
    store.put(b"1")
    store.restart()
    store.pass_time(1.1)
    assert store.counts().ready_count == 0


# ── dead letters ────────────────────────────────────────────────────────────────────────


def test_rejected_and_returned_too_often(store: Store) -> None:
    group = store.queue(delivery_limit=1, **LETTERS)
    store.put(b"bad", b"again")
    bad, again = store.take(group)
    assert store.ack(group, [bad], AckAction.REJECT) == [Code.OK]
    give_back(store, group, [again])
    (second,) = store.take(group)
    assert second.attempt == 2
    give_back(store, group, [second])
    assert store.letters() == [(b"bad", "rejected"), (b"again", "delivery_limit")]
    store.restart()
    assert store.counts() == QueueCounts(stored_count=2)


def test_a_letter_says_where_it_comes_from(store: Store) -> None:
    group = store.queue(**LETTERS)
    store.put(b"1")
    store.ack(group, store.take(group), AckAction.REJECT)
    reads = [ReadItem(tag=0, key=DEAD, name="amqp//")]
    (letter,) = store.take(store.open("dead", reads, start="earliest"))
    record = store.engine.record_at(letter.record_position)
    assert property_of(record, b"TG_DEAD_QUEUE") == b"//q"
    assert property_of(record, b"TG_DEAD_NOTE") == b"dlx%00key"
    assert property_of(record, b"TG_DEAD_AT") == str(store.now.wall_ms).encode()


def test_without_a_place_to_go_they_are_dropped(store: Store) -> None:
    group = store.queue()
    store.put(b"1")
    assert store.ack(group, store.take(group), AckAction.REJECT) == [Code.OK]
    store.restart()
    assert store.counts() == QueueCounts(stored_count=1)
    assert store.letters() == []


# ── priorities ──────────────────────────────────────────────────────────────────────────


def test_higher_priorities_first_each_in_order(store: Store) -> None:
    group = store.queue(max_priority=5)
    for number, priority in enumerate(("1", "5", "", "9", "1")):
        store.put(b"%d" % number, **({"TG_PRIORITY": priority} if priority else {}))
    assert store.counts().ready_count == 5
    store.restart()
    assert store.all_bodies(group, 3) == [b"1", b"3", b"0"]
    assert store.all_bodies(group) == [b"4", b"2"]


def test_records_of_several_priorities_are_those_of_their_entries(store: Store) -> None:
    """Each in a block of its own: the last stored goes first, and runs are read as neighbours."""
    group = store.queue(max_priority=5)
    for priority in ("1", "3", "3", "5"):
        store.put(priority.encode() * 50, TG_PRIORITY=priority)
    granted = store.engine.take(group, 10, store.now, holder=1)
    assert type(granted) is not GrantedRun
    assert store.bodies(granted) == [priority * 50 for priority in (b"5", b"3", b"3", b"1")]


def test_one_priority_alone_is_a_run(store: Store) -> None:
    group = store.queue(max_priority=5)
    store.put(b"a", b"b", TG_PRIORITY="1")
    assert type(store.engine.take(group, 10, store.now, holder=1)) is GrantedRun


def test_a_returned_one_is_first_among_its_equals(store: Store) -> None:
    group = store.queue(max_priority=2)
    store.put(b"a", b"b", TG_PRIORITY="1")
    (first,) = store.take(group, 1)
    store.put(b"high", TG_PRIORITY="2")
    give_back(store, group, [first])
    assert store.all_bodies(group) == [b"high", b"a", b"b"]
    store.drain()
    store.restart()
    assert store.counts().in_flight_count == 3


def test_acks_out_of_order_leave_nothing_behind(store: Store) -> None:
    group = store.queue(max_priority=2)
    store.put(b"low")
    store.put(b"high", TG_PRIORITY="2")
    high, low = store.take(group)
    assert store.ack(group, [low]) == [Code.OK]
    store.put(b"new", TG_PRIORITY="1")
    assert store.ack(group, [high, *store.take(group)]) == [Code.OK] * 2
    store.restart()
    assert store.counts() == QueueCounts(stored_count=3)


def test_the_group_opened_again_still_reads_all_priorities(store: Store) -> None:
    store.queue(max_priority=2)
    store.put(b"high", TG_PRIORITY="2")
    spec = GroupOpen(name=GROUP, reads=[ReadItem(tag=0, key=KEY)], incarnation=7, start="earliest")
    opened = store.engine.open_group(spec, store.now)
    store.drain()
    assert store.all_bodies(opened.result().group) == [b"high"]


# ── the queue ───────────────────────────────────────────────────────────────────────────


def test_counts_need_no_consumer(store: Store) -> None:
    group = store.queue()
    store.put(b"1", b"2")
    assert store.counts().ready_count == 2
    store.engine.resume(group, 5, [], store.now)
    assert store.counts().consumer_count == 1
    store.engine.retire_holder(5)
    assert store.counts().consumer_count == 0
    store.engine.end_holder(5, store.now)
    assert store.counts().consumer_count == 0


def test_an_older_queue_of_the_name_leaves_the_newer_ones_group(store: Store) -> None:
    """Two gateways declared at once: who lost drops its own, and asks for the other's again."""
    group = store.queue(max_length=1)
    store.create(OTHER, "//q", {"group": GROUP, "incarnation": 6, "max_length": 9})
    store.engine.light_queues.drop(OTHER, GROUP, store.now)
    store.drain()
    assert store.engine.group_number(GROUP) == group
    store.put(b"1", b"2")
    assert store.counts().ready_count == 1
    store.restart()
    store.put(b"3")
    assert store.counts().ready_count == 1


def test_a_newer_queue_that_lost_gives_the_group_back(store: Store) -> None:
    store.queue(max_length=1)
    store.create(OTHER, "//q", {"group": GROUP, "incarnation": 8, "max_length": 9})
    store.restart()
    store.put(b"0")
    store.engine.light_queues.drop(OTHER, GROUP, store.now)
    store.queue(max_length=1)
    store.put(b"1", b"2")
    assert store.counts().ready_count == 1


def test_a_dropped_queue_takes_those_of_its_priorities_with_it(store: Store) -> None:
    """None of them is there any more, nor after a restart."""
    store.queue(max_priority=2)
    store.put(b"low")
    store.put(b"high", TG_PRIORITY="2")
    assert store.engine.light_queues.drop(KEY, GROUP, store.now).value.ready_count == 2
    store.drain()
    for _ in range(2):
        for key in (KEY, subqueue_key(KEY, 1), subqueue_key(KEY, 2)):
            with pytest.raises(Refused):
                store.engine.light_queues.stat(key, "")
        store.restart()


def test_an_unused_queue_ends_and_says_so(store: Store) -> None:
    group = store.queue(idle_ms=1000, notices="amqp//", max_priority=2)
    store.engine.resume(group, 5, [], store.now)
    store.pass_time(3.0)
    store.engine.end_holder(5, store.now)
    store.pass_time(0.9)
    store.engine.light_queues.stat(KEY, GROUP, store.now)
    store.pass_time(0.9)
    assert store.counts() == QueueCounts()
    store.pass_time(0.2)
    with pytest.raises(Refused):
        store.counts()
    store.restart()
    with pytest.raises(Refused):
        store.counts()
    assert store.letters() == [(b"", "queue-ended")]


def test_its_time_runs_anew_after_a_restart(store: Store) -> None:
    store.queue(idle_ms=1000)
    store.pass_time(0.9)
    store.restart()
    store.pass_time(0.9)
    assert store.counts() == QueueCounts()


def test_a_late_drop_spares_the_group_of_the_next_queue(store: Store) -> None:
    """A queue deleted and made again under its name: the group is the new one's."""
    store.queue()
    again = queue_key("", QueueKind.AMQP, "//q", 9)
    store.create(again, "//q", {"group": GROUP, "incarnation": 9})
    store.engine.light_queues.drop(KEY, GROUP, store.now)
    store.put(b"1", key=again)
    assert store.engine.light_queues.stat(again, GROUP).ready_count == 1


def test_purge_leaves_what_is_out(store: Store) -> None:
    group = store.queue(**LETTERS)
    store.put(b"1", b"2", b"3")
    out = store.take(group, 1)
    assert store.engine.light_queues.purge(KEY, GROUP, store.now).value.ready_count == 2
    store.drain()
    assert store.counts().in_flight_count == 1
    assert store.letters() == []
    give_back(store, group, out)
    assert store.all_bodies(group) == [b"1"]


@pytest.mark.parametrize(
    "policy",
    [
        {"max_length": -1},
        {"expire_ms": "soon"},
        {"overflow": "shrug"},
        {"max_priority": 256},
        {"overflow": "drop-new", "max_length": 1, "max_priority": 2},
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused(policy: dict[str, int | str]) -> None:
    with pytest.raises(Refused) as caught:
        check_policy("q", policy)
    assert caught.value.code == Code.BAD_REQUEST


# ── large messages ──────────────────────────────────────────────────────────────────────

LARGE = EngineConfig(segment_bytes=16 << 20, log_bytes_max=512 << 20, is_zero_filled=False)


@pytest.mark.parametrize("how", ["policy", "topic"])
def test_many_large_dead_letters_survive_a_restart(how: str) -> None:
    """However many bytes end at once, no block is larger than a start reads."""
    store = Store(config=LARGE)
    store.topic("t")
    bodies = [bytes([number]) * (400 << 10) for number in range(40)]
    if how == "policy":
        group = store.queue(**LETTERS)
        for start in range(0, 40, 10):
            store.put(*bodies[start : start + 10])
        store.ack(group, store.take(group, 100), AckAction.REJECT)
    else:
        group = store.open(
            "g", [ReadItem(tag=1, topic="t")], attempts_max=1, dead_letter_topic="%DLQ%g"
        )
        for start in range(0, 40, 10):
            store.send(*bodies[start : start + 10])
        store.ack(group, store.take(group, 100), AckAction.CHANGE)
    store.send(b"after", queue_id=1)
    store.restart()
    assert store.report.torn_bytes == store.report.rotten_bytes == 0
    if how == "policy":
        assert [body for body, _ in store.letters()] == bodies
    else:
        found = store.engine.read("%DLQ%g", 0, 0, 100, 64 << 20).records
        assert [body_of(record) for record in found] == bodies
    assert store.engine.offset_range("t", 1) == (0, 1)
