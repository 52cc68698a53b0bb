"""SEND frames without I/O: limits, numbering, settling; mapping and matching rules."""

import gc
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.addressing import Addressing
from gateway.clusters.batches import Batch, Copy, Lane, Run, are_plain
from gateway.clusters.frames import (
    FRAME_COUNT_MIN,
    FRAMES_AHEAD,
    FRAMES_IN_FLIGHT_MAX,
    IN_FLIGHT_BYTES_MAX,
    Frame,
    FrameSender,
)
from gateway.mapping import is_reserved, is_system_topic, qualified, without_reserved
from gateway.matching import MatchingTable, encode_row, row_key
from protocols.canonical import Head, Message, QueueKind, QueueRef, SendResults
from protocols.directory import Record, Subscription
from protocols.errors import Code
from protocols.message_runs import MessageRun
from protocols.remoting import sending
from protocols.remoting.private import FRAME_BYTES_MAX
from protocols.remoting.records import MessageIds, decode_record, split_records
from protocols.remoting.templates import RecordTemplate
from protocols.subjects import matches
from tests.support.core import call

HEAD = Head(subject="x")
IDS = MessageIds(b"\x7f\x00\x00\x01", 1, 2)


class Sender:
    """A FrameSender whose frames are kept."""

    def __init__(self) -> None:
        self.written: list[tuple[Frame, sending.SendFrame]] = []
        self.frames = FrameSender(self._write)
        self.frames.opened(7, 0)
        self.done: list[SendResults] = []

    def _write(self, frame: Frame, body: bytes) -> None:
        self.written.append((frame, sending.decode_send(body)))

    def submit(self, messages: list[Message] | MessageRun) -> Batch:
        batch = Batch(
            call(),
            messages,
            IDS.take_many(1, len(messages)),
            self.done.append,
            sequence=1,
            size_bytes=sum(len(message.body) for message in messages),
            is_plain=are_plain(messages),
        )
        copy = Copy(
            link=None,  # type: ignore[arg-type]  # frames do not look at it
            head=HEAD,
            topic="t",
            queue_id=1,
            is_primary=True,
            queues=(),
            set_bytes=sending.encode_set(sending.SendSet(1, "t", 1, ())),
            template=RecordTemplate("t", ()),
        )
        batch.remaining += len(messages)
        batch.settle(1)
        self.frames.submit(Run(batch, 0, len(messages), copy))
        self.flush()
        return batch

    def flush(self) -> None:
        self.frames.flush(now=1.0, wall_ms=1_700_000_000_000)

    def answer(self, number: int) -> None:
        count = next(len(sent.items) for frame, sent in self.written if frame.number == number)
        answer = sending.SendAnswer(number, array("Q", range(count)), array("q", range(count)), {})
        self.frames.answered(number, sending.encode_send_answer(answer))
        self.flush()


@pytest.mark.parametrize("is_run", [False, True])
def test_a_frame_has_at_most_1024_items(is_run: bool) -> None:
    """The rest follows in the next, in order; both forms of a batch give the same records."""
    bodies = [b"%d" % index for index in range(4000)]
    sender = Sender()
    batch = sender.submit(
        MessageRun(HEAD, bodies) if is_run else [Message(HEAD, body) for body in bodies]
    )
    for number in range(1, 5):
        sender.answer(number)
    assert [len(sent.items) for _, sent in sender.written] == [1024, 1024, 1024, 928]
    assert [sent.answered for _, sent in sender.written] == [0, 0, 0, 1]
    records = [record for _, sent in sender.written for record in split_records(sent.records)]
    assert len(records) == 4000
    assert batch.remaining == 0
    assert sender.frames.pending_count == sender.frames.pending_bytes == 0


def post_and_keep() -> int:
    """As a future keeps results that is told by a function which knows the future; how many."""
    kept: list[SendResults] = []

    def told(results: SendResults) -> None:
        kept.append(results)

    ids = IDS.take_many(1, 1)
    batch = Batch(call(), [Message(HEAD, b"x")], ids, told, sequence=1, size_bytes=1)
    batch.lane = Lane()
    batch.lane.batches.append(batch)
    batch.settle(1)
    return len(kept)


def test_a_batch_whose_results_are_kept_is_no_garbage() -> None:
    gc.collect()
    gc.disable()
    try:
        assert post_and_keep() == 1
        assert not any(type(item) is Batch for item in gc.get_objects())
    finally:
        gc.enable()


def test_a_frame_has_at_most_four_mebibytes() -> None:
    """Bodies of one mebibyte: three to a frame, and one larger than a frame goes alone."""
    sender = Sender()
    sender.submit([Message(HEAD, b"x" * (1 << 20))] * 7)
    sender.answer(1)
    assert [len(sent.items) for _, sent in sender.written] == [3, 3, 1]
    sender.answer(2)
    sender.answer(3)
    sender.submit([Message(HEAD, b"x" * (4 << 20)), Message(HEAD, b"y")])
    sender.answer(4)
    assert [len(sent.items) for _, sent in sender.written[3:]] == [1, 1]


def test_little_waits_for_the_frame_that_is_under_way() -> None:
    """And leaves with its answer, in one frame."""
    sender = Sender()
    for body in (b"1", b"2", b"3"):
        sender.submit([Message(HEAD, body)])
    assert [len(sent.items) for _, sent in sender.written] == [1]
    sender.submit([Message(HEAD, b"4")] * FRAME_COUNT_MIN)
    assert [len(sent.items) for _, sent in sender.written] == [1, 2 + FRAME_COUNT_MIN]
    sender.submit([Message(HEAD, b"5")])
    sender.answer(1)
    assert len(sender.written) == 2
    sender.frames.refused(2, Code.HA_NOT_AVAILABLE, "fenced")
    sender.flush()
    assert [len(sent.items) for _, sent in sender.written] == [1, 2 + FRAME_COUNT_MIN, 1]


def test_full_frames_follow_before_the_first_is_answered() -> None:
    """Up to so many, and so many bytes; what fills none waits for an answer."""
    sender = Sender()
    sender.submit(MessageRun(HEAD, [b"1"] * 1024 * (FRAMES_IN_FLIGHT_MAX + 1)))
    assert [len(sent.items) for _, sent in sender.written] == [1024] * FRAMES_IN_FLIGHT_MAX
    sender = Sender()
    sender.submit(MessageRun(HEAD, [b"1"] * (1024 * FRAMES_AHEAD + 1023)))
    assert len(sender.written) == FRAMES_AHEAD
    sender = Sender()
    sender.submit(MessageRun(HEAD, [b"1" * 3000] * 1024 * FRAMES_IN_FLIGHT_MAX))
    in_flight = [len(sent.records) for _, sent in sender.written]
    assert IN_FLIGHT_BYTES_MAX <= sum(in_flight) < IN_FLIGHT_BYTES_MAX + FRAME_BYTES_MAX


def test_a_message_that_cannot_be_encoded_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """An adapter let something through: it alone is refused, and the log says why."""
    sender = Sender()
    bodies = [b"1", b"2", b"3"]
    wrong = Message(HEAD, b"2", expires_at_ms=-1)
    batch = sender.submit([Message(HEAD, b"1", keys="k"), wrong, Message(HEAD, b"3")])
    ((_, sent),) = sender.written
    found = [decode_record(record).body for record in split_records(sent.records)]
    assert found == [bodies[0], bodies[2]]
    assert {index: failure.code for index, failure in batch.failures.items()} == {
        1: Code.INTERNAL_ERROR
    }
    assert "cannot be stored" in caplog.text
    sender.answer(1)
    assert batch.remaining == 0
    assert sender.frames.pending_count == sender.frames.pending_bytes == 0


def test_a_frame_refused_as_a_whole_refuses_its_messages() -> None:
    sender = Sender()
    batch = sender.submit([Message(HEAD, b"1"), Message(HEAD, b"2")])
    sender.frames.refused(1, Code.HA_NOT_AVAILABLE, "fenced")
    assert [batch.failures[index].code for index in (0, 1)] == [Code.HA_NOT_AVAILABLE] * 2


def test_a_record_has_the_applications_flag() -> None:
    sender = Sender()
    sender.submit([Message(HEAD, b"a", flag=-7), Message(HEAD, b"b"), Message(HEAD, b"c", flag=9)])
    ((_, sent),) = sender.written
    records = [decode_record(record) for record in split_records(sent.records)]
    assert [record.flag for record in records] == [-7, 0, 9]


def test_unsettled_frames_are_given_up_or_settled() -> None:
    """After the connection is lost a frame has an unknown fate until the store is asked."""
    sender = Sender()
    first = sender.submit([Message(HEAD, b"1")])
    sender.submit([Message(HEAD, b"2")] * FRAME_COUNT_MIN)
    sender.frames.lost()
    assert [frame.number for frame in sender.frames.unsettled] == [1, 2]
    answer = sending.SendAnswer(1, array("Q", [5]), array("q", [0]), {})
    assert (
        sender.frames.settled(sender.frames.unsettled[0], sending.encode_send_answer(answer)) == []
    )
    assert first.remaining == 0
    (run,) = sender.frames.settled(sender.frames.unsettled[1], None)
    assert run.batch.messages[run.start].body == b"2"


def test_numbers_start_anew_with_an_epoch() -> None:
    """And never below what the store has seen of this epoch."""
    sender = Sender()
    sender.submit([Message(HEAD, b"1")])
    sender.answer(1)
    sender.frames.opened(8, 0)
    sender.submit([Message(HEAD, b"2")])
    assert [(sent.gateway_epoch, sent.frame) for _, sent in sender.written] == [(7, 1), (8, 1)]
    sender.answer(1)
    sender.frames.opened(8, 41)
    sender.submit([Message(HEAD, b"3")])
    assert sender.written[-1][1].frame == 42


# ── mapping ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("subject", "topic"),
    [
        ("sensors/1/temp", "sensors"),
        ("sensors", "sensors"),
        ("unknown/1", "mqtt"),
        ("/sensors", "mqtt"),
        ("$SYS/x", "mqtt"),
        ("TBW102/x", "mqtt"),
        ("rmq_sys_x/1", "mqtt"),
        ("%RETRY%g/1", "mqtt"),
        ("ä/1", "mqtt"),
    ],
)
def test_topic_of_a_subject(subject: str, topic: str) -> None:
    known = {"sensors", "TBW102", "rmq_sys_x", "%RETRY%g", "ä"}
    assert Addressing().topic("mqtt", "", subject, known.__contains__) == topic


def test_a_tenants_topics_are_in_its_namespace() -> None:
    topic = Addressing().topic
    assert topic("mqtt", "acme", "sensors/1", {"acme%sensors"}.__contains__) == "acme%sensors"
    assert topic("mqtt", "acme", "sensors/1", {"sensors"}.__contains__) == "acme%mqtt"


def test_a_tenant_names_only_its_own_dead_letters() -> None:
    """Behind the prefix, where the group's name has it; once is enough."""
    assert qualified("acme", "%DLQ%g") == "%DLQ%acme%g"
    assert qualified("acme", "%RETRY%acme%g") == "%RETRY%acme%g"
    assert qualified("acme", "%DLQ%other%g") == "%DLQ%acme%other%g"
    assert qualified("", "%DLQ%g") == "%DLQ%g"


def test_reserved_names() -> None:
    """Names of brokers and of the gateway go, all others stay; nothing to drop copies nothing."""
    assert is_reserved("INNER_MULTI_DISPATCH")
    assert is_reserved("TIMER_DELIVER_MS")
    assert not is_reserved("TG_CONTENT_TYPE")
    assert not is_reserved("CORRELATION_ID")
    mine = (("a", "1"),)
    assert without_reserved(mine) is mine
    assert is_system_topic("%SYS%x")


# ── matching ────────────────────────────────────────────────────────────────────────────

levels = st.sampled_from(["a", "b", "$x", ""])
subjects = st.lists(levels, min_size=1, max_size=4).map("/".join).filter(bool)
filters = st.lists(st.one_of(levels, st.just("+")), min_size=1, max_size=4).flatmap(
    lambda parts: st.sampled_from(["/".join(parts) or "+", "/".join([*parts, "#"])])
)


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), filters, st.integers(0, 2))), st.lists(subjects))
def test_the_table_matches_like_the_rule(
    changes: list[tuple[bool, str, int]], asked: list[str]
) -> None:
    """However rows come and go, a match is what the one rule says, and caches never lie."""
    table = MatchingTable()
    rows: dict[str, str] = {}
    for version, (is_put, subject_filter, owner) in enumerate(changes, 1):
        row = Subscription(subject_filter, QueueRef(QueueKind.FILTER, subject_filter), str(owner))
        key = row_key(row, "")
        rows.pop(key, None)
        if is_put:
            rows[key] = subject_filter
        table.apply([Record(key, encode_row(row, "") if is_put else None, version)])
        for subject in asked:
            expected = {item for item in rows.values() if matches(item, subject)}
            assert {queue.name for queue in table.match("", subject)} == expected
    assert table.match("other", "a") == ()
