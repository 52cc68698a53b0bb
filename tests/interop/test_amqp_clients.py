"""AMQP over real stores and gateways, as processes; aio-pika and pika are the judges."""

import asyncio
from collections.abc import Iterator

import aio_pika
import aiormq
import pika
import pika.exceptions
import pytest
from aio_pika import ExchangeType, Message
from aio_pika.abc import AbstractConnection, AbstractIncomingMessage, AbstractQueue

from protocols.mqtt.packets import V5, Connect, SubscribeItem
from tests.support.mqtt_client import MqttClient
from tests.support.patience import PATIENCE_S
from tests.support.processes import HURRIED, Daemon, Daemons, TwoGateways

pytestmark = pytest.mark.client

QUEUE_COUNT = 12
"""So many queues fall on both of two stores, but for one chance in two thousand."""

SENT_COUNT = 20
"""Of each queue; all are read one by one."""


ONLY = tuple(f"listeners.{name}.enabled=false" for name in ("events", "grpc", "remoting"))
"""Listeners that these tests do without."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[TwoGateways]:
    with Daemons() as daemons:
        yield TwoGateways(daemons, *ONLY, "limits.store_wait=1s")


async def connect(daemon: Daemon) -> AbstractConnection:
    return await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{daemon.port('amqp')}/")


async def drain(queue: AbstractQueue) -> list[bytes]:
    """Everything that is ready, acknowledged."""
    bodies = []
    while message := await queue.get(fail=False, no_ack=True, timeout=PATIENCE_S):
        bodies.append(message.body)
    return bodies


class Collector:
    """A consumer that keeps what comes."""

    def __init__(self, *, acks: bool = True) -> None:
        self.messages: list[AbstractIncomingMessage] = []
        self._acks = acks
        self._changed = asyncio.Event()

    async def __call__(self, message: AbstractIncomingMessage) -> None:
        self.messages.append(message)
        if self._acks:
            await message.ack()
        self._changed.set()

    async def wait(self, count: int) -> list[AbstractIncomingMessage]:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.messages) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.messages


async def test_a_fanout_reaches_queues_pinned_on_two_stores(cluster: TwoGateways) -> None:
    """One publish, acked once all copies are stored; one store down: its queues refuse, in 404."""
    async with await connect(cluster.one) as connection:
        channel = await connection.channel(on_return_raises=True)
        exchange = await channel.declare_exchange("news", ExchangeType.FANOUT, durable=True)
        queues = [
            await channel.declare_queue(f"news-{number}", durable=True)
            for number in range(QUEUE_COUNT)
        ]
        for queue in queues:
            await queue.bind(exchange)
        await asyncio.gather(
            *(exchange.publish(Message(b"%d" % number), "") for number in range(SENT_COUNT))
        )
        cluster.other.kill()
        homes = {"here": 0, "away": 0}
        for queue in queues:
            probe = await connection.channel()
            try:
                await probe.declare_queue(queue.name, passive=True)
                homes["here"] += 1
            except aiormq.exceptions.ChannelNotFoundEntity as error:
                homes["away"] += "home node 'broker-b' of durable queue" in str(error)
        assert homes["here"] > 0
        assert homes["away"] > 0
        assert sum(homes.values()) == QUEUE_COUNT
        with pytest.raises(aio_pika.exceptions.DeliveryError):
            await exchange.publish(Message(b"refused"), "")
        cluster.other.restart()
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await exchange.publish(Message(b"last"), "")
                    break
                except aio_pika.exceptions.DeliveryError:
                    await asyncio.sleep(0.1)
        for queue in queues:
            bodies = await drain(queue)
            assert bodies[:SENT_COUNT] == [b"%d" % number for number in range(SENT_COUNT)]
            assert bodies[-1] == b"last"
            assert set(bodies[SENT_COUNT:]) <= {b"last", b"refused"}
            await queue.delete()


async def test_a_publish_right_behind_bind_ok_is_never_missed(cluster: TwoGateways) -> None:
    """bind-ok at one gateway; a mandatory publish at the other at once: all are routed."""
    async with await connect(cluster.one) as mine, await connect(cluster.two) as theirs:
        reader = await mine.channel()
        writer = await theirs.channel(on_return_raises=True)
        await reader.declare_exchange("barrier", ExchangeType.TOPIC)
        exchange = await writer.get_exchange("barrier")
        shared = await writer.get_exchange("amq.topic")
        queue = await reader.declare_queue("barrier", auto_delete=True)
        for number in range(50):
            await queue.bind("barrier", f"key.{number}")
            await exchange.publish(Message(b"x"), f"key.{number}", mandatory=True)
            await queue.bind("amq.topic", f"barrier.{number}.*")
            await shared.publish(Message(b"y"), f"barrier.{number}.z", mandatory=True)
        assert await drain(queue) == [b"x", b"y"] * 50
        await reader.queue_delete("barrier")


async def test_what_a_killed_gateway_held_comes_again(cluster: TwoGateways) -> None:
    """``kill -9`` with deliveries unacknowledged: the other gateway delivers them, in order."""
    victim = cluster.gateway("gw-victim")
    async with await connect(cluster.two) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("held", durable=True)
        doomed = await connect(victim)
        other = await doomed.channel()
        await other.set_qos(prefetch_count=5)
        holder = Collector(acks=False)
        await (await other.get_queue("held")).consume(holder)
        for number in range(8):
            await channel.default_exchange.publish(Message(b"%d" % number), "held")
        await holder.wait(5)
        victim.kill()
        collector = Collector()
        await queue.consume(collector)
        messages = await collector.wait(8)
        assert sorted(message.body for message in messages) == [b"%d" % n for n in range(8)]
        again = [message.body for message in messages if message.redelivered]
        assert again == [b"%d" % number for number in range(5)]
        await doomed.close()
        await channel.queue_delete("held")


async def test_messages_outlive_store_and_gateway(cluster: TwoGateways) -> None:
    """Confirmed messages and the topology are there after kill -9 of everything."""
    with Daemons() as daemons:
        namesrv = daemons.namesrv()
        store = daemons.store(namesrv, *HURRIED)
        gateway = daemons.gateway(namesrv, *ONLY)
        async with await connect(gateway) as connection:
            channel = await connection.channel()
            exchange = await channel.declare_exchange("ex", ExchangeType.TOPIC, durable=True)
            queue = await channel.declare_queue("kept", durable=True)
            await queue.bind(exchange, "a.#")
            for number in range(20):
                await exchange.publish(
                    Message(b"%d" % number, headers={"n": number}, delivery_mode=2), "a.b"
                )
            first = await queue.get(timeout=PATIENCE_S)
            await first.ack()
            await channel.declare_queue("kept", passive=True)  # answered after the ack is durable
            store.kill()
            gateway.kill()
        store.restart()
        gateway.restart()
        async with await connect(gateway) as connection:
            channel = await connection.channel(on_return_raises=True)
            queue = await channel.declare_queue("kept", durable=True)
            assert queue.declaration_result.message_count == 19
            message = await queue.get(timeout=PATIENCE_S)
            assert (message.body, message.headers) == (b"1", {"n": 1})
            await message.ack()
            exchange = await channel.get_exchange("ex")
            await exchange.publish(Message(b"new"), "a.c", mandatory=True)
            assert len(await drain(queue)) == 19


async def test_mqtt_and_amqp_share_addresses(cluster: TwoGateways) -> None:
    """MQTT to a queue bound to amq.topic at another gateway, and back."""
    async with (
        await connect(cluster.one) as connection,
        MqttClient(cluster.two.address("mqtt"), Connect(V5, "meets-amqp")) as device,
    ):
        channel = await connection.channel()
        queue = await channel.declare_queue("plants", exclusive=True)
        await queue.bind("amq.topic", "plants.*.temp")
        await device.publish("plants/7/temp", b"21.5", 1)
        collector = Collector()
        await queue.consume(collector)
        (message,) = await collector.wait(1)
        assert (message.body, message.routing_key) == (b"21.5", "plants.7.temp")
        assert message.exchange == "amq.topic"
        await device.subscribe(SubscribeItem("commands/#", 1))
        exchange = await channel.get_exchange("amq.topic")
        await exchange.publish(
            Message(b"open", content_type="text/plain", headers={"who": "me"}), "commands.7"
        )
        (packet,) = await device.publishes(1)
        assert (packet.topic, packet.payload) == ("commands/7", b"open")


async def _together(collectors: tuple[Collector, ...], count: int) -> None:
    while sum(len(c.messages) for c in collectors) < count:  # noqa: ASYNC110  # a foreign client
        await asyncio.sleep(0.01)


async def test_competing_consumers_at_two_gateways(cluster: TwoGateways) -> None:
    """Each message once, to one of them."""
    async with await connect(cluster.one) as mine, await connect(cluster.two) as theirs:
        collectors = Collector(), Collector()
        for connection, collector in zip((mine, theirs), collectors, strict=True):
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=10)
            await (await channel.declare_queue("jobs", durable=True)).consume(collector)
        writer = await mine.channel()
        await asyncio.gather(
            *(
                writer.default_exchange.publish(Message(b"%d" % number), "jobs")
                for number in range(200)
            )
        )
        await asyncio.wait_for(_together(collectors, 200), PATIENCE_S)
        bodies = [message.body for collector in collectors for message in collector.messages]
        assert sorted(bodies) == sorted(b"%d" % number for number in range(200))
        assert all(collector.messages for collector in collectors)
        await writer.queue_delete("jobs")


async def test_a_delayed_exchange_routes_when_the_time_has_come(cluster: TwoGateways) -> None:
    """A queue bound meanwhile gets it too; what asks for no delay passes at once."""
    async with await connect(cluster.one) as mine, await connect(cluster.two) as theirs:
        here, there = await mine.channel(on_return_raises=True), await theirs.channel()
        exchange = await here.declare_exchange(
            "later", "x-delayed-message", arguments={"x-delayed-type": "topic"}
        )
        early = await here.declare_queue("early", auto_delete=True)
        await early.bind(exchange, "a.#")
        later = Message(b"later", headers={"x-delay": 2000}, expiration=60)
        await exchange.publish(later, "a.b", mandatory=True)
        await exchange.publish(Message(b"now"), "a.c", mandatory=True)
        late = await there.declare_queue("late", auto_delete=True)
        await late.bind("later", "*.b")
        first, second = Collector(), Collector()
        await early.consume(first)
        await late.consume(second)
        assert [message.body for message in await first.wait(2)] == [b"now", b"later"]
        (message,) = await second.wait(1)
        assert (message.body, message.exchange, message.routing_key) == (b"later", "later", "a.b")
        assert (message.headers, message.expiration) == ({"x-delay": -2000}, 60.0)
        await here.exchange_delete("later")


# ── pika ────────────────────────────────────────────────────────────────────────────────


def by_pika(daemon: Daemon, **options: float) -> pika.BlockingConnection:
    properties = {"connection_name": "pika-test"}
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            "127.0.0.1", daemon.port("amqp"), client_properties=properties, **options
        )
    )


@pytest.fixture
def blocking(cluster: TwoGateways) -> Iterator[pika.BlockingConnection]:
    connection = by_pika(cluster.one)
    yield connection
    if connection.is_open:
        connection.close()


def test_pika_confirms_returns_and_consumes(blocking: pika.BlockingConnection) -> None:
    """Publisher confirms, mandatory, consume with prefetch, requeue, multiple acks."""
    channel = blocking.channel()
    channel.queue_declare("pika", durable=True)
    channel.confirm_delivery()
    properties = pika.BasicProperties(
        content_type="text/plain", headers={"n": 1, "deep": {"a": [1, 2]}}, delivery_mode=2
    )
    for number in range(20):
        channel.basic_publish("", "pika", b"%d" % number, properties, mandatory=True)
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("", "nowhere", b"lost", mandatory=True)
    channel.basic_qos(prefetch_count=10)
    bodies = []
    for method, found, body in channel.consume("pika", inactivity_timeout=PATIENCE_S):
        assert method is not None
        assert found.headers == {"n": 1, "deep": {"a": [1, 2]}}
        if body == b"3" and not method.redelivered:
            channel.basic_nack(method.delivery_tag, requeue=True)
            continue
        bodies.append(body)
        if len(bodies) % 5 == 0:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if len(bodies) == 20:
            break
    assert sorted(bodies) == sorted(b"%d" % number for number in range(20))
    channel.cancel()
    assert channel.queue_delete("pika").method.message_count == 0


def test_pika_gets_and_recovers(blocking: pika.BlockingConnection) -> None:
    """basic.get with its count, recover, purge; tx commit."""
    channel = blocking.channel()
    name = channel.queue_declare("", exclusive=True).method.queue
    channel.tx_select()
    channel.basic_publish("", name, b"one")
    channel.basic_publish("", name, b"two")
    assert channel.basic_get(name)[0] is None
    channel.tx_commit()
    plain = blocking.channel()
    method, _, body = plain.basic_get(name)
    assert (body, method.redelivered, method.message_count) == (b"one", False, 1)
    plain.basic_recover(requeue=True)
    method, _, body = plain.basic_get(name)
    assert (body, method.redelivered, method.message_count) == (b"one", True, 1)
    assert plain.queue_purge(name).method.message_count == 1


def test_pika_sees_the_texts_of_rabbitmq(blocking: pika.BlockingConnection) -> None:
    """Channel errors leave the connection open."""
    channel = blocking.channel()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.queue_declare("nosuch", passive=True)
    assert caught.value.reply_code == 404
    assert caught.value.reply_text == "NOT_FOUND - no queue 'nosuch' in vhost '/'"
    channel = blocking.channel()
    channel.basic_publish("nosuch", "", b"")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.queue_declare("after")
    assert caught.value.reply_text == "NOT_FOUND - no exchange 'nosuch' in vhost '/'"
    assert blocking.is_open


def test_pika_stays_alive_by_heartbeats(cluster: TwoGateways) -> None:
    """Three intervals of silence: the server's heartbeats keep it."""
    for heartbeat_s in (1, 5, 20):  # a machine that stands still for two of them breaks it
        connection = by_pika(cluster.one, heartbeat=heartbeat_s)
        try:
            connection.process_data_events(time_limit=3 * heartbeat_s)
            assert connection.channel().queue_declare("", exclusive=True).method.queue
            connection.close()
        except pika.exceptions.AMQPConnectionError:
            continue
        return
    pytest.fail("not even long heartbeats keep it")
