"""The RPC logic, without a transport, on services in memory."""

import hashlib
import hmac
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from protocols.errors import Code
from protocols.grpc.config import GrpcConfig
from protocols.grpc.context import Rpc, signature_of
from protocols.grpc.mapping import duration_of
from protocols.grpc.service import MessagingService
from protocols.grpc.v2 import definition_pb2 as v2
from protocols.grpc.v2 import service_pb2 as pb
from tests.support.fake_services import FakeServices
from tests.support.grpc_service import GROUP, RPC, TOPIC, message, messages_of, receive, send

DIALLED = v2.Endpoints(
    scheme=v2.DOMAIN_NAME, addresses=[v2.Address(host="gw.example.com", port=443)]
)


@pytest.fixture
async def service(services: FakeServices) -> AsyncIterator[MessagingService]:
    config = GrpcConfig(bind="127.0.0.1:8081")
    service = MessagingService("grpc", config, services)
    yield service
    await service.close()


# ── routes ──────────────────────────────────────────────────────────────────────────────


async def test_route_answers_what_the_client_dialled(service: MessagingService) -> None:
    """All queues are at the dialled endpoints; an absent topic is made."""
    answer = await service.unary(
        "QueryRoute", RPC, pb.QueryRouteRequest(topic=TOPIC, endpoints=DIALLED)
    )
    assert answer.status.code == Code.OK
    assert [queue.id for queue in answer.message_queues] == [0, 1, 2, 3]
    queue = answer.message_queues[0]
    assert queue.broker.endpoints == DIALLED
    assert queue.permission == v2.READ_WRITE
    assert v2.NORMAL in queue.accept_message_types


@pytest.mark.parametrize(
    ("language", "version", "types"),
    [
        ("JAVA", "5.0.5", (v2.NORMAL, v2.FIFO, v2.DELAY, v2.TRANSACTION)),
        ("JAVA", "5.1.0", (v2.NORMAL, v2.FIFO, v2.DELAY, v2.TRANSACTION)),
        ("DOTNET", "5.1.0-rc1", (v2.NORMAL, v2.FIFO, v2.DELAY, v2.TRANSACTION)),
        ("JAVA", "5.2.0", (v2.NORMAL, v2.FIFO, v2.DELAY, v2.TRANSACTION, v2.PRIORITY)),
        ("JAVA", "6", (v2.NORMAL, v2.FIFO, v2.DELAY, v2.TRANSACTION, v2.PRIORITY)),
        ("GO", "5.0.1", (v2.NORMAL, v2.FIFO, v2.DELAY, v2.TRANSACTION, v2.PRIORITY)),
        ("", "", (v2.NORMAL, v2.FIFO, v2.DELAY, v2.TRANSACTION, v2.PRIORITY)),
    ],
)
async def test_routes_hold_types_that_the_sdk_reads(
    service: MessagingService, language: str, version: str, types: tuple[v2.MessageType, ...]
) -> None:
    """Java's SDK before 5.2 throws a route away that has PRIORITY in it, and cannot start."""
    who = {"x-mq-language": language, "x-mq-client-version": version}
    rpc = replace(RPC, metadata={**RPC.metadata, **who})
    request = pb.QueryRouteRequest(topic=TOPIC, endpoints=DIALLED)
    answer = await service.unary("QueryRoute", rpc, request)
    assert {tuple(queue.accept_message_types) for queue in answer.message_queues} == {types}


@pytest.mark.parametrize(("version", "listed"), [("5.0.8", v2.NORMAL), ("5.2.0", v2.PRIORITY)])
async def test_old_sdks_can_consume_priorities(
    services: FakeServices, service: MessagingService, version: str, listed: v2.MessageType
) -> None:
    """The assignments of a topic of priorities have a type that such an SDK reads."""
    await services.topics.create(TOPIC.name)
    services.topics.types[TOPIC.name] = "PRIORITY"
    rpc = replace(
        RPC,
        metadata={**RPC.metadata, "x-mq-language": "JAVA", "x-mq-client-version": version},
    )
    request = pb.QueryAssignmentRequest(topic=TOPIC, group=v2.Resource(name="g"))
    answer = await service.unary("QueryAssignment", rpc, request)
    queues = [assignment.message_queue for assignment in answer.assignments]
    assert {tuple(queue.accept_message_types) for queue in queues} == {(listed,)}


async def test_advertise_wins_over_what_was_dialled(services: FakeServices) -> None:
    """A listener behind a balancer names its public address."""
    config = GrpcConfig(bind="127.0.0.1:0", advertise="gw.example.com:8443")
    service = MessagingService("grpc", config, services)
    answer = await service.unary(
        "QueryRoute", RPC, pb.QueryRouteRequest(topic=TOPIC, endpoints=DIALLED)
    )
    (address,) = answer.message_queues[0].broker.endpoints.addresses
    assert (address.host, address.port) == ("gw.example.com", 8443)


async def test_topics_are_not_made_when_switched_off(services: FakeServices) -> None:
    """Without auto_create_topics an unknown topic is TOPIC_NOT_FOUND, as at the Apache proxy."""
    config = GrpcConfig(bind="127.0.0.1:0", auto_create_topics=False)
    service = MessagingService("grpc", config, services)
    answer = await service.unary("QueryRoute", RPC, pb.QueryRouteRequest(topic=TOPIC))
    assert answer.status.code == Code.TOPIC_NOT_FOUND


async def test_assignment_is_one_per_broker(service: MessagingService) -> None:
    """A group without order gets queue -1 of each broker: popping shares out the messages."""
    await send(service, message())
    request = pb.QueryAssignmentRequest(topic=TOPIC, group=GROUP, endpoints=DIALLED)
    answer = await service.unary("QueryAssignment", RPC, request)
    assert [one.message_queue.id for one in answer.assignments] == [-1]
    assert answer.assignments[0].message_queue.broker.name == "broker-a"


@pytest.mark.parametrize("name", ["", "a b", "TBW102", "rmq_sys_x", "x" * 128])
async def test_illegal_topic(service: MessagingService, name: str) -> None:
    """Names outside the alphabet, too long, or of the system are ILLEGAL_TOPIC."""
    request = pb.QueryRouteRequest(topic=v2.Resource(name=name))
    answer = await service.unary("QueryRoute", RPC, request)
    assert answer.status.code == Code.ILLEGAL_TOPIC


# ── send ────────────────────────────────────────────────────────────────────────────────


async def test_send_then_receive_keeps_every_field(service: MessagingService) -> None:
    """Body, tag, keys, id, group and user properties survive; digest and handle are there."""
    sent = message(tag="t1", keys=["k1", "k2"], message_group="g", trace_context="tc")
    answer = await send(service, sent)
    assert answer.status.code == Code.OK
    assert answer.entries[0].message_id == sent.system_properties.message_id
    responses = await receive(service)
    assert responses[0].status.code == Code.OK
    assert responses[-1].HasField("delivery_timestamp")
    (got,) = messages_of(responses)
    system = got.system_properties
    assert (got.body, dict(got.user_properties)["colour"]) == (b"hello", "blue")
    assert (system.tag, list(system.keys), system.message_group) == ("t1", ["k1", "k2"], "g")
    assert system.trace_context == "tc"
    assert "TRACE_CONTEXT" not in got.user_properties
    assert "__SHARDINGKEY" not in got.user_properties
    assert system.body_digest.checksum == hashlib.md5(b"hello").hexdigest().upper()
    assert (system.body_encoding, system.delivery_attempt) == (v2.IDENTITY, 1)
    assert system.receipt_handle


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (message(b""), Code.MESSAGE_BODY_EMPTY),
        (message(b"x" * ((4 << 20) + 1)), Code.MESSAGE_BODY_TOO_LARGE),
        (message(tag="a|b"), Code.ILLEGAL_MESSAGE_TAG),
        (message(keys=[" "]), Code.ILLEGAL_MESSAGE_KEY),
        (message(message_id=" "), Code.ILLEGAL_MESSAGE_ID),
        (message(message_group="x" * 64), Code.ILLEGAL_MESSAGE_GROUP),
        (message(lite_topic="device-1"), Code.NOT_IMPLEMENTED),
        (message(body_encoding=v2.GZIP), Code.MESSAGE_CORRUPTED),
    ],
    ids=lambda item: item.name if isinstance(item, Code) else "",
)
async def test_send_refuses(service: MessagingService, sent: v2.Message, code: Code) -> None:
    """Each fault has its code, in the response and not as a gRPC error."""
    assert (await send(service, sent)).status.code == code


async def test_reserved_property_is_refused(service: MessagingService) -> None:
    """A system property among the user properties is ILLEGAL_MESSAGE_PROPERTY_KEY."""
    sent = message()
    sent.user_properties["POP_CK"] = "1"
    assert (await send(service, sent)).status.code == Code.ILLEGAL_MESSAGE_PROPERTY_KEY


async def test_topics_of_a_batch_must_be_equal(service: MessagingService) -> None:
    """Nothing, or messages of two topics, is MESSAGE_CORRUPTED."""
    other = message()
    other.topic.name = "others"
    assert (await send(service)).status.code == Code.MESSAGE_CORRUPTED
    assert (await send(service, message(), other)).status.code == Code.MESSAGE_CORRUPTED


async def test_store_refusals_are_entries(
    service: MessagingService, services: FakeServices
) -> None:
    """What the pipeline refuses is the status of its entry, and of the whole when they agree."""
    services.denied.add(("publish", "orders"))
    answer = await send(service, message(), message())
    assert answer.status.code == Code.FORBIDDEN
    assert [entry.status.code for entry in answer.entries] == [Code.FORBIDDEN] * 2


# ── receive, ack, change ────────────────────────────────────────────────────────────────


async def test_empty_poll(service: MessagingService) -> None:
    """MESSAGE_NOT_FOUND, and the stream ends."""
    services = await service.unary("QueryRoute", RPC, pb.QueryRouteRequest(topic=TOPIC))
    assert services.status.code == Code.OK
    responses = await receive(service)
    assert responses[0].status.code == Code.MESSAGE_NOT_FOUND
    assert len(responses) == 2


async def test_ack_is_for_the_own_group(service: MessagingService) -> None:
    """A handle of another group, or none at all, is INVALID_RECEIPT_HANDLE."""
    await send(service, message())
    (got,) = messages_of(await receive(service))
    handle = got.system_properties.receipt_handle

    async def ack(group: str, *handles: str) -> pb.AckMessageResponse:
        entries = [pb.AckMessageEntry(message_id="m", receipt_handle=one) for one in handles]
        request = pb.AckMessageRequest(group=v2.Resource(name=group), topic=TOPIC, entries=entries)
        return await service.unary("AckMessage", RPC, request)

    assert (await ack("thieves", handle)).status.code == Code.INVALID_RECEIPT_HANDLE
    mixed = await ack("workers", "rubbish", handle)
    assert mixed.status.code == Code.MULTIPLE_RESULTS
    assert [one.status.code for one in mixed.entries] == [Code.INVALID_RECEIPT_HANDLE, Code.OK]


async def test_change_gives_a_new_handle_and_zero_returns(service: MessagingService) -> None:
    """The new handle counts, the old one does not; 0 makes the message visible at once."""
    await send(service, message())
    (got,) = messages_of(await receive(service))
    old = got.system_properties.receipt_handle

    async def change(handle: str, ms: int) -> pb.ChangeInvisibleDurationResponse:
        request = pb.ChangeInvisibleDurationRequest(
            group=GROUP, topic=TOPIC, receipt_handle=handle, invisible_duration=duration_of(ms)
        )
        return await service.unary("ChangeInvisibleDuration", RPC, request)

    first = await change(old, 60_000)
    assert first.status.code == Code.OK
    assert first.receipt_handle != old
    assert (await change(old, 60_000)).status.code == Code.INVALID_RECEIPT_HANDLE
    assert (await change(first.receipt_handle, 13 * 3600 * 1000)).status.code == (
        Code.ILLEGAL_INVISIBLE_TIME
    )
    assert (await change(first.receipt_handle, 0)).status.code == Code.OK
    (again,) = messages_of(await receive(service))
    assert again.system_properties.delivery_attempt == 2


async def test_client_that_leaves_in_mid_answer_loses_nothing(service: MessagingService) -> None:
    """What was popped and not sent returns at once."""
    await send(service, message(b"1"), message(b"2"))
    request = pb.ReceiveMessageRequest(
        group=GROUP,
        message_queue=v2.MessageQueue(topic=TOPIC),
        batch_size=16,
        invisible_duration=duration_of(60_000),
    )
    responses = service.receive(RPC, request)
    async for response in responses:
        if response.HasField("message"):
            break
    await responses.aclose()
    got = messages_of(await receive(service))
    assert sorted(one.body for one in got) == [b"1", b"2"]


async def test_auto_renewed_handle_stays_valid(service: MessagingService) -> None:
    """A push consumer's first handle acks whatever handle the store gave since."""
    await send(service, message())
    (got,) = messages_of(await receive(service, auto_renew=True))
    first = got.system_properties.receipt_handle
    receiving = service._receiving
    await receiving._change_all([first], 60_000)  # what the timer does
    request = pb.AckMessageRequest(
        group=GROUP, topic=TOPIC, entries=[pb.AckMessageEntry(receipt_handle=first)]
    )
    assert (await service.unary("AckMessage", RPC, request)).status.code == Code.OK


async def test_termination_returns_what_the_client_holds(service: MessagingService) -> None:
    """A push consumer that says goodbye leaves nothing hidden."""
    await send(service, message())
    assert messages_of(await receive(service, auto_renew=True))
    request = pb.NotifyClientTerminationRequest(group=GROUP)
    assert (await service.unary("NotifyClientTermination", RPC, request)).status.code == Code.OK
    assert messages_of(await receive(service, auto_renew=True))


async def test_forward_to_dead_letter_topic(
    service: MessagingService, services: FakeServices
) -> None:
    """The message is stored in %DLQ%group with its origin, then acknowledged."""
    await send(service, message(b"poison"))
    (got,) = messages_of(await receive(service))
    request = pb.ForwardMessageToDeadLetterQueueRequest(
        group=GROUP, topic=TOPIC, receipt_handle=got.system_properties.receipt_handle
    )
    answer = await service.unary("ForwardMessageToDeadLetterQueue", RPC, request)
    assert answer.status.code == Code.OK
    dead = services.broker.log[-1].message
    assert (dead.topic, dead.body) == ("%DLQ%workers", b"poison")
    assert dead.properties["TG_ORIGIN_TOPIC"] == "orders"
    assert not services.broker.groups["rmq/workers/orders"].in_flight


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"filter_expression": v2.FilterExpression(type=v2.SQL, expression="a >")}, 40010),
        ({"filter_expression": v2.FilterExpression(type=v2.TAG, expression="a | b")}, 40010),
        ({"invisible_duration": duration_of(1000)}, 40011),
        ({"group": v2.Resource(name="a b")}, 40003),
    ],
)
async def test_receive_refuses(
    service: MessagingService, change: dict[str, object], code: int
) -> None:
    """Refusals of a receive are a status on its stream."""
    fields = {
        "group": GROUP,
        "message_queue": v2.MessageQueue(topic=TOPIC),
        "invisible_duration": duration_of(15_000),
    }
    request = pb.ReceiveMessageRequest(**fields | change)
    responses = [response async for response in service.receive(RPC, request)]
    assert [response.status.code for response in responses] == [code]


# ── who asks ────────────────────────────────────────────────────────────────────────────


async def test_client_id_is_required(service: MessagingService) -> None:
    """A blank id is CLIENT_ID_REQUIRED in the response."""
    answer = await service.unary("QueryRoute", Rpc(), pb.QueryRouteRequest(topic=TOPIC))
    assert answer.status.code == Code.CLIENT_ID_REQUIRED


async def test_signature(service: MessagingService, services: FakeServices) -> None:
    """Upper or lower case hex of HMAC-SHA1 over the date header; anything else is 40100."""
    date = "20261121T101010Z"
    digest = hmac.new(b"secret", date.encode(), hashlib.sha1)
    services.users["ak"] = digest.digest()
    for text in (digest.hexdigest(), digest.hexdigest().upper()):
        header = (
            f"MQv2-HMAC-SHA1 Credential=ak/region, SignedHeaders=x-mq-date-time, Signature={text}"
        )
        metadata = {"x-mq-client-id": "c", "x-mq-date-time": date, "authorization": header}
        signature = signature_of(metadata)
        assert signature is not None
        assert (signature.access_key, signature.signed) == ("ak", date.encode())
        request = pb.QueryRouteRequest(topic=TOPIC)
        answer = await service.unary("QueryRoute", Rpc(metadata=metadata), request)
        assert answer.status.code == Code.OK
    for header in ("", "Bearer x", "MQv2-HMAC-SHA1 Credential=ak, Signature=zz"):
        metadata = {"x-mq-client-id": "c", "x-mq-date-time": date, "authorization": header}
        answer = await service.unary("QueryRoute", Rpc(metadata=metadata), request)
        assert answer.status.code == Code.UNAUTHORIZED


async def test_what_is_not_here_says_so(service: MessagingService) -> None:
    """Unsupported RPCs answer NOT_IMPLEMENTED."""
    answer = await service.unary("SyncLiteSubscription", RPC, pb.SyncLiteSubscriptionRequest())
    assert answer.status.code == Code.NOT_IMPLEMENTED
