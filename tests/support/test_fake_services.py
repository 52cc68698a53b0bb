"""The fake keeps the promises that adapters are tested against."""

import asyncio
from collections.abc import Sequence

from protocols.canonical import Call, Delivery, Head, Identity, Message, QueueKind, QueueRef
from protocols.directory import Put, Subscription
from protocols.errors import Code
from protocols.groups import GroupSpec, Read
from tests.support.fake_services import FakeBroker, FakeServices

CALL = Call(protocol="mqtt", listener="mqtt", identity=Identity(name="anonymous"), client_id="c")
QUEUE = QueueRef(QueueKind.FILTER, "a/+")
SPEC = GroupSpec(name="g", reads=(Read(QUEUE, tag=7),), is_inherited=True)


class Sink:
    """Collects."""

    def __init__(self) -> None:
        self.got: list[Delivery] = []
        self.code: Code | None = None

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        self.got += deliveries

    def ended(self, code: Code, hint: str) -> None:
        self.code = code


async def settle() -> None:
    """Let everything that is due in this tick and the next few run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_stream_gets_what_matches_within_its_credit() -> None:
    """Three match, credit is two: two come, the third after ``allow``."""
    services = FakeServices()
    await services.directory.subscribe([Subscription("a/+", QUEUE, "g")])
    sink = Sink()
    stream = await services.streams.open(CALL, SPEC, sink, credit=2)
    head, other = Head(subject="a/b"), Head(subject="b")
    bodies = [b"1", b"2", b"3"]
    results = await services.pipeline.send(
        CALL, [*(Message(head, body) for body in bodies), Message(other, b"x")]
    )
    await settle()
    assert [result.matched_count for result in results] == [1, 1, 1, 0]
    assert [delivery.message.body for delivery in sink.got] == [b"1", b"2"]
    assert sink.got[0].reads == (7,)
    stream.allow(3)
    await settle()
    assert sink.got[2].message.subject == "a/b"


async def test_an_inherited_delivery_waits_for_the_next_owner() -> None:
    """What was in flight comes again with its packet id; the old stream is told it ended."""
    broker = FakeBroker()
    one, two = FakeServices(broker, "gw-1"), FakeServices(broker, "gw-2")
    await one.directory.subscribe([Subscription("a/+", QUEUE, "g")])
    first, second = Sink(), Sink()
    stream = await one.streams.open(CALL, SPEC, first, credit=10)
    await one.pipeline.send(CALL, [Message(Head(subject="a/b"), b"1")])
    await settle()
    stream.mark([(first.got[0].handle, 5, 1)])
    spec = GroupSpec(name="g", reads=SPEC.reads, is_inherited=True, owner_epoch=2)
    await two.streams.open(CALL, spec, second, credit=10)
    assert first.code == Code.PRECONDITION_FAILED
    assert (second.got[0].packet_id, second.got[0].stage) == (5, 1)


async def test_a_put_loses_to_a_newer_version() -> None:
    """A conditional write with an old version gets the winner's record."""
    services = FakeServices()
    first = await services.directory.put([Put("k", b"1", if_version=0)])
    second = await services.directory.put([Put("k", b"2", if_version=0)])
    assert first[0].is_ours
    assert not second[0].is_ours
    assert second[0].record.value == b"1"
