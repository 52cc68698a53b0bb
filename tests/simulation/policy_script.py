"""
A seeded script over a store whose queue has a policy, while its power fails.

The queue holds few messages, each for a short time, and hands over what it does not deliver.
Promises that are checked after the last restart:

- an acknowledged message was consumed, is still in the queue, or was handed over: never lost;
- what was handed over is handed over once, and never delivered afterwards;
- a message leaves unseen for a reason: too many or too old, never else;
- after a look at the queue no more than its limit is ready.
"""

import random

from protocols.canonical import QueueKind, queue_key
from protocols.clock import Now
from protocols.remoting.private import GroupOpen, ReadItem
from protocols.remoting.settling import AckAction, AckItem
from store.answers import EngineConfig, Pending
from store.engine import Engine
from store.log.messages import property_of
from tests.simulation.checks import Broken
from tests.simulation.power import (
    Writer,
    arm,
    fail_and_recover,
    play,
    try_crashes,
    when_kept,
    write_snapshot,
)
from tests.simulation.simulated_disk import SimulatedDisk
from tests.store.engine_kit import body_of, make_frame

KEY = queue_key("", QueueKind.AMQP, "//q", 7)
DEAD = queue_key("", QueueKind.DEAD_LETTER, "amqp//")
GROUP = "amqp//q"
LIMIT = 6
EXPIRE_MS = 3000
CONFIG = EngineConfig(
    segment_bytes=24 << 10,
    log_bytes_max=64 << 20,
    is_zero_filled=False,
    snapshot_bytes=12 << 10,
    cache_bytes_max=8 << 10,
    orphan_s=0.0,
)


class PolicyScript:
    """One run, all from one seed."""

    def __init__(self, seed: int, *, tries: float = 0.0) -> None:
        self.random = random.Random(seed)
        self.disk = SimulatedDisk(seed)
        self.now = Now(50.0, 1_700_000_000_000)
        self.levels = self.random.choice([0, 3])
        self.sent = 0
        self.frame = 0
        self.crashes = self.tried = 0
        self.stored: set[bytes] = set()
        self.consumed: set[bytes] = set()
        self.ack_tried: set[bytes] = set()
        self.letters: dict[bytes, str] = {}
        self.handed_over: dict[bytes, int] = {}
        """Body → log position of its dead letter; a take is not awaited and may come again."""

        self.level_of: dict[bytes, int] = {}
        self.life = 7
        self._start()
        self.engine.open_group(_letters(), self.now)
        self._make_queue()
        self.dead = self.engine.group_number("dead")
        self.disk.before = try_crashes(self, seed, tries) if tries else None

    def _start(self) -> None:
        self.engine = Engine(self.disk, CONFIG)
        self.engine.recover(self.now)
        self.holder = self.random.randrange(1, 1 << 30)
        self.writer = Writer(self.engine, self.disk, self.random)

    def _make_queue(self) -> None:
        policy: dict[str, int | str] = {
            "group": GROUP,
            "incarnation": self.life,
            "max_length": LIMIT,
            "expire_ms": EXPIRE_MS,
            "delivery_limit": 2,
            "max_priority": self.levels,
            "dead_letter": "amqp//",
        }
        self.engine.light_queues.create(KEY, "//q", policy, self.now)
        self.writer.drain()
        self.group = self.engine.group_number(GROUP)

    def _make_anew(self) -> None:
        """Deleted and declared again, durably: what was in it is gone with it."""
        self.writer.drain()
        self.life += 1
        self.stored.clear()
        self.engine.light_queues.drop(KEY, GROUP, self.now)
        self.writer.drain()
        self._make_queue()

    def run(self, steps: int) -> None:
        play(self, steps)

    def step(self) -> None:
        acts = [self._send, self._send, self._consume, self._consume, self._commit, self._commit,
                self._tick, self._letters, self._snapshot, self._arm]  # fmt: skip
        self.random.choice(acts)()
        if self.random.random() < 0.01:
            self._make_anew()

    def _arm(self) -> None:
        arm(self.disk, self.random, 0.4)

    def crash(self, *ways: str) -> None:
        self.crashes += 1
        ways = ways or ("torn", "torn", "drop", "keep")
        fail_and_recover(self.disk, self.random, ways, start=self._start, settle=self._settled)

    def _settled(self) -> None:
        """The power may have gone between the queue's end and its next life."""
        self.group = self.engine.group_number(GROUP)
        if not self.group:
            self._make_queue()
        for group in (self.group, self.dead):
            self.engine.resume(group, self.holder, [], self.now)

    # ── steps ───────────────────────────────────────────────────────────────────────────

    def _send(self) -> None:
        count = self.random.choice([1, 2, 5])
        bodies = [b"%d:" % n + bytes(300) for n in range(self.sent, self.sent + count)]
        self.sent += count
        self.frame += 1
        priority = {"TG_PRIORITY": str(self.random.randrange(5))} if self.levels else {}
        frame = make_frame(7, self.frame, bodies, keys=[KEY], set_flags=0, **priority)
        pending = self.engine.send("gw", frame, self.now)

        life = self.life
        for body in bodies:
            self.level_of[body] = min(int(priority.get("TG_PRIORITY", 0)), self.levels)

        def answered(done: Pending) -> None:
            if life == self.life:
                self.stored.update(bodies)

        when_kept(pending, answered)

    def _consume(self) -> None:
        count = self.random.choice([1, 4])
        for one in self.engine.take(self.group, count, self.now, holder=self.holder):
            body = body_of(self.engine.record_at(one.record_position))
            if body in self.consumed:
                raise Broken(f"{body[:8]!r} delivered after its ack was answered")
            if body in self.letters:
                raise Broken(f"{body[:8]!r} delivered after it was handed over")
            self._settle(one.position, one.grant, body)

    def _settle(self, position: int, grant: int, body: bytes) -> None:
        choices = [AckAction.ACK, AckAction.CHANGE, AckAction.CHANGE, AckAction.REJECT, None]
        action = self.random.choice(choices)
        if action is None:
            return
        item = AckItem(self.group, position, grant, action)
        pending = self.engine.ack(self.engine.epoch, [item], self.now)
        if action == AckAction.ACK:
            self.ack_tried.add(body)
            when_kept(pending, lambda done: self.consumed.add(body))
            if pending.is_done:
                self.consumed.add(body)

    def _letters(self) -> None:
        for one in self.engine.take(self.dead, 10_000, self.now, holder=self.holder):
            record = self.engine.record_at(one.record_position)
            body = body_of(record)
            if self.handed_over.setdefault(body, one.position) != one.position:
                raise Broken(f"{body[:8]!r} handed over twice")
            self.letters[body] = property_of(record, b"TG_DEAD_REASON").decode()

    def _commit(self) -> None:
        self.writer.step()
        self.engine.enforce(self.now)
        ready = self.engine.light_queues.stat(KEY, GROUP).ready_count
        if ready > LIMIT:
            raise Broken(f"{ready} ready, at most {LIMIT} may be")

    def _tick(self) -> None:
        monotonic, wall_ms = self.now
        step = self.random.choice([0.01, 0.5, 2.0])
        jump_ms = self.random.choice([0] * 20 + [-3_600_000, 3_600_000])
        self.now = Now(monotonic + step, wall_ms + int(step * 1000) + jump_ms)
        self.engine.tick(self.now)
        self.engine.enforce(self.now)

    def _snapshot(self) -> None:
        write_snapshot(self.engine, self.disk, self.now)

    # ── promises ────────────────────────────────────────────────────────────────────────

    def check(self) -> None:
        self.disk.countdown = -1
        self.crash()
        while self.engine.has_writes:
            self.writer.drain()
            self.engine.enforce(self.now)
        self._letters()
        left: set[bytes] = set()
        while granted := self.engine.take(self.group, 32, self.now, holder=self.holder):
            bodies = [body_of(self.engine.record_at(one.record_position)) for one in granted]
            levels = [self.level_of[body] for body in bodies]
            if sorted(levels, reverse=True) != levels:
                raise Broken(f"priorities {levels}")
            left.update(bodies)
        while self.engine.has_writes:
            self.writer.drain()
            self.engine.enforce(self.now)
        self._letters()
        twice = left & (self.letters.keys() | self.consumed)
        lost = self.stored - left - self.letters.keys() - self.ack_tried
        if twice or lost:
            raise Broken(f"{len(twice)} come again, {len(lost)} are lost")
        if not set(self.letters.values()) <= {"expired", "maxlen", "rejected", "delivery_limit"}:
            raise Broken(f"reasons {set(self.letters.values())}")


def _letters() -> GroupOpen:
    reads = [ReadItem(tag=0, key=DEAD, name="amqp//")]
    return GroupOpen(name="dead", reads=reads, start="earliest")
