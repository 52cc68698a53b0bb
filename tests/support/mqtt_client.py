"""An MQTT client of few words for tests: packets in, packets out, nothing done by itself."""

import asyncio
import ssl
from types import TracebackType
from typing import Self

from protocols.mqtt import codec
from protocols.mqtt.encoder import encode_packet
from protocols.mqtt.packets import (
    V5,
    Connack,
    Connect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Suback,
    Subscribe,
    SubscribeItem,
)
from tests.support.patience import PATIENCE_S


class MqttClient:
    """``async with MqttClient(address, Connect(...)) as client``; CONNACK is in ``connack``."""

    def __init__(
        self,
        address: tuple[str, int],
        connect: Connect,
        *,
        wait_s: float = PATIENCE_S,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._address, self._connect, self._wait_s, self._tls = address, connect, wait_s, tls
        self.version = connect.version
        self.connack = Connack()
        self._buffer = b""
        self._packet_id = 0

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(
            *self._address, ssl=self._tls, server_hostname="localhost" if self._tls else None
        )
        try:
            self.send(self._connect)
            connack = await self.receive()
            assert isinstance(connack, Connack), connack
        except BaseException:
            self.drop()
            raise
        self.connack = connack
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.drop()
        await asyncio.sleep(0)

    def drop(self) -> None:
        """Cut the socket, without DISCONNECT."""
        self._writer.transport.abort()

    def send(self, *packets: Packet) -> None:
        self._writer.write(b"".join(encode_packet(packet, self.version) for packet in packets))

    async def receive(self) -> Packet | None:
        """The next packet; None: the socket is closed."""
        while True:
            start, end = codec.find_body(self._buffer, 0) if self._buffer else (0, 0)
            if start and end <= len(self._buffer):
                packet = codec.decode_packet(self._buffer, 0, start, end, self.version)
                self._buffer = self._buffer[end:]
                return packet
            try:
                data = await asyncio.wait_for(self._reader.read(65536), self._wait_s)
            except ConnectionError:
                return None
            if not data:
                return None
            self._buffer += data

    async def publishes(self, count: int, *, acks: bool = True) -> list[Publish]:
        """The next *count* publishes; QoS 1 is acknowledged."""
        found: list[Publish] = []
        while len(found) < count:
            packet = await self.receive()
            assert isinstance(packet, Publish), packet
            found.append(packet)
            if packet.qos == 1 and acks:
                self.send(Puback(packet.packet_id))
        return found

    async def subscribe(self, *items: SubscribeItem, identifier: int = 0) -> tuple[int, ...]:
        """SUBSCRIBE; the reason codes of SUBACK."""
        self._packet_id += 1
        properties = ((0x0B, identifier),) if identifier and self.version == V5 else ()
        self.send(Subscribe(self._packet_id, items, properties))
        packet = await self.receive()
        assert isinstance(packet, Suback), packet
        return packet.reasons

    async def publish(
        self, topic: str, body: bytes, qos: int = 1, **options: bool
    ) -> Packet | None:
        """PUBLISH and, above QoS 0, its first answer."""
        self._packet_id += 1
        packet_id = self._packet_id if qos else 0
        self.send(Publish(topic, body, qos, packet_id=packet_id, **options))
        return await self.receive() if qos else None

    async def is_silent(self) -> bool:
        """Nothing is on its way: the next packet is the answer to a ping."""
        self.send(Pingreq())
        return isinstance(await self.receive(), Pingresp)
