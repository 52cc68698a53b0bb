"""
Reads of old messages give way to sends: who catches up costs those who send as little as can be.

While there are commits, pulls far behind the head of their queue run one at a time: none while a
commit is under way, so that the writer thread finds Python free; one after each, so that readers
go on however busy the disk is; and a send that comes in waits for one read at most.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from store.handlers.connection import Connection

WAIT_S_MAX: Final = 0.005
"""So long a read gives way to a commit that takes its time."""

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
