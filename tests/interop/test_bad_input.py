"""
A malformed packet costs the connection it came on, in the words of its protocol, and nobody else.

On each port of a running system a well-behaved neighbour is connected first; then come packets
that break the protocol, before and after the handshake; the neighbour goes on as before.
"""

import asyncio
import http.client
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import aio_pika
import aiohttp
import grpc
import grpc.aio
import pytest

from protocols.grpc.adapter import SERVICE
from protocols.grpc.v2 import definition_pb2 as v2
from protocols.grpc.v2 import service_pb2 as pb
from protocols.mqtt.encoder import encode_packet
from protocols.mqtt.packets import V5, V311, Connect, Pingreq, Pingresp
from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from tests.support.mqtt_client import MqttClient
from tests.support.patience import PATIENCE_S
from tests.support.processes import Daemon, Daemons

pytestmark = [pytest.mark.client, pytest.mark.timeout(120)]

CLOSED_S_MAX = PATIENCE_S / 2
"""Below the limit of a handshake."""

UNHURRIED = (
    "mqtt.connect_s_max=600",
    "cloudevents.handshake_s_max=600",
    "grpc.handshake_s_max=600",
)
"""Whoever is closed is closed for what it said."""

Proof = Callable[[], Awaitable[None]]
"""Uses a neighbour's connection; fails if it no longer serves."""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemons(tmp_path_factory.mktemp("bad-input")) as daemons:
        yield daemons.up(*UNHURRIED)


# ── attackers ───────────────────────────────────────────────────────────────────────────


async def exchange(address: tuple[str, int], *pieces: bytes, until: bytes = b"") -> bytes:
    """
    Send the pieces, each after something came back for the one before; all that came until the
    other side closed, or until *until* was in it.
    """
    reader, writer = await asyncio.open_connection(*address)
    found = b""
    try:
        async with asyncio.timeout(CLOSED_S_MAX):
            for piece in pieces[:-1]:
                writer.write(piece)
                found += await reader.read(65536)
            writer.write(pieces[-1])
            while not until or until not in found:
                data = await reader.read(65536)
                if not data:
                    break
                found += data
    except ConnectionError:
        pass  # closed with our bytes unread
    finally:
        writer.transport.abort()
    return found


def mqtt_connect(version: int) -> bytes:
    return encode_packet(Connect(client_id=f"bad-{version}", version=version), version)


def amqp_method(channel: int, method: tuple[int, int], arguments: bytes = b"") -> bytes:
    payload = struct.pack(">HH", *method) + arguments
    return struct.pack(">BHI", 1, channel, len(payload)) + payload + b"\xce"


AMQP_HEADER = b"AMQP\x00\x00\x09\x01"
AMQP_START_OK = amqp_method(
    0,
    (10, 11),
    struct.pack(">I", 0) + b"\x05PLAIN" + b"\x00\x00\x00\x0c\x00guest\x00guest\x05en_US",
)
AMQP_TUNE_OK_OPEN = amqp_method(0, (10, 31), struct.pack(">HIH", 16, 131072, 0)) + amqp_method(
    0, (10, 40), b"\x01/\x00\x00"
)
AMQP_CLOSE = b"\x00\x0a\x00\x32"
"""Class and method of connection.close."""

H2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


async def attack_mqtt(up: Daemon) -> None:
    """Before CONNECT a close; after it MQTT 5 is told why, 3.1.1 is closed (MQTT-4.8.0-1)."""
    address = up.address("mqtt")
    assert await exchange(address, b"\x30\x04\x00\x01a\x00") == b""
    assert await exchange(address, b"\x10\xff\xff\xff\xff\x7f") == b""
    answer = await exchange(address, mqtt_connect(5)[:8] + b"\x09" + mqtt_connect(5)[9:])
    assert answer[:1] in (b"", b"\x20")  # CONNACK: unsupported protocol version
    malformed = b"\x36\x05\x00\x01a\x00\x01"  # QoS 3
    answer = await exchange(address, mqtt_connect(V5), malformed)
    assert answer[-3:] in (b"\xe0\x01\x81", b"\xe0\x01\x82")
    wildcard = b"\x32\x08\x00\x03a/#\x00\x01\x00"  # PUBLISH to a filter
    answer = await exchange(address, mqtt_connect(V5), wildcard)
    assert answer[-3:-1] == b"\xe0\x01"
    assert answer[-1] in (0x81, 0x82, 0x90)
    answer = await exchange(address, mqtt_connect(V311), malformed)
    assert len(answer) == 4  # CONNACK and no more


async def attack_websocket(up: Daemon) -> None:
    """A handshake that is none is an HTTP error; a bad frame is close 1002."""
    address = up.address("mqtt-ws")
    assert (await exchange(address, b"nonsense\r\n\r\n")).startswith(b"HTTP/1.1 4")
    plain = b"GET /mqtt HTTP/1.1\r\nHost: x\r\n\r\n"
    assert (await exchange(address, plain)).startswith(b"HTTP/1.1 426")
    handshake = (
        b"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
    )
    answer = await exchange(address, handshake, b"\x82\x02\x10\x00")  # not masked
    assert b"HTTP/1.1 101" in answer
    assert b"\x88\x02\x03\xea" in answer or b"\x03\xea" in answer[-64:]


async def attack_amqp(up: Daemon) -> None:
    """A wrong header is answered with ours; a wrong frame with connection.close 501, 503, 505."""
    address = up.address("amqp")
    assert await exchange(address, b"AMQP\x01\x01\x00\x0a") == AMQP_HEADER
    assert await exchange(address, b"GET / HTTP/1.1\r\n\r\n") == AMQP_HEADER
    bad_end = AMQP_START_OK[:-1] + b"\x00"
    answer = await exchange(address, AMQP_HEADER, bad_end, until=AMQP_CLOSE)
    assert AMQP_CLOSE + struct.pack(">H", 501) in answer
    opening = (AMQP_HEADER, AMQP_START_OK, AMQP_TUNE_OK_OPEN)
    unknown = amqp_method(1, (99, 99))
    for bad, codes in ((unknown, (503, 504, 505, 540)), (b"\x09\x00\x00", (501,))):
        piece = bad if len(bad) > 3 else bad + b"\x00\x00\x00\x00\xce"
        answer = await exchange(address, *opening, piece, until=AMQP_CLOSE)
        at = answer.rindex(AMQP_CLOSE) + 4
        assert struct.unpack_from(">H", answer, at)[0] in codes


async def attack_http(up: Daemon, listener: str) -> None:
    """400 and a close, whatever is wrong with the head."""
    address = up.address(listener)
    heads = (
        b"\xff\xfe\xfd\r\n\r\n",
        b"POST /topics/t HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST /topics/t HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\na",
        b"GET / HTTP/9.9\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n",
    )
    for head in heads:
        answer = await exchange(address, head)
        assert answer.split(b" ", 2)[1] == b"400", (head, answer)
        assert b"Traceback" not in answer


async def attack_events(up: Daemon) -> None:
    """Of a sound head and a broken event only the request is refused, as a problem."""
    await attack_http(up, "events")
    body = b"{" * 1000
    head = (
        "POST /topics/t HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        f"Content-Type: application/cloudevents+json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    answer = await exchange(up.address("events"), head.encode() + body)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"application/problem+json" in answer


async def attack_admin(up: Daemon) -> None:
    """The same at the admin port."""
    await attack_http(up, "admin")


async def attack_grpc(up: Daemon) -> None:
    """No HTTP/2: SETTINGS and a close. A bad frame ends the connection, a bad message its call."""
    address = up.address("grpc")
    settings = b"\x04\x00\x00\x00\x00\x00"  # type, flags, stream 0
    for bad in (
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\xff" * 64,
        H2_PREFACE + b"\x00\x00\x04\x08\x00\x00\x00\x00\x00\x00\x00\x00\x00",  # window + 0
        H2_PREFACE + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01",  # a frame beyond SETTINGS
    ):
        answer = await exchange(address, bad)
        assert answer == b"" or answer[3:9] == settings
    async with grpc.aio.insecure_channel("{}:{}".format(*address)) as channel:
        call = channel.unary_unary(f"/{SERVICE}/SendMessage")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call(b"\xff\xff\xff", timeout=CLOSED_S_MAX)
        assert raised.value.code() in (
            grpc.StatusCode.INTERNAL,
            grpc.StatusCode.INVALID_ARGUMENT,
        )


async def attack_remoting(up: Daemon, listener: str) -> None:
    """A frame that cannot be read is a close; one with nonsense in it is answered with a code."""
    address = up.address(listener)
    for bad in (
        b"\xff" * 16,
        b"\x00\x00\x00\x05\x00\x00\x00\xffa",
        b"\x00\x00\x00\x10\x00\x00\x00\x0anot json!!12",
        b"\x00\x00\x00\x06\x01\x00\x00\x02\x00\x00",  # a binary header of two bytes
    ):
        assert await exchange(address, bad) == b""
    client = await RemotingClient.connect("{}:{}".format(*address))
    try:
        answer = await client.request(RemotingCommand(9999), CLOSED_S_MAX)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        fields = {"topic": "t", "queueId": "no number", "queueOffset": "0"}
        command = RemotingCommand(RequestCode.PULL_MESSAGE, fields)
        answer = await client.request(command, CLOSED_S_MAX)
        assert answer.code != ResponseCode.SUCCESS
        assert "Traceback" not in answer.remark
    finally:
        await client.close()


# ── neighbours ──────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def mqtt_neighbour(up: Daemon) -> AsyncIterator[Proof]:
    async with MqttClient(up.address("mqtt"), Connect(client_id="good", version=V5)) as client:

        async def proof() -> None:
            client.send(Pingreq())
            assert isinstance(await client.receive(), Pingresp)

        yield proof


@asynccontextmanager
async def websocket_neighbour(up: Daemon) -> AsyncIterator[Proof]:
    url = "http://{}:{}/mqtt".format(*up.address("mqtt-ws"))
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(url, protocols=["mqtt"]) as socket,
    ):
        await socket.send_bytes(mqtt_connect(V311))
        assert (await socket.receive_bytes())[:1] == b"\x20"

        async def proof() -> None:
            await socket.send_bytes(encode_packet(Pingreq(), V311))
            assert await socket.receive_bytes() == b"\xd0\x00"

        yield proof


@asynccontextmanager
async def amqp_neighbour(up: Daemon) -> AsyncIterator[Proof]:
    connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{up.port('amqp')}/")
    async with connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("good", exclusive=True)

        async def proof() -> None:
            await channel.default_exchange.publish(aio_pika.Message(b"still here"), "good")
            message = await queue.get(timeout=CLOSED_S_MAX)
            assert message.body == b"still here"
            await message.ack()

        yield proof


def http_neighbour(
    listener: str, path: str
) -> Callable[[Daemon], AbstractAsyncContextManager[Proof]]:
    """One kept-alive connection."""

    @asynccontextmanager
    async def neighbour(up: Daemon) -> AsyncIterator[Proof]:
        connection = http.client.HTTPConnection(*up.address(listener), timeout=CLOSED_S_MAX)
        connection.connect()
        first = connection.sock

        def ask() -> None:
            connection.request("GET", path)
            with connection.getresponse() as answer:
                answer.read()
                assert answer.status == 200
            assert connection.sock is first, "the connection was opened again"

        async def proof() -> None:
            await asyncio.to_thread(ask)

        await proof()
        yield proof
        connection.close()

    return neighbour


@asynccontextmanager
async def grpc_neighbour(up: Daemon) -> AsyncIterator[Proof]:
    async with grpc.aio.insecure_channel("{}:{}".format(*up.address("grpc"))) as channel:
        call = channel.unary_unary(
            f"/{SERVICE}/Heartbeat",
            request_serializer=pb.HeartbeatRequest.SerializeToString,
            response_deserializer=pb.HeartbeatResponse.FromString,
        )

        async def proof() -> None:
            request = pb.HeartbeatRequest(client_type=v2.PRODUCER)
            metadata = (("x-mq-client-id", "host@1@0@abc"),)
            await call(request, metadata=metadata, timeout=CLOSED_S_MAX)

        await proof()
        yield proof


def remoting_neighbour(
    listener: str, code: RequestCode
) -> Callable[[Daemon], AbstractAsyncContextManager[Proof]]:
    @asynccontextmanager
    async def neighbour(up: Daemon) -> AsyncIterator[Proof]:
        client = await RemotingClient.connect("{}:{}".format(*up.address(listener)))

        async def proof() -> None:
            answer = await client.request(RemotingCommand(code, {"topic": "none"}), CLOSED_S_MAX)
            assert answer.code in (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)

        await proof()
        yield proof
        await client.close()

    return neighbour


Case = tuple[
    Callable[[Daemon], AbstractAsyncContextManager[Proof]], Callable[[Daemon], Awaitable[None]]
]

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
CASES: dict[str, Case] = {
    "mqtt": (mqtt_neighbour, attack_mqtt),
    "mqtt-ws": (websocket_neighbour, attack_websocket),
    "amqp": (amqp_neighbour, attack_amqp),
    "events": (http_neighbour("events", "/subscriptions"), attack_events),
    "grpc": (grpc_neighbour, attack_grpc),
    "remoting": (
        remoting_neighbour("remoting", ROUTE),
        lambda up: attack_remoting(up, "remoting"),
    ),
    "admin": (http_neighbour("admin", "/healthz"), attack_admin),
    "namesrv": (remoting_neighbour("namesrv", ROUTE), lambda up: attack_remoting(up, "namesrv")),
    "store": (
        remoting_neighbour("store", RequestCode.GET_ALL_TOPIC_CONFIG),
        lambda up: attack_remoting(up, "store"),
    ),
}


@pytest.mark.parametrize("listener", list(CASES))
async def test_a_malformed_packet_ends_its_own_connection(up: Daemon, listener: str) -> None:
    """In the protocol's own words; the neighbour goes on, and the log has no traceback."""
    neighbour, attack = CASES[listener]
    async with neighbour(up) as proof:
        await proof()
        await attack(up)
        await proof()
    assert up.process.poll() is None
    assert "Traceback" not in up.log()
