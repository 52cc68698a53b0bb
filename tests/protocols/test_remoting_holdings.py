"""What a client holds: real offsets first, the retry topic for what comes again."""

import pytest

from protocols.canonical import Delivery, ReceiptHandle
from protocols.remoting.holdings import Holdings, Queue
from protocols.remoting.records import decode_record, encode_record

QUEUE = Queue("T", "b", 0)
RETRY = Queue("%RETRY%g", "tidegate-retry", 3)


def delivery(offset: int, attempt: int = 1) -> Delivery:
    record = encode_record("T", b"x", queue_offset=offset, log_position=1000 + offset)
    handle = ReceiptHandle("c", "b", 1, 1, 1000 + offset, 1)
    return Delivery(decode_record(record), handle, attempt)


def offsets(records: list[bytes]) -> list[int]:
    return [decode_record(record).queue_offset for record in records]


def test_commit_acks_what_is_below() -> None:
    """Committing c is done with everything held below c, once."""
    holdings = Holdings()
    records = holdings.take_in(QUEUE, [delivery(4), delivery(5), delivery(7)])
    assert offsets(records) == [4, 5, 7]
    assert holdings.next_offset(QUEUE) == 8
    assert [held.offset for held in holdings.commit(QUEUE, 6)] == [4, 5]
    assert holdings.commit(QUEUE, 6) == []
    assert holdings.count == 1


def test_a_client_that_names_no_broker_finds_what_it_holds() -> None:
    """Go's client: what it sent back was taken for given up, and its commit acknowledged it."""
    holdings = Holdings()
    for broker, topic in (("a", "U"), ("b", "T")):
        one = delivery(1)
        one = one._replace(handle=one.handle._replace(broker=broker, topic=topic))
        holdings.take_in(Queue(topic, broker, 0), [one])
    found = [holdings.find("", 1001, topic) for topic in ("T", "U", "%RETRY%g")]
    assert [held.handle.broker for held in found if held is not None] == ["b", "a", "a"]
    assert holdings.find("", 1002, "T") is None
    for held in found:
        if held is not None:
            held.is_settled = True
    assert holdings.find("", 1001, "T") is None


def test_what_comes_again_goes_to_the_retry_topic() -> None:
    """Its real offset lies below what the client committed: there it would be acked unseen."""
    holdings = Holdings()
    holdings.take_in(QUEUE, [delivery(4), delivery(5)])
    assert holdings.take_in(QUEUE, [delivery(4, attempt=2), delivery(6)]) != []
    assert (holdings.returned_count, holdings.count) == (1, 4)
    assert [held.offset for held in holdings.commit(QUEUE, 100)] == [4, 5, 6]
    (record,) = holdings.take_returned(RETRY, 0, 10)
    message = decode_record(record)
    assert (message.queue_offset, message.queue_id, message.reconsume_count) == (0, 3, 1)
    assert message.log_position == 1004
    (held,) = holdings.commit(RETRY, 1)
    assert held.handle.position == 1004
    assert holdings.count == 0


def test_unseen_message_below_the_next_offset() -> None:
    """A first delivery below what was seen (another client gave it back unseen) is a retry."""
    holdings = Holdings()
    holdings.take_in(QUEUE, [delivery(9)])
    assert holdings.take_in(QUEUE, [delivery(3)]) == []
    assert holdings.returned_count == 1


def test_retry_offsets_only_rise() -> None:
    """They go on from what the client asks for, and never repeat."""
    holdings = Holdings()
    holdings.take_in(QUEUE, [delivery(n, attempt=2) for n in range(3)])
    assert offsets(holdings.take_returned(RETRY, 7, 2)) == [7, 8]
    assert offsets(holdings.take_returned(RETRY, 0, 2)) == [9]


def test_send_back_settles() -> None:
    """What was given back is not acked by a later commit."""
    holdings = Holdings()
    holdings.take_in(QUEUE, [delivery(1), delivery(2)])
    held = holdings.find("b", 1001)
    assert held is not None
    held.is_settled = True
    assert holdings.find("b", 1001) is None
    assert [item.offset for item in holdings.commit(QUEUE, 3)] == [2]
    assert holdings.find("b", 1002) is None


def test_renewal_changes_the_handle_wherever_it_is() -> None:
    holdings = Holdings()
    holdings.take_in(QUEUE, [delivery(1, attempt=2)])
    (waiting,) = holdings.returned()
    new = waiting.handle._replace(grant=2)
    holdings.renewed(waiting, new)
    assert holdings.returned()[0].handle.grant == 2
    (waiting,) = holdings.returned()
    holdings.take_returned(RETRY, 0, 1)
    holdings.renewed(waiting, new._replace(grant=3))
    assert holdings.held()[0].handle.grant == 3


def test_drain_gives_everything_back() -> None:
    holdings = Holdings()
    holdings.take_in(QUEUE, [delivery(1), delivery(2, attempt=2)])
    assert len(holdings.drain()) == 2
    assert holdings.count == 0
    assert holdings.drain() == []


def test_what_was_popped_over_another_connection() -> None:
    """The client goes on where it was: below that it has got everything, beyond it nothing."""
    holdings = Holdings()
    holdings.adopt(QUEUE, [delivery(n) for n in (6, 3, 4, 5)] + [delivery(1, attempt=2)])
    assert (holdings.count, holdings.returned_count) == (5, 1)
    assert [held.offset for held in holdings.commit(QUEUE, 4)] == [3]
    assert holdings.find("b", 1004) is not None
    assert offsets(holdings.go_on_from(QUEUE, 5, 1)) == [5]
    assert offsets(holdings.go_on_from(QUEUE, 6, 8)) == [6]
    assert holdings.go_on_from(QUEUE, 7, 8) == []
    assert holdings.next_offset(QUEUE) == 7
    assert [held.offset for held in holdings.commit(QUEUE, 7)] == [4, 5, 6]
    assert holdings.count == 1


def test_a_first_delivery_below_where_the_client_reads() -> None:
    """It may have committed a higher offset before: there it would be acked unseen."""
    holdings = Holdings()
    assert holdings.go_on_from(QUEUE, 10, 8) == []
    assert offsets(holdings.take_in(QUEUE, [delivery(9), delivery(10)])) == [10]
    assert holdings.returned_count == 1


@pytest.mark.parametrize("start", [0, 65_530, 100_000])
def test_what_was_shown_in_the_retry_topic_keeps_its_place(start: int) -> None:
    """Another gateway holds it under the same offsets: none comes twice, none is lost."""
    first = Holdings()
    first.take_in(QUEUE, [delivery(n, attempt=2) for n in range(10)])
    assert len(first.take_returned(RETRY, start, 9)) == 9
    assert first.take_marks()[0][2] == RETRY.queue_id + 1
    first.take_in(QUEUE, [delivery(n, attempt=2) for n in (10, 11)])
    marks = {handle.position: (packet_id, stage) for handle, packet_id, stage in first.take_marks()}
    assert marks == {}
    shown = [
        delivery(n, attempt=2)._replace(packet_id=(start + n) & 0xFFFF, stage=RETRY.queue_id + 1)
        for n in range(9)
    ]
    second = Holdings()
    second.adopt_shown(RETRY, shown)
    second.adopt(QUEUE, [delivery(n, attempt=2) for n in (9, 10)])
    assert (second.count, len(second.held()), second.returned_count) == (11, 9, 2)
    assert [held.handle.position for held in second.commit(RETRY, start + 2)] == [1000, 1001]
    second.go_on_returned(RETRY, start + 7)  # it has got no answer with the last two
    assert second.returned_count == 4
    assert offsets(second.take_returned(RETRY, start + 7, 32)) == [*range(start + 7, start + 11)]
    done = [held.handle.position for held in second.commit(RETRY, start + 11)]
    assert done == [1002, 1003, 1004, 1005, 1006, 1009, 1010, 1007, 1008]
    assert second.count == 0


def test_what_was_shown_is_given_back_with_its_queue() -> None:
    """A client that got another retry queue has dropped what it had of this one."""
    holdings = Holdings()
    holdings.adopt_shown(RETRY, [delivery(1, attempt=2)._replace(packet_id=5, stage=4)])
    assert holdings.queues() == [RETRY]
    assert len(holdings.abandon(RETRY)) == 1
    holdings.go_on_returned(RETRY, 9)
    assert (holdings.count, holdings.returned_count) == (0, 0)


def test_an_answer_that_the_client_did_not_wait_for() -> None:
    """It asks once more from where it is: what it was given beyond that goes back."""
    holdings = Holdings()
    holdings.take_in(QUEUE, [delivery(n) for n in (3, 4, 5)])
    assert holdings.take_lost(QUEUE, 6) == []
    assert [handle.position for handle in holdings.take_lost(QUEUE, 4)] == [1005, 1004]
    assert (holdings.count, holdings.next_offset(QUEUE)) == (1, 4)
    assert offsets(holdings.take_in(QUEUE, [delivery(4)])) == [4]
