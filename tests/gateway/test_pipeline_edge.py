"""The edge in force: zones, flat names, topics that publishes bring into being."""

from collections.abc import AsyncIterator, Callable

import pytest

from gateway.autotopics import AutoTopics
from gateway.clusters.link import LinkState
from gateway.config import GatewayConfig
from gateway.policy import Policy
from protocols.canonical import SendResults
from protocols.errors import Code, Refused
from protocols.remoting.client import RemotingClient
from protocols.remoting.peer import Receive
from tests.support.core import Core, call, messages, turns, until
from tests.support.scripted_store import ScriptedNameServer, ScriptedStore


class World:
    """Two stores in two zones, one gateway core in zone ``z-b``."""

    def __init__(self, **config: object) -> None:
        self.is_b_away = False
        self.name_server = ScriptedNameServer()
        self.a, self.b = ScriptedStore("a", directory=True), ScriptedStore("b")
        for store in (self.a, self.b):
            store.topics["mqtt"] = 2
            self.name_server.stores[store.name] = store
        checked = GatewayConfig.model_validate(
            {
                "zone": "z-b",
                "clusters": {"default": {"namesrv": ["127.0.0.1:9876"]}},
                "routes": [{"name": "r", "to": [{"cluster": "default"}], "prefer": "same_zone"}],
                **config,
            }
        )
        self.core = Core(
            "gw-1",
            [self.name_server.connect],
            local_stores={"a": self.a.connect, "b": self.connect_b},
            policy=Policy.from_config(checked),
            zones={"a": "z-a", "b": "z-b"},
        )
        limit = checked.mqtt.auto_topics
        self.core.pipeline.learner.auto_topics = AutoTopics(self.core.directory, lambda: limit)

    async def connect_b(self, push: Receive) -> RemotingClient:
        if self.is_b_away:
            raise Refused(Code.HA_NOT_AVAILABLE, "b", "away")
        return await self.b.connect(push)

    async def send(self, subject: str, **head: object) -> None:
        (result,) = await self.core.pipeline.send(call(), messages(subject, b"1", **head))  # type: ignore[arg-type]  # fields by name
        assert result.code == Code.OK

    def topics(self) -> list[str]:
        return [item[0] for item in self.a.stored() + self.b.stored()]


@pytest.fixture
async def started() -> AsyncIterator[Callable[..., "World"]]:
    worlds: list[World] = []

    def make(**config: object) -> World:
        worlds.append(World(**config))
        return worlds[-1]

    yield make
    for world in worlds:
        await world.core.stop()


async def test_stores_of_our_zone_come_first(started: Callable[..., World]) -> None:
    """While one of them is up; then all."""
    world = started()
    await world.core.start(store_count=2)
    for _ in range(6):
        await world.send("x/1")
    assert (len(world.a.stored()), len(world.b.stored())) == (0, 6)
    link = world.core.cluster.links["b"]
    assert link.state is LinkState.UP
    world.is_b_away = True
    world.b.drop()
    await until(lambda: link.state is not LinkState.UP)
    await world.send("x/2")
    assert len(world.a.stored()) == 1


async def test_flat_names_are_the_whole_subject(started: Callable[..., World]) -> None:
    """Where there is such a topic; the address stays as it is."""
    world = started(mqtt={"mapping": "flat"})
    for store in (world.a, world.b):
        store.topics |= {"plants_7_temp": 1, "plants": 1}
    await world.core.start(store_count=2)
    await world.send("plants/7/temp")
    await world.send("plants/8/temp")
    assert sorted(world.topics()) == ["mqtt", "plants_7_temp"]


async def test_publishes_make_topics_within_a_budget(started: Callable[..., World]) -> None:
    """One row of the directory each; what is over goes to the catch-all."""
    world = started(mqtt={"auto_topics": 2})
    await world.core.start(store_count=2)
    for subject in ("one/1", "two/1", "three/1", "one/2"):
        await world.send(subject)
    assert sorted(world.topics()) == ["mqtt", "one", "one", "two"]
    assert world.a.topics.keys() == {"mqtt", "one", "two"}
    budget = world.core.pipeline.learner.auto_topics
    assert budget is not None
    assert (len(budget), budget.refused_count) == (2, 1)
    assert await budget.allow("default", "one")


# ── connections that end ────────────────────────────────────────────────────────────────


async def test_an_ended_connection_leaves_nothing(started: Callable[..., World]) -> None:
    world, who = started(), call()
    await world.core.start(store_count=2)
    pipeline = world.core.pipeline
    await pipeline.send(who, messages("a", b"1", order_key="p"))
    assert len(pipeline._decisions) == len(pipeline.decider._sticky) == 1
    pipeline.forget(who)
    assert len(pipeline._decisions) == 0
    assert not pipeline.decider._sticky
    assert not pipeline.decider._kinds._found


@pytest.mark.parametrize("turn_count", [0, 1])
async def test_who_ended_while_waiting_is_forgotten_with_the_idle(
    started: Callable[..., World], monkeypatch: pytest.MonkeyPatch, turn_count: int
) -> None:
    """Its order and its store are a connection's: they hold until all of it is answered."""
    world, gone = started(), call()
    await world.core.start(store_count=2)
    pipeline = world.core.pipeline
    monkeypatch.setattr(pipeline._lanes, "_count_max", 1)
    results: list[SendResults] = []
    pipeline.post(gone, messages("a", b"1"), results.append)
    await turns(turn_count)
    pipeline.forget(gone)
    await until(lambda: bool(results))
    assert len(pipeline._decisions) == 1
    await pipeline.send(call(), messages("a", b"2"))
    assert len(pipeline._decisions) == 1
