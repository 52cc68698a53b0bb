"""
The worked example of the semantics page, "one session, two stores", at the engine's level.

Positions differ from the page (real records have other sizes); their relations do not.
"""

import pytest

from protocols.errors import Code, Refused
from protocols.remoting.private import GroupOpen, GroupOpened, IndexItem, ReadItem
from protocols.remoting.sending import decode_send_answer
from protocols.remoting.settling import MarkItem
from store.answers import GroupState
from tests.store.engine_kit import Driver, filter_key, make_frame

PLUS, LITERAL = filter_key("a/+"), filter_key("a/b")
SENT, RECEIVED = 1, 2


class Example:
    """Session c1 on stores S1 and S2."""

    def __init__(self) -> None:
        self.s1, self.s2 = Driver(), Driver()
        for store in (self.s1, self.s2):
            store.topic("a", 4)
            store.open("mqtt//d", [ReadItem(tag=1, key=PLUS, name="a/+")])
        self.group1 = self.subscribe(self.s1, 4).group
        self.group2 = self.subscribe(self.s2, 4).group
        self.start1, self.start2 = self.state1.cursor, self.state2.cursor

    def subscribe(self, store: Driver, owner_epoch: int, *, has_plus: bool = True) -> GroupOpened:
        """Rows 1, 4 and 7: the read set of owner epoch *owner_epoch*."""
        reads = [ReadItem(tag=2, key=LITERAL, name="a/b")]
        if has_plus:
            reads.insert(0, ReadItem(tag=1, key=PLUS, name="a/+"))
        spec = GroupOpen(name="mqtt//c1", reads=reads, owner_epoch=owner_epoch, is_inherited=True)
        pending = store.engine.open_group(spec, store.now)
        store.drain()
        return pending.result()

    @property
    def state1(self) -> GroupState:
        return self.s1.engine.group_state(self.s1.engine.group_number("mqtt//c1"))

    @property
    def state2(self) -> GroupState:
        return self.s2.engine.group_state(self.s2.engine.group_number("mqtt//c1"))

    def publish(self) -> None:
        """Row 2: p sends m1 and m2 on S1 in one frame, r sends m3 on S2."""
        m1 = self.s1.send(
            b"m1", topic="a", queue_id=1, keys=(PLUS, LITERAL), item_flags=2,
            once_keys=[b"p".ljust(15) + b"\x11"],
        )  # fmt: skip
        m2 = self.s1.send(b"m2", topic="a", queue_id=1, keys=(PLUS,))
        m3 = self.s2.send(b"m3", topic="a", keys=(PLUS, LITERAL))
        self.m1, self.m2, self.m3 = m1[0], m2[0], m3[0]

    def deliver(self) -> None:
        """Row 3: A takes packet ids; that of the QoS 2 message is durable first."""
        self.one, self.two = self.s1.take(self.group1, holder=11)
        (self.three,) = self.s2.take(self.group2, holder=12)
        self.mark(self.s1, self.group1, self.one.position, self.one.grant, 1, SENT)
        self.mark(self.s1, self.group1, self.two.position, self.two.grant, 2, SENT)
        self.mark(self.s2, self.group2, self.three.position, self.three.grant, 3, SENT)

    def mark(
        self, store: Driver, group: int, position: int, grant: int, packet_id: int, stage: int
    ) -> int:
        item = MarkItem(group, position, grant, packet_id, stage)
        pending = store.engine.mark(store.engine.epoch, [item], store.now)
        store.drain()
        return pending.result()[0][1]

    def acknowledge(self) -> None:
        """PUBREC 1, then PUBACK 2 and 3."""
        self.mark(self.s1, self.group1, self.one.position, self.one.grant, 1, RECEIVED)
        self.s1.ack(self.group1, [self.two])
        self.s2.ack(self.group2, [self.three])


@pytest.fixture
def example() -> Example:
    example = Example()
    example.publish()
    example.deliver()
    return example


def end_of(store: Driver, position: int) -> int:
    return position + len(store.engine.record_at(position))


def flights(state: GroupState) -> list[tuple[int, int, int]]:
    return [(item.position, item.packet_id, item.stage) for item in state.in_flight]


def test_row_1_subscribing_fixes_the_start_at_the_end_of_each_log() -> None:
    """A new group reads what is stored from now on; its cursor is where the log ends."""
    example = Example()
    reads = example.state1.reads
    assert [(tag, low, high) for tag, _, low, high in reads] == [
        (1, example.start1, -1),
        (2, example.start1, -1),
    ]
    assert example.s1.take(example.group1) == []


def test_row_3_an_entry_met_in_two_queues_is_one_delivery(example: Example) -> None:
    """m1 lists both subscriptions and its QoS; m2 only a/+; S2 merges for itself."""
    assert (example.one.position, example.one.tags, example.one.flags & 3) == (
        example.m1,
        (1, 2),
        2,
    )
    assert (example.two.position, example.two.tags, example.two.flags & 3) == (example.m2, (1,), 1)
    assert (example.three.position, example.three.tags) == (example.m3, (1, 2))


def test_row_3_after_the_grants_the_cursor_has_not_moved(example: Example) -> None:
    assert example.state1.cursor == example.start1
    assert example.state1.ahead == ()
    assert flights(example.state1) == [(example.m1, 1, SENT), (example.m2, 2, SENT)]
    assert flights(example.state2) == [(example.m3, 3, SENT)]


def test_row_3_the_cursor_passes_only_what_is_contiguously_done(example: Example) -> None:
    """PUBACK 2 stays ahead of the cursor while packet 1 is open; S2's cursor passes m3."""
    example.acknowledge()
    assert example.state1.cursor == example.start1
    assert example.state1.ahead == (example.m2,)
    assert flights(example.state1) == [(example.m1, 1, RECEIVED)]
    assert example.state2.cursor == end_of(example.s2, example.m3)
    assert example.state2.in_flight == ()


def take_over(example: Example) -> None:
    """Row 4: A is gone (kill -9); c1 connects at B with owner epoch 5."""
    example.s1.engine.end_holder(11, example.s1.now, is_lost=True)
    example.s2.engine.end_holder(12, example.s2.now, is_lost=True)
    example.subscribe(example.s1, 5)
    example.subscribe(example.s2, 5)


def test_row_4_the_next_owner_inherits_packet_ids_and_stages(example: Example) -> None:
    """B sees packet 1 received: it sends PUBREL, not PUBLISH; PUBCOMP moves the cursor."""
    example.acknowledge()
    take_over(example)
    (again,) = example.s1.engine.resume(example.group1, 21, [], example.s1.now)
    assert (again.position, again.packet_id, again.stage) == (example.m1, 1, RECEIVED)
    assert again.tags == (1, 2)
    assert example.s1.take(example.group1, holder=21) == []
    assert example.s1.ack(example.group1, [again]) == [Code.OK]
    assert example.state1.cursor == end_of(example.s1, example.m2)
    assert (example.state1.in_flight, example.state1.ahead) == ((), ())


def test_row_4_a_late_ack_of_the_old_owner_is_refused(example: Example) -> None:
    example.acknowledge()
    take_over(example)
    assert example.s1.ack(example.group1, [example.one]) == [Code.INVALID_RECEIPT_HANDLE]
    with pytest.raises(Refused, match="newer owner"):
        example.subscribe(example.s1, 4)


def test_row_4_before_the_ack_was_durable_both_ids_come_again(example: Example) -> None:
    """A died before row 2: B resends PUBLISH pid 1 with DUP and both subscription ids."""
    take_over(example)
    one, two = example.s1.engine.resume(example.group1, 21, [], example.s1.now)
    assert (one.packet_id, one.stage, one.attempt, one.tags) == (1, SENT, 2, (1, 2))
    assert (two.packet_id, two.stage, two.attempt, two.tags) == (2, SENT, 2, (1,))


def test_row_5_a_crash_of_the_store_replays_to_the_same_row(example: Example) -> None:
    """What was acknowledged to A is in the log; deliveries of c1 stay with c1."""
    example.acknowledge()
    before = example.state1
    example.s1.restart()
    after = example.state1
    assert (after.cursor, after.ahead, after.reads) == (before.cursor, before.ahead, before.reads)
    assert flights(after) == flights(before)
    example.s1.later(3600)
    assert flights(example.state1) == flights(before)


def test_row_5_an_open_frame_is_settled_after_the_crash() -> None:
    """A frame that ran answers as before; one that did not is spent and may go in a new frame."""
    store = Driver()
    store.topic("a")
    first = store.engine.send("gw-A", make_frame(12, 40, [b"m"], topic="a"), store.now)
    store.drain()
    lost = store.engine.send("gw-A", make_frame(12, 41, [b"n"], topic="a"), store.now)
    engine = store.restart()  # frame 41 never reached the disk
    ran = engine.gateways.settle("gw-A", 12, 40, store.now)
    spent = engine.gateways.settle("gw-A", 12, 41, store.now)
    store.drain()
    assert decode_send_answer(ran.result().answer).positions == first.result().positions
    assert not spent.result().did_run
    assert not lost.is_done
    with pytest.raises(Refused, match="settled"):
        engine.send("gw-A", make_frame(12, 41, [b"n"], topic="a"), store.now)


def finish(example: Example) -> None:
    """Row 4 as far as the end: everything so far is done on S1."""
    example.acknowledge()
    take_over(example)
    example.s1.ack(example.group1, example.s1.engine.resume(example.group1, 21, [], example.s1.now))


def test_row_6_a_late_entry_is_delivered_once_though_the_cursor_passed(example: Example) -> None:
    """m4 was stored before m5, but enters the queues by an index record above the cursor."""
    finish(example)
    (m4,) = example.s1.send(b"m4", topic="a")
    (m5,) = example.s1.send(b"m5", topic="a", keys=(PLUS,))
    example.s1.ack(example.group1, example.s1.take(example.group1, holder=21))
    assert example.state1.cursor == end_of(example.s1, m5) > m4
    example.s1.engine.index(0, [IndexItem(m4, [PLUS, LITERAL])], example.s1.now)
    example.s1.drain()
    (late,) = example.s1.take(example.group1, holder=21)
    assert late.position > example.state1.cursor
    assert (late.record_position, late.tags) == (m4, (1, 2))
    assert example.s1.bodies([late]) == [b"m4"]
    example.s1.ack(example.group1, [late])
    assert example.s1.take(example.group1, holder=21) == []


def test_row_6_the_index_record_acks_the_delivery_that_caused_it(example: Example) -> None:
    """Its block holds both, and a stale grant refuses both."""
    store = example.s1
    dispatch = store.open("dispatch", [ReadItem(tag=1, key=filter_key("$dispatch"))])
    (m4,) = store.send(b"m4", topic="a", keys=(filter_key("$dispatch"),))
    (cause,) = store.take(dispatch, holder=3)
    item = IndexItem(m4, [PLUS], dispatch, cause.position, cause.grant)
    first = store.engine.index(store.engine.epoch, [item, item], store.now)
    store.drain()
    assert [code for _, code in first.result()] == [Code.OK, Code.INVALID_RECEIPT_HANDLE]
    assert store.engine.group_state(dispatch).in_flight == ()
    again = store.engine.index(store.engine.epoch, [item], store.now)
    store.drain()
    assert [code for _, code in again.result()] == [Code.INVALID_RECEIPT_HANDLE]


def test_row_7_an_unsubscribed_filter_ends_where_the_log_ended(example: Example) -> None:
    """Later entries of a/+ go to d only; a/b goes on with the same cursor."""
    finish(example)
    (before,) = example.s1.send(b"before", topic="a", keys=(PLUS,))
    end = example.s1.engine.end
    example.subscribe(example.s1, 5, has_plus=False)
    (after,) = example.s1.send(b"after", topic="a", keys=(PLUS,))
    (literal,) = example.s1.send(b"literal", topic="a", keys=(PLUS, LITERAL))
    granted = example.s1.take(example.group1, holder=21)
    assert [(one.position, one.tags) for one in granted] == [(before, (1,)), (literal, (2,))]
    ranges = {(tag, high) for tag, _, _, high in example.state1.reads}
    assert ranges in ({(2, -1)}, {(1, end), (2, -1)})
    d = example.s1.engine.group_number("mqtt//d")
    positions = [one.position for one in example.s1.take(d)]
    assert after in positions
    assert literal in positions
