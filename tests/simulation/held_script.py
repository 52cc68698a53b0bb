"""
Delayed messages and transactions over an engine whose power fails at random moments.

Promises, checked while it runs and after a last crash:

- an acknowledged delayed message comes once, not before its time, wherever the clock jumps; one
  whose recall was answered never comes;
- a half message whose commit was answered comes once; one whose rollback was answered, or that
  nobody ended, never;
- what is held stays in the log however old it gets.
"""

import random
from dataclasses import replace

from protocols.clock import Now
from protocols.errors import Code, Refused
from protocols.remoting.sending import ItemFlag, decode_send_answer
from store.answers import AppendRecord, AppendResult, EngineConfig, Pending, TopicConfig
from store.engine import Engine
from store.log.messages import store_ms
from tests.simulation.checks import Broken
from tests.simulation.power import (
    Writer,
    arm,
    drop_files,
    fail_and_recover,
    play,
    prepare_segment,
    try_crashes,
    when_kept,
    write_snapshot,
)
from tests.simulation.simulated_disk import SimulatedDisk
from tests.store.engine_kit import body_of, make_frame, make_record

QUEUES = 2
HELD_CONFIG = EngineConfig(
    segment_bytes=24 << 10,
    log_bytes_max=64 << 20,
    is_zero_filled=False,
    snapshot_bytes=20 << 10,
    cache_bytes_max=8 << 10,
    half_timeout_ms=3000,
    half_interval_ms=2000,
    half_checks_max=1000,
)
PRESSED = replace(HELD_CONFIG, segment_bytes=12 << 10, snapshot_bytes=8 << 10, retention_s=1)
"""Old segments go as soon as nobody is owed anything in them."""


class Half:
    """One transaction of the model."""

    def __init__(self, position: int) -> None:
        self.position = position
        self.is_commit: bool | None = None
        """Asked for; None: open."""

        self.is_answered = False


class HeldScript:
    """One run from one seed."""

    def __init__(
        self, seed: int, config: EngineConfig = HELD_CONFIG, *, tries: float = 0.0
    ) -> None:
        self.random = random.Random(seed)
        self.config = config
        self.disk = SimulatedDisk(seed)
        self.now = Now(50.0, 1_700_000_000_000)
        self.count = 0
        self.frame = 0
        self.open_frames: dict[int, dict[bytes, int]] = {}
        """Frame number → (body → due) without an answer."""

        self.due: dict[bytes, int] = {}
        """Acknowledged delayed body → its time."""

        self.maybe: set[bytes] = set()
        """Its recall was not refused: it may come unless the answer was given."""

        self.names: dict[bytes, str] = {}

        self.recalled: set[bytes] = set()
        self.halves: dict[bytes, Half] = {}
        self.checked: set[int] = set()
        self.crashes = self.tried = 0
        self._start()
        self.engine.catalog.put_topic(TopicConfig("t", QUEUES, QUEUES), self.now)
        self.writer.drain()
        self.disk.before = try_crashes(self, seed, tries) if tries else None

    def _start(self) -> None:
        self.engine = Engine(self.disk, self.config)
        self.engine.recover(self.now)
        self.writer = Writer(self.engine, self.disk, self.random)

    def run(self, steps: int) -> None:
        play(self, steps)

    def step(self) -> None:
        acts = [
            self._delay, self._delay_one, self._half, self._half, self._end, self._end,
            self._recall, self._fill, self._commit, self._commit, self._commit, self._tick,
            self._tick, self._keep_house, self._arm,
        ]  # fmt: skip
        self.random.choice(acts)()

    # ── crashes ─────────────────────────────────────────────────────────────────────────

    def _arm(self) -> None:
        arm(self.disk, self.random, 0.5)

    def crash(self, *ways: str) -> None:
        self.crashes += 1
        ways = ways or ("torn", "torn", "drop", "keep")
        fail_and_recover(self.disk, self.random, ways, start=self._start, settle=self._settle)

    def _settle(self) -> None:
        """Frames without an answer: they ran, or never will."""
        for number in sorted(self.open_frames):
            pending = self.engine.gateways.settle("gw", 7, number, self.now)
            self.writer.drain()
            settled = pending.result()
            bodies = self.open_frames.pop(number)
            if settled.did_run:
                assert 0 not in decode_send_answer(settled.answer).positions
                self.due.update(bodies)

    # ── steps ───────────────────────────────────────────────────────────────────────────

    def _body(self, kind: str) -> bytes:
        self.count += 1
        return b"%s-%d:" % (kind.encode(), self.count) + bytes(self.random.choice([0, 50, 900]))

    def _delay(self) -> None:
        """One frame; also times that have come, and far ones."""
        self.frame += 1
        number = self.frame
        ahead = self.random.choice([-5, 1, 700, 5000, 60_000, 4_000_000, 90_000_000])
        due_ms = self.now.wall_ms + ahead
        bodies = [self._body("d") for _ in range(self.random.choice([1, 3]))]
        frame = make_frame(
            7, number, bodies, queue_id=self.random.randrange(QUEUES),
            item_flags=1 | ItemFlag.DELAYED, TIMER_DELIVER_MS=str(due_ms), UNIQ_KEY=f"f{number}",
        )  # fmt: skip
        self.open_frames[number] = dict.fromkeys(bodies, due_ms)
        pending = self.engine.send("gw", frame, self.now)

        def answered(done: Pending) -> None:
            self.due.update(self.open_frames.pop(number))

        when_kept(pending, answered)

    def _half(self) -> None:
        body = self._body("h")
        record = make_record("t", body, TRAN_MSG="true", PGROUP="p", UNIQ_KEY=f"h{self.count}")
        queue_id = self.random.randrange(QUEUES)
        item = AppendRecord("t", queue_id, record, is_half=True)
        pending = self.engine.append([item], self.now)

        def answered(done: Pending[list[AppendResult]]) -> None:
            (result,) = done.result()
            self.halves[body] = Half(result.position)

        when_kept(pending, answered)

    def _end(self) -> None:
        """Some open transaction ends; an answer that was lost is asked for again."""
        waiting = [half for half in self.halves.values() if not half.is_answered]
        if not waiting:
            return
        half = self.random.choice(waiting)
        if half.is_commit is None:
            half.is_commit = self.random.random() < 0.6
        try:
            pending = self.engine.held.end(half.position, "p", self.now, is_commit=half.is_commit)
        except Refused as refused:
            if refused.code != Code.MESSAGE_NOT_FOUND:
                raise Broken(f"end of {half.position}: {refused}") from refused
            pending = self.engine.append([], self.now)  # ended before: durable with the next write

        def answered(done: Pending) -> None:
            half.is_answered = True

        when_kept(pending, answered)
        half.is_answered = pending.is_done

    def _delay_one(self) -> None:
        """By the standard codes' door, with a name to recall it by."""
        body = self._body("r")
        due_ms = self.now.wall_ms + self.random.choice([500, 3000, 5_000_000])
        record = make_record("t", body, UNIQ_KEY=f"r{self.count}")
        item = AppendRecord("t", self.random.randrange(QUEUES), record, due_ms=due_ms)
        name = f"r{self.count}"
        pending = self.engine.append([item], self.now)

        def answered(done: Pending[list[AppendResult]]) -> None:
            self.due[body] = due_ms
            self.names[body] = name

        when_kept(pending, answered)

    def _recall(self) -> None:
        """Withdraw one, perhaps too late."""
        waiting = [body for body in self.names if body not in self.maybe]
        if not waiting:
            return
        body = self.random.choice(waiting)
        pending = self.engine.held.recall("t", self.due[body], self.names[body], self.now)
        if not pending.value:
            return
        self.maybe.add(body)
        when_kept(pending, lambda done: self.recalled.add(body))

    def _fill(self) -> None:
        """What is not held, so that segments fill up."""
        self.frame += 1
        frame = make_frame(7, self.frame, [b"fill" + bytes(3000)], queue_id=0)
        self.open_frames[self.frame] = {}
        number = self.frame
        pending = self.engine.send("gw", frame, self.now)
        when_kept(pending, lambda done: self.open_frames.pop(number, None))

    def _commit(self) -> None:
        self.writer.step()

    def _tick(self) -> None:
        """Time passes; at times the wall clock jumps, an hour back or a day ahead."""
        monotonic, wall_ms = self.now
        step = self.random.choice([0.01, 0.5, 2.0, 30.0])
        jump = self.random.choice([0] * 20 + [-3_600_000, 86_400_000])
        self.now = Now(monotonic + step, wall_ms + int(step * 1000) + jump)
        self.engine.tick(self.now)
        self._look_for_loss()
        open_halves = {h.position for h in self.halves.values() if not h.is_answered}
        for check in self.engine.held.take_checks():
            if check.position in {h.position for h in self.halves.values()} - open_halves:
                raise Broken(f"asked about {check.position}, whose end was answered")
            self.checked.add(check.position)

    def _keep_house(self) -> None:
        write_snapshot(self.engine, self.disk, self.now)
        drop_files(self.engine, self.disk)
        prepare_segment(self.engine, self.disk)

    # ── promises ────────────────────────────────────────────────────────────────────────

    def check(self) -> None:
        """Crash once more; then let all time pass."""
        self.disk.countdown = -1
        self.crash()
        self.disk.countdown = -1
        seen = self._visible()
        ends = [due for due in self.due.values() if due]
        horizon = max([*ends, self.now.wall_ms])
        while self.now.wall_ms <= horizon + 1:
            following = self.now.wall_ms + self.random.choice([1000, 60_000, 30_000_000])
            self.now = Now(self.now.monotonic + 1, min(following, horizon + 2))
            for _ in range(3):
                self.engine.tick(self.now)
                self.writer.drain()
        self._look_for_loss()
        seen.update(self._visible())
        self._judge(seen)

    def _look_for_loss(self) -> None:
        if self.engine.counters.discarded:
            raise Broken("a held message could not be read when its time came")

    def _visible(self) -> dict[bytes, int]:
        """Body → store time of all that can be read, each once."""
        while self.engine.has_writes:
            self.writer.drain()
        found: dict[bytes, int] = {}
        for queue_id in range(QUEUES):
            offset, high = self.engine.offset_range("t", queue_id)
            while offset < high:
                result = self.engine.read("t", queue_id, offset, 64, 1 << 20)
                for record in result.records:
                    body = body_of(record)
                    if body in found and not body.startswith(b"fill"):
                        raise Broken(f"{body[:12]!r} came twice")
                    found[body] = store_ms(record)
                offset = result.next_offset
        return found

    def _judge(self, seen: dict[bytes, int]) -> None:
        for body, due_ms in self.due.items():
            if body in self.recalled and body in seen:
                raise Broken(f"{body[:12]!r} came though its recall was answered")
            if body not in seen and body not in self.maybe and not self._may_be_gone:
                raise Broken(f"{body[:12]!r} never came")
            if body in seen and seen[body] < due_ms:
                raise Broken(f"{body[:12]!r} came {due_ms - seen[body]} ms early")
        for body, half in self.halves.items():
            must = half.is_commit and half.is_answered
            if must and body not in seen and not self._may_be_gone:
                raise Broken(f"{body[:12]!r} was committed and never came")
            if not half.is_commit and body in seen:
                raise Broken(f"{body[:12]!r} came without a commit")

    @property
    def _may_be_gone(self) -> bool:
        """Whether visible messages are deleted in the time that a script runs."""
        return self.config.retention_s < HELD_CONFIG.retention_s
