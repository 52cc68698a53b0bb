"""The gRPC listener on real sockets, with grpc.aio as the client."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from protocols.errors import Code, ConfigError
from protocols.grpc.adapter import SERVICE, GrpcAdapter, peer_of
from protocols.grpc.mapping import duration_of
from protocols.grpc.v2 import definition_pb2 as v2
from protocols.grpc.v2 import service_pb2 as pb
from tests.support.fake_services import FakeServices
from tests.support.patience import PATIENCE_S

METADATA = (("x-mq-client-id", "host@1@0@abc"),)
TOPIC = v2.Resource(name="orders")


@pytest.fixture
async def address(services: FakeServices) -> AsyncIterator[str]:
    section = {"protocol": "grpc", "bind": "127.0.0.1:0", "handshake_s_max": 1.0}
    adapter = GrpcAdapter.from_config("grpc", section)
    async with services.serving(adapter, "grpc") as (host, port):
        yield f"{host}:{port}"


def unary(channel: grpc.aio.Channel, name: str, response: type) -> grpc.aio.UnaryUnaryMultiCallable:
    return channel.unary_unary(
        f"/{SERVICE}/{name}",
        request_serializer=lambda request: request.SerializeToString(),
        response_deserializer=response.FromString,
    )


async def test_send_and_receive_on_sockets(address: str) -> None:
    """A 4 MiB body passes, with the deadline and metadata of the call."""
    body = bytes(4 << 20)
    message = v2.Message(
        topic=TOPIC, body=body, system_properties=v2.SystemProperties(message_id="01" + "B" * 32)
    )
    async with grpc.aio.insecure_channel(
        address, options=[("grpc.max_receive_message_length", -1)]
    ) as channel:
        send = unary(channel, "SendMessage", pb.SendMessageResponse)
        answer = await send(
            pb.SendMessageRequest(messages=[message]), metadata=METADATA, timeout=PATIENCE_S
        )
        assert answer.status.code == Code.OK
        receive = channel.unary_stream(
            f"/{SERVICE}/ReceiveMessage",
            request_serializer=pb.ReceiveMessageRequest.SerializeToString,
            response_deserializer=pb.ReceiveMessageResponse.FromString,
        )
        request = pb.ReceiveMessageRequest(
            group=v2.Resource(name="workers"),
            message_queue=v2.MessageQueue(topic=TOPIC),
            batch_size=1,
            invisible_duration=duration_of(15_000),
        )
        responses = [one async for one in receive(request, metadata=METADATA, timeout=PATIENCE_S)]
        assert responses[1].message.body == body


async def test_telemetry_answers_and_fails_as_grpc_errors(address: str) -> None:
    """Settings come back on the stream; a client without an id gets INVALID_ARGUMENT."""
    async with grpc.aio.insecure_channel(address) as channel:
        telemetry = channel.stream_stream(
            f"/{SERVICE}/Telemetry",
            request_serializer=pb.TelemetryCommand.SerializeToString,
            response_deserializer=pb.TelemetryCommand.FromString,
        )
        command = pb.TelemetryCommand(
            settings=v2.Settings(publishing=v2.Publishing(topics=[TOPIC]))
        )
        call = telemetry(metadata=METADATA)
        await call.write(command)
        assert (await call.read()).settings.publishing.max_body_size == 4 << 20
        await call.done_writing()
        call = telemetry()
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call.read()
        assert failed.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_malformed_request_is_invalid_argument(address: str) -> None:
    """Bytes that are no message are answered, and the next call works."""
    async with grpc.aio.insecure_channel(address) as channel:
        raw = channel.unary_unary(f"/{SERVICE}/SendMessage")
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await raw(b"\xff\xff\xff", metadata=METADATA)
        assert failed.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        route = unary(channel, "QueryRoute", pb.QueryRouteResponse)
        answer = await route(pb.QueryRouteRequest(topic=TOPIC), metadata=METADATA)
        assert answer.status.code == Code.OK


@pytest.mark.parametrize(
    "opening", [b"", b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]
)
async def test_silent_handshake_is_closed(address: str, opening: bytes) -> None:
    """A socket that never gets to its HTTP/2 settings is closed when its time is up."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(opening)
    async with asyncio.timeout(PATIENCE_S):
        while await reader.read(4096):
            pass
    writer.close()


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ({"bind": "127.0.0.1:0", "body_bytes_maxx": 1}, "body_bytes_maxx"),
        ({"bind": "127.0.0.1"}, "127.0.0.1"),
        ({"bind": "127.0.0.1:0", "attempts_max": 0}, "attempts_max"),
    ],
)
def test_config_mistakes_are_named(section: dict[str, object], key: str) -> None:
    """ConfigError names the listener and the key."""
    with pytest.raises(ConfigError) as error:
        GrpcAdapter.from_config("inner", section)
    assert "listeners.inner" in error.value.problems[0]
    assert key in error.value.problems[0]


@pytest.mark.parametrize(
    ("text", "peer"),
    [("ipv4:127.0.0.1:5000", "127.0.0.1:5000"), ("ipv6:%5B::1%5D:5000", "[::1]:5000")],
)
def test_peer(text: str, peer: str) -> None:
    """grpc's peer text becomes host:port."""
    assert peer_of(text) == peer


async def test_tls_listener(services: FakeServices, tmp_path: Path) -> None:
    """With ``tls:`` the port speaks TLS, ALPN included; a missing file is a ConfigError."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    await asyncio.to_thread(
        subprocess.run,
        [*command, *names, "-keyout", str(key), "-out", str(cert)],
        check=True,
        capture_output=True,
    )
    section = {"bind": "127.0.0.1:0", "tls": {"cert": str(cert), "key": str(key)}}
    credentials = grpc.ssl_channel_credentials(cert.read_bytes())
    async with (
        services.serving(GrpcAdapter.from_config("tls", section), "tls") as (_, port),
        grpc.aio.secure_channel(f"localhost:{port}", credentials) as channel,
    ):
        route = unary(channel, "QueryRoute", pb.QueryRouteResponse)
        answer = await route(
            pb.QueryRouteRequest(topic=TOPIC), metadata=METADATA, timeout=PATIENCE_S
        )
        assert answer.status.code == Code.OK
    broken = {"bind": "127.0.0.1:0", "tls": {"cert": str(cert), "key": str(tmp_path / "none")}}
    with pytest.raises(ConfigError, match="none"):
        await GrpcAdapter.from_config("tls", broken).serve(services)


async def test_closing_answers_long_polls(services: FakeServices) -> None:
    """A parked receive ends with its empty answer, not with a broken connection."""
    adapter = GrpcAdapter.from_config("grpc", {"bind": "127.0.0.1:0"})
    serving = asyncio.ensure_future(adapter.serve(services))
    host, port = await services.address("grpc")
    await services.topics.create("orders")
    async with grpc.aio.insecure_channel(f"{host}:{port}") as channel:
        receive = channel.unary_stream(
            f"/{SERVICE}/ReceiveMessage",
            request_serializer=pb.ReceiveMessageRequest.SerializeToString,
            response_deserializer=pb.ReceiveMessageResponse.FromString,
        )
        request = pb.ReceiveMessageRequest(
            group=v2.Resource(name="workers"),
            message_queue=v2.MessageQueue(topic=TOPIC),
            invisible_duration=duration_of(15_000),
        )
        call = receive(request, metadata=METADATA, timeout=PATIENCE_S)
        first = asyncio.ensure_future(call.read())
        while not services.broker.groups:  # noqa: ASYNC110  until it is parked
            await asyncio.sleep(0.01)
        serving.cancel()
        async with asyncio.timeout(PATIENCE_S):
            assert (await first).status.code == Code.MESSAGE_NOT_FOUND
    await asyncio.gather(serving, return_exceptions=True)
