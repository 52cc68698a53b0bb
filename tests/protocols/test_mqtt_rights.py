"""What an MQTT client may receive, what a denied publish costs, and when credentials end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from protocols import clock
from protocols.canonical import Identity
from protocols.mqtt.adapter import MqttAdapter
from protocols.mqtt.packets import (
    V5,
    V311,
    Connect,
    Disconnect,
    Publish,
    Reason,
    SubscribeItem,
)
from protocols.pipeline import Credentials
from tests.support.fake_services import FakeServices
from tests.support.mqtt_client import MqttClient


@asynccontextmanager
async def served(**section: object) -> AsyncIterator[tuple[FakeServices, tuple[str, int]]]:
    services = FakeServices()
    adapter = MqttAdapter.from_config("mqtt", {"bind": "127.0.0.1:0", **section})
    serving = asyncio.create_task(adapter.serve(services))
    try:
        yield services, await services.address("mqtt")
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


@pytest.mark.parametrize("qos", [0, 1])
async def test_what_may_not_be_received_is_not_delivered(qos: int) -> None:
    """Live and retained, under a filter that was granted; the rest comes."""
    async with served() as (services, address):
        services.checks_receive = True
        services.denied.add(("receive", "t/secret"))
        async with (
            MqttClient(address, Connect(V5, "sub")) as sub,
            MqttClient(address, Connect(V5, "pub")) as pub,
        ):
            await pub.publish("t/secret", b"kept", 1, retain=True)
            await pub.publish("t/open", b"kept", 1, retain=True)
            assert await sub.subscribe(SubscribeItem("t/#", qos)) == (qos,)
            await pub.publish("t/secret", b"live", 1)
            await pub.publish("t/open", b"live", 1)
            found = [(one.topic, one.payload) for one in await sub.publishes(2)]
            assert found == [("t/open", b"kept"), ("t/open", b"live")]
            assert await sub.is_silent()


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_denied_publish_may_cost_the_connection(version: int, qos: int) -> None:
    """With ``denied: disconnect``; a 5.0 client is told why."""
    async with served(denied="disconnect") as (services, address):
        services.denied.add(("publish", "secret"))
        async with MqttClient(address, Connect(version, "c")) as client:
            client.send(Publish("secret", b"x", qos, packet_id=1 if qos else 0))
            if version == V5:
                assert await client.receive() == Disconnect(Reason.NOT_AUTHORIZED)
            assert await client.receive() is None


async def test_a_connection_ends_with_its_credentials() -> None:
    """The token's expiry, not the next packet."""
    async with served() as (services, address):

        async def soon(credentials: Credentials) -> Identity:
            return Identity(name="dev-7", expires_at_ms=clock.wall_ms() + 300)

        services.authenticate = soon  # type: ignore[method-assign]
        async with MqttClient(address, Connect(V5, "c")) as client:
            assert await client.is_silent()
            assert await client.receive() == Disconnect(Reason.NOT_AUTHORIZED)
