"""
An error at the n-th write, sync, creation, rename, removal, for every n.

One script sends, pops, acknowledges, snapshots, fills segments, lets them go and closes. At the
n-th operation of a kind the disk answers EIO (a failed sync also marks its pages clean, a failed
write leaves a part behind). From then on nothing may be acknowledged that is not on the disk; a
start on the same page cache, and a power cut after it, must both show all that was.
"""

from dataclasses import replace

import pytest

from protocols.remoting.private import ReadItem
from protocols.remoting.settling import AckItem
from store.answers import Pending, StoreFailed, TopicConfig
from store.engine import Engine
from tests.simulation.simulated_disk import SimulatedDisk
from tests.store.engine_kit import SMALL, Driver, body_of, filter_key, make_frame

A = filter_key("a")
CONFIG = replace(
    SMALL,
    segment_bytes=16 << 10,
    log_bytes_max=96 << 10,
    retention_s=1,
    snapshot_bytes=16 << 10,
    cache_bytes_max=0,
)
ROUNDS = 16
KINDS = ("write", "sync", "create", "rename", "unlink", "sync_dir")


class Failing(Driver):
    """Does its work over a disk that fails once; remembers what was acknowledged."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.sent: list[bytes] = []
        self.acked: set[bytes] = set()
        self.tried: set[bytes] = set()
        """Whose acks were written; whether they count, only those in ``acked`` were promised."""

        self.has_failed = False
        super().__init__(disk, CONFIG)

    def _drain(self) -> None:
        """As the writer thread does; the first error is the last word."""
        try:
            while (batch := self.engine.take_writes()) is not None:
                batch.execute(self.disk)
                self.engine.confirm(batch)
        except OSError as error:
            self.has_failed = True
            for pending in self.engine.fail(error):
                assert pending.error is not None

    def was_kept(self, pending: Pending[object]) -> bool:
        self._drain()
        return pending.is_done and pending.error is None

    def round(self, number: int) -> None:
        """One of everything. Raises StoreFailed."""
        engine = self.engine
        bodies = [b"%d.%d:" % (number, index) + bytes(1200) for index in range(3)]
        self.frame += 1
        if self.was_kept(engine.send("gw", make_frame(1, self.frame, bodies, keys=[A]), self.now)):
            self.sent += bodies
        group = engine.group_number("g")
        granted = engine.take(group, 3, self.now, holder=1)
        taken = self.bodies(granted)
        self.tried.update(taken[:2])
        items = [AckItem(group, one.position, one.grant) for one in granted[:2]]
        if items and self.was_kept(engine.ack(engine.epoch, items, self.now)):
            self.acked.update(taken[:2])
        monotonic, wall_ms = self.now
        self.now = self.now._replace(monotonic=monotonic + 1.5, wall_ms=wall_ms + 1500)
        engine.end_holder(1, self.now)
        engine.tick(self.now)
        self._drain()
        self.in_background()

    def in_background(self) -> None:
        """A failure here is tried again later, and no failure of the log."""
        try:
            wanted = self.engine.background.segment_wanted()
            if wanted is not None:
                while not wanted.execute(self.disk):
                    pass
                self.engine.background.segment_prepared(wanted)
            snapshot = self.engine.background.snapshot_due(self.now)
            if snapshot is not None:
                snapshot.execute(self.disk)
                self.engine.background.snapshot_written(snapshot)
            self.seal()
            self.keep_house()
        except OSError:
            self.engine.background.seal_done()

    def run(self) -> None:
        try:
            self.engine.catalog.put_topic(TopicConfig("t", 1, 1), self.now)
            self._drain()
            self.open("g", [ReadItem(tag=1, key=A)])
            for number in range(ROUNDS):
                self.round(number)
            self.engine.close(self.now)
            self._drain()
        except StoreFailed:
            assert self.has_failed

    def drain(self) -> None:
        self._drain()
        if self.has_failed:
            raise StoreFailed("the disk failed")


class Fault:
    """Fails the n-th operation of one kind."""

    def __init__(self, disk: SimulatedDisk, kind: str, number: int) -> None:
        self.disk, self.kind, self.left = disk, kind, number
        disk.before = self

    def __call__(self, operation: str, name: str, data: bytes) -> None:
        if operation != self.kind or self.left < 0:
            return
        self.left -= 1
        if self.left >= 0:
            return
        if operation == "sync":
            self.disk.files[name].dirty.clear()
        elif operation == "write":
            self.disk.write_part(name, int.from_bytes(data[:8], "big"), data[8:])
        raise OSError(5, "Input/output error")


def started(disk: SimulatedDisk, store: Failing) -> Engine:
    """A start on the disk as it is; the single fault is over."""
    disk.before = None
    engine = Engine(disk, CONFIG)
    engine.recover(store.now)
    return engine


def check(engine: Engine, store: Failing) -> None:
    """What was sent and not acknowledged comes; what was acknowledged does not."""
    number = engine.group_number("g")
    engine.tick(store.now._replace(monotonic=store.now.monotonic + 100))
    granted = engine.take(number, 1000, store.now, holder=7) if number else []
    found = [body_of(engine.record_at(one.record_position)) for one in granted]
    assert len(found) == len(set(found))
    assert not store.acked & set(found)
    assert set(store.sent) - store.tried <= set(found)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_at_every_operation(kind: str) -> None:
    number = 0
    while True:
        disk = SimulatedDisk(number)
        fault = Fault(disk, kind, number)
        try:
            store = Failing(disk)
        except OSError:  # it did not even start
            started_again = Engine(disk, CONFIG)
            disk.before = None
            started_again.recover(Driver(SimulatedDisk()).now)
            number += 1
            continue
        store.run()
        if fault.left >= 0:
            break  # the script has no more of them
        check(started(disk, store), store)  # the page cache shows what it shows
        disk.lose_power("drop")
        check(started(disk, store), store)
        number += 1
    assert number >= 3
    assert len(store.sent) == 3 * ROUNDS
    assert len(store.acked) > ROUNDS
