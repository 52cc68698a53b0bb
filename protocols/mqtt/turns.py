"""CONNECTs of one client id go one after the other; nearly all find nobody before them."""

import asyncio
from collections import deque
from typing import Final

NOBODY: Final[deque[asyncio.Future[None]]] = deque(maxlen=0)
"""Waits: a queue of its own is made for the second who comes."""


class Turns:
    """A lock per key that costs a dictionary entry while nobody else wants it."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def take(self, key: str) -> None:
        """Wait until whoever came before has called ``give``."""
        waiting = self._waiting.get(key)
        if waiting is None:
            self._waiting[key] = NOBODY
            return
        if waiting is NOBODY:
            waiting = self._waiting[key] = deque()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(key)
            raise

    def give(self, key: str) -> None:
        """The next one, if there is one."""
        waiting = self._waiting[key]
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._waiting[key]
