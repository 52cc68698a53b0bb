"""Delivery tags and publisher confirms, without I/O."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.amqp.channel import Confirms, Unacked, Unsettled
from protocols.amqp.replies import AmqpFault
from protocols.amqp.topology import Queue, QueueRecord
from protocols.canonical import ReceiptHandle

QUEUE = Queue(QueueRecord(vhost="/", name="q"))


def outstanding(count: int) -> Unsettled:
    unsettled = Unsettled()
    for _ in range(count):
        tag = unsettled.take_tag()
        handle = ReceiptHandle("c", "b", 1, 1, tag, 1)
        unsettled.by_tag[tag] = Unacked(tag, QUEUE, handle)
    return unsettled


def settle(unsettled: Unsettled, tag: int, *, is_multiple: bool = False) -> list[int]:
    return [entry.tag for entry in unsettled.settle(tag, is_multiple=is_multiple, method=0)]


def test_tags_settle_once() -> None:
    """Single, multiple, all; each delivery once."""
    unsettled = outstanding(6)
    assert settle(unsettled, 3) == [3]
    assert settle(unsettled, 4, is_multiple=True) == [1, 2, 4]
    assert settle(unsettled, 0, is_multiple=True) == [5, 6]
    assert settle(unsettled, 0, is_multiple=True) == []


@pytest.mark.parametrize(("tag", "is_multiple"), [(0, False), (9, False), (9, True), (2, False)])
def test_unknown_tags_are_406(tag: int, is_multiple: bool) -> None:
    """Never given, given back already, or zero on its own."""
    unsettled = outstanding(3)
    settle(unsettled, 2)
    with pytest.raises(AmqpFault, match=f"unknown delivery tag {tag}"):
        settle(unsettled, tag, is_multiple=is_multiple)


def test_multiple_up_to_a_tag_that_is_settled_settles_nothing() -> None:
    """As RabbitMQ 3.10 answers."""
    unsettled = outstanding(3)
    settle(unsettled, 2)
    with pytest.raises(AmqpFault, match="unknown delivery tag 2"):
        settle(unsettled, 2, is_multiple=True)
    assert list(unsettled.by_tag) == [1, 3]
    assert settle(unsettled, 3, is_multiple=True) == [1, 3]


def test_acks_run_together() -> None:
    """What is decided in a tick is one ack with multiple; an open batch holds up later ones."""
    confirms = Confirms()
    first, second, third = (confirms.begin(3, 1) for _ in range(3))
    second.open_count = 0
    assert confirms.take_runs() == []
    first.open_count = 0
    assert confirms.take_runs() == [(6, True, True)]
    third.open_count = 0
    third.nacked.add(8)
    assert confirms.take_runs() == [(7, False, True), (8, False, False), (9, False, True)]
    assert confirms.take_runs() == []


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.lists(st.booleans(), min_size=1, max_size=5), min_size=1, max_size=8),
    st.randoms(use_true_random=False),
)
def test_every_publish_is_confirmed_once_with_its_own_outcome(
    outcomes: list[list[bool]], chance: object
) -> None:
    """However batches finish: each tag once, acked or nacked as decided."""
    confirms = Confirms()
    batches = [confirms.begin(len(batch), 1) for batch in outcomes]
    order = list(range(len(batches)))
    chance.shuffle(order)  # type: ignore[attr-defined]
    confirmed: dict[int, bool] = {}
    for index in order:
        batch = batches[index]
        batch.open_count = 0
        batch.nacked = {
            batch.first + offset for offset, is_ack in enumerate(outcomes[index]) if not is_ack
        }
        for tag, is_multiple, is_ack in confirms.take_runs():
            covered = [
                number
                for number in range(1, tag + 1)
                if number not in confirmed and (is_multiple or number == tag)
            ]
            assert covered
            for number in covered:
                confirmed[number] = is_ack
    expected = dict(enumerate(itertools.chain.from_iterable(outcomes), 1))
    assert confirmed == expected
