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
from tests.simulation.power import arm, write_snapshot
from tests.simulation.simulated_disk import PowerLost, SimulatedDisk
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

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.disk = SimulatedDisk(seed)
        self.now = Now(50.0, 1_700_000_000_000)
        self.levels = self.random.choice([0, 3])
        self.sent = 0
        self.frame = 0
        self.crashes = 0
        self.stored: set[bytes] = set()
        self.consumed: set[bytes] = set()
        self.ack_tried: set[bytes] = set()
        self.letters: dict[bytes, str] = {}
        self.handed_over: dict[bytes, int] = {}
        """Body → log position of its dead letter; a take is not awaited and may come again."""

        self._start()
        policy: dict[str, int | str] = {
            "group": GROUP,
            "incarnation": 7,
            "max_length": LIMIT,
            "expire_ms": EXPIRE_MS,
            "delivery_limit": 2,
            "max_priority": self.levels,
            "dead_letter": "amqp//",
        }
        self.engine.light_queues.create(KEY, "//q", policy, self.now)
        self.engine.open_group(_letters(), self.now)
        self._commit()
        self.group = self.engine.group_number(GROUP)
        self.dead = self.engine.group_number("dead")

    def _start(self) -> None:
        self.engine = Engine(self.disk, CONFIG)
        self.engine.recover(self.now)
        self.holder = self.random.randrange(1, 1 << 30)

    def run(self, steps: int) -> None:
        acts = [self._send, self._send, self._consume, self._consume, self._commit, self._commit,
                self._tick, self._letters, self._snapshot, self._arm]  # fmt: skip
        for _ in range(steps):
            try:
                self.random.choice(acts)()
            except PowerLost:
                self._crash()
        self.check()

    def _arm(self) -> None:
        arm(self.disk, self.random, 0.4)

    def _crash(self) -> None:
        self.crashes += 1
        self.disk.lose_power(self.random.choice(["torn", "torn", "drop", "keep"]))
        self.disk.countdown = -1
        self._start()
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

        def answered(done: Pending) -> None:
            self.stored.update(bodies)

        pending.notify = answered

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
            pending.notify = lambda done: self.consumed.add(body)
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
        batch = self.engine.take_writes()
        if batch is not None:
            batch.execute(self.disk)
            self.engine.confirm(batch)
            self.engine.enforce(self.now)
            ready = self.engine.light_queues.stat(KEY, GROUP).ready_count
            if ready > LIMIT:
                raise Broken(f"{ready} ready, at most {LIMIT} may be")

    def _tick(self) -> None:
        monotonic, wall_ms = self.now
        step = self.random.choice([0.01, 0.5, 2.0])
        self.now = Now(monotonic + step, wall_ms + int(step * 1000))
        self.engine.tick(self.now)
        self.engine.enforce(self.now)

    def _snapshot(self) -> None:
        write_snapshot(self.engine, self.disk, self.now)

    # ── promises ────────────────────────────────────────────────────────────────────────

    def check(self) -> None:
        self.disk.countdown = -1
        self._crash()
        while self.engine.has_writes:
            self._commit()
        self._letters()
        left: set[bytes] = set()
        while granted := self.engine.take(self.group, 32, self.now, holder=self.holder):
            left.update(body_of(self.engine.record_at(one.record_position)) for one in granted)
        while self.engine.has_writes:
            self._commit()
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
