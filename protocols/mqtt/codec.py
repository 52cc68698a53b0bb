"""
Bytes to packets, for 3.1, 3.1.1 and 5.0: whole buffers, no I/O, no state.

Two ways in. ``take_publishes`` and ``take_pubacks`` eat runs of what comes by the hundred
thousand, without making a packet of each; ``decode_packet`` makes any packet, and is the one
that explains what is wrong with one. Plain typed functions, so that mypyc can compile them.
"""

from typing import Final

from protocols.canonical import Head
from protocols.mqtt.fields import (
    FieldReader,
    PacketError,
    SilentError,
    is_text_clean,
    malformed,
    protocol_error,
)
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
from protocols.mqtt.properties import (
    WILL,
    Property,
    decode_properties,
    find_int,
    find_str,
)
from protocols.mqtt.topics import is_valid_name, parse_filter

BRIDGE: Final = 0x80
"""Bit of the protocol level by which a Mosquitto that bridges says so (its ``try_private``)."""

# ── frames ──────────────────────────────────────────────────────────────────────────────


def find_body(data: bytes, position: int) -> tuple[int, int]:
    """
    Where the body of the packet at *position* begins and ends; ``(0, 0)``: cannot tell yet.

    The end may lie beyond *data*. Raises SilentError for a fifth length byte [MQTT 5, 2.1.4].
    """
    length = shift = 0
    for index in range(position + 1, min(position + 5, len(data))):
        byte = data[index]
        length |= (byte & 127) << shift
        if byte < 128:
            return index + 1, index + 1 + length
        shift += 7
    if len(data) - position > 4:
        text = "the remaining length has more than four bytes"
        raise SilentError(Reason.MALFORMED_PACKET, text)
    return 0, 0


def is_padded(data: bytes, position: int, start: int) -> bool:
    """Whether the length of the packet at *position* has more bytes than it needs."""
    return start - position > 2 and data[start - 1] == 0


def take_publishes(
    data: bytes,
    position: int,
    table: dict[bytes, Head],
    is_v5: bool,
    bytes_max: int,
    spans: list[tuple[Head, int]],
    bodies: list[bytes],
    packet_ids: list[bytes],
) -> int:
    """
    Eat the run of PUBLISH packets at *position* that share their first byte.

    Each adds a body and, above QoS 0, its two packet id bytes; *spans* gets a head and the index
    of its first body whenever the topic changes. The run ends at a topic that *table* lacks, at
    properties, at a packet id of 0 and at whatever is not whole or not right: ``decode_packet``
    then says what it is. Returns the position behind the last packet eaten.

    One loop and no calls into Python: this is what a publisher costs.
    """
    end_of_data = len(data)
    first = data[position]
    has_id = first & 6 != 0
    last: Head | None = None
    prefix, prefix_size, total = b"", 0, 0  # of the packet before: most are alike but for the body
    while end_of_data - position > 3:
        if prefix and data.startswith(prefix, position):
            stop, end = position + prefix_size, position + total
            if end > end_of_data:
                break
        else:
            if data[position] != first:
                break
            length = data[position + 1]
            start = position + 2
            if length > 127:
                second = data[start]
                start += 1
                length += (second << 7) - 128
                if length > bytes_max or not second:
                    break
                if second > 127:
                    third = data[start]
                    start += 1
                    length += (third << 14) - 16384
                    if third > 127 or length > bytes_max or not third:
                        break  # over 2 MiB: one at a time
            end = start + length
            if end > end_of_data or end - position > bytes_max or end_of_data - start < 2:
                break
            stop = start + 2 + (data[start] << 8 | data[start + 1])
            head = table.get(data[start + 2 : stop])
            if head is None or stop + (2 if has_id else 0) + (1 if is_v5 else 0) > end:
                break
            if head is not last:
                spans.append((head, len(bodies)))
                last = head
            prefix = data[position:stop]
            prefix_size, total = stop - position, end - position
        body = stop
        if has_id:
            body += 2
            packet_id = data[stop:body]
            if packet_id == b"\0\0":
                break
        if is_v5:
            if data[body] != 0:
                break
            body += 1
        if has_id:
            packet_ids.append(packet_id)
        bodies.append(data[body:end])
        position = end
    return position


def take_pubacks(data: bytes, position: int, packet_ids: list[int]) -> int:
    """Eat the run of short PUBACKs at *position*; returns the position behind it."""
    stop = len(data) - 3
    while position < stop and data[position] == 0x40 and data[position + 1] == 2:
        packet_id = data[position + 2] << 8 | data[position + 3]
        if not packet_id:
            break
        packet_ids.append(packet_id)
        position += 4
    return position


# ── in ──────────────────────────────────────────────────────────────────────────────────

FLAGS: Final = {PacketType.PUBREL: 2, PacketType.SUBSCRIBE: 2, PacketType.UNSUBSCRIBE: 2}
"""Low nibble of the first byte; 0 where none is given, free in PUBLISH [MQTT 5, table 2-2]."""

ACK_REASONS: Final[dict[int, frozenset[int]]] = {
    # [MQTT 5, tables 3-4, 3-5, 3-6, 3-7]
    PacketType.PUBACK: frozenset((0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99)),
    PacketType.PUBREC: frozenset((0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99)),
    PacketType.PUBREL: frozenset((0x00, 0x92)),
    PacketType.PUBCOMP: frozenset((0x00, 0x92)),
}

DISCONNECT_REASONS: Final = frozenset(
    # [MQTT 5, table 3-10, and 0x8C by 2.4]; which of them a client may send: ``states``
    (0x00, 0x04, *range(0x80, 0x84), 0x87, 0x89, *range(0x8B, 0x91), *range(0x93, 0xA3))
)


SILENT_IF_LONG: Final = frozenset((PacketType.PINGREQ, PacketType.PINGRESP))


def decode_packet(data: bytes, position: int, start: int, end: int, version: int) -> Packet:
    """
    The packet whose first byte is at *position* and whose body is ``data[start:end]``.

    Raises PacketError with the reason code that a version 5 peer is told.
    """
    if version == V5 and is_padded(data, position, start):  # 3.1.1 asks it of nobody
        raise malformed("the remaining length is longer than it need be")  # [MQTT-1.5.5-1]
    packet_type, flags = data[position] >> 4, data[position] & 15
    if packet_type == PacketType.PUBLISH:
        return _decode_publish(flags, FieldReader(data, start, end), version)
    if packet_type == 0 or (packet_type == PacketType.AUTH and version != V5):
        raise protocol_error(f"there is no packet type {packet_type}")
    if version == V31:  # CONNECT's flags meant nothing, what has an answer could be a repeat
        flags &= 0 if packet_type == PacketType.CONNECT else 7
    if flags != FLAGS.get(PacketType(packet_type), 0):
        raise malformed(f"flags {flags:04b} of packet type {packet_type}")
    reader = FieldReader(data, start, end)
    packet = _decode_body(packet_type, reader, version)
    if reader.remaining and packet_type in SILENT_IF_LONG:
        raise SilentError(Reason.MALFORMED_PACKET, f"{reader.remaining} bytes too many")
    reader.expect_end()
    return packet


def _decode_body(packet_type: int, reader: FieldReader, version: int) -> Packet:
    if packet_type == PacketType.CONNECT:
        return _decode_connect(reader)
    if packet_type == PacketType.CONNACK:
        return _decode_connack(reader, version)
    if PacketType.PUBACK <= packet_type <= PacketType.PUBCOMP:
        return _decode_ack(packet_type, reader, version)
    if packet_type == PacketType.SUBSCRIBE:
        return _decode_subscribe(reader, version)
    if packet_type == PacketType.UNSUBSCRIBE:
        return _decode_unsubscribe(reader, version)
    if packet_type in (PacketType.SUBACK, PacketType.UNSUBACK):
        return _decode_subscribe_ack(packet_type, reader, version)
    if packet_type == PacketType.PINGREQ:
        return Pingreq()
    if packet_type == PacketType.PINGRESP:
        return Pingresp()
    reason, properties = 0, PacketProperties()
    if version == V5 and reader.remaining:
        reason = reader.byte()
        if reader.remaining:
            properties = decode_properties(reader, packet_type)
    if packet_type == PacketType.AUTH:
        if reason not in (0x00, 0x18, 0x19):
            raise protocol_error(f"AUTH with reason 0x{reason:02X}")
        return Auth(reason, properties)
    if reason not in DISCONNECT_REASONS:
        raise SilentError(Reason.PROTOCOL_ERROR, f"DISCONNECT with reason 0x{reason:02X}")
    return Disconnect(reason, properties)


MISNAMED: Final = 255
"""In place of a protocol level: one version's, under the name of another."""


VERSION_BYTES: Final = 7
"""Of a CONNECT's body, behind which it is known whether it speaks 5.0."""


def peek_version(data: bytes, start: int, end: int) -> int:
    """Protocol level that a CONNECT names; 0 if its protocol name is none of MQTT's."""
    name = data[start : min(start + 8, end)]
    if name[:6] == b"\x00\x04MQTT" and end - start > 6:
        level = data[start + 6]
        if level & ~BRIDGE == V31:
            return MISNAMED
        return V311 if level == V311 | BRIDGE else level
    if name == b"\x00\x06MQIsdp" and end - start > 8:
        level = data[start + 8]
        if level & ~BRIDGE == V31:
            return V31
        return MISNAMED if level in (V311, V5) else level
    return 0


def _decode_connect(reader: FieldReader) -> Connect:
    name, level = reader.string(), reader.byte()
    version = level & ~BRIDGE
    if (name, version) not in (("MQIsdp", V31), ("MQTT", V311), ("MQTT", V5)):
        raise protocol_error(f"protocol {name!r} level {version}")
    if reader.remaining < 3:
        raise SilentError(Reason.MALFORMED_PACKET, "CONNECT ends before its keep alive")
    flags, keep_alive_s = reader.byte(), reader.u16()
    has_user, has_password, has_will = flags & 0x80, flags & 0x40, flags & 0x04
    will_qos = flags >> 3 & 3
    if flags & 1 and version != V31:
        raise malformed("the reserved connect flag is set")  # [MQTT-3.1.2-3]
    if will_qos == 3:
        raise SilentError(Reason.MALFORMED_PACKET, "a will of QoS 3")  # [MQTT-3.1.2-12]
    if not has_will and flags & 0x38:
        raise malformed("will flags without a will")  # [MQTT-3.1.2-11, -13]
    if has_password and not has_user and version != V5:
        raise malformed("a password without a user name")  # [MQTT 3.1.1, 3.1.2-22]
    properties = decode_properties(reader, PacketType.CONNECT) if version == V5 else ()
    client_id = _decode_client_id(reader)
    will = None
    if has_will:
        will_properties = decode_properties(reader, WILL) if version == V5 else ()
        will_topic, payload = reader.string(), reader.binary()
        _check_message(will_topic, will_properties)
        will = Will(will_topic, payload, will_qos, bool(flags & 0x20), will_properties)
    try:
        user = reader.string() if has_user else None
        password = reader.binary() if has_password else None
    except PacketError as error:
        raise SilentError(error.reason, str(error)) from None
    if user is not None and not is_text_clean(user):
        raise SilentError(Reason.MALFORMED_PACKET, "control characters in the user name")
    if (
        find_str(properties, Property.AUTHENTICATION_METHOD) is None
        and any(identifier == Property.AUTHENTICATION_DATA for identifier, _ in properties)
    ):  # fmt: skip
        raise protocol_error("authentication data without a method")  # [MQTT 5, 3.1.2.11.10]
    clean = bool(flags & 2)
    is_bridge = level != version
    return Connect(
        version, client_id, clean, keep_alive_s, user, password, will, properties, is_bridge
    )


def _decode_client_id(reader: FieldReader) -> str:
    data = reader.binary()
    try:
        client_id = data.decode("utf-8")
    except UnicodeDecodeError:
        client_id = "\x00"
    if not is_text_clean(client_id):
        raise PacketError(Reason.CLIENT_IDENTIFIER_NOT_VALID, "no clean text in the client id")
    return client_id


def _check_message(topic: str, properties: PacketProperties) -> None:
    if not is_valid_name(topic):
        raise protocol_error("the topic name is empty, too deep or has wildcards")
    response_topic = find_str(properties, Property.RESPONSE_TOPIC)
    if response_topic is not None and not is_valid_name(response_topic):
        raise protocol_error("the response topic is no topic name")  # [MQTT-3.3.2-14]


def _decode_connack(reader: FieldReader, version: int) -> Connack:
    flags, reason = reader.byte(), reader.byte()
    if flags > 1:
        raise malformed("reserved acknowledge flags are set")
    properties = decode_properties(reader, PacketType.CONNACK) if version == V5 else ()
    return Connack(reason, bool(flags), properties)


def _decode_publish(flags: int, reader: FieldReader, version: int) -> Publish:
    qos, dup, retain = flags >> 1 & 3, bool(flags & 8), bool(flags & 1)
    if qos == 3:
        raise malformed("QoS 3")  # [MQTT-3.3.1-4]
    if dup and not qos:
        raise malformed("DUP with QoS 0")  # [MQTT-3.3.1-2]
    topic = reader.string()
    packet_id = reader.u16() if qos else 0
    if qos and not packet_id:
        raise protocol_error("packet identifier 0")  # [MQTT-2.2.1-3]
    properties = decode_properties(reader, PacketType.PUBLISH) if version == V5 else ()
    payload = reader.take(reader.remaining)
    if topic or find_int(properties, Property.TOPIC_ALIAS, -1) < 0:
        if not topic and version == V5:
            raise protocol_error("neither a topic nor an alias")
        if not is_valid_name(topic):
            raise malformed("the topic name is empty, too deep or has wildcards")
    response_topic = find_str(properties, Property.RESPONSE_TOPIC)
    if response_topic is not None and not is_valid_name(response_topic):
        raise protocol_error("the response topic is no topic name")
    return Publish(topic, payload, qos, retain, dup, packet_id, properties)


def _decode_ack(packet_type: int, reader: FieldReader, version: int) -> Packet:
    packet_id, reason, properties = reader.u16(), 0, PacketProperties()
    if not packet_id:
        raise protocol_error("packet identifier 0")
    if version == V5 and reader.remaining:
        reason = reader.byte()
        if reason not in ACK_REASONS[packet_type]:
            raise protocol_error(f"reason 0x{reason:02X} in packet type {packet_type}")
        if reader.remaining:
            properties = decode_properties(reader, packet_type)
    if packet_type == PacketType.PUBACK:
        return Puback(packet_id, reason, properties)
    if packet_type == PacketType.PUBREC:
        return Pubrec(packet_id, reason, properties)
    if packet_type == PacketType.PUBREL:
        return Pubrel(packet_id, reason, properties)
    return Pubcomp(packet_id, reason, properties)


FILTERS_MAX: Final = 16_384
"""Of one SUBSCRIBE or UNSUBSCRIBE: a packet of the largest size has room for half a million, each
of which is asked of the ACL and answered."""


def _check_count(filters: int) -> None:
    if filters > FILTERS_MAX:
        raise PacketError(Reason.QUOTA_EXCEEDED, f"more than {FILTERS_MAX} filters in one packet")


def _decode_subscribe(reader: FieldReader, version: int) -> Subscribe:
    packet_id = reader.u16()
    if not packet_id:
        raise malformed("packet identifier 0")
    properties = decode_properties(reader, PacketType.SUBSCRIBE) if version == V5 else ()
    items: list[SubscribeItem] = []
    while reader.remaining:
        items.append(_decode_subscribe_item(reader, version))
        _check_count(len(items))
    if not items:
        raise malformed("SUBSCRIBE without a filter")  # [MQTT-3.8.3-2]
    return Subscribe(packet_id, tuple(items), properties)


def _decode_subscribe_item(reader: FieldReader, version: int) -> SubscribeItem:
    topic_filter, options = reader.string(), reader.byte()
    qos, handling = options & 3, options >> 4 & 3
    if qos == 3 or options & 0xC0 or handling == 3 or (version != V5 and options & 0xFC):
        raise malformed(f"subscription options 0x{options:02X}")  # [MQTT-3.8.3-5]
    parts = parse_filter(topic_filter)
    if parts is None:
        if topic_filter.startswith("$share/"):
            raise protocol_error("no shared subscription has this form")
        raise malformed("no topic filter has this form")
    no_local = bool(options & 4)
    if no_local and parts.share:
        raise protocol_error("no-local on a shared subscription")  # [MQTT-3.8.3-4]
    return SubscribeItem(topic_filter, qos, no_local, bool(options & 8), handling)


def _decode_unsubscribe(reader: FieldReader, version: int) -> Unsubscribe:
    packet_id = reader.u16()
    if not packet_id:
        raise malformed("packet identifier 0")
    properties = decode_properties(reader, PacketType.UNSUBSCRIBE) if version == V5 else ()
    filters: list[str] = []
    while reader.remaining:
        filters.append(reader.string())
        if parse_filter(filters[-1]) is None:
            raise malformed("no topic filter has this form")
        _check_count(len(filters))
    if not filters:
        raise malformed("UNSUBSCRIBE without a filter")  # [MQTT-3.10.3-2]
    return Unsubscribe(packet_id, tuple(filters), properties)


def _decode_subscribe_ack(packet_type: int, reader: FieldReader, version: int) -> Packet:
    packet_id = reader.u16()
    properties = decode_properties(reader, packet_type) if version == V5 else ()
    reasons = tuple(reader.take(reader.remaining))
    if packet_type == PacketType.SUBACK:
        return Suback(packet_id, reasons, properties)
    return Unsuback(packet_id, reasons, properties)
