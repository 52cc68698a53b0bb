"""The directory client against scripted stores: lease, table, writes, barrier, fences."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from protocols.canonical import QueueKind, QueueRef
from protocols.directory import Put, Record, Subscription
from protocols.errors import Code, Refused
from tests.support.core import Core, call, messages, until
from tests.support.patience import PATIENCE_S
from tests.support.scripted_store import ScriptedNameServer, ScriptedStore, filter_key


class World:
    """A directory store, another store, two gateways."""

    def __init__(self) -> None:
        self.name_server = ScriptedNameServer()
        self.a = ScriptedStore("a", directory=True)
        self.b = ScriptedStore("b")
        for store in (self.a, self.b):
            store.topics["mqtt"] = 1
            self.name_server.stores[store.name] = store

    def core(self, name: str) -> Core:
        return Core(
            name,
            [self.name_server.connect],
            local_stores={"a": self.a.connect, "b": self.b.connect},
        )


@pytest.fixture
async def world() -> World:
    return World()


@pytest.fixture
async def one(world: World) -> AsyncIterator[Core]:
    core = world.core("gw-1")
    await core.start(store_count=2)
    yield core
    await core.stop()


@pytest.fixture
async def two(world: World) -> AsyncIterator[Core]:
    core = world.core("gw-2")
    await core.start(store_count=2)
    yield core
    await core.stop()


async def test_own_writes_are_in_the_table_when_put_returns(one: Core) -> None:
    """And conditional losers learn who won."""
    (first,) = await one.directory.put([Put("k/1", b"a", if_version=0)])
    assert first.is_ours
    assert one.directory.get("k/1") == first.record
    (second,) = await one.directory.put([Put("k/1", b"b", if_version=0)])
    assert not second.is_ours
    assert second.record.value == b"a"
    await one.directory.put([Put("k/1", None)])
    assert one.directory.get("k/1") is None
    assert list(one.directory.items("k/")) == []


async def test_writes_of_a_tick_share_a_request(world: World, one: Core) -> None:
    """A storm of puts is not a storm of requests."""
    results = await asyncio.gather(*(one.directory.put([Put(f"k/{i}", b"x")]) for i in range(200)))
    assert len({result[0].record.version for result in results}) == 200


async def test_watchers_see_other_gateways_writes(one: Core, two: Core) -> None:
    """Deletions too, until they stop watching."""
    seen: list[Record] = []
    undo = two.directory.watch("k/", seen.extend)
    await one.directory.put([Put("k/1", b"a"), Put("other/1", b"z")])
    await one.directory.put([Put("k/1", None)])
    await until(lambda: len(seen) == 2)
    assert [(record.key, record.value) for record in seen] == [("k/1", b"a"), ("k/1", None)]
    undo()
    await one.directory.put([Put("k/2", b"a")])
    await two.directory.catch_up()
    assert len(seen) == 2


async def test_barrier_waits_for_every_gateway(world: World, one: Core, two: Core) -> None:
    """When it returns, the other gateway routes by the new table."""
    queue = QueueRef(QueueKind.FILTER, "t/+")
    version = await one.directory.subscribe([Subscription("t/+", queue, "c1")])
    await one.directory.barrier(version)
    await two.pipeline.send(call(), messages("t/1", b"1"))
    stored = world.a.stored() + world.b.stored()
    assert stored == [("mqtt", (filter_key("t/+"),), b"1")]
    version = await one.directory.subscribe([], [Subscription("t/+", queue, "c1")])
    await one.directory.barrier(version)
    (result,) = await two.pipeline.send(call(), messages("t/1", b"2"))
    assert result.matched_count == 0


async def test_rows_of_two_owners_count(one: Core) -> None:
    """A filter stays as long as anyone wants it."""
    queue = QueueRef(QueueKind.FILTER, "t/+")
    rows = [Subscription("t/+", queue, "c1"), Subscription("t/+", queue, "c2")]
    await one.directory.subscribe(rows)
    await one.directory.subscribe([], rows[:1])
    assert one.matching.match("", "t/1") == (queue,)
    await one.directory.subscribe([], rows[1:])
    assert one.matching.match("", "t/1") == ()


async def test_an_ended_lease_is_fenced_before_the_barrier_returns(world: World, one: Core) -> None:
    """A gateway that hangs delays the barrier until its lease ends; then every store is told."""
    world.a._write("gateway/gw-x", b"lease")
    epoch = len(world.a.records)
    world.a.applied["gw-x", epoch] = 0
    queue = QueueRef(QueueKind.FILTER, "t/+")
    version = await one.directory.subscribe([Subscription("t/+", queue, "c1")])
    waiting = asyncio.ensure_future(one.directory.barrier(version))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    world.a.end_lease("gw-x")
    await asyncio.wait_for(waiting, PATIENCE_S)
    assert ("gw-x", epoch) in world.a.fenced
    assert ("gw-x", epoch) in world.b.fenced


async def test_a_lost_lease_ends_all_clients_and_joins_anew(world: World, one: Core) -> None:
    """The gateway learns it from its own renewal."""
    events: list[str] = []
    one.directory.on_ended(lambda: events.append("ended"))
    one.directory.on_joined(lambda: events.append("joined"))
    old = one.directory.gateway_epoch
    world.a.end_lease("gw-1")
    await until(lambda: events == ["ended", "joined"])
    assert one.directory.gateway_epoch > old
    assert one.directory.is_live("gw-1", one.directory.gateway_epoch)
    assert not one.directory.is_live("gw-1", old)
    await until(lambda: len(one.cluster.up_links()) == 2)
    (result,) = await one.pipeline.send(call(), messages("x", b"1"))
    assert result.code == Code.OK


async def test_a_presence_that_ended_before_both_connections_stood(world: World) -> None:
    """
    The directory store heard the first, then nothing for too long: it wants to see the lease
    renewed, and no beat does that before the second stands.
    """
    core = world.core("gw-1")
    world.a.wants_renewal = True
    await core.start(store_count=2)
    await core.stop()


async def test_a_lease_that_ended_before_both_connections_stood(world: World, one: Core) -> None:
    """Then the gateway hears of it by the renewal that was asked of it, and joins anew."""
    old = one.directory.gateway_epoch
    world.a.wants_renewal = True
    world.a.end_lease("gw-1")
    world.a.drop()
    await until(lambda: one.directory.gateway_epoch > old and len(one.cluster.up_links()) == 2)


async def test_a_table_that_could_not_be_read_at_first(world: World, one: Core) -> None:
    """The gateway has joined as soon as it can be."""
    events: list[str] = []
    one.directory.on_ended(lambda: events.append("ended"))
    one.directory.on_joined(lambda: events.append("joined"))
    world.a.end_lease("gw-1")
    world.a.unread_count = 2
    await until(lambda: events == ["ended", "joined"])
    assert world.a.unread_count == 0


async def test_traffic_goes_on_without_name_servers(world: World, one: Core) -> None:
    """What is known stays in use."""
    await one.pipeline.send(call(), messages("x", b"1"))
    world.name_server.is_down = True
    with pytest.raises(Refused):
        await one.cluster.routes.poll()
    (result,) = await one.pipeline.send(call(), messages("x", b"2"))
    assert result.code == Code.OK


async def test_a_failing_watcher_does_not_stop_the_table(one: Core) -> None:
    """Its error is logged; the others are told."""
    seen: list[Record] = []

    def fail(records: Sequence[Record]) -> None:
        raise ValueError("a watcher's own mistake")

    one.directory.watch("k/", fail)
    one.directory.watch("k/", seen.extend)
    await one.directory.put([Put("k/1", b"a")])
    await until(lambda: len(seen) == 1)
