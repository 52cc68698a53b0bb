"""What comes over a bridge is stored in its order, as many at a time as came."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from gateway import bridges
from gateway.bridges import Bridge, Incoming
from gateway.config import BridgeConfig
from tests.support.core import turns
from tests.support.fake_services import FakeServices


class FakeLink:
    """The other side; the test says what it publishes."""

    async def open(self, receive: Callable[[Incoming], Awaitable[None]]) -> None:
        self.receive = receive

    def takes(self, topic: str) -> bool:
        return True

    async def publish(self, topic: str, body: bytes, qos: int, retain: bool) -> None:
        raise AssertionError

    async def lost(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None: ...


async def test_what_comes_in_is_stored_by_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """What our stores refuse for now comes again before what came later; what is given up, not."""
    monkeypatch.setattr(bridges, "STORE_AGAIN_S", 0)
    services, link = FakeServices(), FakeLink()
    services.denied.add(("publish", "no"))
    bridge = Bridge("plant", BridgeConfig(), services, lambda: link)
    bridge.start()
    await turns(20)

    def arrive(*topics: str) -> list[asyncio.Task[None]]:
        return [
            asyncio.ensure_future(link.receive(Incoming(topic, topic.encode(), 1, False)))
            for topic in topics
        ]

    services.pipeline.is_store_away = True
    first = arrive("a")
    await turns(3)
    later = arrive("b", "no", "c", "d")
    await turns(3)
    later[3].cancel()  # its link is gone: the other side sends it again
    assert [message.body for message in services.pipeline.sent] == [b"a"]
    services.broker.is_down = True
    services.pipeline.store_comes_back()
    await turns(3)
    assert not first[0].done()
    services.broker.is_down = services.pipeline.is_store_away = False
    services.pipeline.store_comes_back()
    await asyncio.gather(*first, *later[:3])
    stored = [b"a", b"b", b"no", b"c"]
    assert [message.body for message in services.pipeline.sent][-4:] == stored
    await bridge.close()
