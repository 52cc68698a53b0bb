"""
A compacted topic whose segments go as soon as they may; power fails, disks fail, clocks jump.

Six keys in two queues, put and deleted by standard sends, read by a group. Checked after a last
restart: the last acknowledged value of each key is there, at its offset and with its bytes, and
was delivered unless its ack was tried; nothing else is there than what was sent, each once, in the
order of offsets; what was replaced long enough ago is not read any more; a topic that was deleted
begins anew.
"""

import random
from dataclasses import replace
from typing import NamedTuple

from protocols.clock import Now
from protocols.errors import Code
from protocols.remoting.private import GroupOpen, ReadItem
from protocols.remoting.settling import AckItem
from store.answers import AppendRecord, AppendResult, Pending, ReadStatus, TopicConfig
from store.engine import Engine
from store.log.messages import property_of, store_ms
from store.metadata.compacted import LAG_MS, TOMBSTONE_MS
from tests.simulation.checks import Broken
from tests.simulation.moving_script import CONFIG
from tests.simulation.power import (
    Writer,
    arm,
    fail_and_recover,
    keep_house,
    play,
    try_crashes,
    when_kept,
)
from tests.simulation.simulated_disk import SimulatedDisk
from tests.store.engine_kit import body_of, make_record

QUEUES = 2
KEYS = 6
TOPIC = TopicConfig("c", QUEUES, QUEUES, attributes={"cleanup.policy": "COMPACTION"})

Slot = tuple[int, int]
"""(queue, key)"""


class Kept(NamedTuple):
    """An acknowledged value."""

    offset: int
    number: int
    """Of its send: unique, in its property ``N``."""

    size: int
    """Of the body; 0: a deletion."""


class CompactedScript:
    """One run from one seed."""

    def __init__(self, seed: int, *, tries: float = 0.0) -> None:
        self.random = random.Random(seed)
        self.jumps = seed % 3 == 0
        self.config = replace(CONFIG, orphan_s=0.0)
        self.disk = SimulatedDisk(seed)
        self.now = Now(50.0, 1_700_000_000_000)
        self.sent = 0
        self.life = 0
        """Of the topic: how often it was made."""

        self.lives: dict[int, int] = {}
        """Number → life of the topic that it was sent to."""

        self.last: dict[Slot, Kept] = {}
        self.slots: dict[int, Slot] = {}
        self.sizes: dict[int, int] = {}
        self.unsure: set[int] = set()
        """Sends without an answer."""

        self.ack_tried: set[int] = set()
        self.acked: set[int] = set()
        self.crashes = self.tried = 0
        self._start()
        self._make_topic()
        self.writer.drain()
        self.disk.before = try_crashes(self, seed, tries) if tries else None

    # ── life ────────────────────────────────────────────────────────────────────────────

    def _start(self) -> None:
        self.engine = Engine(self.disk, self.config)
        self.engine.recover(self.now)
        self.writer = Writer(self.engine, self.disk, self.random)
        self.holder = self.random.randrange(1, 1 << 30)

    def _make_topic(self) -> None:
        self.engine.catalog.put_topic(TOPIC, self.now)
        reads = [ReadItem(tag=1, topic="c")]
        self.engine.open_group(GroupOpen(name="g", reads=reads, start="earliest"), self.now)

    def run(self, steps: int) -> None:
        play(self, steps)

    def step(self) -> None:
        acts = [
            self._put, self._put, self._put, self._consume, self._commit, self._commit,
            self._commit, self._tick, self._tick, self._keep_house, self._keep_house, self._arm,
        ]  # fmt: skip
        self.random.choice(acts)()
        if self.random.random() < 0.01:
            self._make_anew()

    def _arm(self) -> None:
        arm(self.disk, self.random, 0.4)

    def crash(self, *ways: str) -> None:
        self.crashes += 1
        ways = ways or ("torn", "torn", "torn", "drop", "keep")
        fail_and_recover(self.disk, self.random, ways, start=self._start, settle=self._settle)

    def _settle(self) -> None:
        """The power may have gone between the topic's end and its next life."""
        if "c" not in self.engine.catalog.topics:
            self._make_topic()
            self.writer.drain()
        self.engine.resume(self.engine.group_number("g"), self.holder, [], self.now)

    # ── steps ───────────────────────────────────────────────────────────────────────────

    def _put(self) -> None:
        """Several at once; some delete."""
        records: list[AppendRecord] = []
        numbers: list[int] = []
        for _ in range(self.random.choice([1, 1, 4])):
            self.sent += 1
            slot = (self.random.randrange(QUEUES), self.random.randrange(KEYS))
            size = self.random.choice([0, 20, 300, 900])
            self.slots[self.sent], self.sizes[self.sent] = slot, size
            self.lives[self.sent] = self.life
            record = make_record("c", bytes(size), KEYS=f"k{slot[1]}", N=str(self.sent))
            records.append(AppendRecord("c", slot[0], record))
            numbers.append(self.sent)
        self.unsure.update(numbers)
        pending = self.engine.append(records, self.now)

        def answered(done: Pending[list[AppendResult]]) -> None:
            self.unsure.difference_update(numbers)
            for number, result in zip(numbers, done.result(), strict=True):
                if result.code == Code.OK and self.lives[number] == self.life:
                    kept = Kept(result.offset, number, self.sizes[number])
                    self.last[self.slots[number]] = kept

        when_kept(pending, answered)

    def _make_anew(self) -> None:
        """Deleted and made again, durably: nothing of the one before is left."""
        self.writer.drain()
        self.life += 1
        self.last.clear()
        self.engine.catalog.delete_topic("c", self.now)
        self.writer.drain()
        self._make_topic()
        self.writer.drain()

    def _consume(self) -> None:
        group = self.engine.group_number("g")
        items: list[AckItem] = []
        numbers: set[int] = set()
        for one in self.engine.take(group, 8, self.now, holder=self.holder):
            number = self._number(self.engine.record_at(one.record_position))
            if number in self.acked:
                raise Broken(f"{number} delivered after its ack was answered")
            if self.random.random() < 0.8:
                items.append(AckItem(group, one.position, one.grant))
                numbers.add(number)
        self.ack_tried |= numbers
        pending = self.engine.ack(self.engine.epoch, items, self.now)
        if pending.is_done:
            self.acked |= numbers
        else:
            when_kept(pending, lambda done: self.acked.update(numbers))

    def _number(self, record: bytes) -> int:
        """Which send it was; that it is as it was sent."""
        number = int(property_of(record, b"N"))
        if len(body_of(record)) != self.sizes[number]:
            raise Broken(f"{number} has another body")
        return number

    def _commit(self) -> None:
        self.writer.step()

    def _tick(self) -> None:
        monotonic, wall_ms = self.now
        step = self.random.choice([0.01, 0.5, 2.0, 12.0])
        jump_ms = self.random.choice([0] * 9 + [-3_600_000, 86_400_000]) if self.jumps else 0
        self.now = Now(monotonic + step, wall_ms + int(step * 1000) + jump_ms)
        self.engine.tick(self.now)

    def _keep_house(self) -> None:
        keep_house(self.engine, self.disk, self.now)

    # ── promises ────────────────────────────────────────────────────────────────────────

    def check(self) -> None:
        self.disk.countdown = -1
        self.crash()
        while self.engine.has_writes:
            self.writer.drain()
        found = self._read_all()
        newest = {self.slots[number]: number for number in sorted(found)}
        for slot, kept in self.last.items():
            if newest.get(slot, 0) > kept.number or self._may_be_deleted(slot, kept.number):
                continue  # a later one was stored, though nobody was told
            if kept.size and found.get(kept.number, (-1, 0))[0] != kept.offset:
                raise Broken(f"the last value of {slot}, {kept}, is at {found.get(kept.number)}")
        if not self.jumps:
            self._look_for_old(found)
        self._drain_group()

    def _may_be_deleted(self, slot: Slot, after: int) -> bool:
        """By one that nobody was told of, and that is too old itself to be read."""
        later = [number for number in self.unsure if number > after and not self.sizes[number]]
        return self.jumps and any([self.slots[number] == slot for number in later])

    def _read_all(self) -> dict[int, tuple[int, int]]:
        """Number → (offset, store time) of all that can be read."""
        found: dict[int, tuple[int, int]] = {}
        for queue_id in range(QUEUES):
            offset, high = self.engine.offset_range("c", queue_id)
            before = -1
            while offset < high:
                result = self.engine.read("c", queue_id, offset, 16, 1 << 20)
                if result.status != ReadStatus.FOUND:
                    break
                for record in result.records:
                    at, number = int.from_bytes(record[20:28], "big"), self._number(record)
                    if at <= before or number in found:
                        raise Broken(f"{number} at offset {at} behind {before}, or twice")
                    if self.slots[number][0] != queue_id:
                        raise Broken(f"{number} is in queue {queue_id}")
                    if self.lives[number] < self.life - 1:
                        raise Broken(f"{number} is of a topic that was deleted")
                    found[number] = at, store_ms(record)
                    before = at
                offset = result.next_offset
        return found

    def _look_for_old(self, found: dict[int, tuple[int, int]]) -> None:
        """What was replaced, or deleted, long enough ago is not read."""
        newest: dict[Slot, int] = {}
        for number in sorted(found, reverse=True):
            slot, stored_ms = self.slots[number], found[number][1]
            over_ms = newest.get(slot)
            if over_ms is not None and over_ms + LAG_MS < self.now.wall_ms:
                raise Broken(f"{number} was replaced {self.now.wall_ms - over_ms} ms ago")
            if not self.sizes[number] and stored_ms + TOMBSTONE_MS < self.now.wall_ms:
                raise Broken(f"the deletion {number} is a day old")
            newest[slot] = stored_ms

    def _drain_group(self) -> None:
        group = self.engine.group_number("g")
        seen: set[int] = set()
        while granted := self.engine.take(group, 32, self.now, holder=self.holder):
            for one in granted:
                number = self._number(self.engine.record_at(one.record_position))
                if number in self.acked or number in seen:
                    raise Broken(f"{number} delivered again")
                seen.add(number)
        for slot, kept in self.last.items():
            is_last = not any(
                [self.slots[number] == slot for number in seen if number > kept.number]
            )
            if kept.size and is_last and kept.number not in seen | self.ack_tried:
                raise Broken(f"the last value of {slot}, {kept}, is never delivered")
