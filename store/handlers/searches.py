"""Searches of the log for a key, one at a time, in a thread of their own (12)."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from protocols import clock
from store.disk import Disk
from store.searching import SearchWork

logger = logging.getLogger("tidegate.store")

SEARCHES_MAX: Final = 64
"""Searches that wait for their turn; more are SYSTEM_BUSY."""

SEARCH_S_MAX: Final = 10.0
"""A search that takes longer ends with what it has found; clients wait 5 s or more."""

Hits = Callable[[list[int]], bool]
"""Takes log positions of hits; True: it has enough."""


class Search:
    """One search and who waits for it."""

    __slots__ = ("deadline", "finish", "take", "work")

    def __init__(self, work: SearchWork, take: Hits, finish: Callable[[], object]) -> None:
        self.work = work
        self.take = take
        self.finish = finish
        self.deadline = 0.0


class Searches:
    """All searches of a store; each ends by ``finish``, called once, in the loop."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._waiting: deque[Search] = deque()
        self._thread: ThreadPoolExecutor | None = None
        self._current: Search | None = None

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= SEARCHES_MAX

    def start(self, work: SearchWork, take: Hits, finish: Callable[[], object]) -> None:
        self._waiting.append(Search(work, take, finish))
        if self._current is None:
            self._next()

    def close(self) -> None:
        """Forget what waits; its connections are closing."""
        self._waiting.clear()
        self._current = None
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
            self._thread = None

    def _next(self) -> None:
        if not self._waiting:
            self._current = None
            return
        self._current = self._waiting.popleft()
        self._current.deadline = clock.monotonic() + SEARCH_S_MAX
        self._step(self._current)

    def _step(self, search: Search) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="store-search")
        loop = asyncio.get_running_loop()
        future = self._thread.submit(search.work.execute, self._disk)
        future.add_done_callback(
            lambda done: loop.call_soon_threadsafe(self._stepped, search, done)
        )

    def _stepped(self, search: Search, done: "Future[list[int] | None]") -> None:
        if search is not self._current or done.cancelled():
            return
        hits: list[int] | None = None
        try:
            hits = done.result()
        except OSError as error:  # a segment that went while we read: what it had is gone
            logger.info("a search meets a segment that is gone: %s", error)
            hits = []
        is_over = hits is None or clock.monotonic() > search.deadline
        if hits:
            is_over = search.take(hits) or is_over
        if not is_over:
            self._step(search)
            return
        search.finish()
        self._next()
