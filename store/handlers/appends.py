"""
The standard sends of one tick or commit, gathered into one block: a block costs more than a record.

Plain messages wait as runs, all others as records; what arrives in order is stored in order.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

from protocols import clock
from protocols.clock import Now
from protocols.errors import Refused
from protocols.remoting.command import RemotingCommand
from protocols.remoting.plain_batches import Batch, Rows, Shape
from store.answers import AppendRecord, AppendResult, Pending, StoreFailed
from store.engine import Engine
from store.handlers.answers import not_available, refuse
from store.handlers.connection import Connection
from store.plain import PlainHead, PlainRows, PlainRun, RunResult

BLOCK_RECORDS_MAX: Final = 4096
BLOCK_BYTES_MAX: Final = 7 << 18
"""
A block takes no more than this, whatever a tick brought: with its entries, and what came with the
last request, it is still one write of the kernel (``log.BATCH_BYTES_MAX``).
"""

R = TypeVar("R")
Make = Callable[[Sequence[AppendResult]], RemotingCommand | None]
"""None: it is answered later."""

Waiting = tuple[Connection, RemotingCommand, int, Make]
"""(connection, request, record count, what makes the answer of the results)."""


class Gathered(NamedTuple):
    """A batch whose members are plain and alike."""

    head: PlainHead
    rows: Rows
    """They, and others."""


class Seeming(NamedTuple):
    """A batch whose members seem to be alike."""

    connection: Connection
    request: RemotingCommand
    head: PlainHead
    batch: Batch
    shape: Shape


WaitingPlain = tuple[Connection, RemotingCommand, PlainRun | Gathered, bytes]
"""
(connection, request, messages, id of a message that was sent alone); of such a message: the answer
to be, which takes the place of its request.
"""


class Appends:
    """Messages waiting for their block, with those who wait for them."""

    def __init__(self, engine: Engine, *, bytes_max: int = 64 << 20) -> None:
        self._engine = engine
        self._records: list[AppendRecord] = []
        self._waiting: list[Waiting] = []
        self._waiting_plain: list[WaitingPlain] = []
        self._plain_count = 0
        self._seeming: list[Seeming] = []
        self.byte_count = 0
        """What waits, for the end of the tick or of the commit that is under way."""

        self.is_pressed = False
        """Too much waited for the disk when the last runs were handed over."""

        self.bytes_max = bytes_max
        self.runs_of: Callable[[Sequence[WaitingPlain]], list[PlainRun | PlainRows]]
        """What waits as runs (``handlers.plain``)."""

        self.take_apart: Callable[[Seeming], None]
        """Handles a batch that only seemed to be alike (``handlers.send``)."""

        self.give_plain: Callable[[Sequence[WaitingPlain], Pending[list[RunResult]]], None]
        """Answers runs (``handlers.plain``)."""

    def add(
        self,
        connection: Connection,
        request: RemotingCommand,
        records: Sequence[AppendRecord],
        make: Make,
        now: Now,
    ) -> None:
        """Append *records* with the next block; *make* the answer once they are durable."""
        if self._waiting_plain or self._seeming:
            self.flush(now)
        self._records += records
        self._waiting.append((connection, request, len(records), make))
        self.byte_count += sum([len(record.record) for record in records])
        if len(self._records) >= BLOCK_RECORDS_MAX or self.byte_count >= BLOCK_BYTES_MAX:
            self.flush(now)

    def add_plain(
        self,
        connection: Connection,
        request: RemotingCommand,
        run: PlainRun,
        first_id: bytes,
    ) -> None:
        """The same for a run; *first_id* of a message that was sent alone."""
        if self._seeming:
            self.settle()
        self._add(connection, request, run, first_id, len(run.lengths), sum(run.lengths))

    def add_batch(self, seeming: Seeming) -> None:
        """The same for a batch; to be followed by ``settle`` before its memory changes."""
        self._seeming.append(seeming)

    def settle(self) -> None:
        """
        Make records of batches: all that came with a read one after the other, for a processor
        finds in its cache what it did just before, and what has just come.
        """
        seeming, self._seeming = self._seeming, []
        for item in seeming:
            connection, request, head, batch, shape = item
            rows = self._rows_for(shape)
            count = rows.add(batch)
            if count:
                run = Gathered(head, rows)
                self._add(
                    connection, answer_to_be(request), run, b"", count, count * shape.record_size
                )
            else:
                self.take_apart(item)

    def _rows_for(self, shape: Shape) -> Rows:
        """Where a batch of that shape goes: to those of the batch before, if they are alike."""
        if self._waiting_plain:
            last = self._waiting_plain[-1][2]
            if isinstance(last, Gathered) and last.rows.shape is shape:
                return last.rows
        return Rows(shape)

    def _add(
        self,
        connection: Connection,
        request: RemotingCommand,
        run: PlainRun | Gathered,
        first_id: bytes,
        count: int,
        byte_count: int,
    ) -> None:
        if self._records:
            self.flush(clock.read())
        self._waiting_plain.append((connection, request, run, first_id))
        self._plain_count += count
        self.byte_count += byte_count
        if self._plain_count >= BLOCK_RECORDS_MAX or self.byte_count >= BLOCK_BYTES_MAX:
            self.flush(clock.read())

    def flush(self, now: Now) -> None:
        """Hand all that waits to the engine, as one block."""
        if self._seeming:
            self.settle()
        self.byte_count = 0
        self.is_pressed = self._engine.pending_bytes > self.bytes_max
        if self._waiting_plain:
            self._flush_plain(now)
        if self._records:
            self._flush_records(now)

    def _flush_plain(self, now: Now) -> None:
        waiting, self._waiting_plain = self._waiting_plain, []
        self._plain_count = 0
        asking = [(connection, request) for connection, request, _, _ in waiting]
        self._hand_over(
            asking,
            partial(self._engine.append_plain, self.runs_of(waiting), now),
            partial(self.give_plain, waiting),
        )

    def _flush_records(self, now: Now) -> None:
        records, self._records = self._records, []
        waiting, self._waiting = self._waiting, []
        asking = [(connection, request) for connection, request, _, _ in waiting]
        self._hand_over(
            asking, partial(self._engine.append, records, now), partial(answer, waiting)
        )

    @staticmethod
    def _hand_over(
        asking: Sequence[tuple[Connection, RemotingCommand]],
        store: Callable[[], Pending[R]],
        give: Callable[[Pending[R]], None],
    ) -> None:
        try:
            pending = store()
        except Refused as error:
            for connection, request in asking:
                connection.answer(request, refuse(request, error))
        except StoreFailed as error:
            for connection, request in asking:
                connection.answer(request, not_available(request, str(error)))
        else:
            if pending.is_done:
                give(pending)
            else:
                pending.notify = give


def answer_to_be(request: RemotingCommand) -> RemotingCommand:
    """
    It stands for the request from here on: with what that was made of gone, a thousand requests
    that wait for the disk fit a processor's cache.
    """
    if not request.is_oneway:
        return request.answer()
    request.body = b""
    return request


def answer(waiting: Sequence[Waiting], pending: Pending[list[AppendResult]]) -> None:
    """Each waiter gets its part of the results, or the error."""
    start = 0
    for connection, request, count, make in waiting:
        if pending.error is not None:
            connection.answer(request, not_available(request, str(pending.error)))
        else:
            made = make(pending.value[start : start + count])
            if made is not None:
                connection.answer(request, made)
        start += count
