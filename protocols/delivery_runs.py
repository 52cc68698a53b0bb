"""
Many deliveries of one group that differ in nothing but their message, without an object for each.

What a stream brings when hundreds come in one frame, and what many streams share when they get
the same. Who knows the type goes over ``shelf.records``; for everybody else a run is a sequence
of deliveries.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import overload

from protocols.canonical import Delivery, ReceiptHandle, StoredMessage
from protocols.rows import Rows
from protocols.tuples import new_tuple


class Shelf:
    """The records of one frame from a store, in order, each decoded when first asked for."""

    __slots__ = ("_decode", "_messages", "_records", "broker", "cluster", "made", "positions",
                 "rows", "store_epoch")  # fmt: skip

    def __init__(
        self,
        cluster: str,
        broker: str,
        store_epoch: int,
        positions: Sequence[int],
        records: Sequence[bytes],
        decode: Callable[[bytes], StoredMessage],
    ) -> None:
        self.cluster = cluster
        self.broker = broker
        self.store_epoch = store_epoch
        self.positions = positions
        """In the log; the entry positions of what runs deliver."""

        self.rows = records if type(records) is Rows else None
        """All records, where they are many and of one size."""

        self._records: list[bytes] | None = None
        if type(records) is not Rows:
            self._records = records if type(records) is list else [*records]
        self.made: dict[Hashable, object] = {}
        """What a protocol made of records, for all who get the same; it goes with the frame."""

        self._decode = decode
        self._messages: list[StoredMessage | None] = [None] * len(records)

    @property
    def records(self) -> list[bytes]:
        """All of them."""
        found = self._records
        if found is None:
            assert self.rows is not None
            found = self._records = self.rows.to_list()
        return found

    def record(self, index: int) -> bytes:
        """One of them."""
        if self._records is None and self.rows is not None:
            return self.rows[index]
        return self.records[index]

    def message(self, index: int) -> StoredMessage:
        """Raises PeerError if the record is none."""
        found = self._messages[index]
        if found is None:
            found = self._messages[index] = self._decode(self.record(index))
        return found


class DeliveryRun(Sequence[Delivery]):
    """Deliveries of the shelf's records from *start* to *stop*: first attempts, nothing marked."""

    __slots__ = ("grant", "group", "group_name", "qos", "reads", "retain", "shelf", "start", "stop")

    def __init__(
        self,
        shelf: Shelf,
        start: int,
        stop: int,
        *,
        group: int,
        group_name: str,
        grant: int,
        qos: int,
        retain: bool,
        reads: tuple[int, ...],
    ) -> None:
        self.shelf = shelf
        self.start = start
        self.stop = stop
        self.group = group
        self.group_name = group_name
        self.grant = grant
        self.qos = qos
        self.retain = retain
        self.reads = reads

    def __len__(self) -> int:
        return self.stop - self.start

    @overload
    def __getitem__(self, index: int) -> Delivery: ...

    @overload
    def __getitem__(self, index: slice) -> "Sequence[Delivery]": ...

    def __getitem__(self, index: int | slice) -> "Delivery | Sequence[Delivery]":
        if isinstance(index, slice):
            return [self._delivery(at) for at in range(self.start, self.stop)[index]]
        return self._delivery(range(self.start, self.stop)[index])

    def __iter__(self) -> Iterator[Delivery]:
        return map(self._delivery, range(self.start, self.stop))

    @property
    def positions(self) -> Sequence[int]:
        """In the log, of each."""
        return self.shelf.positions[self.start : self.stop]

    def handles(self) -> list[ReceiptHandle]:
        """
        What to acknowledge each by, without a look at its message.

        They do not say where in its topic a message lies, which RocketMQ's clients alone ask.
        """
        shelf = self.shelf
        front = (shelf.cluster, shelf.broker, shelf.store_epoch, self.group)
        rest = (self.grant, -1, -1, 0, 0, self.group_name, "")
        return [new_tuple(ReceiptHandle, (*front, position, *rest)) for position in self.positions]

    def _delivery(self, index: int) -> Delivery:
        shelf = self.shelf
        message = shelf.message(index)
        handle = ReceiptHandle(
            shelf.cluster,
            shelf.broker,
            shelf.store_epoch,
            self.group,
            shelf.positions[index],
            self.grant,
            message.queue_id,
            message.queue_offset,
            0,
            0,
            self.group_name,
            message.topic,
        )
        return Delivery(message, handle, 1, self.reads, self.qos, self.retain)
