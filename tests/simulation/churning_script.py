"""
Queues, subscriptions and gateways that come and go, while power fails and processes are killed.

Segments are small and go after a second, clocks jump by hours. Checked while it runs and after
a last restart:

- a queue that was declared is there, one whose end was answered is not, and takes nothing; what was
  sent to it directly comes once, in order, until its ack is answered, and never in a later life of
  its name;
- what was sent to a filter that a session read then and reads still is owed to it, and what was
  sent to others never comes; such queues come into being with a message and end with the last;
- of a topic with priorities the higher queue is popped first;
- a lease lasts its term of monotonic time, wherever the wall clock jumps, and a full term after
  a restart; what is bound to it ends with it; epochs rise.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from protocols.canonical import QueueKind, queue_key
from protocols.clock import Now
from protocols.errors import Code, Refused
from protocols.remoting.private import DirectoryWrite, GroupOpen, Join, Joined, ReadItem
from protocols.remoting.sending import SendAnswer, decode_send_answer
from protocols.remoting.settling import AckAction, AckItem
from store.answers import LEASE_PREFIX, Granted, Pending, TopicConfig
from store.engine import Engine
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
from tests.store.engine_kit import body_of, filter_key, make_frame

T = TypeVar("T")
LEASE_S = 3.0
NAMES = ("q0", "q1", "q2", "q3")
FILTERS = tuple(f"f{number}" for number in range(5))
PRIORITIES = 3
SESSION = "mqtt//s"
VERSIONS_MAX = 1 << 30


def _when_answered(pending: Pending[T], then: Callable[[Pending[T]], object]) -> None:
    """Also if there was nothing to write."""
    if pending.is_done:
        then(pending)
    else:
        when_kept(pending, then)


class Owed:
    """What a group is to get: of one life of a queue, or of the session."""

    def __init__(self) -> None:
        self.sent: set[bytes] = set()
        """May come."""

        self.stored: set[bytes] = set()
        """Has to."""

        self.seen: set[bytes] = set()
        self.ack_tried: set[bytes] = set()
        self.acked: set[bytes] = set()
        self.last = -1
        """Position of the last that came for the first time."""

    def came(self, name: str, body: bytes, position: int) -> None:
        if body not in self.sent:
            raise Broken(f"{name} got {body[:8]!r}, which is none of its")
        if body in self.acked:
            raise Broken(f"{name} got {body[:8]!r} after its ack was answered")
        if body not in self.seen and position < self.last:
            raise Broken(f"{name} got {body[:8]!r} behind a later one")
        self.seen.add(body)
        self.last = max(self.last, position)

    def missing(self, left: set[bytes]) -> set[bytes]:
        return self.stored - left - self.ack_tried


class Life(Owed):
    """One life of a queue."""

    def __init__(self, name: str, number: int) -> None:
        super().__init__()
        self.name = name
        self.number = number
        self.key = queue_key("", QueueKind.AMQP, f"//{name}", number)
        self.group = f"amqp//{name}"
        self.is_made = self.is_going = self.is_gone = False


class Lease:
    """A gateway's, as far as it knows."""

    def __init__(self, instance: str, epoch: int, renewed: float) -> None:
        self.instance = instance
        self.epoch = epoch
        self.renewed = renewed


class ChurningScript:
    """One run from one seed."""

    def __init__(self, seed: int, *, tries: float = 0.0) -> None:
        self.random = random.Random(seed)
        self.config = replace(CONFIG, lease_s=LEASE_S)
        self.disk = SimulatedDisk(seed)
        self.now = Now(50.0, 1_700_000_000_000)
        self.count = self.frame = 0
        self.open_frames: dict[int, list[tuple[Owed, list[bytes]]]] = {}
        self.lives: dict[str, Life] = {}
        self.gone: list[Life] = []
        self.session = Owed()
        self.names_of: dict[bytes, set[str]] = {}
        """Of what was sent to the session: filters that it has read ever since."""

        self.reads: list[frozenset[str]] = [frozenset()]
        """Of the session: as answered last, and as asked since."""

        self.high: Owed = Owed()
        self.leases: dict[str, Lease] = {}
        self.joining: set[str] = set()
        self.last_epoch = 0
        self.crashes = self.tried = self.ended = 0
        self._start()
        self._set_up()
        self.disk.before = try_crashes(self, seed, tries) if tries else None

    # ── life ────────────────────────────────────────────────────────────────────────────

    def _start(self) -> None:
        self.engine = Engine(self.disk, self.config)
        self.engine.recover(self.now)
        self.writer = Writer(self.engine, self.disk, self.random)
        self.holder = self.random.randrange(1, 1 << 30)
        for lease in self.leases.values():
            if self._is_sure(lease):  # else it may have ended: the log may say so
                lease.renewed = self.now.monotonic

    def _set_up(self) -> None:
        self.engine.catalog.put_topic(TopicConfig("t", 2, 2), self.now)
        self.engine.catalog.put_topic(TopicConfig("p", PRIORITIES, PRIORITIES), self.now)
        reads = [ReadItem(tag=1, topic="p")]
        self.engine.open_group(GroupOpen(name="high", reads=reads, is_priority=True), self.now)
        self._open_session(frozenset())
        self.writer.drain()

    def run(self, steps: int) -> None:
        play(self, steps)

    def step(self) -> None:
        acts = [
            self._make, self._make, self._drop, self._send_to_queue, self._send_to_queue,
            self._consume, self._consume, self._subscribe, self._publish, self._publish,
            self._receive, self._receive, self._rank, self._pop, self._join, self._renew,
            self._renew, self._commit, self._commit, self._commit, self._commit, self._tick,
            self._keep_house, self._arm,
        ]  # fmt: skip
        self.random.choice(acts)()

    def _arm(self) -> None:
        arm(self.disk, self.random, 0.4)

    def crash(self, *ways: str) -> None:
        self.crashes += 1
        ways = ways or ("kill", "torn", "torn", "drop", "keep")
        fail_and_recover(self.disk, self.random, ways, start=self._start, settle=self._settle)

    def _settle(self) -> None:
        """What had no answer is asked again, as gateways do."""
        for number in sorted(self.open_frames):
            pending = self.engine.gateways.settle("gw", 7, number, self.now)
            self.writer.drain()
            settled, parts = pending.result(), self.open_frames.pop(number)
            if settled.did_run:
                self._stored(parts, decode_send_answer(settled.answer))
        self.joining.clear()
        for life in list(self.lives.values()):
            if not life.is_made:
                self._declare(life)
            if life.is_going:
                self._end(life)
        self._open_session(self.reads[-1])
        self.writer.drain()
        for name in (SESSION, "high", *(life.group for life in self.lives.values())):
            self.engine.resume(self.engine.group_number(name), self.holder, [], self.now)

    # ── sends ───────────────────────────────────────────────────────────────────────────

    def _bodies(self) -> list[bytes]:
        count, size = self.random.choice([1, 1, 4]), self.random.choice([0, 40, 400])
        first, self.count = self.count, self.count + count
        return [b"%d:" % number + bytes(size) for number in range(first, first + count)]

    def _send(
        self, owed: Sequence[tuple[Owed, list[bytes]]], bodies: list[bytes], **facts: object
    ) -> Pending[SendAnswer]:
        """*owed*: to whom, what of it."""
        self.frame += 1
        number, parts = self.frame, list(owed)
        self.open_frames[number] = parts
        frame = make_frame(7, number, bodies, **facts)  # type: ignore[arg-type] # its keywords
        pending = self.engine.send("gw", frame, self.now)

        def answered(done: Pending[SendAnswer]) -> None:
            self._stored(self.open_frames.pop(number), done.result())

        _when_answered(pending, answered)
        return pending

    @staticmethod
    def _stored(parts: list[tuple[Owed, list[bytes]]], answer: SendAnswer) -> None:
        if not answer.refused:
            for owed, bodies in parts:
                owed.stored.update(bodies)

    # ── queues ──────────────────────────────────────────────────────────────────────────

    def _make(self) -> None:
        name = self.random.choice(NAMES)
        if name not in self.lives:
            number = 1 + max([life.number for life in self.gone if life.name == name], default=0)
            self._declare(self.lives.setdefault(name, Life(name, number)))

    def _declare(self, life: Life) -> None:
        policy: dict[str, int | str] = {"group": life.group, "incarnation": life.number}
        pending = self.engine.light_queues.create(life.key, f"//{life.name}", policy, self.now)

        def answered(done: Pending[None]) -> None:
            life.is_made = True

        _when_answered(pending, answered)

    def _drop(self) -> None:
        made = [life for life in self.lives.values() if life.is_made and not life.is_going]
        if made:
            self._end(self.random.choice(made))

    def _end(self, life: Life) -> None:
        life.is_going = True
        pending = self.engine.light_queues.drop(life.key, life.group, self.now)

        def answered(done: Pending[object]) -> None:
            life.is_gone = True
            self.lives.pop(life.name, None)
            self.gone.append(life)
            self.ended += 1

        _when_answered(pending, answered)

    def _send_to_queue(self) -> None:
        """At times to a life that is over."""
        made = [life for life in self.lives.values() if life.is_made and not life.is_going]
        if self.gone and self.random.random() < 0.1:
            life = self.random.choice(self.gone)
            answer = self._send([], self._bodies(), keys=[life.key], set_flags=0)
            self.writer.drain()
            if not all([code == Code.NOT_FOUND for code, _ in answer.result().refused.values()]):
                raise Broken(f"queue {life.name} took a message after its end")
        elif made:
            life, bodies = self.random.choice(made), self._bodies()
            life.sent.update(bodies)
            self._send([(life, bodies)], bodies, keys=[life.key], set_flags=0)

    def _consume(self) -> None:
        for life in list(self.lives.values()):
            if life.is_made and not life.is_going and self.random.random() < 0.5:
                self._take(life.group, life, self.random.choice([1, 8]))

    def _take(self, name: str, owed: Owed, count: int) -> Sequence[Granted]:
        group = self.engine.group_number(name)
        taken = self.engine.take(group, count, self.now, holder=self.holder)
        items: list[AckItem] = []
        bodies: list[bytes] = []
        for one in sorted(taken, key=lambda one: one.position):
            body = body_of(self.engine.record_at(one.record_position))
            if owed is not self.high:
                owed.came(name, body, one.position)
            chance = self.random.random()
            if chance < 0.6:
                items.append(AckItem(group, one.position, one.grant))
                bodies.append(body)
            elif chance < 0.8:
                back = AckItem(group, one.position, one.grant, AckAction.CHANGE)
                self.engine.ack(self.engine.epoch, [back], self.now)
        owed.ack_tried.update(bodies)
        pending = self.engine.ack(self.engine.epoch, items, self.now)
        _when_answered(pending, lambda done: owed.acked.update(bodies))
        return taken

    # ── filters ─────────────────────────────────────────────────────────────────────────

    def _subscribe(self) -> None:
        wanted = frozenset(self.random.sample(FILTERS, self.random.randrange(len(FILTERS))))
        self._open_session(wanted)

    def _open_session(self, wanted: frozenset[str]) -> None:
        reads = [
            ReadItem(tag=FILTERS.index(name) + 1, key=filter_key(name)) for name in sorted(wanted)
        ]
        spec = GroupOpen(name=SESSION, reads=reads, owner_epoch=1, is_inherited=True)
        self.reads.append(wanted)
        for names in self.names_of.values():
            names &= wanted
        pending = self.engine.open_group(spec, self.now)

        def answered(done: Pending[object]) -> None:
            del self.reads[: self.reads.index(wanted)]

        _when_answered(pending, answered)

    def _publish(self) -> None:
        """To one or two filters, read or not."""
        bodies, names = self._bodies(), set(self.random.sample(FILTERS, self.random.choice([1, 2])))
        if any([names & reads for reads in self.reads]):
            self.session.sent.update(bodies)
        is_owed = bool(names.intersection(*self.reads))
        self.names_of.update((body, names.intersection(*self.reads)) for body in bodies)
        queue_id = self.random.randrange(2)
        keys = [filter_key(name) for name in sorted(names)]
        owed = [(self.session, bodies)] if is_owed else []
        self._send(owed, bodies, keys=keys, queue_id=queue_id)

    def _receive(self) -> None:
        self._take(SESSION, self.session, self.random.choice([1, 16]))

    # ── priorities ──────────────────────────────────────────────────────────────────────

    def _rank(self) -> None:
        bodies, queue_id = self._bodies(), self.random.randrange(PRIORITIES)
        bodies = [b"%d/" % queue_id + body for body in bodies]
        self._send([(self.high, bodies)], bodies, topic="p", queue_id=queue_id)

    def _pop(self) -> None:
        taken = self._take("high", self.high, self.random.choice([1, 3, 8]))
        new = [self.engine.record_at(one.record_position) for one in taken if one.attempt == 1]
        levels = [body_of(record)[0] for record in new]
        if levels != sorted(levels, reverse=True):
            raise Broken(f"priorities {levels}")

    # ── gateways ────────────────────────────────────────────────────────────────────────

    def _join(self) -> None:
        """Another process of the name, or the same once more."""
        gateway, instance = self.random.choice(["g0", "g1"]), self.random.choice(["a", "b"])
        if gateway in self.joining:
            return
        lease = self.leases.get(gateway)
        is_taken = lease is not None and lease.instance != instance and self._is_sure(lease)
        try:
            pending = self.engine.gateways.join(Join(gateway=gateway, instance=instance), self.now)
        except Refused:
            return
        if is_taken:
            raise Broken(f"{gateway} joined while another has its name")
        self.leases.pop(gateway, None)
        self.joining.add(gateway)
        at = self.now.monotonic

        def answered(done: Pending[Joined]) -> None:
            epoch = done.result().gateway_epoch
            if epoch <= self.last_epoch:
                raise Broken(f"epoch {epoch} after {self.last_epoch}")
            self.last_epoch = epoch
            self.joining.discard(gateway)
            self.leases[gateway] = Lease(instance, epoch, at)
            row = DirectoryWrite(key=f"own/{gateway}/{epoch}", value=b"1", is_bound=True)
            try:
                self.engine.gateways.directory_put(gateway, epoch, [row], self.now)
            except Refused:
                if self._is_sure(self.leases[gateway]):
                    raise Broken(f"{gateway} may not write under its lease") from None

        _when_answered(pending, answered)

    def _is_sure(self, lease: Lease | None) -> bool:
        return lease is not None and self.now.monotonic - lease.renewed < LEASE_S

    def _renew(self) -> None:
        for gateway, lease in list(self.leases.items()):
            if self.random.random() < 0.3:
                continue
            is_sure = self._is_sure(lease)
            if self.engine.gateways.renew(gateway, lease.epoch, 0, self.now):
                lease.renewed = self.now.monotonic
            elif is_sure:
                raise Broken(f"the lease of {gateway} ended before its term")
            else:
                del self.leases[gateway]

    # ── time ────────────────────────────────────────────────────────────────────────────

    def _commit(self) -> None:
        self.writer.step()

    def _tick(self) -> None:
        monotonic, wall_ms = self.now
        step = self.random.choice([0.01, 0.5, 1.2])
        jump_ms = self.random.choice([0] * 8 + [-3_600_000, 3_600_000])
        self.now = Now(monotonic + step, wall_ms + int(step * 1000) + jump_ms)
        self.engine.tick(self.now)
        self.engine.enforce(self.now)

    def _keep_house(self) -> None:
        keep_house(self.engine, self.disk, self.now)

    # ── promises ────────────────────────────────────────────────────────────────────────

    def check(self) -> None:
        """Crash once more, then look at everything."""
        self.disk.countdown = -1
        self.crash()
        self.disk.countdown = -1
        self.writer.drain()
        for life in self.gone:
            later = self.lives.get(life.name)
            if later is None and self.engine.group_number(life.group):
                raise Broken(f"queue {life.name} is there after its end")
        for life in list(self.lives.values()):
            self._drain(life.group, life)
        self.session.stored = {body for body in self.session.stored if self.names_of[body]}
        self._drain(SESSION, self.session)
        self._look_at_leases()

    def _drain(self, name: str, owed: Owed) -> None:
        """All that is left comes, once."""
        group, left = self.engine.group_number(name), set[bytes]()
        if not group:
            raise Broken(f"{name} is not there")
        taken = self.engine.resume(group, self.holder, [], self.now)  # the session's come again
        while taken := taken or self.engine.take(group, 32, self.now, holder=self.holder):
            for one in taken:
                body = body_of(self.engine.record_at(one.record_position))
                owed.came(name, body, one.position)
                if body in left:
                    raise Broken(f"{name} got {body[:8]!r} twice")
                left.add(body)
            taken = []
        if missing := owed.missing(left):
            raise Broken(f"{name} lacks {len(missing)}, such as {min(missing)[:8]!r}")

    def _look_at_leases(self) -> None:
        """Those that count have their records; in the end nothing is left of any."""
        for is_over in (False, True):
            if is_over:
                self.now = Now(self.now.monotonic + LEASE_S + 0.1, self.now.wall_ms)
                self.engine.tick(self.now)
                self.writer.drain()
            records, _ = self.engine.gateways.directory_read(0, VERSIONS_MAX)
            rows = {record.key: record for record in records if record.value is not None}
            live = {name.removeprefix(LEASE_PREFIX) for name in rows if LEASE_PREFIX in name}
            for gateway, lease in self.leases.items():
                if self._is_sure(lease) and rows[LEASE_PREFIX + gateway].version != lease.epoch:
                    raise Broken(f"{gateway} has another epoch than its own")
            for record in rows.values():
                epoch = rows[LEASE_PREFIX + record.gateway].version if record.gateway in live else 0
                if record.gateway and record.gateway_epoch != epoch:
                    raise Broken(f"{record.key} outlives the lease it is bound to")
            if is_over and live:
                raise Broken(f"leases of {live} do not end")
