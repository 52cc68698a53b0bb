"""
Files that the next segments will be: made in advance, or sealed segments that were given up.

A sync over blocks that were written before costs half of one that must record new blocks, so a
file is written once with zeros before its first use, and a segment that goes is kept for another
life instead of being unlinked: its old name goes, the folder is synced, and only then may
``begin_segment`` write a new header with a new nonce over the old one (store page, rule 6). What
its former life left behind does not verify under the new nonce.

Everything that touches the disk here runs in a background thread.
"""

from collections import deque
from contextlib import suppress
from typing import Final

from store.disk import Disk
from store.log.segments import UNFINISHED_SUFFIX

SPARE_SUFFIX: Final = ".spare"
"""A whole file without a segment in it: used again after a restart."""

SPARES_MAX: Final = 3
"""Spare files kept; what goes beyond them is unlinked."""

AHEAD_WHEN_BUSY: Final = 2
"""Files made in advance while segments fill faster than ``BUSY_MS``; otherwise one."""

BUSY_MS: Final = 10_000

RUSH_MS: Final = 500
"""Of segments that fill faster the next ones are made without zeros: as much again as is stored
would go to the disk, for a tenth of a commit of a megabyte."""

USED_MIN: Final = 1 / 8
"""Part of the segment in use from which the next one is made: a store that hardly writes does
not pay for 32 MiB."""

ZERO_STEP_BYTES: Final = 1 << 20
"""Zeros written per step: large enough to be cheap, small enough not to delay a sync for long."""


class PrepareSegment:
    """A segment file to be made in advance, so that rolling over costs nothing."""

    def __init__(self, name: str, size: int, *, is_zero_filled: bool) -> None:
        self.name = name
        self._unfinished = name + UNFINISHED_SUFFIX
        self._size = size
        self._at = -1
        self.is_zero_filled = is_zero_filled

    def execute(self, disk: Disk) -> bool:
        """One step (some zeros); True when the file is ready. In a background thread."""
        if self._at < 0:
            disk.create(self._unfinished, self._size)
            self._at = 0 if self.is_zero_filled else self._size
        if self._at < self._size:
            step = min(ZERO_STEP_BYTES, self._size - self._at)
            disk.fill(self._unfinished, self._at, step)
            self._at += step
        if self._at < self._size:
            return False
        disk.sync(self._unfinished)
        disk.rename(self._unfinished, self.name)
        return True


class Upkeep:
    """Segments that were given up, and those whose pages nobody needs in memory."""

    def __init__(self) -> None:
        self.given_up: list[tuple[str, str]] = []
        """(segment, spare that it becomes; "": none, it is unlinked), oldest first: after a
        crash in between the log has no hole."""

        self.cold: list[str] = []
        self._done_count = 0

    @property
    def is_empty(self) -> bool:
        return not (self.given_up or self.cold)

    @property
    def spares(self) -> list[str]:
        return [spare for _, spare in self.given_up if spare]

    def execute(self, disk: Disk) -> None:
        """Old names go for good before anything may be written into their files again. After an
        error it may be called again: goes on where it was."""
        for name, spare in self.given_up[self._done_count :]:
            if spare:
                disk.rename(name, spare)
            else:
                disk.unlink(name)
            self._done_count += 1
        if self.given_up:
            disk.sync_dir()
        while self.cold:
            with suppress(FileNotFoundError):  # a segment that waits to be begun
                disk.drop_cached(self.cold.pop())


class Spares:
    """Which spare files there are, and which are wanted. On the loop: touches no disk."""

    def __init__(self, segment_bytes: int, *, is_zero_filled: bool) -> None:
        self._segment_bytes = segment_bytes
        self._is_zero_filled = is_zero_filled
        self._ready: deque[str] = deque()
        self._serial = 0
        self._preparing: PrepareSegment | None = None
        self._upkeep = Upkeep()
        self._is_keeping = False
        self._rolled_ms = 0
        self._is_busy = False
        self._is_rushed = False

    @property
    def count(self) -> int:
        """Files there are, or are being made."""
        return len(self._ready) + (self._preparing is not None)

    def find(self, disk: Disk) -> None:
        """At start: what earlier lives left behind; files of another size are of no use."""
        for name in disk.names():
            if not name.endswith(SPARE_SUFFIX):
                continue
            if disk.size(name) == self._segment_bytes and len(self._ready) < SPARES_MAX:
                self._serial = max(self._serial, int(name.removesuffix(SPARE_SUFFIX)))
                self._ready.append(name)
            else:
                disk.unlink(name)
        if self._ready:
            disk.sync_dir()  # that they are no segments any more must last before they are used

    def _new_name(self) -> str:
        self._serial += 1
        return f"{self._serial:08d}{SPARE_SUFFIX}"

    def take(self, wall_ms: int) -> str:
        """A file for the segment that begins now; "": none, make one."""
        self._is_busy = wall_ms - self._rolled_ms < BUSY_MS
        self._is_rushed = wall_ms - self._rolled_ms < RUSH_MS
        self._rolled_ms = wall_ms
        return self._ready.popleft() if self._ready else ""

    # ── background work ─────────────────────────────────────────────────────────────────

    def wanted(self, used: float) -> PrepareSegment | None:
        """A file to make, if too few are ready; *used*: part of the segment in use."""
        target = AHEAD_WHEN_BUSY if self._is_busy else int(used >= USED_MIN)
        if self._preparing is not None or len(self._ready) >= target:
            return None
        is_zero_filled = self._is_zero_filled and not self._is_rushed
        self._preparing = PrepareSegment(
            self._new_name(), self._segment_bytes, is_zero_filled=is_zero_filled
        )
        return self._preparing

    def prepared(self, work: PrepareSegment) -> None:
        self._preparing = None
        self._ready.append(work.name)

    def retire(self, name: str, size: int, *, may_stay: bool = True) -> None:
        """The segment is in nobody's reach any more: its file becomes a spare if it *may stay*."""
        upkeep = self._upkeep
        is_few = self.count + len(upkeep.spares) < SPARES_MAX
        is_kept = may_stay and is_few and size == self._segment_bytes
        upkeep.given_up.append((name, self._new_name() if is_kept else ""))

    def remove(self, name: str) -> None:
        """A file that belongs to a segment that went."""
        self._upkeep.given_up.append((name, ""))

    def cool(self, name: str) -> None:
        """Nobody is expected to read this segment soon."""
        self._upkeep.cold.append(name)

    def upkeep_due(self) -> Upkeep | None:
        if self._is_keeping or self._upkeep.is_empty:
            return None
        self._is_keeping = True
        upkeep, self._upkeep = self._upkeep, Upkeep()
        return upkeep

    def upkeep_done(self, work: Upkeep) -> None:
        self._is_keeping = False
        self._ready.extend(work.spares)
