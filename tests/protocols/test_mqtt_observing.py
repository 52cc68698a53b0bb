"""Online and offline events, traces, slow subscribers."""

import asyncio
import json
from typing import Any

import pytest

from protocols.mqtt.packets import (
    V5,
    Connect,
    Disconnect,
    Subscribe,
    SubscribeItem,
    Will,
)
from protocols.mqtt.presence import Ended, Presence
from protocols.mqtt.records import SessionRecord
from tests.support.fake_services import FakeBroker, FakeServices
from tests.support.mqtt_client import MqttClient
from tests.support.mqtt_front import gateway, until


def events(broker: FakeBroker) -> list[dict[str, Any]]:
    """Everything in the events topic, in order."""
    return [
        json.loads(entry.message.body)
        for entry in broker.log
        if entry.message.topic == "MQTT_EVENTS"
    ]


async def test_who_comes_and_goes_is_told() -> None:
    """As a message for MQTT and RocketMQ, with the reason; the topic is made with the first."""
    async with gateway(events_topic="MQTT_EVENTS") as (services, address):
        broker = services.broker
        async with MqttClient(address, Connect(V5, "watcher")) as watcher:
            await watcher.subscribe(SubscribeItem("$events/+/offline", 1))
            async with MqttClient(address, Connect(V5, "a/b", keep_alive_s=9)) as client:
                await until(lambda: len(events(broker)) == 2)
                client.send(Disconnect())
                (packet,) = await watcher.publishes(1)
            assert packet.topic == "$events/a%2Fb/offline"
            told = json.loads(packet.payload)
            assert (told["client_id"], told["reason"]) == ("a/b", "disconnected (0x00)")
            assert told["connected_ms"] <= told["last_seen_ms"] <= told["at_ms"]
            online = events(broker)[1]
            assert online["event"] == "online"
            assert (online["version"], online["keep_alive_s"]) == (5, 9)
            assert online["connection"] == told["connection"]
            stored = broker.log[-1].message
            assert (stored.properties["TAGS"], stored.properties["KEYS"]) == ("offline", "a/b")


@pytest.mark.parametrize(
    ("how", "reason"),
    [("drop", "connection lost"), ("take over", "taken over by another connection"),
     ("kick", "kicked"), ("nonsense", "no topic filter")],
)  # fmt: skip
async def test_reasons_of_going(how: str, reason: str) -> None:
    async with (
        gateway(events_topic="MQTT_EVENTS") as (services, address),
        MqttClient(address, Connect(V5, "c")) as client,
    ):
        if how == "drop":
            client.drop()
        elif how == "take over":
            async with MqttClient(address, Connect(V5, "c")):
                pass
        elif how == "kick":
            services.clients.connected[0][1]()
        else:
            client.send(Subscribe(1, (SubscribeItem("a/#/b", 0),)))
        await until(lambda: any(one["event"] == "offline" for one in events(services.broker)))
        offline = next(one for one in events(services.broker) if one["event"] == "offline")
        assert reason in offline["reason"]


async def test_clients_of_a_dead_gateway_are_told_about() -> None:
    """By another one, also those without a session or a will."""
    broker = FakeBroker()
    broker.topics.add("MQTT_EVENTS")
    async with (
        gateway(broker, "gw-1", events_topic="MQTT_EVENTS") as (one, address),
        gateway(broker, "gw-2", events_topic="MQTT_EVENTS"),
        MqttClient(address, Connect(V5, "plain")),
        MqttClient(address, Connect(V5, "willing", will=Will("gone", b"x"))),
    ):
        one.is_cut_off = True
        broker.end_lease("gw-1", one.epoch)
        await until(lambda: sum(e["event"] == "offline" for e in events(broker)) == 2)
        told = {e["client_id"]: e["reason"] for e in events(broker) if e["event"] == "offline"}
        assert told == dict.fromkeys(("plain", "willing"), "its gateway is gone")


async def test_what_every_listener_of_the_others_sees_is_told_once() -> None:
    """Until the client's next connection, which may lose its gateway, too."""
    broker = FakeBroker()
    broker.topics.add("MQTT_EVENTS")
    seen = [Presence("mqtt", "MQTT_EVENTS", FakeServices(broker, name)) for name in ("a", "b")]
    for owner_epoch in (3, 4):
        record = SessionRecord(
            tenant="",
            client_id="c",
            gateway="gw-1",
            gateway_epoch=1,
            owner_epoch=owner_epoch,
            incarnation=3,
        )
        for presence in seen:
            presence.orphaned(record)
    await until(lambda: len(events(broker)) == 2)
    assert [one["connection"] for one in events(broker)] == [3, 4]


async def test_so_many_events_are_on_their_way_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Further ones are dropped while their store is away; later ones are told again."""
    monkeypatch.setattr("protocols.mqtt.presence.TELLING_MAX", 2)
    broker = FakeBroker()
    broker.topics.add("MQTT_EVENTS")
    services = FakeServices(broker)
    telling = Presence("mqtt", "MQTT_EVENTS", services)
    record = SessionRecord(
        tenant="", client_id="c", gateway="gw", gateway_epoch=1, owner_epoch=1, incarnation=1
    )
    services.pipeline.is_store_away = True
    for _ in range(3):
        telling.offline(record, "", Ended("gone", 1, 1))
    assert len(services.pipeline.sent) == 2
    services.pipeline.is_store_away = False
    services.pipeline.store_comes_back()
    telling.offline(record, "", Ended("gone", 1, 1))
    assert len(services.pipeline.sent) == 3


async def test_nothing_is_told_without_a_topic() -> None:
    async with gateway() as (services, address):
        async with MqttClient(address, Connect(V5, "c")):
            pass
        await asyncio.sleep(0)
        assert services.broker.log == []


async def test_a_trace_sees_what_is_refused() -> None:
    """CONNECT, filter or publish, and why."""
    async with gateway(retained=False) as (services, address):
        services.observer.is_tracing = True
        services.denied |= {("publish", "secret"), ("subscribe", "secret")}
        async with MqttClient(address, Connect(V5, "c")) as client:
            assert await client.subscribe(SubscribeItem("open"), SubscribeItem("secret")) == (
                0,
                0x87,
            )
            await client.publish("secret", b"x", 1)
        will = Will("w", b"x", retain=True)
        async with MqttClient(address, Connect(V5, "d", will=will)):
            pass
    assert [told[1:] for told in services.observer.traced if told[0] == "refused"] == [
        ("c", "secret", "subscribe: NOT_AUTHORIZED"),
        ("c", "", "publish 2: FORBIDDEN"),
        ("d", "", "connect: RETAIN_NOT_SUPPORTED"),
    ]


async def test_a_trace_sees_what_a_client_does() -> None:
    """Packets in and out by topic and size; nothing while nobody traces."""
    async with gateway() as (services, address), MqttClient(address, Connect(V5, "c")) as client:
        await client.publish("quiet", b"x", 1)
        assert services.observer.traced == []
        services.observer.is_tracing = True
        await client.subscribe(SubscribeItem("t/#", 1))
        await client.publish("t/x", b"123", 0)
        await client.publishes(1)
        client.send(Disconnect())
        await client.receive()
        await until(lambda: services.observer.traced[-1][0] == "offline")
    traced = services.observer.traced
    assert [(event, topic) for event, _, topic, _ in traced if topic] == [
        ("subscribe", "t/#"),
        ("publish", "t/x"),
        ("deliver", "t/x"),
    ]
    assert traced[1][3] == "in, QoS 0, 3 bytes"
    assert {client_id for _, client_id, _, _ in traced} == {"c"}


async def test_late_deliveries_are_noted() -> None:
    """From the store to the socket; what waited for an absent client is not late."""
    async with gateway() as (services, address):
        services.observer.slow_ms = 0
        async with MqttClient(address, Connect(V5, "c")) as client:
            await client.subscribe(SubscribeItem("t", 0))
            await client.publish("t", b"x", 0)
            await client.publishes(1)
        assert services.observer.slow_ones == [("c", "t")]
