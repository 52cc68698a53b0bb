"""A gRPC client's own stream, and what is held until somebody says how it ends."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from protocols import clock
from protocols.canonical import Call, Head, Identity, Message
from protocols.errors import Code
from protocols.grpc import telemetry
from protocols.grpc.config import GrpcConfig
from protocols.grpc.context import StreamFailed
from protocols.grpc.mapping import duration_of, timestamp_of
from protocols.grpc.service import MessagingService
from protocols.grpc.v2 import definition_pb2 as v2
from protocols.grpc.v2 import service_pb2 as pb
from protocols.remoting.delays import parse_recall_handle
from protocols.rocketmq import HalfCheck, HalfPlace
from tests.support.fake_services import FakeServices
from tests.support.grpc_service import GROUP, RPC, TOPIC, message, send


@pytest.fixture
async def service(services: FakeServices) -> AsyncIterator[MessagingService]:
    config = GrpcConfig(bind="127.0.0.1:8081")
    service = MessagingService("grpc", config, services)
    yield service
    await service.close()


async def test_a_delayed_message_can_be_recalled(
    service: MessagingService, services: FakeServices
) -> None:
    """The send tells the handle; any horizon; a time that has come is no delay."""
    at = timestamp_of(clock.wall_ms() + 400 * 86_400_000)
    answer = await send(service, message(delivery_timestamp=at))
    (entry,) = answer.entries
    handle = parse_recall_handle(entry.recall_handle)
    assert handle is not None
    assert (handle.topic, handle.broker, handle.due_ms) == (
        "orders", "broker-a", at.ToMilliseconds(),
    )  # fmt: skip
    request = pb.RecallMessageRequest(topic=TOPIC, recall_handle=entry.recall_handle)
    recalled = await service.unary("RecallMessage", RPC, request)
    assert (recalled.status.code, recalled.message_id) == (Code.OK, "recalled-id")
    assert services.held.recalled == [("orders", entry.recall_handle)]
    past = await send(service, message(delivery_timestamp=timestamp_of(1000)))
    assert past.entries[0].recall_handle == ""
    assert len(services.broker.held) == 1


async def test_a_transaction_is_ended_by_its_id(
    service: MessagingService, services: FakeServices
) -> None:
    """The id tells the place; the group is the topic; other texts are refused."""
    half = message(
        message_type=v2.TRANSACTION, orphaned_transaction_recovery_duration=duration_of(9000)
    )
    (entry,) = (await send(service, half)).entries
    (held,) = services.broker.held
    assert held.producer_group == "orders"
    assert ("CHECK_IMMUNITY_TIME_IN_SECONDS", "9") in held.properties

    async def end(text: str, resolution: int = v2.COMMIT) -> int:
        request = pb.EndTransactionRequest(
            topic=TOPIC, message_id="x", transaction_id=text, resolution=resolution
        )
        return (await service.unary("EndTransaction", RPC, request)).status.code

    assert await end(entry.transaction_id) == Code.OK
    ((place, is_commit),) = services.held.ended
    assert (place.broker, place.position, place.group) == ("broker-a", 7001, "orders")
    assert is_commit
    for text in ("", "AAAA", "no id"):
        assert await end(text) == Code.INVALID_TRANSACTION_ID
    assert await end(entry.transaction_id, 0) == Code.OK
    assert len(services.held.ended) == 1
    services.held.refuses = Code.MESSAGE_NOT_FOUND
    assert await end(entry.transaction_id) == Code.MESSAGE_NOT_FOUND


async def test_a_producer_is_asked_on_its_stream(
    service: MessagingService, services: FakeServices
) -> None:
    """From its settings on until the stream ends; the id of the question ends the transaction."""
    settings = v2.Settings(publishing=v2.Publishing(topics=[TOPIC]))
    over = asyncio.Event()

    async def talk() -> AsyncIterator[pb.TelemetryCommand]:
        yield pb.TelemetryCommand(settings=settings)
        await over.wait()

    stream = service.telemetry(RPC, talk())
    await anext(stream)
    stored = services.broker.store(
        Call(protocol="grpc", listener="grpc", identity=Identity(name="p")),
        Message(Head(subject="orders", topic="orders"), b"half", message_id="m1"),
    )
    kept = services.broker.log[-1].message
    place = HalfPlace("DefaultCluster", "broker-a", stored.log_position, 5, "orders")
    services.held.checks["orders"][0](HalfCheck(place, kept))
    asked = (await anext(stream)).recover_orphaned_transaction_command
    assert (asked.message.body, asked.message.topic.name) == (b"half", "orders")
    request = pb.EndTransactionRequest(
        topic=TOPIC, transaction_id=asked.transaction_id, resolution=v2.ROLLBACK
    )
    assert (await service.unary("EndTransaction", RPC, request)).status.code == Code.OK
    assert services.held.ended == [(place, False)]
    over.set()
    assert [one async for one in stream] == []
    assert services.held.checks == {}


async def talk(*settings: v2.Settings) -> AsyncIterator[pb.TelemetryCommand]:
    for one in settings:
        yield pb.TelemetryCommand(settings=one)


async def test_settings_of_a_producer(service: MessagingService) -> None:
    """Client fields stay, the server's are set, and the status is OK."""
    settings = v2.Settings(
        client_type=v2.PRODUCER, publishing=v2.Publishing(topics=[TOPIC], max_body_size=1)
    )
    (answer,) = [one async for one in service.telemetry(RPC, talk(settings))]
    assert answer.status.code == Code.OK
    merged = answer.settings
    assert merged.client_type == v2.PRODUCER
    assert merged.publishing.topics[0].name == "orders"
    assert merged.publishing.max_body_size == 4 << 20
    assert merged.backoff_policy.max_attempts == 3
    assert merged.backoff_policy.exponential_backoff.initial.ToMilliseconds() == 10
    assert merged.HasField("metric")


async def test_settings_of_a_consumer(service: MessagingService) -> None:
    """Batch size, polling time and back-off are never zero: clients would spin."""
    settings = v2.Settings(
        client_type=v2.PUSH_CONSUMER,
        subscription=v2.Subscription(
            group=GROUP, subscriptions=[v2.SubscriptionEntry(topic=TOPIC)]
        ),
    )
    (answer,) = [one async for one in service.telemetry(RPC, talk(settings))]
    subscription = answer.settings.subscription
    assert subscription.HasField("fifo")
    assert subscription.receive_batch_size == 32
    assert subscription.long_polling_timeout.seconds == 20
    assert answer.settings.backoff_policy.max_attempts == 17
    assert len(answer.settings.backoff_policy.customized_backoff.next) == 18


async def test_empty_settings_end_the_stream(service: MessagingService) -> None:
    """Settings that are neither a producer's nor a consumer's are INVALID_ARGUMENT."""
    with pytest.raises(StreamFailed) as failed:
        [one async for one in service.telemetry(RPC, talk(v2.Settings()))]
    assert failed.value.status == "INVALID_ARGUMENT"


async def test_consumers_of_lite_topics_cannot_start(service: MessagingService) -> None:
    """They are told so at once; with settings they would run and never get anything."""
    settings = v2.Settings(
        client_type=v2.LITE_PUSH_CONSUMER, subscription=v2.Subscription(group=GROUP)
    )
    with pytest.raises(StreamFailed) as failed:
        [one async for one in service.telemetry(RPC, talk(settings))]
    assert failed.value.status == "UNIMPLEMENTED"
    assert "no lite topics" in failed.value.message


async def test_settings_come_again_to_who_may_have_missed_them(
    service: MessagingService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Node's client drops what comes before it has all its routes, and waits for ever."""
    monkeypatch.setattr(telemetry, "AGAIN_S", (0.0, 0.0))
    agent = v2.UA(language=v2.NODE_JS)
    settings = v2.Settings(user_agent=agent, publishing=v2.Publishing(topics=[TOPIC]))

    async def open_end() -> AsyncIterator[pb.TelemetryCommand]:
        yield pb.TelemetryCommand(settings=settings)
        await asyncio.Event().wait()

    answers: list[pb.TelemetryCommand] = []
    async with contextlib.aclosing(service.telemetry(RPC, open_end())) as stream:
        while len(answers) < 3:
            answers.append(await anext(stream))
    assert answers[0].settings.publishing.max_body_size == 4 << 20
    assert answers[1:] == answers[:1] * 2


async def test_kick_ends_the_stream(service: MessagingService, services: FakeServices) -> None:
    """An operator's disconnect ends a stream that would stay open."""

    async def open_end() -> AsyncIterator[pb.TelemetryCommand]:
        yield pb.TelemetryCommand(settings=v2.Settings(publishing=v2.Publishing()))
        await asyncio.Event().wait()

    count = 0
    async for _ in service.telemetry(RPC, open_end()):
        count += 1
        ((info, kick),) = services.clients.connected
        assert info.client_id == "host@1@0@abc"
        kick()
    assert count == 1
    assert not services.clients.connected
