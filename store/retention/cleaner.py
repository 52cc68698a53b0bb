"""
Which old segments go, and when: in any order, each by what of it must stay.

Nothing must stay: it goes. A quarter or less: that is copied, and the rest goes. More: it stays,
and is looked at again later. Every end waits until what made the segment superfluous is durable:
after a crash that loses the last acks, their messages are owed again.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from protocols.clock import Now
from store.core import Core
from store.index.pages import index_name
from store.index.queues import Queue
from store.index.remnants import ENTRY_BYTES, REMNANT_BYTES
from store.log.format import Kind
from store.log.segments import Segment
from store.log.state import pack
from store.parts import Parts
from store.retention.living import Living
from store.retention.moving import Moving
from store.retention.room import Room

LOOK_S: Final = 1.0
"""How often the disk is asked for its free space and retention looks at old segments."""

STEP_S: Final = 0.01
"""Between two steps of a relocation: some 100 MB/s."""

LIVE_MAX: Final = 0.25
"""Part of a segment that may be copied to free the rest."""

LOOKED_MAX: Final = 32
"""Segments looked at in one go."""

AGAIN_S: Final = 20.0
"""When a segment that must stay is looked at again."""

AGAIN_PRESSED_S: Final = 2.0
NEVER: Final = float("-inf")
ENDED_PER_RECORD: Final = 10_000
"""Queues that end by one record."""

RESTING_PER_LOOK: Final = 10_000
"""Queues that may leave memory per look: some 20 ms."""


class Cleaner:
    """Runs on the loop, a little at a time."""

    def __init__(self, core: Core, parts: Parts, room: Room) -> None:
        self._core = core
        self._parts = parts
        self._room = room
        self._looked = -LOOK_S
        self._newest = 0
        """Newest segment with an index file at the last look."""

        self._kept: dict[int, float] = {}
        """Segment number → when it was found that it must stay."""

        self._moving: Moving | None = None
        self._step_at = 0.0
        """When the next part may be copied: requests go first."""

        self._going: set[int] = set()
        """Segments that wait for durability before they go."""

    def tick(self, now: Now) -> float:
        """Do what is due; when to come again."""
        is_sealed = self._core.sealer.is_eager and self._core.cold.newest != self._newest
        if is_sealed or now.monotonic - self._looked >= LOOK_S:
            self._newest = self._core.cold.newest
            self._looked = now.monotonic
            self._end_unused(self._core.queues.rest_woken(RESTING_PER_LOOK))
            self._room.look()
            self._drop_left()
            self._look(now)
        moving = self._moving
        if moving is not None and not moving.is_waiting:
            if now.monotonic < self._step_at:
                return self._step_at
            self._step_at = now.monotonic + STEP_S
            if moving.copy():
                moving.is_waiting = True
                self._when_durable(partial(self._end, moving, now))
            return self._step_at
        return self._looked + LOOK_S

    # ── who goes ────────────────────────────────────────────────────────────────────────

    def _look(self, now: Now) -> None:
        core, room = self._core, self._room
        limit = min(room.snapshot_position, core.log.confirmed)
        is_pressed = room.is_under_pressure
        min_ms = self._parts.topics.retention_ms_min
        living: Living | None = None
        looked = 0
        core.sealer.is_eager = False
        room.awaited_position = 0
        for segment in list(core.log.segments.items)[:-1]:
            if looked >= LOOKED_MAX:
                break
            if segment.end > limit:  # a full log does not grow until the next snapshot is due
                room.awaited_position = segment.end if is_pressed else 0
                break
            newest_ms = core.newest_ms.get(segment.number, now.wall_ms)
            is_due = is_pressed or newest_ms + min_ms < now.wall_ms or self._is_compacted(segment)
            if is_due and not core.cold.has(segment.number):
                core.sealer.is_eager = True  # it goes by its index file
                break
            pause = AGAIN_PRESSED_S if is_pressed else AGAIN_S
            if not is_due or not self._may_go(segment, now.monotonic - pause):
                continue
            if living is None:
                living = Living(core, self._parts, now.wall_ms, is_pressed=is_pressed)
            looked += 1
            if not self._judge(segment, living, newest_ms, now):
                break
            is_pressed = is_pressed and room.is_under_pressure
            if not is_pressed and living.is_pressed:
                break  # enough for now

    def _may_go(self, segment: Segment, kept_before: float) -> bool:
        is_seen = segment in self._room.leaving or segment.number in self._going
        is_sealed = segment.number in self._core.cold.sealed
        return is_sealed and not is_seen and self._kept.get(segment.number, NEVER) <= kept_before

    def _is_compacted(self, segment: Segment) -> bool:
        """Whether values in it may have been replaced."""
        if not self._parts.topics.compacted or segment.number not in self._core.cold.sealed:
            return False
        directory = self._core.cold.directory(segment.number)
        return any([directory.find(number) for number in self._parts.compacted.numbers()])

    def _live(self, segment: Segment, living: Living, newest_ms: int) -> dict[int, set[int]]:
        """Number of the segment, or of a remnant with bytes in it → what must stay."""
        number, base, end = segment.number, segment.base, segment.end
        return {number: living.of(number, base, end, newest_ms), **living.moved(base, end)}

    def _judge(self, segment: Segment, living: Living, newest_ms: int, now: Now) -> bool:
        """What becomes of a segment; False: not yet, another one is being copied."""
        live = self._live(segment, living, newest_ms)
        count = sum([len(positions) for positions in live.values()])
        moving = Moving(self._core, segment, newest_ms, is_pressed=living.is_pressed)
        moving.want(live)
        if not count:
            moving.is_waiting = True
            self._going.add(segment.number)
            self._when_durable(partial(self._end, moving, now))
            return True
        length_of = self._core.entries.length_of
        size = sum([length_of(at) for positions in live.values() for at in positions])
        is_little = size <= LIVE_MAX * (segment.end - segment.base)
        remnants = self._core.cold.remnants
        is_small = (
            remnants.byte_count + REMNANT_BYTES + count * ENTRY_BYTES
            <= self._core.config.relocated_bytes_max
        )
        if not (is_little and is_small and self._room.has_room_to_move(size)):
            self._kept[segment.number] = now.monotonic
        elif self._moving is None:
            self._moving = moving
            self._going.add(segment.number)
        else:
            return False
        return True

    # ── going ───────────────────────────────────────────────────────────────────────────

    def _when_durable(self, effect: Callable[[], None]) -> None:
        self._core.log.when_durable(effect)

    def _end(self, moving: Moving, now: Now) -> None:
        """All that was handed in when it was looked at is durable: look once more."""
        segment = moving.segment
        living = Living(self._core, self._parts, now.wall_ms, is_pressed=moving.is_pressed)
        live = self._live(segment, living, moving.newest_ms)
        if moving.want(live):
            moving.is_waiting = False
            if moving.count == 0 and self._moving is not moving:
                self._going.discard(segment.number)  # somebody came to need it
            return
        self._going.discard(segment.number)
        if self._moving is moving:
            self._moving = None
            self._looked = -LOOK_S  # the next one
        self._kept.pop(segment.number, None)
        self._end_idle(moving.finish())
        self._core.counters.deleted_bytes += segment.end - segment.base
        if moving.count:
            self._room.leaving[segment] = self._core.log.end
        else:
            self._drop_file(segment)

    def _drop_left(self) -> None:
        """Both snapshots know what is left of them."""
        leaving = self._room.leaving
        passed = self._room.snapshot_position
        for segment in [segment for segment, at in leaving.items() if at <= passed]:
            del leaving[segment]
            self._drop_file(segment)

    def _drop_file(self, segment: Segment) -> None:
        core = self._core
        core.log.spares.remove(index_name(segment.number))  # never an index of nothing
        core.cold.left.discard(segment.number)
        core.log.drop(segment, may_file_stay=not self._room.is_disk_short)
        core.newest_ms.pop(segment.number, None)

    # ── queues ──────────────────────────────────────────────────────────────────────────

    def _end_unused(self, queues: Sequence[Queue]) -> None:
        """Queues that came into being by a first use go when nothing of them is left."""
        for start in range(0, len(queues), ENDED_PER_RECORD):
            part = queues[start : start + ENDED_PER_RECORD]
            self._core.log.state(Kind.QUEUE_END, pack(*[queue.number for queue in part]))
            for queue in part:
                self._core.queues.drop(queue)

    def _end_idle(self, numbers: Sequence[int]) -> None:
        """The same for those that rest."""
        for start in range(0, len(numbers), ENDED_PER_RECORD):
            part = numbers[start : start + ENDED_PER_RECORD]
            self._core.log.state(Kind.QUEUE_END, pack(*part))
            for number in part:
                self._core.queues.drop_idle(number)
