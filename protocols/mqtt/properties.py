"""Properties of MQTT 5: which exist, where they may stand, how they are written [2.2.2]."""

from enum import IntEnum
from typing import Final

from protocols.mqtt.fields import (
    FieldReader,
    PacketError,
    encode_binary,
    encode_string,
    encode_varint,
    malformed,
    protocol_error,
)
from protocols.mqtt.packets import PacketProperties, PacketType, PropertyValue, Reason


class Property(IntEnum):
    """Identifiers [MQTT 5, table 2-4]."""

    PAYLOAD_FORMAT = 0x01
    MESSAGE_EXPIRY = 0x02
    CONTENT_TYPE = 0x03
    RESPONSE_TOPIC = 0x08
    CORRELATION_DATA = 0x09
    SUBSCRIPTION_IDENTIFIER = 0x0B
    SESSION_EXPIRY = 0x11
    ASSIGNED_CLIENT_IDENTIFIER = 0x12
    SERVER_KEEP_ALIVE = 0x13
    AUTHENTICATION_METHOD = 0x15
    AUTHENTICATION_DATA = 0x16
    REQUEST_PROBLEM_INFORMATION = 0x17
    WILL_DELAY = 0x18
    REQUEST_RESPONSE_INFORMATION = 0x19
    RESPONSE_INFORMATION = 0x1A
    SERVER_REFERENCE = 0x1C
    REASON_STRING = 0x1F
    RECEIVE_MAXIMUM = 0x21
    TOPIC_ALIAS_MAXIMUM = 0x22
    TOPIC_ALIAS = 0x23
    MAXIMUM_QOS = 0x24
    RETAIN_AVAILABLE = 0x25
    USER_PROPERTY = 0x26
    MAXIMUM_PACKET_SIZE = 0x27
    WILDCARD_SUBSCRIPTION_AVAILABLE = 0x28
    SUBSCRIPTION_IDENTIFIER_AVAILABLE = 0x29
    SHARED_SUBSCRIPTION_AVAILABLE = 0x2A


class Form(IntEnum):
    """How a value is written."""

    BYTE = 1
    U16 = 2
    U32 = 4
    VARINT = 5
    STRING = 6
    BINARY = 7
    PAIR = 8


P = Property

FORMS: Final[dict[int, Form]] = {
    P.PAYLOAD_FORMAT: Form.BYTE,
    P.MESSAGE_EXPIRY: Form.U32,
    P.CONTENT_TYPE: Form.STRING,
    P.RESPONSE_TOPIC: Form.STRING,
    P.CORRELATION_DATA: Form.BINARY,
    P.SUBSCRIPTION_IDENTIFIER: Form.VARINT,
    P.SESSION_EXPIRY: Form.U32,
    P.ASSIGNED_CLIENT_IDENTIFIER: Form.STRING,
    P.SERVER_KEEP_ALIVE: Form.U16,
    P.AUTHENTICATION_METHOD: Form.STRING,
    P.AUTHENTICATION_DATA: Form.BINARY,
    P.REQUEST_PROBLEM_INFORMATION: Form.BYTE,
    P.WILL_DELAY: Form.U32,
    P.REQUEST_RESPONSE_INFORMATION: Form.BYTE,
    P.RESPONSE_INFORMATION: Form.STRING,
    P.SERVER_REFERENCE: Form.STRING,
    P.REASON_STRING: Form.STRING,
    P.RECEIVE_MAXIMUM: Form.U16,
    P.TOPIC_ALIAS_MAXIMUM: Form.U16,
    P.TOPIC_ALIAS: Form.U16,
    P.MAXIMUM_QOS: Form.BYTE,
    P.RETAIN_AVAILABLE: Form.BYTE,
    P.USER_PROPERTY: Form.PAIR,
    P.MAXIMUM_PACKET_SIZE: Form.U32,
    P.WILDCARD_SUBSCRIPTION_AVAILABLE: Form.BYTE,
    P.SUBSCRIPTION_IDENTIFIER_AVAILABLE: Form.BYTE,
    P.SHARED_SUBSCRIPTION_AVAILABLE: Form.BYTE,
}

WILL: Final = 0
"""Stands for the will properties of CONNECT where a packet type is asked for."""

_ACK: Final = frozenset({P.REASON_STRING, P.USER_PROPERTY})
_MESSAGE: Final = frozenset(
    {
        P.PAYLOAD_FORMAT,
        P.MESSAGE_EXPIRY,
        P.CONTENT_TYPE,
        P.RESPONSE_TOPIC,
        P.CORRELATION_DATA,
        P.USER_PROPERTY,
    }
)

ALLOWED: Final[dict[int, frozenset[Property]]] = {
    WILL: _MESSAGE | {P.WILL_DELAY},
    PacketType.CONNECT: frozenset(
        {
            P.SESSION_EXPIRY,
            P.AUTHENTICATION_METHOD,
            P.AUTHENTICATION_DATA,
            P.REQUEST_PROBLEM_INFORMATION,
            P.REQUEST_RESPONSE_INFORMATION,
            P.RECEIVE_MAXIMUM,
            P.TOPIC_ALIAS_MAXIMUM,
            P.USER_PROPERTY,
            P.MAXIMUM_PACKET_SIZE,
        }
    ),
    PacketType.CONNACK: frozenset(
        {
            P.SESSION_EXPIRY,
            P.ASSIGNED_CLIENT_IDENTIFIER,
            P.SERVER_KEEP_ALIVE,
            P.AUTHENTICATION_METHOD,
            P.AUTHENTICATION_DATA,
            P.RESPONSE_INFORMATION,
            P.SERVER_REFERENCE,
            P.REASON_STRING,
            P.RECEIVE_MAXIMUM,
            P.TOPIC_ALIAS_MAXIMUM,
            P.MAXIMUM_QOS,
            P.RETAIN_AVAILABLE,
            P.USER_PROPERTY,
            P.MAXIMUM_PACKET_SIZE,
            P.WILDCARD_SUBSCRIPTION_AVAILABLE,
            P.SUBSCRIPTION_IDENTIFIER_AVAILABLE,
            P.SHARED_SUBSCRIPTION_AVAILABLE,
        }
    ),
    PacketType.PUBLISH: _MESSAGE | {P.SUBSCRIPTION_IDENTIFIER, P.TOPIC_ALIAS},
    PacketType.PUBACK: _ACK,
    PacketType.PUBREC: _ACK,
    PacketType.PUBREL: _ACK,
    PacketType.PUBCOMP: _ACK,
    PacketType.SUBSCRIBE: frozenset({P.SUBSCRIPTION_IDENTIFIER, P.USER_PROPERTY}),
    PacketType.SUBACK: _ACK,
    PacketType.UNSUBSCRIBE: frozenset({P.USER_PROPERTY}),
    PacketType.UNSUBACK: _ACK,
    PacketType.DISCONNECT: _ACK | {P.SESSION_EXPIRY, P.SERVER_REFERENCE},
    PacketType.AUTH: _ACK | {P.AUTHENTICATION_METHOD, P.AUTHENTICATION_DATA},
}

_NOT_ZERO: Final = frozenset(
    {P.SUBSCRIPTION_IDENTIFIER, P.RECEIVE_MAXIMUM, P.MAXIMUM_PACKET_SIZE}
)  # a topic alias of 0 has a reason code of its own: see ``connection``


PROPERTIES_MAX: Final = 8191
"""Of one packet: no more could be stored (32,767 bytes, four at least for each), and a packet of
the largest size has room for 400,000, which nobody else should wait for."""


def decode_properties(reader: FieldReader, packet_type: int) -> PacketProperties:
    """
    Read the property length and the properties that *packet_type* (or ``WILL``) may have.

    What cannot be read is malformed; what can be read and may not be there is judged after it.
    """
    length = reader.varint()
    if not length:
        return ()
    stop = reader.position + length
    if stop > reader.end:
        raise malformed("the properties are longer than the packet")
    outer_end, reader.end = reader.end, stop
    allowed = ALLOWED[packet_type]
    pairs: list[tuple[int, PropertyValue]] = []
    while reader.position < stop:
        identifier = reader.varint()
        form = FORMS.get(identifier)
        if form is None:
            raise malformed(f"there is no property 0x{identifier:02X}")
        pairs.append((identifier, _decode_value(reader, form)))
        if len(pairs) > PROPERTIES_MAX:
            raise PacketError(Reason.QUOTA_EXCEEDED, f"more than {PROPERTIES_MAX} properties")
    seen: set[int] = set()
    for identifier, value in pairs:
        if identifier not in allowed:
            raise _fault(packet_type, f"property 0x{identifier:02X} does not belong here")
        if identifier in seen and not _may_repeat(identifier, packet_type):
            raise protocol_error(f"property 0x{identifier:02X} stands twice")
        seen.add(identifier)
        _check_range(identifier, value)
    reader.end = outer_end
    return tuple(pairs)


def _may_repeat(identifier: int, packet_type: int) -> bool:
    if identifier == Property.USER_PROPERTY:
        return True
    # a server's PUBLISH lists every matching subscription [MQTT 5, 3.3.2.3.8]
    return identifier == Property.SUBSCRIPTION_IDENTIFIER and packet_type == PacketType.PUBLISH


def _decode_value(reader: FieldReader, form: Form) -> PropertyValue:
    if form is Form.BYTE:
        return reader.byte()
    if form is Form.U16:
        return reader.u16()
    if form is Form.U32:
        return reader.u32()
    if form is Form.VARINT:
        return reader.varint()
    if form is Form.STRING:
        return reader.string()
    if form is Form.BINARY:
        return reader.binary()
    name = reader.string()
    return name, reader.string()


def _check_range(identifier: int, value: PropertyValue) -> None:
    if FORMS[identifier] is Form.BYTE and value not in (0, 1):
        raise protocol_error(f"property 0x{identifier:02X} is neither 0 nor 1")
    if identifier in _NOT_ZERO and value == 0:
        raise protocol_error(f"property 0x{identifier:02X} is 0")  # [MQTT 5, 3.8.2.1.2]


def _fault(packet_type: int, text: str) -> PacketError:
    """[MQTT 5, 2.2.2.2] calls it malformed; peers do so in SUBSCRIBE and UNSUBSCRIBE only."""
    if packet_type in (PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE):
        return malformed(text)
    return protocol_error(text)


def encode_properties(properties: PacketProperties) -> bytes:
    """Property length and properties; one zero byte for none."""
    if not properties:
        return b"\x00"
    body = b"".join([encode_property(identifier, value) for identifier, value in properties])
    return encode_varint(len(body)) + body


def encode_property(identifier: int, value: PropertyValue) -> bytes:
    """One property; *value* has the type that its form asks for."""
    form = FORMS[identifier]
    head = bytes((identifier,))
    if isinstance(value, int):
        if form is Form.VARINT:
            return head + encode_varint(value)
        return head + value.to_bytes(int(form), "big")
    if isinstance(value, str):
        return head + encode_string(value)
    if isinstance(value, bytes):
        return head + encode_binary(value)
    return head + encode_string(value[0]) + encode_string(value[1])


def find_int(properties: PacketProperties, identifier: int, default: int) -> int:
    """The value of an integer property, or *default* if it is absent."""
    for known, value in properties:
        if known == identifier and isinstance(value, int):
            return value
    return default


def is_as_it_says(properties: PacketProperties, payload: bytes) -> bool:
    """Whether a payload that is told to be text is well-formed UTF-8 [MQTT 5, 3.3.2.3.2]."""
    if find_int(properties, Property.PAYLOAD_FORMAT, 0):
        try:
            payload.decode()
        except UnicodeDecodeError:
            return False
    return True


def find_str(properties: PacketProperties, identifier: int) -> str | None:
    for known, value in properties:
        if known == identifier and isinstance(value, str):
            return value
    return None


def find_bytes(properties: PacketProperties, identifier: int) -> bytes | None:
    for known, value in properties:
        if known == identifier and isinstance(value, bytes):
            return value
    return None
