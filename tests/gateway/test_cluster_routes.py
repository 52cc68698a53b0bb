"""What a gateway believes of a name server: news, but not the gaps of one that was just started."""

import asyncio

import pytest

from gateway.clusters import routes, watch
from gateway.clusters.routes import RouteCache
from protocols.errors import Refused
from protocols.remoting.client import RemotingClient
from tests.support.scripted_store import ScriptedNameServer, ScriptedStore


class World:
    """Two stores at one name server, and a route cache; what a restart forgets is told later."""

    def __init__(self) -> None:
        self.name_server = ScriptedNameServer()
        self.a, self.b = ScriptedStore("a"), ScriptedStore("b")
        self.a.topics |= {"plants": 2, "only-a": 1}
        self.b.topics |= {"plants": 2}
        self.register(self.a, self.b)
        self.cache = RouteCache("c", [self.name_server.connect], changed=lambda: None)

    def register(self, *stores: ScriptedStore) -> None:
        """These stores, and no others, have registered."""
        self.name_server.stores = {store.name: store for store in stores}

    async def poll(self) -> None:
        """So often that every route in use was asked for again."""
        for _ in range(watch.REFRESH_SHARE):
            await self.cache.poll()


@pytest.fixture
async def world() -> World:
    world = World()
    await world.cache.poll()
    for topic in ("plants", "only-a"):
        assert await world.cache.load(topic) is not None
    return world


async def test_who_asks_while_it_connects_shares_the_connection(world: World) -> None:
    """Questions come at any time; a connection of each would be closed by nobody."""
    made: list[RemotingClient] = []

    async def connect() -> RemotingClient:
        await asyncio.sleep(0)
        made.append(await world.name_server.connect())
        return made[-1]

    (one,) = RouteCache("c", [connect], changed=lambda: None).watches
    await asyncio.gather(*(one.ask("plants") for _ in range(3)))
    assert len(made) == 1
    await one.close()
    asking = asyncio.create_task(one.ask("plants"))
    await asyncio.sleep(0)
    await one.close()
    with pytest.raises(Refused):
        await asking
    assert not made[-1].is_open


async def test_a_restarted_name_server_takes_no_topic_away(world: World) -> None:
    """Its stores have not registered yet: publishes must not move to the catch-all topic."""
    known = world.cache.find("plants")
    world.register(world.b)
    await world.poll()
    assert world.cache.exists("only-a")
    assert world.cache.find("only-a") is not None
    assert world.cache.find("plants") == known
    world.register()
    await world.poll()
    assert world.cache.exists("plants")
    assert world.cache.find("plants") == known


async def test_a_known_topic_without_a_route_is_unavailable_not_missing(world: World) -> None:
    """Taken for missing it would be created anew, with another number of queues."""
    world.a.topics["unused"] = 16
    await world.poll()
    world.register(world.b)
    await world.poll()
    with pytest.raises(Refused, match="not registered yet"):
        await world.cache.load("unused")
    assert await world.cache.load("nowhere") is None
    world.register(world.a, world.b)
    await world.poll()
    assert await world.cache.load("unused") is not None


async def test_a_topic_unknown_so_far_is_taken_from_it(world: World) -> None:
    """It lacks some, but what it names is there."""
    world.b.topics["new"] = 1
    world.register(world.b)
    await world.poll()
    assert world.cache.exists("new")
    assert await world.cache.load("new") is not None


async def test_a_topic_is_gone_when_all_stores_are_there_and_lack_it(world: World) -> None:
    """Deleted for good."""
    del world.a.topics["only-a"]
    await world.poll()
    assert not world.cache.exists("only-a")
    assert world.cache.find("only-a") is None


async def test_a_restart_between_polls_takes_nothing_away(world: World) -> None:
    """The connection is another one, and no list of stores has come over it yet."""
    (one,) = world.cache.watches
    await one.close()
    world.register()
    assert not await one.ask("plants")
    assert world.cache.find("plants") is not None


async def test_a_store_that_stays_away_is_forgotten_with_its_topics(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After FORGET_S the name server's word counts again."""
    world.register(world.b)
    await world.poll()
    monkeypatch.setattr(routes, "FORGET_S", 0.0)
    await world.poll()
    assert not world.cache.exists("only-a")
    assert world.cache.find("only-a") is None
    assert list(world.cache.brokers) == ["b"]
