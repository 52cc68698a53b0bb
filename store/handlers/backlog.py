"""
Reads of old messages give way to sends: who catches up costs those who send as little as can be.

While there are commits, pulls far behind the head of their queue run one at a time: one with each
commit, beside it if the kernel writes it and those who sent must wait anyway, else when its answers
have left; others in the pauses between commits, but not where the next send is expected. So readers
go on however busy the disk is, and a send waits for one read at most.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from protocols import clock
from store.handlers.connection import Connection

WAIT_S_MAX: Final = 0.005
"""So long a read gives way to a commit that takes its time."""

PAUSE_S: Final = 0.001
"""So long after a commit nothing is read: who waited for it may send again."""

REST_FACTOR: Final = 3
"""Times what the last read took: so long none comes with a commit. Reads have a quarter of the
loop at most while commits follow one another."""

QUIET_S: Final = 0.05
"""So long after the last commit reads need not take turns any more."""


class Backlog:
    """Reads that wait for their turn."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Connection, Callable[[], object]]] = deque()
        self.is_pressing: Callable[[], bool] = lambda: False
        """Whether somebody sends."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, connection: Connection, read: Callable[[], object]) -> None:
        """*read* answers a request of *connection*, by and by."""
        self._waiting.append((connection, read))

    def run_one(self) -> None:
        """The next one whose connection is still there."""
        while self._waiting:
            connection, read = self._waiting.popleft()
            if connection.is_open:
                read()
                return


class Turns:
    """
    Who has the loop and the disk next: reads that gave way, or whom they gave way to.

    Args:
        is_committing: what else costs time now costs those who wait for the disk.
        tick_soon: brings the next ``read``.
        monotonic: the clock, in seconds.
    """

    def __init__(
        self,
        backlog: Backlog,
        *,
        is_committing: Callable[[], bool],
        tick_soon: Callable[[], None],
        monotonic: Callable[[], float] = clock.monotonic,
    ) -> None:
        backlog.is_pressing = self.is_storing
        self._backlog = backlog
        self._is_committing = is_committing
        self._tick_soon = tick_soon
        self._monotonic = monotonic
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._may_read = False
        """The next read has its turn."""

        self._again_at = 0.0
        """None comes with a commit before that."""

        self._committed_at = -QUIET_S
        self._commit_count = 0

    def is_storing(self) -> bool:
        """A commit is under way, or there was one just now."""
        return self._monotonic() < self._committed_at + QUIET_S or self._is_committing()

    def is_pause(self) -> bool:
        """No commit is under way, nor was one just now."""
        return not self._is_committing() and self._monotonic() >= self._committed_at + PAUSE_S

    def commit_begun(self) -> None:
        """The kernel writes: a read costs nobody anything."""
        self._may_read |= self._monotonic() >= self._again_at

    def commit_ended(self) -> None:
        """One more is durable, its answers are queued."""
        self._commit_count += 1
        self._committed_at = self._monotonic()
        self._may_read |= self._committed_at >= self._again_at

    def pass_by(self) -> None:
        """Something else had the time that a read would have had."""
        self._may_read = False

    def read(self) -> None:
        """One read, in its turn or in a pause between commits; or later. At the end of a tick."""
        backlog = self._backlog
        if not backlog:
            self._may_read &= self._is_committing()  # later, the next send is expected
            return
        if self._may_read or self.is_pause():
            self._may_read = False
            began = self._monotonic()
            backlog.run_one()
            ended = self._monotonic()
            self._again_at = ended + REST_FACTOR * (ended - began)
        if not backlog:
            return
        if self.is_pause():
            self._tick_soon()
        elif self._timer is None:
            wait_s = WAIT_S_MAX if self._is_committing() else PAUSE_S
            self._timer = self._loop.call_later(wait_s, self._let_read, self._commit_count)

    def _let_read(self, commit_count: int) -> None:
        """The commit takes its time, or there is none; else a read came with it."""
        self._timer = None
        self._may_read |= commit_count == self._commit_count
        self._tick_soon()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
