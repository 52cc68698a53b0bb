"""Kept sessions over an Apache broker: what a gateway still knows of one that was elsewhere."""

from collections.abc import Sequence

import pytest

from gateway.clusters.apache import requests
from gateway.clusters.apache.link import ApacheLink
from gateway.clusters.link import StoreLink
from protocols.canonical import Delivery, QueueKind, QueueRef
from protocols.errors import Code
from protocols.groups import GroupSpec, Read
from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.peer import Receive
from protocols.remoting.records import decode_records, encode_record
from protocols.remoting.settling import MarkItem

QUEUE = QueueRef(QueueKind.FILTER, "t/#")


class World:
    """One gateway's link, the committed offset at its broker, a client that takes everything."""

    def __init__(self) -> None:
        self.committed = 5
        self.link = ApacheLink("c", "a", self._connect, changed=lambda link: None)
        self.link._request = self._answer  # type: ignore[method-assign]
        self.arrivals: list[list[tuple[int, int]]] = []

    async def _connect(self, push: Receive) -> RemotingClient:
        raise AssertionError("nobody runs the link")

    async def _answer(self, command: RemotingCommand, *, timeout_s: float = 0) -> RemotingCommand:
        assert command.code == RequestCode.QUERY_CONSUMER_OFFSET
        offset = self.committed + requests.COMMIT_BIAS
        return command.answer(ResponseCode.SUCCESS, {"offset": str(offset)})

    async def open(self, owner_epoch: int) -> int:
        """A connection of the session; the number of its group here."""
        spec = GroupSpec(name="g", reads=(Read(QUEUE),), owner_epoch=owner_epoch, is_inherited=True)
        number = await self.link.open_group(spec)
        await self.link.open_stream(
            owner_epoch, number, spec, self, credit=10, holds=(), is_resuming=True
        )
        return number

    # StreamPort

    def arrived(self, link: StoreLink, deliveries: Sequence[Delivery]) -> None:
        self.arrivals.append([(one.handle.position, one.packet_id) for one in deliveries])
        self.handles = [one.handle for one in deliveries]

    def ended(self, link: StoreLink, code: Code, hint: str) -> None:
        raise AssertionError(hint)

    def lost(self, link: StoreLink) -> None:
        raise AssertionError("the link is not run")


@pytest.fixture
async def world() -> World:
    """Two messages are with the client, the second one under packet id 9."""
    world = World()
    number = await world.open(1)
    group = world.link._by_number[number]
    (queue,) = group.queues.values()
    records = [
        encode_record("t", b"x", queue_id=0, queue_offset=offset, log_position=offset * 100)
        for offset in (5, 6)
    ]
    group.fetched(queue, decode_records(b"".join(records), cluster="c", broker="a"), 7)
    world.link._grant(group)
    assert world.arrivals == [[(500, 0), (600, 0)]]
    handle = world.handles[1]
    group.mark(MarkItem(number, handle.position, handle.grant, 9, 1))
    await world.link.close_stream(1)
    world.arrivals.clear()
    return world


async def test_who_comes_again_gets_what_is_open_under_its_packet_ids(world: World) -> None:
    """What has one comes by itself, as from a store of ours."""
    await world.open(2)
    assert world.arrivals == [[(500, 0)], [(600, 9)]]


async def test_who_was_elsewhere_gets_nothing_that_is_done_there(world: World) -> None:
    """Another gateway has acknowledged it, and delivered what follows."""
    world.committed = 40
    number = await world.open(2)
    assert world.arrivals == []
    (queue,) = world.link._by_number[number].queues.values()
    assert queue.next_offset == 40


async def test_a_broker_that_forgot_some_offsets_is_not_read_again(world: World) -> None:
    world.committed = 2
    await world.open(2)
    assert world.arrivals == [[(500, 0)], [(600, 9)]]
