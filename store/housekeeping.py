"""
What a store's disk needs besides commits, in one background thread: segments ahead of need, the
files of those that went, indexes of sealed segments, snapshots. Requests are served meanwhile.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, TypeVar

from protocols import clock
from store.disk import Disk
from store.engine import Engine
from store.log.spares import PrepareSegment, Upkeep

logger = logging.getLogger("tidegate.store")

T = TypeVar("T")

PAUSE_S: Final = 0.2
"""How often the background thread is asked whether it has a segment or a snapshot to make."""

BUSY_PAUSE_S: Final = 0.02
"""The same, while it makes one segment after another: 32 MiB last 0.1 s at 300 MB/s."""

RETRY_S: Final = 1.0
"""Pause after background work that the disk refused."""


class Housekeeping:
    """The background work of one engine. *executor* has one thread; *disk* is not the writer's."""

    def __init__(self, engine: Engine, disk: Disk, executor: Executor) -> None:
        self._background = engine.background
        self._disk = disk
        self._executor = executor
        self._segment: PrepareSegment | None = None
        self._upkeep: Upkeep | None = None

    async def run(self) -> None:
        """Until cancelled. What the disk refused is tried again."""
        while True:
            try:
                is_busy = await self._prepare_segment()
                await self._keep_up()
                is_busy |= await self._seal()
                await self.write_snapshot()
                pause = BUSY_PAUSE_S if is_busy else PAUSE_S
            except OSError as error:  # a full disk: sends are refused already
                logger.error("background work on the disk failed: %s", error)
                pause = RETRY_S
            await asyncio.sleep(pause)

    async def write_snapshot(self, *, is_forced: bool = False) -> None:
        """If one is due, or *is_forced* and there is news. Raises OSError."""
        snapshot = self._background.snapshot_due(clock.read(), is_forced=is_forced)
        if snapshot is not None:
            await self._in_background(snapshot.execute)
            self._background.snapshot_written(snapshot)

    async def _prepare_segment(self) -> bool:
        """False: none is wanted."""
        self._segment = self._segment or self._background.segment_wanted()
        if self._segment is None:
            return False
        while not await self._in_background(self._segment.execute):
            pass
        self._background.segment_prepared(self._segment)
        self._segment = None
        return True

    async def _keep_up(self) -> None:
        self._upkeep = self._upkeep or self._background.upkeep_due()
        if self._upkeep is not None:
            await self._in_background(self._upkeep.execute)
            self._background.upkeep_done(self._upkeep)
            self._upkeep = None

    async def _seal(self) -> bool:
        """The index of one sealed segment goes to its file; False: nothing to do."""
        work = self._background.seal_due()
        if work is None:
            return False
        try:
            await _step_by_step(work.gather)
            await self._in_background(work.execute)
            await _step_by_step(work.release)
        finally:
            self._background.seal_done()
        return True

    async def _in_background(self, execute: Callable[[Disk], T]) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, execute, self._disk)


async def _step_by_step(step: Callable[[], bool]) -> None:
    """Until it says True; requests are served in between."""
    is_done = False
    while not is_done:
        is_done = step()
        await asyncio.sleep(0)
