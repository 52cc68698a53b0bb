"""Queues with a message now and then: their rows of index files come from columns."""

from dataclasses import replace
from random import Random

import pytest

from protocols.remoting.private import ReadItem
from store.index import lagging
from store.index.lagging import HELD_MAX
from store.plain import PlainHead, PlainRun
from tests.store.engine_kit import SMALL, Driver, body_of, make_record
from tests.store.test_index_files import snapshot

pytest.importorskip("numpy")

TOPICS = 25
TOGETHER = 300
"""Messages of a block, over all queues: columns are for hundreds."""

CONFIG = replace(SMALL, segment_bytes=64 << 10, log_bytes_max=32 << 20)


class Store(Driver):
    """Many topics, and what each of their queues should hold."""

    def __init__(self, **facts: object) -> None:
        super().__init__(config=replace(CONFIG, **facts))  # type: ignore[arg-type] # config fields
        self.sent: dict[tuple[str, int], list[bytes]] = {}
        self.count = 0
        for number in range(TOPICS):
            self.topic(f"t{number}")
            for queue_id in range(4):
                self.sent[f"t{number}", queue_id] = []

    def spread(self, chance: Random) -> None:
        """One block over most queues."""
        runs = []
        for topic, queue_id in chance.choices(list(self.sent), k=TOGETHER):
            record = self.made(topic, queue_id)
            runs.append(PlainRun(PlainHead(topic, queue_id), [record], [len(record)], [0]))
        self.engine.append_plain(runs, self.now)
        self.drain()

    def pile(self, chance: Random) -> None:
        """Some to one queue, by a frame."""
        topic, queue_id = chance.choice(list(self.sent))
        bodies = [b"%d" % (self.count + at) for at in range(chance.choice((1, 9)))]
        self.count += len(bodies)
        self.sent[topic, queue_id] += bodies
        self.send(*bodies, topic=topic, queue_id=queue_id)

    def made(self, topic: str, queue_id: int) -> bytes:
        body = b"%d" % self.count
        self.count += 1
        self.sent[topic, queue_id].append(body)
        return make_record(topic, body, UNIQ_KEY=f"{self.count:032X}")

    def found(self, topic: str, queue_id: int, start: int = 0) -> list[bytes]:
        bodies: list[bytes] = []
        while True:
            result = self.engine.read(topic, queue_id, start + len(bodies), 7, 1 << 20)
            if not result.records:
                return bodies
            bodies += [body_of(record) for record in result.records]

    def check(self) -> None:
        for (topic, queue_id), bodies in self.sent.items():
            assert self.found(topic, queue_id) == bodies

    @property
    def lagging_count(self) -> int:
        return len(self.engine._core.lagging)


@pytest.mark.parametrize("seed", range(4))
def test_all_is_found_whatever_happens_in_between(seed: int) -> None:
    chance = Random(seed)
    store = Store()
    for _ in range(25):
        store.spread(chance)
        for _ in range(chance.choice((0, 0, 2))):
            store.pile(chance)
        if chance.random() < 0.5:
            store.seal()
        match chance.randrange(12):
            case 0:
                snapshot(store)
            case 1:
                store.restart()
            case 2:
                snapshot(store)
                store.spread(chance)
                store.seal()
                store.restart()
            case 3:
                topic, queue_id = chance.choice(list(store.sent))
                assert store.found(topic, queue_id) == store.sent[topic, queue_id]
    for _ in range(4):
        store.spread(chance)
    store.seal()
    assert store.lagging_count
    store.check()
    snapshot(store)
    store.restart()
    assert not store.lagging_count
    store.check()


def test_queues_hold_on_to_a_few_entries_only() -> None:
    chance = Random(5)
    store = Store()
    for _ in range(40):
        store.spread(chance)
        store.seal()
        queues = list(store.engine._core.queues)
        # what two hot segments and the last one hold comes on top
        assert max(len(queue.entries) for queue in queues) < HELD_MAX + 40
    assert min(queue.sealed for queue in queues) > 0
    store.check()


def test_segments_that_go_take_along_what_is_held() -> None:
    chance = Random(6)
    store = Store(retention_s=10)
    for _ in range(12):
        store.spread(chance)
    store.seal()
    assert store.lagging_count
    snapshot(store)
    store.spread(chance)
    snapshot(store)
    store.later(20)
    store.later(2)
    store.drain()
    for (topic, queue_id), bodies in store.sent.items():
        low, high = store.engine.offset_range(topic, queue_id)
        assert 0 < low <= high == len(bodies)
        assert store.found(topic, queue_id, low) == bodies[low:]
        assert store.engine.read(topic, queue_id, 0, 1, 1 << 20).next_offset == low
    store.restart()
    for (topic, queue_id), bodies in store.sent.items():
        low, high = store.engine.offset_range(topic, queue_id)
        assert store.found(topic, queue_id, low) == bodies[low:]


def test_what_a_group_owes_is_found_when_its_segment_goes() -> None:
    """A reader of one topic; its messages are all that stays of old segments."""
    chance = Random(7)
    store = Store(retention_s=10)
    group = store.open("g", [ReadItem(tag=1, topic="t3")], start="earliest")
    for _ in range(12):
        store.spread(chance)
    store.seal()
    snapshot(store)
    store.spread(chance)
    snapshot(store)
    for _ in range(40):
        store.later(5)
        store.drain()
    taken = store.take(group, 1000)
    wanted = [body for queue_id in range(4) for body in store.sent["t3", queue_id]]
    assert sorted(store.bodies(taken)) == sorted(wanted)
    assert len(store.engine._core.cold.remnants) > 3


def test_a_topic_that_ends_leaves_nothing_behind() -> None:
    chance = Random(8)
    store = Store(retention_s=10)
    for _ in range(6):
        store.spread(chance)
    store.seal()
    store.engine.catalog.delete_topic("t1", store.now)
    for queue_id in range(4):
        del store.sent["t1", queue_id]
    for _ in range(8):
        store.spread(chance)
        store.seal()
    store.check()
    for _ in range(2):
        snapshot(store)
        store.spread(chance)
    store.later(20)
    store.later(2)
    store.drain()
    known = {queue.number for queue in store.engine._core.queues}
    assert store.engine._core.lagging.sealed().keys() <= known


def test_a_store_without_numpy_takes_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing lags there; numpy is an extra."""
    monkeypatch.setattr(lagging, "np", None)
    snapshot(Driver())
