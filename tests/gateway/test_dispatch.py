"""Late entries: what a store got without a gateway reaches every subscription, once."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from protocols import clock
from protocols.canonical import QueueKind, QueueRef
from protocols.directory import Subscription
from protocols.groups import GroupSpec, Read, Start
from protocols.remoting.client import RemotingClient
from store.answers import TopicConfig
from tests.support.core import Core, ListSink, call, messages, until
from tests.support.daemons import StoreCluster
from tests.support.direct_producer import send_direct
from tests.support.patience import PATIENCE_S


class World:
    """Two stores, a gateway, and a producer that knows nothing of it."""

    def __init__(self, stores: StoreCluster, core: Core, producer: RemotingClient) -> None:
        self.stores = stores
        self.core = core
        self.producer = producer

    async def subscribe(self, core: Core, subject_filter: str, owner: str) -> ListSink:
        queue = QueueRef(QueueKind.FILTER, subject_filter)
        version = await core.directory.subscribe([Subscription(subject_filter, queue, owner)])
        await core.directory.barrier(version)
        sink = ListSink()
        spec = GroupSpec(name=owner, reads=(Read(queue),), is_inherited=True)
        sink.stream = await core.streams.open(call(), spec, sink, credit=1000)  # type: ignore[attr-defined]
        return sink

    async def bind(self, subject_filter: str, store: str) -> GroupSpec:
        """A queue pinned to *store*, bound as an AMQP queue would be."""
        wanted = QueueRef(QueueKind.AMQP, f"/{store}", incarnation=1, store=store)
        queue = await self.core.streams.create_queue(wanted, {})
        row = Subscription(subject_filter, queue, f"amqp/{store}")
        await self.core.directory.barrier(await self.core.directory.subscribe([row]))
        return GroupSpec(name=f"amqp/{store}", reads=(Read(queue),), start=Start.EARLIEST)

    def dispatched(self, store: str) -> bool:
        """Nothing waits for a gateway at this store."""
        engine = self.stores.stores[store]._engine
        assert engine is not None
        group = engine.group_number("$dispatch")
        return (
            bool(group)
            and not engine.ready_count(group)
            and not engine.group_state(group).in_flight
        )


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    stores = StoreCluster(tmp_path)
    await stores.start("a", "b")
    core = Core("gw-1", stores.name_servers)
    await core.start(store_count=2)
    await until(lambda: stores.stores["a"]._engine.group_number("$dispatch"))
    producer = await RemotingClient.connect(stores.stores["a"].address)
    yield World(stores, core, producer)
    await producer.close()
    await core.stop()
    await stores.stop()


async def test_a_direct_send_reaches_filters_and_pinned_queues(world: World) -> None:
    """Queues of its own store by an index record, those of another store by one copy."""
    sink = await world.subscribe(world.core, "direct/#", "mqtt//s")
    queues = {store: await world.bind("direct", store) for store in ("a", "b")}
    got = {}
    for store, spec in queues.items():
        got[store] = ListSink()
        await world.core.streams.open(call(), spec, got[store], credit=10)
    for number in range(5):
        await send_direct(world.producer, "direct", b"%d" % number, TAGS="red")
    bodies = [b"%d" % number for number in range(5)]
    assert [d.message.body for d in await sink.wait(5)] == bodies
    for found in got.values():
        deliveries = await found.wait(5)
        assert [d.message.body for d in deliveries] == bodies
        assert {d.message.properties["TAGS"] for d in deliveries} == {"red"}
    await until(lambda: world.dispatched("a") and world.dispatched("b"))
    high = sum(world.stores.stores["a"]._engine.offset_range("direct", at)[1] for at in range(4))
    assert high == 5  # the topic has each of them once


async def test_what_nobody_wants_is_done(world: World) -> None:
    await send_direct(world.producer, "lonely", b"x")
    await until(lambda: world.dispatched("a"))


async def test_a_gateway_that_goes_leaves_nothing_behind(world: World) -> None:
    """Sent while no gateway is there: the next one matches it, each message once."""
    sink = await world.subscribe(world.core, "direct", "mqtt//s")
    await send_direct(world.producer, "direct", b"0")
    await sink.wait(1)
    sink.stream.ack([delivery.handle for delivery in sink.deliveries])  # type: ignore[attr-defined]
    await until(lambda: world.dispatched("a"))
    await world.core.stop()
    for number in range(1, 4):
        await send_direct(world.producer, "direct", b"%d" % number)
    world.core = Core("gw-2", world.stores.name_servers)
    await world.core.start(store_count=2)
    again = await world.subscribe(world.core, "direct", "mqtt//s")
    assert [d.message.body for d in await again.wait(3)] == [b"1", b"2", b"3"]
    await until(lambda: world.dispatched("a"))
    assert len(again.deliveries) == 3


async def test_two_gateways_share_the_work(world: World) -> None:
    """Each message is matched by one of them, and comes once."""
    other = Core("gw-2", world.stores.name_servers)
    await other.start(store_count=2)
    sink = await world.subscribe(world.core, "direct", "mqtt//s")
    for number in range(50):
        await send_direct(world.producer, "direct", b"%d" % number)
    await sink.wait(50)
    await until(lambda: world.dispatched("a"))
    assert sorted(int(d.message.body) for d in sink.deliveries) == list(range(50))
    await other.stop()


async def test_a_message_of_a_gateway_has_no_entry(world: World) -> None:
    """It was matched before it was stored: nothing is dispatched."""
    engine = world.stores.stores["a"]._engine
    assert engine is not None
    engine.catalog.put_topic(TopicConfig("sent", 1, 1), clock.read())
    sink = await world.subscribe(world.core, "sent/#", "mqtt//s")
    await world.core.pipeline.send(call(), messages("sent/x", b"1"))
    await sink.wait(1)
    dispatch = QueueRef(QueueKind.DISPATCH, "$dispatch").key()
    assert engine.light_queues.stat(dispatch, "").stored_count == 0


async def test_a_delayed_retained_value_is_set_and_cleared_when_it_is_due(world: World) -> None:
    """Not before; an empty one takes it from every store that could have it."""
    streams, pipeline = world.core.streams, world.core.pipeline

    async def values() -> list[bytes]:
        return [value.body for value in await streams.retained("", ["later/#"])]

    async def until_values(wanted: list[bytes]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while await values() != wanted:  # noqa: ASYNC110 - any condition
                await asyncio.sleep(0.05)

    for body in (b"kept", b""):
        before = await values()
        (message,) = messages("later/t", body, retain=True, clears_retained=not body)
        due_ms = clock.wall_ms() + 1000
        await pipeline.send(call(), [message._replace(deliver_at_ms=due_ms)])
        found = await values()
        assert found == before or clock.wall_ms() >= due_ms
        await until_values([body] if body else [])
