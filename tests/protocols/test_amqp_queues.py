"""Queues, exchanges and their ends at one gateway and at two, with aio-pika as judge."""

from collections.abc import Mapping

import aio_pika
import aiormq
import pamqp.commands as amqp
import pytest
from aio_pika import ExchangeType, Message
from aio_pika.abc import AbstractChannel

from protocols.canonical import Call, Head, Identity, QueueRef
from protocols.canonical import Message as CanonicalMessage
from tests.support.amqp_front import Gateway, Raw, fails, got, ignore, until
from tests.support.fake_services import FakeBroker, FakeServices

# ── queues and exchanges ────────────────────────────────────────────────────────────────


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


async def test_workers_that_start_together_make_one_queue(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each declares it; a second one at the store would have taken the first one's group."""
    made = spy_on_creates(gateway, monkeypatch)
    raws = [await Raw.open(gateway) for _ in range(3)]
    for raw in raws:
        raw.send(1, amqp.Queue.Declare(0, "q", arguments={"x-max-length": 5}))
    for raw in raws:
        await raw.expect("DeclareOk")
    assert len(made) == 1
    for raw in raws:
        await raw.close()


async def test_who_lost_against_another_gateway_makes_the_winners_queue_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its own, made and dropped again, may have ended the group, and so the policy, of that."""
    broker = FakeBroker()
    one, two = Gateway(FakeServices(broker, "gw-1")), Gateway(FakeServices(broker, "gw-2"))
    made: list[QueueRef] = []
    for each in (one, two):
        made = spy_on_creates(each, monkeypatch, made)
        await each.start()
    raws = [await Raw.open(one), await Raw.open(two)]
    for raw in raws:
        raw.send(1, amqp.Queue.Declare(0, "q", arguments={"x-max-length": 5}))
    for raw in raws:
        await raw.expect("DeclareOk")
    assert list(broker.created) == [made[-1]]
    assert broker.created[made[-1]]["max_length"] == 5
    for raw in raws:
        await raw.close()
    for each in (one, two):
        await each.stop()


def spy_on_creates(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, made: list[QueueRef] | None = None
) -> list[QueueRef]:
    """What is asked of the store, in order."""
    made = [] if made is None else made
    streams = gateway.services.streams
    create = streams.create_queue

    async def spied(ref: QueueRef, policy: Mapping[str, int | str]) -> QueueRef:
        placed = await create(ref, policy)
        made.append(placed)
        return placed

    monkeypatch.setattr(streams, "create_queue", spied)
    return made


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
