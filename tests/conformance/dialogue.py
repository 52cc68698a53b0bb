"""A connection without sockets: bytes in, what it told and whether it closed."""

from protocols.mqtt.connection import MqttConnection
from protocols.mqtt.encoder import encode_packet
from protocols.mqtt.events import OVERRUN, Behind, Event, Overrun
from protocols.mqtt.fields import encode_string, encode_varint
from protocols.mqtt.mapping import Heads
from protocols.mqtt.packets import V5, Connack, Connect, PacketProperties, Reason
from protocols.mqtt.states import Limits, State

LIMITS = Limits(receive_max=4, topic_alias_max=2, packet_bytes_max=1000)


class Dialogue:
    """The server's side of one connection; CONNECT is accepted as it comes."""

    def __init__(
        self,
        version: int,
        *,
        is_connected: bool = True,
        keep_alive_s: int = 0,
        properties: PacketProperties = (),
    ) -> None:
        self.version = version
        self.connection = MqttConnection(LIMITS, now=0.0)
        self.events: list[Event] = []
        self._keep_alive_s = keep_alive_s
        if is_connected:
            self.say(encode_packet(Connect(version, "c", properties=properties), version))
            self.events.clear()

    def say(self, wire: bytes, *, now: float = 0.0) -> bytes:
        """Hand in *wire*; what is told."""
        self._note(self.connection.receive_data(wire, now=now), now)
        return self.connection.data_to_send()

    def wait(self, now: float) -> bytes:
        """Let time pass; what is told."""
        self._note(self.connection.handle_deadline(now=now), now)
        return self.connection.data_to_send()

    def _note(self, events: list[Event], now: float) -> None:
        self.events += events
        if events and isinstance(events[-1], Behind):
            self._note(self.connection.next_turn(now=now), now)
        if any(isinstance(event, Overrun) for event in events):
            self.connection.fail(Reason.RECEIVE_MAXIMUM_EXCEEDED, OVERRUN)
        if any(isinstance(event, Connect) for event in events):
            connection = self.connection
            if connection.state is State.OPENING:
                heads = Heads("c")
                connection.accept(Connack(), heads, keep_alive_s=self._keep_alive_s, now=now)
                self._note(connection.continue_reading(now=now), now)

    @property
    def is_closed(self) -> bool:
        return self.connection.is_closing

    def is_ended_by(self, wire: bytes, *reasons: int) -> bool:
        """*wire* closes; 5.0 is told one of *reasons* by DISCONNECT, 3.1.1 nothing."""
        told = self.say(wire)
        if not self.is_closed:
            return False
        if self.version != V5:
            return told == b""
        return len(told) == 3 and told[:2] == b"\xe0\x01" and told[2] in reasons


def ends(version: int, wire: bytes, *reasons: int) -> bool:
    """A connected peer that sends *wire* is closed with one of *reasons*."""
    return Dialogue(version).is_ended_by(wire, *reasons)


def refuses(version: int, connect: bytes) -> bool:
    """Such a CONNECT reaches nobody and closes; CONNACK, if any, is a refusal."""
    dialogue = Dialogue(version, is_connected=False)
    told = dialogue.say(connect)
    has_passed = any(isinstance(event, Connect) for event in dialogue.events)
    is_refusal = not told or (told[0] == 0x20 and told[2] == 0 and told[3] != 0)
    return dialogue.is_closed and not has_passed and is_refusal


def packet(first: int, *parts: bytes) -> bytes:
    """Any bytes as the body of a packet."""
    body = b"".join(parts)
    return bytes((first,)) + encode_varint(len(body)) + body


def publish(version: int, topic: bytes, *, first: int = 0x30, packet_id: bytes = b"") -> bytes:
    """PUBLISH of a topic in raw bytes, without properties and payload."""
    end = b"\x00" if version == V5 else b""
    return packet(first, len(topic).to_bytes(2, "big"), topic, packet_id, end)


def request(version: int, first: int, topic_filter: bytes, *options: int) -> bytes:
    """SUBSCRIBE (with *options*) or UNSUBSCRIBE of a filter in raw bytes."""
    properties = b"\x00" if version == V5 else b""
    size = len(topic_filter).to_bytes(2, "big")
    return packet(first, b"\x00\x01", properties, size, topic_filter, bytes(options))


def connect(
    version: int,
    *payload: bytes,
    flags: int = 2,
    name: str = "MQTT",
    level: int = 0,
    properties: bytes = b"\x00",
    first: int = 0x10,
) -> bytes:
    """CONNECT in raw bytes; *payload* begins with the client id."""
    head = encode_string(name) + bytes((level or version, flags, 0, 0))
    return packet(first, head, properties if version == V5 else b"", *payload)


def text(value: str) -> bytes:
    return encode_string(value)
