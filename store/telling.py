"""
Answers that wait until the name servers know what they are about.

A client that has made a topic asks a name server for its route next, and Java's keeps for 30 s what
it hears. Apache's broker registers a topic before it answers (``registerIncrementBrokerData``).
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

TOLD_S_MAX: Final = 1.0
"""A name server that takes longer is waited for again when it has answered."""

WAITING_MAX: Final = 10_000
"""Answers that wait; one more does not."""


class _Waiting:
    """One answer."""

    __slots__ = ("number", "then", "timer")

    def __init__(self, number: int, then: Callable[[], object]) -> None:
        self.number = number
        self.then = then
        self.timer: asyncio.TimerHandle | None = None


class Telling:
    """Which name server has been told of which change; changes are numbered."""

    def __init__(self) -> None:
        self.asked = 0
        """The last number."""

        self._told: dict[str, int] = {}
        """Name server → the last number that it knows; those that are slow or away are not here."""

        self._waiting: deque[_Waiting] = deque()

    def when_told(self, then: Callable[[], object]) -> bool:
        """Call *then* when they know all that is so now. False: it was called, nobody is to be
        told."""
        if not self._told or len(self._waiting) >= WAITING_MAX:
            then()
            return False
        self.asked += 1
        waiting = _Waiting(self.asked, then)
        waiting.timer = asyncio.get_running_loop().call_later(TOLD_S_MAX, self._late, waiting)
        self._waiting.append(waiting)
        return True

    def told(self, address: str, number: int) -> None:
        """This name server knows what was so when ``asked`` was *number*."""
        self._told[address] = number
        self._release()

    def lost(self, address: str) -> None:
        """Its connection has ended."""
        self._told.pop(address, None)
        self._release()

    def close(self) -> None:
        """Nobody is told any more."""
        self._told.clear()
        self._release()

    def _late(self, waiting: _Waiting) -> None:
        for address, number in list(self._told.items()):
            if number < waiting.number:
                del self._told[address]
        self._release()

    def _release(self) -> None:
        least = min(self._told.values(), default=self.asked)
        while self._waiting and self._waiting[0].number <= least:
            waiting = self._waiting.popleft()
            if waiting.timer is not None:
                waiting.timer.cancel()
            waiting.then()
