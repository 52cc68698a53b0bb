"""The form of each packet behind CONNECT, and time: without a socket."""

from protocols.mqtt.encoder import encode_packet
from protocols.mqtt.fields import encode_varint
from protocols.mqtt.packets import (
    V5,
    Disconnect,
    Puback,
    Publish,
    Pubrec,
    Pubrel,
    Reason,
    Unsubscribe,
)
from protocols.mqtt.properties import Property
from tests.conformance.clauses import clauses
from tests.conformance.dialogue import (
    LIMITS,
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


# ── PUBLISH, SUBSCRIBE and their answers ────────────────────────────────────────────────


@clauses(v5="3.3.1-2", v311="3.3.1-2")
def test_mqtt_3_3_1_2_dup_at_qos_0(version: int) -> None:
    assert ends(version, publish(version, b"t", first=0x38), MALFORMED)


@clauses(v5="3.3.1-4", v311="3.3.1-4")
def test_mqtt_3_3_1_4_qos_3(version: int) -> None:
    assert ends(version, publish(version, b"t", first=0x36, packet_id=b"\0\1"), MALFORMED)


@clauses(v5="3.3.2-2 4.7.0-1", v311="3.3.2-2 4.7.1-1")
def test_mqtt_3_3_2_2_no_wildcards_in_a_topic_name(version: int) -> None:
    """Nor in the topic of a will."""
    for topic in (b"a/#", b"+", b"a/+/b", b"#"):
        reasons = (MALFORMED, PROTOCOL, Reason.TOPIC_NAME_INVALID)
        assert ends(version, publish(version, topic), *reasons)
        no_properties = [b"\x00"] if version == V5 else []
        will = [text("c"), *no_properties, text(topic.decode()), text("gone")]
        assert refuses(version, connect(version, *will, flags=0x06))


@clauses(v5="4.7.3-1", v311="4.7.3-1")
def test_mqtt_4_7_3_1_an_empty_name_or_filter(version: int) -> None:
    assert ends(version, publish(version, b""), MALFORMED, PROTOCOL)
    assert ends(version, request(version, 0x82, b"", 0), MALFORMED)
    assert ends(version, request(version, 0xA2, b""), MALFORMED)


@clauses(v5="3.3.2-8 3.3.2-9")
def test_mqtt_3_3_2_8_aliases_out_of_range(version: int) -> None:
    """0 and what is above our maximum: 0x94."""
    for alias in (0, LIMITS.topic_alias_max + 1, 65_535):
        wire = encode_packet(Publish("t", b"", properties=((0x23, alias),)), version)
        assert ends(version, wire, Reason.TOPIC_ALIAS_INVALID)


@clauses(v5="3.3.2-12")
def test_mqtt_3_3_2_12_aliases_up_to_our_maximum(version: int) -> None:
    dialogue = Dialogue(version)
    for alias in range(1, LIMITS.topic_alias_max + 1):
        named = Publish(f"t/{alias}", b"", properties=((0x23, alias),))
        dialogue.say(encode_packet(named, version))
        again = Publish("", b"", 2, packet_id=alias, properties=((0x23, alias),))
        dialogue.say(encode_packet(again, version))
        assert isinstance(dialogue.events[-1], Publish)
        assert dialogue.events[-1].topic == f"t/{alias}"


@clauses(v5="3.3.2-7")
def test_mqtt_3_3_2_7_aliases_end_with_their_connection(version: int) -> None:
    """One that another connection named stands for nothing."""
    wire = encode_packet(Publish("t", b"", properties=((0x23, 1),)), version)
    Dialogue(version).say(wire)
    assert ends(
        version, encode_packet(Publish("", b"", properties=((0x23, 1),)), version), PROTOCOL
    )


@clauses(v5="3.3.2-13 3.3.2-14 3.3.2-19")
def test_mqtt_3_3_2_13_response_topic_and_content_type_are_strings(version: int) -> None:
    """And a response topic has no wildcards."""
    for identifier in (0x08, 0x03):
        properties = bytes((identifier, 0, 1, 0xFF))
        wire = packet(0x30, text("t"), encode_varint(len(properties)), properties)
        assert ends(version, wire, MALFORMED)
    for topic in ("a/#", "+", "a/+"):
        publish_to = Publish("t", b"", properties=((int(Property.RESPONSE_TOPIC), topic),))
        assert ends(version, encode_packet(publish_to, version), PROTOCOL)


@clauses(v5="3.3.4-6")
def test_mqtt_3_3_4_6_no_subscription_identifier_from_a_client(version: int) -> None:
    wire = encode_packet(Publish("t", b"", properties=((0x0B, 1),)), version)
    assert ends(version, wire, PROTOCOL)


@clauses(v5="3.3.4-7")
def test_mqtt_3_3_4_7_over_our_receive_maximum(version: int) -> None:
    """QoS 1 and QoS 2 count; one more than allowed unanswered is 0x93."""
    for qos in (1, 2):
        dialogue = Dialogue(version)
        for number in range(1, LIMITS.receive_max + 1):
            dialogue.say(encode_packet(Publish("t", b"", qos, packet_id=number), version))
        assert not dialogue.is_closed
        wire = encode_packet(Publish("t", b"", qos, packet_id=100), version)
        assert dialogue.is_ended_by(wire, Reason.RECEIVE_MAXIMUM_EXCEEDED)


@clauses(v5="3.4.2-1 3.5.2-1 3.6.2-1 3.7.2-1")
def test_mqtt_3_4_2_1_reasons_of_acknowledgements(version: int) -> None:
    """One that is not of the table closes."""
    for first in (0x40, 0x50, 0x62, 0x70):
        assert ends(version, packet(first, b"\x00\x01\x01"), MALFORMED, PROTOCOL)


@clauses(v5="3.8.3-2 3.10.3-2", v311="3.8.3-3 3.10.3-2")
def test_mqtt_3_8_3_2_requests_without_a_filter(version: int) -> None:
    properties = b"\x00" if version == V5 else b""
    for first in (0x82, 0xA2):
        assert ends(version, packet(first, b"\x00\x01", properties), MALFORMED, PROTOCOL)


@clauses(v5="3.8.3-5", v311="3.8.3-4")
def test_mqtt_3_8_3_5_reserved_option_bits(version: int) -> None:
    """QoS 3, Retain Handling 3, and the bits that mean nothing in this version."""
    bad = (0x03, 0x30, 0x40, 0x80) if version == V5 else (0x03, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80)
    for options in bad:
        assert ends(version, request(version, 0x82, b"a", options), MALFORMED, PROTOCOL)


@clauses(v5="3.8.3-4")
def test_mqtt_3_8_3_4_no_local_on_a_shared_subscription(version: int) -> None:
    assert ends(version, request(version, 0x82, b"$share/g/a", 0x04), PROTOCOL)


@clauses(v5="4.7.1-1 4.7.1-2", v311="4.7.1-2 4.7.1-3")
def test_mqtt_4_7_1_1_where_wildcards_stand(version: int) -> None:
    for bad in (b"a#", b"#/a", b"a/#/b", b"a/b#", b"a+", b"+a/b", b"a/+b"):
        assert ends(version, request(version, 0x82, bad, 0), MALFORMED), bad
    for good in (b"#", b"a/#", b"+", b"+/a", b"a/+", b"+/+/#", b"/+"):
        dialogue = Dialogue(version)
        dialogue.say(request(version, 0x82, good, 0))
        assert not dialogue.is_closed, good


@clauses(v5="4.8.2-1 4.8.2-2")
def test_mqtt_4_8_2_1_the_form_of_a_share(version: int) -> None:
    for bad in (b"$share/", b"$share//a", b"$share/g", b"$share/g/", b"$share/+/a", b"$share/g#/a"):
        assert ends(version, request(version, 0x82, bad, 0), MALFORMED, PROTOCOL), bad


@clauses(v5="4.7.3-3", v311="4.7.3-3")
def test_mqtt_4_7_3_3_names_of_65535_bytes(version: int) -> None:
    """As long as the length field can say."""
    dialogue = Dialogue(version)
    dialogue.connection._limits = LIMITS._replace(packet_bytes_max=100_000)
    dialogue.say(publish(version, b"x" * 65_535, first=0x34, packet_id=b"\0\1"))
    (event,) = dialogue.events
    assert isinstance(event, Publish)
    assert len(event.topic) == 65_535


@clauses(v5="3.2.2-15")
def test_mqtt_3_2_2_15_a_packet_over_our_maximum(version: int) -> None:
    """By its length, before its body; by one byte, behind one that just fits."""
    head = b"\x30" + encode_varint(LIMITS.packet_bytes_max)
    assert ends(version, head, Reason.PACKET_TOO_LARGE)
    start = b"\x00\x01a" + (b"\x00" if version == V5 else b"")
    room = LIMITS.packet_bytes_max - 3 - len(start)
    fits, is_over = (packet(0x30, start, b"x" * size) for size in (room, room + 1))
    assert len(fits) == LIMITS.packet_bytes_max
    dialogue = Dialogue(version)
    assert dialogue.say(fits + fits) == b""
    assert not dialogue.is_closed
    assert dialogue.is_ended_by(is_over, Reason.PACKET_TOO_LARGE)
    assert Dialogue(version).is_ended_by(fits + is_over, Reason.PACKET_TOO_LARGE)


@clauses(v5="4.13.1-1", v311="4.8.0-1")
def test_mqtt_4_13_1_1_errors_close(version: int) -> None:
    """What only a server sends, what nobody sends, bytes too many and too few."""
    for wire in (
        packet(0x20, b"\x00\x00"),
        packet(0x90, b"\x00\x01\x00"),
        packet(0xB0, b"\x00\x01"),
        packet(0x00),
        packet(0x40, b"\x00"),
    ):
        assert ends(version, wire, MALFORMED, PROTOCOL), wire
    for wire in (packet(0xC0, b"\x00"), packet(0xD0)):
        dialogue = Dialogue(version)
        dialogue.say(wire)
        assert dialogue.is_closed, wire


# ── PINGREQ, DISCONNECT, time ───────────────────────────────────────────────────────────


@clauses(v5="3.12.4-1", v311="3.12.4-1")
def test_mqtt_3_12_4_1_a_ping_is_answered(version: int) -> None:
    assert Dialogue(version).say(b"\xc0\x00" * 2) == b"\xd0\x00" * 2


@clauses(v5="3.1.2-22", v311="3.1.2-24")
def test_mqtt_3_1_2_22_silent_for_too_long(version: int) -> None:
    """Closed at 1.5 times the keep alive after the last whole packet, not before."""
    dialogue = Dialogue(version, keep_alive_s=10)
    assert dialogue.wait(14.9) == b""
    dialogue.say(b"\xc0\x00", now=14.9)
    dialogue.say(b"\xc0", now=29.0)  # half a packet is none
    assert dialogue.wait(29.8) == b""
    assert not dialogue.is_closed
    told = dialogue.wait(29.91)
    assert dialogue.is_closed
    assert told == (b"\xe0\x01\x8d" if version == V5 else b"")


@clauses(v5="3.2.2-22")
def test_mqtt_3_2_2_22_no_keep_alive_no_limit(version: int) -> None:
    dialogue = Dialogue(version, keep_alive_s=0)
    assert dialogue.connection.deadline is None
    assert dialogue.wait(1e9) == b""
    assert not dialogue.is_closed


@clauses(v5="3.14.2-1")
def test_mqtt_3_14_2_1_reasons_of_disconnect(version: int) -> None:
    """A client's are of the table, and of those that a client may send."""
    for reason in (0x01, 0x03, 0x8B, 0x8E, 0xA3):
        dialogue = Dialogue(version)
        dialogue.say(packet(0xE0, bytes((reason,))))
        assert dialogue.is_closed
        assert not any(isinstance(event, Disconnect) for event in dialogue.events)
    dialogue = Dialogue(version)
    dialogue.say(packet(0xE0, b"\x04"))
    assert dialogue.events == [Disconnect(4)]


@clauses(v5="3.14.4-1", v311="3.14.4-3")
def test_mqtt_3_14_4_1_nothing_behind_disconnect(version: int) -> None:
    """What a client sends behind it is not processed, and it gets nothing more."""
    dialogue = Dialogue(version)
    told = dialogue.say(b"\xe0\x00" + encode_packet(Publish("t", b""), version) + b"\xc0\x00")
    assert told == b""
    assert dialogue.events == [Disconnect()]
    assert dialogue.is_closed
    dialogue.connection.send(Puback(1))
    assert dialogue.connection.data_to_send() == b""


@clauses(v5="2.2.1-5", v311="2.3.1-6")
def test_mqtt_2_2_1_5_acknowledgements_are_told_apart(version: int) -> None:
    """Each reaches the session with the id it came with."""
    dialogue = Dialogue(version)
    for one in (Pubrec(300), Pubrel(301)):
        dialogue.say(encode_packet(one, version))
        assert dialogue.events[-1] == one
    dialogue.say(encode_packet(Unsubscribe(65_535, ("a",)), version))
    assert dialogue.events[-1] == Unsubscribe(65_535, ("a",))
