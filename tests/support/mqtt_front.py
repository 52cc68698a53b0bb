"""MQTT listeners over Services in memory, and what tests of them wait for."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from protocols.mqtt.adapter import MqttAdapter
from tests.support.fake_services import FakeBroker, FakeServices
from tests.support.patience import PATIENCE_S


@asynccontextmanager
async def gateway(
    broker: FakeBroker | None = None, name: str = "gw-1", **section: object
) -> AsyncIterator[tuple[FakeServices, tuple[str, int]]]:
    """One gateway with one MQTT listener."""
    services = FakeServices(broker, name)
    adapter = MqttAdapter.from_config("mqtt", {"bind": "127.0.0.1:0", **section})
    async with services.serving(adapter, "mqtt") as address:
        yield services, address


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that other tasks bring about."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 # the condition is somebody else's state
            await asyncio.sleep(0.005)
