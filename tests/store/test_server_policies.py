"""Policies of a pinned queue as its consumers see them, through a store's socket."""

from collections.abc import AsyncIterator

import pytest

from protocols.canonical import QueueKind, queue_key
from protocols.errors import Code
from protocols.remoting import private, sending
from protocols.remoting.codes import ResponseCode
from protocols.remoting.private import PrivateCode
from protocols.remoting.settling import AckItem
from store.app import Store
from tests.support.store_server import GatewayEnd

KEY = queue_key("", QueueKind.AMQP, "/q", 7)
GROUP = "amqp//q"


class Consumers(GatewayEnd):
    """A gateway whose streams read one queue."""

    group = 0

    async def create(self, **policy: int | str) -> None:
        """The queue, and its group."""
        wanted = private.QueueCreate(
            key=KEY, name="/q", policy={"group": GROUP, "incarnation": 7, **policy}
        )
        assert (await self.do(PrivateCode.QUEUE_CREATE, wanted)).code == ResponseCode.SUCCESS
        opened = await self.open_group(GROUP, key=KEY, incarnation=7, start="earliest")
        self.group = opened.group

    async def stat(self) -> private.QueueCounts:
        asked = private.QueueStatRequest(key=KEY, group=GROUP)
        return await self.ask(PrivateCode.QUEUE_STAT, asked, private.QueueCounts)

    async def put(self, *bodies: bytes) -> sending.SendAnswer:
        return await self.send(*bodies, keys=(KEY,), is_primary=False)

    def streams(self) -> list[int]:
        """Which stream got each delivery."""
        return [delivery.stream for delivery in self.deliveries]


@pytest.fixture
async def gateway(store: Store) -> AsyncIterator[Consumers]:
    end = Consumers("gw-1")
    await end.connect(store)
    yield end
    await end.close()


async def test_the_first_consumer_gets_all_and_the_next_when_it_goes(gateway: Consumers) -> None:
    """Single active: also what comes back goes to the next one, in order."""
    await gateway.create(single_active=1)
    await gateway.open_stream(gateway.group, 1, 1)
    await gateway.open_stream(gateway.group, 2, 10)
    await gateway.open_stream(gateway.group, 3, 10)
    await gateway.put(b"a", b"b", b"c")
    await gateway.received(1)
    counts = await gateway.stat()
    assert (counts.ready_count, counts.in_flight_count, counts.consumer_count) == (2, 1, 3)
    await gateway.do(PrivateCode.STREAM_CLOSE, private.StreamClose(stream=1))
    await gateway.received(4)
    assert gateway.streams() == [1, 2, 2, 2]
    positions = [delivery.position for delivery in gateway.deliveries]
    assert positions[1:] == sorted(positions[1:])
    assert positions[0] == positions[1]


async def test_another_gateways_consumer_waits_its_turn(store: Store, gateway: Consumers) -> None:
    """The store knows one active consumer over all gateways."""
    await gateway.create(single_active=1)
    await gateway.open_stream(gateway.group, 1, 10)
    other = Consumers("gw-2")
    await other.connect(store)
    await other.open_stream(gateway.group, 1, 10)
    await gateway.put(b"a")
    await gateway.received(1)
    await gateway.ack_all()
    await gateway.do(PrivateCode.STREAM_CLOSE, private.StreamClose(stream=1))
    await gateway.put(b"b")
    await other.received(1)
    assert len(gateway.deliveries) == 1
    await other.close()


async def test_more_priority_is_served_first_while_it_has_credit(gateway: Consumers) -> None:
    """Whatever the order in which the streams were opened."""
    await gateway.create()
    await gateway.open_stream(gateway.group, 1, 10, priority=-1)
    await gateway.open_stream(gateway.group, 2, 10)
    await gateway.open_stream(gateway.group, 3, 2, priority=5)
    await gateway.put(b"a", b"b", b"c", b"d")
    await gateway.received(4)
    assert gateway.streams() == [3, 3, 2, 2]
    gateway.allow(3, 3)
    await gateway.put(b"e", b"f")
    await gateway.received(6)
    assert sorted(gateway.streams()[4:]) == [2, 3]


async def test_an_exclusive_consumer_keeps_others_out(gateway: Consumers) -> None:
    """Both ways, until it goes."""
    await gateway.create()
    await gateway.open_stream(gateway.group, 1, 10, is_exclusive=True)
    plain = private.StreamOpen(group=gateway.group, stream=2, credit=1)
    refused = await gateway.do(PrivateCode.STREAM_OPEN, plain)
    assert "in exclusive use" in (refused.remark or "")
    await gateway.do(PrivateCode.STREAM_CLOSE, private.StreamClose(stream=1))
    await gateway.open_stream(gateway.group, 2, 1)
    alone = private.StreamOpen(group=gateway.group, stream=3, credit=1, is_exclusive=True)
    refused = await gateway.do(PrivateCode.STREAM_OPEN, alone)
    assert "in exclusive use" in (refused.remark or "")


async def test_a_retired_stream_may_still_ack(gateway: Consumers) -> None:
    """It is no consumer any more; what it holds stays out."""
    await gateway.create()
    await gateway.open_stream(gateway.group, 1, 10)
    await gateway.put(b"a")
    (held,) = await gateway.received(1)
    retired = private.StreamClose(stream=1, is_retired=True)
    await gateway.do(PrivateCode.STREAM_CLOSE, retired)
    await gateway.put(b"b")
    counts = await gateway.stat()
    assert (counts.ready_count, counts.in_flight_count, counts.consumer_count) == (1, 1, 0)
    assert await gateway.ack(AckItem(held.group, held.position, held.grant)) == [
        (held.grant, Code.OK)
    ]
    assert (await gateway.stat()).in_flight_count == 0


async def test_waiting_consumers_make_room_in_a_full_queue(gateway: Consumers) -> None:
    """What is taken at once never was in the queue; then the limit holds."""
    await gateway.create(max_length=1, overflow="reject")
    await gateway.open_stream(gateway.group, 1, 2)
    answer = await gateway.put(b"a", b"b", b"c", b"d")
    assert {index: code for index, (code, _) in answer.refused.items()} == {
        3: Code.LITE_TOPIC_QUOTA_EXCEEDED
    }
    await gateway.received(2)
    assert (await gateway.stat()).ready_count == 1


async def test_who_is_not_its_turn_makes_no_room(gateway: Consumers) -> None:
    """Of a queue with a single active consumer only that one's credit counts."""
    await gateway.create(max_length=1, overflow="reject", single_active=1)
    await gateway.open_stream(gateway.group, 1, 1)
    await gateway.open_stream(gateway.group, 2, 10)
    answer = await gateway.put(b"a", b"b", b"c", b"d")
    assert {*answer.refused} == {2, 3}
    await gateway.received(1)
    assert (await gateway.stat()).ready_count == 1
