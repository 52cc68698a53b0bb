"""
Held messages: stored, owed, in no queue. Timers until their time, halves until their end.

All decisions are records: a message is held by the entry that stores it (``EntryFlag.HELD``) and
released by a record that names its position (``TIMER_FIRED``, ``TRANSACTION_END``), in one block
with the visible message, if there is one. Replay needs no clock.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

from protocols.errors import PeerError, Refused
from protocols.stored_names import number_of
from store.core import Core
from store.log.messages import Bytes, property_of, store_ms, topic_of
from store.log.state import longs, unpack
from store.timers.halves import Half, HalfTable
from store.timers.records import facts_of, name_of
from store.timers.wheel import Timer, Wheel, load_timers

IMMUNITY_S_MAX: Final = 3600
"""Longest time before the first check that a producer may ask for (as the gRPC proxy)."""


class Held:
    """What is held now; replay feeds it, ``Holding`` acts on it."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.wheel = Wheel()
        self.halves = HalfTable()
        self._replayed: list[Timer] | None = []
        """Timers met by the replay, until ``settle``; None: live."""

        self._ended: set[int] = set()
        self._leaving: deque[Sequence[int]] = deque()
        """Ended by records that are not durable yet: a crash may bring them back."""

    def note(self, position: int, record: Bytes, stored_ms: int) -> None:
        """A held message was stored at *position*."""
        try:
            facts = facts_of(record)
        except PeerError:
            return
        if facts.due_ms:
            timer = (facts.due_ms, position, name_of(property_of(record, b"UNIQ_KEY")))
            if self._replayed is None:
                self.wheel.add(*timer)
            else:
                self._replayed.append(timer)
            return
        group = str(property_of(record, b"PGROUP"), "utf-8", "replace")
        self.halves.add(Half(position, group, stored_ms + self._immunity_ms(record)))

    def _immunity_ms(self, record: Bytes) -> int:
        """How long the producer has before it is asked."""
        wanted = property_of(record, b"CHECK_IMMUNITY_TIME_IN_SECONDS")
        if 0 < (seconds := number_of(wanted)) <= IMMUNITY_S_MAX:
            return seconds * 1000
        return self._core.config.half_timeout_ms

    # ── replay ──────────────────────────────────────────────────────────────────────────

    def replay(self, position: int, record: Bytes) -> None:
        self.note(position, record, store_ms(record))

    def apply_end(self, positions: Iterable[int]) -> None:
        """Timers that fired or were recalled, halves that ended."""
        for position in positions:
            self._ended.add(position)
            self.halves.end(position)

    def apply_checked(self, position: int, count: int, due_ms: int) -> None:
        self.halves.postpone(position, count, due_ms)

    def settle(self) -> None:
        """The replay is over."""
        replayed, self._replayed = self._replayed or [], None
        ended, self._ended = self._ended, set()
        add = self.wheel.add
        for due_ms, position, name in replayed:
            if position not in ended:
                add(due_ms, position, name)

    # ── live ────────────────────────────────────────────────────────────────────────────

    def leave(self, positions: Sequence[int]) -> None:
        """
        The record that ends these has been handed in; they stay owed until it is durable.

        Called before anything else is logged, so that it waits for that record's block.
        """
        self._leaving.append(positions)
        self._core.log.when_durable(self._left)

    def _left(self) -> None:
        self._leaving.popleft()

    # ── facts ───────────────────────────────────────────────────────────────────────────

    def is_recalled_by(self, position: int, topic: bytes, message_id: bytes) -> bool:
        """Whether the timer at *position* is that message of that topic."""
        try:
            record = self._core.record_at(position)
        except Refused:
            return False
        is_same = property_of(record, b"UNIQ_KEY") == message_id
        return is_same and topic_of(record).encode() == topic

    def first_owed(self, end: int) -> int:
        """Lowest log position of a held message; *end* if there is none."""
        leaving = [position for positions in self._leaving for position in positions]
        return min([self.wheel.first_position(end), *self.halves.positions(), *leaving])

    def positions_within(self, start: int, end: int) -> list[int]:
        """Positions of held messages in [start, end), ascending: what a relocation must keep."""
        found = [at for _, at, _ in self.wheel.timers() if start <= at < end]
        found += [at for at in self.halves.positions() if start <= at < end]
        found += [at for positions in self._leaving for at in positions if start <= at < end]
        return sorted(found)

    def dump(self) -> list[Any]:
        return [self.wheel.dump(), self.halves.dump()]

    def load(self, state: Sequence[Any]) -> None:
        columns, halves = state
        assert self._replayed is not None, "a snapshot is loaded before the store is live"
        self._replayed.extend(load_timers(columns))
        self.halves.load(halves)


def encode_positions(positions: Sequence[int]) -> bytes:
    """Payload of ``TIMER_FIRED`` and ``TRANSACTION_END``."""
    return longs(len(positions)).pack(*positions)


def decode_positions(payload: memoryview) -> tuple[int, ...]:
    return longs(len(payload) // 8).unpack(payload)


def decode_checked(payload: memoryview) -> tuple[int, int, int]:
    """(position, check count, next due) of ``HALF_CHECKED``."""
    position, count, due_ms = unpack(payload)
    return position, count, due_ms
