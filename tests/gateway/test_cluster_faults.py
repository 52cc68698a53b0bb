"""
Stores that die under load, seen from the gateway's core: nothing acknowledged is lost, nothing
is stored twice (frames are numbered and settled), streams go on.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from itertools import chain, count

import pytest

from protocols.canonical import Head, Message, QueueKind, QueueRef, SendResults
from protocols.directory import Subscription
from protocols.errors import Code, Refused
from protocols.groups import GroupSpec, Read
from tests.support.core import Core, ListSink, call, until
from tests.support.processes import HURRIED, Daemon, Daemons

pytestmark = pytest.mark.client


@pytest.fixture
def daemons() -> Iterator[Daemons]:
    with Daemons() as daemons:
        yield daemons


@pytest.fixture
def name_server(daemons: Daemons) -> Daemon:
    return daemons.namesrv()


@pytest.fixture
async def world(daemons: Daemons, name_server: Daemon) -> AsyncIterator[tuple[Core, list[Daemon]]]:
    stores = [
        daemons.store(name_server, *HURRIED, "store.directory=true", name="broker-a"),
        daemons.store(name_server, *HURRIED, "store.directory=false", name="broker-b"),
    ]
    core = Core("gw-1", ["{}:{}".format(*name_server.address("namesrv"))])
    await core.start(store_count=2)
    yield core, stores
    await core.stop()


class Publisher:
    """Posts without pause; every body is unique."""

    numbers = count()

    def __init__(self, core: Core, index: int) -> None:
        self.core = core
        self.call = call(f"p{index}")
        self.head = Head(subject=f"t/{index}", order_key=f"p{index}" if index % 2 else "")
        self.stored: list[bytes] = []
        self.refused: set[bytes] = set()
        self.is_stopping = False
        self.waiting = 0

    def post(self) -> None:
        bodies = [b"%d" % next(self.numbers) for _ in range(8)]

        def done(results: SendResults) -> None:
            self.waiting -= 1
            for index, body in enumerate(bodies):
                if results[index].code == Code.OK:
                    self.stored.append(body)
                else:
                    self.refused.add(body)
            if not self.is_stopping:
                asyncio.get_running_loop().call_later(0.002, self.post)

        self.waiting += 1
        self.core.pipeline.post(self.call, [Message(self.head, body) for body in bodies], done)


async def all_bodies(core: Core) -> dict[str, list[bytes]]:
    """Every message of the catch-all topic by its store: by offset, queue after queue."""
    info = await core.topics.find("mqtt")
    assert info is not None
    bodies: dict[str, list[bytes]] = {}
    for broker, queue_id, _ in info.queues:
        offset = 0
        while True:
            try:
                found, _, end = await core.topics.read("mqtt", broker, queue_id, offset, 1000, 0)
            except Refused:  # the machine stood still for longer than a read waits
                await until(lambda: len(core.cluster.up_links()) == 2)
                continue
            bodies.setdefault(broker, []).extend([message.body for message in found])
            offset += len(found)
            if offset >= end:
                break
            assert found
    return bodies


async def test_kills_under_load(world: tuple[Core, list[Daemon]]) -> None:
    """Six kill -9 of stores at random moments while eight publishers send."""
    core, stores = world
    chance = random.Random(3)
    queue = QueueRef(QueueKind.FILTER, "t/#")
    sink = ListSink()
    spec = GroupSpec(name="mqtt//c", reads=(Read(queue=queue),), is_inherited=True)
    stream = await core.streams.open(call("c"), spec, sink, credit=1_000_000)
    row = Subscription("t/#", queue, spec.name)
    await core.directory.barrier(await core.directory.subscribe([row]))
    publishers = [Publisher(core, index) for index in range(8)]
    for publisher in publishers:
        publisher.post()
    for _ in range(6):
        await asyncio.sleep(chance.uniform(0.2, 0.6))
        store = chance.choice(stores)
        store.kill()
        await asyncio.to_thread(store.restart)
        await until(lambda: len(core.cluster.up_links()) == 2)
    for publisher in publishers:
        publisher.is_stopping = True
    await until(lambda: not any(p.waiting for p in publishers))
    stored = [body for publisher in publishers for body in publisher.stored]
    assert len(stored) > 1000
    by_store = await all_bodies(core)
    found = list(chain(*by_store.values()))
    assert len(found) == len(set(found)), "no frame ran twice"
    assert set(stored) <= set(found), "acknowledged is stored"
    refused = {body for publisher in publishers for body in publisher.refused}
    assert set(found) - set(stored) <= refused, "the rest was refused with an unknown outcome"
    await until(lambda: len({d.message.body for d in sink.deliveries}) >= len(set(found)))
    assert {d.message.body for d in sink.deliveries} == set(found)
    for publisher in publishers:
        known = set(publisher.stored)
        for bodies in by_store.values() if publisher.head.order_key else ():
            mine = [body for body in bodies if body in known]  # a store away for long is replaced
            here = set(mine)
            assert mine == [body for body in publisher.stored if body in here], "one key, one order"
    await stream.close()


async def test_traffic_survives_the_name_server(
    world: tuple[Core, list[Daemon]], name_server: Daemon
) -> None:
    """With no name server at all, sends go on; a store that restarts is found again."""
    core, stores = world
    sender = call("p")
    head = Head(subject="x", order_key="p")
    (result,) = await core.pipeline.send(sender, [Message(head, b"1")])
    assert result.code == Code.OK
    name_server.kill()
    for index in range(20):
        (result,) = await core.pipeline.send(sender, [Message(head, b"%d" % index)])
        assert result.code == Code.OK
    stores[1].kill()
    await asyncio.to_thread(stores[1].restart)
    await until(lambda: len(core.cluster.up_links()) == 2)
    (result,) = await core.pipeline.send(sender, [Message(head, b"last")])
    assert result.code == Code.OK


async def test_a_new_store_is_noticed(
    world: tuple[Core, list[Daemon]], daemons: Daemons, name_server: Daemon
) -> None:
    """It takes traffic, without anybody being told."""
    core, _ = world
    daemons.store(name_server, *HURRIED, "store.directory=false", name="broker-c")
    await until(lambda: len(core.cluster.up_links()) == 3)
