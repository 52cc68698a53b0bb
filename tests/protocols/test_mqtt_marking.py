"""QoS 2 packets whose stage the store could not write down."""

import asyncio
from typing import cast

from protocols.canonical import ReceiptHandle
from protocols.mqtt.feed import Feed
from protocols.mqtt.marking import Marked, Marking
from protocols.mqtt.session import Flight, Stage

HANDLES = [
    ReceiptHandle(cluster="c", broker=broker, store_epoch=1, group=1, position=at, grant=1)
    for at, broker in enumerate(("a", "a", "b"))
]


class Store:
    """A feed whose stores may be away."""

    def __init__(self) -> None:
        self.away = {"a"}
        self.tried = asyncio.Event()
        self.forgotten: list[int] = []
        self.left: list[tuple[ReceiptHandle, int, int]] = []

    def mark(self, handle: ReceiptHandle, packet_id: int, stage: int) -> None:
        self.left.append((handle, packet_id, stage))

    def forget(self, handle: ReceiptHandle) -> None:
        self.forgotten.append(handle.position)

    async def mark_durably(self, marks: list[tuple[ReceiptHandle, int, int]]) -> bool:
        await asyncio.sleep(0)
        is_away = marks[0][0].broker in self.away
        if is_away:
            self.tried.set()
        return not is_away

    async def mark_or_forget(self, handle: ReceiptHandle, packet_id: int, stage: int) -> bool:
        return await self.mark_durably([(handle, packet_id, stage)])


class World:
    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.taken_back: list[int] = []
        self.is_sent = asyncio.Event()
        self.store = Store()
        self.marking = Marking("c", self._send, self.taken_back.append)

    def _send(self, packet: bytes) -> None:
        self.sent.append(packet)
        self.is_sent.set()

    def after(self, index: int, stage: int, packet: bytes) -> Flight:
        flight = Flight(None, HANDLES[index], 2, Stage.WAITING)
        feed = cast(Feed, self.store)
        self.marking.after(Marked(feed, HANDLES[index], flight, index + 1, stage, packet))
        return flight

    async def sent_count(self, count: int) -> list[bytes]:
        while len(self.sent) < count:
            self.is_sent.clear()
            await self.is_sent.wait()
        return self.sent


async def test_a_publish_without_its_mark_is_the_stores_again() -> None:
    """It is not sent; one of a store that is there is."""
    world = World()
    lost = world.after(0, Stage.SENT, b"lost")
    sent = world.after(2, Stage.SENT, b"sent")
    assert await world.sent_count(1) == [b"sent"]
    await world.store.tried.wait()
    await asyncio.sleep(0)
    assert world.taken_back == [1]
    assert (lost.stage, sent.stage) == (Stage.WAITING, Stage.SENT)
    await world.marking.close()


async def test_pubrels_wait_for_their_store_in_order() -> None:
    """Those of other stores do not wait for it; nothing is lost."""
    world = World()
    first = world.after(0, Stage.RECEIVED, b"first")
    await world.store.tried.wait()
    world.after(1, Stage.RECEIVED, b"second")
    world.after(2, Stage.RECEIVED, b"other")
    assert await world.sent_count(1) == [b"other"]
    world.store.away.clear()
    assert await world.sent_count(3) == [b"other", b"first", b"second"]
    assert first.stage == Stage.RECEIVED
    assert world.taken_back == []
    await world.marking.close()


async def test_a_pubrec_counts_though_its_client_goes_at_once() -> None:
    """PUBREC and DISCONNECT in one segment: the next connection gets PUBREL, not the publish."""
    world = World()
    world.after(2, Stage.RECEIVED, b"sent")
    assert await world.sent_count(1) == [b"sent"]
    world.after(0, Stage.RECEIVED, b"store away")
    await world.store.tried.wait()
    world.after(1, Stage.RECEIVED, b"behind it")
    world.after(2, Stage.RECEIVED, b"not begun")
    await world.marking.close()
    assert world.sent == [b"sent"]
    assert world.store.left == [(HANDLES[at], at + 1, Stage.RECEIVED) for at in (0, 1, 2)]


async def test_what_follows_a_publish_without_its_mark_follows_it_again() -> None:
    """What came before is sent; what came behind at the same store is not to overtake it."""
    world = World()
    gates = [asyncio.Event() for _ in range(3)]
    outcomes = [True, False, True]

    async def mark_or_forget(handle: ReceiptHandle, packet_id: int, stage: int) -> bool:
        await gates[packet_id - 1].wait()
        return outcomes[packet_id - 1]

    world.store.mark_or_forget = mark_or_forget  # type: ignore[method-assign]  # this test's
    feed = cast(Feed, world.store)
    for packet_id in (1, 2, 3):
        handle = HANDLES[0]._replace(position=packet_id)
        flight = Flight(None, handle, 2, Stage.WAITING)
        world.marking.after(Marked(feed, handle, flight, packet_id, Stage.SENT, b"%d" % packet_id))
        assert world.marking.behind(handle, b"%d, QoS 1" % packet_id)
    assert not world.marking.behind(HANDLES[2], b"of another store")
    gates[2].set()
    gates[1].set()
    for _ in range(10):
        await asyncio.sleep(0)
    assert (world.sent, world.taken_back) == ([], [])
    gates[0].set()
    assert await world.sent_count(4) == [b"1", b"1, QoS 1", b"2, QoS 1", b"3, QoS 1"]
    assert (world.taken_back, world.store.forgotten) == ([2, 3], [3])
    assert world.marking.publish_count == 0
    await world.marking.close()
