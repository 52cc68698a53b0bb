"""What publishers are told, and what waits: one client over Services in memory."""

import asyncio
import gc

import pytest

from protocols.addresses import socket_address
from protocols.driver import Driver
from protocols.errors import Code
from protocols.mqtt.connection import MqttConnection
from protocols.mqtt.encoder import encode_packet
from protocols.mqtt.events import WAITING_EVENTS_MAX
from protocols.mqtt.packets import (
    V5,
    V311,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Reason,
    Suback,
    Subscribe,
    SubscribeItem,
    Will,
)
from protocols.mqtt.properties import Property
from protocols.mqtt.states import State
from tests.support.mqtt_client import MqttClient
from tests.support.mqtt_front import gateway, until


def connection_of(client: MqttClient) -> MqttConnection:
    """The gateway's end of it."""
    name = socket_address(client._writer.get_extra_info("sockname"))
    drivers = [item for item in gc.get_objects() if type(item) is Driver]
    (found,) = [one.connection for one in drivers if one.is_open and one.peer == name]
    assert isinstance(found, MqttConnection)
    return found


@pytest.mark.parametrize("version", [V311, V5])
async def test_that_nobody_was_there_is_told_by_option(version: int) -> None:
    """With ``tells_unmatched``: 0x10 of what is stored and no subscription matched."""
    async with (
        gateway(tells_unmatched=True) as (_, address),
        MqttClient(address, Connect(version, "c")) as client,
    ):
        nobody = Reason.NO_MATCHING_SUBSCRIBERS if version == V5 else Reason.SUCCESS
        assert await client.publish("t", b"alone", 1) == Puback(1, nobody)
        await client.subscribe(SubscribeItem("t", 0))
        assert await client.publish("t", b"heard", 1) == Puback(3)
        assert (await client.publishes(1))[0].payload == b"heard"


@pytest.mark.parametrize(("qos", "answer"), [(1, Puback), (2, Pubrec)])
@pytest.mark.parametrize("reason", [Reason.NOT_AUTHORIZED, Reason.PAYLOAD_FORMAT_INVALID])
async def test_what_is_refused_leaves_its_place(
    qos: int, answer: type[Puback | Pubrec], reason: Reason
) -> None:
    """By the stores' end or before it: it does not count against the Receive Maximum."""
    says = ((Property.PAYLOAD_FORMAT, 1),)
    async with gateway(receive_max=1, checks_payload_format=True) as (services, address):
        services.denied.add(("publish", "secret"))
        is_denied = reason == Reason.NOT_AUTHORIZED
        topic, payload = ("secret", b"text") if is_denied else ("t", b"\xff")
        async with MqttClient(address, Connect(V5, "c")) as client:
            for number in range(1, 4):
                client.send(Publish(topic, payload, qos, packet_id=number, properties=says))
                assert await client.receive() == answer(number, reason)
            assert await client.publish("t", b"text", qos) == answer(1)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (Code.PRECONDITION_FAILED, Reason.SESSION_TAKEN_OVER),
        (Code.HA_NOT_AVAILABLE, Reason.SERVER_BUSY),
    ],
)
async def test_who_loses_its_stream_is_told_why(code: Code, reason: Reason) -> None:
    """Another gateway has the session, or ours cannot go on."""
    async with (
        gateway() as (services, address),
        MqttClient(address, Connect(V5, "c")) as client,
    ):
        await client.subscribe(SubscribeItem("t", 1))
        (group,) = services.broker.groups.values()
        group.streams[0].end(code, "over")
        assert await client.receive() == Disconnect(reason)
        assert await client.receive() is None


async def test_what_waits_behind_a_subscribe_is_bounded() -> None:
    """The socket is not read until SUBACK; then all are answered in order."""
    async with (
        gateway() as (services, address),
        MqttClient(address, Connect(V5, "c")) as client,
    ):
        services.directory.barrier_gate = asyncio.Event()
        connection = connection_of(client)
        count = WAITING_EVENTS_MAX + 2
        said: list[Packet] = [
            Subscribe(number, (SubscribeItem("t", 0),)) for number in range(1, count + 1)
        ]
        client._writer.write(b"".join(encode_packet(packet, V5) for packet in said))
        await until(lambda: connection.is_deaf)
        services.directory.barrier_gate.set()
        assert [await client.receive() for _ in said] == [
            Suback(number, (0,)) for number in range(1, count + 1)
        ]
        assert not connection.is_deaf


@pytest.mark.parametrize("is_orderly", [False, True])
async def test_a_fault_behind_a_subscribe_ends_the_connection(is_orderly: bool) -> None:
    """As anywhere else: its will is sent, what came behind it is not, its client id is free."""
    says = ((Property.PAYLOAD_FORMAT, 1),)
    async with (
        gateway(checks_payload_format=True) as (_, address),
        MqttClient(address, Connect(V5, "watch")) as watch,
    ):
        await watch.subscribe(SubscribeItem("#", 0))
        async with MqttClient(address, Connect(V5, "c", will=Will("will", b""))) as client:
            client.send(
                Subscribe(1, (SubscribeItem("t", 0),)),
                Publish("t", b"\xff", 0, properties=says),
                Publish("t", b"behind it", 0),
                *((Disconnect(),) if is_orderly else ()),
            )
            if not is_orderly:
                assert isinstance(await client.receive(), Suback)
                assert await client.receive() == Disconnect(Reason.PAYLOAD_FORMAT_INVALID)
            assert await client.receive() is None
        async with MqttClient(address, Connect(V5, "c")) as client:
            assert client.connack.reason == Reason.SUCCESS
        assert [packet.topic for packet in await watch.publishes(1)] == ["will"]
        assert await watch.is_silent()


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_what_clears_a_retained_value_is_marked(qos: int) -> None:
    """Retained and without a body, whatever stands beside it [MQTT-3.3.1-6]."""
    async with (
        gateway() as (services, address),
        MqttClient(address, Connect(V5, "c")) as client,
    ):
        said = [("t", b"value", True), ("t", b"", True), ("u", b"", True), ("t", b"", False)]
        for number, (topic, body, retain) in enumerate(said, 1):
            client.send(Publish(topic, body, qos, retain, packet_id=number if qos else 0))
        await until(lambda: len(services.pipeline.sent) == len(said))
        marks = [message.head.clears_retained for message in services.pipeline.sent]
        assert marks == [False, True, True, False]


async def test_a_pubrec_says_that_it_is_stored() -> None:
    """A repeat before that waits for it, and so does PUBREL; each PUBLISH has its PUBREC."""
    async with (
        gateway() as (services, address),
        MqttClient(address, Connect(V5, "c")) as client,
    ):
        services.pipeline.is_store_away = True
        exchange = Publish("t", b"x", 2, packet_id=1), Pubrel(1)
        client.send(exchange[0], exchange[0]._replace(dup=True), exchange[1], *exchange)
        assert await client.is_silent()
        services.pipeline.is_store_away = False
        services.pipeline.store_comes_back()
        told = [Pubrec(1), Pubrec(1), Pubcomp(1), Pubrec(1), Pubcomp(1)]
        assert [await client.receive() for _ in told] == told
        assert await client.is_silent()
        assert len(services.broker.log) == 2


async def test_an_ended_exchange_leaves_its_place() -> None:
    """PUBCOMP makes room for the next, under whatever packet id."""
    async with (
        gateway(receive_max=1) as (_, address),
        MqttClient(address, Connect(V5, "c")) as client,
    ):
        for number in (1, 2, 1):
            client.send(Publish("t", b"x", 2, packet_id=number))
            assert await client.receive() == Pubrec(number)
            client.send(Pubrel(number))
            assert await client.receive() == Pubcomp(number)


async def test_who_is_told_no_receive_maximum_is_read_no_further() -> None:
    """A 3.1.1 client over it: until the stores have answered."""
    async with (
        gateway(receive_max=2) as (services, address),
        MqttClient(address, Connect(V311, "c")) as client,
    ):
        connection = connection_of(client)
        services.pipeline.is_store_away = True
        client.send(*(Publish("t", b"x", 1, packet_id=number) for number in range(1, 4)))
        await until(lambda: connection.is_deaf)
        client.send(*(Publish("t", b"x", 1, packet_id=number) for number in range(4, 7)))
        services.pipeline.is_store_away = False
        services.pipeline.store_comes_back()
        assert [await client.receive() for _ in range(6)] == [
            Puback(number) for number in range(1, 7)
        ]


async def test_an_end_in_order_is_written_down_before_the_next_connection() -> None:
    """A takeover that comes while its last SUBSCRIBE is in work: there is no will."""
    async with (
        gateway() as (services, address),
        MqttClient(address, Connect(V5, "watch")) as watch,
    ):
        await watch.subscribe(SubscribeItem("#", 0))
        services.directory.barrier_gate = asyncio.Event()
        async with MqttClient(address, Connect(V5, "c", will=Will("will", b""))) as client:
            client.send(Subscribe(1, (SubscribeItem("t", 0),)), Disconnect())
            assert await client.receive() is None
            next_one = MqttClient(address, Connect(V5, "c"))
            opening = asyncio.ensure_future(next_one.__aenter__())
            assert await watch.is_silent()
            services.directory.barrier_gate.set()
            await opening
            assert await watch.is_silent()
            next_one.drop()


async def test_one_too_many_is_told_behind_the_answers_before_it() -> None:
    """However long the stores take for what came within the Receive Maximum."""
    async with (
        gateway(receive_max=2) as (services, address),
        MqttClient(address, Connect(V5, "c")) as client,
    ):
        connection = connection_of(client)
        services.pipeline.is_store_away = True
        client.send(*(Publish("t", b"x", 1, packet_id=number) for number in range(1, 4)))
        await until(lambda: connection.state is State.ENDING)
        await asyncio.sleep(0)
        assert not connection.is_closing
        services.pipeline.is_store_away = False
        services.pipeline.store_comes_back()
        assert await client.receive() == Puback(1)
        assert await client.receive() == Puback(2)
        assert await client.receive() == Disconnect(Reason.RECEIVE_MAXIMUM_EXCEEDED)
        assert await client.receive() is None
