"""
The only caller of ``create_task``.

A task that nobody holds can vanish in mid-air, and one that nobody awaits hides its error.
``Tasks`` holds its tasks, logs what they die of once, and ends them together.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")

logger = logging.getLogger("tidegate.tasks")


class Tasks:
    """The background tasks of one owner; ``close`` ends them all."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: set[asyncio.Task[Any]] | None = None  # most owners of thousands have none

    def start(self, coroutine: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """Run *coroutine* until it ends or this owner closes; an error is logged, not lost."""
        task = asyncio.get_running_loop().create_task(coroutine, name=f"{self._name}/{name}")
        if self._tasks is None:
            self._tasks = set()
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def __len__(self) -> int:
        return len(self._tasks or ())

    async def close(self) -> None:
        """Cancel what still runs and wait for it."""
        tasks = [task for task in self._tasks or () if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)

    async def settle(self, timeout_s: float) -> None:
        """Let the tasks end by themselves, but not longer than *timeout_s*."""
        tasks = [task for task in self._tasks or () if task is not asyncio.current_task()]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if self._tasks is not None:
            self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("task %s failed", task.get_name(), exc_info=error)


class Signal:
    """``asyncio.Event`` for owners of whom there are many: a tenth of its size until one waits."""

    __slots__ = ("_event", "is_set")

    def __init__(self, *, is_set: bool = False) -> None:
        self.is_set = is_set
        self._event: asyncio.Event | None = None

    def set(self) -> None:
        self.is_set = True
        if self._event is not None:
            self._event.set()
            self._event = None

    def clear(self) -> None:
        self.is_set = False

    async def wait(self) -> None:
        if self.is_set:
            return
        if self._event is None:
            self._event = asyncio.Event()
        await self._event.wait()


IDLE: Final = Signal(is_set=True)
"""Of all who wait for nothing."""


async def outcomes(coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T | BaseException]:
    """
    What each returns or raises, all under way at once.

    One alone runs in the caller's task: what it sends leaves before anything that came in later.
    """
    if len(coroutines) == 1:
        try:
            return [await coroutines[0]]
        except Exception as error:
            return [error]
    return await asyncio.gather(*coroutines, return_exceptions=True)


async def every(seconds: float, act: Callable[[], Awaitable[None]]) -> None:
    """Call *act* again and again, until cancelled."""
    while True:
        await asyncio.sleep(seconds)
        await act()


class Closing(Protocol):
    """What is ended by its owner."""

    async def close(self) -> None: ...


async def close_all(*parts: Closing | None) -> None:
    """One after the other; None: was never made."""
    for part in parts:
        if part is not None:
            await part.close()


class LongPolls:
    """Waits that a closing listener ends early, as if nothing had come in their time."""

    def __init__(self) -> None:
        self._scopes: set[asyncio.Timeout] = set()
        self._is_closing = False

    async def wait(self, poll: Awaitable[list[T]]) -> list[T]:
        """What *poll* brings; an empty list if the listener closes meanwhile."""
        scope = asyncio.timeout(0 if self._is_closing else None)
        self._scopes.add(scope)
        try:
            async with scope:
                return await poll
        except TimeoutError:
            if not scope.expired():
                raise
            return []
        finally:
            self._scopes.discard(scope)

    def close(self) -> None:
        """End all waits, also those to come."""
        self._is_closing = True
        now = asyncio.get_running_loop().time()
        for scope in self._scopes:
            scope.reschedule(now)
