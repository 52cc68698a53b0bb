"""What engine tests share: records, frames, a clock to turn, and a driver without a thread."""

import struct
from collections.abc import Sequence

from protocols.canonical import QueueKind, queue_key
from protocols.clock import Now
from protocols.remoting.private import GroupOpen, ReadItem
from protocols.remoting.sending import (
    ITEM,
    NO_ONCE_KEY,
    ItemFlag,
    SendFrame,
    SendSet,
    decode_send,
    encode_send,
    encode_set,
)
from protocols.remoting.settling import AckItem
from store.answers import EngineConfig, Granted, TopicConfig
from store.disk import Disk
from store.engine import Engine
from tests.simulation.simulated_disk import SimulatedDisk

SMALL = EngineConfig(segment_bytes=64 << 10, log_bytes_max=4 << 20, is_zero_filled=False)
HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
FIXED = struct.Struct(">IIIIIQQIQ8sQ8sIQI")


def filter_key(name: str, tenant: str = "") -> bytes:
    return queue_key(tenant, QueueKind.FILTER, name)


def make_record(topic: str, body: bytes, **properties: str) -> bytes:
    """A message in RocketMQ's stored form, unpatched."""
    name = topic.encode()
    text = "".join(f"{key}\x01{value}\x02" for key, value in properties.items()).encode()
    tail = bytes((len(name),)) + name + struct.pack(">H", len(text)) + text
    size = FIXED.size + len(body) + len(tail)
    born = 1_700_000_000_000
    head = FIXED.pack(size, 0xDAA320A7, 0, 0, 0, 0, 0, 0, born, HOST, 0, HOST, 0, 0, len(body))
    return head + body + tail


def body_of(record: bytes | memoryview) -> bytes:
    size = struct.unpack_from(">I", record, 84)[0]
    return bytes(record[88 : 88 + size])


def make_frame(
    epoch: int,
    number: int,
    bodies: Sequence[bytes],
    *,
    keys: Sequence[bytes] = (),
    topic: str = "t",
    queue_id: int = 0,
    set_flags: int = 1,
    item_flags: int = 1,
    order: int = 0,
    orders: Sequence[int] = (),
    once_keys: Sequence[bytes] = (),
    expires: int = 0,
    answered: int = 0,
    **properties: str,
) -> SendFrame:
    """A SEND frame of one set, as the wire would bring it."""
    records = [make_record(topic, body, **properties) for body in bodies]
    items = []
    for index, record in enumerate(records):
        once_key = once_keys[index] if once_keys else NO_ONCE_KEY
        flags = item_flags | (ItemFlag.HAS_ONCE_KEY if once_keys else 0)
        key = orders[index] if orders else order
        items.append(ITEM.pack(len(record), 0, flags, key, expires, once_key))
    sets = [encode_set(SendSet(set_flags, topic, queue_id, tuple(keys)))]
    return decode_send(encode_send(epoch, number, answered, sets, items, records))


class Driver:
    """An engine, its disk and a clock that the test turns."""

    def __init__(self, disk: Disk | None = None, config: EngineConfig = SMALL) -> None:
        self.disk = disk if disk is not None else SimulatedDisk()
        self.config = config
        self.now = Now(100.0, 1_700_000_000_000)
        self.frame = 0
        self.engine = self._start()

    def _start(self) -> Engine:
        engine = Engine(self.disk, self.config)
        self.report = engine.recover(self.now)
        return engine

    def restart(self) -> Engine:
        """As after a kill -9: what was written is still in the page cache."""
        self.engine = self._start()
        return self.engine

    def later(self, seconds: float) -> None:
        """Turn the clock and tick."""
        monotonic, wall_ms = self.now
        self.now = Now(monotonic + seconds, wall_ms + int(seconds * 1000))
        self.engine.tick(self.now)
        is_wanted = self.engine._core.sealer.is_eager
        if self.seal() and is_wanted:  # retention waits for it
            self.drain()
            self.engine.tick(self.now)
        self.keep_house()

    def keep_house(self) -> None:
        """What the background thread does with files that were given up."""
        while (upkeep := self.engine.background.upkeep_due()) is not None:
            upkeep.execute(self.disk)
            self.engine.background.upkeep_done(upkeep)

    def seal(self) -> bool:
        """Index files for all sealed segments but the newest two; False: there was none to make."""
        is_any = False
        while (work := self.engine.background.seal_due()) is not None:
            while not work.gather():
                pass
            work.execute(self.disk)
            while not work.release():
                pass
            self.engine.background.seal_done()
            is_any = True
        return is_any

    def drain(self) -> None:
        """Make everything durable."""
        while (batch := self.engine.take_writes()) is not None:
            batch.execute(self.disk)
            self.engine.confirm(batch)
        self.keep_house()

    def topic(self, name: str = "t", queues: int = 4) -> None:
        self.engine.catalog.put_topic(TopicConfig(name, queues, queues), self.now)
        self.drain()

    def open(self, name: str, reads: Sequence[ReadItem], **facts: object) -> int:
        spec = GroupOpen(name=name, reads=list(reads), **facts)  # type: ignore[arg-type] # test data
        pending = self.engine.open_group(spec, self.now)
        self.drain()
        return pending.result().group

    def send(self, *bodies: bytes, **facts: object) -> list[int]:
        """Positions of durable messages."""
        self.frame += 1
        frame = make_frame(1, self.frame, bodies, **facts)  # type: ignore[arg-type] # test data
        pending = self.engine.send("gw", frame, self.now)
        self.drain()
        return list(pending.result().positions)

    def take(self, group: int, count: int = 32, **facts: object) -> list[Granted]:
        if "holder" not in facts and "invisible_ms" not in facts:
            facts["holder"] = 1
        return self.engine.take(group, count, self.now, **facts)  # type: ignore[arg-type] # as above

    def ack(
        self, group: int, granted: Sequence[Granted], action: int = 0, delay_ms: int = 0
    ) -> list[int]:
        """Codes, durable."""
        items = [AckItem(group, one.position, one.grant, action, delay_ms) for one in granted]
        pending = self.engine.ack(self.engine.epoch, items, self.now)
        self.drain()
        return [code for _, code in pending.result()]

    def bodies(self, granted: Sequence[Granted]) -> list[bytes]:
        return [body_of(self.engine.record_at(one.record_position)) for one in granted]
