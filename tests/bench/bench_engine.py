"""
Micro-bench of the engine: CPU µs per message, no disk, best of five.

Run: ``python -m tests.bench.bench_engine``. Send frames of 1 to 1024 items with 0, 1 and 3 light
queues per message (records of about 495 B, as measured in the format's prototype); pop 32 and
ack 32 of a group; recovery of what was written.
"""

import argparse
import gc
import os
import struct
import tempfile
import time
from collections.abc import Callable

from protocols.canonical import QueueKind, queue_key
from protocols.clock import Now
from protocols.remoting.private import GroupOpen, ReadItem
from protocols.remoting.sending import (
    ITEM,
    NO_ONCE_KEY,
    SendSet,
    decode_send,
    encode_send,
    encode_set,
)
from protocols.remoting.settling import AckItem
from store.answers import EngineConfig, TopicConfig
from store.disk import RealDisk
from store.engine import Engine
from tests.store.engine_kit import make_record

CONFIG = EngineConfig(segment_bytes=64 << 20, is_zero_filled=False, log_bytes_max=64 << 30)
NOW = Now(1.0, 1_700_000_000_000)
RECORD = make_record(
    "bench", bytes(256), TG_SUBJECT="plant/3/line/7/dev0042/temp", TAGS="mqtt_proxy",
    UNIQ_KEY="7F0000010C3D1B2A3F4C5D6E00000000", TG_CLIENT="device-0042",
)  # fmt: skip


def key(number: int) -> bytes:
    return queue_key("", QueueKind.FILTER, f"plant/{number}")


def frame_body(count: int, lights: int, number: int) -> bytes:
    """Eight heads, as many as devices that share a tick might have."""
    sets = [
        encode_set(SendSet(1, "bench", n % 4, tuple(key(n + 8 * k) for k in range(lights))))
        for n in range(8)
    ]
    items = [ITEM.pack(len(RECORD), n % 8, 1, 1 + n % 8, 0, NO_ONCE_KEY) for n in range(count)]
    return encode_send(1, number, number - 1, sets, items, [RECORD] * count)


class NullBatches:
    """Confirms without writing: what is measured is the engine alone."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def drain(self) -> None:
        while (batch := self._engine.take_writes()) is not None:
            self._engine.confirm(batch)


def best(run: Callable[[], int], rounds: int = 5) -> float:
    """µs per item."""
    times = []
    for _ in range(rounds):
        gc.collect()
        gc.disable()
        started = time.process_time()
        count = run()
        times.append((time.process_time() - started) / count)
        gc.enable()
    return min(times) * 1e6


def open_engine(folder: str) -> Engine:
    disk = RealDisk(folder)
    engine = Engine(disk, CONFIG)
    engine.recover(NOW)
    engine.catalog.put_topic(TopicConfig("bench"), NOW)
    batch = engine.take_writes()
    assert batch is not None
    batch.execute(disk)
    engine.confirm(batch)
    return engine


def bench_send(count: int, lights: int) -> tuple[float, float]:
    """(engine alone, with decode_send)."""
    with tempfile.TemporaryDirectory() as folder:
        engine = open_engine(folder)
        batches = NullBatches(engine)
        number = 0

        def run(*, decodes: bool) -> int:
            nonlocal number
            frames = max(1, 8192 // count)
            bodies = [frame_body(count, lights, number + n + 1) for n in range(frames)]
            ready = [decode_send(body) for body in bodies]
            spent = time.process_time()
            for at in range(frames):
                engine.send("gw", decode_send(bodies[at]) if decodes else ready[at], NOW)
                if at % 4 == 3:
                    batches.drain()
            nonlocal elapsed
            elapsed = min(elapsed, (time.process_time() - spent) / (frames * count))
            number += frames
            return 1

        elapsed = 1.0
        best(lambda: run(decodes=False))
        alone, elapsed = elapsed, 1.0
        best(lambda: run(decodes=True))
        return alone * 1e6, elapsed * 1e6


def bench_pop(reads: int) -> tuple[float, float]:
    """(take 32, ack 32) in µs per message."""
    with tempfile.TemporaryDirectory() as folder:
        engine = open_engine(folder)
        batches = NullBatches(engine)
        items = [ReadItem(tag=n, key=key(n)) for n in range(reads)]
        opened = engine.open_group(GroupOpen(name="g", reads=items), NOW)
        batches.drain()
        group = opened.result().group
        takes, acks = [], []
        for number in range(1, 17):
            engine.send("gw", decode_send(frame_body(1024, 1, number)), NOW)
        batches.drain()
        while True:
            started = time.process_time()
            granted = engine.take(group, 32, NOW, holder=1)
            middle = time.process_time()
            if len(granted) < 32:
                break
            answers = [AckItem(group, one.position, one.grant) for one in granted]
            ready = time.process_time()
            engine.ack(engine.epoch, answers, NOW)
            acks.append(time.process_time() - ready)
            takes.append(middle - started)
            batches.drain()
        middle_of = len(takes) // 2
        return sorted(takes)[middle_of] / 32 * 1e6, sorted(acks)[middle_of] / 32 * 1e6


def bench_recovery(lights: int) -> tuple[float, float]:
    """(seconds per GiB, µs per record)."""
    with tempfile.TemporaryDirectory() as folder:
        engine = open_engine(folder)
        disk = RealDisk(folder)
        for number in range(1, 257):
            engine.send("gw", decode_send(frame_body(512, lights, number)), NOW)
            if (batch := engine.take_writes()) is not None:
                batch.execute(disk)
                engine.confirm(batch)
        size, records = engine.end, engine.counters.records
        again = Engine(RealDisk(folder), CONFIG)
        started = time.process_time()
        again.recover(NOW)
        elapsed = time.process_time() - started
        return elapsed / size * (1 << 30), elapsed / records * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_engine", description=__doc__)
    parser.parse_args()
    print(f"record {len(RECORD)} B, pid {os.getpid()}, struct {struct.calcsize('P') * 8} bit")
    for lights in (0, 1, 3):
        row = [bench_send(count, lights) for count in (1, 16, 256, 1024)]
        text = "  ".join(f"{alone:5.2f} ({whole:5.2f})" for alone, whole in row)
        print(f"send, {lights} light queues, frames of 1/16/256/1024: {text} us (with decode)")
    for reads in (1, 3):
        take, ack = bench_pop(reads)
        print(f"pop 32 {take:.2f} us, ack 32 {ack:.2f} us per message, read set of {reads}")
    for lights in (0, 1, 3):
        seconds, micros = bench_recovery(lights)
        print(f"recovery, {lights} light queues: {seconds:.2f} s/GiB, {micros:.2f} us per record")


if __name__ == "__main__":
    main()
