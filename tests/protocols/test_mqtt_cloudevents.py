"""CloudEvents in MQTT, and the properties of Apache rocketmq-mqtt."""

import json

import pytest

from protocols.cloudevents.mapping import from_stored
from protocols.mqtt.cloudevents import as_binary_event
from protocols.mqtt.packets import V5, V311, Connect, Publish, SubscribeItem
from protocols.mqtt.properties import Property
from protocols.stored_names import subject_of
from tests.support.mqtt_client import MqttClient
from tests.support.mqtt_front import gateway

ATTRIBUTES = (("specversion", "1.0"), ("id", "7"), ("source", "/s"), ("type", "t"), ("x", "é"))
BINARY = (
    (int(Property.CONTENT_TYPE), "application/json"),
    *((int(Property.USER_PROPERTY), pair) for pair in ATTRIBUTES),
    (int(Property.USER_PROPERTY), ("Not-An-Attribute", "z")),
)
EVENT = {**dict(ATTRIBUTES), "datacontenttype": "application/json", "data": {"a": [1, None]}}


async def test_a_binary_event_is_an_event_for_others_and_comes_back_as_it_was() -> None:
    """Attributes are stored as those of events; an MQTT 5 subscriber sees what was published."""
    async with gateway() as (services, address):
        async with MqttClient(address, Connect(V5, "c")) as client:
            await client.subscribe(SubscribeItem("t", 0))
            client.send(Publish("t", b'{"a":1}', properties=BINARY))
            (packet,) = await client.publishes(1)
        assert packet.properties == BINARY
        event = from_stored(services.broker.log[-1].message)
        assert event.attributes == dict(ATTRIBUTES)
        assert (event.content_type, event.data) == ("application/json", b'{"a":1}')


@pytest.mark.parametrize(
    "pairs",
    [
        ATTRIBUTES[1:],
        (("specversion", "0.3"), *ATTRIBUTES[1:]),
        tuple(pair for pair in ATTRIBUTES if pair[0] != "id"),
    ],
)
def test_what_is_no_event_stays_as_it_is(pairs: tuple[tuple[str, str], ...]) -> None:
    assert as_binary_event(pairs) == pairs


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("qos", [0, 1])
async def test_structured_events_by_option(version: int, qos: int) -> None:
    """Taken apart on the way in; whole again for 3.1.1, binary for 5.0; HTTP sees the same."""
    content = ((int(Property.CONTENT_TYPE), "application/cloudevents+json; charset=utf-8"),)
    async with gateway(cloudevents="structured") as (services, address):
        async with (
            MqttClient(address, Connect(V311, "old")) as old,
            MqttClient(address, Connect(V5, "new")) as new,
            MqttClient(address, Connect(version, "pub")) as pub,
        ):
            for one in (old, new):
                await one.subscribe(SubscribeItem("t", 0))
            properties = content if version == V5 else ()
            body = json.dumps(EVENT).encode()
            pub.send(Publish("t", body, qos, packet_id=qos, properties=properties))
            (structured,), (binary,) = await old.publishes(1), await new.publishes(1)
        assert json.loads(structured.payload) == EVENT
        assert binary.payload == b'{"a":[1,null]}'
        names = {value[0] for _, value in binary.properties if isinstance(value, tuple)}
        assert names == dict(ATTRIBUTES).keys()
        event = from_stored(services.broker.log[-1].message)
        assert event.attributes == dict(ATTRIBUTES)


@pytest.mark.parametrize(
    ("more", "kind", "data"),
    [
        ({"data": "text", "datacontenttype": "text/plain"}, "text/plain", b"text"),
        ({"data_base64": "AAH/"}, "", b"\x00\x01\xff"),
        ({}, "", None),
    ],
)
async def test_data_of_every_kind(more: dict[str, str], kind: str, data: bytes | None) -> None:
    event = {**dict(ATTRIBUTES), **more}
    async with (
        gateway(cloudevents="structured") as (services, address),
        MqttClient(address, Connect(V311, "c")) as client,
    ):
        await client.subscribe(SubscribeItem("t", 0))
        await client.publish("t", json.dumps(event).encode(), 0)
        (packet,) = await client.publishes(1)
        assert json.loads(packet.payload) == event
        found = from_stored(services.broker.log[-1].message)
        assert (found.content_type, found.data) == (kind, data)


@pytest.mark.parametrize(
    "body",
    [b"21.5", b'{"t": 21.5}', b"\xff", b"[" * 100_000, b'{"specversion":"1.0","id":7}',
     json.dumps({**EVENT, "UPPER": "x"}).encode()],
)  # fmt: skip
async def test_plain_devices_are_left_alone(body: bytes) -> None:
    """What is no event passes as it came, to 3.1.1 clients too."""
    async with (
        gateway(cloudevents="structured") as (_, address),
        MqttClient(address, Connect(V311, "c")) as client,
    ):
        await client.subscribe(SubscribeItem("t", 0))
        await client.publish("t", body, 0)
        assert (await client.publishes(1))[0].payload == body


async def test_apaches_properties_are_written_by_option() -> None:
    """Topic, QoS, client id and tag as rocketmq-mqtt's consumers look for them."""
    async with gateway(apache_properties=True) as (services, address):
        async with MqttClient(address, Connect(V5, "dev-7")) as client:
            await client.publish("a/b", b"x", 1)
        found = services.broker.log[-1].message.properties
        wanted = ("TAGS", "originMqttTopic", "qosLevel", "clientId")
        assert [found[name] for name in wanted] == ["MQTT_COMMON", "a/b", "1", "dev-7"]


def test_apaches_topics_are_read() -> None:
    """``originMqttTopic`` is the address where its first level is the topic."""
    assert subject_of("", "a/b/c", "a") == "a/b/c"
    assert subject_of("", "a/b/c", "tenant%a") == "a/b/c"
    assert subject_of("", "other/b", "a") == "a"
    assert subject_of("own/x", "a/b", "a") == "own/x"
    assert subject_of(b"", b"a/b", b"a") == b"a/b"
    assert subject_of("", "", "a") == "a"
