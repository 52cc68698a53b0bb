"""
From start to end: recovery, what time decides, snapshots, retention, the closing block.
"""

import logging
from os import urandom
from typing import Final

from protocols.clock import Now
from store.answers import RecoveryReport, StoreFailed, Woken
from store.core import Core
from store.groups.deliveries import Deliveries
from store.index.adoption import adopt_indexes, connect_index, forget_index
from store.log.format import Kind
from store.log.recovery import SegmentReader, Tail, find_tail, open_segments, scan, settle_tail
from store.log.segments import Segment
from store.log.snapshots import Snapshot, SnapshotWork, read_snapshots
from store.log.state import pack
from store.parts import Parts
from store.replay import Replay
from store.retention.cleaner import Cleaner
from store.retention.room import Room
from store.timers.holding import Holding

IDLE_S: Final = 1.0
"""After so long without a write, an empty block says how far the log is durable."""

SNAPSHOTS_PER_ROOM: Final = 4
"""At least so many snapshots while the log fills its room: what the older of the two that are
kept does not cover cannot be deleted, so a small log needs them sooner than a large one."""

SNAPSHOT_STEP_BYTES_MIN: Final = 64 << 10

CHEAP_SNAPSHOT_BYTES: Final = 64 << 20
"""A small state is written after so much log already: a restart reads what lies behind it, some
150 MiB a second."""

LOG_PER_STATE: Final = 8
"""Bytes of log for each byte of a snapshot, at least: writing state stays a small part."""

NEW_QUEUES_MIN: Final = 100_000
"""Queues made since the last snapshot after which there is another: a restart makes 50,000 a second
of them from the log, and knows millions from a snapshot."""

QUEUES_PER_NEW: Final = 4
"""So many queues there may be for each new one: writing those known already stays bounded."""

TRIM_S: Final = 1.0
"""How often once-keys that are too old are forgotten."""

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
        self._cleaner = Cleaner(core, parts, room)
        self._trimmed = -TRIM_S
        self._seen_end = -1
        self._seen_at = 0.0
        self._snapshot_position = 0
        self._snapshot_bytes = 0
        """Of the last one."""

        self._snapshot_queue = 1
        """Number of the first queue that the last one does not know."""

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
        while (batch := log.take_writes()) is not None:
            batch.execute(self._core.disk)
            log.confirm(batch.position)
        self._room.look()
        return report

    def _recover_log(self, segments: list[Segment]) -> RecoveryReport:
        core, log = self._core, self._core.log
        snapshots = read_snapshots(core.disk, segments[0].header.log_id)
        newest = snapshots[0].position if snapshots else 0
        reader = SegmentReader(core.disk, core.config)
        tail, data = find_tail(reader, segments, newest)
        usable = [snapshot for snapshot in snapshots if snapshot.position <= tail.scanned_end]
        snapshot = usable[0] if usable else None
        if snapshot is None and segments[0].base > 0:
            raise StoreFailed("the start of the log is gone and no snapshot covers it")
        forget_index(core.disk, segments[-1])
        settle_tail(core.disk, core.config, tail, data)
        for segment in tail.segments:
            log.segments.add(segment)
        log.log_id = tail.log_id
        log.end = log.confirmed = tail.end
        connect_index(core)
        report = self._replay(reader, tail, snapshot)
        self._room.snapshot_position = usable[-1].position if len(usable) > 1 else 0
        if snapshot is not None:
            self._snapshot_position = snapshot.position
            self._snapshot_queue = snapshot.state["next_queue"]
        self._room.leaving = {
            segment: self._snapshot_position
            for segment in tail.segments
            if segment.number in core.cold.left
        }
        return report

    def _replay(
        self, reader: SegmentReader, tail: Tail, snapshot: Snapshot | None
    ) -> RecoveryReport:
        core, log = self._core, self._core.log
        start = snapshot.position if snapshot is not None else 0
        state = snapshot.state if snapshot is not None else None
        replay = Replay(self._parts, self._deliveries, start, state)
        sealed = adopt_indexes(core, tail.segments, start, state)
        scanned = [one for one in tail.segments if not core.cold.has(one.number)]
        # segments between the two may have gone: what is left of them is not in memory's columns
        sealed = core.entries.hot_from = max(sealed, scanned[0].base)
        replay.record_count = sum([header.record_count for header in core.cold.sealed.values()])
        block_count, covered = 0, sealed
        rotten_bytes = 0
        for segment in scanned:
            data = reader.read(segment, is_last=segment is tail.segments[-1])
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
            self._cleaner.tick(now),
        ]
        if now.monotonic - self._trimmed >= TRIM_S:
            self._trimmed = now.monotonic
            self._parts.once.trim(now.wall_ms)
        return min([due for due in dues if due is not None])

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
            cheap = max(CHEAP_SNAPSHOT_BYTES, LOG_PER_STATE * self._snapshot_bytes)
            wanted = min(self._core.config.snapshot_bytes, share, cheap)
            if self._room.wants_snapshot:
                is_forced = True
                if not passed:
                    log.seal_empty()  # two snapshots cannot have one position
            if not is_forced and passed < wanted and not self._has_many_new_queues:
                return None
            log.seal_state()
            self._snapshot_queue = self._core.queues.next_number
            self._snapshot = SnapshotWork(log.log_id, log.end, self._parts.dump())
        if self._snapshot.position > log.confirmed:
            return None
        work, self._snapshot = self._snapshot, None
        self._snapshot_position = work.position
        self._snapshot_bytes = work.byte_count
        return work

    @property
    def _has_many_new_queues(self) -> bool:
        queues = self._core.queues
        count = queues.next_number - self._snapshot_queue
        return count >= NEW_QUEUES_MIN and count * QUEUES_PER_NEW >= len(queues)

    def snapshot_written(self, work: SnapshotWork) -> None:
        self._room.snapshot_position = work.oldest_kept

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
