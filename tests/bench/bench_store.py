"""
The store's promises about size: a million light queues, a restart, a backlog, a catch-up read.

Run: ``python -m tests.bench.bench_store [case …] [--folder DIR]``; cases: ``append``, ``pop``,
``lights``, ``restart``, ``backlog``. The engine on a real disk with a driver that
writes, syncs, seals and keeps house as the server does, in one process; each case in a process of
its own, so that its memory is its own.
"""

import argparse
import gc
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from random import Random
from typing import Final

from protocols.canonical import QueueKind, queue_key
from protocols.clock import Now
from protocols.daemon.lifecycle import tune_memory
from protocols.remoting.private import GroupOpen, ReadItem
from protocols.remoting.sending import (
    ITEM,
    NO_ONCE_KEY,
    SendSet,
    decode_send,
    encode_send,
    encode_set,
)
from protocols.remoting.settling import AckItem, decode_acks, encode_acks
from store.answers import EngineConfig, TopicConfig
from store.disk import RealDisk
from store.engine import Engine, WriteBatch
from store.index.sealing import SealWork
from store.log.spares import PrepareSegment
from tests.store.engine_kit import make_record

CONFIG: Final = EngineConfig(log_bytes_max=64 << 30, disk_free_bytes_min=1 << 20)
QUEUES: Final = 4
PENDING_BYTES_MAX: Final = 32 << 20
"""More than that waits for the disk: the server would not read from gateways either."""


def resident_mb() -> float:
    """Anonymous memory of this process: file pages are the system's to take back."""
    with open("/proc/self/status", encoding="ascii") as file:
        for line in file:
            if line.startswith("RssAnon"):
                return int(line.split()[1]) / 1024
    return 0.0


class Store:
    """An engine and what the server does for it, without the network."""

    def __init__(self, folder: str, config: EngineConfig = CONFIG) -> None:
        self.disk = RealDisk(folder)
        self.engine = Engine(self.disk, config)
        self._writer = ThreadPoolExecutor(1)
        self._keeper = ThreadPoolExecutor(1)
        self._out: tuple[WriteBatch, Future[None]] | None = None
        self._making: tuple[Callable[[], None], Future[object]] | None = None
        started = time.perf_counter()
        self.report = self.engine.recover(self.now())
        self.recover_s = time.perf_counter() - started
        self._looked = 0.0

    @staticmethod
    def now() -> Now:
        return Now(time.monotonic(), int(time.time() * 1000))

    def topic(self, name: str) -> None:
        self.engine.catalog.put_topic(TopicConfig(name, QUEUES, QUEUES), self.now())
        self.drain()

    def turn(self) -> None:
        """End of a tick: what is durable is confirmed, what gathered goes to the writer."""
        if self._out is not None:
            is_behind = self.engine.pending_bytes > PENDING_BYTES_MAX
            if is_behind or self._out[1].done():
                self._confirm()
        if self._out is None:
            batch = self.engine.take_writes()
            if batch is not None:
                self._out = (batch, self._writer.submit(batch.execute, self.disk))
        self._keep()

    def _confirm(self) -> None:
        assert self._out is not None
        batch, future = self._out
        future.result()
        self._out = None
        self.engine.confirm(batch)
        self.engine.take_woken()

    def drain(self) -> None:
        """Make all that was handed in durable."""
        while self._out is not None or self.engine.has_writes:
            if self._out is not None:
                self._confirm()
            self.turn()

    def _keep(self) -> None:
        """One piece of background work at a time, as the server has it."""
        if self._making is not None:
            done, future = self._making
            if not future.done():
                return
            future.result()
            self._making = None
            done()
        engine, disk, run = self.engine, self.disk, self._keeper.submit
        if (spare := engine.background.segment_wanted()) is not None:
            self._making = (
                lambda: engine.background.segment_prepared(spare),
                run(_until_done, spare, disk),
            )
        elif (work := engine.background.seal_due()) is not None:
            while not work.gather():
                pass
            self._making = (lambda: _released(engine, work), run(work.execute, disk))
        elif (upkeep := engine.background.upkeep_due()) is not None:
            self._making = (
                lambda: engine.background.upkeep_done(upkeep),
                run(upkeep.execute, disk),
            )
        elif (snapshot := engine.background.snapshot_due(self.now())) is not None:
            self._making = (
                lambda: engine.background.snapshot_written(snapshot),
                run(snapshot.execute, disk),
            )
        elif time.monotonic() - self._looked > 1:
            self._looked = time.monotonic()
            engine.tick(self.now())

    def settle(self) -> None:
        """Until no work is left."""
        self.drain()
        self._looked = 0.0
        self._keep()
        while self._making is not None:
            self._making[1].result()
            self.drain()
            self._keep()

    def close(self, *, is_clean: bool = True) -> None:
        if is_clean:
            self.settle()
            self.engine.close(self.now())
        self.drain()
        self._writer.shutdown()
        self._keeper.shutdown()
        self.disk.close()


def _until_done(spare: PrepareSegment, disk: RealDisk) -> None:
    while not spare.execute(disk):
        pass


def _released(engine: Engine, work: SealWork) -> None:
    while not work.release():
        pass
    engine.background.seal_done()


def frame(number: int, record: bytes, count: int, sets: list[SendSet] | None = None) -> bytes:
    """A SEND frame of *count* messages over the topic's queues."""
    chosen = sets or [SendSet(1, "bench", queue, ()) for queue in range(QUEUES)]
    heads = [encode_set(one) for one in chosen]
    items = [
        ITEM.pack(len(record), at % len(chosen), 1, 1 + at % 8, 0, NO_ONCE_KEY)
        for at in range(count)
    ]
    return encode_send(1, number, number - 1, heads, items, [record] * count)


# ── append, pop ─────────────────────────────────────────────────────────────────────────


def bench_append(folder: str) -> None:
    """Batched and fsynced: each commit is one write that is durable when it returns."""
    for size, count in ((256, 1024), (64, 2048)):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            store = Store(place)
            store.topic("bench")
            record = make_record("bench", bytes(size))
            bodies = [frame(number, record, count) for number in range(1, 401)]
            gc.collect()
            gc.freeze()
            started = time.perf_counter()
            spent = time.process_time()
            for encoded in bodies:
                store.engine.send("gw", decode_send(encoded), store.now())
                store.turn()
            store.drain()
            elapsed = time.perf_counter() - started
            spent = time.process_time() - spent
            gc.unfreeze()
            total = count * len(bodies)
            print(
                f"append {size} B bodies ({len(record)} B records), frames of {count}: "
                f"{total / elapsed:,.0f} msg/s, CPU {spent / total * 1e6:.2f} us each, "
                f"{total // store.engine.counters.syncs} messages a sync"
            )
            store.close(is_clean=False)


def bench_pop(folder: str) -> None:
    """Grants are logged, acks awaited: each is durable before it counts. What makes the bodies of
    the acks is the client, and is not counted."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        store = Store(place)
        store.topic("bench")
        key = queue_key("", QueueKind.FILTER, "bench")
        opened = store.engine.open_group(
            GroupOpen(name="g", reads=[ReadItem(tag=1, key=key)]), store.now()
        )
        store.drain()
        group = opened.result().group
        record = make_record("bench", bytes(256))
        sets = [SendSet(1, "bench", queue, (key,)) for queue in range(QUEUES)]
        for number in range(1, 401):
            store.engine.send("gw", decode_send(frame(number, record, 1024, sets)), store.now())
            store.turn()
        store.drain()
        gc.collect()
        gc.freeze()
        total, client_s, client_cpu_s = 0, 0.0, 0.0
        started, spent = time.perf_counter(), time.process_time()
        while granted := store.engine.take(group, 32, store.now(), invisible_ms=60_000):
            total += len(granted)
            began, began_cpu = time.perf_counter(), time.thread_time()
            items = [AckItem(group, one.position, one.grant) for one in granted]
            body = encode_acks(store.engine.epoch, items)
            client_s += time.perf_counter() - began
            client_cpu_s += time.thread_time() - began_cpu
            store.engine.ack(*decode_acks(body), store.now())
            if total % 1024 == 0:
                store.turn()
        store.drain()
        elapsed = time.perf_counter() - started - client_s
        spent = time.process_time() - spent - client_cpu_s
        gc.unfreeze()
        print(
            f"pop 32 + ack 32 (from the wire), durable: {total / elapsed:,.0f} msg/s, "
            f"CPU {spent / total * 1e6:.2f} us each"
        )
        store.close(is_clean=False)


# ── a million light queues ──────────────────────────────────────────────────────────────

LIGHTS: Final = 1_000_000
LIGHTS_PER_FRAME: Final = 500


def light_key(number: int) -> bytes:
    return queue_key("", QueueKind.FILTER, f"device/{number}")


def send_to_lights(store: Store, number: int, lights: list[int]) -> None:
    sets = [SendSet(1, "bench", at % QUEUES, (light_key(at),)) for at in lights]
    body = frame(number, make_record("bench", bytes(64)), len(sets), sets)
    store.engine.send("gw", decode_send(body), store.now())
    store.turn()


def bench_lights(folder: str) -> None:
    """Each queue comes into being by its first message; then a restart; then they are used."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        run_apart("lights_fill", place)
        run_apart("lights_use", place)


def lights_fill(folder: str) -> None:
    store = Store(folder)
    store.topic("bench")
    empty_mb = resident_mb()
    started = time.perf_counter()
    for number, first in enumerate(range(0, LIGHTS, LIGHTS_PER_FRAME), 1):
        send_to_lights(store, number, list(range(first, first + LIGHTS_PER_FRAME)))
        if (first + LIGHTS_PER_FRAME) % (LIGHTS // 5) == 0:
            elapsed = time.perf_counter() - started
            print(
                f"lights: {first + LIGHTS_PER_FRAME:9,} made by a first message, "
                f"{(first + LIGHTS_PER_FRAME) / elapsed:,.0f}/s, {resident_mb() - empty_mb:.0f} MB"
            )
    store.settle()
    gc.collect()
    print(f"lights: at rest {resident_mb() - empty_mb:.0f} MB")
    store.close()


def lights_use(folder: str) -> None:
    empty_mb = resident_mb()
    store = Store(folder)
    gc.collect()
    print(f"lights: restart in {store.recover_s:.2f} s, {resident_mb() - empty_mb:.0f} MB")
    random = Random(1)
    chosen = [random.randrange(LIGHTS) for _ in range(100_000)]
    started = time.perf_counter()
    for number, first in enumerate(range(0, len(chosen), LIGHTS_PER_FRAME), 3000):
        send_to_lights(store, number, chosen[first : first + LIGHTS_PER_FRAME])
    store.drain()
    elapsed = time.perf_counter() - started
    print(f"lights: 100,000 sends to random ones of them, {100_000 / elapsed:,.0f}/s")
    started = time.perf_counter()
    for at in chosen[:2000]:
        result = store.engine.read_light(light_key(at), 0, 10, 1 << 20)
        assert result.records, at
    elapsed = time.perf_counter() - started
    print(
        f"lights: reading random ones from the beginning, {2000 / elapsed:,.0f}/s, "
        f"{resident_mb() - empty_mb:.0f} MB"
    )
    store.close()


# ── restart ─────────────────────────────────────────────────────────────────────────────

RESTART_BYTES: Final = 1 << 30


def bench_restart(folder: str) -> None:
    """1 GiB of 1 KiB messages with two light queues each, killed without a goodbye."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        run_apart("restart_fill", place)
        run_apart("restart_read", place)


def restart_fill(folder: str) -> None:
    store = Store(folder)
    store.topic("bench")
    record = make_record("bench", bytes(1024))
    keys = [queue_key("", QueueKind.FILTER, name) for name in ("a", "b")]
    sets = [SendSet(1, "bench", queue, tuple(keys)) for queue in range(QUEUES)]
    number = 0
    while store.engine.end < RESTART_BYTES:
        number += 1
        store.engine.send("gw", decode_send(frame(number, record, 512, sets)), store.now())
        store.turn()
    store.close(is_clean=False)


def restart_read(folder: str) -> None:
    store = Store(folder)
    report = store.report
    print(
        f"restart: {report.end / (1 << 30):.2f} GiB, {report.record_count:,} records, of which "
        f"{(report.end - report.snapshot_position) / (1 << 20):.0f} MiB behind the snapshot: "
        f"{store.recover_s:.2f} s"
    )
    store.close(is_clean=False)


# ── a backlog ───────────────────────────────────────────────────────────────────────────

BACKLOG: Final = 10_000_000


def bench_backlog(folder: str) -> None:
    """Nobody consumes; a group that owes all of them stands at the beginning."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        store = Store(place)
        store.topic("bench")
        key = queue_key("", QueueKind.FILTER, "bench")
        store.engine.open_group(GroupOpen(name="g", reads=[ReadItem(tag=1, key=key)]), store.now())
        store.drain()
        record = make_record("bench", bytes(64))
        sets = [SendSet(1, "bench", queue, (key,)) for queue in range(QUEUES)]
        number, count = 0, 1000
        step = BACKLOG // 10
        for sent in range(step, BACKLOG + 1, step):
            turns: list[float] = []
            started = time.perf_counter()
            for _ in range(step // count):
                number += 1
                body = frame(number, record, count, sets)
                began = time.perf_counter()
                store.engine.send("gw", decode_send(body), store.now())
                store.turn()
                turns.append(time.perf_counter() - began)
            elapsed = time.perf_counter() - started
            turns.sort()
            print(
                f"backlog: {sent:10,} messages, {step / elapsed:9,.0f}/s, a frame of {count} takes "
                f"{turns[len(turns) // 2] * 1e3:.2f} ms, 99 % {turns[-len(turns) // 100] * 1e3:.2f}"
                f" ms, {resident_mb():.0f} MB"
            )
        store.close(is_clean=False)


# ── choice ──────────────────────────────────────────────────────────────────────────────

CASES: Final[dict[str, Callable[[str], None]]] = {
    "append": bench_append,
    "pop": bench_pop,
    "lights": bench_lights,
    "restart": bench_restart,
    "backlog": bench_backlog,
}
PARTS: Final[dict[str, Callable[[str], None]]] = {
    "lights_fill": lights_fill,
    "lights_use": lights_use,
    "restart_fill": restart_fill,
    "restart_read": restart_read,
}


def run_apart(case: str, folder: str) -> None:
    """In a process of its own, so that its memory is its own."""
    program = [sys.executable, "-m", "tests.bench.bench_store", case, "--folder", folder]
    subprocess.run(program, check=True)


def main() -> None:
    tune_memory()  # as the daemon does
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; all if none is named")
    parser.add_argument("--folder", default=None, help="on the disk that is measured")
    options = parser.parse_args()
    chosen = options.cases or list(CASES)
    known = CASES | PARTS
    folder = options.folder or tempfile.gettempdir()
    if len(chosen) == 1:
        known[chosen[0]](folder)
        return
    for case in chosen:
        run_apart(case, folder)


if __name__ == "__main__":
    main()
