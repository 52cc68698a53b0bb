"""
Acts on held messages: takes them in, releases them when their time or their commit comes.

``tick`` fires what is due, some thousand messages a call, and asks about old half messages; what
does not fit a full store waits. A released message is a new record, in one block with the record
that ends its being held.
"""

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

from protocols.canonical import DISPATCH_KEY
from protocols.clock import Now
from protocols.errors import Code, PeerError, Refused
from protocols.remoting.sending import ItemFlag, SendFrame
from protocols.stored_names import number_of
from store.answers import STORE_FULL, AppendResult, Pending, TopicConfig
from store.appender import Draft, Plan, append_messages
from store.core import Core
from store.late import is_addressed, usable_lights
from store.log.format import EntryFlag, Kind, entry_extra
from store.log.messages import Bytes, property_of, retargeted, tag_hash_of, topic_of
from store.log.state import pack
from store.metadata.compacted import value_of
from store.parts import Parts
from store.retention.room import Room
from store.timers.held import encode_positions
from store.timers.records import (
    HELD,
    TIMER_NAMES,
    HeldFacts,
    changed,
    committed,
    facts_of,
    held_record,
    name_of,
)

FIRE_COUNT_MAX: Final = 1024
FIRE_BYTES_MAX: Final = 4 << 20
"""Released in one block."""

CHECKS_AT_ONCE: Final = 1024
FULL_PAUSE_S: Final = 1.0
"""When to look again whether a full store can take what is due."""

CHECKS_OVER_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Where half messages go that nobody ends (``TransactionalMessageUtil``, RocketMQ)."""

DELAYED: Final = int(ItemFlag.DELAYED)
HALF: Final = int(ItemFlag.HALF)

_log = logging.getLogger("store.engine")


class Wrapped(NamedTuple):
    """An item of a frame that is to be held, or why it is not."""

    record: bytes
    code: int = 0
    hint: str = ""


class HalfCheck(NamedTuple):
    """Ask a producer of *group* how the transaction of its message ended."""

    position: int
    group: str
    record: bytes


class Release(NamedTuple):
    """A message that becomes visible."""

    record: bytes
    plan: Plan
    flags: int
    order: int
    expires_at_ms: int


class Holding:
    """The moving part of ``Held``."""

    def __init__(self, core: Core, parts: Parts, room: Room) -> None:
        self._core = core
        self._held = parts.held
        self._topics = parts.topics
        self._compacted = parts.compacted
        self._room = room
        self._checks: list[HalfCheck] = []

    # ── in ──────────────────────────────────────────────────────────────────────────────

    def wrap(self, record: Bytes, due_ms: int, queue_id: int, keys: Sequence[bytes]) -> bytes:
        """
        *record* as it is stored while it is held; *due_ms* 0: a half message.

        Raises Refused: too many are held, or its properties get too long.
        """
        config = self._core.config
        is_many = (
            len(self._held.wheel) >= config.timers_max
            if due_ms
            else len(self._held.halves) >= config.halves_max
        )
        if is_many:
            kind = "delayed" if due_ms else "half"
            raise Refused(Code.TOO_MANY_REQUESTS, topic_of(record), f"too many {kind} messages")
        return held_record(record, HeldFacts(due_ms, queue_id, tuple(keys)))

    def wrap_items(self, frame: SendFrame, now_ms: int) -> dict[int, Wrapped]:
        """Items of *frame* that are to be held, by index; a time that has come is no delay."""
        found: dict[int, Wrapped] = {}
        at = 0
        columns = frame.columns
        for index, (length, which, flags) in enumerate(
            zip(columns.lengths, columns.set_indexes, columns.flags, strict=True)
        ):
            start, at = at, at + length
            if not flags & (DELAYED | HALF):
                continue
            record = bytes(frame.records[start:at])
            due = property_of(record, b"TIMER_DELIVER_MS")
            due_ms = int(due) if due.isdigit() and len(due) < 20 and not flags & HALF else 0
            if not flags & HALF and due_ms <= now_ms:
                continue
            send_set = frame.sets[which]
            queue_id = send_set.queue_id if send_set.flags & 1 else -1
            try:
                found[index] = Wrapped(self.wrap(record, due_ms, queue_id, send_set.keys))
            except Refused as refused:
                found[index] = Wrapped(b"", refused.code, refused.hint)
        return found

    def note(self, positions: Sequence[int]) -> None:
        """These were stored as held messages just now."""
        wall_ms = self._core.log.wall_ms
        for position in positions:
            self._held.note(position, self._core.record_at(position), wall_ms)

    # ── time ────────────────────────────────────────────────────────────────────────────

    def tick(self, now: Now) -> float | None:
        """Release what is due, check old halves; monotonic time of the next look."""
        wheel, halves = self._held.wheel, self._held.halves
        if not wheel and not halves:
            return None
        wall_ms = now.wall_ms
        wheel.advance(wall_ms)
        is_full = not self._fire(wall_ms)
        self._check(wall_ms)
        times = [at for at in (wheel.next_ms(wall_ms), halves.next_ms()) if at is not None]
        if not times:
            return None
        wait_s = max(0.0, (min(times) - wall_ms) / 1000)
        return now.monotonic + (max(wait_s, FULL_PAUSE_S) if is_full else wait_s)

    def _fire(self, wall_ms: int) -> bool:
        """False: the store is full, what is due waits."""
        wheel = self._held.wheel
        positions: list[int] = []
        releases: list[Release] = []
        size = 0
        while len(positions) < FIRE_COUNT_MAX and size < FIRE_BYTES_MAX:
            if not self._room.has_room_for(size):
                break
            timer = wheel.pop_due(wall_ms)
            if timer is None:
                break
            positions.append(timer[1])
            release = self._release(timer[1], is_commit=False)
            if release is not None:
                releases.append(release)
                size += len(release.record)
        if positions:
            self._log_end(Kind.TIMER_FIRED, positions)
            self._append(releases)
            self._core.counters.timers_fired += len(positions)
        return self._room.has_room_for(size)

    def _check(self, wall_ms: int) -> None:
        """Ask about halves whose time has come; give up those that were asked too often."""
        config, halves = self._core.config, self._held.halves
        for _ in range(CHECKS_AT_ONCE):
            half = halves.pop_due(wall_ms)
            if half is None:
                return
            if half.check_count >= config.half_checks_max:
                if self._give_up(half.position):
                    halves.end(half.position)
                else:
                    halves.postpone(
                        half.position, half.check_count, wall_ms + config.half_interval_ms
                    )
                continue
            count, due_ms = half.check_count + 1, wall_ms + config.half_interval_ms
            self._core.log.state(Kind.HALF_CHECKED, pack(half.position, count, due_ms))
            halves.postpone(half.position, count, due_ms)
            try:
                record = self._core.record_at(half.position)
            except Refused:
                continue
            if len(self._checks) < CHECKS_AT_ONCE:
                self._checks.append(HalfCheck(half.position, half.group, record))

    def take_checks(self) -> list[HalfCheck]:
        """Producers to be asked since the last call."""
        checks, self._checks = self._checks, []
        return checks

    def _give_up(self, position: int) -> bool:
        """To the topic of those whose end nobody knew; False: the store is full."""
        try:
            record = self._core.record_at(position)
        except Refused:
            record = b""
        if not self._room.has_room_for(len(record)):
            return False
        releases: list[Release] = []
        if record:
            if CHECKS_OVER_TOPIC not in self._topics.configs:
                self._topics.put(TopicConfig(CHECKS_OVER_TOPIC, 1, 1))
            queue = self._core.message_queue(CHECKS_OVER_TOPIC, 0)
            releases.append(Release(_given_up(record), Plan(queue, ()), 1, 0, 0))
        self._log_end(Kind.TRANSACTION_END, [position])  # nothing is logged between it and the copy
        self._append(releases)
        _log.warning("half message at %d: nobody ended it, given up", position)
        return True

    # ── recall, end of a transaction ────────────────────────────────────────────────────

    def recall(self, topic: str, due_ms: int, message_id: str, now: Now) -> Pending[bool]:
        """Withdraw a delayed message before its time; False: there is none any more."""
        self._core.at(now)
        held, wanted, name = self._held, message_id.encode(), topic.encode()
        position = held.wheel.remove(
            due_ms, name_of(wanted), lambda at: held.is_recalled_by(at, name, wanted)
        )
        if position >= 0:
            self._log_end(Kind.TIMER_FIRED, [position])
            self._core.counters.recalled += 1
        return self._core.wait(position >= 0)

    def end(self, position: int, group: str, now: Now, *, is_commit: bool) -> Pending[AppendResult]:
        """Commit or roll back the half at *position*. Raises Refused."""
        self._core.at(now)
        half = self._held.halves.get(position)
        if half is None:
            hint = "no open transaction at that position"
            raise Refused(Code.MESSAGE_NOT_FOUND, str(position), hint)
        if half.group != group:
            hint = f"the producer group is not that of the half message, {half.group}"
            raise Refused(Code.PRECONDITION_FAILED, group, hint)
        release = self._release(position, is_commit=True) if is_commit else None
        if release is not None and not self._room.has_room_for(len(release.record)):
            raise Refused(STORE_FULL, group, "the store is full")
        self._log_end(Kind.TRANSACTION_END, [position])
        self._held.halves.end(position)
        if release is None:
            return self._core.wait(AppendResult(Code.OK, 0, -1, -1))
        ((stored, offset),) = self._append([release])
        queue_id = release.plan.queue.queue_id if release.plan.queue else -1
        return self._core.wait(AppendResult(Code.OK, stored, queue_id, offset))

    @property
    def counts(self) -> tuple[int, int]:
        """(delayed messages that wait, open half messages)."""
        return len(self._held.wheel), len(self._held.halves)

    # ── out ─────────────────────────────────────────────────────────────────────────────

    def _log_end(self, kind: Kind, positions: Sequence[int]) -> None:
        """These are held no more, as soon as that is durable."""
        self._core.log.state(kind, encode_positions(positions))
        self._held.leave(positions)

    def _release(self, position: int, *, is_commit: bool) -> Release | None:
        """The visible form of a held message; None: nobody can have it any more."""
        core = self._core
        try:
            record = core.record_at(position)
            facts = facts_of(record)
        except (Refused, PeerError) as error:
            _log.error("held message at %d is lost: %s", position, error)
            core.counters.discarded += 1
            return None
        topic = topic_of(record)
        queue = None
        if facts.queue_id >= 0 and topic in self._topics.configs:
            queue = core.message_queue(topic, facts.queue_id)
        lights = usable_lights(core, facts.keys)
        if queue is None and (not lights or facts.keys == (DISPATCH_KEY,)):
            core.counters.discarded += 1
            return None
        entries = core.entries
        flags = entries.flags_of(position) & 0xF | EntryFlag.HAS_TAG
        if queue is None:
            flags |= EntryFlag.BYTES_ONLY
        elif topic in self._topics.compacted:
            flags |= EntryFlag.COMPACTED
        expires = property_of(record, b"TG_EXPIRES_AT")
        expires_at_ms = max(number_of(expires), 0)
        if expires_at_ms:
            flags |= EntryFlag.HAS_EXPIRES
        visible = committed(record, position) if is_commit else changed(record, drop=TIMER_NAMES)
        return Release(
            visible, Plan(queue, lights), flags, entries.order_of(position), expires_at_ms
        )

    def _append(self, releases: Sequence[Release]) -> list[tuple[int, int]]:
        """(position, offset) each; the state records that wait go into the same block."""
        if not releases:
            return []
        extras = [
            entry_extra(one.flags, one.expires_at_ms, b"", 0) if one.expires_at_ms else b""
            for one in releases
        ]
        draft = Draft(
            bytearray(b"".join([one.record for one in releases])),
            [len(one.record) for one in releases],
            range(len(releases)),
            [one.plan for one in releases],
            [one.flags for one in releases],
            [one.order for one in releases],
            tags=[tag_hash_of(one.record) for one in releases],
            extras=extras if any(extras) else None,
        )
        positions, offsets = append_messages(self._core, draft)
        for at, offset, one in zip(positions, offsets, releases, strict=True):
            if one.expires_at_ms:
                self._core.entries.expires[at] = one.expires_at_ms
            if one.plan.queue is not None and one.flags & EntryFlag.COMPACTED:
                value = value_of(one.record, one.plan.queue.number, offset)
                self._compacted.note(value, self._core.log.wall_ms)
        return list(zip(positions, offsets, strict=True))


def _given_up(record: bytes) -> bytes:
    """The half message as a record of the topic of given-up ones."""
    topic = topic_of(record)
    facts = facts_of(record)
    plain = changed(record, drop=(HELD,))
    extra = {"REAL_TOPIC": topic, "REAL_QID": str(max(facts.queue_id, 0))}
    return retargeted(plain, CHECKS_OVER_TOPIC, 0, extra)


def dispatch_keys(topic: str) -> tuple[bytes, ...]:
    """Where messages of *topic* that no gateway has matched enter as well."""
    return (DISPATCH_KEY,) if is_addressed(topic) else ()
