"""Bytes, flags and formats, without a socket: sections 1 and 2, and CONNECT."""

import pytest

from protocols.mqtt.encoder import encode_packet
from protocols.mqtt.fields import encode_varint
from protocols.mqtt.packets import (
    V5,
    V311,
    Auth,
    Connect,
    Disconnect,
    Pingreq,
    Puback,
    Publish,
    Reason,
    Subscribe,
    SubscribeItem,
    Will,
)
from tests.conformance.clauses import clauses
from tests.conformance.dialogue import (
    Dialogue,
    connect,
    ends,
    packet,
    publish,
    refuses,
    request,
    text,
)

MALFORMED, PROTOCOL = Reason.MALFORMED_PACKET, Reason.PROTOCOL_ERROR

SURROGATE, OVERLONG, NOT_UTF8 = b"\xed\xa0\x80", b"\xc0\xaf", b"\xff"
BAD_TEXTS = (SURROGATE, OVERLONG, NOT_UTF8)


# ── section 1: strings and integers ─────────────────────────────────────────────────────


@clauses(v5="1.5.4-1 3.3.2-1 3.8.3-1 3.10.3-1", v311="1.5.3-1 3.3.2-1 3.8.3-1 3.10.3-1")
def test_mqtt_1_5_4_1_ill_formed_text_is_malformed(version: int) -> None:
    """In topics and in filters."""
    for bad in BAD_TEXTS:
        assert ends(version, publish(version, b"a/" + bad), MALFORMED)
        assert ends(version, request(version, 0x82, bad, 0), MALFORMED)
        assert ends(version, request(version, 0xA2, bad), MALFORMED)


@clauses(v5="1.5.4-2 4.7.3-2", v311="1.5.3-2 4.7.3-2")
def test_mqtt_1_5_4_2_no_null_in_text(version: int) -> None:
    """In topics, filters and client ids."""
    assert ends(version, publish(version, b"a\x00b"), MALFORMED)
    assert ends(version, request(version, 0x82, b"a\x00b", 0), MALFORMED)
    assert refuses(version, connect(version, text("a\x00b")))


@clauses(v5="1.5.4-3", v311="1.5.3-3")
def test_mqtt_1_5_4_3_a_byte_order_mark_is_kept(version: int) -> None:
    """U+FEFF is a character like others, at the start too."""
    dialogue = Dialogue(version)
    wire = encode_packet(Publish("\ufeffa\ufeff", b"", 2, packet_id=1), version)
    dialogue.say(wire)
    (event,) = dialogue.events
    assert isinstance(event, Publish)
    assert event.topic == "\ufeffa\ufeff"


@clauses(v5="1.5.5-1")
def test_mqtt_1_5_5_1_variable_integers_are_minimal(version: int) -> None:
    """
    A length of two bytes for less than 128 is malformed, of properties and of the packet; after
    five length bytes is no packet.
    """
    assert ends(version, packet(0x30, text("a"), b"\x80\x00"), MALFORMED)
    assert ends(version, b"\x30\x84\x00\x00\x01a\x00", MALFORMED)
    assert ends(version, b"\xc0\x80\x00", MALFORMED)
    wire = connect(version, text("c"))
    assert refuses(version, wire[:1] + bytes((wire[1] | 0x80, 0)) + wire[2:])
    dialogue = Dialogue(version)
    assert dialogue.say(b"\x30\xff\xff\xff\xff\x7f") == b""
    assert dialogue.is_closed
    assert encode_varint(0) == b"\x00"
    assert [len(encode_varint(n)) for n in (127, 128, 16_383, 16_384, 2_097_151)] == [1, 2, 2, 3, 3]


@clauses(v5="1.5.7-1")
def test_mqtt_1_5_7_1_both_halves_of_a_pair_are_strings(version: int) -> None:
    """A user property with bad text in either half is malformed."""
    for pair in (text("k") + b"\x00\x01\xff", b"\x00\x01\xff" + text("v")):
        properties = b"\x26" + pair
        wire = packet(0x30, text("a"), encode_varint(len(properties)), properties)
        assert ends(version, wire, MALFORMED)


# ── section 2: flags and packet identifiers ─────────────────────────────────────────────

RESERVED = {
    "PUBACK": (0x40, b"\x00\x01", 0),
    "PUBREC": (0x50, b"\x00\x01", 0),
    "PUBREL": (0x60, b"\x00\x01", 2),
    "PUBCOMP": (0x70, b"\x00\x01", 0),
    "PINGREQ": (0xC0, b"", 0),
    "DISCONNECT": (0xE0, b"", 0),
}


@clauses(
    v5="2.1.3-1 3.6.1-1 3.14.1-1",
    v311="2.2.2-1 2.2.2-2 3.6.1-1 3.14.1-1",
)
@pytest.mark.parametrize("name", list(RESERVED))
def test_mqtt_2_1_3_1_reserved_flags(version: int, name: str) -> None:
    """Each wrong value of the low four bits closes."""
    base, body, right = RESERVED[name]
    for flags in set(range(16)) - {right}:
        assert ends(version, packet(base | flags, body), MALFORMED), flags


@clauses(v5="3.8.1-1 3.10.1-1", v311="3.8.1-1 3.10.1-1")
def test_mqtt_3_8_1_1_flags_of_subscribe_and_unsubscribe(version: int) -> None:
    for flags in set(range(16)) - {2}:
        assert ends(version, request(version, 0x80 | flags, b"a", 0), MALFORMED), flags
        assert ends(version, request(version, 0xA0 | flags, b"a"), MALFORMED), flags


@clauses(v5="3.15.1-1 4.12.0-7")
def test_mqtt_3_15_1_1_auth_is_an_error_without_a_method(version: int) -> None:
    """With good flags and with bad ones: no method was agreed on."""
    for first in (0xF0, 0xF1, 0xF8):
        assert ends(version, packet(first, b"\x18\x00"), MALFORMED, PROTOCOL), first
    assert ends(version, encode_packet(Auth(0x19, ((0x15, "PLAIN"),)), version), PROTOCOL)


@clauses(v5="2.2.1-2", v311="2.3.1-5")
def test_mqtt_2_2_1_2_no_packet_id_at_qos_0(version: int) -> None:
    """What follows the topic of a QoS 0 publish is properties and payload."""
    dialogue = Dialogue(version)
    dialogue.say(encode_packet(Publish("t", b"\x00\x07rest"), version))
    (run,) = dialogue.events
    assert [bytes(message.body) for message in run.messages] == [b"\x00\x07rest"]
    assert not run.packet_ids


@clauses(v5="2.2.1-3", v311="2.3.1-1")
def test_mqtt_2_2_1_3_packet_id_0(version: int) -> None:
    """Of a publish above QoS 0, a SUBSCRIBE, an UNSUBSCRIBE."""
    for first in (0x32, 0x34):
        assert ends(version, publish(version, b"t", first=first, packet_id=b"\0\0"), PROTOCOL)
    properties = b"\x00" if version == V5 else b""
    assert ends(version, packet(0x82, b"\0\0", properties, text("a"), b"\0"), MALFORMED, PROTOCOL)
    assert ends(version, packet(0xA2, b"\0\0", properties, text("a")), MALFORMED, PROTOCOL)


@clauses(v5="2.2.2-1 3.1.4-1")
def test_mqtt_2_2_2_1_the_property_length_is_there(version: int) -> None:
    """A CONNECT that ends before it is malformed; SUBACK and CONNACK write it."""
    assert refuses(version, packet(0x10, text("MQTT"), b"\x05\x02\x00\x00"))
    told = Dialogue(version, is_connected=False).say(connect(version, text("c")))
    assert told == b"\x20\x03\x00\x00\x00"


# ── CONNECT ─────────────────────────────────────────────────────────────────────────────


@clauses(v5="3.1.0-1", v311="3.1.0-1")
def test_mqtt_3_1_0_1_connect_comes_first(version: int) -> None:
    """Anything else closes, untold."""
    for first in (
        Pingreq(),
        Publish("t", b""),
        Subscribe(1, (SubscribeItem("a"),)),
        Disconnect(),
        Puback(1),
    ):
        dialogue = Dialogue(version, is_connected=False)
        assert dialogue.say(encode_packet(first, version)) == b""
        assert dialogue.is_closed


@clauses(v5="3.1.0-2", v311="3.1.0-2")
def test_mqtt_3_1_0_2_a_second_connect_ends(version: int) -> None:
    assert ends(version, encode_packet(Connect(version, "c"), version), PROTOCOL)


@clauses(v5="3.1.2-1", v311="3.1.2-1")
def test_mqtt_3_1_2_1_another_protocol_name(version: int) -> None:
    for name in ("mqtt", "MQTT5", "AMQP", ""):
        assert refuses(version, connect(version, text("c"), name=name))


@clauses(v5="3.1.2-2 4.13.2-1", v311="3.1.2-2 3.2.2-5")
def test_mqtt_3_1_2_2_another_protocol_level(version: int) -> None:
    """
    CONNACK 0x84 in 5.0's form where nobody knows the level, as Mosquitto 2.1 tells it.

    3.x's code 1 for the level of one version under the name of another; then the close.
    """
    unknown, misnamed = b"\x20\x03\x00\x84\x00", b"\x20\x02\x00\x01"
    for name, level, answer in (
        ("MQTT", 2, unknown),
        ("MQTT", 6, unknown),
        ("MQTT", 0x85, unknown),
        ("MQIsdp", 2, unknown),
        ("MQIsdp", 6, unknown),
        ("MQTT", 3, misnamed),
        ("MQIsdp", 4, misnamed),
        ("MQIsdp", 5, misnamed),
    ):
        dialogue = Dialogue(version, is_connected=False)
        assert dialogue.say(connect(version, text("c"), name=name, level=level)) == answer
        assert dialogue.is_closed


@pytest.mark.parametrize("version", [V311, V5])
def test_what_nobody_can_read_is_closed_alone(version: int) -> None:
    """As other servers do, and clients are tested for: the head of a packet without its rest."""
    for wire in (
        connect(version, text("c"), flags=0x1E),  # a will of QoS 3
        packet(0x10, text("MQTT"), bytes((version, 2))),
    ):
        dialogue = Dialogue(version, is_connected=False)
        assert dialogue.say(wire) == b""
        assert dialogue.is_closed


@pytest.mark.parametrize("version", [V311, V5])
def test_packet_type_0_is_no_packet_whatever_its_length(version: int) -> None:
    """Told before the length is whole, and where it never will be."""
    for wire in (b"\x00\x00", b"\x0a\xc0", b"\x00\xff\xff\xff\xff\x7f"):
        assert ends(version, wire, Reason.PROTOCOL_ERROR)


@clauses(v5="3.1.2-3", v311="3.1.2-3")
def test_mqtt_3_1_2_3_the_reserved_connect_flag(version: int) -> None:
    assert refuses(version, connect(version, text("c"), flags=3))


@clauses(v5="3.1.2-11 3.1.2-13", v311="3.1.2-11 3.1.2-13 3.1.2-15")
def test_mqtt_3_1_2_11_will_flags_without_a_will(version: int) -> None:
    """Will QoS 1, 2, 3 or will retain without the will flag."""
    for flags in (0x0A, 0x12, 0x1A, 0x22):
        assert refuses(version, connect(version, text("c"), flags=flags))


@clauses(v5="3.1.2-12", v311="3.1.2-14")
def test_mqtt_3_1_2_12_will_qos(version: int) -> None:
    """0, 1 and 2; not 3."""
    for qos in range(4):
        parts = [text("c"), *([b"\x00"] if version == V5 else []), text("w"), text("gone")]
        wire = connect(version, *parts, flags=0x06 | qos << 3)
        assert refuses(version, wire) == (qos == 3)


@clauses(v5="3.1.2-9 3.1.2-17 3.1.2-19", v311="3.1.2-9 3.1.2-19 3.1.2-21")
def test_mqtt_3_1_2_9_flags_without_their_fields(version: int) -> None:
    """A will without topic or payload, a user name or password that is not there."""
    no_properties = [b"\x00"] if version == V5 else []
    assert refuses(version, connect(version, text("c"), flags=0x06))
    assert refuses(version, connect(version, text("c"), *no_properties, flags=0x06))
    assert refuses(version, connect(version, text("c"), *no_properties, text("w"), flags=0x06))
    assert refuses(version, connect(version, text("c"), flags=0x82))
    assert refuses(version, connect(version, text("c"), text("u"), flags=0xC2))


@clauses(v5="3.1.2-16 3.1.2-18", v311="3.1.2-18 3.1.2-20")
def test_mqtt_3_1_2_16_fields_without_their_flags(version: int) -> None:
    assert refuses(version, connect(version, text("c"), text("user"), flags=0x02))
    assert refuses(version, connect(version, text("c"), text("u"), text("p"), flags=0x82))


@clauses(v311="3.1.2-22")
def test_mqtt_3_1_2_22_no_password_without_a_user_name(version: int) -> None:
    assert refuses(version, connect(version, text("c"), text("p"), flags=0x42))


@clauses(v5="3.1.3-1", v311="3.1.3-1")
def test_mqtt_3_1_3_1_fields_in_their_order(version: int) -> None:
    """Client id, will properties, will topic, will payload, user name, password."""
    no_properties = [b"\x00"] if version == V5 else []
    parts = [text("id"), *no_properties, text("w/t"), text("body"), text("user"), text("pass")]
    dialogue = Dialogue(version, is_connected=False)
    dialogue.say(connect(version, *parts, flags=0xCE))
    (event,) = dialogue.events
    assert isinstance(event, Connect)
    assert (event.client_id, event.user, event.password) == ("id", "user", b"pass")
    assert event.will == Will("w/t", b"body", 1)


@clauses(v5="3.1.3-3", v311="3.1.3-3 3.1.4-1")
def test_mqtt_3_1_3_3_a_client_id_is_present(version: int) -> None:
    """A CONNECT without payload is none."""
    assert refuses(version, connect(version))


@clauses(v5="3.1.3-4 3.1.3-8", v311="3.1.3-4")
def test_mqtt_3_1_3_4_the_client_id_is_a_string(version: int) -> None:
    """5.0 is told 0x85."""
    for bad in BAD_TEXTS:
        wire = connect(version, len(bad).to_bytes(2, "big") + bad)
        assert refuses(version, wire)
        if version == V5:
            told = Dialogue(version, is_connected=False).say(wire)
            assert told[3] == Reason.CLIENT_IDENTIFIER_NOT_VALID


@clauses(v5="3.1.3-11 3.1.3-12", v311="3.1.3-10 3.1.3-11")
def test_mqtt_3_1_3_11_will_topic_and_user_name_are_strings(version: int) -> None:
    no_properties = [b"\x00"] if version == V5 else []
    for bad in BAD_TEXTS:
        field = len(bad).to_bytes(2, "big") + bad
        will = [text("c"), *no_properties, field, text("gone")]
        assert refuses(version, connect(version, *will, flags=0x06))
        assert refuses(version, connect(version, text("c"), field, flags=0x82))
