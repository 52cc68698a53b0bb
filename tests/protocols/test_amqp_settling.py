"""Acks, requeues, prefetch and consumers at the AMQP front, with aio-pika as judge."""

import aio_pika
from aio_pika import Message
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from tests.support.amqp_front import (
    Gateway,
    consume,
    fails,
    got,
    ignore,
    take,
    until,
)
from tests.support.fake_services import FakeBroker, FakeServices
from tests.support.patience import PATIENCE_S


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


async def test_an_expired_message_is_not_delivered(channel: AbstractChannel) -> None:
    """Expiration 0: gone before anybody could get it."""
    queue = await channel.declare_queue("q")
    await channel.default_exchange.publish(Message(b"old", expiration=0), "q")
    await channel.default_exchange.publish(Message(b"new"), "q")
    assert await got(queue) == [b"new"]


async def test_an_exclusive_consumer_is_alone(
    connection: aio_pika.abc.AbstractConnection, channel: AbstractChannel
) -> None:
    """403 for a second consumer, and for an exclusive one beside another."""
    queue = await channel.declare_queue("q")
    tag = await queue.consume(ignore, exclusive=True)
    await fails(connection, lambda c: consume(c, exclusive=False), "in exclusive use")
    await queue.cancel(tag)
    await queue.consume(ignore)
    await fails(connection, lambda c: consume(c, exclusive=True), "in exclusive use")


async def test_an_exclusive_consumer_at_another_gateway_counts() -> None:
    """The mark is in the directory, and goes with the consumer."""
    broker = FakeBroker()
    one, two = Gateway(FakeServices(broker, "gw-1")), Gateway(FakeServices(broker, "gw-2"))
    await one.start()
    await two.start()
    async with await one.connect() as mine, await two.connect() as theirs:
        queue = await (await mine.channel()).declare_queue("q")
        tag = await queue.consume(ignore, exclusive=True)
        await fails(theirs, lambda c: consume(c, exclusive=False), "in exclusive use")
        await queue.cancel(tag)
        await consume(await theirs.channel(), exclusive=True)
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
