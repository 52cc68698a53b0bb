"""
What one client of one consumer group holds: popped, not yet acknowledged. Knows no I/O.

A push consumer names what it is done with by *offset*: committing c means that everything
below c is done. First deliveries keep their real queue and offset. What is delivered again
would lie below a committed offset, so it is shown in ``%RETRY%group`` instead, in an order of
this client's own; the stores keep with it where it was shown (``Mark``), so that another gateway
knows what the client means when it commits there.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from protocols.canonical import Delivery, ReceiptHandle
from protocols.remoting.inner_batches import last_offset
from protocols.remoting.records import (
    OFFSETS,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    reconsume_count_at,
)

Mark = tuple[ReceiptHandle, int, int]
"""(delivery, last 16 bits of its offset in a retry queue, number of that queue + 1)."""

_U16: Final = 0xFFFF


class Queue(NamedTuple):
    """A message queue as the client names it."""

    topic: str
    broker: str
    queue_id: int


class Held:
    """One delivery in the client's hands."""

    __slots__ = ("handle", "is_placed", "is_settled", "offset", "position", "reconsume_count")

    def __init__(self, delivery: Delivery, offset: int) -> None:
        self.handle: ReceiptHandle = delivery.handle
        self.offset = offset
        self.position = delivery.message.log_position
        self.reconsume_count = delivery.attempt - 1
        self.is_settled = False
        """Given back (send-back) or lost: nothing more to acknowledge."""

        self.is_placed = False
        """Adopted, and its offset is known again."""


class Holdings:
    """Held deliveries by queue and offset, and those that wait for the retry topic."""

    def __init__(self) -> None:
        self._queues: dict[Queue, deque[Held]] = {}
        self._by_position: dict[tuple[str, int], Held] = {}
        self._next: dict[Queue, int] = {}
        self._returned: deque[Delivery] = deque()
        self._adopted: dict[Queue, deque[Delivery]] = {}
        """Held since another connection of the client; it may not have got all of it."""

        self._shown: dict[Queue, list[tuple[Held, Delivery]]] = {}
        """The same of retry queues, until the client says where it stands in one."""

        self._marks: list[Mark] = []
        self._retry_offset = 0
        self.count = 0

    def next_offset(self, queue: Queue) -> int:
        """Where the client goes on; what lies below was delivered or committed."""
        return self._next.get(queue, 0)

    @property
    def returned_count(self) -> int:
        return len(self._returned)

    # ── in ──────────────────────────────────────────────────────────────────────────────

    def adopt(self, queue: Queue, deliveries: Sequence[Delivery]) -> None:
        """
        Hold what the client popped over another connection, in the order of its offsets.

        What is not a first delivery had not been shown to it: it comes in the retry topic.
        """
        first = [delivery for delivery in deliveries if delivery.attempt == 1]
        again = [delivery for delivery in deliveries if delivery.attempt > 1]
        self._returned += again
        self.count += len(again)
        for delivery in sorted(first, key=_offset_of):
            self._hold(queue, delivery, delivery.message.queue_offset)
            self._adopted.setdefault(queue, deque()).append(delivery)
        self._next.pop(queue, None)

    def adopt_shown(self, queue: Queue, deliveries: Sequence[Delivery]) -> None:
        """The same of what was shown to it in the retry *queue*, and marked."""
        for delivery in deliveries:
            held = self._hold(queue, delivery, delivery.packet_id)
            self._shown.setdefault(queue, []).append((held, delivery))
        self._next.pop(queue, None)

    def _place(self, queue: Queue, offset: int) -> None:
        """
        The client is at *offset* in a retry *queue*: what it was shown there lies near. It holds
        far less than 32,768 messages of it, so the last 16 bits of their offsets tell.
        """
        shown = self._shown.get(queue)
        if not shown or shown[0][0].is_placed:
            return
        for held, delivery in shown:
            ahead = (delivery.packet_id - offset) & _U16
            held.offset = offset + (ahead if ahead <= _U16 >> 1 else ahead - _U16 - 1)
            held.is_placed = True
        self._queues[queue] = deque(sorted(self._queues.get(queue, ()), key=lambda one: one.offset))

    def go_on_returned(self, queue: Queue, offset: int) -> None:
        """
        The client reads a retry *queue* from *offset* on: what it was to be shown beyond that it
        has not got, and gets again.
        """
        self._place(queue, offset)
        for held, delivery in self._shown.pop(queue, ()):
            if held.offset >= offset and held in self._queues.get(queue, ()):
                self._queues[queue].remove(held)
                self._by_position.pop((queue.broker, held.position), None)
                self._returned.append(delivery._replace(handle=held.handle))

    def go_on_from(self, queue: Queue, offset: int, count: int) -> list[bytes]:
        """
        The client reads *queue* from *offset* on: it has got what lies below. Up to *count* of
        what was adopted beyond it, which it has not.
        """
        records: list[bytes] = []
        waiting = self._adopted.get(queue)
        while waiting and len(records) < count:
            delivery = waiting.popleft()
            if delivery.message.queue_offset >= offset:
                records.append(delivery.message.record)
                offset = delivery.message.queue_offset + 1
        if waiting is not None and not waiting:
            del self._adopted[queue]
        self._next[queue] = max(self._next.get(queue, 0), offset)
        return records

    def take_in(self, queue: Queue, deliveries: Sequence[Delivery]) -> list[bytes]:
        """
        Hold what a pop of *queue* brought; the records to answer with.

        Deliveries that are not the first, or lie below what this client has seen of the
        queue, are put aside for the retry topic.
        """
        records: list[bytes] = []
        for delivery in deliveries:
            offset = delivery.message.queue_offset
            if delivery.attempt > 1 or offset < self.next_offset(queue):
                self._returned.append(delivery)
                continue
            self._hold(queue, delivery, offset)
            records.append(delivery.message.record)
        self.count += len(deliveries) - len(records)
        return records

    def take_returned(self, queue: Queue, from_offset: int, count: int) -> list[bytes]:
        """Hold up to *count* of what came back, as messages of the retry *queue*."""
        self.go_on_returned(queue, from_offset)
        self._retry_offset = max(self._retry_offset, from_offset)
        records: list[bytes] = []
        while self._returned and len(records) < count:
            delivery = self._returned.popleft()
            self.count -= 1
            offset = self._retry_offset
            self._retry_offset = self._hold(queue, delivery, offset).offset + 1
            self._marks.append((delivery.handle, offset & _U16, queue.queue_id + 1))
            records.append(_as_retry(delivery, queue.queue_id, offset))
        return records

    def take_marks(self) -> list[Mark]:
        """Of what ``take_returned`` has shown since."""
        marks, self._marks = self._marks, []
        return marks

    def _hold(self, queue: Queue, delivery: Delivery, offset: int) -> Held:
        offset += last_offset(delivery.message) - delivery.message.queue_offset
        held = Held(delivery, offset)
        self._queues.setdefault(queue, deque()).append(held)
        self._by_position[queue.broker, held.position] = held
        self._next[queue] = offset + 1
        self.count += 1
        return held

    # ── out ─────────────────────────────────────────────────────────────────────────────

    def commit(self, queue: Queue, offset: int) -> list[Held]:
        """What *offset* says is done: held below it and not given back."""
        done: list[Held] = []
        self._place(queue, offset)
        waiting = self._queues.get(queue)
        while waiting and waiting[0].offset < offset:
            held = waiting.popleft()
            self._forget(queue, held)
            if not held.is_settled:
                done.append(held)
        return done

    def find(self, broker: str, position: int, topic: str = "") -> Held | None:
        """
        By what a send-back names; None if it is not held (any more). Clients older than
        ``bname`` name no *broker*: it is held of any, and rather of *topic*.
        """
        if broker:
            held = self._by_position.get((broker, position))
            return None if held is None or held.is_settled else held
        brokers = sorted(broker for broker, place in self._by_position if place == position)
        found = [self._by_position[broker, position] for broker in brokers]
        found = [held for held in found if not held.is_settled]
        return next((held for held in found if held.handle.topic == topic), next(iter(found), None))

    def held(self) -> list[Held]:
        """All that must be renewed, but for what waits for the retry topic."""
        return [
            held for waiting in self._queues.values() for held in waiting if not held.is_settled
        ]

    def returned(self) -> list[Delivery]:
        return list(self._returned)

    def renewed(self, delivery: Delivery, handle: ReceiptHandle) -> None:
        """What came back has a new handle; it may have been pulled meanwhile."""
        for index, waiting in enumerate(self._returned):
            if waiting is delivery:
                self._returned[index] = delivery._replace(handle=handle)
                return
        for items in self._queues.values():
            for held in items:
                if held.handle == delivery.handle:
                    held.handle = handle
                    return

    def take_lost(self, queue: Queue, offset: int) -> list[ReceiptHandle]:
        """
        The client reads *queue* from *offset* on, though it was given more: it had stopped waiting
        for that answer. What it has not got of it, to be given back.
        """
        waiting = self._queues.get(queue)
        handles: list[ReceiptHandle] = []
        if offset >= self._next.get(queue, 0) or queue in self._adopted:
            return handles
        while waiting and waiting[-1].offset >= offset:
            held = waiting.pop()
            self._forget(queue, held)
            if not held.is_settled:
                handles.append(held.handle)
        self._next[queue] = offset
        return handles

    def queues(self) -> list[Queue]:
        """Those that something is held of."""
        return [queue for queue, waiting in self._queues.items() if waiting]

    def abandon(self, queue: Queue) -> list[ReceiptHandle]:
        """All that is held of one queue, to be given back."""
        handles: list[ReceiptHandle] = []
        self._adopted.pop(queue, None)
        self._shown.pop(queue, None)
        for held in self._queues.pop(queue, ()):
            self._forget(queue, held)
            if not held.is_settled:
                handles.append(held.handle)
        return handles

    def drain(self) -> list[ReceiptHandle]:
        """Everything, to be given back: the client has gone."""
        handles = [held.handle for held in self.held()]
        handles += [delivery.handle for delivery in self._returned]
        self._queues.clear()
        self._by_position.clear()
        self._returned.clear()
        self._adopted.clear()
        self._shown.clear()
        self.count = 0
        return handles

    def _forget(self, queue: Queue, held: Held) -> None:
        self.count -= 1
        key = (queue.broker, held.position)
        if self._by_position.get(key) is held:
            del self._by_position[key]


def _offset_of(delivery: Delivery) -> int:
    return delivery.message.queue_offset


def _as_retry(delivery: Delivery, queue_id: int, offset: int) -> bytes:
    """The record with its place in the retry topic and how often it was delivered before."""
    record = bytearray(delivery.message.record)
    OFFSETS.pack_into(record, QUEUE_OFFSET_AT, offset, delivery.message.log_position)
    record[QUEUE_ID_AT : QUEUE_ID_AT + 4] = queue_id.to_bytes(4, "big")
    at = reconsume_count_at(delivery.message.sys_flag)
    record[at : at + 4] = (delivery.attempt - 1).to_bytes(4, "big")
    return bytes(record)
