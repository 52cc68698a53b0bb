"""Recovery: torn and rotten blocks, failed syncs, snapshots, segments, room."""

from dataclasses import replace

import pytest

from protocols.errors import Code, Refused
from protocols.remoting.private import IndexItem, ReadItem
from store.answers import STORE_FULL, EngineConfig, StoreFailed
from store.disk import RealDisk
from store.engine import Engine
from store.log.format import SEGMENT_HEADER_BYTES, decode_segment_header
from store.log.segments import segment_name
from tests.simulation.simulated_disk import SimulatedDisk
from tests.store.engine_kit import SMALL, Driver, body_of, filter_key, make_frame, make_record

A = filter_key("a")
READ_A = ReadItem(tag=1, key=A)


def disk_of(store: Driver) -> SimulatedDisk:
    assert isinstance(store.disk, SimulatedDisk)
    return store.disk


def stored(store: Driver) -> list[bytes]:
    low, high = store.engine.offset_range("t", 0)
    found: list[bytes] = []
    while low < high:
        result = store.engine.read("t", 0, low, 100, 1 << 20)
        found += [body_of(record) for record in result.records]
        low = result.next_offset
    return found


@pytest.fixture
def store() -> Driver:
    driver = Driver()
    driver.topic("t")
    return driver


# ── a failing disk ──────────────────────────────────────────────────────────────────────


def test_after_a_failed_sync_nothing_is_acknowledged(store: Driver) -> None:
    """Not even when a later sync would succeed: the pages are marked clean by then."""
    pending = store.engine.send("gw", make_frame(1, 1, [b"x"]), store.now)
    disk_of(store).sync_errors = 1
    batch = store.engine.take_writes()
    assert batch is not None
    with pytest.raises(OSError, match="Input/output"):
        batch.execute(store.disk)
    heard = []
    pending.notify = heard.append
    assert pending in store.engine.fail(OSError(5, "EIO"))
    assert heard == [pending]
    with pytest.raises(StoreFailed):
        pending.result()
    with pytest.raises(StoreFailed):
        store.engine.send("gw", make_frame(1, 2, [b"y"]), store.now)
    with pytest.raises(StoreFailed):
        store.engine.confirm(batch)
    assert store.engine.take_writes() is None


def test_after_a_failed_sync_the_tail_is_written_anew(store: Driver) -> None:
    """The page cache shows what the disk does not have; the restart must not trust it."""
    store.send(b"safe")
    store.engine.send("gw", make_frame(1, 9, [b"cached"]), store.now)
    disk_of(store).sync_errors = 1
    batch = store.engine.take_writes()
    assert batch is not None
    with pytest.raises(OSError, match="Input/output"):
        batch.execute(store.disk)
    store.restart()  # the process dies, the machine stays up
    assert stored(store) == [b"safe", b"cached"]
    disk_of(store).lose_power("drop")
    store.restart()
    assert stored(store) == [b"safe", b"cached"]


def test_a_full_disk_is_a_failed_write(store: Driver) -> None:
    disk_of(store).write_errors = 1
    store.engine.send("gw", make_frame(1, 1, [b"x"]), store.now)
    batch = store.engine.take_writes()
    assert batch is not None
    with pytest.raises(OSError, match="No space"):
        batch.execute(store.disk)


# ── batches ─────────────────────────────────────────────────────────────────────────────


def test_much_that_waits_is_written_in_several_batches(store: Driver) -> None:
    """Each confirms what it holds, and no more."""
    bodies = [b"x" * 900_000, b"y" * 900_000, b"z" * 900_000, b"s"]
    waiting = [
        store.engine.send("gw", make_frame(1, number, [body]), store.now)
        for number, body in enumerate(bodies, 1)
    ]
    done = []
    while (batch := store.engine.take_writes()) is not None:
        batch.execute(store.disk)
        store.engine.confirm(batch)
        done.append((batch.block_count, [pending.is_done for pending in waiting].count(True)))
    assert done == [(2, 2), (2, 4)]
    assert store.engine.confirmed == store.engine.end
    store.restart()
    assert stored(store) == bodies


# ── torn and rotten ─────────────────────────────────────────────────────────────────────


def first_body(store: Driver, body: bytes) -> tuple[str, int]:
    """(file, offset) of *body*."""
    for name in store.disk.names():
        at = store.disk.read(name, 0, store.disk.size(name)).find(body)
        if at >= 0:
            return name, at
    raise AssertionError(body)


def test_a_torn_tail_is_set_aside(store: Driver) -> None:
    """Above the confirmed position a block that does not verify was never acknowledged."""
    store.send(b"safe")
    store.engine.send("gw", make_frame(1, 9, [b"torn-away"]), store.now)
    batch = store.engine.take_writes()
    assert batch is not None
    batch.execute(store.disk)
    disk_of(store).flip_bit(*first_body(store, b"torn-away"))
    store.restart()
    assert store.report.torn_bytes > 0
    assert store.report.rotten_records == 0
    assert stored(store) == [b"safe"]
    store.send(b"next")
    store.restart()
    assert stored(store) == [b"safe", b"next"]


def test_a_rotten_record_costs_that_record(store: Driver) -> None:
    group = store.open("g", [READ_A])
    store.send(b"one", b"rotten-body", b"three", keys=[A])
    store.send(b"four", keys=[A])
    disk_of(store).flip_bit(*first_body(store, b"rotten-body"))
    store.restart()
    assert store.report.rotten_records == 1
    assert stored(store) == [b"one", b"three", b"four"]
    assert store.bodies(store.take(group)) == [b"one", b"three", b"four"]
    assert store.engine.offset_range("t", 0) == (0, 4)
    (position,) = store.send(b"five")
    assert int.from_bytes(store.engine.record_at(position)[20:28], "big") == 4


def test_a_rotten_table_costs_that_block(store: Driver) -> None:
    """The scan goes on at the next valid block."""
    store.send(b"one")
    store.send(b"two-of-a-rotten-block")
    store.send(b"three")
    name, at = first_body(store, b"two-of-a-rotten-block")
    disk_of(store).flip_bit(name, at - 100)
    store.restart()
    assert store.report.rotten_bytes > 0
    assert stored(store) == [b"one", b"three"]
    store.send(b"four")
    store.restart()
    assert stored(store) == [b"one", b"three", b"four"]


def test_rot_that_appears_later_is_found_when_it_is_read() -> None:
    store = Driver(config=replace(SMALL, cache_bytes_max=0))
    store.topic("t")
    (one,) = store.send(b"one")
    (two,) = store.send(b"two-will-rot")
    disk_of(store).flip_bit(*first_body(store, b"two-will-rot"))
    assert body_of(store.engine.record_at(one)) == b"one"
    with pytest.raises(Refused, match="MESSAGE_NOT_FOUND"):
        store.engine.record_at(two)
    assert store.engine.counters.rotten_reads == 1
    assert stored(store) == [b"one"]


def test_a_block_in_a_body_is_no_block(store: Driver) -> None:
    """A client that sends the bytes of a block does not write history."""
    store.send(b"bait")
    name = segment_name(1)
    whole = store.disk.read(name, SEGMENT_HEADER_BYTES, store.engine.end)
    store.send(whole)
    before = store.report.epoch
    store.restart()
    assert stored(store) == [b"bait", whole]
    assert store.report.epoch == before + 1


def test_the_nonce_is_new_for_each_segment(store: Driver) -> None:
    for number in range(30):
        store.send(b"%d" % number + bytes(6000))
    nonces = set()
    names = [name for name in store.disk.names() if name.endswith(".seg")]
    for name in names:
        header = decode_segment_header(store.disk.read(name, 0, SEGMENT_HEADER_BYTES))
        assert header is not None
        nonces.add(header.nonce)
    assert len(nonces) == len(names) > 2


# ── clean ends, epochs, snapshots ───────────────────────────────────────────────────────


def test_a_clean_end_needs_no_rewrite(store: Driver) -> None:
    store.send(b"x")
    store.engine.close(store.now)
    store.drain()
    names = store.disk.names()
    store.restart()
    assert store.report.was_clean
    assert store.disk.names() == names
    assert store.engine.epoch == 2
    assert stored(store) == [b"x"]


def test_many_restarts_keep_everything() -> None:
    store = Driver()
    store.topic("t")
    sent = []
    for number in range(12):
        sent.append(b"%d" % number + bytes(2000))
        store.send(sent[-1])
        if number % 3 == 0:
            store.engine.close(store.now)
            store.drain()
        store.restart()
    assert stored(store) == sent
    assert store.engine.epoch == 13


def test_an_idle_store_says_how_far_it_is_durable(store: Driver) -> None:
    store.send(b"x")
    store.later(0.1)
    store.later(2)
    assert store.engine.has_writes
    store.drain()
    store.later(2)
    assert not store.engine.has_writes


def test_a_snapshot_beyond_the_end_of_the_log_is_refused(store: Driver) -> None:
    """An older log under a newer snapshot: the log is what counts."""
    store.send(b"kept")
    store.restart()
    old = {name: bytes(disk_of(store).files[name].cached) for name in store.disk.names()}
    store.send(b"lost")
    work = store.engine.background.snapshot_due(store.now, is_forced=True)
    assert work is not None
    work.execute(store.disk)
    for name, content in old.items():
        if name in disk_of(store).files:
            disk_of(store).files[name].cached[:] = content
    store.restart()
    assert store.report.snapshot_position == 0
    assert stored(store) == [b"kept"]


def test_a_snapshot_waits_until_what_it_covers_is_durable(store: Driver) -> None:
    store.engine.send("gw", make_frame(1, 1, [b"x"]), store.now)
    assert store.engine.background.snapshot_due(store.now, is_forced=True) is None
    store.drain()
    work = store.engine.background.snapshot_due(store.now)
    assert work is not None
    assert work.position <= store.engine.confirmed


def test_the_last_two_snapshots_are_kept(store: Driver) -> None:
    for number in range(4):
        store.send(b"%d" % number)
        work = store.engine.background.snapshot_due(store.now, is_forced=True)
        assert work is not None
        work.execute(store.disk)
    assert len([name for name in store.disk.names() if name.endswith(".snapshot")]) == 2
    newest = sorted(name for name in store.disk.names() if name.endswith(".snapshot"))[-1]
    disk_of(store).flip_bit(newest, 60)
    store.restart()
    assert 0 < store.report.snapshot_position < work.position
    assert stored(store) == [b"0", b"1", b"2", b"3"]


def test_segments_made_in_advance_are_used(store: Driver) -> None:
    assert store.engine.background.segment_wanted() is None, "hardly anything was written yet"
    store.send(bytes(9000))
    wanted = store.engine.background.segment_wanted()
    assert wanted is not None
    assert store.engine.background.segment_wanted() is None
    while not wanted.execute(store.disk):
        pass
    store.engine.background.segment_prepared(wanted)
    assert wanted.name in store.disk.names()
    for number in range(12):
        store.send(b"%d" % number + bytes(6000))
    assert wanted.name not in store.disk.names()
    assert store.engine.background.segment_wanted() is not None


# ── room ────────────────────────────────────────────────────────────────────────────────

TIGHT = replace(SMALL, log_bytes_max=5 * SMALL.segment_bytes, retention_s=3600)


def fill(store: Driver, count: int = 100, keys: list[bytes] | None = None) -> list[int]:
    """Codes of sends of 6 KB each."""
    codes = []
    for _ in range(count):
        store.frame += 1
        frame = make_frame(1, store.frame, [bytes(6000)], keys=keys or [])
        pending = store.engine.send("gw", frame, store.now)
        store.drain()
        refused = pending.result().refused
        codes.append(refused[0][0] if refused else int(Code.OK))
    return codes


def snapshot_twice(store: Driver) -> None:
    for _ in range(2):
        work = store.engine.background.snapshot_due(store.now, is_forced=True)
        assert work is not None
        work.execute(store.disk)
        store.engine.background.snapshot_written(work)
        store.engine.catalog.put_setting("kv", "a", b"b", store.now)
        store.drain()


def test_when_only_owed_is_left_sends_are_refused_and_acks_go_on() -> None:
    store = Driver(config=TIGHT)
    store.topic("t")
    group = store.open("g", [READ_A])
    codes = fill(store, keys=[A])
    assert codes[-1] == STORE_FULL
    assert store.engine.is_full
    assert codes.count(Code.OK) > 20
    snapshot_twice(store)
    store.later(2)
    assert store.engine.is_full
    while granted := store.take(group):
        assert set(store.ack(group, granted)) == {Code.OK}
    snapshot_twice(store)
    store.later(2)
    assert not store.engine.is_full
    assert fill(store, 1) == [Code.OK]


def test_a_small_log_is_snapshot_before_it_is_full() -> None:
    """Without two snapshots nothing of it could be deleted, and it would stay full for ever."""
    store = Driver(config=TIGHT)
    store.topic("t")
    made = 0
    while not store.engine.is_full:
        fill(store, 1)
        work = store.engine.background.snapshot_due(store.now)
        if work is not None:
            work.execute(store.disk)
            store.engine.background.snapshot_written(work)
            made += 1
    assert 2 <= made <= 4
    store.later(2)
    assert not store.engine.is_full


def test_what_is_kept_goes_when_its_time_has_passed() -> None:
    store = Driver(config=TIGHT)
    store.topic("t")
    fill(store, 25)
    snapshot_twice(store)
    store.later(2)
    assert store.engine.offset_range("t", 0)[0] == 0
    store.later(4000)
    store.drain()
    low, high = store.engine.offset_range("t", 0)
    assert 0 < low < high == 25
    assert store.engine.read("t", 0, 0, 10, 1 << 20).next_offset == low
    store.restart()
    assert store.engine.offset_range("t", 0) == (low, 25)
    assert len(stored(store)) == 25 - low


def test_a_disk_almost_full_refuses_sends(store: Driver) -> None:
    disk_of(store).free = 1000
    store.later(2)
    assert fill(store, 1) == [STORE_FULL]
    disk_of(store).free = 1 << 40
    store.later(2)
    assert fill(store, 1) == [Code.OK]


# ── a real disk ─────────────────────────────────────────────────────────────────────────


def test_the_same_on_a_real_disk(tmp_path: object) -> None:
    config = EngineConfig(segment_bytes=256 << 10, log_bytes_max=64 << 20)
    disk = RealDisk(f"{tmp_path}/data")
    store = Driver(disk, config)
    store.topic("t")
    group = store.open("g", [READ_A])
    sent = [b"%d" % number + bytes(5000) for number in range(100)]
    for body in sent:
        wanted = store.engine.background.segment_wanted()
        if wanted is not None:
            while not wanted.execute(disk):
                pass
            store.engine.background.segment_prepared(wanted)
        store.send(body, keys=[A])
    store.ack(group, store.take(group, 10))
    disk.close()
    again = Driver(RealDisk(f"{tmp_path}/data"), config)
    assert stored(again) == sent
    again.later(config.orphan_s + 1)
    assert len(again.take(again.engine.group_number("g"), 1000)) == 90
    assert isinstance(again.engine, Engine)
    again.disk.close()


def test_a_message_with_a_late_entry_is_kept_for_it() -> None:
    """The entry lies in a newer segment than the message that it points to."""
    store = Driver(config=replace(TIGHT, retention_s=1))
    store.topic("t")
    group = store.open("g", [READ_A])
    (target,) = store.send(b"old")
    fill(store, 15)
    store.engine.index(store.engine.epoch, [IndexItem(target, [A])], store.now)
    store.drain()
    for _ in range(3):
        fill(store, 5)
        snapshot_twice(store)
        store.later(5)
        store.drain()
    store.restart()
    (granted,) = store.take(group)
    assert store.bodies([granted]) == [b"old"]
    store.ack(group, [granted])
    for _ in range(4):  # its copy goes with the segment that it was moved to
        fill(store, 5)
        snapshot_twice(store)
        store.later(25)
        store.drain()
    with pytest.raises(Refused):
        store.engine.record_at(target)


def test_an_order_key_goes_on_when_the_segment_of_its_turn_is_gone() -> None:
    """The snapshot says who waits behind the entry; the entry went before the restart."""
    store = Driver(config=replace(TIGHT, retention_s=1))
    store.topic("t")
    group = store.open("g", [READ_A], is_fifo=True)
    store.send(b"first", keys=[A], order=7)
    fill(store, 12)
    store.send(b"second", keys=[A], order=7)
    (granted,) = store.take(group)
    fill(store, 12)
    snapshot_twice(store)
    store.ack(group, [granted])
    store.later(5)
    store.drain()
    assert store.engine.offset_range("t", 0)[0] > 0
    store.restart()
    assert store.bodies(store.take(group)) == [b"second"]


def test_a_position_inside_a_body_names_no_message(store: Driver) -> None:
    """Not even where the body looks like a record that is stored there."""
    forged = bytearray(make_record("t", b"forged"))
    start = make_record("t", bytes(8) + forged).index(forged)
    (first,), (second,) = store.send(bytes(8) + forged), store.send(bytes(8) + forged)
    inside = second + (second - first) + start
    forged[28:36] = inside.to_bytes(8, "big")  # its log position
    (outer,) = store.send(bytes(8) + forged)
    assert outer + start == inside
    for restarts in (False, True):
        if restarts:
            store.restart()
        assert body_of(store.engine.message_at(outer)) == bytes(8) + forged
        for position in (inside, outer + 1, outer - 1, -1, 1 << 62):
            with pytest.raises(Refused, match="no readable message"):
                store.engine.message_at(position)


def test_what_is_not_durable_cannot_be_asked_for(store: Driver) -> None:
    pending = store.engine.send("gw", make_frame(1, 99, [b"x"]), store.now)
    (position,) = pending.value.positions
    with pytest.raises(Refused):
        store.engine.message_at(position)
    store.drain()
    assert body_of(store.engine.message_at(position)) == b"x"


def test_a_chunk_that_comes_short_is_no_rot() -> None:
    """What was read ahead may be less than it should; the record itself is asked for then."""

    class ShortDisk(SimulatedDisk):
        is_short = False

        def read(self, name: str, offset: int, size: int) -> bytes:
            found = super().read(name, offset, size)
            return found[:100] if self.is_short and size > 1000 else found

    disk = ShortDisk()
    store = Driver(disk)
    store.topic("t")
    positions = store.send(*[b"%d" % number for number in range(20)])
    engine = store.restart()
    disk.is_short = True
    bodies = [body_of(engine.record_at(position)) for position in positions]
    assert bodies == [b"%d" % number for number in range(20)]
    assert stored(store) == bodies
    assert engine.counters.rotten_reads == 0
