"""What an MQTT client may receive, what a denied publish costs, and when credentials end."""

import pytest

from protocols import clock
from protocols.canonical import Identity
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
from tests.support.mqtt_client import MqttClient
from tests.support.mqtt_front import gateway


@pytest.mark.parametrize("qos", [0, 1])
async def test_what_may_not_be_received_is_not_delivered(qos: int) -> None:
    """Live and retained, under a filter that was granted; the rest comes."""
    async with gateway() as (services, address):
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


@pytest.mark.parametrize("topic_filter", ["secret/#", "$share/s/secret/#"])
async def test_a_denied_filter_may_be_granted_in_appearance(topic_filter: str) -> None:
    """With ``subscribe_denied: 0``: the client is told its QoS, and nothing comes by it."""
    async with gateway(subscribe_denied=0, qos_max=1) as (services, address):
        services.denied.add(("subscribe", "secret/#"))
        async with MqttClient(address, Connect(V5, "c")) as client:
            await client.publish("secret/a", b"kept", 1, retain=True)
            assert await client.subscribe(SubscribeItem(topic_filter, 2)) == (1,)
            await client.publish("secret/a", b"live", 1)
            assert await client.is_silent()


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_denied_publish_may_cost_the_connection(version: int, qos: int) -> None:
    """With ``denied: disconnect``; a 5.0 client is told why."""
    async with gateway(denied="disconnect") as (services, address):
        services.denied.add(("publish", "secret"))
        async with MqttClient(address, Connect(version, "c")) as client:
            client.send(Publish("secret", b"x", qos, packet_id=1 if qos else 0))
            if version == V5:
                assert await client.receive() == Disconnect(Reason.NOT_AUTHORIZED)
            assert await client.receive() is None


async def test_a_connection_ends_with_its_credentials() -> None:
    """The token's expiry, not the next packet."""
    async with gateway() as (services, address):

        async def soon(credentials: Credentials) -> Identity:
            return Identity(name="dev-7", expires_at_ms=clock.wall_ms() + 300)

        services.authenticate = soon  # type: ignore[method-assign]
        async with MqttClient(address, Connect(V5, "c")) as client:
            assert await client.is_silent()
            assert await client.receive() == Disconnect(Reason.NOT_AUTHORIZED)
