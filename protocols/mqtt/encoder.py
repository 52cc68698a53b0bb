"""Packets to bytes, for 3.1, 3.1.1 and 5.0; the other half of ``codec``."""

from typing import Final

from protocols.mqtt.fields import encode_binary, encode_string, encode_varint
from protocols.mqtt.packets import (
    V5,
    V31,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
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
)
from protocols.mqtt.properties import encode_properties

PINGRESP: Final = b"\xd0\x00"
PUBACK_HEAD: Final = b"\x40\x02"

CONNACK_CODES: Final[dict[int, int]] = {
    # what 3.x can say of a refusal [MQTT 3.1.1, table 3.1]
    Reason.SUCCESS: 0,
    Reason.UNSUPPORTED_PROTOCOL_VERSION: 1,
    Reason.CLIENT_IDENTIFIER_NOT_VALID: 2,
    Reason.BAD_USER_NAME_OR_PASSWORD: 4,
    Reason.NOT_AUTHORIZED: 5,
    Reason.BANNED: 5,
    Reason.PACKET_TOO_LARGE: 5,  # trying again will not help: as Mosquitto
    Reason.TOPIC_NAME_INVALID: 5,
    Reason.QOS_NOT_SUPPORTED: 5,
    Reason.RETAIN_NOT_SUPPORTED: 5,
}
CONNACK_UNAVAILABLE: Final = 3
"""3.x for every refusal that ``CONNACK_CODES`` lacks: server unavailable."""


def publish_head(first: int, topic: bytes, tail_size: int) -> bytes:
    """
    What stands before the packet id of a PUBLISH, so that a fan-out differs only in the id.

    Args:
        first: its first byte.
        tail_size: bytes behind the packet id: properties (version 5) and payload.
    """
    length = 2 + len(topic) + (2 if first & 6 else 0) + tail_size
    size = len(topic).to_bytes(2, "big")
    return b"".join((bytes((first,)), encode_varint(length), size, topic))


def publish_again(packet: bytes) -> bytes:
    """The same PUBLISH with DUP set [MQTT-3.3.1-1]."""
    return bytes((packet[0] | 8,)) + packet[1:]


def encode_puback_run(packet_ids: bytes) -> bytes:
    """Short PUBACKs of all these ids, two bytes each, in order."""
    if len(packet_ids) == 2:
        return PUBACK_HEAD + packet_ids
    count = len(packet_ids) >> 1
    packets = bytearray(PUBACK_HEAD + b"\0\0") * count
    packets[2::4], packets[3::4] = packet_ids[::2], packet_ids[1::2]
    return bytes(packets)


def encode_ack(first: int, packet_id: int, reason: int, version: int) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP in its shortest form; *first* is its first byte."""
    if reason and version == V5:
        return bytes((first, 3, packet_id >> 8, packet_id & 255, reason))
    return bytes((first, 2, packet_id >> 8, packet_id & 255))


def _packet(first: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return bytes((first,)) + encode_varint(len(body)) + body


def _u16(value: int) -> bytes:
    return value.to_bytes(2, "big")


def encode_packet(packet: Packet, version: int) -> bytes:
    """Any packet, either direction; properties are left out for 3.x."""
    if isinstance(packet, Publish):
        tail = packet.payload
        if version == V5:
            tail = encode_properties(packet.properties) + tail
        first = 0x30 | packet.qos << 1 | (1 if packet.retain else 0)
        head = publish_head(first, packet.topic.encode(), len(tail))
        whole = head + (_u16(packet.packet_id) if packet.qos else b"") + tail
        return publish_again(whole) if packet.dup else whole
    if isinstance(packet, Puback | Pubrec | Pubrel | Pubcomp):
        return _encode_full_ack(packet, version)
    if isinstance(packet, Connack):
        return _encode_connack(packet, version)
    if isinstance(packet, Suback | Unsuback):
        return _encode_subscribe_ack(packet, version)
    if isinstance(packet, Pingresp):
        return PINGRESP
    if isinstance(packet, Disconnect | Auth):
        return _encode_reason(packet, version)
    return _encode_request(packet, version)


ACK_FIRST: Final[dict[type[Packet], int]] = {
    Puback: 0x40,
    Pubrec: 0x50,
    Pubrel: 0x62,
    Pubcomp: 0x70,
}


def _encode_full_ack(packet: Puback | Pubrec | Pubrel | Pubcomp, version: int) -> bytes:
    first = ACK_FIRST[type(packet)]
    if version != V5 or not packet.properties:
        return encode_ack(first, packet.packet_id, packet.reason, version)
    properties = encode_properties(packet.properties)
    return _packet(first, _u16(packet.packet_id), bytes((packet.reason,)), properties)


def _encode_connack(packet: Connack, version: int) -> bytes:
    flags = 1 if packet.session_present and version != V31 else 0
    if version == V5:
        return _packet(0x20, bytes((flags, packet.reason)), encode_properties(packet.properties))
    code = CONNACK_CODES.get(packet.reason, CONNACK_UNAVAILABLE)
    return bytes((0x20, 2, flags, code))


def _encode_subscribe_ack(packet: Suback | Unsuback, version: int) -> bytes:
    packet_id = _u16(packet.packet_id)
    if isinstance(packet, Unsuback):
        if version != V5:
            return _packet(0xB0, packet_id)
        return _packet(0xB0, packet_id, encode_properties(packet.properties), bytes(packet.reasons))
    if version == V5:
        return _packet(0x90, packet_id, encode_properties(packet.properties), bytes(packet.reasons))
    return _packet(0x90, packet_id, bytes([min(reason, 0x80) for reason in packet.reasons]))


def _encode_reason(packet: Disconnect | Auth, version: int) -> bytes:
    first = 0xE0 if isinstance(packet, Disconnect) else 0xF0
    if version != V5 or (not packet.reason and not packet.properties):
        return bytes((first, 0))
    if not packet.properties:
        return (
            bytes((first, 1, packet.reason))
            if first == 0xE0
            else bytes((first, 2, packet.reason, 0))
        )
    return _packet(first, bytes((packet.reason,)), encode_properties(packet.properties))


def _encode_request(packet: Packet, version: int) -> bytes:
    """What only a client sends."""
    if isinstance(packet, Connect):
        return _encode_connect(packet)
    properties = b""
    if isinstance(packet, Subscribe):
        if version == V5:
            properties = encode_properties(packet.properties)
        items = [
            encode_string(item.topic_filter) + bytes((_subscribe_options(item, version),))
            for item in packet.items
        ]
        return _packet(0x82, _u16(packet.packet_id), properties, *items)
    if isinstance(packet, Unsubscribe):
        if version == V5:
            properties = encode_properties(packet.properties)
        filters = [encode_string(topic_filter) for topic_filter in packet.topic_filters]
        return _packet(0xA2, _u16(packet.packet_id), properties, *filters)
    return b"\xc0\x00"


def _subscribe_options(item: SubscribeItem, version: int) -> int:
    if version != V5:
        return item.qos
    flags = item.qos | item.no_local << 2 | item.retain_as_published << 3
    return flags | item.retain_handling << 4


def _encode_connect(packet: Connect) -> bytes:
    is_v5, will = packet.version == V5, packet.will
    flags = 2 if packet.clean_start else 0
    parts = [
        encode_properties(packet.properties) if is_v5 else b"",
        encode_string(packet.client_id),
    ]
    if will is not None:
        flags |= 4 | will.qos << 3 | (0x20 if will.retain else 0)
        parts.append(encode_properties(will.properties) if is_v5 else b"")
        parts += [encode_string(will.topic), encode_binary(will.payload)]
    if packet.user is not None:
        flags |= 0x80
        parts.append(encode_string(packet.user))
    if packet.password is not None:
        flags |= 0x40
        parts.append(encode_binary(packet.password))
    name = "MQIsdp" if packet.version == V31 else "MQTT"
    head = encode_string(name) + bytes((packet.version, flags)) + _u16(packet.keep_alive_s)
    return _packet(0x10, head, *parts)
