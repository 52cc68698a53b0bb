"""A bridge to RabbitMQ, both ways, over a channel that it closes, and over its death."""

from collections.abc import Iterator
from typing import NamedTuple

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from gateway.clusters.amqp_bridge import binding_key
from protocols.mqtt.packets import V5, Connect, Publish, SubscribeItem
from tests.support.mqtt_client import MqttClient
from tests.support.processes import Daemon, Daemons, wait_until
from tests.support.rabbitmq import RabbitMq

pytestmark = pytest.mark.client

CONFIG = """\
clusters:
  default: {{ namesrv: "{namesrv}" }}
  rabbit:
    type: amqp
    url_file: "{url_file}"
    bridge:
      exchange: plant
      retry_s_max: 1
      receive: [ {{ topic: "orders/+/#", local_prefix: "far/" }} ]
routes:
  - {{ name: up, when: {{ topic: "up/#" }}, to: [ {{ cluster: rabbit }} ] }}
  - {{ name: default, to: [ {{ cluster: default }} ] }}
"""


NO_LINK = "bridge rabbit: no connection"


class Site(NamedTuple):
    gateway: Daemon
    rabbit: RabbitMq

    def there(self) -> pika.BlockingConnection:
        return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.rabbit.port))


@pytest.fixture(scope="module")
def site(rabbitmq: RabbitMq) -> Iterator[Site]:
    with Daemons() as daemons:
        namesrv = daemons.namesrv()
        daemons.store(namesrv)
        url_file = daemons.folder / "rabbit-url"
        url_file.write_text(f"amqp://guest:guest@127.0.0.1:{rabbitmq.port}/\n")
        path = daemons.folder / "gateway.yaml"
        address = namesrv.addresses["namesrv"]
        path.write_text(CONFIG.format(namesrv=address, url_file=url_file))
        with pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", rabbitmq.port)
        ) as there:
            there.channel().exchange_declare("plant", "topic", durable=True)
        gateway = daemons.gateway("", arguments=("-c", str(path)))
        wait_until(lambda: "bridge rabbit is up" in gateway.log(), "the link")
        yield Site(gateway, rabbitmq)


@pytest.fixture
def channel(site: Site) -> Iterator[BlockingChannel]:
    """There."""
    with site.there() as connection:
        yield connection.channel()


def here(site: Site, name: str) -> MqttClient:
    return MqttClient(site.gateway.address("mqtt"), Connect(V5, name))


def test_filters_are_binding_keys() -> None:
    """Levels are words, and a dot inside a level is a slash there."""
    assert binding_key("a/+/c.d/#") == "a.*.c/d.#"


async def test_both_ways(site: Site, channel: BlockingChannel) -> None:
    """
    Subjects are routing keys there; in order; what no routing key can be is dropped and the rest
    goes on.
    """
    channel.queue_declare("seen")
    channel.queue_bind("seen", "plant", "up.#")
    async with here(site, "a") as client:
        await client.subscribe(SubscribeItem("far/#", 1))
        await client.publish("up/" + "x" * 300, b"too long", 1)
        for number in range(20):
            await client.publish("up/line.3", str(number).encode(), 1)
        found: list[tuple[str, bytes]] = []

        def take() -> bool:
            method, _, body = channel.basic_get("seen", auto_ack=True)
            if method is not None:
                found.append((method.routing_key, body))
            return len(found) == 20

        wait_until(take, "all have arrived")
        assert found == [("up.line/3", str(number).encode()) for number in range(20)]
        durable = pika.BasicProperties(delivery_mode=2)
        for number in range(20):
            channel.basic_publish("plant", "orders.7.new", str(number).encode(), durable)
        packets = await client.publishes(20)
        assert [(item.topic, item.payload, item.qos) for item in packets] == [
            ("far/orders/7/new", str(number).encode(), 1) for number in range(20)
        ]


async def test_a_closed_channel_is_opened_again(site: Site, channel: BlockingChannel) -> None:
    """Its exchange went, so the broker closed our channel; there is one again, and all goes on."""
    links = site.gateway.log().count("bridge rabbit is up")
    faults = site.gateway.log().count(NO_LINK)
    async with here(site, "b") as client:
        await client.subscribe(SubscribeItem("far/orders/8/#", 1))
        channel.exchange_delete("plant")
        await client.publish("up/later", b"nowhere to go", 1)
        wait_until(lambda: site.gateway.log().count(NO_LINK) > faults, "the fault")
        channel.exchange_declare("plant", "topic", durable=True)
        wait_until(lambda: site.gateway.log().count("bridge rabbit is up") > links, "the link")
        channel.queue_declare("later")
        channel.queue_bind("later", "plant", "up.again")
        await client.publish("up/again", b"kept", 1)
        wait_until(lambda: channel.basic_get("later", auto_ack=True)[0] is not None, "it")
        channel.basic_publish("plant", "orders.8.x", b"again")
        (packet,) = await client.publishes(1)
        assert isinstance(packet, Publish)
        assert (packet.topic, packet.payload) == ("far/orders/8/x", b"again")


async def test_what_is_sent_while_rabbitmq_is_dead_is_kept(site: Site) -> None:
    """``kill -9``: acknowledged here at once, carried over when it is back; then both ways."""
    with site.there() as connection:
        before = connection.channel()
        before.queue_declare("outlives", durable=True)
        before.queue_bind("outlives", "plant", "up.kept.#")
    bodies = {b"%d" % number for number in range(50)}
    async with here(site, "c") as client:
        await client.publish("up/kept/0", b"before", 1)
        site.rabbit.kill()
        for body in bodies:
            await client.publish("up/kept/x", body, 1)
        site.rabbit.start_again()
        with site.there() as connection:
            channel = connection.channel()
            found: set[bytes] = set()

            def take() -> bool:
                body = channel.basic_get("outlives", auto_ack=True)[2]
                if body is not None:
                    found.add(body)
                return bodies <= found

            wait_until(take, "all have arrived")
            assert found <= bodies | {b"before"}
            await client.subscribe(SubscribeItem("far/orders/9/#", 1))
            channel.confirm_delivery()

            def is_routed() -> bool:
                try:
                    channel.basic_publish("plant", "orders.9.x", b"back", mandatory=True)
                except pika.exceptions.UnroutableError:
                    return False
                return True

            wait_until(is_routed, "the bridge's queue is bound again")
            (packet,) = await client.publishes(1)
            assert packet.payload == b"back"
