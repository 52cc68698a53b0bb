"""
Nonsense and abuse: judged alike however TCP cuts it, bounded, and nobody else's trouble.

Streams are seeded: ``TIDEGATE_SEED`` sends others, ``TIDEGATE_FUZZ`` says how many.
"""

import asyncio
import contextlib
import logging
import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.mqtt.connection import MqttConnection
from protocols.mqtt.encoder import encode_packet
from protocols.mqtt.packets import (
    V5,
    V31,
    V311,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    PacketProperties,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscribeItem,
    Unsubscribe,
    Will,
)
from tests.protocols.test_mqtt_connection import LIMITS, run_in_pieces
from tests.support.fake_services import FakeBroker
from tests.support.mqtt_client import MqttClient
from tests.support.mqtt_front import gateway

SEED = int(os.environ.get("TIDEGATE_SEED", "20240"))
STREAMS = int(os.environ.get("TIDEGATE_FUZZ", "60"))

TOPICS = (
    "a",
    "a/b",
    "$x",
    "b//",
    "\u00e4/\ufeff",
    "",
    "a/#",
    "+",
    "x" * 300,
    "$SYS/x",
    "$delayed/9/a",
)
FILTERS = ("a", "#", "+/b", "$share/g/a", "$share/g/#", "$SYS/#", "a#", "$share/", "$exclusive/a")
PROPERTIES: tuple[tuple[int, int | str | bytes | tuple[str, str]], ...] = (
    (0x01, 1),
    (0x02, 0),
    (0x02, 5),
    (0x03, "text"),
    (0x08, "answer"),
    (0x09, b"\x00"),
    (0x0B, 3),
    (0x11, 0),
    (0x11, 100),
    (0x18, 1),
    (0x21, 1),
    (0x22, 2),
    (0x23, 1),
    (0x23, 9),
    (0x26, ("", "\x01")),
    (0x27, 40),
)


class Streams:
    """Packets that a careless or hostile client might send, from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.version = self.random.choice((V31, V311, V5, V5))

    def connect(self) -> bytes:
        pick = self.random
        will = None
        if pick.random() < 0.3:
            will = Will(pick.choice(TOPICS), b"gone", pick.randrange(3), pick.random() < 0.5)
        packet = Connect(
            self.version,
            pick.choice(("one", "two", "three")),
            clean_start=pick.random() < 0.5,
            keep_alive_s=pick.choice((0, 10, 65_535)),
            user=pick.choice((None, "user")),
            will=will,
            properties=self.properties(0.2),
        )
        return self.mutated(encode_packet(packet, self.version), 0.05)

    def properties(self, chance: float) -> PacketProperties:
        if self.version != V5:
            return ()
        return tuple(pair for pair in PROPERTIES if self.random.random() < chance / 4)

    def packet(self) -> bytes:
        pick = self.random
        number, topic = pick.choice((0, 1, 1, 2, 3, 65_535)), pick.choice(TOPICS)
        qos = pick.randrange(3)
        items = tuple(
            SubscribeItem(pick.choice(FILTERS), pick.randrange(3), pick.random() < 0.2)
            for _ in range(pick.randrange(3))
        )
        made: Packet = pick.choice(
            (
                Publish(topic, b"x" * pick.choice((0, 1, 300)), qos, pick.random() < 0.3,
                        properties=self.properties(0.3), packet_id=number),
                Publish("a", b"x", qos, packet_id=number),
                Subscribe(number, items, self.properties(0.1)),
                Unsubscribe(number, tuple(item.topic_filter for item in items)),
                Puback(number, pick.choice((0, 0x80))),
                Pubrec(number, pick.choice((0, 0, 0x80))),
                Pubrel(number),
                Pubcomp(number),
                Pingreq(),
                Auth(0x19),
                Suback(1, (0,)),
                Disconnect(pick.choice((0, 4, 0x8E)), self.properties(0.1)),
            )
        )  # fmt: skip
        return self.mutated(encode_packet(made, self.version), 0.08)

    def mutated(self, wire: bytes, chance: float) -> bytes:
        pick = self.random
        if not wire or pick.random() > chance:
            return wire
        at = pick.randrange(len(wire))
        kind = pick.randrange(4)
        if kind == 0:
            return wire[:at] + bytes((pick.randrange(256),)) + wire[at + 1 :]
        if kind == 1:
            return wire[:at]
        if kind == 2:
            return wire[:at] + pick.randbytes(pick.randrange(1, 9)) + wire[at:]
        return wire * 2

    def chunks(self) -> list[bytes]:
        wire = self.connect() + b"".join(self.packet() for _ in range(self.random.randrange(25)))
        found: list[bytes] = []
        while wire:
            size = self.random.choice((1, 3, 50, 5000))
            found.append(wire[:size])
            wire = wire[size:]
        return found


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.integers(0, 3000), max_size=12))
def test_cuts_do_not_matter(seed: int, cuts: list[int]) -> None:
    """The same events and the same answers, up to and including the fault that ends it."""
    wire = b"".join(Streams(seed).chunks())
    places = [min(cut, len(wire)) for cut in cuts]
    assert run_in_pieces(wire, places) == run_in_pieces(wire, [])


@settings(deadline=None)
@given(st.lists(st.binary(max_size=600), max_size=20), st.booleans())
def test_what_is_kept_is_bounded(pieces: list[bytes], is_connected: bool) -> None:
    """Never more than one packet of the largest size, whatever comes."""
    connection = MqttConnection(LIMITS, now=0.0)
    if is_connected:
        connection.receive_data(encode_packet(Connect(V5, "c"), V5), now=0.0)
        connection.accept(Connack(), connection.incoming.heads, keep_alive_s=0, now=0.0)
    for piece in pieces:
        connection.receive_data(b"\x30\xe0\x07" + piece, now=0.0)
        assert len(connection._rest) <= max(LIMITS.packet_bytes_max, LIMITS.connect_bytes_max)


async def send(address: tuple[str, int], chunks: list[bytes]) -> None:
    """Without waiting for answers; whatever comes is read and thrown away."""
    reader, writer = await asyncio.open_connection(*address)
    with contextlib.suppress(ConnectionError, TimeoutError):
        for chunk in chunks:
            writer.write(chunk)
            await writer.drain()
        async with asyncio.timeout(0.02):
            await reader.read()
    writer.transport.abort()


async def test_a_neighbour_does_not_notice(caplog: pytest.LogCaptureFixture) -> None:
    """Between streams of nonsense a well-behaved pair exchanges messages; nothing is an error."""
    caplog.set_level(logging.WARNING)
    broker = FakeBroker()
    async with (
        gateway(broker, "gw-1", packet_bytes_max=1000) as (_, address),
        MqttClient(address, Connect(V5, "good-sub")) as sub,
        MqttClient(address, Connect(V311, "good-pub")) as pub,
    ):
        await sub.subscribe(SubscribeItem("good/#", 1))
        for number in range(STREAMS):
            streams = [Streams(SEED + 3 * number + index) for index in range(3)]
            await asyncio.gather(*(send(address, one.chunks()) for one in streams))
            body = b"%d" % number
            assert isinstance(await pub.publish("good/t", body), Puback), SEED + 3 * number
            assert [packet.payload for packet in await sub.publishes(1)] == [body]
            bad = [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]
            assert not bad, (SEED + 3 * number, bad)
