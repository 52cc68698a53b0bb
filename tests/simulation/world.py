"""
A seeded script over one store on a simulated disk, with a crash tried at every disk operation.

The live run goes on undisturbed; before each operation the disk is forked, the fork loses power
(torn, reordered, dropped, kept; in the middle of a write), a second engine recovers from it and is
held against the reference. Now and then the live run crashes too: by power, by kill, by a failed
write, by a failed sync and a restart on the page cache that lies about it.
"""

import random
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from protocols.clock import Now
from store.answers import EngineConfig, Pending, StoreFailed
from store.engine import Engine, WriteBatch
from store.index.sealing import SealWork
from tests.simulation import checks
from tests.simulation.checks import Broken, compare, compare_frames, expect
from tests.simulation.reference import Model
from tests.simulation.simulated_disk import PowerLost, SimulatedDisk

CONFIG = EngineConfig(
    segment_bytes=16 << 10,
    log_bytes_max=64 << 20,
    is_zero_filled=False,
    snapshot_bytes=12 << 10,
    cache_bytes_max=6 << 10,
    orphan_s=5.0,
)
TIGHT = replace(
    CONFIG, segment_bytes=8 << 10, log_bytes_max=64 << 10, retention_s=3, snapshot_bytes=4 << 10
)
"""So little room that segments go and their files live again."""

NEVER = 1 << 62
OUT_MAX = 3
RECOVERY_CRASH = 0.2
"""How many of the tried crashes are followed by another one while the store recovers."""


class Change:
    """One step of the reference, and the log position behind which it has happened."""

    def __init__(self, pending: Pending[None], end: int, apply: Callable[[Model], None]) -> None:
        self._pending = pending
        self._end = end
        self.apply = apply

    @property
    def position(self) -> int:
        if self._pending.position >= 0:
            return self._pending.position
        return self._end if self._pending.is_done else NEVER


@dataclass
class Gateway:
    """A sender: its frames without an answer."""

    name: str
    epoch: int = 7
    frame: int = 0
    answered: int = 0
    unanswered: list[int] = field(default_factory=list)


@dataclass
class Figures:
    """What a run did."""

    crash_points: int = 0
    crashes: int = 0
    operations: int = 0
    trace: int = 0
    """Over all disk operations: equal for equal runs."""


class World:
    """The store, its disk, the reference, and what the outside holds."""

    def __init__(
        self,
        seed: int,
        *,
        config: EngineConfig | None = None,
        only: tuple[int, int] | None = None,
        tries: bool = True,
        syncs_nothing: bool = False,
    ) -> None:
        self.seed = seed
        self.is_tight = config is None and seed % 4 == 1
        self.config = config or (TIGHT if self.is_tight else CONFIG)
        self.random = random.Random(seed)
        self.disk = SimulatedDisk(seed)
        self.disk.before = self._before
        self.figures = Figures()
        self._only = only
        self._tries = tries
        self.now = Now(50.0, 1_700_000_000_000)
        self.head = Model()
        self.base = Model()
        self.changes: deque[Change] = deque()
        self.floor = 0
        """Synced up to here: nothing below may be lost."""

        self.out: deque[WriteBatch] = deque()
        self.told_late: deque[WriteBatch] = deque()
        self.sealing: SealWork | None = None
        """Index work that was begun."""

        self.gateways = [Gateway("gw1"), Gateway("gw2")]
        self.leases: dict[str, tuple[int, float]] = {}
        self.holders: dict[str, int] = {}
        self.handles: dict[str, list[tuple[int, int]]] = {}
        self.granted: set[tuple[int, int, int]] = set()
        """(group, position, grant) of every delivery there was."""

        self.sent = 0
        self.is_up = False
        self.start()
        self.disk.syncs_nothing = syncs_nothing

    # ── the reference ───────────────────────────────────────────────────────────────────

    def change(self, apply: Callable[[Model], None]) -> None:
        """The engine was told so; it has happened when the log is kept up to here."""
        pending: Pending[None] = Pending(None)
        self.engine._core.log.wait(pending)
        self.changes.append(Change(pending, self.engine.end, apply))
        apply(self.head)

    def expect_waits(self, pending: Pending[Any]) -> None:
        """An answer that promises something is not given before the disk has it."""
        if pending.is_done and self.engine.pending_bytes:
            raise Broken("answered before it was durable")

    def model_at(self, end: int) -> Model:
        """The reference as of a log that ends at *end*."""
        model = self.base.fork()
        for change in self.changes:
            if change.position > end:
                break
            change.apply(model)
        return model

    def _advance(self) -> None:
        while self.changes and self.changes[0].position <= self.floor:
            self.changes.popleft().apply(self.base)

    # ── start and end ───────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """A new process on the disk as it is. Raises PowerLost."""
        self.is_up = False
        self.engine = Engine(self.disk, self.config)
        report = self.engine.recover(self.now)
        if not self.is_up:
            self._came_up(report.end)
        self.out.clear()
        self.told_late.clear()
        self.sealing = None
        for group in self.head.groups.values():
            group.lose_holders(self.now.monotonic, self.config.orphan_s)
        self.floor = self.engine.confirmed
        self._advance()
        records, _ = self.engine.gateways.directory_read(0, checks.ALL)
        alive = [one for one in records if one.value is not None]
        self.leases = {
            one.gateway: (one.gateway_epoch, self.now.monotonic)
            for one in alive
            if one.key.startswith("gateway/")
        }

    def _came_up(self, end: int) -> None:
        """What is below *end* has happened; the rest never did."""
        if end < self.floor:
            raise Broken(f"the log ends at {end}, acknowledged up to {self.floor}")
        self.base = self.model_at(end)
        self.head = self.base.fork()
        self.changes.clear()
        self.floor = end
        self.is_up = True

    def crash(self, mode: str) -> None:
        """Lose power (or only the process, *mode* kill), and come up again."""
        self.figures.crashes += 1
        if mode != "kill":
            self.disk.lose_power(mode)
        for _ in range(20):
            try:
                if self.random.random() < 0.2:
                    self.disk.countdown = self.random.randrange(6)
                self.start()
                self.disk.countdown = -1
                return
            except PowerLost:
                self.disk.lose_power("torn")
            except OSError:
                continue  # it did not come up; somebody starts it again
        raise Broken("never came up")

    # ── a crash at every operation ──────────────────────────────────────────────────────

    def _before(self, operation: str, name: str, data: bytes) -> None:
        figures = self.figures
        figures.operations += 1
        facts = f"{operation} {name} {len(data)}".encode()
        figures.trace = zlib.crc32(facts, figures.trace)
        if not self.is_up and self.engine.epoch:  # recovered, its first block not yet written
            self._came_up(self.engine.confirmed)
        if not self._tries or self.disk.countdown == 0:
            return
        ways = ["torn", "cut"] if operation == "write" else ["torn"]
        if operation == "sync":
            ways = ["torn", "drop"]
        for number, way in enumerate(ways):
            if self._only is None or self._only == (figures.operations, number):
                self._try(number, way, name, data)

    def _try(self, number: int, way: str, name: str, data: bytes) -> None:
        """Fork the disk, crash it, recover, compare."""
        self.figures.crash_points += 1
        operation = self.figures.operations
        twin = self.disk.fork(self.seed * 1_000_003 + operation * 4 + number)
        if way == "cut":
            twin.write_part(name, int.from_bytes(data[:8], "big"), data[8:])
        twin.lose_power("torn" if way == "cut" else way)
        try:
            self._check(twin)
        except Exception as error:
            place = f"seed {self.seed}, operation {operation}, crash {number} ({way} at {name})"
            raise Broken(f"{place}: {error}") from error

    def _check(self, disk: SimulatedDisk) -> None:
        if disk.random.random() < RECOVERY_CRASH:
            self.figures.crash_points += 1
            disk.countdown = disk.random.randrange(8)
            try:
                Engine(disk, self.config).recover(self.now)
            except PowerLost:
                disk.lose_power("torn")
            disk.countdown = -1
        engine = Engine(disk, self.config)
        report = engine.recover(self.now)
        if report.end < self.floor:
            raise Broken(f"the log ends at {report.end}, synced up to {self.floor}")
        expect("rot", (report.rotten_records, report.rotten_bytes), (0, 0))
        model = self.model_at(report.end)
        for gateway in self.gateways:
            numbers = [*gateway.unanswered, gateway.frame + 1]
            compare_frames(engine, model, gateway.name, gateway.epoch, numbers, self.now)
        compare(engine, model, self.now, may_go=self.is_tight)
        self.probe(engine, model)

    def probe(self, engine: Engine, model: Model) -> None:
        """What only a request can show."""

    # ── the writer ──────────────────────────────────────────────────────────────────────

    def seal(self) -> None:
        """Hand all that waits to the writer."""
        batch = self.engine.take_writes()
        if batch is not None:
            self.out.append(batch)

    def write(self) -> None:
        """The oldest batch out becomes durable; the loop is told now or later."""
        if not self.out:
            return
        batch = self.out.popleft()
        batch.execute(self.disk)
        self.floor = batch.position
        self._advance()
        self.told_late.append(batch)
        if self.random.random() < 0.6:
            self.tell()

    def tell(self) -> None:
        while self.told_late:
            self.engine.confirm(self.told_late.popleft())

    def drain(self) -> None:
        self.seal()
        while self.out:
            self.write()
        self.tell()

    def fail(self, error: OSError) -> None:
        """A write or sync failed: every answer that waits is an error, for good."""
        for pending in self.engine.fail(error):
            if pending.error is None:
                raise Broken("an answer without an error after a failed sync")
        try:
            self.engine.catalog.put_setting("kv", "late", b"x", self.now)
        except StoreFailed:
            return
        raise Broken("a store whose disk failed goes on")

    def turn_clock(self, seconds: float, jump_s: float = 0.0) -> None:
        monotonic, wall_ms = self.now
        self.now = Now(monotonic + seconds, wall_ms + int((seconds + jump_s) * 1000))
