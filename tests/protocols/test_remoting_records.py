"""The stored record: layout, limits, template encoder, ids and hashes."""

import contextlib
import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.errors import Code, PeerError, Refused
from protocols.remoting import records
from protocols.remoting.codes import SysFlag
from protocols.remoting.templates import RecordTemplate

plain = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)
topics = st.text("abcXYZ019_-%", min_size=1, max_size=255)
pairs = st.lists(st.tuples(plain.filter(bool), plain), max_size=6)


@settings(deadline=None)  # a loaded machine is slow, not wrong
@given(topics, st.binary(max_size=300), pairs, st.integers(0, 2**31 - 1), st.integers(0, 2**40))
def test_encode_decode(
    topic: str, body: bytes, properties: list[tuple[str, str]], queue_id: int, when: int
) -> None:
    """What goes in comes out, in a record whose checked lengths are right."""
    data = records.encode_record(
        topic,
        body,
        queue_id=queue_id,
        properties_text=records.encode_properties(properties),
        queue_offset=when + 1,
        log_position=when + 2,
        born_ms=when,
        store_ms=when + 3,
        flag=-5,
        reconsume_count=3,
        prepared_offset=9,
        born_host=records.encode_host("10.1.2.3:4567"),
    )
    records.check_record(data)
    message = records.decode_record(data, cluster="c", broker="b")
    assert (message.topic, message.body, message.queue_id) == (topic, body, queue_id)
    assert message.property_pairs() == tuple(properties)
    assert (message.queue_offset, message.log_position) == (when + 1, when + 2)
    assert (message.born_ms, message.store_ms, message.flag) == (when, when + 3, -5)
    assert (message.reconsume_count, message.prepared_offset) == (3, 9)
    assert (message.born_host, message.cluster, message.broker) == ("10.1.2.3:4567", "c", "b")
    assert records.is_body_intact(data)


@settings(deadline=None)  # a loaded machine is slow, not wrong
@given(
    st.text("abcXYZ019_-%", min_size=1, max_size=140),
    pairs,
    pairs,
    st.binary(max_size=100),
    st.sampled_from([b"A" * 32, b"short", b"B" * 56]),
)
def test_template_equals_plain_encoder(
    topic: str,
    shared: list[tuple[str, str]],
    own: list[tuple[str, str]],
    body: bytes,
    message_id: bytes,
) -> None:
    """The hot encoder's pieces are the same bytes as the plain encoder's record."""
    host = records.encode_host("127.0.0.1:10911")
    template = RecordTemplate(topic, tuple(shared), born_host=host, store_host=host)
    pieces: list[bytes | memoryview] = []
    size = template.add(pieces, body, message_id, 3, 1234, records.encode_properties(own), 1)
    text = records.encode_properties([("UNIQ_KEY", message_id.decode()), *shared, *own])
    expected = records.encode_record(
        topic,
        body,
        queue_id=3,
        born_ms=1234,
        sys_flag=1,
        properties_text=text,
        born_host=host,
        store_host=host,
    )
    assert b"".join(pieces) == expected
    assert size == len(expected)


def test_field_offsets() -> None:
    """The named offsets are where the fields lie; stores patch there."""
    data = bytearray(records.encode_record("T", b"body", queue_id=7, sys_flag=1))
    struct.pack_into(">QQ", data, records.QUEUE_OFFSET_AT, 11, 22)
    struct.pack_into(">Q", data, records.STORE_MS_AT, 33)
    struct.pack_into(">Q", data, records.BORN_MS_AT, 44)
    struct.pack_into(">I", data, records.RECONSUME_COUNT_AT, 5)
    struct.pack_into(">Q", data, records.PREPARED_OFFSET_AT, 6)
    data[records.STORE_HOST_AT : records.STORE_HOST_AT + 8] = records.encode_host("1.2.3.4:5")
    message = records.decode_record(data)
    assert (message.queue_offset, message.log_position, message.store_ms) == (11, 22, 33)
    assert (message.born_ms, message.reconsume_count, message.prepared_offset) == (44, 5, 6)
    assert (message.queue_id, message.sys_flag, message.body) == (7, 1, b"body")
    assert data[records.BODY_AT : records.BODY_AT + 4] == b"body"


def test_v6_hosts_are_read() -> None:
    """Apache records with IPv6 hosts (sysFlag 0x30) decode; a store of ours refuses them."""
    front = struct.pack(">IIiiqqIq", records.MAGIC_V1, 0, 1, 0, 2, 3, 0x30, 4)
    host = bytes(15) + b"\x01" + struct.pack(">I", 80)
    rest = host + struct.pack(">q", 5) + host + struct.pack(">iqI", 0, 0, 2) + b"hi\x01T\x00\x00"
    data = struct.pack(">I", 4 + len(front) + len(rest)) + front + rest
    message = records.decode_record(data)
    assert (message.topic, message.body, message.born_host) == ("T", b"hi", "[::1]:80")
    assert (message.queue_id, message.queue_offset, message.store_ms) == (1, 2, 5)
    with pytest.raises(PeerError):
        records.check_record(data)


@settings(deadline=None)  # a loaded machine is slow, not wrong
@given(st.data())
def test_damaged_record_is_a_peer_error(data: st.DataObject) -> None:
    """Any byte of the lengths may be wrong: PeerError or a message, never another error."""
    record = bytearray(records.encode_record("Topic", b"body", properties_text=b"a\x01b\x02"))
    at = data.draw(st.integers(0, len(record) - 1))
    record[at] = data.draw(st.integers(0, 255))
    cut = bytes(record[: data.draw(st.integers(0, len(record)))])
    for piece in (bytes(record), cut):
        with contextlib.suppress(PeerError):
            records.decode_record(piece)
        with contextlib.suppress(PeerError):
            records.check_record(piece)


def test_records_back_to_back() -> None:
    """Records that lie back to back are cut; one that reaches beyond the body is refused."""
    one, two = records.encode_record("T", b"1"), records.encode_record("T", b"22")
    assert [message.body for message in records.decode_records(one + two)] == [b"1", b"22"]
    with pytest.raises(PeerError):
        records.decode_records(one + two[:-1])


def test_body_crc_is_javas() -> None:
    """CRC-32 with the sign bit cleared."""
    assert records.body_crc(b"123456789") == zlib.crc32(b"123456789") & 0x7FFFFFFF


@pytest.mark.parametrize(
    ("text", "value"),
    [("", 0), ("TA", 2669), ("Aa", 2112), ("BB", 2112), ("polygenelubricants", -(2**31)),
     ("\U0001f600", 1772899)],
)  # fmt: skip
def test_java_hash(text: str, value: int) -> None:
    """``String.hashCode``, over UTF-16 units (2669 for "TA": seen on the wire)."""
    assert records.java_hash(text) == value


def test_offset_message_id() -> None:
    """Host, port and log position in upper-case hex, and back."""
    text = records.offset_message_id(records.encode_host("127.0.0.1:10911"), 300)
    assert text == "7F00000100002A9F000000000000012C"
    assert records.parse_offset_message_id(text) == ("127.0.0.1:10911", 300)
    assert records.parse_offset_message_id("xyz") is None


def test_properties_refuse_separators() -> None:
    """Bytes 1 and 2 cannot be stored in a name or value."""
    with pytest.raises(Refused) as caught:
        records.encode_properties([("a\x02b", "c")])
    assert caught.value.code is Code.ILLEGAL_MESSAGE_PROPERTY_KEY


def test_properties_have_a_limit() -> None:
    """32,767 bytes in all; more is refused by both encoders, and nothing is appended."""
    template = RecordTemplate("T")
    pieces: list[bytes | memoryview] = []
    with pytest.raises(Refused) as caught:
        template.add(pieces, b"", b"A" * 32, 0, 0, b"x" * 32767)
    assert caught.value.code is Code.MESSAGE_PROPERTIES_TOO_LARGE
    with pytest.raises(Refused):  # too many for the length field, too
        RecordTemplate("T", (("k", "v" * 70_000),))
    assert pieces == []


@pytest.mark.parametrize(
    ("said", "body", "more"),
    [("3", b"pay", b"k1v"), ("6", b"", b"payk1v"), ("7", b"payk1v", b""), ("x", b"payk1v", b"")],
)
def test_properties_behind_the_body(said: str, body: bytes, more: bytes) -> None:
    """Their size is told; whoever says more than there is told nothing."""
    flag = int(SysFlag.MORE_PROPERTIES)
    text = records.encode_properties([(records.MORE_BYTES, said), ("k", "v")])
    record = records.encode_record("T", b"payk1v", properties_text=text, sys_flag=flag | 3)
    message = records.decode_record(record)
    assert (message.body, message.more, message.sys_flag) == (body, more, 3)
    assert records.record_parts(record) == (b"T", body, text)
    bodies = [body]
    alike = [record, record.replace(b"pay", b"yap")]
    assert records.take_alike(alike, 0, 2, len(record), 0, bodies) == 1  # one at a time
    unmarked = records.encode_record("T", b"payk1v", properties_text=text)
    assert records.decode_record(unmarked).body == b"payk1v"


def test_missing_trailing_separator_is_tolerated() -> None:
    assert records.decode_properties(b"a\x01b\x02c\x01d") == (("a", "b"), ("c", "d"))


def test_message_ids_are_unique_and_in_form() -> None:
    """32 hex digits: ip, pid, seed, ms since the month began, counter; unique within a ms."""
    ids = records.MessageIds(bytes((10, 0, 0, 1)), 0x1234, 99)
    now_ms = 1_790_000_000_000
    made = [ids.take(now_ms) for _ in range(70_000)]
    assert len(set(made)) == len(made)
    assert made[0].startswith(b"0A0000011234")
    assert len(made[0]) == 32
    since = int(made[0][20:28], 16)
    assert since == now_ms - 1_788_220_800_000  # 2026-09-01T00:00:00Z
