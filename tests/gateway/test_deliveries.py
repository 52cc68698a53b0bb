"""Streams, pops and acks over real stores."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from gateway.clusters import tidegate
from gateway.clusters.link import LinkState
from protocols.canonical import Delivery, Head, Message, QueueKind, QueueRef, ReceiptHandle
from protocols.directory import Subscription
from protocols.errors import Code, Refused
from protocols.groups import GroupSpec, InvisibleTimeChange, PopRequest, Read, Start
from protocols.remoting.settling import MarkItem
from protocols.tasks import outcomes
from tests.support.core import Core, ListSink, call, messages, until
from tests.support.daemons import StoreCluster
from tests.support.patience import PATIENCE_S


class World:
    def __init__(self, stores: StoreCluster, core: Core) -> None:
        self.stores = stores
        self.core = core

    async def subscribe(self, subject_filter: str, owner: str) -> QueueRef:
        queue = QueueRef(QueueKind.FILTER, subject_filter)
        version = await self.core.directory.subscribe([Subscription(subject_filter, queue, owner)])
        await self.core.directory.barrier(version)
        return queue

    async def publish(self, subject: str, *bodies: bytes, order_key: str = "") -> None:
        for body in bodies:
            (result,) = await self.core.pipeline.send(
                call(), messages(subject, body, order_key=order_key)
            )
            assert result.code == Code.OK


@pytest.fixture(params=[1, 2])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    stores = StoreCluster(tmp_path)
    names = ["a", "b"][: request.param]
    await stores.start(*names)
    core = Core("gw-1", stores.name_servers)
    await core.start(store_count=len(names))
    yield World(stores, core)
    await core.stop()
    await stores.stop()


def session(name: str, *queues: QueueRef, **fields: object) -> GroupSpec:
    reads = tuple(Read(queue=queue, tag=tag) for tag, queue in enumerate(queues))
    return GroupSpec(name=name, reads=reads, is_inherited=True, **fields)  # type: ignore[arg-type]  # fields


async def test_a_stream_gets_what_is_published_after_it_opened(world: World) -> None:
    """From whichever store, with the tags of all queues that matched, and each once."""
    wide = await world.subscribe("t/+", "mqtt//c1")
    exact = await world.subscribe("t/1", "mqtt//c1")
    sink = ListSink()
    stream = await world.core.streams.open(
        call(), session("mqtt//c1", wide, exact), sink, credit=100
    )
    await world.publish("t/1", b"1", b"2", b"3", b"4")
    await world.publish("t/2", b"5", b"6")
    found = await sink.wait(6)
    assert sorted(d.message.body for d in found) == [b"1", b"2", b"3", b"4", b"5", b"6"]
    assert {d.reads for d in found if d.message.subject == "t/1"} == {(0, 1)}
    assert {d.reads for d in found if d.message.subject == "t/2"} == {(0,)}
    assert {d.attempt for d in found} == {1}
    stream.ack([d.handle for d in found])
    await stream.close()


async def test_a_request_to_one_store_leaves_before_what_came_in_later() -> None:
    """A group is opened before the publishes that were read behind its SUBSCRIBE are sent."""
    sent: list[str] = []

    async def open_group() -> int:
        sent.append("group")
        return 7

    loop = asyncio.get_running_loop()
    opening = loop.create_task(outcomes([open_group()]))
    loop.call_soon(sent.append, "frame")
    assert await opening == [7]
    assert sent[0] == "group"


async def test_credit_is_never_exceeded_and_all_arrives(world: World) -> None:
    """With one credit over all stores, messages come one by one from wherever they lie."""
    queue = await world.subscribe("t/#", "mqtt//c1")
    sink = ListSink()
    stream = await world.core.streams.open(call(), session("mqtt//c1", queue), sink, credit=1)
    await world.publish("t/1", *[b"%d" % i for i in range(8)])
    for count in range(1, 9):
        await sink.wait(count)
        await asyncio.sleep(0.01)
        assert len(sink.deliveries) == count
        stream.ack([sink.deliveries[-1].handle])
        stream.allow(count + 1)
    assert len({d.message.body for d in sink.deliveries}) == 8
    await stream.close()


async def test_unacked_deliveries_of_a_closed_stream_come_again(world: World) -> None:
    """A session's in-flight entries wait for the next owner, packet ids included."""
    queue = await world.subscribe("t/#", "mqtt//c1")
    sink = ListSink()
    spec = session("mqtt//c1", queue, owner_epoch=1)
    stream = await world.core.streams.open(call(), spec, sink, credit=10)
    await world.publish("t/1", b"1", b"2", b"3")
    found = await sink.wait(3)
    assert await stream.mark_durably([(d.handle, 7 + i, 1) for i, d in enumerate(found)])
    stream.ack([found[0].handle])
    await stream.close()
    await world.publish("t/1", b"4")
    again = ListSink()
    spec = session("mqtt//c1", queue, owner_epoch=2)
    stream = await world.core.streams.open(call(), spec, again, credit=10)
    assert len(again.deliveries) >= 2, "in-flight entries come before open returns"
    resumed = {d.message.body: (d.packet_id, d.stage) for d in again.deliveries[:2]}
    assert resumed == {d.message.body: (8 + i, 1) for i, d in enumerate(found[1:])}
    await again.wait(3)
    assert again.deliveries[2].message.body == b"4"
    await stream.close()


async def test_a_stale_owner_is_refused_and_the_old_stream_ends(world: World) -> None:
    """The higher owner epoch takes the session over."""
    queue = await world.subscribe("t/#", "mqtt//c1")
    old, new = ListSink(), ListSink()
    await world.core.streams.open(call(), session("s", queue, owner_epoch=4), old, credit=10)
    stream = await world.core.streams.open(
        call(), session("s", queue, owner_epoch=5), new, credit=10
    )
    await until(lambda: old.end is not None)
    assert old.end is not None
    assert old.end[0] == Code.PRECONDITION_FAILED
    with pytest.raises(Refused) as refused:
        await world.core.streams.open(
            call(), session("s", queue, owner_epoch=4), ListSink(), credit=10
        )
    assert refused.value.code == Code.PRECONDITION_FAILED
    await stream.close()


async def test_a_stream_survives_a_store_restart(world: World) -> None:
    """The store comes back; what was not acked stays with the client, the rest flows on."""
    queue = await world.subscribe("t/#", "mqtt//c1")
    sink = ListSink()
    stream = await world.core.streams.open(call(), session("s", queue), sink, credit=100)
    await world.publish("t/1", b"1", b"2", b"3", b"4")
    found = list(await sink.wait(4))
    name = "b" if "b" in world.stores.stores else "a"
    await world.stores.stop_store(name)
    stream.ack([found[0].handle])
    await world.stores.start_store(name)
    await until(lambda: len(world.core.cluster.up_links()) == len(world.stores.stores))
    await world.publish("t/1", b"5", b"6")
    await sink.wait(6)
    assert [d.message.body for d in sink.deliveries[4:]] in ([b"5", b"6"], [b"6", b"5"])
    stream.ack([d.handle for d in sink.deliveries[1:]])
    await stream.close()
    rest = ListSink()
    stream = await world.core.streams.open(
        call(), session("s", queue, owner_epoch=1), rest, credit=10
    )
    assert rest.deliveries == []
    await stream.close()


@pytest.mark.parametrize("world", [2], indirect=True)
async def test_a_stream_survives_a_store_that_the_name_servers_dropped(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its link waits for it; what the client held of it stays with the client."""
    monkeypatch.setattr(tidegate, "LOST_S_MAX", 0.05)
    queue = await world.subscribe("t/#", "mqtt//c1")
    sink = ListSink()
    stream = await world.core.streams.open(call(), session("s", queue), sink, credit=100)
    await world.publish("t/1", b"1", b"2", b"3", b"4")
    held = [d.handle for d in await sink.wait(4)]
    links = world.core.cluster.links
    assert any(handle.broker == "b" for handle in held)
    await world.stores.stop_store("b")
    await until(lambda: links["b"].state is LinkState.DOWN)
    assert world.stores.name_server is not None
    world.core.cluster.routes.brokers.pop("b")
    await world.core.cluster.create_topic("news", 1)
    await world.publish("t/1", b"5", b"6")
    await sink.wait(6)
    await world.stores.start_store("b")
    await until(lambda: len(world.core.cluster.up_links()) == 2)
    async with asyncio.timeout(PATIENCE_S):
        while not await stream.mark_durably([(handle, 7, 3) for handle in held]):  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # the link is up a moment before its streams are
    await world.publish("t/1", b"7", b"8", b"9", b"10")
    found = await sink.wait(10)
    assert {d.handle.broker for d in found[6:]} == {"a", "b"}
    stream.ack([d.handle for d in found])
    await stream.close()
    rest = ListSink()
    spec = session("s", queue, owner_epoch=1)
    stream = await world.core.streams.open(call(), spec, rest, credit=10)
    assert rest.deliveries == []
    await stream.close()


@pytest.mark.parametrize("world", [1], indirect=True)
async def test_what_could_not_be_marked_comes_again(world: World) -> None:
    """Its store went before the mark was on disk: it is forgotten here, and delivered anew."""
    queue = await world.subscribe("t/#", "mqtt//c1")
    sink = ListSink()
    stream = await world.core.streams.open(call(), session("mqtt//c1", queue), sink, credit=100)
    await world.publish("t/1", b"1", b"2")
    kept, lost = [d.handle for d in await sink.wait(2)]
    assert await stream.mark_or_forget(kept, 1, 3)
    await world.stores.stop_store("a")
    assert not await stream.mark_or_forget(lost, 2, 3)
    await world.stores.start_store("a")
    assert [d.message.body for d in await sink.wait(3)] == [b"1", b"2", b"2"]
    again = sink.deliveries[2].handle
    assert await stream.mark_or_forget(again, 2, 3)
    assert await stream.mark_durably([(kept, 1, 2)])
    stream.ack([kept, again])
    await stream.close()


@pytest.mark.parametrize("world", [2], indirect=True)
async def test_a_store_that_comes_back_gets_credit_from_an_idle_one(world: World) -> None:
    """While it was away the other store got all there is; nothing need happen there."""
    queue = await world.subscribe("t/#", "s")
    sink = ListSink()
    stream = await world.core.streams.open(call(), session("s", queue), sink, credit=100)
    await world.stores.stop_store("b")
    await until(lambda: len(world.core.cluster.up_links()) == 1)
    await world.stores.start_store("b")
    await until(lambda: len(world.core.cluster.up_links()) == 2)
    head = Head(subject="t/1", broker="b")
    (result,) = await world.core.pipeline.send(call(), [Message(head, b"1")])
    assert (result.code, result.broker) == (Code.OK, "b")
    await sink.wait(1)
    await stream.close()


async def test_released_comes_again(world: World) -> None:
    """Released unsent: no attempt counts; released after it was sent: one more."""
    queue = await world.subscribe("t/#", "o")
    spec = GroupSpec(name="share", reads=(Read(queue=queue),))
    sink = ListSink()
    stream = await world.core.streams.open(call(), spec, sink, credit=10)
    await world.publish("t/1", b"1")
    (first,) = await sink.wait(1)
    stream.release([first.handle], is_sent=False)
    _, second = await sink.wait(2)
    assert second.attempt == 1
    stream.release([second.handle])
    *_, third = await sink.wait(3)
    assert third.attempt == 2
    stream.ack([third.handle])
    await stream.close()


async def test_pop_ack_and_change(world: World) -> None:
    """Pop finds messages on every store; handles are acked once, changed with a new grant."""
    await world.core.topics.create("orders", queue_count=2)
    group = GroupSpec(name="rmq/g/orders", reads=(Read(topic="orders"),), start=Start.EARLIEST)
    for body in (b"1", b"2", b"3", b"4"):
        head = Head(subject="orders", topic="orders")
        (result,) = await world.core.pipeline.send(call(protocol="grpc"), [Message(head, body)])
        assert result.code == Code.OK
    request = PopRequest(group=group, count=10, invisible_ms=30_000, wait_ms=2000)
    found = []
    while len(found) < 4:
        found += await world.core.pipeline.pop(call(protocol="grpc"), request)
    assert sorted(d.message.body for d in found) == [b"1", b"2", b"3", b"4"]
    results = await world.core.pipeline.ack(call(), [d.handle for d in found[:2]])
    assert [result.code for result in results] == [Code.OK, Code.OK]
    (changed,) = await world.core.pipeline.change_invisible_time(
        call(), [InvisibleTimeChange(found[2].handle, 60_000)]
    )
    assert changed.handle is not None
    stale, fresh = await world.core.pipeline.ack(call(), [found[2].handle, changed.handle])
    assert (stale.code, fresh.code) == (Code.INVALID_RECEIPT_HANDLE, Code.OK)
    (returned,) = await world.core.pipeline.change_invisible_time(
        call(), [InvisibleTimeChange(found[3].handle, 0)]
    )
    assert returned.code == Code.OK
    (again,) = await world.core.pipeline.pop(call(), request)
    assert (again.message.body, again.attempt) == (b"4", 2)


async def test_long_poll_ends_when_a_message_comes(world: World) -> None:
    """On whichever store it lands."""
    await world.core.topics.create("orders", queue_count=1)
    group = GroupSpec(name="rmq/g/orders", reads=(Read(topic="orders"),), start=Start.EARLIEST)
    request = PopRequest(group=group, count=10, invisible_ms=30_000, wait_ms=10_000)
    for body in (b"1", b"2", b"3"):
        waiting = asyncio.ensure_future(world.core.pipeline.pop(call(), request))
        await asyncio.sleep(0.05)
        head = Head(subject="orders", topic="orders")
        await world.core.pipeline.send(call(), [Message(head, body)])
        (delivery,) = await asyncio.wait_for(waiting, PATIENCE_S)
        assert delivery.message.body == body
        await world.core.pipeline.ack(call(), [delivery.handle])


async def test_pinned_queue_life(world: World) -> None:
    """Create, publish to it, count, purge, delete; afterwards it is gone."""
    queue = await world.core.streams.create_queue(QueueRef(QueueKind.AMQP, "v/q1"), {})
    assert queue.store in world.stores.stores
    spec = GroupSpec(name="amqp/v/q1", reads=(Read(queue=queue),), start=Start.EARLIEST)
    await world.core.streams.open_group(call(), spec)
    head = Head(subject="q1", topic="v", queues=(queue,), is_in_topic=False)
    results = await world.core.pipeline.send(call(), [Message(head, b"1"), Message(head, b"2")])
    assert [result.matched_count for result in results] == [1, 1]
    stat = await world.core.streams.stat_queue(queue, spec)
    assert (stat.ready_count, stat.in_flight_count) == (2, 0)
    assert await world.core.streams.purge_queue(queue, spec) == 2
    await world.core.streams.delete_queue(queue)
    (result,) = await world.core.pipeline.send(call(), [Message(head, b"3")])
    assert (result.matched_count, result.refused) == (0, (queue,))


async def test_a_counted_pop_says_what_is_left(world: World) -> None:
    """A get of AMQP has that number; others are not told."""
    queue = await world.core.streams.create_queue(QueueRef(QueueKind.AMQP, "v/q1"), {})
    spec = GroupSpec(name="amqp/v/q1", reads=(Read(queue=queue),), start=Start.EARLIEST)
    await world.core.streams.open_group(call(), spec)
    head = Head(subject="q1", topic="v", queues=(queue,), is_in_topic=False)
    await world.core.pipeline.send(call(), [Message(head, body) for body in (b"1", b"2", b"3")])
    found: list[Delivery] = []
    for is_counted in (True, False, True):
        request = PopRequest(group=spec, count=1, invisible_ms=30_000, is_counted=is_counted)
        found += await world.core.pipeline.pop(call(), request)
    assert [(d.message.body, d.left_count) for d in found] == [(b"1", 2), (b"2", -1), (b"3", 0)]


async def test_retained_values(world: World) -> None:
    """The last one of each address; an empty one forgets it."""
    for subject, body in ((b"r/1", b"a"), (b"r/1", b"b"), (b"r/2", b"c"), (b"r/3", b"d")):
        (result,) = await world.core.pipeline.send(
            call(), messages(subject.decode(), body, retain=True, order_key="p")
        )
        assert result.code == Code.OK
    await world.core.pipeline.send(call(), messages("r/3", b"", retain=True, order_key="p"))
    found = await world.core.streams.retained("", ["r/+", "r/1"])
    assert sorted((m.subject, m.body) for m in found) == [("r/1", b"b"), ("r/2", b"c")]


async def test_topics_read_by_offset(world: World) -> None:
    """Message queues by offset, found by time and by name."""
    info = await world.core.topics.create("orders", queue_count=1)
    for body in (b"1", b"2", b"3"):
        head = Head(subject="orders", topic="orders", broker="a")
        await world.core.pipeline.send(call(), [Message(head, body)])
    assert "orders" in world.core.topics.names()
    assert info.queues[0][0] == "a"
    found, smallest, end = await world.core.topics.read("orders", "a", 0, 1, 10, 0)
    assert ([m.body for m in found], smallest, end) == ([b"2", b"3"], 0, 3)
    assert await world.core.topics.offset("orders", "a", 0, at_ms=-1) == 3
    assert await world.core.topics.find("nope") is None


@pytest.mark.parametrize("world", [1], indirect=True)
async def test_what_a_slow_store_did_not_mark_in_time_comes_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection to it stands, the stream goes on: nothing would make it deliver again."""
    queue = await world.subscribe("t/#", "mqtt//c1")
    sink = ListSink()
    stream = await world.core.streams.open(call(), session("mqtt//c1", queue), sink, credit=100)
    await world.publish("t/1", b"1")
    (slow,) = [d.handle for d in await sink.wait(1)]

    async def too_late(self: tidegate.TidegateLink, epoch: int, items: Sequence[MarkItem]) -> bool:
        self.mark(epoch, items)
        raise Refused(Code.PROXY_TIMEOUT, "a", "no answer in time")

    with monkeypatch.context() as patch:
        patch.setattr(tidegate.TidegateLink, "mark_durably", too_late)
        assert not await stream.mark_or_forget(slow, 1, 3)
    again = (await sink.wait(2))[1]
    assert again.message.body == b"1"
    assert await stream.mark_or_forget(again.handle, 2, 3)
    stream.ack([again.handle])
    await world.publish("t/1", b"2")
    assert (await sink.wait(3))[2].message.body == b"2"
    await stream.close()


@pytest.mark.parametrize("world", [1], indirect=True)
async def test_marks_that_went_with_a_connection_are_asked_for(world: World) -> None:
    """A resume would take such a delivery for one that never left."""
    queue = await world.subscribe("t/#", "mqtt//c1")
    sink, told = ListSink(), list[ReceiptHandle]()
    stream = await world.core.streams.open(call(), session("mqtt//c1", queue), sink, credit=100)
    stream.when_unmarked(told.extend)
    await world.publish("t/1", b"1", b"2")
    marked, unmarked = [d.handle for d in await sink.wait(2)]
    assert await stream.mark_durably([(marked, 1, 1)])
    (link,) = world.core.cluster.links.values()
    assert isinstance(link, tidegate.TidegateLink)
    link.connection.reset("for this test")
    await until(lambda: bool(told))
    assert [handle.position for handle in told] == [unmarked.position]
    assert len(sink.deliveries) == 2
    await stream.close()


@pytest.mark.parametrize("world", [2], indirect=True)
async def test_what_an_absent_store_had_in_flight_comes_by_itself(world: World) -> None:
    """With its packet ids, when it is back: a client that has it is not to get it as new."""
    queue = await world.subscribe("t/#", "mqtt//c1")
    sink = ListSink()
    spec = session("mqtt//c1", queue, owner_epoch=1)
    stream = await world.core.streams.open(call(), spec, sink, credit=100)
    for key in range(12):
        await world.publish("t/1", b"%d" % key, order_key=str(key))
    found = await sink.wait(12)
    away = [d for d in found if d.handle.broker == "b"]
    assert 0 < len(away) < 12
    assert await stream.mark_durably([(d.handle, int(d.message.body) + 1, 1) for d in found[:-1]])
    await stream.close()
    await world.stores.stop_store("b")
    again = Batches()
    spec = session("mqtt//c1", queue, owner_epoch=2)
    stream = await world.core.streams.open(call(), spec, again, credit=100)
    await again.wait(12 - len(away))
    again.batches.clear()
    await world.stores.start_store("b")
    await again.wait(12)
    marked = {found[-1].handle.position} if found[-1] in away else set()
    for batch in again.batches:
        assert len({bool(d.packet_id) for d in batch}) == 1
    late = [d for batch in again.batches for d in batch]
    assert {d.packet_id for d in late} == {
        0 if d.handle.position in marked else int(d.message.body) + 1 for d in away
    }
    await stream.close()


class Batches(ListSink):
    """Also how they came."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[Delivery]] = []

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        self.batches.append([*deliveries])
        super().deliver(deliveries)
