"""One raw MQTT client of blocking calls: what it sends and what comes back is in the test."""

import socket
from collections import deque
from types import TracebackType
from typing import Self, TypeVar

from protocols.mqtt import codec
from protocols.mqtt.encoder import encode_packet
from protocols.mqtt.packets import (
    V5,
    Connack,
    Connect,
    Disconnect,
    Packet,
    PacketProperties,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscribeItem,
    Unsuback,
    Unsubscribe,
)
from tests.support.patience import PATIENCE_S

WAIT_S = PATIENCE_S
"""Far more than any answer takes on a loaded machine."""

Address = tuple[str, int]

T = TypeVar("T")


class Peer:
    """Without *connect* nothing is sent; with it CONNACK has come and is in ``connack``."""

    def __init__(self, address: Address, version: int, connect: Connect | None = None) -> None:
        self.version = version
        self.socket = socket.create_connection(address, WAIT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.raw = b""
        """All bytes of the last packet received."""

        self._buffer = b""
        self._early: deque[Packet] = deque()
        """Publishes that came before the answer to one of ours."""

        self.connack = Connack()
        if connect is not None:
            self.send(connect)
            self.connack = self.take(Connack)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.drop()

    def drop(self) -> None:
        """Cut the socket, without DISCONNECT."""
        self.socket.close()

    def leave(self, *properties: tuple[int, int]) -> None:
        """DISCONNECT 0 and wait until the server has closed."""
        self.send(Disconnect(0, properties))
        assert self.rest() == b""
        self.drop()

    def send(self, *packets: Packet | bytes) -> None:
        self.socket.sendall(
            b"".join(
                packet if isinstance(packet, bytes) else encode_packet(packet, self.version)
                for packet in packets
            )
        )

    def receive(self) -> Packet | None:
        """The next packet; None: the server has closed."""
        return self._early.popleft() if self._early else self._read()

    def _read(self) -> Packet | None:
        while True:
            start, end = codec.find_body(self._buffer, 0) if self._buffer else (0, 0)
            if start and end <= len(self._buffer):
                self.raw = self._buffer[:end]
                packet = codec.decode_packet(self._buffer, 0, start, end, self.version)
                self._buffer = self._buffer[end:]
                return packet
            try:
                data = self.socket.recv(65536)
            except ConnectionError:
                return None
            if not data:
                return None
            self._buffer += data

    def take(self, kind: type[T]) -> T:
        """The next packet, which is one of *kind*."""
        packet = self.receive()
        assert isinstance(packet, kind), packet
        return packet

    def expect(self, packet: Packet) -> None:
        """The next packet is this one."""
        found = self.take(type(packet))
        assert found == packet

    def rest(self) -> bytes:
        """All that comes until the server closes."""
        found, self._buffer = self._buffer, b""
        try:
            while data := self.socket.recv(65536):
                found += data
        except ConnectionError:  # closed with our bytes unread
            pass
        return found

    def is_ended(self, *reasons: int) -> bool:
        """Closed: 5.0 is told one of *reasons* (none: nothing at all), 3.1.1 nothing."""
        found = self.rest()
        if self.version != V5 or not reasons:
            return found == b""
        return len(found) == 3 and found[:2] == b"\xe0\x01" and found[2] in reasons

    def is_silent(self) -> bool:
        """Nothing is on its way: the next packet is the answer to a ping."""
        self.send(Pingreq())
        return isinstance(self.receive(), Pingresp)

    # what tests do all the time

    def subscribe(self, *items: SubscribeItem, identifier: int = 0) -> tuple[int, ...]:
        properties = ((0x0B, identifier),) if identifier else ()
        self.send(Subscribe(9, items, properties))
        return self.take(Suback).reasons

    def unsubscribe(self, *filters: str) -> tuple[int, ...]:
        self.send(Unsubscribe(10, filters))
        return self.take(Unsuback).reasons

    def publish(
        self,
        topic: str,
        payload: bytes = b"x",
        qos: int = 1,
        *,
        properties: PacketProperties = (),
        **more: bool,
    ) -> None:
        """PUBLISH, and the whole exchange that its QoS asks for."""
        packet_id = 11 if qos else 0
        self.send(Publish(topic, payload, qos, packet_id=packet_id, properties=properties, **more))
        if qos == 1:
            self._answered(Puback(11))
        elif qos == 2:
            self._answered(Pubrec(11))
            self.send(Pubrel(11))
            self._answered(Pubcomp(11))

    def _answered(self, answer: Packet) -> None:
        """Read on to *answer*; what is delivered meanwhile is kept for ``receive``."""
        while (packet := self._read()) != answer or type(packet) is not type(answer):
            assert isinstance(packet, Publish), packet
            self._early.append(packet)

    def delivered(self, count: int) -> list[Publish]:
        """The next *count* publishes, each exchange done as its QoS says."""
        found: list[Publish] = []
        open_ids = set[int]()
        while len(found) < count or open_ids:
            packet = self.receive()
            if isinstance(packet, Pubrel):
                open_ids.remove(packet.packet_id)
                self.send(Pubcomp(packet.packet_id))
                continue
            assert isinstance(packet, Publish), packet
            found.append(packet)
            if packet.qos == 1:
                self.send(Puback(packet.packet_id))
            elif packet.qos == 2:
                open_ids.add(packet.packet_id)
                self.send(Pubrec(packet.packet_id))
        assert len(found) == count
        return found

    def payloads(self, count: int) -> list[bytes]:
        return [packet.payload for packet in self.delivered(count)]


def refusal(address: Address, version: int, connect: Connect | bytes) -> bytes:
    """What a CONNECT gets that is not let in, up to the close."""
    with Peer(address, version) as peer:
        peer.send(connect)
        return peer.rest()


def let_a_second_pass(address: Address, word: str) -> None:
    """By the server's own clock: a retained message that expires is gone."""
    topic = f"{word}-clock"
    with Peer(address, V5, Connect(V5, topic)) as peer:
        peer.send(Publish(topic, b"x", 1, True, packet_id=1, properties=((0x02, 1),)))
        peer.expect(Puback(1))
        while True:
            peer.subscribe(SubscribeItem(topic))
            if peer.is_silent():
                return
            peer.expect(Pingresp())  # of that question


def reason_of(connack: bytes) -> int:
    """Reason (3.1.1: return code) of the one CONNACK that these bytes are."""
    assert connack[0] == 0x20, connack
    assert connack[1] == len(connack) - 2
    return connack[3]
