"""gRPC consumers: groups as the brokers have them, priorities, reading by offset."""

from collections.abc import AsyncIterator

import pytest

from protocols.errors import Code
from protocols.grpc.config import GrpcConfig
from protocols.grpc.context import Rpc
from protocols.grpc.mapping import duration_of, timestamp_of
from protocols.grpc.service import MessagingService
from protocols.grpc.v2 import definition_pb2 as v2
from protocols.grpc.v2 import service_pb2 as pb
from protocols.pipeline import GroupPolicy
from tests.support.fake_broker import BROKER
from tests.support.fake_services import FakeServices

RPC = Rpc(metadata={"x-mq-client-id": "host@1@0@abc"}, peer="127.0.0.1:5000", remaining_ms=30_000)
TOPIC = v2.Resource(name="orders")
GROUP = v2.Resource(name="workers")


@pytest.fixture
async def service(services: FakeServices) -> AsyncIterator[MessagingService]:
    service = MessagingService("grpc", GrpcConfig(bind="127.0.0.1:8081"), services)
    yield service
    await service.close()


async def send(service: MessagingService, body: bytes, **system: object) -> pb.SendMessageResponse:
    properties = v2.SystemProperties(
        **{"message_id": "01" + "A" * 32, "body_encoding": v2.IDENTITY} | system
    )
    message = v2.Message(topic=TOPIC, body=body, system_properties=properties)
    return await service.unary("SendMessage", RPC, pb.SendMessageRequest(messages=[message]))


async def receive(service: MessagingService) -> list[pb.ReceiveMessageResponse]:
    request = pb.ReceiveMessageRequest(
        group=GROUP,
        message_queue=v2.MessageQueue(topic=TOPIC, broker=v2.Broker(name=BROKER)),
        batch_size=16,
        invisible_duration=duration_of(15_000),
        long_polling_timeout=duration_of(50),
    )
    return [response async for response in service.receive(RPC, request)]


async def test_settings_follow_the_group_of_the_brokers(
    service: MessagingService, services: FakeServices
) -> None:
    """Attempts, waits and order are the group's; a group that is off gets nothing."""
    await send(service, b"x")
    policy = GroupPolicy(4, is_orderly=True, exponential=(100, 5000, 3))
    services.topics.groups["workers"] = policy
    entry = v2.SubscriptionEntry(topic=TOPIC)
    wanted = v2.Settings(subscription=v2.Subscription(group=GROUP, subscriptions=[entry]))

    async def talk() -> AsyncIterator[pb.TelemetryCommand]:
        yield pb.TelemetryCommand(settings=wanted)

    (answer,) = [command async for command in service.telemetry(RPC, talk())]
    backoff = answer.settings.backoff_policy
    assert (answer.settings.subscription.fifo, backoff.max_attempts) == (True, 4)
    assert backoff.exponential_backoff.initial.nanos == 100_000_000
    await receive(service)
    assert services.broker.groups["rmq/workers/orders"].spec.attempts_max == 4
    services.topics.groups["workers"] = policy._replace(may_consume=False)
    assert (await receive(service))[0].status.code == Code.FORBIDDEN


async def test_a_priority_is_kept(service: MessagingService, services: FakeServices) -> None:
    """On a topic of that type; others refuse it, and it refuses others."""
    await send(service, b"x")
    services.topics.types["orders"] = "PRIORITY"
    assert (await send(service, b"high", priority=2)).status.code == Code.OK
    assert services.broker.log[-1].message.properties["_SYS_MSG_PRIORITY_"] == "2"
    got = next(one.message for one in await receive(service) if one.message.body == b"high")
    assert (got.system_properties.priority, got.system_properties.message_type) == (2, v2.PRIORITY)
    conflict = Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert (await send(service, b"x")).status.code == conflict
    services.topics.types["orders"] = "NORMAL"
    assert (await send(service, b"x", priority=2)).status.code == conflict


async def test_reading_by_offset(service: MessagingService, services: FakeServices) -> None:
    """Pull, and the offset to go on from; a queue's range; what the group has committed."""
    for number in range(6):
        await send(service, b"%d" % number, tag="even" if number % 2 == 0 else "odd")
    queue_id = services.broker.log[0].message.queue_id
    stored = services.broker.topic_log["orders", queue_id]
    queue = v2.MessageQueue(topic=TOPIC, id=queue_id, broker=v2.Broker(name=BROKER))

    async def pull(offset: int, expression: str = "*") -> tuple[int, list[bytes], int]:
        request = pb.PullMessageRequest(
            group=GROUP,
            message_queue=queue,
            offset=offset,
            batch_size=32,
            filter_expression=v2.FilterExpression(type=v2.TAG, expression=expression),
        )
        found = [response async for response in service.pull(RPC, request)]
        bodies = [one.message.body for one in found if one.HasField("message")]
        assert not any([one.message.system_properties.receipt_handle for one in found])
        return found[0].status.code, bodies, found[-1].next_offset

    everything = [entry.message.body for entry in stored]
    assert await pull(0) == (Code.OK, everything, len(stored))
    assert await pull(len(stored)) == (Code.MESSAGE_NOT_FOUND, [], len(stored))
    assert (await pull(0, "none"))[::2] == (Code.MESSAGE_NOT_FOUND, len(stored))
    assert await pull(99) == (Code.ILLEGAL_OFFSET, [], len(stored))
    assert (await pull(-1))[0] == Code.ILLEGAL_OFFSET

    async def query(policy: int, **at: object) -> int:
        request = pb.QueryOffsetRequest(message_queue=queue, query_offset_policy=policy, **at)
        return (await service.unary("QueryOffset", RPC, request)).offset

    assert await query(v2.BEGINNING) == 0
    assert await query(v2.END) == len(stored)
    assert await query(v2.TIMESTAMP, timestamp=timestamp_of(2**41)) == len(stored)

    ours = {"group": GROUP, "message_queue": queue}
    answer = await service.unary("GetOffset", RPC, pb.GetOffsetRequest(**ours))
    assert answer.status.code == Code.OFFSET_NOT_FOUND
    update = pb.UpdateOffsetRequest(**ours, offset=1)
    assert (await service.unary("UpdateOffset", RPC, update)).status.code == Code.OK
    answer = await service.unary("GetOffset", RPC, pb.GetOffsetRequest(**ours))
    assert (answer.status.code, answer.offset) == (Code.OK, 1)
    ours["message_queue"] = v2.MessageQueue(topic=TOPIC, id=99, broker=v2.Broker(name=BROKER))
    answer = await service.unary("GetOffset", RPC, pb.GetOffsetRequest(**ours))
    assert answer.status.code == Code.BAD_REQUEST
