"""A gateway that drains, as its MQTT clients see it."""

import pytest

from protocols.mqtt.packets import V5, V311, Connect, Disconnect, PacketProperties, Reason, Will
from protocols.mqtt.properties import Property
from tests.support.mqtt_client import MqttClient
from tests.support.mqtt_front import gateway

SERVER_UNAVAILABLE = 3
"""CONNACK of 3.1.1, 3.2.2.3."""


@pytest.mark.parametrize("elsewhere", ["", "other.example:1883"])
async def test_clients_are_sent_to_another_gateway(elsewhere: str) -> None:
    """
    0x9D with its address to who is there and who comes; 3.1.1 has no words for it. No will is
    published: the session goes on elsewhere.
    """
    reference: PacketProperties = (
        ((int(Property.SERVER_REFERENCE), elsewhere),) if elsewhere else ()
    )
    will = Will("wills/1", b"gone")
    async with gateway() as (services, address):
        async with (
            MqttClient(address, Connect(V5, "new", will=will)) as new,
            MqttClient(address, Connect(V311, "old")) as old,
        ):
            services.draining.is_on = True
            services.draining.elsewhere = {"mqtt": elsewhere}
            for _, leave in services.clients.leaving:
                leave()
            assert await new.receive() == Disconnect(Reason.SERVER_MOVED, reference)
            assert await new.receive() is None
            assert await old.receive() is None
        async with MqttClient(address, Connect(V5, "late")) as late:
            assert (late.connack.reason, late.connack.properties) == (0x9D, reference)
        async with MqttClient(address, Connect(V311, "late")) as late:
            assert late.connack.reason == SERVER_UNAVAILABLE
    assert not services.broker.log
