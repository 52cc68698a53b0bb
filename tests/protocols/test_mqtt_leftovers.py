"""What no group keeps for a session is in its record while nobody is connected."""

import pytest

from protocols.mqtt.packets import (
    NEVER_EXPIRES_S,
    V5,
    V311,
    Connect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    SubscribeItem,
)
from protocols.mqtt.properties import Property
from protocols.mqtt.records import LeftoverRecord, decode_session, session_key
from tests.support.fake_services import FakeBroker
from tests.support.mqtt_client import MqttClient
from tests.support.mqtt_front import gateway, until

KEPT = ((int(Property.SESSION_EXPIRY), NEVER_EXPIRES_S),)


def kept(version: int, client_id: str) -> Connect:
    properties = KEPT if version == V5 else ()
    return Connect(version, client_id, clean_start=False, properties=properties)


async def taken(client: MqttClient) -> Publish:
    packet = await client.receive()
    assert isinstance(packet, Publish), packet
    return packet


@pytest.mark.parametrize("version", [V311, V5])
async def test_retained_values_are_sent_again(version: int) -> None:
    """The same ids, the same order, DUP and RETAIN; at another gateway; what had no place too."""
    broker = FakeBroker()
    async with (
        gateway(broker, "gw-1", inflight_max=3) as (_, one),
        gateway(broker, "gw-2") as (_, two),
    ):
        async with MqttClient(one, kept(version, "c")) as client:
            for number in range(5):
                await client.publish(f"t/{number}", b"%d" % number, 1, retain=True)
            await client.subscribe(SubscribeItem("t/#", 1), identifier=7)
            first = [await taken(client) for _ in range(3)]
            client.send(Puback(first[1].packet_id))
            fourth = await taken(client)
            assert await client.is_silent()
        await until(lambda: not is_connected(broker, "c"))
        async with MqttClient(two, kept(version, "c")) as client:
            assert client.connack.session_present
            again = [await taken(client) for _ in range(3)]
            assert again == [packet._replace(dup=True) for packet in (first[0], first[2], fourth)]
            fresh = await taken(client)
            assert (fresh.dup, fresh.retain) == (False, True)
            assert {packet.payload for packet in (*first, fourth, fresh)} == {
                b"%d" % number for number in range(5)
            }
            for packet in (*again, fresh):
                client.send(Puback(packet.packet_id))
            assert await client.is_silent()
        await until(lambda: not is_connected(broker, "c"))
        async with MqttClient(one, kept(version, "c")) as client:
            assert await client.is_silent()


def is_connected(broker: FakeBroker, client_id: str) -> bool:
    """As the directory has it."""
    found = broker.records.get(session_key("", client_id))
    return found is not None and bool(found.value) and decode_session(found.value).is_connected


async def test_a_shared_qos_2_message_stays_with_its_client() -> None:
    """Before PUBREC it is sent again to it, behind it PUBREL is; nobody else gets it."""
    broker = FakeBroker()
    async with gateway(broker, "gw-1") as (_, address):
        async with MqttClient(address, kept(V5, "first")) as first:
            await first.subscribe(SubscribeItem("$share/g/t", 2))
            async with MqttClient(address, Connect(V5, "pub")) as pub:
                for body in (b"received", b"sent"):
                    await pub.publish("t", body, 2)
            received, sent = await taken(first), await taken(first)
            first.send(Pubrec(received.packet_id))
            assert await first.receive() == Pubrel(received.packet_id)
        await until(lambda: not is_connected(broker, "first"))
        async with MqttClient(address, Connect(V5, "second")) as second:
            await second.subscribe(SubscribeItem("$share/g/t", 2))
            assert await second.is_silent()
            for _ in range(2):  # it is kept for as long as it takes
                async with MqttClient(address, kept(V5, "first")) as first:
                    assert await first.receive() == Pubrel(received.packet_id)
                    assert await taken(first) == sent._replace(dup=True)
                await until(lambda: not is_connected(broker, "first"))
            async with MqttClient(address, kept(V5, "first")) as first:
                assert await first.receive() == Pubrel(received.packet_id)
                await taken(first)
                first.send(Pubcomp(received.packet_id), Pubrec(sent.packet_id))
                assert await first.receive() == Pubrel(sent.packet_id)
                first.send(Pubcomp(sent.packet_id))
                assert await first.is_silent()
            assert await second.is_silent()


async def test_what_was_completed_at_a_gateway_that_died_does_not_come_again() -> None:
    """A message that was put aside once, taken up and settled; its packet id is free."""
    broker = FakeBroker()
    async with gateway(broker, "gw-1") as (_, address), gateway(broker, "gw-2") as (_, other):
        async with MqttClient(address, kept(V5, "first")) as first:
            await first.subscribe(SubscribeItem("$share/g/t", 2))
            async with MqttClient(address, Connect(V5, "pub")) as pub:
                for body in (b"received", b"completed"):
                    await pub.publish("t", body, 2)
            received, completed = await taken(first), await taken(first)
        await until(lambda: not is_connected(broker, "first"))
        async with MqttClient(address, kept(V5, "first")) as first:
            assert [await taken(first), await taken(first)] == [
                received._replace(dup=True),
                completed._replace(dup=True),
            ]
            first.send(Pubrec(received.packet_id), Pubrec(completed.packet_id))
            assert await first.receive() == Pubrel(received.packet_id)
            assert await first.receive() == Pubrel(completed.packet_id)
            first.send(Pubcomp(completed.packet_id))
            await until(lambda: len(leftovers(broker, "first")) == 1)
            async with MqttClient(other, kept(V5, "first")) as again:
                assert await again.receive() == Pubrel(received.packet_id)
                assert await again.is_silent()


def leftovers(broker: FakeBroker, client_id: str) -> tuple[LeftoverRecord, ...]:
    value = broker.records[session_key("", client_id)].value
    assert value is not None
    return decode_session(value).leftovers


async def test_a_shared_qos_2_message_ends_with_its_session() -> None:
    """A session that ends takes it along; QoS 1 goes to another member."""
    broker = FakeBroker()
    async with (
        gateway(broker, "gw-1") as (_, address),
        MqttClient(address, Connect(V5, "second")) as second,
        MqttClient(address, Connect(V5, "first")) as first,
    ):
        await first.subscribe(SubscribeItem("$share/g/t", 2))
        async with MqttClient(address, Connect(V5, "pub")) as pub:
            await pub.publish("t", b"two", 2)
            await pub.publish("t", b"one", 1)
        assert [(await taken(first)).payload for _ in range(2)] == [b"two", b"one"]
        await second.subscribe(SubscribeItem("$share/g/t", 2))
        first.drop()
        assert (await taken(second)).payload == b"one"
        assert await second.is_silent()
