"""Who waits until this gateway's table contains a version of the directory."""

import asyncio
from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

from protocols import clock
from protocols.directory import PutResult
from protocols.errors import Refused


class _Waiter(NamedTuple):
    version: int
    until: float
    """Monotonic time; infinite: for ever."""

    future: asyncio.Future[list[PutResult]]
    results: list[PutResult]


class Applied:
    """The version that is applied, and those who wait for a later one."""

    def __init__(self, wait_s_max: float, overdue: Callable[[], Refused]) -> None:
        self.version = 0
        self._wait_s_max = wait_s_max
        self._overdue = overdue
        self._waiters: list[_Waiter] = []
        self._timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def rise(self, version: int) -> None:
        """The table has it, and everything that is made from the table."""
        self.version = version
        self._wake()

    async def reached(self, version: int) -> None:
        """Wait, however long it takes."""
        if version > self.version:
            future: asyncio.Future[list[PutResult]] = asyncio.get_running_loop().create_future()
            self._waiters.append(_Waiter(version, inf, future, []))
            await future

    def written(
        self, writes: Sequence[tuple[asyncio.Future[list[PutResult]], list[PutResult]]]
    ) -> None:
        """Each hears its results once our own table has them, or that this takes too long."""
        until = clock.monotonic() + self._wait_s_max
        for future, results in writes:
            version = max([result.record.version for result in results])
            self._waiters.append(_Waiter(version, until, future, results))
        self._wake()
        self._watch()

    def _wake(self) -> None:
        waiting, self._waiters = self._waiters, []
        for waiter in waiting:
            if waiter.version > self.version:
                self._waiters.append(waiter)
            elif not waiter.future.done():
                waiter.future.set_result(waiter.results)

    def _watch(self) -> None:
        """One timer for all: the writes of a storm need none each."""
        if self._timer is None and self._waiters:
            until = min([waiter.until for waiter in self._waiters])
            if until < inf:
                delay_s = max(0.0, until - clock.monotonic())
                self._timer = asyncio.get_running_loop().call_later(delay_s, self._end_overdue)

    def _end_overdue(self) -> None:
        self._timer = None
        now, waiting = clock.monotonic(), self._waiters
        self._waiters = [waiter for waiter in waiting if waiter.until > now]
        for waiter in waiting:
            if waiter.until <= now and not waiter.future.done():
                waiter.future.set_exception(self._overdue())
        self._watch()
