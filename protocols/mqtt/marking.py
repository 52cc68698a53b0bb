"""
QoS 2 packets that wait until the store has their packet id and stage on disk.

A store that goes away takes the answer with it. A PUBLISH that has not left is then taken back:
the store delivers it anew, in its order, when it is there again. A PUBREL goes to a client that
has its PUBLISH: it is kept, and its mark tried again until the store has it.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from protocols.canonical import ReceiptHandle
from protocols.mqtt.feed import Feed
from protocols.mqtt.session import Flight, Stage
from protocols.tasks import Tasks

AGAIN_S_MIN: Final = 0.1
AGAIN_S_MAX: Final = 2.0
"""Between attempts to write marks at a store that is away; the connection's end ends them."""


class Marked(NamedTuple):
    """One packet, and what the store is to know before it goes."""

    feed: Feed
    handle: ReceiptHandle
    flight: Flight
    packet_id: int
    stage: int
    packet: bytes


class _Publish:
    """A PUBLISH that waits for its mark, and for those before it."""

    __slots__ = ("is_done", "is_marked", "is_overtaken", "item")

    def __init__(self, item: Marked) -> None:
        self.item = item
        self.is_done = False
        self.is_marked = False
        self.is_overtaken = False
        """One before it was taken back: so is this one, to come behind it again."""


class Marking:
    """Of one session's outbox."""

    def __init__(
        self, name: str, send: Callable[[bytes], None], taken_back: Callable[[int], None]
    ) -> None:
        self._send = send
        self._taken_back = taken_back
        self._tasks = Tasks(f"mqtt-marking {name}")
        self._publishes: dict[tuple[str, str], deque[_Publish | bytes]] = {}
        """Store → PUBLISHes without a mark, in order, and what waits behind them."""

        self.publish_count = 0
        """PUBLISHes without a mark."""

        self._waiting: dict[tuple[str, str], deque[Marked]] = {}
        """Store → PUBRELs whose marks it does not have, in order."""

        self._releases: dict[int, Marked] = {}
        """Packet id → a PUBREL that has not left."""

    def after(self, item: Marked) -> None:
        """Send once the store has it on disk."""
        if item.stage == Stage.SENT:
            publish = _Publish(item)
            self.publish_count += 1
            self._publishes.setdefault(_store(item), deque()).append(publish)
            self._tasks.start(self._publish(publish), name=f"publish {item.packet_id}")
            return
        self._releases[item.packet_id] = item
        if (waiting := self._waiting.get(_store(item))) is not None:
            waiting.append(item)
        else:
            self._tasks.start(self._release(item), name=f"release {item.packet_id}")

    def behind(self, handle: ReceiptHandle, packet: bytes) -> bool:
        """Send a PUBLISH of QoS 1 after those of its store that wait; False: none does."""
        publishes = self._publishes.get((handle.cluster, handle.broker))
        if publishes:
            publishes.append(packet)
        return bool(publishes)

    async def close(self) -> None:
        """
        End what waits; marks of PUBRELs that have not left are left to the feeds.

        A client may send PUBREC and go at once: on its return it gets PUBREL and not the publish.
        """
        await self._tasks.close()
        for item in self._releases.values():
            item.feed.mark(item.handle, item.packet_id, item.stage)
        self._releases.clear()
        self._send = self._taken_back = _nobody  # who knows us, too: neither is to be garbage

    async def _publish(self, publish: _Publish) -> None:
        item = publish.item
        publish.is_marked = await item.feed.mark_or_forget(
            item.handle, item.packet_id, Stage.SENT_QOS2
        )
        publish.is_done = True
        self._pass(self._publishes[_store(item)])

    def _pass(self, publishes: deque[_Publish | bytes]) -> None:
        """Send what is marked, up to the first one that is not known to be."""
        while publishes:
            first = publishes[0]
            if isinstance(first, bytes):
                publishes.popleft()
                self._send(first)
                continue
            if not first.is_done:
                break
            publishes.popleft()
            self.publish_count -= 1
            if first.is_marked and not first.is_overtaken:
                self._marked(first.item)
                continue
            if first.is_marked:
                first.item.feed.forget(first.item.handle)
            for publish in publishes:
                if isinstance(publish, _Publish):
                    publish.is_overtaken = True
            self._taken_back(first.item.packet_id)

    async def _release(self, item: Marked) -> None:
        if await self._mark(item):
            self._marked(item)
            return
        key = _store(item)
        if (waiting := self._waiting.get(key)) is not None:
            waiting.append(item)
            return
        self._waiting[key] = deque((item,))
        await self._again(key)

    async def _again(self, key: tuple[str, str]) -> None:
        waiting, delay_s = self._waiting[key], AGAIN_S_MIN
        while waiting:
            await asyncio.sleep(delay_s)
            delay_s = min(AGAIN_S_MAX, 2 * delay_s)
            while waiting and await self._mark(waiting[0]):
                self._marked(waiting.popleft())
                delay_s = AGAIN_S_MIN
        del self._waiting[key]

    async def _mark(self, item: Marked) -> bool:
        return await item.feed.mark_durably([(item.handle, item.packet_id, item.stage)])

    def _marked(self, item: Marked) -> None:
        item.flight.stage = item.stage
        self._releases.pop(item.packet_id, None)
        self._send(item.packet)


def _nobody(_: object) -> None:
    """The outbox has closed."""


def _store(item: Marked) -> tuple[str, str]:
    return item.handle.cluster, item.handle.broker
