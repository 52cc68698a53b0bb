"""The short way in: what it takes for plain, and the ids that it answers."""

import pytest

from protocols.canonical import DISPATCH_KEY
from protocols.errors import Code
from protocols.remoting.plain_records import PlainRecords
from store.answers import TopicConfig
from store.handlers.plain import ids_of_runs, message_ids
from store.plain import PlainHead, PlainRun, RunResult
from tests.store.engine_kit import Driver, make_record


@pytest.mark.parametrize("count", [1, 2, 32])
def test_ids_of_an_answer(count: int) -> None:
    positions = [number * 1_000_003 for number in range(count)]
    wanted = ",".join([f"7F00{position:016X}" for position in positions])
    assert message_ids("7F00", positions) == wanted


def test_ids_of_many_answers() -> None:
    """As each by itself; a refused run has none."""
    runs = [range(10**12, 10**12 + 1000 * count, 1000) for count in (32, 1, 0, 100, 40, 0)]
    wanted = [message_ids("7F00", positions) if positions else "" for positions in runs]
    assert ids_of_runs("7F00", runs) == wanted
    assert ids_of_runs("7F00", []) == []


def test_each_text_is_judged_by_itself() -> None:
    """However alike to the one before: a delay, a key of order, a broken text."""
    records = PlainRecords("t", 0, bytes(8), "c")
    plain = b"WAIT\x01true\x02UNIQ_KEY\x01id%d\x02TAGS\x01a\x02"
    for number in range(3):
        assert records.message_id(plain % number) == b"id%d" % number
    assert records.message_id(b"DELAY\x013\x02" + plain % 4) == b""
    assert records.message_id(plain % 5 + b"__SHARDINGKEY\x01k\x02") == b""
    assert records.message_id(b"UNIQ_KEY\x01id6") == b"id6"
    assert records.message_id(b"xUNIQ_KEY\x01id7\x02") == b""
    assert records.message_id(plain % 8) == b"id8"


def test_each_run_gets_its_own_result() -> None:
    """Of single messages, of batches, and of a topic that is not there any more."""
    driver = Driver()
    driver.topic("a")
    record = make_record("a", b"x", UNIQ_KEY="1")
    size = len(record)
    here, gone = PlainHead("a", 0), PlainHead("b", 0)
    one = PlainRun(here, [record], [size], [0])
    two = PlainRun(here, [record * 2], [size] * 2, [0, 0])
    lost = PlainRun(gone, [record], [size], [0])
    for runs, wanted in (
        ([one, one], [(0,), (1,)]),
        ([lost, two], [(), (2, 3)]),
        ([two, one, lost], [(4, 5), (6,), ()]),
    ):
        pending = driver.engine.append_plain(runs, driver.now)
        driver.drain()
        assert [tuple(result.offsets) for result in pending.value] == wanted
        assert [len(result.positions) for result in pending.value] == [len(x) for x in wanted]


def test_what_a_queue_means_is_kept_until_it_changes() -> None:
    """Another topic comes: nothing is looked up again. Its own goes, or is closed: it is."""
    driver = Driver()
    driver.topic("a")
    record = make_record("a", b"x", UNIQ_KEY="1")
    head = PlainHead("a", 0, (DISPATCH_KEY,))
    run = PlainRun(head, [record], [len(record)], [0])

    def send() -> RunResult:
        pending = driver.engine.append_plain([run], driver.now)
        driver.drain()
        return pending.value[0]

    assert [tuple(send().offsets), tuple(send().offsets)] == [(0,), (1,)]
    plan = head.plan
    driver.topic("b")
    assert (tuple(send().offsets), head.plan) == ((2,), plan)
    driver.engine.catalog.delete_topic("a", driver.now)
    assert send().code == Code.TOPIC_NOT_FOUND
    driver.topic("a")
    assert tuple(send().offsets) == (0,)
    assert head.plan is not plan
    driver.engine.catalog.put_topic(TopicConfig("a", perm=4), driver.now)
    assert send().code == Code.FORBIDDEN
