"""
What is on its way to the stores: batches of one publisher, cut into runs of one copy each.

A *batch* is one ``post``: messages of one call, answered together. A *run* is a stretch of a
batch whose messages share a head, hence a decision, hence one *copy* per store that needs them.
A message is done when all its copies are; ``SendResult`` objects are made only if asked for.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat
from operator import eq, itemgetter
from typing import TYPE_CHECKING, Final

from protocols.canonical import (
    Call,
    Head,
    Message,
    QueueKind,
    QueueRef,
    SendResult,
    SendResults,
)
from protocols.errors import Code
from protocols.message_runs import MessageRun
from protocols.remoting.sending import ItemFlag, SendAnswer
from protocols.remoting.templates import RecordTemplate
from protocols.rows import Rows

if TYPE_CHECKING:
    from gateway.clusters.link import StoreLink

logger = logging.getLogger("tidegate.pipeline")

LANES_SWEPT_MIN: Final = 4096
"""Idle lanes are kept until there are so many lanes, or twice as many as were busy then: a device
that publishes one message at a time needs its lane every time."""

_PLAIN: Final = Message(Head(subject=""), b"")[2:]
_rest_of = itemgetter(slice(2, None))
_body_of: Callable[[Message], bytes] = itemgetter(1)


def are_plain(messages: Sequence[Message]) -> bool:
    """Whether no message has more than a head and a body (most of MQTT)."""
    return type(messages) is MessageRun or all(map(eq, map(_rest_of, messages), repeat(_PLAIN)))


def body_bytes(messages: Sequence[Message]) -> int:
    """Bytes of all bodies."""
    if type(messages) is MessageRun:
        return messages.size_bytes
    bodies = bodies_of(messages)
    return len(bodies[0]) if len(bodies) == 1 else sum(map(len, bodies))


def body_sizes(messages: Sequence[Message], start: int, stop: int) -> list[int]:
    """Bytes of the body of each message from *start* to before *stop*."""
    rows = rows_of(messages)
    if rows is not None:
        return [rows.size] * (stop - start)
    return list(map(len, bodies_of(messages)[start:stop]))


def bodies_of(messages: Sequence[Message]) -> list[bytes]:
    """By C code rather than by Python's, which is what a frame of a thousand is made of."""
    return messages.bodies if type(messages) is MessageRun else list(map(_body_of, messages))


def rows_of(messages: Sequence[Message]) -> Rows | None:
    """The bodies as rows, where the adapter made no objects of them."""
    return messages.rows if type(messages) is MessageRun else None


class Copy:
    """One record per message of a head, on one store: where it goes and which queues list it."""

    __slots__ = (
        "flags",
        "head",
        "is_only",
        "is_primary",
        "is_reported",
        "link",
        "order_hash",
        "ordinal",
        "queue_id",
        "queues",
        "set_bytes",
        "target_count",
        "template",
        "topic",
    )

    def __init__(
        self,
        *,
        link: "StoreLink",
        head: Head,
        topic: str,
        queue_id: int,
        is_primary: bool,
        queues: tuple[QueueRef, ...],
        set_bytes: bytes,
        template: RecordTemplate,
        order_hash: int = 0,
    ) -> None:
        self.link = link
        self.head = head
        self.topic = topic
        self.queue_id = queue_id
        self.is_primary = is_primary
        """It stands in the topic's message queue."""

        self.queues = queues
        self.set_bytes = set_bytes
        """The encoded set of a SEND frame."""

        self.template = template
        self.order_hash = order_hash
        self.ordinal = 0
        """Tells the copies of a message at one store apart; 0: the primary, or the only one."""

        self.flags = head.qos | (int(ItemFlag.RETAIN) if head.retain else 0)
        self.is_only = True
        """The message is on no other store: until it is in a frame it may be routed again."""

        self.is_reported = True
        """Its place is the one the publisher is told: the primary, or the first without one."""

        self.target_count = 0
        """Light queues of all copies that read the message live (retained values apart)."""

        self.count_targets((self,))

    def count_targets(self, copies: "Sequence[Copy]") -> None:
        """Learn of the other copies of the same messages."""
        self.is_only = len(copies) == 1
        reported = next((copy for copy in copies if copy.is_primary), copies[0])
        self.is_reported = self is reported
        self.target_count = sum(
            queue.kind is not QueueKind.RETAINED for copy in copies for queue in copy.queues
        )


class Part:
    """Answered: messages ``start`` to ``stop`` of a batch are items ``at``… of a frame."""

    __slots__ = ("answer", "at", "copy", "start", "stop")

    def __init__(self, start: int, stop: int, copy: Copy, answer: SendAnswer, at: int) -> None:
        self.start = start
        self.stop = stop
        self.copy = copy
        self.answer = answer
        self.at = at


NO_FAILURES: Final[dict[int, SendResult]] = {}
NO_REFUSALS: Final[dict[int, tuple[QueueRef, ...]]] = {}
"""Of nearly every batch: one for all, never written to."""


class Batch:
    """One post: what it waits for, and what became of it."""

    __slots__ = (
        "admitted_to",
        "call",
        "done",
        "failures",
        "ids",
        "is_plain",
        "is_resend",
        "is_withdrawn",
        "lane",
        "messages",
        "next_index",
        "parked_at",
        "parts",
        "refused",
        "remaining",
        "sequence",
        "size_bytes",
    )

    def __init__(
        self,
        call: Call,
        messages: Sequence[Message],
        ids: Sequence[bytes],
        done: Callable[[SendResults], None],
        *,
        sequence: int,
        size_bytes: int,
        is_plain: bool = False,
    ) -> None:
        self.call = call
        self.messages = messages
        self.ids = ids
        """Message ids as stored: the client's own or one of ours, one per message."""

        self.done = done
        self.sequence = sequence
        """Order of arrival at this gateway, kept when messages are routed again."""

        self.size_bytes = size_bytes
        self.is_plain = is_plain
        """No message says anything that its head does not."""

        self.is_resend = False
        """Stores are to be asked for it before it goes anywhere."""

        self.is_withdrawn = False
        """Its publisher is gone: what has a once-key comes again from elsewhere."""

        self.remaining = 1
        """Copies still without an answer, and 1 until all of it is on its way."""

        self.parts: list[Part] = []
        self.failures = NO_FAILURES
        """Messages that are not stored as they should be, by index."""

        self.refused = NO_REFUSALS
        """Light queues that did not take a stored message, by index."""

        self.lane: Lane | None = None
        self.next_index = 0
        """The first message that has not been sent on yet."""

        self.parked_at = 0.0
        """Since when it has waited to be sent on; 0: it never had to."""

        self.admitted_to = 0
        """Messages before this one have waited as long as a throttle wanted."""

    def fail(self, start: int, stop: int, code: Code, hint: str) -> None:
        """One copy of each of the messages *start* to *stop* is refused."""
        if self.failures is NO_FAILURES:
            self.failures = {}
        if self.lane is not None:
            self.lane.has_failed = True
        for index in range(start, stop):
            self.failures.setdefault(
                index, SendResult(code=code, message_id=self.ids[index].decode(), hint=hint)
            )
        self.settle(stop - start)

    def refuse_rest(self, code: Code, hint: str) -> None:
        """What has not been sent on is not stored."""
        start, total = self.next_index, len(self.ids)
        self.next_index = total
        if start < total:
            self.remaining += total - start
            self.fail(start, total, code, hint)

    def settle(self, count: int) -> None:
        """So many copies have their answer."""
        self.remaining -= count
        if self.remaining == 0 and self.lane is not None:
            self.lane.advance()

    def answered(self, run: "Run", count: int, answer: SendAnswer, at: int) -> None:
        """The first *count* messages of *run* are items *at*… of an answered frame."""
        start, stop = run.start, run.start + count
        if run.copy.is_reported:
            self.parts.append(Part(start, stop, run.copy, answer, at))
        if answer.refused:
            self._take_refusals(run, count, answer, at)
        if answer.partial:
            self._take_partials(run, count, answer, at)
        self.settle(count)

    def _take_refusals(self, run: "Run", count: int, answer: SendAnswer, at: int) -> None:
        if self.failures is NO_FAILURES:
            self.failures = {}
        if self.refused is NO_REFUSALS:
            self.refused = {}
        for item, (code, remark) in answer.refused.items():
            if at <= item < at + count:
                index = run.start + item - at
                if code == Code.NOT_FOUND and not run.copy.is_primary:
                    # Every queue it was meant for is gone: no failure, but no match either.
                    self.refused[index] = self.refused.get(index, ()) + run.copy.queues
                    continue
                self.failures[index] = SendResult(
                    code=known_code(code), message_id=self.ids[index].decode(), hint=remark
                )

    def _take_partials(self, run: "Run", count: int, answer: SendAnswer, at: int) -> None:
        if self.refused is NO_REFUSALS:
            self.refused = {}
        for item, key, _ in answer.partial:
            if at <= item < at + count:
                index = run.start + item - at
                lost = tuple(queue for queue in run.copy.queues if queue.key() == key)
                self.refused[index] = self.refused.get(index, ()) + lost


class Run:
    """A stretch of one batch, for one store."""

    __slots__ = ("batch", "copy", "start", "stop")

    def __init__(self, batch: Batch, start: int, stop: int, copy: Copy) -> None:
        self.batch = batch
        self.start = start
        self.stop = stop
        self.copy = copy

    @property
    def count(self) -> int:
        return self.stop - self.start

    def cut(self, count: int) -> "Run":
        """Split off the first *count* messages; this run keeps the rest."""
        front = Run(self.batch, self.start, self.start + count, self.copy)
        self.start += count
        return front

    def fail(self, code: Code, hint: str) -> None:
        self.batch.fail(self.start, self.stop, code, hint)


class BatchResults:
    """``SendResults`` of a finished batch; builds single results on demand."""

    __slots__ = ("_batch",)

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    @property
    def is_all_stored(self) -> bool:
        return not self._batch.failures and not self._batch.refused

    def __len__(self) -> int:
        return len(self._batch.messages)

    def __getitem__(self, index: int) -> SendResult:
        batch = self._batch
        if index < 0:
            index += len(batch.messages)
        if not 0 <= index < len(batch.messages):
            raise IndexError(index)
        failure = batch.failures.get(index)
        if failure is not None:
            return failure
        message_id = batch.ids[index].decode()
        refused = batch.refused.get(index, ())
        for part in batch.parts:
            copy, answer = part.copy, part.answer
            if part.start <= index < part.stop:
                item = part.at + index - part.start
                return SendResult(
                    message_id=message_id,
                    cluster=copy.link.cluster,
                    broker=copy.link.broker,
                    queue_id=copy.queue_id if copy.is_primary else -1,
                    queue_offset=answer.offsets[item],
                    log_position=answer.positions[item],
                    matched_count=max(0, copy.target_count - len(refused)),
                    refused=refused,
                )
        return SendResult(message_id=message_id)


class Lane:
    """
    The batches of one call, answered in the order they were posted.

    ``parked`` holds posts that wait for something the decision needs (a topic's route): those
    behind them wait too, so that a publisher's order holds.
    """

    __slots__ = ("_is_advancing", "batches", "has_failed", "is_over", "is_withdrawn", "parked")

    def __init__(self) -> None:
        self.batches: deque[Batch] = deque()
        self.parked: deque[Batch] = deque()
        self._is_advancing = False
        self.has_failed = False
        """Something was refused: its publisher may send it again, and what came behind it."""

        self.is_over = False
        """Nothing more comes: its connection has ended."""

        self.is_withdrawn = False
        """What it posted under once-keys is not to be stored any more: others may have it."""

    def withdraw(self, *, is_taken: bool) -> bool:
        """See ``Pipeline.withdraw``; False: nothing waits here."""
        self.is_withdrawn = is_taken  # what was posted in this tick is in no lane yet
        self.withdraw_waiting()
        return bool(self.batches)

    def withdraw_waiting(self) -> None:
        for batch in self.batches:
            batch.is_withdrawn = True

    @property
    def may_store_late(self) -> bool:
        return any([one.messages[0].once_key and not one.is_withdrawn for one in self.batches])

    def advance(self) -> None:
        """Answer every batch at the front that has all its copies."""
        if self._is_advancing:
            return
        self._is_advancing = True
        try:
            batches = self.batches
            while batches and batches[0].remaining == 0:
                batch = batches.popleft()
                # Who is told may keep the results, and they the batch: none is to be garbage.
                done, batch.done = batch.done, _nobody
                try:
                    done(BatchResults(batch))
                except Exception:
                    logger.exception("the receiver of a send result failed")
        finally:
            self._is_advancing = False


def _nobody(results: SendResults) -> None:
    """Has been told."""


def known_code(number: int) -> Code:
    """The code of a store's refusal; one we do not know is an internal error of that store."""
    try:
        return Code(number)
    except ValueError:
        return Code.INTERNAL_SERVER_ERROR


class Lanes:
    """
    The lane of each call.

    Args:
        forget: called with each that ended while it waited, some time after its last answer.
    """

    __slots__ = ("_by_call", "_count_max", "_forget", "is_out")

    def __init__(self, forget: Callable[[Call], None]) -> None:
        self.is_out = False
        """Whatever is posted now is withdrawn at once."""

        self._by_call: dict[Call, Lane] = {}
        self._count_max = LANES_SWEPT_MIN
        self._forget = forget

    def find(self, call: Call) -> Lane | None:
        return self._by_call.get(call)

    def of(self, call: Call) -> Lane:
        lane = self._by_call.get(call)
        if lane is None:
            if len(self._by_call) >= self._count_max:
                self._sweep()
            lane = self._by_call[call] = Lane()
        return lane

    def withdraw_all(self) -> None:
        self.is_out = True
        for lane in self._by_call.values():
            lane.withdraw_waiting()

    def end(self, call: Call, *, is_waiting: bool) -> bool:
        """Nothing more comes of *call*; False: what did is not answered yet (*is_waiting*: and is
        in no lane), the call is forgotten later."""
        lane = self.of(call) if is_waiting else self._by_call.get(call)
        if lane is not None and (lane.batches or is_waiting):
            lane.is_over = True
            return False
        self._by_call.pop(call, None)
        return True

    def _sweep(self) -> None:
        """Forget those of callers who wait for nothing."""
        for call, lane in list(self._by_call.items()):
            if not lane.batches:
                del self._by_call[call]
                if lane.is_over:
                    self._forget(call)
        self._count_max = max(LANES_SWEPT_MIN, 2 * len(self._by_call))
