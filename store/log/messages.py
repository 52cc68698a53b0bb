"""
RocketMQ's stored record, as far as a store must look inside: what it patches and filters by.

Offsets: facts of ``MessageDecoder`` (RocketMQ 5): total 0, magic 4, body CRC 8, queue id 12,
flag 16, queue offset 20, physical offset 28, sysFlag 36, born time 40, born host 48 (IPv4 8 bytes,
IPv6 20), store time, store host, reconsume times, prepared offset, body, topic, properties.
"""

import struct
from typing import Final

from protocols.checksum import crc32
from store.log.format import M32

QUEUE_ID_AT: Final = 12
QUEUE_OFFSET_AT: Final = 20
SYS_FLAG_LOW_AT: Final = 39
STORE_TIME_AT: Final = 56
STORE_TIME_AT_V6: Final = 68
BORN_V6: Final = 0x10
STORE_V6: Final = 0x20
MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
RECORD_BYTES_MIN: Final = 91

_INT: Final = struct.Struct(">I")
_SHORT: Final = struct.Struct(">H")
_LONG: Final = struct.Struct(">Q")

Bytes = bytes | bytearray | memoryview


def is_record(record: Bytes) -> bool:
    """Its own length, magic, body, topic and properties fit together."""
    size = len(record)
    if size < RECORD_BYTES_MIN or _INT.unpack_from(record)[0] != size:
        return False
    if _INT.unpack_from(record, 4)[0] not in (MAGIC_V1, MAGIC_V2):
        return False
    try:
        start, length = properties_span(record)
    except (struct.error, IndexError):
        return False
    return start + length == size


def body_at(record: Bytes) -> int:
    """Index of the body length."""
    flags = record[SYS_FLAG_LOW_AT]
    return 84 + (12 if flags & BORN_V6 else 0) + (12 if flags & STORE_V6 else 0)


def body_size_of(record: Bytes) -> int:
    """Bytes of the body."""
    size: int = _INT.unpack_from(record, body_at(record))[0]
    return size


def store_time_at(record: Bytes) -> int:
    return STORE_TIME_AT_V6 if record[SYS_FLAG_LOW_AT] & BORN_V6 else STORE_TIME_AT


def store_ms(record: Bytes) -> int:
    value: int = _LONG.unpack_from(record, store_time_at(record))[0]
    return value


def _topic_at(record: Bytes) -> tuple[int, int]:
    """(index of the topic text, its length)."""
    at = body_at(record)
    at += 4 + _INT.unpack_from(record, at)[0]
    if _INT.unpack_from(record, 4)[0] == MAGIC_V2:
        return at + 2, _SHORT.unpack_from(record, at)[0]
    return at + 1, record[at]


def topic_of(record: Bytes) -> str:
    at, size = _topic_at(record)
    return str(bytes(record[at : at + size]), "utf-8", "replace")


def properties_span(record: Bytes) -> tuple[int, int]:
    """(index of the properties text, its length)."""
    at, size = _topic_at(record)
    at += size
    return at + 2, _SHORT.unpack_from(record, at)[0]


def property_of(record: Bytes, name: bytes) -> bytes:
    """The first property of that name; b"": none."""
    start, size = properties_span(record)
    text = bytes(record[start : start + size])
    wanted = name + b"\x01"
    at = 0 if text.startswith(wanted) else text.find(b"\x02" + wanted) + 1
    if at == 0 and not text.startswith(wanted):
        return b""
    at += len(wanted)
    end = text.find(b"\x02", at)
    return text[at:] if end < 0 else text[at:end]


def properties_of(record: Bytes) -> dict[str, str]:
    """All properties; of one that repeats, the last."""
    start, size = properties_span(record)
    text = str(bytes(record[start : start + size]), "utf-8", "replace")
    pairs = [pair.partition("\x01") for pair in text.split("\x02")]
    return {name: value for name, sign, value in pairs if sign}


def tag_hash(tag: str) -> int:
    """Java's String.hashCode, signed 32 bits; 0 for no tag."""
    value = 0
    units = tag.encode("utf-16-be", "surrogatepass")
    for (unit,) in _SHORT.iter_unpack(units):
        value = (31 * value + unit) & M32
    return value - (1 << 32) if value & 0x80000000 else value


def tag_hash_of(record: Bytes) -> int:
    return tag_hash(str(property_of(record, b"TAGS"), "utf-8", "replace"))


def with_reconsume_count(record: bytes, count: int) -> bytes:
    """The record with another reconsumeTimes (redelivery over standard codes)."""
    at = body_at(record) - 12
    return record[:at] + _INT.pack(count) + record[at + 4 :]


def queue_id_of(record: Bytes) -> int:
    value: int = _INT.unpack_from(record, QUEUE_ID_AT)[0]
    return value


def set_queue_id(record: bytearray, queue_id: int) -> None:
    _INT.pack_into(record, QUEUE_ID_AT, queue_id)


def retargeted(record: bytes, topic: str, queue_id: int, extra: dict[str, str]) -> bytes:
    """A copy for another topic, with properties added (dead letters)."""
    at = body_at(record)
    body_size = _INT.unpack_from(record, at)[0]
    head = bytearray(record[: at + 4 + body_size])
    start, size = properties_span(record)
    properties = bytes(record[start : start + size])
    if properties and not properties.endswith(b"\x02"):
        properties += b"\x02"
    added = "".join(f"{name}\x01{value}\x02" for name, value in extra.items()).encode()
    if len(properties) + len(added) <= 32_767:  # RocketMQ's limit; the message matters more
        properties += added
    name = topic.encode()
    is_long = len(name) > 127
    _INT.pack_into(head, 4, MAGIC_V2 if is_long else MAGIC_V1)
    head += _SHORT.pack(len(name)) if is_long else bytes((len(name),))
    head += name + _SHORT.pack(len(properties)) + properties
    _INT.pack_into(head, 0, len(head))
    _INT.pack_into(head, QUEUE_ID_AT, queue_id)
    return bytes(head)


def body_crc(body: Bytes) -> int:
    """RocketMQ's body CRC: 31 bits."""
    return crc32(body) & 0x7FFFFFFF
