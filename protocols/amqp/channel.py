"""
One channel without I/O: delivery tags, publisher confirms, prefetch, transactions' buffers.

Source: AMQP 0-9-1 class basic, tx; confirms as in RabbitMQ's extension.
"""

import itertools
from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from protocols.amqp import replies
from protocols.amqp.replies import AmqpFault
from protocols.canonical import ReceiptHandle
from protocols.delivery_runs import DeliveryRun
from protocols.tuples import new_tuple

if TYPE_CHECKING:
    from protocols.amqp.consumer import Consumer
    from protocols.amqp.topology import Queue

CREDIT_MAX: Final = 2000
"""Deliveries in flight to a consumer without a prefetch limit, or one that does not ack."""


class Mode(Enum):
    PLAIN = "plain"
    CONFIRM = "confirm"
    TX = "tx"


class Outcome(Enum):
    """What a client says of a delivery."""

    ACKED = "acked"
    RETURNED = "returned"  # to its place: nack, reject or recover with requeue
    REJECTED = "rejected"  # never again: a dead letter where the queue has a place for them


class Unacked(NamedTuple):
    """A delivery that the client has not settled."""

    tag: int
    queue: "Queue"
    handle: ReceiptHandle
    consumer: "Consumer | None" = None
    """None: from basic.get, whose handle has a deadline."""


class HeldRun:
    """Deliveries of a run that the client has not settled: an ``Unacked`` each when it does."""

    __slots__ = ("_first_tag", "_front", "_positions", "_rest", "consumer", "queue")

    def __init__(
        self, first_tag: int, queue: "Queue", run: DeliveryRun, consumer: "Consumer"
    ) -> None:
        shelf = run.shelf  # which is not kept: it has the bytes of a whole frame
        self.queue = queue
        self.consumer = consumer
        self._first_tag = first_tag
        self._positions = run.positions
        self._front = (shelf.cluster, shelf.broker, shelf.store_epoch, run.group)
        self._rest = (run.grant, -1, -1, 0, 0, run.group_name, "")

    def entry(self, tag: int) -> Unacked:
        position = self._positions[tag - self._first_tag]
        handle = new_tuple(ReceiptHandle, (*self._front, position, *self._rest))
        entry: Unacked = new_tuple(Unacked, (tag, self.queue, handle, self.consumer))
        return entry


class Unsettled:
    """The deliveries of one channel by delivery tag, in order."""

    def __init__(self) -> None:
        self.next_tag = 1
        self.by_tag: dict[int, Unacked | HeldRun] = {}

    def take_tag(self) -> int:
        tag = self.next_tag
        self.next_tag = tag + 1
        return tag

    def hold(self, run: DeliveryRun, queue: "Queue", consumer: "Consumer") -> None:
        """Give the deliveries of *run* their tags, from ``next_tag`` on."""
        first, stop = self.next_tag, self.next_tag + len(run)
        self.next_tag = stop
        self.by_tag.update(dict.fromkeys(range(first, stop), HeldRun(first, queue, run, consumer)))

    def settle(self, tag: int, *, is_multiple: bool, method: int) -> list[Unacked]:
        """
        Remove and return what an ack, nack or reject names, in tag order.

        Raises AmqpFault 406: a tag that is not outstanding (0 with *is_multiple* is all). As at
        RabbitMQ that holds with *is_multiple* too: nothing before a settled tag is settled by it.
        """
        by_tag = self.by_tag
        if is_multiple and tag == 0:
            return self.take_all()
        entry = by_tag.get(tag)
        if entry is None:
            raise _unknown_tag(tag, method)
        if not is_multiple:
            del by_tag[tag]
            return [_entry(tag, entry)]
        tags = list(itertools.takewhile(tag.__ge__, by_tag))
        return [_entry(number, by_tag.pop(number)) for number in tags]

    def take_all(self) -> list[Unacked]:
        entries = [_entry(tag, held) for tag, held in self.by_tag.items()]
        self.by_tag.clear()
        return entries


def _entry(tag: int, held: Unacked | HeldRun) -> Unacked:
    return held.entry(tag) if isinstance(held, HeldRun) else held


def _unknown_tag(tag: int, method: int) -> AmqpFault:
    return AmqpFault(replies.PRECONDITION_FAILED, f"unknown delivery tag {tag}", method=method)


class Batch:
    """Publishes of one channel that were handed on together; *open_count* have no answer yet."""

    __slots__ = ("count", "first", "nacked", "open_count")

    def __init__(self, first: int, count: int, open_count: int) -> None:
        self.first = first
        self.count = count
        self.open_count = open_count
        self.nacked: set[int] = set()


class Confirms:
    """Numbers publishes from 1 and turns what became of them into acks and nacks, in order."""

    def __init__(self) -> None:
        self._next = 1
        self._batches: deque[Batch] = deque()

    def begin(self, count: int, open_count: int) -> Batch:
        """*open_count* of the next *count* publishes await a result; the others are done."""
        batch = Batch(self._next, count, open_count)
        self._next += count
        self._batches.append(batch)
        return batch

    def take_runs(self) -> list[tuple[int, bool, bool]]:
        """
        (tag, multiple, is_ack) of everything that is decided and not held up by an earlier one.

        Confirms leave in publish order, so *multiple* never covers an open tag.
        """
        runs: list[tuple[int, bool, bool]] = []
        start, end = 0, 0  # the run of acks that is growing
        while self._batches and not self._batches[0].open_count:
            batch = self._batches.popleft()
            last = batch.first + batch.count - 1
            if not start:
                start = batch.first
            for tag in sorted(batch.nacked):
                if tag > start:
                    runs.append((tag - 1, tag - 1 > start, True))
                runs.append((tag, False, False))
                start = tag + 1
            end = last
        if start and end >= start:
            runs.append((end, end > start, True))
        return runs


def group_by_consumer(
    entries: Iterable[Unacked],
) -> tuple[dict["Consumer", list[ReceiptHandle]], list[Unacked]]:
    """Deliveries of streams by consumer, and those of basic.get."""
    streams: dict[Consumer, list[ReceiptHandle]] = {}
    popped: list[Unacked] = []
    for entry in entries:
        if entry.consumer is None:
            popped.append(entry)
        else:
            streams.setdefault(entry.consumer, []).append(entry.handle)
    return streams, popped
