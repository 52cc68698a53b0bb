"""Consumer groups of RocketMQ clients over a real store: configuration, attempts, priorities."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from protocols import clock
from protocols.canonical import Head, Message
from protocols.errors import Code
from protocols.groups import GroupSpec, InvisibleTimeChange, PopRequest, Read, Start
from protocols.pipeline import GroupPolicy
from protocols.remoting.bodies import (
    ExponentialRetry,
    GroupConfig,
    GroupRetryPolicy,
    decode_body,
    encode_body,
)
from protocols.remoting.codes import RequestCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.records import decode_record
from protocols.rocketmq_groups import as_configured
from store.answers import TopicConfig
from tests.support.core import Core, call, until
from tests.support.daemons import StoreCluster

SPEC = GroupSpec(name="rmq/G/P", reads=(Read(topic="P"),), attempts_max=17, start=Start.EARLIEST)


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[StoreCluster]:
    stores = StoreCluster(tmp_path)
    await stores.start("a")
    yield stores
    await stores.stop()


@pytest.fixture
async def core(stores: StoreCluster) -> AsyncIterator[Core]:
    core = Core("gw-1", stores.name_servers)
    await core.start()
    topic = TopicConfig("P", 4, 4, attributes={"message.type": "PRIORITY"})
    stores.stores["a"]._engine.catalog.put_topic(topic, clock.read())  # type: ignore[union-attr]
    await until(lambda: core.cluster.routes.exists("P"))
    yield core
    await core.stop()


async def send(core: Core, body: bytes, priority: int = -1) -> bytes:
    """The stored record."""
    head = Head(subject="P", topic="P", priority=priority, message_queue_id=priority)
    (result,) = await core.pipeline.send(call(protocol="grpc"), [Message(head, body)])
    assert result.code == Code.OK
    messages, _, _ = await core.topics.read("P", "a", result.queue_id, result.queue_offset, 1, 0)
    return messages[0].record


async def test_a_group_is_as_the_store_has_it(core: Core) -> None:
    config = GroupConfig(
        group_name="G",
        retry_max_times=2,
        consume_message_orderly=True,
        group_retry_policy=GroupRetryPolicy(
            type="EXPONENTIAL",
            exponential_retry_policy=ExponentialRetry(initial=100, max=5000, multiplier=3),
        ),
    )
    assert await core.topics.group("unknown", "P") is None
    (link,) = core.cluster.up_links()
    command = RemotingCommand(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, encode_body(config)
    )
    assert (await link.ask(command)).code == 0
    wanted = GroupPolicy(3, is_orderly=True, exponential=(100, 5000, 3))
    assert await core.topics.group("G", "P") == wanted
    asked = RemotingCommand(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "G"})
    assert decode_body(GroupConfig, (await link.ask(asked)).body) == config


async def test_priorities_and_attempts(core: Core) -> None:
    """The highest first; the same attempt again gets the same, once; who sent it is recorded."""
    record = decode_record(await send(core, b"low", 0))
    assert record.born_host == "127.0.0.1:1"
    await send(core, b"middle", 2)
    await send(core, b"high", 99)
    info = await core.topics.find("P")
    assert info is not None
    pop = PopRequest(
        group=as_configured(SPEC, info, None),
        count=2,
        invisible_ms=60_000,
        attempt_id="once",
    )
    first = await core.pipeline.pop(call(protocol="grpc"), pop)
    assert [one.message.body for one in first] == [b"high", b"middle"]
    assert [one.message.queue_id for one in first] == [3, 2]
    again = await core.pipeline.pop(call(protocol="grpc"), pop)
    assert sorted(one.message.body for one in again) == [b"high", b"middle"]
    assert [one.attempt for one in again] == [1, 1]
    codes = [result.code for result in await core.pipeline.ack(call(), [x.handle for x in again])]
    assert codes == [Code.OK] * 2
    (low,) = await core.pipeline.pop(call(protocol="grpc"), pop)
    assert low.message.body == b"low"


async def test_what_a_client_holds_is_good_at_every_gateway(
    core: Core, stores: StoreCluster
) -> None:
    """Its handles over renewals; all of it by its name, where its first gateway has gone."""
    for body in (b"1", b"2", b"3"):
        await send(core, body, 0)
    pop = PopRequest(group=SPEC, count=3, invisible_ms=600_000, queue_id=0, broker="a", taker="c1")
    first, second, _ = popped = await core.pipeline.pop(call(), pop)
    renewals = [InvisibleTimeChange(one.handle, 600_000, is_renewal=True) for one in popped]
    for result in await core.pipeline.change_invisible_time(call(), renewals):
        assert result.code == Code.OK
    other = Core("gw-2", stores.name_servers)
    await other.start()
    (result,) = await other.pipeline.ack(call(), [first.handle])
    assert result.code == Code.OK
    held = await other.pipeline.adopt(call(), SPEC, "c1", 600_000)
    assert [(one.message.body, one.attempt) for one in held] == [(b"2", 1), (b"3", 1)]
    (result,) = await core.pipeline.ack(call(), [second.handle])
    assert result.code == Code.INVALID_RECEIPT_HANDLE
    codes = [one.code for one in await other.pipeline.ack(call(), [one.handle for one in held])]
    assert codes == [Code.OK] * 2
    assert await other.pipeline.adopt(call(), SPEC, "c1", 600_000) == []
    await other.stop()
