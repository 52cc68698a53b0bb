"""RFC 6455 as far as MQTT needs it."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.mqtt.connection import TURN_PACKETS_MAX, Limits, MqttConnection
from protocols.mqtt.encoder import PINGRESP, encode_packet
from protocols.mqtt.events import Lost, PublishRun
from protocols.mqtt.mapping import Heads
from protocols.mqtt.packets import (
    V5,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Publish,
    Reason,
)
from protocols.mqtt.websocket import (
    Frames,
    Handshake,
    WebSocketConnection,
    accept_key,
    encode_frame,
)

REQUEST = (
    "GET /mqtt?x=1 HTTP/1.1\r\nHost: h\r\nUpgrade: WebSocket\r\nConnection: keep-alive, Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Protocol: other, mqtt\r\nOrigin: https://good.example\r\n\r\n"
)


def masked(payload: bytes, opcode: int = 2, *, is_last: bool = True) -> bytes:
    """A client's frame."""
    mask = b"\x37\xfa\x21\x3d"  # of RFC 6455, section 5.7
    body = bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))
    first = bytes(((0x80 if is_last else 0) | opcode,))
    if len(payload) < 126:
        return first + bytes((0x80 | len(payload),)) + mask + body
    return first + b"\xfe" + struct.pack(">H", len(payload)) + mask + body


def test_the_accept_key_of_the_rfc() -> None:
    """The example of section 1.3."""
    assert accept_key("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


def test_a_handshake() -> None:
    """In pieces; the subprotocol is echoed; frames may follow at once."""
    handshake = Handshake("/mqtt")
    assert handshake.receive(REQUEST[:40].encode()) == b""
    answer = handshake.receive(REQUEST[40:].encode() + b"\x82")
    assert answer.startswith(b"HTTP/1.1 101 ")
    assert b"Sec-WebSocket-Protocol: mqtt\r\n" in answer
    assert handshake.rest == b"\x82"


@pytest.mark.parametrize(
    ("old", "new", "status"),
    [
        ("/mqtt", "/other", b"404"),
        ("GET", "PUT", b"405"),
        ("Upgrade: WebSocket\r\n", "", b"426"),
        ("Version: 13", "Version: 8", b"426"),
        ("other, mqtt", "other", b"400"),
        ("good.example", "bad.example", b"403"),
        ("good.example", "x" * 9000, b"431"),
    ],
)
def test_a_refused_handshake(old: str, new: str, status: bytes) -> None:
    """Each fault has its status; the connection closes."""
    handshake = Handshake("/mqtt", ("https://good.example",))
    answer = handshake.receive(REQUEST.replace(old, new, 1).encode())
    assert answer.split()[1] == status
    assert handshake.is_refused


@given(
    payloads=st.lists(st.binary(max_size=300), max_size=5),
    cuts=st.lists(st.integers(0, 1700), max_size=8),
)
def test_frames_are_unmasked_however_they_are_cut(payloads: list[bytes], cuts: list[int]) -> None:
    """The payloads of all frames, in order."""
    wire = b"".join(masked(payload) for payload in payloads)
    frames, got, start = Frames(), b"", 0
    for stop in [*sorted(cut for cut in cuts if cut < len(wire)), len(wire)]:
        got += frames.receive(wire[start:stop])
        start = stop
    assert got == b"".join(payloads)


def test_fragments_and_control_frames_between_them() -> None:
    """A ping in the middle of a message is answered, the message goes on."""
    frames = Frames()
    wire = masked(b"a", 2, is_last=False) + masked(b"hi", 9) + masked(b"b", 0)
    assert frames.receive(wire) == b"ab"
    assert frames.answers == [encode_frame(b"hi", 10)]


@pytest.mark.parametrize(
    ("wire", "code"),
    [
        (masked(b"text", 1), 1003),
        (b"\x82\x01a", 1002),  # not masked
        (b"\xc2\x81", 1002),  # reserved bit
        (masked(b"x", 0), 1002),  # nothing to continue
        (masked(b"x" * 200, 9), 1002),  # long ping
        (b"\x89\xfe", 1002),  # long ping, by its head alone
        (b"\x82\xff" + b"\xff" * 12, 1002),  # a length of 64 bits has 63
        (masked(b"\x03", 8), 1002),  # half a close code
        (masked(b"\x03\xed", 8), 1002),  # 1005 is never sent
    ],
)
def test_faults_have_their_code(wire: bytes, code: int) -> None:
    """What goes into the close frame; frames before the fault count."""
    frames = Frames()
    assert frames.receive(masked(b"good") + wire) == b"good"
    assert frames.fault is not None
    assert frames.fault.code == code


def test_mqtt_inside() -> None:
    """CONNECT comes through; a text frame ends it with 1003; silence ends in 10 s."""
    inner = MqttConnection(Limits(), now=0.0)
    outer = WebSocketConnection(inner, path="/mqtt", origins=())
    assert outer.deadline == 10.0
    connect = masked(encode_packet(Connect(V5, "c"), V5))
    (event,) = outer.receive_data(REQUEST.encode() + connect, now=0.0)
    assert isinstance(event, Connect)
    assert outer.data_to_send().startswith(b"HTTP/1.1 101")
    (lost,) = outer.receive_data(masked(b"text", 1), now=0.0)
    assert isinstance(lost, Lost)
    assert outer.data_to_send() == b"\x88\x02" + struct.pack(">H", 1003)
    assert outer.is_closing


LIMITS = Limits(packet_bytes_max=1000)


def opened(limits: Limits = LIMITS) -> WebSocketConnection:
    """After CONNACK."""
    inner = MqttConnection(limits, now=0.0)
    outer = WebSocketConnection(inner, path="/mqtt", origins=())
    outer.receive_data(REQUEST.encode() + masked(encode_packet(Connect(V5, "c"), V5)), now=0.0)
    inner.accept(Connack(), Heads("c"), keep_alive_s=0, now=0.0)
    outer.data_to_send()
    return outer


def test_a_frame_of_many_packets_may_be_longer_than_any_packet() -> None:
    """[MQTT-6.0.0-2]: frames and packets have nothing to do with each other."""
    outer, packet = opened(), encode_packet(Publish("t", bytes(900), 1, packet_id=7), V5)
    events = outer.receive_data(masked(packet * 5), now=0.0)
    runs = [event for event in events if isinstance(event, PublishRun)]
    assert sum(len(run.messages) for run in runs) == 5
    assert not outer.is_closing


def test_a_packet_that_is_too_large_is_told_so_before_its_frame_is_here() -> None:
    """As over TCP, by the packet's own length: 0x95, then the close frame."""
    outer = opened()
    wire = masked(encode_packet(Publish("t", bytes(5000), 1, packet_id=7), V5))
    (lost,) = outer.receive_data(wire[:40], now=0.0)
    assert isinstance(lost, Lost)
    told = encode_packet(Disconnect(Reason.PACKET_TOO_LARGE), V5)
    assert outer.data_to_send() == encode_frame(told) + b"\x88\x02\x03\xe8"


def test_all_that_came_before_the_close_frame_counts() -> None:
    """However many turns it would have taken."""
    outer = opened()
    wire = encode_packet(Pingreq(), V5) * 3 * TURN_PACKETS_MAX + encode_packet(Disconnect(), V5)
    events = outer.receive_data(masked(wire) + masked(b"", 8), now=0.0)
    assert events[-1] == Disconnect()
    assert outer.is_closing


def test_each_packet_has_a_frame() -> None:
    """Clients are not to need it [MQTT-6.0.0-2]; Paho C does."""
    outer = opened()
    large = encode_packet(Publish("t", bytes(70_000), 0), V5)
    outer.inner.queue(PINGRESP + large)
    outer.inner.queue(PINGRESP)
    sent = outer.data_to_send()
    assert sent == encode_frame(PINGRESP) + encode_frame(large) + encode_frame(PINGRESP)


def test_a_frame_goes_on_as_it_comes() -> None:
    """Half a frame with a whole packet in it: the packet counts."""
    outer = opened()
    wire = masked(encode_packet(Pingreq(), V5) * 2)
    outer.receive_data(wire[:9], now=0.0)
    assert outer.data_to_send() == encode_frame(PINGRESP)
    outer.receive_data(wire[9:], now=0.0)
    assert outer.data_to_send() == encode_frame(PINGRESP)


@pytest.mark.parametrize(
    ("size", "head"),
    [
        (125, b"\x82\x7d"),
        (126, b"\x82\x7e\x00\x7e"),
        (65535, b"\x82\x7e\xff\xff"),
        (65536, b"\x82\x7f" + (65536).to_bytes(8, "big")),
    ],
)
def test_a_frame_has_the_shortest_length(size: int, head: bytes) -> None:
    """RFC 6455, section 5.2."""
    assert encode_frame(bytes(size)) == head + bytes(size)


def test_a_ping_is_answered_once() -> None:
    connection = opened()
    for payload in (b"one", b"two"):
        connection.receive_data(masked(payload, 9), now=0.0)
        assert connection.data_to_send() == encode_frame(payload, 10)
    connection.receive_data(masked(b"\xc0\x00"), now=0.0)
    assert connection.data_to_send() == encode_frame(b"\xd0\x00")
