"""The gRPC front of real gateways: credentials, ACL, two gateways, calls that are given up."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from protocols.errors import Code
from protocols.grpc.adapter import SERVICE
from protocols.grpc.mapping import duration_of
from protocols.grpc.v2 import definition_pb2 as v2
from protocols.grpc.v2 import service_pb2 as pb
from tests.support.patience import PATIENCE_S
from tests.support.processes import Daemon, Daemons
from tests.support.rocketmq_python import run_case

pytestmark = [pytest.mark.client, pytest.mark.timeout(300)]

METADATA = (("x-mq-client-id", "host@1@0@abc"),)

RULES = """
version: 1
users:
  - { name: writer, secret: "s3cret" }
  - { name: reader, secret: "r3ad" }
acl:
  - { allow: [publish, consume], identity: writer, topic: "secured", protocol: grpc }
"""


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemons]:
    with Daemons(tmp_path_factory.mktemp("grpc-gateway")) as daemons:
        yield daemons


@pytest.fixture(scope="module")
def namesrv(daemons: Daemons) -> Daemon:
    namesrv = daemons.namesrv()
    daemons.store(namesrv)
    return namesrv


@pytest.fixture(scope="module")
def gateways(daemons: Daemons, namesrv: Daemon) -> tuple[Daemon, Daemon]:
    return daemons.gateway(namesrv), daemons.gateway(namesrv, name="gw-2")


class Client:
    """The calls these tests need, by hand, so that they can be given up."""

    def __init__(self, gateway: Daemon, topic: str) -> None:
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{gateway.port('grpc')}")
        self.topic = v2.Resource(name=topic)
        self.group = v2.Resource(name=f"{topic}-group")

    async def call(self, name: str, request: object) -> object:
        response = getattr(pb, f"{name}Response")
        method = self.channel.unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )
        return await method(request, metadata=METADATA, timeout=PATIENCE_S)

    async def send(self, body: bytes) -> None:
        system = v2.SystemProperties(message_id="01" + body.hex().zfill(32)[-32:])
        message = v2.Message(topic=self.topic, body=body, system_properties=system)
        answer = await self.call("SendMessage", pb.SendMessageRequest(messages=[message]))
        assert answer.status.code == Code.OK, answer

    def receive(self, *, wait_ms: int) -> grpc.aio.UnaryStreamCall:
        method = self.channel.unary_stream(
            f"/{SERVICE}/ReceiveMessage",
            request_serializer=pb.ReceiveMessageRequest.SerializeToString,
            response_deserializer=pb.ReceiveMessageResponse.FromString,
        )
        request = pb.ReceiveMessageRequest(
            group=self.group,
            message_queue=v2.MessageQueue(topic=self.topic),
            batch_size=8,
            invisible_duration=duration_of(60_000),
            long_polling_timeout=duration_of(wait_ms),
        )
        return method(request, metadata=METADATA, timeout=PATIENCE_S)

    async def messages(self, *, wait_ms: int = 5000) -> list[v2.Message]:
        return [
            one.message async for one in self.receive(wait_ms=wait_ms) if one.HasField("message")
        ]

    async def give_up(self, message: v2.Message) -> None:
        request = pb.ChangeInvisibleDurationRequest(
            group=self.group,
            topic=self.topic,
            receipt_handle=message.system_properties.receipt_handle,
            invisible_duration=duration_of(0),
        )
        answer = await self.call("ChangeInvisibleDuration", request)
        assert answer.status.code == Code.OK, answer

    async def ack(self, *messages: v2.Message) -> list[int]:
        entries = [
            pb.AckMessageEntry(receipt_handle=one.system_properties.receipt_handle)
            for one in messages
        ]
        request = pb.AckMessageRequest(group=self.group, topic=self.topic, entries=entries)
        answer = await self.call("AckMessage", request)
        return [entry.status.code for entry in answer.entries]


@pytest.fixture
async def clients(gateways: tuple[Daemon, Daemon]) -> AsyncIterator[tuple[Client, Client]]:
    pair = Client(gateways[0], "shared"), Client(gateways[1], "shared")
    yield pair
    for client in pair:
        await client.channel.close()


async def test_handles_are_good_at_every_gateway(clients: tuple[Client, Client]) -> None:
    """Sent at one gateway, received at the other, acknowledged at the first."""
    one, other = clients
    await one.send(b"m1")
    (got,) = await other.messages()
    assert got.body == b"m1"
    assert await one.ack(got) == [Code.OK]
    assert await other.ack(got) == [Code.OK]  # idempotent
    assert await other.messages(wait_ms=0) == []


async def test_cancelled_poll_leaves_nothing_hidden(gateways: tuple[Daemon, Daemon]) -> None:
    """A client that goes away in its long poll does not take messages with it."""
    client = Client(gateways[0], "cancelled")
    await client.send(b"first")
    assert len(await client.messages()) == 1
    for number in range(5):
        poll = client.receive(wait_ms=10_000)
        await asyncio.sleep(0.1)  # the poll has to be at the store
        poll.cancel()
        await client.send(f"n{number}".encode())
        (got,) = await client.messages()
        assert got.body == f"n{number}".encode()
    await client.channel.close()


async def test_last_attempt_is_a_dead_letter(daemons: Daemons, namesrv: Daemon) -> None:
    """After attempts_max deliveries a message is in %DLQ%<group>, and nowhere else."""
    gateway = daemons.gateway(namesrv, "listeners.grpc.attempts_max=2", name="gw-4")
    client, dead = Client(gateway, "poisoned"), Client(gateway, "%DLQ%poisoned-group")
    await client.send(b"poison")
    for attempt in (1, 2):
        (got,) = await client.messages()
        assert got.system_properties.delivery_attempt == attempt
        await client.give_up(got)
    assert await client.messages(wait_ms=500) == []
    dead.group.name = "undertakers"
    (buried,) = await dead.messages()
    assert (buried.body, buried.topic.name) == (b"poison", "%DLQ%poisoned-group")
    for one in (client, dead):
        await one.channel.close()


async def test_forward_to_dead_letters(gateways: tuple[Daemon, Daemon]) -> None:
    """The client's own decision has the same end."""
    client, dead = Client(gateways[0], "forwarded"), Client(gateways[0], "%DLQ%forwarded-group")
    await client.send(b"poison")
    (got,) = await client.messages()
    request = pb.ForwardMessageToDeadLetterQueueRequest(
        group=client.group,
        topic=client.topic,
        receipt_handle=got.system_properties.receipt_handle,
        message_id=got.system_properties.message_id,
    )
    answer = await client.call("ForwardMessageToDeadLetterQueue", request)
    assert answer.status.code == Code.OK, answer
    dead.group.name = "undertakers"
    (buried,) = await dead.messages()
    origin = buried.system_properties.dead_letter_queue
    assert (buried.body, origin.topic) == (b"poison", "forwarded")
    assert await client.ack(got) == [Code.OK]
    for one in (client, dead):
        await one.channel.close()


def test_credentials_and_acl(daemons: Daemons, namesrv: Daemon, tmp_path: Path) -> None:
    """The SDK's signature is checked; the ACL decides by topic; strangers are refused."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    gateway = daemons.gateway(namesrv, name="gw-3", arguments=["-c", str(rules)])
    port = gateway.port("grpc")
    known = {"credentials": ["writer", "s3cret"]}
    sent = run_case("send", port, topic="secured", bodies=["x"], properties={}, **known)
    assert len(sent) == 1
    (got,) = run_case("receive", port, topic="secured", group="g", count=1, **known)
    assert got["body"] == "x"
    strangers: list[list[str]] = [["writer", "wrong"], ["nobody", "x"], [], ["reader", "r3ad"]]
    for credentials in strangers:  # the SDK only says that it gets no route
        answer = run_case("denied", port, topic="secured", credentials=credentials)
        assert "route" in answer["error"], answer
