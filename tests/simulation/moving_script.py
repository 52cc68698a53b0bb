"""
A consumer that leaves a few messages in each segment, so that they are relocated; power fails.

Small messages, nearly all acknowledged at once, segments of 8 KiB that may go after a second: most
of what a crash interrupts is a relocation, or the end of a segment that one emptied. Checked after
every restart: what was acknowledged and is still owed is there, at its position and offset, with
its bytes; an acknowledged delivery is never handed out again; nothing owed is left behind.
"""

import random

from protocols.clock import Now
from protocols.remoting.private import GroupOpen, ReadItem
from protocols.remoting.sending import decode_send_answer
from protocols.remoting.settling import AckItem
from store.answers import EngineConfig, Pending, ReadStatus, TopicConfig
from store.engine import Engine
from store.log.ahead import Coming, Prefetch
from tests.simulation.checks import Broken
from tests.simulation.power import (
    Writer,
    arm,
    drop_files,
    fail_and_recover,
    play,
    prepare_segment,
    seal,
    try_crashes,
    when_kept,
    write_snapshot,
)
from tests.simulation.simulated_disk import SimulatedDisk
from tests.store.engine_kit import body_of, filter_key, make_frame

KEYS = (filter_key("a"), filter_key("b"))
CONFIG = EngineConfig(
    segment_bytes=8 << 10,
    log_bytes_max=64 << 20,
    is_zero_filled=False,
    snapshot_bytes=4 << 10,
    retention_s=1,
    cache_bytes_max=8 << 10,
    orphan_s=0.0,
)


class MovingScript:
    """One run: steps, crashes, checks, all from one seed."""

    def __init__(self, seed: int, *, tries: float = 0.0) -> None:
        self.config = CONFIG
        self.coming: list[Prefetch] = []
        """Parts of the log that a reader waits for."""

        self.random = random.Random(seed)
        self.disk = SimulatedDisk(seed)
        self.now = Now(50.0, 1_700_000_000_000)
        self.sent = 0
        self.frame = 0
        self.open_frames: dict[int, list[bytes]] = {}
        self.stored: dict[bytes, tuple[int, int]] = {}
        """Acknowledged body → (position, offset)."""

        self.maybe: set[bytes] = set()
        """Bodies handed to a store that never answered, before they were settled."""

        self.consumed: set[bytes] = set()
        """Bodies whose ack was answered."""

        self.ack_tried: set[bytes] = set()
        self.left: set[int] = set()
        """Positions that the consumer will hardly ever acknowledge."""

        self.crashes = self.tried = 0
        self.relocated_count = 0
        self._start()
        self._set_up()
        self.disk.before = try_crashes(self, seed, tries) if tries else None

    # ── life ────────────────────────────────────────────────────────────────────────────

    def _start(self) -> None:
        if self.crashes:
            self.relocated_count += self.engine.counters.relocated
        self.engine = Engine(self.disk, self.config)
        self.engine.recover(self.now)
        self.holder = self.random.randrange(1, 1 << 30)
        self.writer = Writer(self.engine, self.disk, self.random)
        self.coming.clear()

    def _set_up(self) -> None:
        self.engine.catalog.put_topic(TopicConfig("t", 2, 2), self.now)
        reads = [ReadItem(tag=tag, key=key) for tag, key in enumerate(KEYS, 1)]
        opened = self.engine.open_group(GroupOpen(name="g", reads=reads), self.now)
        self.writer.drain()
        self.group = opened.result().group

    def run(self, steps: int) -> None:
        play(self, steps)

    def step(self) -> None:
        act = self.random.choice(
            [self._send, self._send, self._consume, self._consume, self._commit, self._commit,
             self._commit, self._tick, self._tick, self._snapshot, self._snapshot, self._arm,
             self._read_on, self._fetch],
        )  # fmt: skip
        act()

    def _arm(self) -> None:
        arm(self.disk, self.random, 0.4)

    def crash(self, *ways: str) -> None:
        self.crashes += 1
        ways = ways or ("torn", "torn", "torn", "drop", "keep")
        fail_and_recover(self.disk, self.random, ways, start=self._start, settle=self._settle)

    # ── steps ───────────────────────────────────────────────────────────────────────────

    def _bodies(self, count: int) -> list[bytes]:
        first, self.sent = self.sent, self.sent + count
        size = self.random.choice([0, 20, 200])
        return [b"%d:" % number + bytes(size) for number in range(first, first + count)]

    def _send(self) -> None:
        self._post(self._bodies(self.random.choice([1, 1, 3, 10])))

    def _post(self, bodies: list[bytes]) -> None:
        self.frame += 1
        number = self.frame
        keys = self.random.choice([KEYS, KEYS[:1], KEYS[1:]])
        self.open_frames[number] = bodies
        frame = make_frame(7, number, bodies, keys=keys, queue_id=self.random.randrange(2))
        pending = self.engine.send("gw", frame, self.now)

        def answered(done: Pending) -> None:
            answer = done.result()
            self._stored(number, list(zip(answer.positions, answer.offsets, strict=True)))

        when_kept(pending, answered)

    def _stored(self, number: int, places: list[tuple[int, int]]) -> None:
        bodies = self.open_frames.pop(number)
        self.stored.update(zip(bodies, places, strict=True))

    def _settle(self) -> None:
        """Ask about every frame without an answer; what never ran goes into new frames."""
        again: list[list[bytes]] = []
        for number in sorted(self.open_frames):
            pending = self.engine.gateways.settle("gw", 7, number, self.now)
            self.writer.drain()
            settled = pending.result()
            if settled.did_run:
                answer = decode_send_answer(settled.answer)
                self._stored(number, list(zip(answer.positions, answer.offsets, strict=True)))
            else:
                again.append(self.open_frames.pop(number))
        for bodies in again:
            self._post(bodies)
        self.engine.resume(self.group, self.holder, [], self.now)

    def _consume(self) -> None:
        granted = self.engine.take(self.group, 32, self.now, holder=self.holder)
        bodies: list[bytes] = []
        items: list[AckItem] = []
        for one in granted:
            body = body_of(self.engine.record_at(one.record_position))
            if body in self.consumed:
                raise Broken(f"{body[:8]!r} delivered after its ack was answered")
            if one.position not in self.left and self.random.random() < 0.03:
                self.left.add(one.position)
            if one.position not in self.left or self.random.random() < 0.02:
                items.append(AckItem(self.group, one.position, one.grant))
                bodies.append(body)
        self.ack_tried.update(bodies)
        pending = self.engine.ack(self.engine.epoch, items, self.now)
        when_kept(pending, lambda done: self.consumed.update(bodies))
        if pending.is_done:
            self.consumed.update(bodies)

    def _read_on(self) -> None:
        """Somebody reads by offset and does not wait for the disk."""
        queue_id = self.random.randrange(2)
        low, high = self.engine.offset_range("t", queue_id)
        if low == high:
            return
        offset = self.random.randrange(low, high)
        try:
            result = self.engine.read("t", queue_id, offset, 16, 1 << 20, may_wait=True)
        except Coming:
            self.coming += self.engine.background.take_prefetches()
            return
        for record in result.records:
            place = (int.from_bytes(record[28:36], "big"), int.from_bytes(record[20:28], "big"))
            if self.stored.get(body_of(record), place) != place:
                raise Broken(f"{body_of(record)[:8]!r} is read at {place}")

    def _fetch(self) -> None:
        """What was asked for comes, its segment gone or used again by now or not."""
        if self.coming:
            work = self.coming.pop(self.random.randrange(len(self.coming)))
            work.execute(self.disk)
            self.engine.background.prefetched(work)

    def _commit(self) -> None:
        self.writer.step()

    def _tick(self) -> None:
        monotonic, wall_ms = self.now
        step = self.random.choice([0.01, 0.5, 2.0])
        jump_ms = self.random.choice([0] * 30 + [-3_600_000, 3_600_000])
        self.now = Now(monotonic + step, wall_ms + int(step * 1000) + jump_ms)
        self.engine.tick(self.now)

    def _snapshot(self) -> None:
        write_snapshot(self.engine, self.disk, self.now)
        seal(self.engine, self.disk, self._send_at_times)
        drop_files(self.engine, self.disk)
        if self.random.random() < 0.3:
            prepare_segment(self.engine, self.disk)

    def _send_at_times(self) -> None:
        if self.random.random() < 0.5:
            self._send()

    # ── promises ────────────────────────────────────────────────────────────────────────

    def check(self) -> None:
        """Crash once more, then look at everything."""
        self.disk.countdown = -1
        self.crash()
        self.disk.countdown = -1
        while self.engine.has_writes:
            self.writer.drain()
        by_offset = self._read_all()
        for body, (position, offset) in self.stored.items():
            if body not in by_offset and body in self.ack_tried:
                continue  # nobody was owed it any more
            if by_offset.get(body) != (position, offset):
                raise Broken(f"acknowledged {body[:8]!r} is not at {position}, offset {offset}")
        self._drain_group(set(by_offset))

    def _read_all(self) -> dict[bytes, tuple[int, int]]:
        """Body → (position, offset) of all there is, each once."""
        found: dict[bytes, tuple[int, int]] = {}
        for queue_id in range(2):
            offset, high = self.engine.offset_range("t", queue_id)
            while offset < high:
                result = self.engine.read("t", queue_id, offset, 16, 1 << 20)
                if result.status != ReadStatus.FOUND:
                    raise Broken(f"queue {queue_id} cannot be read at {offset}: {result.status}")
                for record in result.records:
                    body = body_of(record)
                    if body in found:
                        raise Broken(f"{body[:8]!r} is stored twice")
                    at = int.from_bytes(record[20:28], "big")
                    found[body] = (int.from_bytes(record[28:36], "big"), at)
                offset = result.next_offset
        return found

    def _drain_group(self, there: set[bytes]) -> None:
        """Everything that is there and was not acknowledged comes, and nothing else."""
        seen: set[bytes] = set()
        while granted := self.engine.take(self.group, 32, self.now, holder=self.holder):
            for one in granted:
                body = body_of(self.engine.record_at(one.record_position))
                if body in self.consumed or body in seen:
                    raise Broken(f"{body[:8]!r} delivered again")
                seen.add(body)
        missing = there - seen - self.ack_tried
        if missing:
            raise Broken(f"{len(missing)} messages are never delivered")
