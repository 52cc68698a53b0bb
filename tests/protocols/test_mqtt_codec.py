"""Packets to bytes and back; what is wrong with a packet is said in the right words."""

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.canonical import Head
from protocols.mqtt import codec
from protocols.mqtt.encoder import encode_packet, encode_puback_run
from protocols.mqtt.fields import PacketError
from protocols.mqtt.mapping import Heads
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
    PacketType,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Reason,
    Suback,
    Subscribe,
    SubscribeItem,
    Unsuback,
    Unsubscribe,
    Will,
)
from protocols.mqtt.properties import ALLOWED, FORMS, PROPERTIES_MAX, WILL, Form, Property

LETTERS = st.characters(codec="utf-8", exclude_characters="\x00")
TEXT = st.text(LETTERS, max_size=12)
NAME = st.text("abcé0 $_-𪛔", min_size=1, max_size=8)
TOPIC = st.lists(NAME, min_size=1, max_size=4).map("/".join)
ID = st.integers(1, 65535)
VALUES = {
    Form.BYTE: st.integers(0, 1),
    Form.U16: st.integers(1, 65535),
    Form.U32: st.integers(1, 0xFFFFFFFF),
    Form.VARINT: st.integers(1, 268_435_455),
    Form.STRING: TEXT,
    Form.BINARY: st.binary(max_size=12),
    Form.PAIR: st.tuples(TEXT, TEXT),
}


def properties(packet_type: int) -> st.SearchStrategy[PacketProperties]:
    """Some of those that the packet may have, users' own repeated."""
    once = [
        st.tuples(st.just(int(name)), TOPIC if name == Property.RESPONSE_TOPIC else VALUES[form])
        for name, form in FORMS.items()
        if name in ALLOWED[packet_type]
        and form is not Form.PAIR
        # data without a method is an error of its own
        and name not in (Property.AUTHENTICATION_DATA,)
    ]
    pairs = st.tuples(st.just(int(Property.USER_PROPERTY)), VALUES[Form.PAIR])
    repeated = (
        st.lists(pairs, max_size=2)
        if Property.USER_PROPERTY in ALLOWED[packet_type]
        else st.just([])
    )
    chosen = (
        st.lists(st.one_of(once), unique_by=lambda pair: pair[0], max_size=3)
        if once
        else st.just([])
    )
    return st.tuples(chosen, repeated).map(lambda both: tuple(both[0] + both[1]))


def of(packet_type: int, version: int) -> st.SearchStrategy[PacketProperties]:
    return properties(packet_type) if version == V5 else st.just(())


@st.composite
def packets(draw: st.DrawFn, version: int) -> Packet:
    kind = draw(st.sampled_from(sorted(PacketType)))
    if kind == PacketType.AUTH and version != V5:
        kind = PacketType.PINGREQ
    extra = draw(of(kind, version)) if kind in ALLOWED else ()
    reason = draw(st.sampled_from((0x00, 0x80, 0x87))) if version == V5 else 0
    if kind == PacketType.CONNECT:
        will = None
        if draw(st.booleans()):
            will = Will(
                draw(TOPIC),
                b"w",
                draw(st.integers(0, 2)),
                draw(st.booleans()),
                draw(of(WILL, version)),
            )
        user = draw(st.none() | NAME)
        password = (
            draw(st.none() | st.binary(max_size=8)) if user is not None or version == V5 else None
        )
        return Connect(
            version,
            draw(NAME | st.just("")),
            draw(st.booleans()),
            draw(st.integers(0, 65535)),
            user,
            password,
            will,
            extra,
        )
    if kind == PacketType.CONNACK:
        return Connack(
            reason if version == V5 else 0, version != V31 and draw(st.booleans()), extra
        )
    if kind == PacketType.PUBLISH:
        qos = draw(st.integers(0, 2))
        return Publish(
            draw(TOPIC), draw(st.binary(max_size=300)), qos, draw(st.booleans()),
            bool(qos) and draw(st.booleans()), draw(ID) if qos else 0, extra,
        )  # fmt: skip
    if kind in (PacketType.PUBACK, PacketType.PUBREC):
        return (Puback if kind == PacketType.PUBACK else Pubrec)(draw(ID), reason, extra)
    if kind in (PacketType.PUBREL, PacketType.PUBCOMP):
        reason = 0x92 if reason else 0
        return (Pubrel if kind == PacketType.PUBREL else Pubcomp)(draw(ID), reason, extra)
    if kind == PacketType.SUBSCRIBE:
        v5 = version == V5
        item = st.builds(
            SubscribeItem, TOPIC, st.integers(0, 2), st.booleans() if v5 else st.just(False),
            st.booleans() if v5 else st.just(False), st.integers(0, 2) if v5 else st.just(0),
        )  # fmt: skip
        return Subscribe(draw(ID), tuple(draw(st.lists(item, min_size=1, max_size=3))), extra)
    if kind == PacketType.SUBACK:
        return Suback(
            draw(ID), tuple(draw(st.lists(st.sampled_from((0, 1, 2, 0x80)), min_size=1))), extra
        )
    if kind == PacketType.UNSUBSCRIBE:
        return Unsubscribe(draw(ID), tuple(draw(st.lists(TOPIC, min_size=1, max_size=3))), extra)
    if kind == PacketType.UNSUBACK:
        return Unsuback(draw(ID), (0, 0x11) if version == V5 else (), extra)
    if kind == PacketType.PINGREQ:
        return Pingreq()
    if kind == PacketType.PINGRESP:
        return Pingresp()
    if kind == PacketType.DISCONNECT:
        return Disconnect(reason, extra)
    return Auth(0x18 if reason else 0, extra)


def decode(wire: bytes, version: int) -> Packet:
    start, end = codec.find_body(wire, 0)
    assert end == len(wire)
    return codec.decode_packet(wire, 0, start, end, version)


@pytest.mark.parametrize("version", [V31, V311, V5])
@given(data=st.data())
def test_every_packet_comes_back(version: int, data: st.DataObject) -> None:
    """What was encoded decodes to the same packet of the same type, in every version."""
    packet = data.draw(packets(version))
    wire = encode_packet(packet, version)
    back = decode(wire, version)
    assert type(back) is type(packet)
    assert back == packet


@pytest.mark.parametrize("version", [V311, V5])
@given(wire=st.binary(max_size=60), first=st.integers(0, 255))
def test_any_bytes_are_a_packet_or_a_packet_error(version: int, wire: bytes, first: int) -> None:
    """Garbage never raises anything but PacketError."""
    body = bytes((first, len(wire))) + wire
    with contextlib.suppress(PacketError):
        codec.decode_packet(body, 0, 2, len(body), version)


MALFORMED: list[tuple[str, int]] = [
    # wire (hex, version 5), reason
    ("00 00", 0x82),  # packet type 0
    ("36 06 0001 61 0001 00", 0x81),  # QoS 3
    ("38 04 0001 61 00", 0x81),  # DUP with QoS 0
    ("32 06 0001 61 0000 00", 0x82),  # packet id 0
    ("30 03 0000 00", 0x82),  # no topic, no alias
    ("30 04 0001 2b 00", 0x81),  # topic "+"
    ("30 04 0001 01 00", 0x81),  # control character in the topic
    ("30 05 0002 c328 00", 0x81),  # not UTF-8
    ("30 06 0003 eda080 00", 0x81),  # a surrogate
    ("30 06 0001 61 02 0103", 0x82),  # payload format 3
    ("30 05 0001 61 01 01", 0x81),  # a property without its value
    ("30 05 0001 61 01 7f", 0x81),  # unknown property
    ("30 06 0001 61 02 1700", 0x82),  # property of another packet
    ("30 08 0001 61 04 0100 0100", 0x82),  # property twice
    ("30 08 0001 61 04 08 0001 23", 0x82),  # response topic "#"
    ("82 03 0001 00", 0x81),  # SUBSCRIBE without a filter
    ("82 07 0000 00 0001 61 00", 0x81),  # SUBSCRIBE with id 0
    ("82 07 0001 00 0001 61 03", 0x81),  # requested QoS 3
    ("82 07 0001 00 0001 61 30", 0x81),  # retain handling 3
    ("82 07 0001 00 0001 61 40", 0x81),  # reserved option bit
    ("82 08 0001 00 0002 6123 00", 0x81),  # filter "a#"
    ("82 0f 0001 00 0009 2473686172652f6162 00", 0x82),  # "$share/ab"
    ("82 10 0001 00 000a 2473686172652f612f62 04", 0x82),  # no-local on a shared one
    ("82 09 0001 02 0b00 0001 61 00", 0x82),  # subscription identifier 0
    ("82 0b 0001 04 0b010b02 0001 61 00", 0x82),  # two subscription identifiers
    ("80 07 0001 00 0001 61 00", 0x81),  # SUBSCRIBE with flags 0000
    ("a2 03 0001 00", 0x81),  # UNSUBSCRIBE without a filter
    ("40 03 0001 05", 0x82),  # PUBACK with an unknown reason
    ("40 02 0000", 0x82),  # PUBACK of id 0
    ("62 03 0001 91", 0x82),  # PUBREL with a reason of PUBREC
    ("60 02 0001", 0x81),  # PUBREL with flags 0000
    ("c0 01 00", 0x81),  # PINGREQ with a body
    ("c1 00", 0x81),  # PINGREQ with a flag
    ("f0 02 05 00", 0x82),  # AUTH with an unknown reason
    ("40 04 0001 00 05", 0x81),  # properties longer than the packet
    ("10 0d 0004 4d515454 05 03 0000 00 0000", 0x81),  # reserved connect flag
    ("10 0d 0004 4d515454 05 0a 0000 00 0000", 0x81),  # will QoS without a will
    ("10 0e 0004 4d515454 05 02 0000 00 0001 1f", 0x85),  # control character in the client id
    ("82 09 0001 02 2300 0001 61 00", 0x81),  # a property that ends early, of another packet
    ("82 0a 0001 03 230001 0001 61 00", 0x81),  # a property of another packet in SUBSCRIBE
]


@pytest.mark.parametrize(("wire", "reason"), MALFORMED)
def test_what_is_wrong_is_said(wire: str, reason: int) -> None:
    """Each fault of a version 5 packet has its reason code."""
    with pytest.raises(PacketError) as caught:
        decode(bytes.fromhex(wire), V5)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("wire", "packet"),
    [
        ("40 02 0007", Puback(7)),
        ("40 03 0007 10", Puback(7, 0x10)),
        ("40 04 0007 10 00", Puback(7, 0x10)),
        ("e0 00", Disconnect(0)),
        ("e0 01 04", Disconnect(4)),
        ("e0 02 04 00", Disconnect(4)),
        ("30 07 0001 61 00 010203", Publish("a", b"\x01\x02\x03")),
    ],
)
def test_short_forms(wire: str, packet: Packet) -> None:
    """Reason and properties may be left out where the specification says so."""
    assert decode(bytes.fromhex(wire), V5) == packet


@pytest.mark.parametrize(
    ("packet_of", "count_max"),
    [
        (lambda count: Publish("t", b"", properties=((0x26, ("", "")),) * count), PROPERTIES_MAX),
        (lambda count: Subscribe(1, (SubscribeItem("a", 0),) * count), codec.FILTERS_MAX),
        (lambda count: Unsubscribe(1, ("a",) * count), codec.FILTERS_MAX),
    ],
    ids=["properties", "SUBSCRIBE", "UNSUBSCRIBE"],
)
def test_there_is_an_end_to_what_one_packet_asks(
    packet_of: Callable[[int], Packet], count_max: int
) -> None:
    """What others would wait for too long is refused as it is read: 0x97."""
    decode(encode_packet(packet_of(count_max), V5), V5)
    with pytest.raises(PacketError) as caught:
        decode(encode_packet(packet_of(count_max + 1), V5), V5)
    assert caught.value.reason == Reason.QUOTA_EXCEEDED


def test_a_fifth_length_byte_is_malformed() -> None:
    """It is refused as soon as it is seen, whole packet or not."""
    with pytest.raises(PacketError):
        codec.find_body(bytes.fromhex("30ffffffff01"), 0)
    assert codec.find_body(bytes.fromhex("30ffff"), 0) == (0, 0)


@given(
    payloads=st.lists(st.binary(max_size=200), max_size=20),
    qos=st.integers(0, 1),
    version=st.sampled_from((V311, V5)),
    cut=st.integers(0, 40),
)
def test_a_run_is_what_its_packets_are(
    payloads: list[bytes], qos: int, version: int, cut: int
) -> None:
    """The fast way finds the same messages as the slow way, and stops where a packet is cut."""
    heads = Heads("c")
    head = heads.find("a/b", qos, False)
    wires = [
        encode_packet(Publish("a/b", body, qos, packet_id=index + 1 if qos else 0), version)
        for index, body in enumerate(payloads)
    ]
    wire = b"".join(wires)
    wire = wire[: max(0, len(wire) - cut)]
    spans: list[tuple[Head, int]] = []
    bodies: list[bytes] = []
    packet_ids: list[bytes] = []
    stop = 0
    if wire:
        table = heads.tables[qos << 1]
        stop = codec.take_publishes(wire, 0, table, version == V5, 1000, spans, bodies, packet_ids)
    whole = 0
    while whole < len(wires) and sum(map(len, wires[: whole + 1])) <= len(wire):
        whole += 1
    assert bodies == payloads[:whole]
    assert spans == ([(head, 0)] if bodies else [])
    assert packet_ids == ([(n + 1).to_bytes(2, "big") for n in range(whole)] if qos else [])
    assert stop == sum(map(len, wires[:whole]))


def test_pubacks_are_joined_and_taken_as_a_run() -> None:
    """Ids in, one byte string out, ids back."""
    wire = encode_puback_run(b"\0\1\1\0\xff\xff")
    assert wire == bytes.fromhex("40020001 40020100 4002ffff")
    found: list[int] = []
    assert codec.take_pubacks(wire + b"\xc0\0", 0, found) == len(wire)
    assert found == [1, 256, 65535]


def test_a_run_over_several_topics() -> None:
    """Spans say where the topic changes; sizes may vary; an unknown topic ends the run."""
    heads = Heads("c")
    one, two = heads.find("t/1", 0, False), heads.find("t/2", 0, False)
    packets = [("t/1", b"a"), ("t/1", b"b" * 200), ("t/2", b"c"), ("t/1", b""), ("t/3", b"d")]
    wires = [encode_packet(Publish(topic, body), V311) for topic, body in packets]
    spans: list[tuple[Head, int]] = []
    bodies: list[bytes] = []
    stop = codec.take_publishes(b"".join(wires), 0, heads.tables[0], False, 1000, spans, bodies, [])
    assert spans == [(one, 0), (two, 2), (one, 3)]
    assert bodies == [b"a", b"b" * 200, b"c", b""]
    assert stop == sum(map(len, wires[:4]))
