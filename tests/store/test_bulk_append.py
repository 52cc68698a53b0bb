"""The numpy appender, that of lone messages and the plain one write and answer the same."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import store.lifecycle
import store.log.log
import store.log.recovery
import store.replay_bulk
from protocols.remoting import matrix
from protocols.remoting.sending import ITEM, NO_ONCE_KEY, SendSet, encode_send, encode_set
from protocols.remoting.sending import decode_send as decode
from store.answers import EngineConfig
from store.index.queues import Queue
from tests.store.engine_kit import Driver, filter_key, make_record

CONFIG = EngineConfig(segment_bytes=4 << 20, log_bytes_max=64 << 20, is_zero_filled=False)
IS_HERE = matrix.np is not None

pytestmark = pytest.mark.skipif(not IS_HERE, reason="numpy is not installed (extra speed)")


def same_random(size: int) -> bytes:
    """Log ids and nonces that two engines share."""
    return bytes(range(1, size + 1))


@contextmanager
def without_numpy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(matrix, "np", None)
        patch.setattr(store.replay_bulk, "np", None)
        yield


def random_frame(rng: random.Random, number: int, count: int) -> bytes:
    """Sets that alternate or come in runs, with none to three light queues, most with a topic."""
    set_count = rng.choice((1, 1, 2, 9))
    sets = [
        encode_set(
            SendSet(
                rng.choice((1, 1, 1, 0)) if n else 1,
                "t",
                rng.randrange(4),
                tuple(filter_key(f"f/{rng.randrange(5)}") for _ in range(rng.randrange(4) or 1)),
            )
        )
        for n in range(set_count)
    ]
    is_even = rng.random() < 0.5
    run, items, records = rng.choice((1, 7, 50)), [], []
    for index in range(count):
        body = bytes(40 if is_even else rng.randrange(200))
        record = bytearray(make_record("t", body, TAGS="a", TG_SUBJECT="x" * rng.choice((1, 1))))
        at = index // run % set_count
        items.append(ITEM.pack(len(record), at, rng.randrange(4), 1 + at, 0, NO_ONCE_KEY))
        records.append(bytes(record))
    return encode_send(1, number, number - 1, sets, items, records)


def run_frame(rng: random.Random, number: int) -> bytes:
    """A few long runs of records of one size; now and then one that another way is for."""
    sets, items, records = [], [], []
    size = rng.choice((0, 40, 300))
    for at in range(rng.randrange(1, 5)):
        keys = tuple(filter_key(f"f/{rng.randrange(3)}") for _ in range(rng.randrange(3)))
        is_primary = 1 if not keys else rng.randrange(2)
        sets.append(encode_set(SendSet(is_primary, "t", rng.randrange(4), keys)))
        count, flags = rng.randrange(60, 200), rng.randrange(4)
        length = size + (1 if rng.random() < 0.1 else 0)
        record = bytes(make_record("t", bytes(length), TAGS="a", TG_SUBJECT="x"))
        items += [ITEM.pack(len(record), at, flags, at, 0, NO_ONCE_KEY)] * count
        records += [record] * count
    if rng.random() < 0.1:
        items[50] = ITEM.pack(len(records[50]), 0, 2, 77, 0, NO_ONCE_KEY)
    return encode_send(1, number, number - 1, sets, items, records)


def contents(driver: Driver) -> list[object]:
    """What a store knows of its queues and entries."""
    engine = driver.engine
    queues = sorted(engine._core.queues, key=lambda queue: queue.number)
    entries = engine._core.entries
    columns = (entries.positions, entries.lengths, entries.crcs, entries.orders, entries.flags)
    return [*map(facts_of, queues), *[list(column) for column in columns]]


def facts_of(queue: Queue) -> tuple[object, ...]:
    return (queue.number, queue.first, queue.next, list(queue.entries))


def run(
    frames: list[bytes], *, is_short: bool = True
) -> tuple[list[bytes], list[object], list[object]]:
    """(blocks written, answers, contents); not *is_short*: a lone message goes the long way."""
    driver = Driver(config=CONFIG)
    driver.topic("t")
    written: list[bytes] = []
    answers: list[object] = []
    for number, body in enumerate(frames):
        if number % 2:  # a state record that goes into the same block
            driver.engine.gateways.fence("another", number, driver.now)
        frame = decode(body)
        frame.lone = frame.lone if is_short else None
        pending = driver.engine.send("gw", frame, driver.now)
        batch = driver.engine.take_writes()
        assert batch is not None
        written += [bytes(buffer) for part in batch.parts for buffer in part.buffers]
        batch.execute(driver.disk)
        driver.engine.confirm(batch)
        answer = pending.result()
        answers.append((list(answer.positions), list(answer.offsets), answer.refused))
    assert driver.engine.take_writes() is None
    facts = contents(driver)
    driver.restart()
    assert driver.report.torn_bytes == driver.report.rotten_records == 0
    assert contents(driver) == facts
    assert driver.engine.gateways.is_fenced("another", len(frames) - 1)
    return written, answers, facts


@pytest.mark.parametrize("seed", range(12))
def test_numpy_writes_what_the_plain_appender_writes(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (store.lifecycle, store.log.log, store.log.recovery):
        monkeypatch.setattr(module, "urandom", same_random)
    rng = random.Random(seed)
    sizes = [rng.choice((matrix.MATRIX_ITEMS_MIN, 200, 333)) for _ in range(4)]
    frames = [random_frame(rng, number, size) for number, size in enumerate(sizes, 1)]
    fast = run(frames)
    with without_numpy(monkeypatch):
        assert decode(frames[0]).matrix is None
        assert run(frames) == fast


@pytest.mark.parametrize("seed", range(8))
def test_runs_write_what_the_plain_appender_writes(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (store.lifecycle, store.log.log, store.log.recovery):
        monkeypatch.setattr(module, "urandom", same_random)
    rng = random.Random(seed)
    frames = [run_frame(rng, number) for number in range(1, 7)]
    assert any([decode(frame).runs is not None for frame in frames])
    fast = run(frames)
    with without_numpy(monkeypatch):
        assert decode(frames[0]).runs is None
        assert run(frames) == fast


def test_a_lone_message_is_written_as_in_company(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (store.lifecycle, store.log.log, store.log.recovery):
        monkeypatch.setattr(module, "urandom", same_random)
    rng = random.Random(5)
    frames = [random_frame(rng, number, 1) for number in range(1, 61)]
    assert all([decode(frame).lone is not None for frame in frames])
    assert run(frames) == run(frames, is_short=False)


def test_rot_in_a_big_block_costs_one_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """However the block is replayed."""
    driver = Driver(config=CONFIG)
    driver.topic("t")
    body = random_frame(random.Random(3), 1, 200)
    pending = driver.engine.send("gw", decode(body), driver.now)
    driver.drain()
    positions = list(pending.result().positions)
    for _ in range(2):  # the block of an idle store says that all before it was durable
        driver.later(5.0)
        driver.drain()
    segment = driver.engine._core.log.segments.last
    driver.disk.flip_bit(segment.name, segment.file_offset(positions[77]) + 90)
    left = [at for at in positions if at != positions[77]]
    driver.restart()
    assert driver.report.rotten_records == 1
    assert list(driver.engine._core.entries.positions) == left
    fast = contents(driver)
    with without_numpy(monkeypatch):
        driver.restart()
    assert contents(driver) == fast


def test_a_big_frame_with_bad_lengths_is_malformed() -> None:
    rng = random.Random(1)
    body = bytearray(random_frame(rng, 1, 200))
    assert decode(bytes(body)).matrix is not None
    body = bytearray(run_frame(rng, 1))
    assert decode(bytes(body)).runs is not None
    with pytest.raises(Exception, match="do not add up"):
        decode(bytes(body) + b"x")
