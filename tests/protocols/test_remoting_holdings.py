"""What a client holds: real offsets first, the retry topic for what comes again."""

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
