"""Publishes for a store that is away wait for it, in order, for a bounded time."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from gateway import storewaits
from gateway.clusters import tidegate
from gateway.clusters.link import LinkState
from gateway.config import LimitsConfig
from protocols.canonical import Call, Head, Message, QueueKind, QueueRef, SendResults
from protocols.errors import Code, Refused
from protocols.remoting.client import RemotingClient
from protocols.remoting.peer import Receive
from tests.support.core import Core, call, turns, until
from tests.support.patience import PATIENCE_S
from tests.support.scripted_store import ScriptedNameServer, ScriptedStore

PINNED = Head(subject="x", queues=(QueueRef(QueueKind.AMQP, "/q", store="b"),))


class World:
    """Two stores and one gateway core; *b* can be taken away."""

    def __init__(self, limits: LimitsConfig) -> None:
        self.is_away = False
        self.name_server = ScriptedNameServer()
        self.a, self.b = ScriptedStore("a", directory=True), ScriptedStore("b")
        for store in (self.a, self.b):
            store.topics["mqtt"] = 1
            self.name_server.stores[store.name] = store
        self.core = Core(
            "gw-1",
            [self.name_server.connect],
            local_stores={"a": self.a.connect, "b": self._connect},
            limits=limits,
        )
        self.pipeline = self.core.pipeline
        self.results: list[tuple[bytes, Code]] = []

    async def _connect(self, push: Receive) -> RemotingClient:
        if self.is_away:
            raise Refused(Code.HA_NOT_AVAILABLE, "b", "away")
        return await self.b.connect(push)

    async def take_away(self) -> None:
        """b is lost, and its circuit open."""
        self.is_away = True
        self.b.drop()
        await until(lambda: self.core.cluster.links["b"].state is LinkState.DOWN)

    def post(self, caller: Call, messages: Sequence[Message]) -> None:
        def done(results: SendResults) -> None:
            for message, index in zip(messages, range(len(results)), strict=True):
                self.results.append((message.body, results[index].code))

        self.pipeline.post(caller, messages, done)

    async def answered(self, count: int) -> list[Code]:
        await until(lambda: len(self.results) >= count)
        return [code for _, code in self.results]


@pytest.fixture
async def start(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., object]]:
    monkeypatch.setattr(tidegate, "LOST_S_MAX", 0.0)
    monkeypatch.setattr(storewaits, "LOST_S_MAX", 0.0)
    monkeypatch.setattr(storewaits, "SWEEP_S", 0.005)
    worlds: list[World] = []

    async def make(**limits: int) -> World:
        given = {"store_wait": int(PATIENCE_S * 1000), **limits}
        worlds.append(World(LimitsConfig.model_validate(given)))
        await worlds[-1].core.start(store_count=2)
        return worlds[-1]

    yield make
    for world in worlds:
        await world.core.stop()


Start = Callable[..., "asyncio.Future[World]"]


async def test_a_store_that_comes_back_gets_all_in_order(start: Start) -> None:
    """What was in flight when it went, and what came while it was away; others go on."""
    world = await start()
    world.b.loses_frames = True
    sender, other = call("p"), call("q")
    world.post(sender, [Message(PINNED, b"0")])
    await until(lambda: world.b.lost_count == 1)
    await world.take_away()
    for index in range(1, 4):
        world.post(sender, [Message(PINNED, b"%d" % index)])
        await turns()
    world.post(other, [Message(Head(subject="x"), b"other")])
    assert await world.answered(1) == [Code.OK]
    assert world.pipeline.waits.call_count == 1
    world.b.loses_frames = world.is_away = False
    assert await world.answered(5) == [Code.OK] * 5
    assert [body for body, _ in world.results] == [b"other", b"0", b"1", b"2", b"3"]
    assert [body for _, _, body in world.b.stored()] == [b"0", b"1", b"2", b"3"]
    assert world.pipeline.waits.call_count == 0


async def test_a_store_that_stays_away_is_not_waited_for_for_ever(start: Start) -> None:
    world = await start(store_wait=100)
    world.b.loses_frames = True
    sender = call("p")
    world.post(sender, [Message(PINNED, b"0")])
    await until(lambda: world.b.lost_count == 1)
    await world.take_away()
    world.post(sender, [Message(PINNED, b"1")])
    world.post(sender, [Message(Head(subject="x"), b"2")])
    codes = await world.answered(3)
    assert codes == [Code.HA_NOT_AVAILABLE, Code.HA_NOT_AVAILABLE, Code.OK], "those behind go on"
    assert world.pipeline.waits.call_count == 0


@pytest.mark.parametrize("limit", ["store_wait", "store_wait_bytes_max"])
async def test_without_time_or_room_it_is_refused_at_once(start: Start, limit: str) -> None:
    world = await start(**{limit: 0})
    await world.take_away()
    (result,) = await world.pipeline.send(call("p"), [Message(PINNED, b"0")])
    assert result.code == Code.HA_NOT_AVAILABLE
    assert world.pipeline.waits.call_count == 0


async def at_b(world: World) -> str:
    """A client id whose messages go to b."""
    for name in [f"p{index}" for index in range(32)]:
        head = Head(subject="x", order_key=name, qos=1)
        (result,) = await world.pipeline.send(call(name), [Message(head, b"0")])
        if result.broker == "b":
            return name
    raise AssertionError("no client id is b's")


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_publisher_who_waits_for_nothing_there_has_another_store_at_once(
    start: Start, qos: int
) -> None:
    """From then on, so that its order holds."""
    world = await start()
    name = await at_b(world)
    sender, head = call(name), Head(subject="x", order_key=name, qos=qos)

    async def send(number: int) -> tuple[Code, str]:
        once_key = bytes((number,)) * 16 if qos == 2 else b""
        message = Message(head, b"%d" % number, once_key=once_key)
        (result,) = await world.pipeline.send(sender, [message])
        return result.code, result.broker

    assert await send(1) == (Code.OK, "b")
    await world.take_away()
    assert await send(2) == (Code.OK, "a")
    world.is_away = False
    await until(lambda: world.core.cluster.links["b"].state is LinkState.UP)
    assert await send(3) == (Code.OK, "a")


async def test_who_has_something_unanswered_there_is_refused_until_it_connects_anew(
    start: Start,
) -> None:
    """It sends that again in order; what came behind it must not be stored before."""
    world = await start()
    name = await at_b(world)
    sender, head = call(name), Head(subject="x", order_key=name, qos=1)
    (result,) = await world.pipeline.send(sender, [Message(head, b"1")])
    assert result.broker == "b"
    world.b.loses_frames = True
    world.post(sender, [Message(head, b"2")])
    await until(lambda: world.b.lost_count == 1)
    world.post(sender, [Message(head, b"3")])
    await world.take_away()
    world.post(sender, [Message(head, b"4")])
    assert await world.answered(3) == [Code.HA_NOT_AVAILABLE] * 3
    (result,) = await world.pipeline.send(call(name), [Message(head, b"2")])
    assert (result.code, result.broker) == (Code.OK, "a")
    assert b"4" not in [body for _, _, body in world.a.stored()]


async def test_what_is_exactly_once_waits_behind_what_has_no_answer(start: Start) -> None:
    world = await start()
    name = await at_b(world)
    sender, head = call(name), Head(subject="x", order_key=name, qos=2)
    world.b.loses_frames = True
    world.post(sender, [Message(head, b"1", once_key=b"1" * 16)])
    await until(lambda: world.b.lost_count == 1)
    await world.take_away()
    world.post(sender, [Message(head, b"2", once_key=b"2" * 16)])
    await turns()
    assert (world.pipeline.waits.call_count, world.results) == (1, [])
    world.b.loses_frames = world.is_away = False
    assert await world.answered(2) == [Code.OK] * 2


async def test_a_client_is_read_until_much_waits(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storewaits, "CALL_BYTES_MAX", 3000)
    world = await start()
    await world.take_away()
    sender = call("p")
    world.post(sender, [Message(PINNED, b"0" * 1000)])
    await turns()
    assert not world.pipeline.is_congested(sender)
    world.post(sender, [Message(PINNED, b"1" * 1000)])
    await turns()
    assert world.pipeline.is_congested(sender)
    assert not world.pipeline.is_congested(call("q"))
    cleared: list[bool] = []
    world.pipeline.when_clear(lambda: cleared.append(True), sender)
    await turns()
    assert not cleared
    world.is_away = False
    assert await world.answered(2) == [Code.OK, Code.OK]
    await until(lambda: cleared)
    assert not world.pipeline.is_congested(sender)


async def test_rocketmqs_clients_try_again_themselves(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storewaits, "CALLER_WAIT_S_MAX", {"grpc": 0.0})
    world = await start()
    await world.take_away()
    (result,) = await world.pipeline.send(call("p", protocol="grpc"), [Message(PINNED, b"0")])
    assert result.code == Code.HA_NOT_AVAILABLE


async def test_a_repeat_waits_for_the_store_that_may_have_the_first(start: Start) -> None:
    """QoS 2, sent again after a reconnect: several at once, all looked for when it is back."""
    world = await start()
    await world.take_away()
    sender = call("p")
    head = Head(subject="x", order_key="p", qos=2)
    for index in range(3):
        key = b"k" * 15 + b"%d" % index
        world.post(sender, [Message(head, b"%d" % index, once_key=key, is_resend=True)])
    await until(lambda: world.pipeline.waits.call_count == 1)
    assert not world.results
    world.is_away = False
    assert await world.answered(3) == [Code.OK] * 3
    assert [body for body, _ in world.results] == [b"0", b"1", b"2"]


async def test_a_publisher_that_left_takes_its_qos_2_with_it(start: Start) -> None:
    """It comes again from elsewhere; what has no once-key is stored as if it had stayed."""
    world = await start()
    await world.take_away()
    sender = call("p")
    world.post(sender, [Message(PINNED, b"0")])
    world.post(sender, [Message(PINNED, b"1", once_key=b"k" * 16)])
    await turns()
    world.pipeline.withdraw(sender, is_taken=False)
    world.is_away = False
    assert await world.answered(2) == [Code.OK, Code.HA_NOT_AVAILABLE]
    assert [body for _, _, body in world.b.stored()] == [b"0"]
