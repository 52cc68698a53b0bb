"""What is remembered for a connection ends with it, whatever the connection speaks."""

import gc
from collections.abc import Iterator

import aiohttp
import pytest
from aio_pika import Message

from protocols.amqp.session import Session
from protocols.cloudevents.guard import Door
from protocols.mqtt.packets import V5, Connect
from tests.support.amqp_front import Gateway
from tests.support.cloudevents_front import EVENT, Listener
from tests.support.fake_services import FakeBroker, FakeServices
from tests.support.mqtt_client import MqttClient
from tests.support.mqtt_front import gateway, until
from tests.support.remoting_front import Client, front


@pytest.fixture
def uncollected() -> Iterator[None]:
    """What is in a cycle stays."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def count(kind: type) -> int:
    return sum(type(one) is kind for one in gc.get_objects())


async def test_mqtt() -> None:
    broker = FakeBroker()
    async with gateway(broker, "gw-1") as (_, address):
        async with MqttClient(address, Connect(V5, "pub")) as pub:
            await pub.publish("a", b"x", 1)
            assert not broker.forgotten
        await until(lambda: [call.client_id for call in broker.forgotten] == ["pub"])


async def test_amqp(uncollected: None) -> None:
    before = count(Session)
    services = FakeServices()
    served = Gateway(services)
    await served.start()
    connection = await served.connect()
    channel = await connection.channel()
    await channel.default_exchange.publish(Message(b"x"), (await channel.declare_queue("q")).name)
    assert not services.broker.forgotten
    await connection.close()
    await until(lambda: [call.protocol for call in services.broker.forgotten] == ["amqp"])
    await until(lambda: count(Session) <= before)
    await served.stop()


async def test_remoting() -> None:
    services = FakeServices()
    async with front(services) as address:
        client = await Client().connect(address)
        await client.send("T", b"x")
        assert not services.broker.forgotten
        await client.remoting.close()
        await until(lambda: [call.protocol for call in services.broker.forgotten] == ["remoting"])


async def test_http(uncollected: None) -> None:
    """Also when the next request of a connection is another user's."""
    before = count(Door)
    services = FakeServices()
    services.users = {"guest": b"guest", "other": b"guest"}
    async with Listener(services, handshake_s_max=5.0, webhook_handshake="off") as listener:
        connector = aiohttp.TCPConnector(limit=1)
        async with aiohttp.ClientSession(connector=connector) as client:
            for user in ("guest", "guest", "other"):
                shown = {"Authorization": aiohttp.encode_basic_auth(user, "guest")}
                post = client.post(f"{listener.url}/topics/up", data=b"x", headers=EVENT | shown)
                async with post as answer:
                    await answer.read()
            assert len(services.broker.forgotten) == 1
        await until(lambda: len(services.broker.forgotten) == 2)
        await until(lambda: count(Door) <= before)
