"""
The standard sends of one tick, gathered into one block: a block costs more than a record.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from protocols.clock import Now
from protocols.errors import Refused
from protocols.remoting.command import RemotingCommand
from store.answers import AppendRecord, AppendResult, Pending, StoreFailed
from store.engine import Engine
from store.handlers.answers import not_available, refuse
from store.handlers.connection import Connection

BLOCK_RECORDS_MAX: Final = 1024
BLOCK_BYTES_MAX: Final = 4 << 20
"""A block takes no more than this, whatever a tick brought."""

Make = Callable[[Sequence[AppendResult]], RemotingCommand]
Waiting = tuple[Connection, RemotingCommand, int, Make]
"""(connection, request, record count, what makes the answer of the results)."""


class Appends:
    """Records waiting for the end of the tick, with those who wait for them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._records: list[AppendRecord] = []
        self._waiting: list[Waiting] = []
        self.byte_count = 0
        """What waits for the end of the tick."""

    def add(
        self,
        connection: Connection,
        request: RemotingCommand,
        records: Sequence[AppendRecord],
        make: Make,
        now: Now,
    ) -> None:
        """Append *records* by the end of the tick; *make* the answer once they are durable."""
        self._records += records
        self._waiting.append((connection, request, len(records), make))
        self.byte_count += sum([len(record.record) for record in records])
        if len(self._records) >= BLOCK_RECORDS_MAX or self.byte_count >= BLOCK_BYTES_MAX:
            self.flush(now)

    def flush(self, now: Now) -> None:
        """Hand all that waits to the engine, as one block."""
        if not self._records:
            return
        records, self._records = self._records, []
        waiting, self._waiting = self._waiting, []
        self.byte_count = 0
        try:
            pending = self._engine.append(records, now)
        except Refused as error:
            for connection, request, _, _ in waiting:
                connection.answer(request, refuse(request, error))
        except StoreFailed as error:
            for connection, request, _, _ in waiting:
                connection.answer(request, not_available(request, str(error)))
        else:
            if pending.is_done:
                answer(waiting, pending)
            else:
                pending.notify = partial(answer, waiting)


def answer(waiting: Sequence[Waiting], pending: Pending[list[AppendResult]]) -> None:
    """Each waiter gets its part of the results, or the error."""
    start = 0
    for connection, request, count, make in waiting:
        if pending.error is not None:
            connection.answer(request, not_available(request, str(pending.error)))
        else:
            connection.answer(request, make(pending.value[start : start + count]))
        start += count
