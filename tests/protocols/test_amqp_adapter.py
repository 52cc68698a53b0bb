"""The AMQP front with aio-pika as judge, over Services in memory."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import aio_pika
import aiormq
import pamqp.body
import pamqp.commands as amqp
import pamqp.frame
import pamqp.header
import pytest
from aio_pika import DeliveryMode, ExchangeType, Message
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractRobustConnection

from protocols.amqp import codec
from protocols.amqp.adapter import AmqpAdapter
from protocols.amqp.topology import record_key
from protocols.canonical import Call, Head, Identity
from protocols.canonical import Message as CanonicalMessage
from protocols.errors import ConfigError
from tests.support.fake_services import FakeBroker, FakeServices
from tests.support.patience import PATIENCE_S


class Gateway:
    """One AMQP listener on a fake gateway."""

    def __init__(self, services: FakeServices) -> None:
        self.services = services
        self.port = 0
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        adapter = AmqpAdapter.from_config("amqp", {"protocol": "amqp", "bind": "127.0.0.1:0"})
        self._task = asyncio.create_task(adapter.serve(self.services))
        _, self.port = await self.services.address("amqp")

    async def stop(self) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def connect(self, user: str = "guest") -> aio_pika.abc.AbstractConnection:
        return await aio_pika.connect(f"amqp://{user}:guest@127.0.0.1:{self.port}/")


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    running = Gateway(FakeServices())
    await running.start()
    yield running
    await running.stop()


@pytest.fixture
async def connection(gateway: Gateway) -> AsyncIterator[aio_pika.abc.AbstractConnection]:
    async with await gateway.connect() as opened:
        yield opened


@pytest.fixture
async def channel(
    connection: aio_pika.abc.AbstractConnection,
) -> AsyncIterator[AbstractChannel]:
    async with connection.channel() as opened:
        yield opened


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that another task will make true."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  # conditions of a fake and of a client's state
            await asyncio.sleep(0.005)


async def take(queue: aio_pika.abc.AbstractQueue, count: int) -> list[AbstractIncomingMessage]:
    """The next *count* messages, not acknowledged."""
    found: list[AbstractIncomingMessage] = []
    async with asyncio.timeout(PATIENCE_S), queue.iterator() as messages:
        async for message in messages:
            found.append(message)
            if len(found) == count:
                return found
    return found


async def got(queue: aio_pika.abc.AbstractQueue) -> list[bytes]:
    """Everything that is ready, acknowledged."""
    bodies = []
    while (message := await queue.get(fail=False, no_ack=True)) is not None:
        bodies.append(message.body)
    return bodies


# ── publish and consume ─────────────────────────────────────────────────────────────────


async def test_every_property_comes_back(channel: AbstractChannel) -> None:
    """What is published to a queue is delivered with all properties, types included."""
    queue = await channel.declare_queue("q")
    sent = Message(
        b"body",
        headers={"text": "t", "int": 7, "big": 1 << 40, "list": [1, "x"], "none": None},
        content_type="text/plain",
        content_encoding="utf-8",
        delivery_mode=DeliveryMode.PERSISTENT,
        priority=3,
        correlation_id="c",
        reply_to="r",
        expiration=600,
        message_id="m",
        timestamp=1700000000,
        type="kind",
        user_id="guest",
        app_id="app",
    )
    await channel.default_exchange.publish(sent, "q")
    (message,) = await take(queue, 1)
    assert message.body == b"body"
    assert message.exchange == ""
    assert message.routing_key == "q"
    assert not message.redelivered
    assert message.properties == sent.properties
    await message.ack()


@pytest.mark.parametrize("size", [0, 1, 131_064, 131_065, 1_000_000])
async def test_bodies_of_any_size(channel: AbstractChannel, size: int) -> None:
    """No body frame, one, several: the same bytes come out."""
    queue = await channel.declare_queue("q")
    await channel.default_exchange.publish(Message(b"x" * size), "q")
    (message,) = await take(queue, 1)
    assert message.body == b"x" * size
    await message.ack()


async def test_long_headers_come_back(channel: AbstractChannel) -> None:
    """A property block too long for a stored property rides in the queue's own copy."""
    queue = await channel.declare_queue("q")
    await channel.default_exchange.publish(Message(b"b", headers={"h": "x" * 60_000}), "q")
    message = await queue.get()
    assert message.body == b"b"
    assert message.headers["h"] == "x" * 60_000
    await message.ack()


async def test_direct_fanout_topic_headers(channel: AbstractChannel) -> None:
    """Each exchange type routes as it should."""
    queues = [await channel.declare_queue(name) for name in ("a", "b")]
    direct = await channel.declare_exchange("d", ExchangeType.DIRECT)
    fanout = await channel.declare_exchange("f", ExchangeType.FANOUT)
    topic = await channel.declare_exchange("t", ExchangeType.TOPIC)
    headers = await channel.declare_exchange("h", ExchangeType.HEADERS)
    await queues[0].bind(direct, "one")
    await queues[1].bind(direct, "two")
    for queue in queues:
        await queue.bind(fanout)
    await queues[0].bind(topic, "x.*.#")
    await queues[1].bind(topic, "#.z")
    await queues[0].bind(headers, "", arguments={"x-match": "all", "k": 1})
    await queues[1].bind(headers, "", arguments={"x-match": "any", "k": 1, "l": 2})
    await direct.publish(Message(b"d1"), "one")
    await direct.publish(Message(b"d2"), "two")
    await fanout.publish(Message(b"f"), "whatever")
    await topic.publish(Message(b"t1"), "x.y")
    await topic.publish(Message(b"t2"), "x.y.z")
    await headers.publish(Message(b"h", headers={"l": 2}), "")
    assert await got(queues[0]) == [b"d1", b"f", b"t1", b"t2"]
    assert await got(queues[1]) == [b"d2", b"f", b"t2", b"h"]


async def test_exchange_to_exchange_and_alternate(channel: AbstractChannel) -> None:
    """A message walks the graph once; what nobody wants goes to the alternate exchange."""
    queue, lost = await channel.declare_queue("q"), await channel.declare_queue("lost")
    rest = await channel.declare_exchange("rest", ExchangeType.FANOUT)
    await lost.bind(rest)
    source = await channel.declare_exchange(
        "source", ExchangeType.TOPIC, arguments={"alternate-exchange": "rest"}
    )
    target = await channel.declare_exchange("target", ExchangeType.FANOUT)
    await target.bind(source, "a.#")
    await source.bind(target, "")
    await queue.bind(target)
    await queue.bind(source, "a.b")
    await source.publish(Message(b"1"), "a.b")
    await source.publish(Message(b"2"), "zzz")
    assert await got(queue) == [b"1"]
    assert await got(lost) == [b"2"]


async def test_cc_and_bcc_route_too(channel: AbstractChannel) -> None:
    """More routing keys in the headers; BCC is not shown to anyone."""
    queues = [await channel.declare_queue(name) for name in ("a", "b", "c")]
    await channel.default_exchange.publish(Message(b"m", headers={"CC": ["b"], "BCC": ["c"]}), "a")
    for queue in queues:
        message = await queue.get(no_ack=True)
        assert message.headers == {"CC": ["b"]}
        assert message.routing_key == "a"


async def test_mandatory_is_returned_before_the_ack(
    connection: aio_pika.abc.AbstractConnection,
) -> None:
    """No queue: basic.return 312; without mandatory the publish is just acked."""
    channel = await connection.channel(on_return_raises=True)
    with pytest.raises(aio_pika.exceptions.DeliveryError) as caught:
        await channel.default_exchange.publish(Message(b"m"), "nowhere", mandatory=True)
    assert caught.value.message.delivery.reply_code == 312
    assert caught.value.message.delivery.reply_text == "NO_ROUTE"
    assert caught.value.message.body == b"m"
    await channel.default_exchange.publish(Message(b"m"), "nowhere", mandatory=False)
    exchange = await channel.get_exchange("amq.topic")
    with pytest.raises(aio_pika.exceptions.DeliveryError):
        await exchange.publish(Message(b"m"), "no.filter", mandatory=True)


async def test_many_confirms(channel: AbstractChannel) -> None:
    """Every one of many publishes at once is confirmed."""
    queue = await channel.declare_queue("q")
    await asyncio.gather(
        *(
            channel.default_exchange.publish(Message(str(n).encode()), "q", mandatory=n % 3 == 0)
            for n in range(500)
        )
    )
    state = await channel.declare_queue("q", passive=True)
    assert state.declaration_result.message_count == 500
    assert await got(queue) == [str(n).encode() for n in range(500)]


async def test_a_store_that_is_away_nacks(gateway: Gateway, channel: AbstractChannel) -> None:
    """Not stored: basic.nack, never an ack."""
    await channel.declare_queue("q")
    gateway.services.broker.is_down = True
    with pytest.raises(aio_pika.exceptions.DeliveryError):
        await channel.default_exchange.publish(Message(b"m"), "q")


async def test_a_denied_publish_ends_the_channel(gateway: Gateway) -> None:
    """403 on the channel, with the ids of basic.publish."""
    gateway.services.denied.add(("publish", "q"))
    async with await gateway.connect() as connection:
        channel = await connection.channel()
        await channel.declare_queue("q")
        with pytest.raises(aiormq.exceptions.ChannelAccessRefused, match="ACCESS_REFUSED"):
            await channel.default_exchange.publish(Message(b"m"), "q")


async def test_the_acl_judges_each_verb(gateway: Gateway) -> None:
    """403 for consume, get, bind by address, declare; an exclusive queue is one's own."""
    async with await gateway.connect() as connection:
        channel = await connection.channel()
        await channel.declare_queue("q")
        await channel.declare_exchange("x", ExchangeType.FANOUT)
        mine = await channel.declare_queue("mine", exclusive=True)
        gateway.services.denied |= {
            ("consume", "q"), ("consume", "x"), ("consume", "plants/+/secret"),
            ("consume", "none"), ("publish", "none"), ("consume", "mine"),
        }  # fmt: skip
        refused = "ACCESS_REFUSED - access to"
        await fails(connection, lambda c: _consume(c, exclusive=False), refused)
        await fails(connection, _get, refused)
        await fails(connection, lambda c: c.declare_queue("none"), refused)
        await fails(connection, lambda c: _bind(c, "x", ""), refused)
        await fails(connection, lambda c: _bind(c, "amq.topic", "plants.*.secret"), refused)
        await channel.default_exchange.publish(Message(b"m"), "mine")
        assert await got(mine) == [b"m"]


async def _get(channel: AbstractChannel) -> None:
    await (await channel.get_queue("q", ensure=False)).get()


async def _bind(channel: AbstractChannel, exchange: str, key: str) -> None:
    await (await channel.get_queue("q", ensure=False)).bind(exchange, key)


# ── settling ────────────────────────────────────────────────────────────────────────────


async def test_requeue_returns_to_its_place(channel: AbstractChannel) -> None:
    """0, 1, 3 held and 2 requeued: the next get is 2, redelivered; then the others in order."""
    queue = await channel.declare_queue("q")
    for number in range(5):
        await channel.default_exchange.publish(Message(b"%d" % number), "q")
    held = [await queue.get() for _ in range(4)]
    await held[2].nack(requeue=True)
    again = await queue.get()
    assert (again.body, again.redelivered) == (b"2", True)
    for message in (held[3], held[0], held[1]):
        await message.reject(requeue=True)
    assert await got(queue) == [b"0", b"1", b"3", b"4"]
    await again.ack()


async def test_reject_without_requeue_drops(channel: AbstractChannel) -> None:
    """It does not come back."""
    queue = await channel.declare_queue("q")
    await channel.default_exchange.publish(Message(b"m"), "q")
    (message,) = await take(queue, 1)
    await message.reject(requeue=False)
    assert await got(queue) == []


async def test_prefetch_is_exact(channel: AbstractChannel) -> None:
    """With prefetch 3 three come; each ack lets one more come; multiple acks count all."""
    queue = await channel.declare_queue("q")
    for number in range(10):
        await channel.default_exchange.publish(Message(b"%d" % number), "q")
    await channel.set_qos(prefetch_count=3)
    arrived: list[AbstractIncomingMessage] = []

    async def keep(message: AbstractIncomingMessage) -> None:
        arrived.append(message)

    await queue.consume(keep)
    await until(lambda: len(arrived) == 3)
    await arrived[0].ack()
    await until(lambda: len(arrived) == 4)
    await channel.get_underlay_channel()
    await arrived[3].ack(multiple=True)
    await until(lambda: len(arrived) == 7)
    assert [message.body for message in arrived] == [b"%d" % n for n in range(7)]


async def test_a_global_prefetch_is_shared(channel: AbstractChannel) -> None:
    """With a limit for the channel its two consumers hold so many together."""
    queues = [await channel.declare_queue(name) for name in ("a", "b")]
    for queue in queues:
        for number in range(5):
            await channel.default_exchange.publish(Message(b"%d" % number), queue.name)
    await channel.set_qos(prefetch_count=4, global_=True)
    arrived: list[AbstractIncomingMessage] = []

    async def keep(message: AbstractIncomingMessage) -> None:
        arrived.append(message)

    for queue in queues:
        await queue.consume(keep)
    await until(lambda: len(arrived) == 4)
    seen = 0
    while seen < 10:
        await until(lambda: len(arrived) > seen)  # noqa: B023  # awaited at once
        assert len(arrived) - seen <= 4
        await arrived[seen].ack()
        seen += 1
    assert sorted(message.body for message in arrived) == sorted(
        b"%d" % n for n in range(5)
    ) * 2 or (len(arrived) == 10)


async def test_a_closed_channel_gives_back(
    connection: aio_pika.abc.AbstractConnection, channel: AbstractChannel
) -> None:
    """After close-ok what it held is ready again, in order, redelivered."""
    queue = await channel.declare_queue("q")
    for number in range(3):
        await channel.default_exchange.publish(Message(b"%d" % number), "q")
    other = await connection.channel()
    theirs = await other.get_queue("q")
    await take(theirs, 2)
    await theirs.get()
    await other.close()
    first = await queue.get(no_ack=True)
    assert (first.body, first.redelivered) == (b"0", True)
    assert await got(queue) == [b"1", b"2"]


async def test_two_consumers_compete(channel: AbstractChannel) -> None:
    """Each message goes to one of them."""
    queue = await channel.declare_queue("q")
    bodies: list[bytes] = []

    async def take_one(message: AbstractIncomingMessage) -> None:
        bodies.append(message.body)
        await message.ack()

    await queue.consume(take_one)
    await queue.consume(take_one)
    for number in range(50):
        await channel.default_exchange.publish(Message(b"%d" % number), "q")
    await until(lambda: len(bodies) == 50)
    assert sorted(bodies) == sorted(b"%d" % n for n in range(50))


async def test_no_ack_consumers_get_everything(channel: AbstractChannel) -> None:
    """More messages than any window, none to be acked."""
    queue = await channel.declare_queue("q")
    for number in range(2500):
        await channel.default_exchange.publish(
            Message(b"%d" % number), "q", mandatory=False, timeout=PATIENCE_S
        )
    bodies: list[bytes] = []

    async def append(message: AbstractIncomingMessage) -> None:
        bodies.append(message.body)

    await queue.consume(append, no_ack=True)
    await until(lambda: len(bodies) == 2500)
    assert bodies == [b"%d" % n for n in range(2500)]
    assert (await channel.declare_queue("q", passive=True)).declaration_result.message_count == 0


async def ignore(message: AbstractIncomingMessage) -> None:
    """A consumer that acknowledges nothing."""


async def test_an_expired_message_is_not_delivered(channel: AbstractChannel) -> None:
    """Expiration 0: gone before anybody could get it."""
    queue = await channel.declare_queue("q")
    await channel.default_exchange.publish(Message(b"old", expiration=0), "q")
    await channel.default_exchange.publish(Message(b"new"), "q")
    assert await got(queue) == [b"new"]


# ── queues and exchanges ────────────────────────────────────────────────────────────────


async def fails(
    connection: aio_pika.abc.AbstractConnection, act: Callable[[AbstractChannel], object], text: str
) -> None:
    """*act* ends its channel, with this text."""
    channel = await connection.channel()
    with pytest.raises(aiormq.exceptions.AMQPChannelError, match=text):
        await act(channel)  # type: ignore[misc]


async def test_refusals_have_rabbitmqs_texts(connection: aio_pika.abc.AbstractConnection) -> None:
    """404, 405, 406 and 403, each on its channel."""
    first = await connection.channel()
    await first.declare_queue("q", arguments={"x-message-ttl": 5000})
    await first.declare_exchange("x", ExchangeType.DIRECT)
    await fails(
        connection, lambda c: c.declare_queue("no", passive=True), "no queue 'no' in vhost '/'"
    )
    await fails(
        connection, lambda c: c.get_exchange("no", ensure=True), "no exchange 'no' in vhost '/'"
    )
    await fails(
        connection,
        lambda c: c.declare_queue("q", auto_delete=True),
        "inequivalent arg 'auto_delete' for queue 'q' in vhost '/': received 'true' but current "
        "is 'false'",
    )
    await fails(
        connection,
        lambda c: c.declare_queue("q"),
        "inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': received none but current "
        "is the value '5000' of type",
    )
    await fails(
        connection,
        lambda c: c.declare_exchange("x", ExchangeType.TOPIC),
        "inequivalent arg 'type' for exchange 'x' in vhost '/': received 'topic' but current is "
        "'direct'",
    )
    await fails(connection, lambda c: c.declare_queue("amq.mine"), "reserved prefix")
    await fails(
        connection, lambda c: c.declare_queue("z", arguments={"x-expires": 0}), "invalid arg"
    )
    await first.declare_queue("q", arguments={"x-message-ttl": 5000})


async def test_exclusive_queues_belong_to_their_connection(gateway: Gateway) -> None:
    """405 for others; gone with the connection."""
    async with await gateway.connect() as mine, await gateway.connect() as theirs:
        channel = await mine.channel()
        await channel.declare_queue("only", exclusive=True)
        await fails(theirs, lambda c: c.declare_queue("only", exclusive=True), "RESOURCE_LOCKED")
        await mine.close()
        other = await theirs.channel()
        await until(lambda: not list(gateway.services.directory.items("amqp/%2F/queue")))
        await other.declare_queue("only", exclusive=True)


async def test_auto_delete_goes_with_the_last_consumer(
    connection: aio_pika.abc.AbstractConnection, channel: AbstractChannel
) -> None:
    """Not before there was one."""
    queue = await channel.declare_queue("q", auto_delete=True)
    await channel.default_exchange.publish(Message(b"m"), "q")
    tag = await queue.consume(ignore)
    await queue.cancel(tag)
    await fails(connection, lambda c: c.declare_queue("q", passive=True), "NOT_FOUND")


async def test_server_named_queues(channel: AbstractChannel) -> None:
    """amq.gen- and 22 characters."""
    queue = await channel.declare_queue(exclusive=True)
    assert queue.name.startswith("amq.gen-")
    assert len(queue.name) == 30


async def test_purge_and_delete_count(channel: AbstractChannel) -> None:
    """Ready messages only; deleting an unknown queue is fine."""
    queue = await channel.declare_queue("q")
    for _ in range(3):
        await channel.default_exchange.publish(Message(b"m"), "q")
    await queue.get()
    assert (await queue.purge()).message_count == 2
    await channel.default_exchange.publish(Message(b"m"), "q")
    assert (await channel.queue_delete("q")).message_count == 1
    assert (await channel.queue_delete("q")).message_count == 0


async def test_a_deleted_queue_cancels_its_consumers(
    gateway: Gateway, channel: AbstractChannel
) -> None:
    """basic.cancel from the server."""
    queue = await channel.declare_queue("q")
    await queue.consume(ignore, consumer_tag="c")
    underlay = await channel.get_underlay_channel()
    assert "c" in underlay.consumers
    await channel.queue_delete("q")
    await until(lambda: "c" not in underlay.consumers)


async def test_who_deletes_a_queue_hears_of_that_before_its_consumer_does(
    gateway: Gateway,
) -> None:
    """Both at once, without any other traffic."""
    raw = await Raw.open(gateway, properties={"capabilities": {"consumer_cancel_notify": True}})
    raw.send(1, amqp.Queue.Declare(0, "q"), amqp.Basic.Consume(0, "q", "tag"))
    await raw.expect("DeclareOk", "ConsumeOk")
    raw.send(1, amqp.Queue.Delete(0, "q"))
    _, cancel = await raw.expect("DeleteOk", "Cancel")
    assert cancel.consumer_tag == "tag"
    await raw.close()


async def test_an_exclusive_queue_may_delete_itself(gateway: Gateway) -> None:
    """The connection goes on, and what others then call by its name is not its own."""
    connection = await gateway.connect()
    channel = await connection.channel()
    queue = await channel.declare_queue("q", exclusive=True, auto_delete=True)
    await queue.cancel(await queue.consume(ignore))
    other = await gateway.connect()
    theirs = await other.channel()
    await theirs.declare_queue("q", durable=True)
    await channel.declare_queue("q", passive=True)
    await connection.close()
    await theirs.declare_queue("q", passive=True)
    await other.close()


async def test_unbind_and_delete_stop_the_flow(channel: AbstractChannel) -> None:
    """After unbind nothing more arrives; a deleted exchange is 404 to publishers."""
    queue = await channel.declare_queue("q")
    exchange = await channel.declare_exchange("x", ExchangeType.FANOUT)
    await queue.bind(exchange)
    await exchange.publish(Message(b"1"), "")
    await queue.unbind(exchange)
    await exchange.publish(Message(b"2"), "")
    assert await got(queue) == [b"1"]
    await exchange.delete()
    gone = await channel.get_exchange("x", ensure=False)
    with pytest.raises(aiormq.exceptions.ChannelNotFoundEntity):
        await gone.publish(Message(b"3"), "")


async def test_transactions(connection: aio_pika.abc.AbstractConnection) -> None:
    """Nothing is visible before commit; rollback forgets."""
    reader = await connection.channel()
    queue = await reader.declare_queue("q")
    channel = await connection.channel(publisher_confirms=False)
    async with channel.transaction():
        await channel.default_exchange.publish(Message(b"1"), "q")
        assert await got(queue) == []
    assert await got(queue) == [b"1"]
    transaction = channel.transaction()
    await transaction.select()
    await channel.default_exchange.publish(Message(b"2"), "q")
    await transaction.rollback()
    assert await got(queue) == []


# ── other gateways, other protocols ─────────────────────────────────────────────────────


async def test_two_gateways_share_queues() -> None:
    """Declared at one, published at the other, consumed at the first."""
    broker = FakeBroker()
    one, two = Gateway(FakeServices(broker, "gw-1")), Gateway(FakeServices(broker, "gw-2"))
    await one.start()
    await two.start()
    async with await one.connect() as mine, await two.connect() as theirs:
        queue = await (await mine.channel()).declare_queue("q")
        exchange = await (await mine.channel()).declare_exchange("x", ExchangeType.TOPIC)
        await queue.bind(exchange, "a.*")
        other = await theirs.channel()
        await (await other.get_exchange("x")).publish(Message(b"m"), "a.b", mandatory=True)
        assert await got(queue) == [b"m"]
        await other.queue_delete("q")
        await fails(mine, lambda c: c.declare_queue("q", passive=True), "NOT_FOUND")
    await one.stop()
    await two.stop()


async def test_amq_topic_meets_mqtt(gateway: Gateway, channel: AbstractChannel) -> None:
    """An MQTT publish reaches a queue bound to amq.topic, with an address and properties."""
    queue = await channel.declare_queue("q")
    await queue.bind("amq.topic", "plants.*.temp.#")
    call = Call(protocol="mqtt", listener="mqtt", identity=Identity(name="d1"), client_id="d1")
    head = Head(
        subject="plants/9/temp", qos=1, properties=(("mqtt_topic", "plants/9/temp"), ("unit", "C"))
    )
    await gateway.services.pipeline.send(
        call,
        [CanonicalMessage(head, b"21.5", (("TG_CONTENT_TYPE", "text/plain"),), "ID1")],
    )
    message = await queue.get(no_ack=True)
    assert (message.exchange, message.routing_key) == ("amq.topic", "plants.9.temp")
    assert message.content_type == "text/plain"
    assert message.message_id == "ID1"
    assert message.headers == {"unit": "C"}
    exchange = await channel.get_exchange("amq.topic")
    await exchange.publish(Message(b"22", content_type="a/b", headers={"k": 5}), "plants.1.temp.x")
    stored = gateway.services.broker.log[-1].message
    assert stored.subject == "plants/1/temp/x"
    assert stored.properties["TG_CONTENT_TYPE"] == "a/b"
    assert stored.properties["k"] == "5"
    again = await queue.get(no_ack=True)
    assert (again.exchange, again.routing_key) == ("amq.topic", "plants.1.temp.x")
    assert again.headers == {"k": 5}
    await queue.unbind("amq.topic", "plants.*.temp.#")
    assert not gateway.services.broker.rows


async def test_a_dead_gateways_exclusive_queues_go() -> None:
    """When its lease ends the directory drops the record, another gateway drops the queue."""
    broker = FakeBroker()
    one, two = Gateway(FakeServices(broker, "gw-1")), Gateway(FakeServices(broker, "gw-2"))
    await one.start()
    await two.start()
    connection = await one.connect()
    channel = await connection.channel()
    await channel.declare_queue("only", exclusive=True)
    broker.end_lease("gw-1", 1)
    await until(lambda: not broker.created)
    await connection.close()
    await one.stop()
    await two.stop()


async def test_a_lost_lease_ends_connections_with_exclusive_queues(gateway: Gateway) -> None:
    """Their queues are gone: they are told to come again; the others stay."""
    raw, other = await Raw.open(gateway), await Raw.open(gateway)
    raw.send(1, amqp.Queue.Declare(0, "mine", exclusive=True))
    other.send(1, amqp.Queue.Declare(0, "q"))
    await raw.expect("DeclareOk")
    await other.expect("DeclareOk")
    gateway.services.broker.end_lease("gw-1", 1)
    (close,) = await raw.expect("Close")
    assert close.reply_code == 320
    other.send(1, amqp.Queue.Declare(0, "q", passive=True))
    await other.expect("DeclareOk")
    await raw.close()
    await other.close()


# ── the door ────────────────────────────────────────────────────────────────────────────


async def test_wrong_password_and_unknown_vhost(gateway: Gateway) -> None:
    """403 and 530, as exceptions that clients know."""
    gateway.services.users["guest"] = b"secret"
    with pytest.raises(aiormq.exceptions.ProbableAuthenticationError):
        await gateway.connect()
    gateway.services.users.clear()
    with pytest.raises(aiormq.exceptions.AMQPError, match="Close"):
        await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{gateway.port}/nosuch")


async def test_a_channel_closes_and_another_opens(
    connection: aio_pika.abc.AbstractConnection,
) -> None:
    """Channel churn, with numbers used again."""
    for _ in range(50):
        channel = await connection.channel()
        await channel.close()


class Raw:
    """A client that writes bytes and reads frames (pamqp's), nothing more."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, gateway: Gateway, *, properties: dict[str, object] | None = None) -> "Raw":
        raw = cls(*await asyncio.open_connection("127.0.0.1", gateway.port))
        start = amqp.Connection.StartOk(properties or {}, "PLAIN", "\0guest\0guest", "en_US")
        raw.writer.write(codec.PROTOCOL_HEADER)
        raw.send(0, start, amqp.Connection.TuneOk(0, 131072, 0), amqp.Connection.Open("/"))
        raw.send(1, amqp.Channel.Open())
        await raw.expect("Start", "Tune", "OpenOk", "OpenOk")
        return raw

    def send(self, channel: int, *methods: object) -> None:
        for method in methods:
            self.writer.write(pamqp.frame.marshal(method, channel))

    def publish(self, channel: int, key: str, body: bytes) -> None:
        self.send(
            channel,
            amqp.Basic.Publish(0, "", key),
            pamqp.header.ContentHeader(0, len(body), amqp.Basic.Properties()),
            pamqp.body.ContentBody(body),
        )

    async def next(self) -> object:
        async with asyncio.timeout(PATIENCE_S):
            head = await self.reader.readexactly(7)
            rest = await self.reader.readexactly(int.from_bytes(head[3:7], "big") + 1)
        return pamqp.frame.unmarshal(head + rest)[2]

    async def expect(self, *names: str) -> list[object]:
        frames = [await self.next() for _ in names]
        assert [type(frame).__name__ for frame in frames] == list(names)
        return frames

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


async def test_everything_in_one_segment(gateway: Gateway) -> None:
    """Handshake, declare, publish, get and delete, written before anything is read."""
    raw = await Raw.open(gateway)
    raw.send(1, amqp.Queue.Declare(0, "q"))
    raw.publish(1, "q", b"one")
    raw.publish(1, "q", b"two")
    raw.send(1, amqp.Basic.Get(0, "q"), amqp.Basic.Get(0, "q", no_ack=True))
    raw.send(1, amqp.Basic.Ack(1), amqp.Queue.Delete(0, "q"), amqp.Channel.Close(200, "", 0, 0))
    names = ["DeclareOk", *["GetOk", "ContentHeader", "ContentBody"] * 2, "DeleteOk", "CloseOk"]
    frames = await raw.expect(*names)
    assert frames[1].message_count == 1
    assert frames[3].value == b"one"
    await raw.close()


async def test_a_publish_to_nowhere_ends_its_channel_only(gateway: Gateway) -> None:
    """404 with the ids of basic.publish; what follows on the channel is void until close-ok."""
    raw = await Raw.open(gateway)
    raw.send(2, amqp.Channel.Open())
    raw.send(
        1,
        amqp.Basic.Publish(0, "nosuch", "k"),
        pamqp.header.ContentHeader(0, 0, amqp.Basic.Properties()),
        amqp.Queue.Declare(0, "void"),
    )
    _, close = await raw.expect("OpenOk", "Close")
    assert (close.reply_code, close.class_id, close.method_id) == (404, 60, 40)
    raw.send(1, amqp.Channel.CloseOk(), amqp.Channel.Open(), amqp.Queue.Declare(0, "q"))
    raw.send(2, amqp.Queue.Declare(0, "p"))
    assert {type(await raw.next()).__name__ for _ in range(3)} == {"OpenOk", "DeclareOk"}
    assert {rec.key for rec in gateway.services.directory.items("amqp/%2F/queue")} == {
        record_key("/", "queue", "q"), record_key("/", "queue", "p")
    }  # fmt: skip
    await raw.close()


@pytest.mark.parametrize(
    "junk",
    [
        b"\x01\x00\x01\x00\x00\x00\x05\x00\x3c\x00\x28\x00\xce",  # a publish cut short
        b"\x03\x00\x01\x00\x00\x00\x01x\xce",  # a body out of the blue
        b"\xff" * 64,
        b"\x01\x00\x01\xff\xff\xff\xff",  # 4 GiB announced
        b"\x01\x00\x09\x00\x00\x00\x05\x00\x3c\x00\x0b\x00\xce",  # qos-ok, channel 9
    ],
)
async def test_junk_ends_its_connection_only(gateway: Gateway, junk: bytes) -> None:
    """In AMQP's words; the next client is served."""
    raw, other = await Raw.open(gateway), await Raw.open(gateway)
    raw.writer.write(junk)
    if junk[:2] == b"\x01\x00" and junk[8:9] == b"\x3c":
        raw.writer.write(b"\x02\x00\x01\x00\x00\x00\x00\xce")
    (close,) = await raw.expect("Close")
    assert 501 <= close.reply_code <= 505
    raw.send(0, amqp.Connection.CloseOk())
    assert await raw.reader.read() == b""
    other.send(1, amqp.Queue.Declare(0, "q"))
    await other.expect("DeclareOk")
    await raw.close()
    await other.close()


async def test_a_store_that_is_behind_blocks_publishers(gateway: Gateway) -> None:
    """connection.blocked, reading stops; unblocked and everything is taken when it is clear."""
    raw = await Raw.open(gateway, properties={"capabilities": {"connection.blocked": True}})
    raw.send(1, amqp.Queue.Declare(0, "q"), amqp.Confirm.Select())
    await raw.expect("DeclareOk", "SelectOk")
    broker = gateway.services.broker
    broker.is_congested = True
    raw.publish(1, "q", b"1")
    assert {type(await raw.next()).__name__ for _ in range(2)} == {"Ack", "Blocked"}
    raw.publish(1, "q", b"2")
    broker.is_congested = False
    for resume in broker.clear_waiters:
        resume()
    assert {type(await raw.next()).__name__ for _ in range(2)} == {"Ack", "Unblocked"}
    await raw.close()


async def test_an_exclusive_consumer_is_alone(
    connection: aio_pika.abc.AbstractConnection, channel: AbstractChannel
) -> None:
    """403 for a second consumer, and for an exclusive one beside another."""
    queue = await channel.declare_queue("q")
    tag = await queue.consume(ignore, exclusive=True)
    await fails(connection, lambda c: _consume(c, exclusive=False), "in exclusive use")
    await queue.cancel(tag)
    await queue.consume(ignore)
    await fails(connection, lambda c: _consume(c, exclusive=True), "in exclusive use")


async def _consume(channel: AbstractChannel, *, exclusive: bool) -> None:
    queue = await channel.get_queue("q", ensure=False)
    await queue.consume(ignore, exclusive=exclusive)


async def test_an_exclusive_consumer_at_another_gateway_counts() -> None:
    """The mark is in the directory, and goes with the consumer."""
    broker = FakeBroker()
    one, two = Gateway(FakeServices(broker, "gw-1")), Gateway(FakeServices(broker, "gw-2"))
    await one.start()
    await two.start()
    async with await one.connect() as mine, await two.connect() as theirs:
        queue = await (await mine.channel()).declare_queue("q")
        tag = await queue.consume(ignore, exclusive=True)
        await fails(theirs, lambda c: _consume(c, exclusive=False), "in exclusive use")
        await queue.cancel(tag)
        await _consume(await theirs.channel(), exclusive=True)
    await one.stop()
    await two.stop()


async def test_cancelled_consumers_keep_what_they_hold(channel: AbstractChannel) -> None:
    """After basic.cancel the unacknowledged can still be acked; nothing new comes."""
    queue = await channel.declare_queue("q")
    await channel.set_qos(prefetch_count=2)
    held: list[AbstractIncomingMessage] = []

    async def keep(message: AbstractIncomingMessage) -> None:
        held.append(message)

    tag = await queue.consume(keep)
    for number in range(4):
        await channel.default_exchange.publish(Message(b"%d" % number), "q")
    await until(lambda: len(held) == 2)
    await queue.cancel(tag)
    await held[0].ack()
    await held[1].nack(requeue=True)
    assert await got(queue) == [b"1", b"2", b"3"]


async def test_virtual_hosts_are_apart() -> None:
    """The same names in two virtual hosts are two things; amq.topic too."""
    services = FakeServices()
    adapter = AmqpAdapter.from_config(
        "amqp", {"bind": "127.0.0.1:0", "vhosts": ["/", "acme"], "heartbeat_s": 5}
    )
    task = asyncio.create_task(adapter.serve(services))
    _, port = await services.address("amqp")
    async with (
        await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{port}/") as one,
        await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{port}/acme") as two,
    ):
        channels = await one.channel(), await two.channel()
        queues = [await channel.declare_queue("q") for channel in channels]
        for queue in queues:
            await queue.bind("amq.topic", "k")
        await channels[0].default_exchange.publish(Message(b"root"), "q")
        await (await channels[1].get_exchange("amq.topic")).publish(Message(b"acme"), "k")
        assert await got(queues[0]) == [b"root"]
        assert await got(queues[1]) == [b"acme"]
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_shutdown_tells_the_clients(gateway: Gateway) -> None:
    """connection.close 320 when the gateway stops."""
    connection: AbstractRobustConnection = await gateway.connect()  # type: ignore[assignment]
    closed: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    connection.close_callbacks.add(lambda _, error: closed.done() or closed.set_result(error))
    await gateway.stop()
    error = await asyncio.wait_for(closed, PATIENCE_S)
    assert "CONNECTION_FORCED" in str(error)
    await connection.close()


def test_bad_settings_name_the_key() -> None:
    """Every mistake at once."""
    with pytest.raises(ConfigError) as caught:
        AmqpAdapter.from_config("amqp", {"bind": "127.0.0.1:5672", "heartbeat_s": -1, "vhost": "/"})
    assert len(caught.value.problems) == 2
