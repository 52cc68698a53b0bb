"""Limits of an MQTT listener: what is refused, in which words, and what waits."""

import asyncio
import re

import pytest

from protocols.canonical import Identity
from protocols.errors import Code
from protocols.mqtt.encoder import encode_packet
from protocols.mqtt.packets import (
    V5,
    V311,
    Connect,
    Puback,
    Publish,
    Reason,
    SubscribeItem,
    Will,
)
from protocols.mqtt.properties import Property
from protocols.pipeline import Credentials
from tests.support.mqtt_client import MqttClient
from tests.support.mqtt_front import gateway


async def test_subscriptions_of_one_session() -> None:
    """One too many is refused by its code; a known one may be changed."""
    async with gateway(subscriptions_max=2) as (_, address):
        async with MqttClient(address, Connect(V5, "c")) as client:
            items = [SubscribeItem(name, 0) for name in ("a", "b", "c")]
            assert await client.subscribe(*items) == (0, 0, Reason.QUOTA_EXCEEDED)
            assert await client.subscribe(SubscribeItem("a", 1)) == (1,)
        async with MqttClient(address, Connect(V311, "d")) as client:
            assert await client.subscribe(*items) == (0, 0, 0x80)


@pytest.mark.parametrize(("asked_s", "told_s"), [(0, None), (10, None), (11, 10)])
async def test_how_long_a_session_lasts_is_told(asked_s: int, told_s: int | None) -> None:
    """Where it is not what the client asked for."""
    asked = ((Property.SESSION_EXPIRY, asked_s),)
    async with (
        gateway(session_expiry_s_max=10) as (_, address),
        MqttClient(address, Connect(V5, "c", properties=asked)) as client,
    ):
        assert dict(client.connack.properties).get(Property.SESSION_EXPIRY) == told_s


async def test_levels_of_filters_and_wills() -> None:
    async with gateway(topic_levels_max=3) as (_, address):
        async with MqttClient(address, Connect(V5, "c")) as client:
            reasons = await client.subscribe(SubscribeItem("a/b/c", 0), SubscribeItem("a/b/c/#", 0))
            assert reasons == (0, Reason.TOPIC_FILTER_INVALID)
        will = Will("a/b/c/d", b"x")
        async with MqttClient(address, Connect(V5, "c", will=will)) as client:
            assert client.connack.reason == Reason.TOPIC_NAME_INVALID


@pytest.mark.parametrize(("version", "reason"), [(V5, 0x85), (V311, 2)])
async def test_whether_clients_get_ids(version: int, reason: int) -> None:
    """Of a listener that wants them to bring their own; another gives its own kind."""
    async with (
        gateway(assigned_ids="") as (_, strict),
        MqttClient(strict, Connect(version, "")) as client,
    ):
        assert client.connack.reason == reason
    async with (
        gateway(assigned_ids="site-7.") as (services, address),
        MqttClient(address, Connect(version, "")) as client,
    ):
        assert client.connack.reason == Reason.SUCCESS
        ((info, _),) = services.clients.connected
        assert info.client_id.startswith("site-7.")


async def test_a_large_will() -> None:
    async with gateway(will_bytes_max=3) as (_, address):
        async with MqttClient(address, Connect(V5, "c", will=Will("w", b"1234"))) as client:
            assert client.connack.reason == Reason.PACKET_TOO_LARGE
        async with MqttClient(address, Connect(V5, "c", will=Will("w", b"123"))) as client:
            assert client.connack.reason == Reason.SUCCESS


@pytest.mark.parametrize(("version", "reason"), [(V5, Reason.BANNED), (V311, 5)])
async def test_the_banned_are_told_before_their_password_is_looked_at(
    version: int, reason: int
) -> None:
    async with gateway() as (services, address):
        services.banned_ids.add("c")
        services.users = {"nobody": b""}  # anything else would be 0x86
        async with MqttClient(address, Connect(version, "c")) as client:
            assert client.connack.reason == reason


@pytest.mark.parametrize(
    ("code", "version", "reason"),
    [
        (Code.TOO_MANY_REQUESTS, V5, Reason.CONNECTION_RATE_EXCEEDED),
        (Code.LITE_TOPIC_QUOTA_EXCEEDED, V5, Reason.QUOTA_EXCEEDED),
        (Code.LITE_TOPIC_QUOTA_EXCEEDED, V311, 3),
        (Code.HA_NOT_AVAILABLE, V5, Reason.SERVER_BUSY),
        (Code.FORBIDDEN, V5, Reason.BANNED),
        (Code.HA_NOT_AVAILABLE, V311, 3),
    ],
)
async def test_words_of_a_refused_connection(code: Code, version: int, reason: int) -> None:
    async with gateway() as (services, address):
        services.admit_code = code
        async with MqttClient(address, Connect(version, "c")) as client:
            assert client.connack.reason == reason


async def test_connects_wait_their_turn_and_then_are_told_busy() -> None:
    """One in work, one waits in time, one too long."""
    async with gateway(opening_max=1, opening_s_max=0.2) as (services, address):
        entered, gate = asyncio.Event(), asyncio.Event()

        async def slowly(credentials: Credentials) -> Identity:
            entered.set()
            await gate.wait()
            return Identity(name="x")

        services.authenticate = slowly  # type: ignore[method-assign]

        async def connect(client_id: str) -> int:
            async with MqttClient(address, Connect(V5, client_id)) as client:
                return client.connack.reason

        first = asyncio.create_task(connect("a"))
        await entered.wait()
        assert await connect("b") == Reason.SERVER_BUSY
        third = asyncio.create_task(connect("c"))
        gate.set()
        assert [await first, await third] == [0, 0]
        assert services.metrics.value("mqtt_busy") == 1


async def test_who_is_known_does_not_wait_behind_who_is_not() -> None:
    """A service that is slow, or dead, is asked for others."""
    async with gateway(opening_max=1) as (services, address):
        entered = asyncio.Event()

        async def never(credentials: Credentials) -> Identity:
            entered.set()
            await asyncio.Event().wait()
            raise AssertionError

        services.authenticate = never  # type: ignore[method-assign]
        services.recalled["ann"] = Identity(name="ann")
        _, writer = await asyncio.open_connection(*address)
        writer.write(encode_packet(Connect(V5, "a"), V5))
        await entered.wait()
        async with MqttClient(address, Connect(V5, "b", user="ann", password=b"pw")) as client:
            assert client.connack.reason == 0
        writer.close()


async def test_retained_values_age() -> None:
    """Older than the limit: not handed out any more."""
    async with (
        gateway(retained_s_max=1) as (services, address),
        MqttClient(address, Connect(V5, "c")) as client,
    ):
        await client.publish("old", b"x", 1, retain=True)
        await client.publish("new", b"x", 1, retain=True)
        services.broker.retained["", "old"].store_ms -= 2000
        assert await client.subscribe(SubscribeItem("#", 0)) == (0,)
        assert (await client.publishes(1))[0].topic == "new"
        assert await client.is_silent()


async def test_an_expired_retained_value_is_not_handed_out() -> None:
    """[MQTT-3.3.2-5], also while its store has not dropped it yet."""
    async with (
        gateway() as (services, address),
        MqttClient(address, Connect(V5, "c")) as client,
    ):
        lasting = ((int(Property.MESSAGE_EXPIRY), 1000),)
        for number, topic in enumerate(("old", "new"), 1):
            client.send(Publish(topic, b"x", 1, True, packet_id=number, properties=lasting))
            assert await client.receive() == Puback(number)
        old = services.broker.retained["", "old"]
        past, count = re.subn(rb"(TG_EXPIRES_AT\x01)\d+", rb"\g<1>1000", old.properties_text)
        assert count == 1
        old.properties_text = past
        assert await client.subscribe(SubscribeItem("#", 0)) == (0,)
        assert (await client.publishes(1))[0].topic == "new"
        assert await client.is_silent()


@pytest.mark.parametrize("queues", [False, True])
async def test_qos_0_waits_for_the_absent_by_option(queues: bool) -> None:
    """QoS 1 does in any case, in order with it."""
    kept = Connect(V5, "c", clean_start=False, properties=((int(Property.SESSION_EXPIRY), 99),))
    async with gateway(queue_qos0=queues) as (_, address):
        async with MqttClient(address, kept) as client:
            await client.subscribe(SubscribeItem("t", 1))
        async with MqttClient(address, Connect(V5, "p")) as other:
            for number in range(4):
                await other.publish("t", b"%d" % number, number % 2)
        async with MqttClient(address, kept) as client:
            wanted = [b"0", b"1", b"2", b"3"] if queues else [b"1", b"3"]
            found = await client.publishes(len(wanted))
            assert [packet.payload for packet in found] == wanted
            assert await client.is_silent()
