"""
How much room is left, and when the log counts as full (store page, rule 6).

*Owed* is never deleted. *Kept* goes oldest first: when its time has passed, or earlier under
pressure. When only owed is left, sends are refused; the last two segments' worth is a reserve
for acks, grants, directory writes and relocation.
"""

import logging
from typing import Final

from store.core import Core
from store.log.segments import Segment

_log = logging.getLogger("store.engine")

RESERVE_SEGMENTS: Final = 2
PRESSURE: Final = 0.9
"""From this part of the usable log on, kept segments go before their time."""


class Room:
    """Counts bytes; ``Cleaner`` decides what goes."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.free_bytes = 1 << 62
        """Of the file system, at the last look."""

        self._refused_bytes = 0
        """The most that was refused and would not fit at the last look either."""

        self._is_refusal_told = False
        """In the log, until there is room again."""

        self.snapshot_position = 0
        """Of the older kept snapshot: recovery starts there, so nothing above it goes."""

        self.awaited_position = 0
        """Room is short, and what ends here cannot be judged until snapshots have passed it."""

        self.leaving: dict[Segment, int] = {}
        """Segments that remnants replaced → log position that both snapshots must have passed
        before the file may go."""

    @property
    def log_bytes(self) -> int:
        """What the segments take."""
        return self._core.log.segments.byte_count

    @property
    def usable_bytes(self) -> int:
        config = self._core.config
        return max(0, config.log_bytes_max - RESERVE_SEGMENTS * config.segment_bytes)

    @property
    def leaving_bytes(self) -> int:
        return sum([segment.end - segment.base for segment in self.leaving])

    def has_room_for(self, size: int) -> bool:
        """For messages; what is refused counts as pressure until it would fit."""
        if self._fits(size):
            return True
        if size <= self.usable_bytes:
            self._refused_bytes = max(self._refused_bytes, size)
            self._tell_refusal()
        return False

    def _tell_refusal(self) -> None:
        if not self._is_refusal_told:
            self._is_refusal_told = True
            _log.warning(
                "out of room, messages are refused: %d bytes of log (limits.log_bytes_max %d), "
                "%d free on the disk (limits.disk_free_bytes_min %d)",
                self.log_bytes,
                self._core.config.log_bytes_max,
                self.free_bytes,
                self._core.config.disk_free_bytes_min,
            )

    @property
    def is_disk_short(self) -> bool:
        """Others need what is left of it: no file stays for later."""
        return self.free_bytes < self._core.config.disk_free_bytes_min

    def _fits(self, size: int) -> bool:
        if self.is_disk_short:
            return False
        return self.log_bytes + size <= self.usable_bytes

    def has_room_to_move(self, size: int) -> bool:
        """Relocation may use the reserve, all but one segment of it."""
        config = self._core.config
        if self.free_bytes < config.disk_free_bytes_min // 2:
            return False
        limit = config.log_bytes_max - config.segment_bytes
        return self.log_bytes + size <= limit

    def look(self) -> None:
        """Ask the disk how much is free."""
        self.free_bytes = self._core.disk.free_bytes()
        if self._fits(self._refused_bytes):
            self._refused_bytes = 0
            if self._is_refusal_told:
                self._is_refusal_told = False
                _log.info("there is room for messages again")

    @property
    def _spare_bytes(self) -> int:
        """What should be left of the usable log."""
        return int(self.usable_bytes * (1 - PRESSURE))

    @property
    def is_under_pressure(self) -> bool:
        """Even when all that is leaving is gone."""
        spare = max(self._spare_bytes, self._refused_bytes)
        freed = self.leaving_bytes
        is_disk_full = self.free_bytes + freed < self._core.config.disk_free_bytes_min
        used = self.log_bytes - freed
        return is_disk_full or used + spare > self.usable_bytes

    @property
    def wants_snapshot(self) -> bool:
        """Files wait for one, and their room is needed."""
        passed = self.snapshot_position
        if self.awaited_position > passed:
            return True
        waiting_count = len([at for at in self.leaving.values() if at > passed])
        is_short = not self._fits(self._spare_bytes)
        return waiting_count > (0 if is_short else LEAVING_MAX)


LEAVING_MAX: Final = 8
"""More segments than that do not wait for the next snapshot that comes anyway."""
