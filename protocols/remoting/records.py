"""
The stored record: what a log keeps and what pull, pop and view answer, byte for byte.

::

    i32 size; i32 magic; i32 body crc; i32 queue id; i32 flag; i64 queue offset;
    i64 log position; i32 sysFlag; i64 born ms; born host; i64 store ms; store host;
    i32 reconsume count; i64 prepared offset; i32 n + body; u8|u16 n + topic; i16 n + properties

Hosts are 4 + 4 bytes (IPv4 address, port), or 16 + 4 when sysFlag says so. A topic of more than
127 bytes takes the second magic and a two-byte length. Our own records carry IPv4 hosts, so
their fixed fields lie at the ``*_AT`` offsets below; records of Apache may differ.

Source: ``MessageDecoder``, ``MessageVersion``, ``CommitLog``.
"""

import ipaddress
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from protocols.addresses import join_address
from protocols.canonical import Properties, StoredMessage
from protocols.checksum import crc32
from protocols.errors import Code, PeerError, Refused
from protocols.remoting.codes import SysFlag
from protocols.remoting.message_ids import HEX4 as HEX4
from protocols.remoting.message_ids import MessageIds as MessageIds
from protocols.stored_names import number_of

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
TOPIC_BYTES_V1_MAX: Final = 127
TOPIC_BYTES_MAX: Final = 255
PROPERTIES_BYTES_MAX: Final = 32767
"""Their length is a signed 16-bit number."""

SIZE_AT: Final = 0
MAGIC_AT: Final = 4
BODY_CRC_AT: Final = 8
QUEUE_ID_AT: Final = 12
FLAG_AT: Final = 16
QUEUE_OFFSET_AT: Final = 20
LOG_POSITION_AT: Final = 28
SYS_FLAG_AT: Final = 36
BORN_MS_AT: Final = 40
BORN_HOST_AT: Final = 48
STORE_MS_AT: Final = 56
STORE_HOST_AT: Final = 64
RECONSUME_COUNT_AT: Final = 72
PREPARED_OFFSET_AT: Final = 76
BODY_SIZE_AT: Final = 84
BODY_AT: Final = 88
RECORD_BYTES_MIN: Final = BODY_AT + 1 + 2

OFFSETS: Final = struct.Struct(">QQ")
"""Queue offset and log position, which lie side by side at ``QUEUE_OFFSET_AT``."""

_FIXED: Final = struct.Struct(">IIIiiqqIq8sq8siqI")
_FRONT: Final = struct.Struct(">IIIiiqqIq")  # up to and with born ms, before any host
HEAD: Final = struct.Struct(">III72sI")
MIDDLE: Final = struct.Struct(">IIQQIQ8sQ8sIQ")  # the 72 bytes between crc and body size
_U32: Final = struct.Struct(">I")
_I64: Final = struct.Struct(">q")
_U16: Final = struct.Struct(">H")
HOSTS_V6: Final = int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
MORE: Final = int(SysFlag.MORE_PROPERTIES)
UNUSUAL: Final = HOSTS_V6 | MORE
"""Not to be read at the fixed places, or not as it stands there."""

MORE_BYTES: Final = "TG_MORE_BYTES"
"""How many bytes of properties there are for which the record's 16 bits of length have no room: at
the end of the body, or, in the record of a message queue, left out."""

MORE_BYTES_MAX: Final = 512 << 10

BODY_CRC_MASK: Final = 0x7FFFFFFF

NO_HOST: Final = b"\x00" * 8


# ── decoding ────────────────────────────────────────────────────────────────────────────


def decode_record(
    data: bytes | memoryview, *, cluster: str = "", broker: str = ""
) -> StoredMessage:
    """
    The message of exactly one record.

    Raises PeerError if a length lies outside the record. The body's CRC is not checked here:
    a store verifies its blocks, and a client of Apache may call ``is_body_intact``.
    """
    record = bytes(data)
    try:
        fields = _FIXED.unpack_from(record)
        size, magic = fields[0], fields[1]
        if size != len(record):
            raise PeerError(f"record of {len(record)} bytes says it has {size}")
        if magic not in (MAGIC_V1, MAGIC_V2):
            raise PeerError(f"record magic {magic:#x}")
        if fields[7] & UNUSUAL:
            return _decode_unusual(record, cluster, broker)
        body_end = BODY_AT + fields[14]
        topic_end, text = _tail(record, magic, body_end)
    except (struct.error, IndexError) as error:
        raise PeerError(f"record: {error}") from error
    return StoredMessage(
        record=record,
        topic=_topic(record, magic, body_end, topic_end),
        body=record[BODY_AT:body_end],
        properties_text=text,
        queue_id=fields[3],
        flag=fields[4],
        queue_offset=fields[5],
        log_position=fields[6],
        sys_flag=fields[7],
        born_ms=fields[8],
        born_host=host_text(fields[9]),
        store_ms=fields[10],
        reconsume_count=fields[12],
        prepared_offset=fields[13],
        cluster=cluster,
        broker=broker,
    )


def store_ms_of(record: bytes) -> int:
    """When exactly one record was stored. Raises PeerError as ``decode_record`` does."""
    if len(record) < BODY_AT or int.from_bytes(record[SYS_FLAG_AT:BORN_MS_AT], "big") & HOSTS_V6:
        return decode_record(record).store_ms
    return int.from_bytes(record[STORE_MS_AT:STORE_HOST_AT], "big")


def record_parts(record: bytes) -> tuple[bytes, bytes, bytes]:
    """
    (topic, body, properties text) of exactly one record, for who needs no more of it.

    Raises PeerError as ``decode_record`` does.
    """
    try:
        size, magic, _, _, body_size = HEAD.unpack_from(record)
        (sys_flag,) = _U32.unpack_from(record, SYS_FLAG_AT)
        if size != len(record) or magic not in (MAGIC_V1, MAGIC_V2) or sys_flag & UNUSUAL:
            found = decode_record(record)
            return found.topic.encode(), found.body, found.properties_text
        body_end = BODY_AT + body_size
        topic_end, text = _tail(record, magic, body_end)
    except (struct.error, IndexError) as error:
        raise PeerError(f"record: {error}") from error
    topic = record[body_end + (1 if magic == MAGIC_V1 else 2) : topic_end]
    return topic, record[BODY_AT:body_end], text


def take_alike(
    records: list[bytes], start: int, stop: int, id_at: int, id_size: int, bodies: list[bytes]
) -> int:
    """
    The bodies of the records behind the one at *start* that differ from it in nothing but the
    body's bytes, *id_size* bytes at *id_at*, and what a store writes; the index behind the last.

    A body's size, topic and properties are then those of the first, which ``record_parts`` has
    seen: what a publisher sends in one go is read without parsing it.
    """
    record = records[start]
    if int.from_bytes(record[SYS_FLAG_AT : SYS_FLAG_AT + 4], "big") & UNUSUAL:
        return start + 1  # laid out otherwise
    size = len(record)
    body_end = BODY_AT + int.from_bytes(record[BODY_AT - 4 : BODY_AT], "big")
    head, flag, body_size = (
        record[:8],
        record[SYS_FLAG_AT : SYS_FLAG_AT + 4],
        record[BODY_AT - 4 : BODY_AT],
    )
    front, back = record[body_end:id_at], record[id_at + id_size :]
    index = start + 1
    while index < stop:
        other = records[index]
        if (
            len(other) != size
            or not other.startswith(head)
            or other[SYS_FLAG_AT : SYS_FLAG_AT + 4] != flag
            or other[BODY_AT - 4 : BODY_AT] != body_size
            or not other.startswith(front, body_end)
            or not other.endswith(back)
        ):
            break
        bodies.append(other[BODY_AT:body_end])
        index += 1
    return index


def reconsume_count_at(sys_flag: int) -> int:
    """Where the reconsume count lies; hosts with IPv6 addresses are 12 bytes longer."""
    born = 12 if sys_flag & SysFlag.BORN_HOST_V6 else 0
    store = 12 if sys_flag & SysFlag.STORE_HOST_V6 else 0
    return RECONSUME_COUNT_AT + born + store


def _tail(record: bytes, magic: int, body_end: int) -> tuple[int, bytes]:
    """(end of the topic, properties text) of a record whose body ends at *body_end*."""
    if magic == MAGIC_V1:
        topic_end = body_end + 1 + record[body_end]
    else:
        topic_end = body_end + 2 + _U16.unpack_from(record, body_end)[0]
    (size,) = _U16.unpack_from(record, topic_end)
    if topic_end + 2 + size != len(record):
        raise PeerError(f"record of {len(record)} bytes: its fields end at {topic_end + 2 + size}")
    return topic_end, record[topic_end + 2 :]


def _topic(record: bytes, magic: int, body_end: int, topic_end: int) -> str:
    start = body_end + (1 if magic == MAGIC_V1 else 2)
    return record[start:topic_end].decode("utf-8", "replace")


def _decode_unusual(record: bytes, cluster: str, broker: str) -> StoredMessage:
    """With IPv6 hosts, properties behind the body, or both."""
    _, magic, _, queue_id, flag, offset, position, sys_flag, born_ms = _FRONT.unpack_from(record)
    at = _FRONT.size
    born_size = 20 if sys_flag & SysFlag.BORN_HOST_V6 else 8
    born_host = record[at : at + born_size]
    at += born_size
    (store_ms,) = _I64.unpack_from(record, at)
    at += 8 + (20 if sys_flag & SysFlag.STORE_HOST_V6 else 8)
    reconsume_count, prepared, size = struct.unpack_from(">iqI", record, at)
    at += 16
    topic_end, text = _tail(record, magic, at + size)
    message = StoredMessage(
        record=record,
        topic=_topic(record, magic, at + size, topic_end),
        body=record[at : at + size],
        properties_text=text,
        queue_id=queue_id,
        flag=flag,
        queue_offset=offset,
        log_position=position,
        sys_flag=sys_flag,
        born_ms=born_ms,
        born_host=host_text(born_host),
        store_ms=store_ms,
        reconsume_count=reconsume_count,
        prepared_offset=prepared,
        cluster=cluster,
        broker=broker,
    )
    if sys_flag & MORE:
        _part(message)
    return message


def _part(message: StoredMessage) -> None:
    """Body and properties behind it; any producer may have written the number."""
    message.sys_flag &= ~MORE
    count = number_of(message.properties.get(MORE_BYTES, ""))
    if 0 < count <= len(message.body):
        message.body, message.more = message.body[:-count], message.body[-count:]


def record_length(data: bytes | bytearray | memoryview, position: int = 0) -> int:
    """Bytes of the record at *position*. Raises PeerError if it does not lie within *data*."""
    if len(data) - position < RECORD_BYTES_MIN:
        raise PeerError(f"record: {len(data) - position} bytes left, {RECORD_BYTES_MIN} needed")
    size = int(_U32.unpack_from(data, position)[0])
    if not RECORD_BYTES_MIN <= size <= len(data) - position:
        raise PeerError(f"record of {size} bytes where {len(data) - position} are left")
    return size


def split_records(body: bytes | memoryview) -> list[bytes]:
    """Cut records that lie back to back. Raises PeerError."""
    data = bytes(body)
    records: list[bytes] = []
    position = 0
    while position < len(data):
        end = position + record_length(data, position)
        records.append(data[position:end])
        position = end
    return records


def decode_records(
    body: bytes | memoryview, *, cluster: str = "", broker: str = ""
) -> list[StoredMessage]:
    """The messages of records that lie back to back. Raises PeerError."""
    return [decode_record(item, cluster=cluster, broker=broker) for item in split_records(body)]


def check_record(data: bytes | memoryview) -> None:
    """
    Whether these bytes are one record of ours with all lengths inside; raises PeerError if not.

    Ours: IPv4 hosts, so that a store may patch at the fixed offsets. The body is not read.
    """
    try:
        size, magic = struct.unpack_from(">II", data)
        (sys_flag,) = _U32.unpack_from(data, SYS_FLAG_AT)
        (body_size,) = _U32.unpack_from(data, BODY_SIZE_AT)
        if size != len(data) or magic not in (MAGIC_V1, MAGIC_V2) or sys_flag & HOSTS_V6:
            raise PeerError(f"record: size {size} of {len(data)}, magic {magic:#x}")
        end = BODY_AT + body_size
        if magic == MAGIC_V1:
            end += 1 + data[end]
        else:
            end += 2 + int(_U16.unpack_from(data, end)[0])
        end += 2 + int(_U16.unpack_from(data, end)[0])
    except (struct.error, IndexError) as error:
        raise PeerError(f"record: {error}") from error
    if end != size:
        raise PeerError(f"record of {size} bytes: its fields end at {end}")


def is_body_intact(record: bytes | memoryview) -> bool:
    """Whether the body has the CRC that its producer wrote (records with IPv4 hosts)."""
    (size,) = _U32.unpack_from(record, BODY_SIZE_AT)
    (given,) = _U32.unpack_from(record, BODY_CRC_AT)
    return body_crc(record[BODY_AT : BODY_AT + size]) == int(given)


# ── encoding ────────────────────────────────────────────────────────────────────────────


def body_crc(body: bytes | memoryview) -> int:
    """CRC-32 of the body as stored, sign bit cleared (``UtilAll.crc32``)."""
    return int(crc32(body)) & BODY_CRC_MASK


def encode_record(
    topic: str,
    body: bytes,
    *,
    queue_id: int = 0,
    properties_text: bytes = b"",
    queue_offset: int = 0,
    log_position: int = 0,
    born_ms: int = 0,
    store_ms: int = 0,
    sys_flag: int = 0,
    flag: int = 0,
    reconsume_count: int = 0,
    prepared_offset: int = 0,
    born_host: bytes = NO_HOST,
    store_host: bytes = NO_HOST,
) -> bytes:
    """One record; for the hot path see ``templates``. Raises Refused on what does not fit."""
    magic, topic_field = encode_topic(topic)
    check_properties_size(len(properties_text))
    middle = MIDDLE.pack(
        queue_id & 0xFFFFFFFF,
        flag & 0xFFFFFFFF,
        queue_offset,
        log_position,
        sys_flag & ~HOSTS_V6,
        born_ms,
        born_host,
        store_ms,
        store_host,
        reconsume_count,
        prepared_offset,
    )
    size = BODY_AT + len(body) + len(topic_field) + 2 + len(properties_text)
    return b"".join(
        (
            HEAD.pack(size, magic, body_crc(body), middle, len(body)),
            body,
            topic_field,
            _U16.pack(len(properties_text)),
            properties_text,
        )
    )


@lru_cache(1024)  # a hundred thousand subjects of a topic share its bytes
def encode_topic(topic: str) -> tuple[int, bytes]:
    """(magic, length and name)."""
    name = topic.encode()
    if len(name) <= TOPIC_BYTES_V1_MAX:
        return MAGIC_V1, bytes((len(name),)) + name
    if len(name) > TOPIC_BYTES_MAX:
        raise Refused(Code.ILLEGAL_TOPIC, topic[:80], f"at most {TOPIC_BYTES_MAX} bytes")
    return MAGIC_V2, _U16.pack(len(name)) + name


def check_properties_size(size: int) -> None:
    if size > PROPERTIES_BYTES_MAX:
        raise Refused(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            "properties",
            f"{size} bytes, at most {PROPERTIES_BYTES_MAX}",
        )


# ── properties ──────────────────────────────────────────────────────────────────────────

UNIQ_KEY: Final = b"UNIQ_KEY\x01"


def encode_properties(properties: Sequence[tuple[str, str]]) -> bytes:
    """
    ``name 01 value 02`` each; empty text for none.

    Raises Refused if a name or value contains bytes 1 or 2, which the format cannot carry.
    """
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties])
    count = len(properties)
    if text.count("\x01") != count or text.count("\x02") != count:
        raise Refused(
            Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "property", "the bytes 1 and 2 cannot be stored"
        )
    return text.encode("utf-8", "replace")


def decode_properties(text: bytes | str) -> Properties:
    """Pairs in order, repeats kept; a missing trailing 02 is tolerated."""
    plain = text if isinstance(text, str) else text.decode("utf-8", "replace")
    pairs = (item.partition("\x01") for item in plain.split("\x02") if item)
    return tuple((name, value) for name, _, value in pairs)


# ── hosts and ids ───────────────────────────────────────────────────────────────────────


@lru_cache(maxsize=4096)
def encode_host(address: str) -> bytes:
    """``ip:port`` as the 8 bytes of a record; zeros for what is no IPv4 address."""
    host, _, port = address.rpartition(":")
    try:
        return ipaddress.IPv4Address(host).packed + _U32.pack(int(port))
    except (ValueError, struct.error):
        return NO_HOST


@lru_cache(maxsize=4096)
def host_text(host: bytes) -> str:
    """``ip:port`` (``[ip]:port`` for IPv6) of a record's host field."""
    address = ipaddress.ip_address(host[:-4])
    (port,) = _U32.unpack_from(host, len(host) - 4)
    return join_address(str(address), port)


def offset_message_id(store_host: bytes, log_position: int) -> str:
    """The id in send answers: where the record lies (``MessageDecoder.createMessageId``)."""
    return (store_host + _I64.pack(log_position)).hex().upper()


def parse_offset_message_id(text: str) -> tuple[str, int] | None:
    """(store address, log position) of such an id; None if it is none."""
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        return None
    if len(raw) not in (16, 28):
        return None
    return host_text(raw[:-8]), int(_I64.unpack_from(raw, len(raw) - 8)[0])


@lru_cache(maxsize=65536)
def java_hash(text: str) -> int:
    """``String.hashCode``: over UTF-16 units, signed 32 bits; 0 for an empty text."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for (unit,) in struct.iter_unpack(">H", units):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value
