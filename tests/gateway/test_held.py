"""Delayed messages and transactions through the pipeline: matched when they become visible."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from protocols import clock
from protocols.canonical import Call, Message, QueueKind, QueueRef, SendResult
from protocols.directory import Subscription
from protocols.errors import Code, Refused
from protocols.groups import GroupSpec, Read
from protocols.remoting.delays import RecallHandle
from protocols.rocketmq import HalfCheck, HalfPlace
from store.answers import TopicConfig
from tests.support.core import Core, ListSink, call, messages, until
from tests.support.daemons import StoreCluster
from tests.support.patience import PATIENCE_S


class World:
    def __init__(self, stores: StoreCluster, core: Core) -> None:
        self.stores = stores
        self.core = core

    async def subscribe(self, subject_filter: str) -> ListSink:
        queue = QueueRef(QueueKind.FILTER, subject_filter)
        owner = f"mqtt//{subject_filter}"
        version = await self.core.directory.subscribe([Subscription(subject_filter, queue, owner)])
        await self.core.directory.barrier(version)
        sink = ListSink()
        spec = GroupSpec(name=owner, reads=(Read(queue),), is_inherited=True)
        await self.core.streams.open(call(), spec, sink, credit=1000)
        return sink

    async def send(self, *found: Message, who: Call | None = None) -> list[SendResult]:
        results = await self.core.pipeline.send(who or call(), found)
        assert [result.code for result in results] == [Code.OK] * len(found)
        return list(results)

    def held(self) -> tuple[int, int]:
        """Delayed and half messages of all stores."""
        counts = [store._engine.held.counts for store in self.stores.stores.values()]  # type: ignore[union-attr]
        return sum(delayed for delayed, _ in counts), sum(halves for _, halves in counts)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    stores = StoreCluster(tmp_path)
    for_checks = {"transactions": {"timeout_ms": 150, "interval_ms": 150, "checks_max": 1000}}
    await stores.start("a", "b", **for_checks)
    core = Core("gw-1", stores.name_servers)
    await core.start(store_count=2)
    for store in stores.stores.values():
        store._engine.catalog.put_topic(TopicConfig("t", 2, 2), clock.read())  # type: ignore[union-attr]
    await until(lambda: core.cluster.routes.exists("t"))
    yield World(stores, core)
    await core.stop()
    await stores.stop()


def half(subject: str, body: bytes, group: str = "P") -> Message:
    (message,) = messages(subject, body, topic="t")
    return message._replace(producer_group=group)


def place_of(result: SendResult, group: str = "P") -> HalfPlace:
    return HalfPlace(result.cluster, result.broker, result.log_position, result.queue_offset, group)


async def test_a_delayed_publish_reaches_those_who_subscribe_meanwhile(world: World) -> None:
    """Not the tables of the send count but those of its time; neighbours are not delayed."""
    early = await world.subscribe("t/#")
    due_ms = clock.wall_ms() + 5000
    now, later = messages("t/x", b"now", b"later")
    await world.send(now, later._replace(deliver_at_ms=due_ms))
    assert world.held() == (1, 0)
    late = await world.subscribe("t/+")
    assert [d.message.body for d in await early.wait(1)] == [b"now"]
    for sink, count in ((early, 2), (late, 1)):
        found = (await sink.wait(count))[-1]
        assert found.message.body == b"later"
        assert found.message.store_ms >= due_ms
        assert found.message.subject == "t/x"
    assert world.held() == (0, 0)


async def test_a_pinned_queue_gets_a_delayed_message_that_names_it(world: World) -> None:
    """As AMQP publishes: exactly these queues, also one on another store, once each."""
    refs = []
    for store in ("a", "b"):
        wanted = QueueRef(QueueKind.AMQP, f"/{store}", incarnation=1, store=store)
        refs.append(await world.core.streams.create_queue(wanted, {}))
    sinks = [ListSink(), ListSink()]
    for ref, sink in zip(refs, sinks, strict=True):
        spec = GroupSpec(name=f"amqp/{ref.store}", reads=(Read(ref),))
        await world.core.streams.open(call(), spec, sink, credit=10)
    due_ms = clock.wall_ms() + 300
    (message,) = messages("t", b"x", queues=tuple(refs), is_in_topic=False)
    await world.send(message._replace(deliver_at_ms=due_ms))
    for sink in sinks:
        (found,) = await sink.wait(1)
        assert found.message.store_ms >= due_ms


async def test_recall(world: World) -> None:
    due_ms = clock.wall_ms() + 3_600_000
    (message,) = messages("t", b"x", topic="t")
    (result,) = await world.send(message._replace(deliver_at_ms=due_ms))
    handle = RecallHandle("t", result.broker, due_ms, result.message_id)
    assert await world.core.held.recall("t", handle.encode()) == result.message_id
    assert world.held() == (0, 0)
    for topic, text in (("t", handle.encode()), ("u", handle.encode()), ("t", "?")):
        with pytest.raises(Refused):
            await world.core.held.recall(topic, text)


async def test_commit_and_rollback(world: World) -> None:
    sink = await world.subscribe("t")
    results = await world.send(half("t", b"no"), half("t", b"yes"))
    assert world.held() == (0, 2)
    await world.core.held.end_transaction(place_of(results[0]), is_commit=False)
    with pytest.raises(Refused):
        await world.core.held.end_transaction(place_of(results[1], "Q"), is_commit=True)
    await world.core.held.end_transaction(place_of(results[1]), is_commit=True)
    assert [d.message.body for d in await sink.wait(1)] == [b"yes"]
    assert world.held() == (0, 0)


async def test_a_question_reaches_a_producer_and_its_answer_counts(world: World) -> None:
    """At whichever gateway it is; once the last producer is gone, nobody is asked."""
    checks: asyncio.Queue[HalfCheck] = asyncio.Queue()
    undo = world.core.held.answer_checks("P", checks.put_nowait)
    (result,) = await world.send(half("t", b"x"))
    async with asyncio.timeout(PATIENCE_S):
        check = await checks.get()
    assert (check.message.body, check.message.topic) == (b"x", "t")
    assert (check.place.broker, check.place.position) == (result.broker, result.log_position)
    await world.core.held.end_transaction(check.place, is_commit=True)
    assert world.held() == (0, 0)
    undo()
    engine = world.stores.stores[result.broker]
    await until(lambda: not engine._server.context.clients.producers("P"))  # type: ignore[union-attr]


async def test_a_store_that_comes_back_hears_of_the_producers(world: World) -> None:
    """And half messages it kept are asked about."""
    checks: asyncio.Queue[HalfCheck] = asyncio.Queue()
    (result,) = await world.send(half("t", b"x"))
    await world.stores.stop_store(result.broker)
    world.core.held.answer_checks("P", checks.put_nowait)
    await world.stores.start_store(result.broker)
    async with asyncio.timeout(PATIENCE_S):
        check = await checks.get()
    await world.core.held.end_transaction(check.place, is_commit=False)
    assert world.held() == (0, 0)
