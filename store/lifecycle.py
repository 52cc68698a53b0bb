"""
From start to end: recovery, what time decides, snapshots, retention, the closing block.
"""

import logging
from functools import partial
from os import urandom
from typing import Final

from protocols.canonical import DISPATCH_NAME
from protocols.clock import Now
from store.answers import RecoveryReport, StoreFailed, Woken
from store.core import Core
from store.groups.deliveries import Deliveries
from store.index.adoption import adopt_indexes, connect_index
from store.log.format import Kind
from store.log.recovery import Tail, find_tail, open_segments, read_segment, scan, settle_tail
from store.log.segments import Segment
from store.log.snapshots import Snapshot, SnapshotWork, read_snapshots
from store.log.state import pack
from store.parts import Parts
from store.replay import Replay
from store.retention.room import Room
from store.timers.holding import Holding

IDLE_S: Final = 1.0
"""After so long without a write, an empty block says how far the log is durable."""

SNAPSHOTS_PER_ROOM: Final = 4
"""At least so many snapshots while the log fills its room: what the older of the two that are
kept does not cover cannot be deleted, so a small log needs them sooner than a large one."""

SNAPSHOT_STEP_BYTES_MIN: Final = 64 << 10

LOOK_S: Final = 1.0
"""How often the disk is asked for its free space and retention looks at the oldest segment."""

RESTING_PER_LOOK: Final = 10_000
"""Queues that may leave memory per look: some 20 ms."""

_log = logging.getLogger("store.engine")


class Lifecycle:
    """Starts, keeps and ends an engine."""

    def __init__(
        self, core: Core, parts: Parts, deliveries: Deliveries, room: Room, holding: Holding
    ) -> None:
        self._holding = holding
        self._core = core
        self._parts = parts
        self._deliveries = deliveries
        self._room = room
        room.owed = self._first_owed
        self._looked = -LOOK_S
        self._seen_end = -1
        self._seen_at = 0.0
        self._snapshot_position = 0
        self._snapshot: SnapshotWork | None = None
        self._topics_seen = 0

    # ── start ───────────────────────────────────────────────────────────────────────────

    def recover(self, now: Now) -> RecoveryReport:
        """Read everything, make the tail durable, open a new epoch."""
        log = self._core.log
        log.wall_ms = now.wall_ms
        segments = open_segments(self._core.disk, self._core.config)
        log.spares.find(self._core.disk)
        if segments:
            report = self._recover_log(segments)
        else:
            log.log_id = urandom(16)
            log.epoch = 1
            connect_index(self._core)
            report = RecoveryReport(1, 0, 0, 0, 0, 0, 0, True, 0)
        self._parts.held.settle()
        self._parts.groups.epoch_start = log.end
        log.state(Kind.EPOCH, pack(log.epoch, log.end))
        self._deliveries.new_epoch()
        self._forget_volatile_queues()
        self._parts.leases.rebuild(now)
        self._deliveries.rearm(now)
        batch = log.take_writes()
        assert batch is not None
        batch.execute(self._core.disk)
        log.confirm(batch.position)
        self._room.look()
        return report

    def _recover_log(self, segments: list[Segment]) -> RecoveryReport:
        core, log = self._core, self._core.log
        snapshots = read_snapshots(core.disk, segments[0].header.log_id)
        newest = snapshots[0].position if snapshots else 0
        tail, data = find_tail(core.disk, core.config, segments, newest)
        usable = [snapshot for snapshot in snapshots if snapshot.position <= tail.scanned_end]
        snapshot = usable[0] if usable else None
        if snapshot is None and segments[0].base > 0:
            raise StoreFailed("the start of the log is gone and no snapshot covers it")
        settle_tail(core.disk, core.config, tail, data)
        for segment in tail.segments:
            log.segments.add(segment)
        log.log_id = tail.log_id
        log.end = log.confirmed = tail.end
        connect_index(core)
        report = self._replay(tail, snapshot)
        self._room.snapshot_position = usable[-1].position if len(usable) > 1 else 0
        self._snapshot_position = snapshot.position if snapshot is not None else 0
        return report

    def _replay(self, tail: Tail, snapshot: Snapshot | None) -> RecoveryReport:
        core, log = self._core, self._core.log
        start = snapshot.position if snapshot is not None else 0
        state = snapshot.state if snapshot is not None else None
        replay = Replay(self._parts, self._deliveries, start, state)
        sealed = adopt_indexes(core, tail.segments, start, state)
        core.entries.hot_from = sealed
        replay.record_count = sum([header.record_count for header in core.cold.sealed.values()])
        block_count, covered = 0, sealed
        rotten_bytes = 0
        for segment in tail.segments[len(core.cold.sealed) :]:
            is_last = segment is tail.segments[-1]
            data = read_segment(core.disk, core.config, segment, is_last=is_last)
            for block in scan(data, segment, segment.base, 0, core.config.block_bytes_max):
                if block.position >= tail.end:
                    break
                rotten_bytes += block.position - covered
                covered = block.end
                replay.feed(block)
                block_count += 1
            if replay.is_loaded:
                core.sealer.relieve()
        replay.load_state()
        log.end = tail.end
        log.sequence = max(replay.sequence, tail.sequence)
        log.epoch = max(replay.epoch, tail.epoch) + 1
        core.entries.visible = tail.end
        for group in self._parts.groups:
            group.ready = dict.fromkeys(group.reads.values())
            group.mend_turns()
        if replay.rotten_count or rotten_bytes:
            _log.error("rot: %d records, %d bytes", replay.rotten_count, rotten_bytes)
        return RecoveryReport(
            log.epoch,
            tail.end,
            block_count,
            replay.record_count,
            tail.torn_bytes,
            replay.rotten_count,
            rotten_bytes + tail.end - covered,
            tail.was_clean,
            start,
        )

    def _forget_volatile_queues(self) -> None:
        for queue in [queue for queue in self._core.queues if queue.is_volatile]:
            self._core.log.state(Kind.QUEUE_END, pack(queue.number))
            self._parts.groups.queue_dropped(queue)
            self._core.queues.drop(queue)

    # ── time ────────────────────────────────────────────────────────────────────────────

    def tick(self, now: Now) -> float | None:
        """Decide what is due; when to come again at the latest."""
        dues = [
            self._deliveries.tick(now),
            self._parts.leases.tick(now),
            self._holding.tick(now),
            self._idle(now),
        ]
        if now.monotonic - self._looked >= LOOK_S:
            self._looked = now.monotonic
            self._parts.once.trim(now.wall_ms)
            self._room.end_unused(self._core.queues.rest_woken(RESTING_PER_LOOK))
            self._room.look()
            self._delete_when_durable(now.wall_ms)
        dues.append(self._looked + LOOK_S)
        return min([due for due in dues if due is not None])

    def _delete_when_durable(self, wall_ms: int) -> None:
        """
        Segments go once what made them superfluous is durable: after a crash that loses the
        last acks their messages are owed again.
        """
        found = {segment.number for segment in self._room.deletable(wall_ms)}
        if found:
            self._core.log.when_durable(partial(self._delete, found, wall_ms))

    def _delete(self, numbers: set[int], wall_ms: int) -> None:
        still = self._room.deletable(wall_ms)
        self._room.delete([segment for segment in still if segment.number in numbers])

    def _idle(self, now: Now) -> float | None:
        log = self._core.log
        if log.end != self._seen_end or log.has_writes:
            self._seen_end, self._seen_at = log.end, now.monotonic
        if log.last_block_is_idle:
            return None
        due = self._seen_at + IDLE_S
        if now.monotonic >= due and log.confirmed == log.end:
            log.seal_empty()
            return None
        return due

    def close(self) -> None:
        """A last block that says the end was meant."""
        self._core.log.state(Kind.CLOSE, pack(self._core.log.epoch))
        self._core.log.seal_state()

    # ── snapshots, retention ────────────────────────────────────────────────────────────

    def snapshot_due(self, now: Now, *, is_forced: bool) -> SnapshotWork | None:
        """Taken when enough log has passed; handed out once all it covers is durable."""
        log = self._core.log
        if self._snapshot is None:
            passed = log.end - self._snapshot_position
            share = max(SNAPSHOT_STEP_BYTES_MIN, self._room.usable_bytes // SNAPSHOTS_PER_ROOM)
            wanted = min(self._core.config.snapshot_bytes, share)
            if not is_forced and passed < wanted:
                return None
            log.seal_state()
            self._snapshot = SnapshotWork(log.log_id, log.end, self._parts.dump())
        if self._snapshot.position > log.confirmed:
            return None
        work, self._snapshot = self._snapshot, None
        self._snapshot_position = work.position
        return work

    def snapshot_written(self, work: SnapshotWork) -> None:
        self._room.snapshot_position = work.oldest_kept

    def _first_owed(self) -> int:
        """
        Lowest log position that somebody still needs.

        What waits for a gateway to match it is kept, not owed: a store that lost all its
        gateways must not fill up with what its own producers send.
        """
        end = self._core.log.confirmed
        owed = [
            group.first_owed(end) for group in self._parts.groups if group.name != DISPATCH_NAME
        ]
        held = self._parts.held.first_owed(end)
        lowest = min([*owed, self._parts.retained.first_owed(end), held])
        late = self._core.entries.targets.items()  # these need the older message they point to
        return min([lowest, *[target for entry, target in late if entry >= lowest]])

    # ── wakings ─────────────────────────────────────────────────────────────────────────

    def take_woken(self) -> Woken:
        core, directory = self._core, self._parts.directory
        woken = Woken(
            core.woken_groups,
            core.woken_queues,
            directory.is_changed,
            self._topics_seen != self._parts.topics.version,
        )
        core.woken_groups, core.woken_queues = set(), set()
        directory.is_changed = False
        self._topics_seen = self._parts.topics.version
        return woken
