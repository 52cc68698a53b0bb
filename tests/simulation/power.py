"""Power that fails at random moments, and what a store's threads do in between."""

import random
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from typing import Final, Protocol, TypeVar

from protocols.clock import Now
from store.answers import Pending
from store.engine import Engine, WriteBatch
from tests.simulation.checks import Broken
from tests.simulation.simulated_disk import PowerLost, SimulatedDisk

T = TypeVar("T")
ATTEMPTS_MAX = 20
SHARED: Final = ("engine", "disk", "writer", "random")
"""Of a script: what a crash leaves behind, or makes anew."""


def arm(disk: SimulatedDisk, chance: random.Random, probability: float) -> None:
    """At times: the power will fail in a few disk operations, or a sync or a write."""
    if disk.countdown >= 0 or chance.random() >= probability:
        return
    fault = chance.randrange(8)
    if fault == 0:
        disk.sync_errors = 1
    elif fault == 1:
        disk.write_errors = 1
    else:
        disk.countdown = chance.randrange(8)


def when_kept(pending: Pending[T], then: Callable[[Pending[T]], object]) -> None:
    """Call *then* when the answer may be given; not if it never may."""

    def notify(done: Pending[T]) -> None:
        if done.error is None:
            then(done)

    pending.notify = notify


class Story(Protocol):
    """A script that judges itself."""

    disk: SimulatedDisk
    random: random.Random
    tried: int
    """Crashes of its twins."""

    def check(self) -> None:
        """Crash, come up, and hold what is there against what was promised."""
        ...


class Play(Story, Protocol):
    """A story that goes step by step."""

    engine: Engine

    def step(self) -> None:
        """Whatever chance chooses. Raises PowerLost or OSError."""
        ...

    def crash(self, *ways: str) -> None:
        """Come up with what the disk has then, by one of *ways*."""
        ...


def play(script: Play, steps: int) -> None:
    """Power that fails and a disk that refuses are crashes; judged at the end."""
    for _ in range(steps):
        try:
            script.step()
        except PowerLost:
            script.crash()
        except OSError as error:
            script.engine.fail(error)
            script.crash("kill")
    script.check()


def try_crashes(story: Story, seed: int, part: float) -> Callable[[str, str, bytes], None]:
    """
    For ``disk.before``: at that *part* of all operations a twin of *story* crashes and is judged,
    and the story goes on as if nothing had been.
    """
    chance = random.Random(seed)
    number = 0

    def before(operation: str, name: str, data: bytes) -> None:
        nonlocal number
        number += 1
        if chance.random() >= part or story.disk.countdown == 0:
            return
        story.tried += 1
        twin = copy(story)
        for key, value in vars(story).items():
            if key not in SHARED:
                setattr(twin, key, deepcopy(value))
        twin.random = random.Random(seed * 1_000_003 + number)
        twin.disk = story.disk.fork(seed * 1_000_003 + number)
        if operation == "write" and chance.random() < 0.5:
            twin.disk.write_part(name, int.from_bytes(data[:8], "big"), data[8:])
        try:
            twin.check()
        except Exception as error:
            raise Broken(f"crash at operation {number}, {operation} {name}: {error!r}") from error

    return before


class Writer:
    """
    The writer thread: batches of commits, several of them on their way at a time.

    Each becomes durable in its turn; the loop is told at once, or later and of several.
    """

    def __init__(self, engine: Engine, disk: SimulatedDisk, chance: random.Random) -> None:
        self._engine = engine
        self._disk = disk
        self._chance = chance
        self._out: deque[WriteBatch] = deque()
        self._untold: deque[WriteBatch] = deque()

    def step(self) -> None:
        """One thing or another. Raises PowerLost, and OSError."""
        self._chance.choice([self._take, self._take, self._write, self._write, self.drain])()

    def drain(self) -> None:
        """All that waits is durable, and known to be."""
        self._take()
        while self._out:
            self._execute()
        self._tell()

    def _take(self) -> None:
        batch = self._engine.take_writes()
        if batch is not None:
            self._out.append(batch)

    def _write(self) -> None:
        if self._out:
            self._execute()
            if self._chance.random() < 0.6:
                self._tell()

    def _execute(self) -> None:
        batch = self._out[0]
        batch.execute(self._disk)
        self._out.popleft()
        self._untold.append(batch)

    def _tell(self) -> None:
        while self._untold:
            self._engine.confirm(self._untold.popleft())


def fail_and_recover(
    disk: SimulatedDisk,
    chance: random.Random,
    ways: Sequence[str],
    *,
    start: Callable[[], None],
    settle: Callable[[], None],
) -> None:
    """
    The power has failed in one of *ways* (``kill``: only the process has ended); it may fail again
    while the store recovers.
    """
    disk.sync_errors = disk.write_errors = 0
    way = chance.choice(ways)
    if way != "kill":
        disk.lose_power(way)
    for _ in range(ATTEMPTS_MAX):
        try:
            if chance.random() < 0.2:
                disk.countdown = chance.randrange(6)
            start()
            disk.countdown = -1
            settle()
            return
        except PowerLost:
            disk.lose_power("torn")
    raise Broken("never came up")


# ── the background thread ───────────────────────────────────────────────────────────────


def write_snapshot(engine: Engine, disk: SimulatedDisk, now: Now) -> None:
    work = engine.background.snapshot_due(now)
    if work is not None:
        work.execute(disk)
        engine.background.snapshot_written(work)


def seal(engine: Engine, disk: SimulatedDisk, between: Callable[[], object] = lambda: None) -> None:
    """One index file; *between*: what happens while the thread writes it."""
    work = engine.background.seal_due()
    if work is None:
        return
    while not work.gather():
        pass
    work.execute(disk)
    between()
    while not work.release():
        pass
    engine.background.seal_done()


def drop_files(engine: Engine, disk: SimulatedDisk) -> None:
    upkeep = engine.background.upkeep_due()
    if upkeep is not None:
        upkeep.execute(disk)
        engine.background.upkeep_done(upkeep)


def prepare_segment(engine: Engine, disk: SimulatedDisk) -> None:
    wanted = engine.background.segment_wanted()
    if wanted is not None:
        while not wanted.execute(disk):
            pass
        engine.background.segment_prepared(wanted)


def keep_house(engine: Engine, disk: SimulatedDisk, now: Now) -> None:
    """What the store's thread does in between, all of it."""
    write_snapshot(engine, disk, now)
    seal(engine, disk)
    drop_files(engine, disk)
    prepare_segment(engine, disk)
