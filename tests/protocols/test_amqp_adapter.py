"""The AMQP front with aio-pika as judge, over Services in memory: publishes, and the door."""

import asyncio

import aio_pika
import aiormq
import pamqp.body
import pamqp.commands as amqp
import pamqp.frame
import pamqp.header
import pytest
from aio_pika import DeliveryMode, ExchangeType, Message
from aio_pika.abc import AbstractChannel, AbstractRobustConnection

from protocols.amqp.adapter import AmqpAdapter
from protocols.amqp.topology import record_key
from protocols.errors import ConfigError
from tests.support.amqp_front import (
    Gateway,
    Raw,
    bind,
    consume,
    fails,
    get,
    got,
    take,
)
from tests.support.fake_services import FakeServices
from tests.support.patience import PATIENCE_S

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
        await fails(connection, lambda c: consume(c, exclusive=False), refused)
        await fails(connection, get, refused)
        await fails(connection, lambda c: c.declare_queue("none"), refused)
        await fails(connection, lambda c: bind(c, "x", ""), refused)
        await fails(connection, lambda c: bind(c, "amq.topic", "plants.*.secret"), refused)
        await channel.default_exchange.publish(Message(b"m"), "mine")
        assert await got(mine) == [b"m"]


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


async def test_a_get_waits_for_no_ack(gateway: Gateway) -> None:
    """Gets go on while acks are on their way to the disk; what looks at counts waits."""
    gate = gateway.services.pipeline.ack_gate = asyncio.Event()
    raw = await Raw.open(gateway)
    raw.send(1, amqp.Queue.Declare(0, "q"))
    for body in (b"one", b"two", b"three"):
        raw.publish(1, "q", body)
    raw.send(1, amqp.Basic.Get(0, "q", no_ack=True), amqp.Basic.Get(0, "q"), amqp.Basic.Ack(2))
    raw.send(1, amqp.Basic.Get(0, "q"), amqp.Basic.Ack(3), amqp.Queue.Delete(0, "q"))
    got = ["GetOk", "ContentHeader", "ContentBody"]
    await raw.expect("DeclareOk", *got * 3)
    gate.set()
    await raw.expect("DeleteOk")
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


async def test_virtual_hosts_are_apart() -> None:
    """The same names in two virtual hosts are two things; amq.topic too."""
    services = FakeServices()
    adapter = AmqpAdapter.from_config(
        "amqp", {"bind": "127.0.0.1:0", "vhosts": ["/", "acme"], "heartbeat_s": 5}
    )
    async with (
        services.serving(adapter, "amqp") as (_, port),
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
