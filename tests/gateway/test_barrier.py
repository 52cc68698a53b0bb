"""
The SUBACK barrier over real stores: what any gateway receives after it reaches the subscriber.

Gateway A subscribes, gateway B publishes right after the barrier returned: a hundred times; with
all of B's frame slots held full; with B stopped past its lease and woken again.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.clusters.frames import FRAME_BYTES_MIN, FRAMES_AHEAD
from gateway.clusters.tidegate import TidegateLink
from protocols.canonical import QueueKind, QueueRef
from protocols.directory import Subscription
from protocols.errors import Code
from protocols.groups import GroupSpec, Read
from protocols.pipeline import DeliveryStream
from tests.support.core import Core, ListSink, call, messages, turns, until
from tests.support.daemons import StoreCluster
from tests.support.patience import PATIENCE_S

ROUNDS = 100


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[StoreCluster]:
    stores = StoreCluster(tmp_path)
    await stores.start("a", "b")
    yield stores
    await stores.stop()


@pytest.fixture
async def hurried(tmp_path: Path) -> AsyncIterator[StoreCluster]:
    stores = StoreCluster(tmp_path)
    await stores.start("a", "b", lease_ms=5000, silence_ms_max=5000)
    yield stores
    await stores.stop()


async def start_core(stores: StoreCluster, name: str) -> Core:
    core = Core(name, stores.name_servers)
    await core.start(store_count=2)
    return core


async def subscribe(
    core: Core, subject_filter: str, client: str
) -> tuple[ListSink, DeliveryStream]:
    """What a front does for SUBSCRIBE: group, row, barrier; SUBACK would follow."""
    queue = QueueRef(QueueKind.FILTER, subject_filter)
    sink = ListSink()
    spec = GroupSpec(name=f"mqtt//{client}", reads=(Read(queue=queue),), is_inherited=True)
    stream = await core.streams.open(call(client), spec, sink, credit=1000)
    row = Subscription(subject_filter, queue, spec.name)
    await core.directory.barrier(await core.directory.subscribe([row]))
    return sink, stream


async def test_publish_elsewhere_right_after_suback(stores: StoreCluster) -> None:
    """A hundred subscriptions at A, each followed at once by a publish at B: none is missed."""
    a, b = await start_core(stores, "gw-a"), await start_core(stores, "gw-b")
    for index in range(ROUNDS):
        sink, stream = await subscribe(a, f"t/{index}/+", f"c{index}")
        (result,) = await b.pipeline.send(
            call(f"p{index % 7}"), messages(f"t/{index}/x", b"%d" % index, order_key=f"{index}")
        )
        assert (result.code, result.matched_count) == (Code.OK, 1)
        (delivery,) = await sink.wait(1)
        assert delivery.message.body == b"%d" % index
        stream.ack([delivery.handle])
        await stream.close()
    await a.stop()
    await b.stop()


async def test_with_all_frame_slots_full(stores: StoreCluster) -> None:
    """What waits at B for a slot goes by the table of the moment it is written."""
    a, b = await start_core(stores, "gw-a"), await start_core(stores, "gw-b")
    sender = call("p")
    (result,) = await b.pipeline.send(sender, messages("t/0", b"first", order_key="p"))
    link = b.cluster.links[result.broker]
    assert isinstance(link, TidegateLink)
    for round_number in range(10):
        assert link.connection.data is not None
        link.connection.data.peer.pause()  # answers stay unread: the slots stay taken
        sends = []
        body = bytes(FRAME_BYTES_MIN)  # waits for no other frame's answer
        for index in range(FRAMES_AHEAD):
            sends.append(
                asyncio.ensure_future(b.pipeline.send(sender, messages("u/1", body, order_key="p")))
            )
            await until(lambda count=index + 1: link._frames.in_flight_count == count)
        subject = f"t/{round_number}/1"
        sends.append(  # received before the SUBACK, still waiting at it
            asyncio.ensure_future(
                b.pipeline.send(sender, messages(subject, b"before", order_key="p"))
            )
        )
        await turns()
        sink, stream = await subscribe(a, f"t/{round_number}/+", f"c{round_number}")
        sends.append(
            asyncio.ensure_future(
                b.pipeline.send(sender, messages(subject, b"after", order_key="p"))
            )
        )
        await turns()
        link.connection.data.peer.resume()
        results = await asyncio.wait_for(asyncio.gather(*sends), PATIENCE_S)
        assert [found[0].code for found in results] == [Code.OK] * (FRAMES_AHEAD + 2)
        found = await sink.wait(2)
        assert [delivery.message.body for delivery in found] == [b"before", b"after"]
        await stream.close(drop_group=True)
    await a.stop()
    await b.stop()


class CoreProcess:
    """``tests.support.core_process`` and its lines."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.lines: list[str] = []
        self._reader = asyncio.ensure_future(self._read())

    @classmethod
    async def start(cls, name: str, stores: StoreCluster) -> "CoreProcess":
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.support.core_process",
            name,
            stores.name_servers[0],
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        self = cls(process)
        await until(lambda: "ready" in self.lines)
        return self

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            self.lines.append(line.decode().strip())

    def publish(self, subject: str, body: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{subject} {body}\n".encode())

    def signal(self, number: signal.Signals) -> None:
        os.kill(self._process.pid, number)

    def answers(self) -> dict[str, str]:
        """Body → code of what was answered."""
        pairs = (line.split() for line in self.lines)
        return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}

    async def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
        await self._reader


async def test_a_stopped_gateway_cannot_send_by_its_old_table(hurried: StoreCluster) -> None:
    """
    B is stopped past its lease; A's barrier fences it and returns; B wakes with publishes to
    send. None is acknowledged that the subscriber does not get, and B works again thereafter.
    """
    a = await start_core(hurried, "gw-a")
    b = await CoreProcess.start("gw-b", hurried)
    b.publish("t/0", "warm")
    await until(lambda: b.answers().get("warm") == "OK")
    started = asyncio.get_running_loop().time()
    b.signal(signal.SIGSTOP)
    try:
        sink, stream = await subscribe(a, "t/+", "c1")
        waited = asyncio.get_running_loop().time() - started
        assert waited > 1.0, "it waits for the lease to end"
        for index in range(20):
            b.publish("t/1", f"m{index}")
    finally:
        b.signal(signal.SIGCONT)
    await until(lambda: len(b.answers()) == 21)
    await until(lambda: "joined" in b.lines)
    assert "ended" in b.lines
    b.publish("t/1", "again")
    await until(lambda: "again" in b.answers())
    acknowledged = {body for body, code in b.answers().items() if code == "OK"} - {"warm"}
    assert "again" in acknowledged
    await sink.wait(len(acknowledged))
    got = {delivery.message.body.decode() for delivery in sink.deliveries}
    assert acknowledged <= got
    await stream.close()
    await b.stop()
    await a.stop()
