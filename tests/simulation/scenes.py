"""
Faults by name: the few that chance meets rarely, each told in a few lines.

A scene raises when a promise is broken. ``caught_by`` names the safety measures (``mutations``)
without which it must.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

from protocols.clock import Now
from protocols.errors import Code
from protocols.remoting.private import ReadItem
from protocols.remoting.sending import decode_send_answer
from protocols.remoting.settling import AckItem, MarkItem
from store.answers import EngineConfig, Granted
from store.index.pages import index_name
from store.log.format import ENTRY, HEADER_COPY_AT, SEGMENT_HEADER_BYTES
from store.log.segments import segment_name
from tests.simulation.checks import Broken, expect
from tests.simulation.simulated_disk import PowerLost, SimulatedDisk
from tests.store.engine_kit import SMALL, Driver, body_of, filter_key, make_frame

A = filter_key("a")
READ_A = ReadItem(tag=1, key=A)
CONFIG = replace(SMALL, segment_bytes=16 << 10, log_bytes_max=160 << 10, cache_bytes_max=0)
SHORT = replace(CONFIG, retention_s=1)


class Scene(NamedTuple):
    run: Callable[[], None]
    caught_by: tuple[str, ...]


SCENES: Final[dict[str, Scene]] = {}


def scene(*caught_by: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Enter a function in the table; *caught_by*: names of mutations."""

    def enter(function: Callable[[], None]) -> Callable[[], None]:
        SCENES[function.__name__] = Scene(function, caught_by)
        return function

    return enter


class Stage(Driver):
    """A driver whose disk is the simulated one."""

    disk: SimulatedDisk

    def power_cut(self, mode: str = "drop") -> None:
        self.disk.lose_power(mode)
        self.restart()

    def write_without_sync(self) -> None:
        """What was appended reaches the page cache; the sync fails."""
        self.disk.sync_errors = 1
        batch = self.engine.take_writes()
        assert batch is not None
        try:
            batch.execute(self.disk)
        except OSError as error:
            self.engine.fail(error)
            return
        raise Broken("a failed sync was not told")

    def settle(self) -> None:
        """Long enough without work for the block that says how far the log is durable."""
        self.later(0.1)
        self.later(2)
        self.drain()

    def snapshot(self) -> None:
        work = self.engine.background.snapshot_due(self.now, is_forced=True)
        assert work is not None
        work.execute(self.disk)
        self.engine.background.snapshot_written(work)

    def stored(self) -> list[bytes]:
        low, high = self.engine.offset_range("t", 0)
        found: list[bytes] = []
        while low < high:
            result = self.engine.read("t", 0, low, 100, 1 << 20)
            found += [body_of(record) for record in result.records]
            low = result.next_offset
        return found

    def refused(self, frame: int, orders: list[int], topic: str = "t") -> set[int]:
        """Indexes of items that the store does not take."""
        wanted = make_frame(1, frame, [b"x"] * len(orders), orders=orders, topic=topic)
        pending = self.engine.send("gw", wanted, self.now)
        self.drain()
        return set(pending.result().refused)

    def let_segments_go(self) -> None:
        """Two snapshots past all there is, then retention looks."""
        for _ in range(2):
            self.send(bytes(2000))
            self.snapshot()
        self.later(5)
        self.drain()
        self.later(2)


def staged(config: EngineConfig = CONFIG) -> Stage:
    stage = Stage(SimulatedDisk(), config)
    stage.topic("t", 1)
    return stage


# ── the tail ────────────────────────────────────────────────────────────────────────────


@scene("the page cache is believed")
def failed_sync_then_the_same_cache_then_a_power_cut() -> None:
    """The restart reads bytes that the disk does not have, and builds on them."""
    stage = staged()
    stage.send(b"safe")
    stage.engine.send("gw", make_frame(1, 9, [b"cached"]), stage.now)
    stage.write_without_sync()
    stage.restart()
    expect("what the cache shows", stage.stored(), [b"safe", b"cached"])
    stage.power_cut()
    expect("after the power cut", stage.stored(), [b"safe", b"cached"])


@scene("a clean end is believed")
def a_clean_end_whose_own_sync_failed() -> None:
    """The closing block is in the cache only; the next start builds on it."""
    stage = staged()
    stage.send(b"safe")
    stage.settle()
    stage.engine.close(stage.now)
    stage.write_without_sync()
    stage.restart()
    stage.send(b"after")
    stage.power_cut()
    expect("after the power cut", stage.stored(), [b"safe", b"after"])
    expect("rot", stage.report.rotten_bytes, 0)


@scene("no CRC is looked at")
def a_recycled_segment_with_stale_blocks() -> None:
    """The file begins a new life and its first block is lost: older ones lie behind the header."""
    stage = staged(SHORT)

    def first_block_of_a_new_life(operation: str, name: str, data: bytes) -> None:
        is_first = int.from_bytes(data[:8], "big") == SEGMENT_HEADER_BYTES
        if operation == "write" and name.endswith(".seg") and is_first:
            old = stage.disk.read(name, SEGMENT_HEADER_BYTES, 4)
            if any(old):
                raise PowerLost

    for number in range(8):
        stage.send(b"%d" % number + bytes(2000))
    stage.let_segments_go()
    stage.drain()
    sent = stage.stored()
    stage.disk.before = first_block_of_a_new_life
    try:
        for number in range(60):
            stage.send(b"%d:" % number + bytes(3000))
            sent.append(b"%d:" % number + bytes(3000))
    except PowerLost:
        end = stage.engine.confirmed
        stage.disk.before = None
        stage.power_cut()
        expect("the log's end", stage.report.end, end)
        expect("messages", stage.stored(), sent)
        return
    raise Broken("no file was used again")


@scene("no CRC is looked at")
def a_block_inside_a_body_behind_a_rotten_header() -> None:
    """The scan looks for the next block and meets the bytes of one in a client's message."""
    stage = staged()
    stage.send(b"bait")
    whole = stage.disk.read(segment_name(1), SEGMENT_HEADER_BYTES, stage.engine.end)
    at = stage.engine.end
    stage.send(whole)
    stage.send(b"last")
    stage.disk.flip_bit(segment_name(1), SEGMENT_HEADER_BYTES + at + 20)
    stage.restart()
    expect("messages", stage.stored(), [b"bait", b"last"])
    expect("epoch", stage.engine.epoch, 2)


# ── rot ─────────────────────────────────────────────────────────────────────────────────


@scene("no CRC is looked at")
def rot_in_the_middle_of_a_block_of_a_thousand_records() -> None:
    """It costs that record; the others keep their offsets; nobody sees wrong bytes."""
    stage = staged(replace(CONFIG, segment_bytes=1 << 20, log_bytes_max=8 << 20))
    group = stage.open("g", [READ_A])
    bodies = [b"%04d" % number for number in range(1000)]
    stage.send(*bodies, keys=[A])
    stage.settle()
    position = stage.engine.entry_position("t", 0, 500)
    stage.disk.flip_bit(segment_name(1), SEGMENT_HEADER_BYTES + position + 89)
    stage.restart()
    wanted = [*bodies[:500], *bodies[501:]]
    expect("rotten records", stage.report.rotten_records, 1)
    expect("messages", stage.stored(), wanted)
    expect("offsets", stage.engine.offset_range("t", 0), (0, 1000))
    expect("deliveries", stage.bodies(stage.take(group, 2000)), wanted)


@scene("no CRC is looked at")
def one_flipped_bit_anywhere() -> None:
    """In header, table, record, index file or snapshot: at most one block is lost, and counted;
    what is delivered is what was sent."""
    stage = staged()
    sent = [b"%d:" % number + b"." * 700 for number in range(120)]
    for start in range(0, len(sent), 4):
        stage.send(*sent[start : start + 4])
        if start % 40 == 0:
            stage.snapshot()
    stage.settle()
    chance = random.Random(5)
    names = [name for name in stage.disk.names() if not name.endswith(".spare")]
    for _ in range(150):
        twin = Stage.__new__(Stage)
        twin.disk, twin.config, twin.now = stage.disk.fork(1), CONFIG, stage.now
        name = chance.choice(names)
        twin.disk.flip_bit(name, chance.randrange(twin.disk.size(name)), chance.randrange(8))
        twin.restart()
        found = twin.stored()
        if not set(found) <= set(sent):
            raise Broken(f"wrong bytes after a flip in {name}")
        if len(found) < len(sent) - 4 or found != [body for body in sent if body in set(found)]:
            raise Broken(f"{len(sent) - len(found)} messages lost by one bit in {name}")


@scene()
def the_index_of_the_oldest_segment_is_lost() -> None:
    """And its first header is rot. It is made anew; a group finds what it is owed there."""
    stage = staged()
    group = stage.open("g", [READ_A])
    stage.send(b"oldest", keys=[A])
    for number in range(40):
        stage.send(b"%d:" % number + bytes(2000))
    stage.snapshot()
    stage.settle()
    stage.disk.unlink(index_name(1))
    stage.disk.flip_bit(segment_name(1), 30)
    stage.power_cut("keep")
    expect("deliveries", stage.bodies(stage.take(group)), [b"oldest"])
    stage.disk.flip_bit(segment_name(1), HEADER_COPY_AT + 30)


@scene()
def a_sector_that_cannot_be_read() -> None:
    """The disk says EIO: that record is lost and counted, the reader goes on behind it."""
    stage = staged()
    stage.send(*[b"%d:" % number + bytes(300) for number in range(20)])
    bad = stage.engine.entry_position("t", 0, 7) + SEGMENT_HEADER_BYTES + 100
    read = stage.disk.read

    def failing(name: str, offset: int, size: int) -> bytes:
        if name.endswith(".seg") and offset <= bad < offset + size:
            raise OSError(5, "Input/output error")
        return read(name, offset, size)

    stage.disk.read = failing  # type: ignore[method-assign] # a fault
    found = stage.stored()
    expect("lost", 20 - len(found), 1)
    expect("counted", stage.engine.counters.rotten_reads, 1)


@scene()
def the_block_of_a_frame_rots_before_it_is_settled() -> None:
    """What is read back is verified: an answer is the true one, or none."""
    stage = staged()
    stage.send(b"zero")
    stage.send(b"one", b"two")
    at = stage.engine.entry_position("t", 0, 1) + SEGMENT_HEADER_BYTES
    stage.settle()
    stage.restart()
    stage.disk.flip_bit(segment_name(1), at - 2 * ENTRY.size + 36)  # its stored queue offset
    pending = stage.engine.gateways.settle("gw", 1, 2, stage.now)
    if pending.value.did_run:
        answer = decode_send_answer(pending.value.answer)
        expect("offsets", list(answer.offsets), [1, 2])


# ── what must not be forgotten, and what must not go ────────────────────────────────────


@scene()
def a_snapshot_newer_than_the_log() -> None:
    """The log is what counts, and positions once confirmed are never used again."""
    stage = staged()
    stage.send(b"kept")
    stage.restart()
    old = stage.disk.fork(1)
    stage.send(b"lost")
    stage.snapshot()
    snapshots = {name for name in stage.disk.names() if name.endswith(".snapshot")}
    for name in snapshots:
        old.create(name, 0)
        old.write(name, 0, [stage.disk.read(name, 0, stage.disk.size(name))])
    confirmed = stage.engine.confirmed
    stage.disk = old
    stage.restart()
    expect("messages", stage.stored(), [b"kept"])
    if stage.report.end < confirmed:
        raise Broken("positions are used twice")


@scene("deletions do not wait")
def acknowledged_and_deleted_but_not_yet_durable() -> None:
    """The last ack frees a segment; the power goes before the ack is on the disk."""
    stage = staged(SHORT)
    group = stage.open("g", [READ_A])
    stage.send(b"owed" + bytes(2000), keys=[A])
    for number in range(20):
        stage.send(b"%d" % number + bytes(2000))
    for _ in range(2):
        stage.snapshot()
        stage.send(bytes(2000))
    stage.later(0.1)
    (granted,) = stage.take(group)
    stage.drain()
    stage.snapshot()
    stage.now = stage.now._replace(
        monotonic=stage.now.monotonic + 9, wall_ms=stage.now.wall_ms + 9000
    )
    stage.engine.ack(stage.engine.epoch, [ack_of(group, granted)], stage.now)
    stage.engine.tick(stage.now)
    stage.keep_house()
    stage.power_cut()
    stage.later(stage.config.orphan_s + 1)
    expect("deliveries", [body[:4] for body in stage.bodies(stage.take(group))], [b"owed"])


@scene()
def a_full_log_with_a_backlog_that_only_acks_can_free() -> None:
    """Sends are refused and nothing is dropped; acks go on, also after a power cut; then it is
    free again."""
    stage = staged(SHORT)
    group = stage.open("g", [READ_A])
    sent: list[bytes] = []
    while any(stage.send(b"%d:" % len(sent) + bytes(3000), keys=[A])):
        sent.append(b"%d:" % len(sent) + bytes(3000))
        stage.snapshot()
    stage.later(60)
    stage.drain()
    stage.power_cut()
    expect("still refused", stage.send(bytes(3000), keys=[A]), [0])
    expect("deliveries", stage.bodies(granted := stage.take(group, 1000)), sent)
    expect("acks", set(stage.ack(group, granted)), {int(Code.OK)})
    for _ in range(2):
        stage.snapshot()
        stage.engine.catalog.put_setting("kv", "a", b"b", stage.now)
        stage.drain()
    for _ in range(3):
        stage.later(5)
        stage.drain()
    expect("taken again", [at > 0 for at in stage.send(bytes(3000))], [True])


@scene("frames are forgotten")
def a_frame_repeated_after_a_lost_answer() -> None:
    """Stored once, over a power cut as well; the answer is the old one."""
    stage = staged()
    positions = stage.send(b"one", b"two")
    stage.power_cut()
    pending = stage.engine.gateways.settle("gw", 1, 1, stage.now)
    expect("did run", pending.value.did_run, True)
    expect("answer", list(decode_send_answer(pending.value.answer).positions), positions)
    again = stage.engine.send("gw", make_frame(1, 1, [b"one", b"two"]), stage.now)
    expect("answer", list(again.value.positions), positions)
    expect("messages", stage.stored(), [b"one", b"two"])


@scene("refusals are forgotten")
def a_refused_item_of_an_order_key_then_a_later_one() -> None:
    """The later one would overtake; so it is refused too, until the refusal is acknowledged."""
    stage = staged()
    expect("refused", stage.refused(1, [5, 6], topic="nowhere"), {0, 1})
    expect("refused", stage.refused(2, [5, 7]), {0})
    stage.power_cut()
    expect("after a power cut", stage.refused(3, [5, 6, 7]), {0, 1})


@scene("marks are forgotten")
def a_packet_id_that_was_promised() -> None:
    """QoS 2: packet id and stage are durable before the packet goes out."""
    stage = staged()
    group = stage.open("s", [READ_A], is_inherited=True)
    stage.send(b"x", keys=[A])
    (granted,) = stage.take(group)
    item = MarkItem(group, granted.position, granted.grant, 77, 2)
    stage.engine.mark(stage.engine.epoch, [item], stage.now)
    stage.drain()
    stage.power_cut()
    (flight,) = stage.engine.group_state(group).in_flight
    expect("packet id and stage", (flight.packet_id, flight.stage), (77, 2))


@scene("returns are forgotten")
def a_delivery_that_came_back() -> None:
    """It is ready after the restart, and its attempt counts."""
    stage = staged()
    group = stage.open("g", [READ_A])
    stage.send(b"x", keys=[A])
    stage.take(group, holder=1)
    stage.engine.end_holder(1, stage.now)
    stage.drain()
    stage.power_cut()
    expect("attempts", [one.attempt for one in stage.take(group)], [2])


@scene()
def a_wall_clock_that_jumps() -> None:
    """By an hour, back and forth: nothing comes again before its time, nothing stays away."""
    stage = staged()
    group = stage.open("g", [READ_A])
    stage.send(b"x", keys=[A])
    (granted,) = stage.take(group, invisible_ms=10_000)
    for jump_ms in (3_600_000, -7_200_000, 3_600_000):
        stage.now = Now(stage.now.monotonic + 1, stage.now.wall_ms + jump_ms)
        stage.engine.tick(stage.now)
        expect("redelivered", stage.take(group), [])
        stage.send(b"y")
    positions = stage.engine.entry_position("t", 0, 3)
    if positions <= granted.position:
        raise Broken("positions went back with the clock")
    stage.now = Now(stage.now.monotonic + 10, stage.now.wall_ms)
    stage.engine.tick(stage.now)
    expect("redelivered", stage.bodies(stage.take(group)), [b"x"])


@scene("answers do not wait", "visible before durable")
def a_disk_so_slow_that_many_batches_wait() -> None:
    """Nothing is answered or seen before its own sync; one sync then answers all before it."""
    stage = staged()
    group = stage.open("g", [READ_A])
    out, answers = [], []
    for number in range(50):
        stage.frame += 1
        frame = make_frame(1, stage.frame, [b"%d" % number], keys=[A])
        answers.append(stage.engine.send("gw", frame, stage.now))
        if number % 10 == 9:
            out.append(stage.engine.take_writes())
    for number, batch in enumerate(out):
        expect("answered", sum(one.is_done for one in answers), 10 * number)
        expect("seen", len(stage.take(group)), 10 if number else 0)
        assert batch is not None
        batch.execute(stage.disk)
        stage.engine.confirm(batch)
    expect("answered", sum(one.is_done for one in answers), 50)


def ack_of(group: int, granted: Granted) -> AckItem:
    return AckItem(group, granted.position, granted.grant)
