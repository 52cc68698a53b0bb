"""Numbered frames, settle, fences, once-keys, refusals; standard appends; retained values."""

import pytest

from protocols.canonical import RELEASED_ONCE_PREFIX, QueueKind, queue_key
from protocols.errors import Code, Refused
from protocols.remoting.sending import SendAnswer, decode_send_answer
from store.answers import AppendRecord, EngineConfig, Pending, TopicConfig
from store.log.messages import store_ms, topic_of
from tests.store.engine_kit import Driver, body_of, filter_key, make_frame, make_record

A = filter_key("a")


@pytest.fixture
def store() -> Driver:
    driver = Driver()
    driver.topic("t")
    return driver


def send(store: Driver, epoch: int, number: int, *bodies: bytes, **facts: object) -> SendAnswer:
    frame = make_frame(epoch, number, bodies, **facts)  # type: ignore[arg-type] # test data
    pending = store.engine.send("gw", frame, store.now)
    store.drain()
    return pending.result()


def stored(store: Driver, queue_id: int = 0) -> list[bytes]:
    result = store.engine.read("t", queue_id, 0, 100, 1 << 20)
    return [body_of(record) for record in result.records]


def test_records_are_patched_with_offset_position_and_store_time(store: Driver) -> None:
    answer = send(store, 1, 1, b"x", b"y")
    for offset, position in enumerate(answer.positions):
        record = store.engine.record_at(position)
        assert int.from_bytes(record[20:28], "big") == offset
        assert int.from_bytes(record[28:36], "big") == position
        assert store_ms(record) == store.now.wall_ms
    assert list(answer.offsets) == [0, 1]


def test_a_frame_sent_again_is_answered_not_run(store: Driver) -> None:
    first = send(store, 1, 1, b"x")
    assert send(store, 1, 1, b"x") == first
    assert stored(store) == [b"x"]
    store.restart()
    assert send(store, 1, 1, b"x").positions == first.positions
    assert stored(store) == [b"x"]


def test_the_answer_waits_for_the_sync(store: Driver) -> None:
    pending = store.engine.send("gw", make_frame(1, 1, [b"x"]), store.now)
    heard: list[Pending[SendAnswer]] = []
    pending.notify = heard.append
    batch = store.engine.take_writes()
    assert batch is not None
    batch.execute(store.disk)
    assert not pending.is_done
    done = store.engine.confirm(batch)
    assert heard == [pending]
    assert pending in done


def test_a_settled_frame_number_is_spent_also_after_a_restart(store: Driver) -> None:
    settled = store.engine.gateways.settle("gw", 1, 3, store.now)
    store.drain()
    assert not settled.result().did_run
    store.restart()
    assert store.engine.gateways.last_frame("gw", 1) == 3
    with pytest.raises(Refused, match="settled"):
        send(store, 1, 3, b"x")


def test_a_fenced_epoch_sends_no_more(store: Driver) -> None:
    send(store, 5, 1, b"x")
    store.engine.gateways.fence("gw", 5, store.now)
    store.drain()
    store.restart()
    assert store.engine.gateways.is_fenced("gw", 5)
    with pytest.raises(Refused, match="epoch has ended"):
        send(store, 5, 2, b"y")
    send(store, 6, 1, b"z")
    with pytest.raises(Refused, match="epoch has ended"):
        send(store, 5, 3, b"y")


@pytest.mark.parametrize("restarts", [False, True])
def test_the_frames_of_a_fenced_epoch_can_be_settled(store: Driver, restarts: bool) -> None:
    """Their gateway joins again only when it knows what became of them."""
    answer = send(store, 5, 1, b"x")
    store.engine.gateways.fence("gw", 5, store.now)
    store.drain()
    if restarts:
        store.restart()
    ran = store.engine.gateways.settle("gw", 5, 1, store.now)
    never = store.engine.gateways.settle("gw", 5, 2, store.now)
    earlier = store.engine.gateways.settle("gw", 4, 9, store.now)
    store.drain()
    assert decode_send_answer(ran.result().answer) == answer
    assert not never.result().did_run
    assert not earlier.result().did_run
    send(store, 6, 1, b"z")


@pytest.mark.parametrize("restarts", [False, True])
def test_after_a_refusal_its_order_key_is_refused_until_acknowledged(
    store: Driver, restarts: bool
) -> None:
    """Otherwise a later message of the key would overtake the refused one."""
    refused = send(store, 1, 1, b"1", order=7, topic="nowhere")
    assert refused.refused[0][0] == Code.TOPIC_NOT_FOUND
    if restarts:
        store.restart()
    mixed = send(store, 1, 2, b"2", b"other", orders=[7, 8])
    assert list(mixed.refused) == [0]
    assert (mixed.positions[0], mixed.offsets[0], mixed.offsets[1]) == (0, -1, 0)
    assert send(store, 1, 3, b"3", order=7, answered=1).refused
    assert not send(store, 1, 4, b"4", order=7, answered=3).refused
    assert stored(store) == [b"other", b"4"]


def test_results_with_refusals_are_read_back_from_the_log(store: Driver) -> None:
    gone = queue_key("", QueueKind.AMQP, "gone")
    send(store, 1, 1, b"1", order=7, topic="nowhere")
    answer = send(store, 1, 2, b"1", b"2", orders=[7, 0], keys=[A, gone])
    store.restart()
    settled = store.engine.gateways.settle("gw", 1, 2, store.now)
    store.drain()
    assert decode_send_answer(settled.result().answer) == answer._replace(
        partial=[(1, gone, int(Code.NOT_FOUND))]
    )


@pytest.mark.parametrize("restarts", [False, True])
def test_a_once_key_makes_a_repeat_harmless(store: Driver, restarts: bool) -> None:
    """In a later frame, in the same frame, and after a restart; until the window has passed."""
    key, other = b"k" * 16, b"o" * 16
    first = send(store, 1, 1, b"1", once_keys=[key])
    if restarts:
        store.restart()
    again = send(store, 1, 2, b"1", b"2", b"2", once_keys=[key, other, other])
    assert again.positions[0] == first.positions[0]
    assert again.offsets[0] == first.offsets[0]
    assert again.positions[1] == again.positions[2]
    assert stored(store) == [b"1", b"2"]
    store.later(store.config.once_window_s + 1)
    send(store, 1, 3, b"1", once_keys=[key])
    assert stored(store) == [b"1", b"2", b"1"]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_released_once_key_names_another_message(store: Driver, restarts: bool) -> None:
    """A key of QoS 2 outlives the window, and ends with its release, also over a restart."""
    key = (RELEASED_ONCE_PREFIX + b"\x00session").ljust(16, b"p")
    first = send(store, 1, 1, b"1", once_keys=[key])
    store.later(store.config.once_window_s + 1)
    if restarts:
        store.restart()
    again = send(store, 1, 2, b"1", once_keys=[key])
    assert again.positions == first.positions
    store.engine.gateways.release_once([key, b"u" * 16], store.now)
    store.drain()
    if restarts:
        store.restart()
    send(store, 1, 3, b"2", once_keys=[key])
    assert stored(store) == [b"1", b"2"]


def test_topics_must_exist_unless_they_may_come_into_being() -> None:
    store = Driver(config=EngineConfig(segment_bytes=64 << 10, auto_create_queue_count=2))
    answer = send(store, 1, 1, b"x", topic="new")
    assert not answer.refused
    assert store.engine.catalog.topics["new"].write_queue_count == 2
    assert send(store, 1, 2, b"x", topic="no/slash").refused[0][0] == Code.ILLEGAL_TOPIC
    assert send(store, 1, 3, b"x", topic="new", queue_id=2).refused[0][0] == Code.BAD_REQUEST
    store.engine.catalog.put_topic(TopicConfig("new", perm=4), store.now)
    assert send(store, 1, 4, b"x", topic="new").refused[0][0] == Code.FORBIDDEN


def test_a_copy_for_light_queues_only_is_in_no_message_queue(store: Driver) -> None:
    answer = send(store, 1, 1, b"x", keys=[A], set_flags=0)
    assert list(answer.offsets) == [-1]
    assert stored(store) == []
    found = store.engine.read_light(A, 0, 10, 1 << 20)
    assert [body_of(record) for record in found.records] == [b"x"]


# ── standard codes ──────────────────────────────────────────────────────────────────────


def test_standard_appends_share_queues_and_offsets_with_frames(store: Driver) -> None:
    send(store, 1, 1, b"frame")
    records = [
        AppendRecord("t", 0, make_record("t", b"one", TAGS="x"), keys=(A,)),
        AppendRecord("t", 3, make_record("t", b"two")),
        AppendRecord("none", 0, make_record("none", b"three")),
        AppendRecord("t", 0, b"no record"),
    ]
    pending = store.engine.append(records, store.now)
    store.drain()
    results = pending.result()
    assert [(one.code, one.queue_id, one.offset) for one in results] == [
        (Code.OK, 0, 1),
        (Code.OK, 3, 0),
        (Code.TOPIC_NOT_FOUND, 0, -1),
        (Code.MESSAGE_CORRUPTED, 0, -1),
    ]
    assert stored(store) == [b"frame", b"one"]
    assert int.from_bytes(store.engine.record_at(results[1].position)[12:16], "big") == 3


def test_an_append_without_a_queue_takes_them_in_turn(store: Driver) -> None:
    records = [AppendRecord("t", -1, make_record("t", b"x")) for _ in range(8)]
    pending = store.engine.append(records, store.now)
    store.drain()
    assert sorted(one.queue_id for one in pending.result()) == [0, 0, 1, 1, 2, 2, 3, 3]


# ── reads by offset ─────────────────────────────────────────────────────────────────────


def test_reads_by_offset_name_their_outcome(store: Driver) -> None:
    send(store, 1, 1, *[b"%d" % n for n in range(10)], TAGS="x")
    read = store.engine.read
    assert read("t", 0, 10, 5, 1000).status.value == "no new"
    assert read("t", 0, 11, 5, 1000).next_offset == 10
    assert read("nowhere", 0, 0, 5, 1000).status.value == "no queue"
    assert read("t", 0, 0, 5, 10).next_offset == 1
    assert read("t", 0, 3, 5, 1 << 20).next_offset == 8
    assert read("t", 0, 0, 5, 1 << 20, frozenset(["y"])).status.value == "no match"
    assert store.engine.offset_range("t", 0) == (0, 10)
    assert store.engine.entry_position("t", 0, 10) == -1


def test_offsets_by_time(store: Driver) -> None:
    times = []
    for number in range(5):
        store.later(10)
        times.append(store.now.wall_ms)
        send(store, 1, number + 1, b"x")
    find = store.engine.offset_by_time
    assert find("t", 0, times[0] - 1) == 0
    assert [find("t", 0, at) for at in times] == [0, 1, 2, 3, 4]
    assert find("t", 0, times[2] + 1) == 3
    assert find("t", 0, times[4] + 1) == 5


def test_records_out_of_the_cache_come_from_disk() -> None:
    store = Driver(config=EngineConfig(segment_bytes=64 << 10, cache_bytes_max=1000))
    store.topic("t")
    answers = [send(store, 1, number + 1, b"%d" % number, bytes(500)) for number in range(40)]
    for number, answer in enumerate(answers):
        assert body_of(store.engine.record_at(answer.positions[0])) == b"%d" % number
    with pytest.raises(Refused):
        store.engine.record_at(answers[0].positions[0] + 1)


# ── retained ────────────────────────────────────────────────────────────────────────────

RETAINED = 1 | 2  # primary, and the last key is the retained queue


def test_the_last_retained_message_of_each_address(store: Driver) -> None:
    """By tenant and filter; an empty one forgets; a restart keeps it."""
    key = queue_key("", QueueKind.RETAINED, "$retained")
    facts = {"keys": [key], "set_flags": RETAINED, "item_flags": 5}
    send(store, 1, 1, b"old", TG_SUBJECT="a/b", **facts)
    send(store, 1, 2, b"new", TG_SUBJECT="a/b", **facts)
    send(store, 1, 3, b"c", TG_SUBJECT="a/c", **facts)
    store.topic("acme%t")
    send(store, 1, 4, b"other", topic="acme%t", TG_SUBJECT="a/b", **facts)
    for restarts in (False, True):
        if restarts:
            store.restart()
        values = [body_of(record) for record in store.engine.retained("", "a/+")]
        assert values == [b"new", b"c"]
        assert [body_of(r) for r in store.engine.retained("acme", "#")] == [b"other"]
    send(store, 1, 5, b"", TG_SUBJECT="a/b", **(facts | {"item_flags": 13}))
    assert [body_of(record) for record in store.engine.retained("", "a/b")] == []
    store.restart()
    assert [body_of(record) for record in store.engine.retained("", "#")] == [b"c"]


def test_a_retained_value_shows_when_it_is_durable(store: Driver) -> None:
    key = queue_key("", QueueKind.RETAINED, "$retained")
    frame = make_frame(1, 1, [b"x"], keys=[key], set_flags=RETAINED, item_flags=5, TG_SUBJECT="a")
    store.engine.send("gw", frame, store.now)
    assert store.engine.retained("", "a") == []
    store.drain()
    assert len(store.engine.retained("", "a")) == 1


# ── settings and offsets ────────────────────────────────────────────────────────────────


def test_settings_offsets_and_topics_survive(store: Driver) -> None:
    engine = store.engine
    engine.catalog.put_setting("group", "g", b"{}", store.now)
    engine.catalog.put_setting("group", "gone", b"{}", store.now)
    engine.catalog.put_setting("group", "gone", None, store.now)
    engine.catalog.commit_offsets([("g", "t", 0, 5), ("g", "t", 1, 6)], store.now)
    engine.catalog.put_topic(TopicConfig("u", 1, 1, attributes={"message.type": "FIFO"}), store.now)
    engine.catalog.put_topic(TopicConfig("v"), store.now)
    engine.catalog.delete_topic("v", store.now)
    store.drain()
    engine = store.restart()
    assert dict(engine.catalog.settings("group")) == {"g": b"{}"}
    catalog = engine.catalog
    assert (catalog.query_offset("g", "t", 1), catalog.query_offset("g", "t", 2)) == (6, -1)
    assert dict(catalog.offsets_of("g")) == {("t", 0): 5, ("t", 1): 6}
    assert engine.catalog.topics["u"].attributes == {"message.type": "FIFO"}
    assert "v" not in engine.catalog.topics
    assert topic_of(make_record("t", b"")) == "t"
