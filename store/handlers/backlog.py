"""
Reads of old messages give way to sends: who catches up costs those who send as little as can be.

While there are commits, pulls far behind the head of their queue run one at a time: one with each
commit, beside it if the kernel writes it and those who sent must wait anyway, else after it; others
in the pauses between commits, but not where the next send is expected. So readers go on however
busy the disk is, and a send waits for one read at most.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

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
