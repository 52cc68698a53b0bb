"""
Long polls: requests that are held until what they ask for exists, or their time is up.

There is no sweep: a wait ends by a wake-up of its key, by its own timer, or with its
connection. Apache's five-second steps come from a sweep that catches lost wake-ups.
"""

import asyncio
from collections.abc import Callable, Hashable
from typing import Protocol


class Held(Protocol):
    """The connection a wait belongs to."""

    @property
    def is_open(self) -> bool: ...


class Wait:
    """One held request; answered exactly once."""

    __slots__ = ("expire", "held", "keys", "timer", "wake")

    def __init__(
        self,
        held: Held,
        keys: tuple[Hashable, ...],
        wake: Callable[[], bool],
        expire: Callable[[], object],
    ) -> None:
        self.held = held
        self.keys = keys
        self.wake = wake
        self.expire = expire
        self.timer: asyncio.TimerHandle | None = None


class Waits:
    """All held requests of a store, by what they wait for."""

    def __init__(self, *, waiting_max: int) -> None:
        self._waiting_max = waiting_max
        self._by_key: dict[Hashable, dict[Wait, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(
        self,
        held: Held,
        keys: tuple[Hashable, ...],
        *,
        wait_s: float,
        wake: Callable[[], bool],
        expire: Callable[[], object],
    ) -> None:
        """
        Hold a request under *keys* for *wait_s* seconds.

        Args:
            held: a wait of a closed connection is never answered; it goes at its next turn.
            keys: any of them wakes it.
            wake: tries to answer; True: answered, the wait is over; False: go on waiting.
            expire: answers that there is nothing. Called at once when ``waiting_max`` are held.
        """
        if self._count >= self._waiting_max or wait_s <= 0:
            expire()
            return
        wait = Wait(held, keys, wake, expire)
        for key in keys:
            self._by_key.setdefault(key, {})[wait] = None
        self._count += 1
        loop = asyncio.get_running_loop()
        wait.timer = loop.call_later(wait_s, self._expire, wait)

    def wake(self, key: Hashable) -> None:
        """Let the waits of *key* try, oldest first."""
        waits = self._by_key.get(key)
        if not waits:
            return
        for wait in list(waits):
            if wait.timer is None:
                continue  # ended by a wake-up further up in this loop
            if not wait.held.is_open or wait.wake():
                self._remove(wait)

    def has(self, key: Hashable) -> bool:
        """Whether anything waits for *key*."""
        return key in self._by_key

    def close(self) -> None:
        """Forget all; their connections are closing."""
        for wait in [w for waits in self._by_key.values() for w in waits]:
            self._remove(wait)

    def _expire(self, wait: Wait) -> None:
        self._remove(wait)
        if wait.held.is_open:
            wait.expire()

    def _remove(self, wait: Wait) -> None:
        if wait.timer is None:
            return
        wait.timer.cancel()
        wait.timer = None
        self._count -= 1
        for key in wait.keys:
            waits = self._by_key.get(key)
            if waits is not None:
                waits.pop(wait, None)
                if not waits:
                    del self._by_key[key]
