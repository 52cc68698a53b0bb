"""AMQP bytes: frames, methods, tables and property blocks, against pamqp as an independent peer."""

import datetime
import struct

import pamqp.body
import pamqp.commands
import pamqp.frame
import pamqp.header
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.amqp import codec, replies
from protocols.amqp.codec import Ack, Call, FrameReader, Heartbeat, Item, Oversize, Publish
from protocols.amqp.fields import Field, Table, are_equal, decode_table, encode_table, table_of
from protocols.amqp.method_codec import decode_method, encode_method
from protocols.amqp.methods import (
    HAS_CONTENT,
    IDS,
    METHODS,
    BasicDeliver,
    BasicQos,
    QueueDeclare,
    name_of,
)
from protocols.amqp.properties import (
    EMPTY,
    BasicProperties,
    decode_properties,
    encode_properties,
)
from protocols.amqp.replies import AmqpFault
from protocols.errors import PeerError


def publish_bytes(channel: int, body: bytes, *, room: int = 4088, key: str = "k") -> bytes:
    """One publish as pamqp would write it."""
    parts = [
        pamqp.frame.marshal(pamqp.commands.Basic.Publish(0, "ex", key, True, False), channel),
        pamqp.frame.marshal(
            pamqp.header.ContentHeader(
                0, len(body), pamqp.commands.Basic.Properties(content_type="text/plain")
            ),
            channel,
        ),
    ]
    for start in range(0, len(body), room):
        parts.append(
            pamqp.frame.marshal(pamqp.body.ContentBody(body[start : start + room]), channel)
        )
    return b"".join(parts)


def reader(frame_bytes_max: int = 4096, body_bytes_max: int = 1 << 20) -> FrameReader:
    return FrameReader(frame_bytes_max=frame_bytes_max, body_bytes_max=body_bytes_max)


def read_all(data: bytes, size: int = 0) -> tuple[list[Item], tuple[int, str] | None]:
    """Every item of *data* cut into pieces of *size*, and the fault that ends it."""
    frames = reader()
    items: list[Item] = []
    pieces = [data[at : at + size] for at in range(0, len(data), size)] if size else [data]
    try:
        for piece in pieces:
            frames.feed(piece)
            while found := frames.take():
                items += found
    except AmqpFault as fault:
        return items, (fault.code, str(fault))
    return items, None


WIRE = (
    publish_bytes(1, b"one")
    + pamqp.frame.marshal(pamqp.commands.Basic.Ack(7, True), 1)
    + codec.HEARTBEAT
    + publish_bytes(2, b"")
    + publish_bytes(2, b"x" * 9000)
    + pamqp.frame.marshal(pamqp.commands.Basic.Qos(0, 10, True), 1)
    + pamqp.frame.marshal(pamqp.commands.Queue.Declare(0, "q", durable=True), 3)
)


def test_items_come_in_order() -> None:
    """Methods, whole publishes and heartbeats of one buffer become items, in order."""
    items, fault = read_all(WIRE)
    assert fault is None
    assert [type(item) for item in items] == [
        Publish, Ack, Heartbeat, Publish, Publish, Call, Call
    ]  # fmt: skip
    first = items[0]
    assert isinstance(first, Publish)
    assert codec.decode_publish(first.arguments) == ("ex", "k", True, False)
    assert first.body == b"one"
    assert decode_properties(first.properties).content_type == "text/plain"
    assert items[1] == Ack(1, 7, True)
    assert isinstance(items[4], Publish)
    assert items[4].body == b"x" * 9000
    assert isinstance(items[5], Call)
    assert items[5].method == BasicQos(0, 10, True)
    assert isinstance(items[6], Call)
    assert isinstance(items[6].method, QueueDeclare)


BAD_END = publish_bytes(1, b"one")[:-1] + b"\x00"
BODY_FIRST = b"\x03\x00\x01\x00\x00\x00\x01x\xce"
METHOD_IN_CONTENT = publish_bytes(1, b"")[: -(8 + 12 + 13)]


@pytest.mark.parametrize("size", [1, 2, 7, 64, 1000])
@pytest.mark.parametrize("tail", [b"", BAD_END, BODY_FIRST, b"\x09" + b"\x00" * 20], ids=repr)
def test_chunking_is_invisible(size: int, tail: bytes) -> None:
    """However TCP cuts the same bytes, the same items and the same fault come out."""
    assert read_all(WIRE + tail, size) == read_all(WIRE + tail)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300), st.integers(1, 40))
def test_garbage_is_a_fault_or_a_wait_however_cut(data: bytes, size: int) -> None:
    """Any bytes end in items, a fault or a wait; nothing else is raised, cut as you like."""
    assert read_all(WIRE + data, size) == read_all(WIRE + data)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=120), st.sampled_from(sorted(METHODS)))
def test_any_argument_bytes_decode_or_are_a_peer_error(data: bytes, method_id: int) -> None:
    """A method with random argument bytes decodes or is the peer's fault."""
    try:
        decode_method(method_id.to_bytes(4, "big") + data)
    except PeerError:
        return


@pytest.mark.parametrize(
    ("wire", "code"),
    [
        (BAD_END, replies.FRAME_ERROR),  # wrong frame end
        (b"\x09\x00\x00\x00\x00\x00\x00\xce", replies.FRAME_ERROR),  # unknown type
        (b"\x01\x00\x01\x00\x02\x00\x00", replies.FRAME_ERROR),  # 131072 bytes before tune
        (BODY_FIRST, replies.UNEXPECTED_FRAME),  # body without method
        (
            pamqp.frame.marshal(pamqp.commands.Basic.Publish(0, "e", "k"), 1)
            + pamqp.frame.marshal(pamqp.commands.Basic.Qos(), 1),
            replies.UNEXPECTED_FRAME,  # method where a header is due
        ),
        (
            pamqp.frame.marshal(pamqp.commands.Basic.Publish(0, "e", "k"), 1) + BODY_FIRST,
            replies.UNEXPECTED_FRAME,  # body where a header is due
        ),
        (b"\x01\x00\x01\x00\x00\x00\x05\x00\x32\x00\x0a\x00\xce", replies.FRAME_ERROR),  # cut
        (b"\x01\x00\x01\x00\x00\x00\x04\x00\x63\x00\x63\xce", replies.NOT_IMPLEMENTED),
        (
            pamqp.frame.marshal(pamqp.commands.Basic.Deliver("c", 1, False, "e", "k"), 1),
            replies.COMMAND_INVALID,  # only servers deliver
        ),
    ],
)
def test_faults_have_the_code_of_the_specification(wire: bytes, code: int) -> None:
    """Each way to break the framing has its reply code, after the good items before it."""
    items, fault = read_all(publish_bytes(5, b"good") + wire)
    assert len(items) == 1
    assert fault is not None
    assert fault[0] == code


def test_channels_interleave_between_frames() -> None:
    """Content of two channels may mix frame by frame."""
    one, two = publish_bytes(1, b"one"), publish_bytes(2, b"two")
    cut = len(pamqp.frame.marshal(pamqp.commands.Basic.Publish(0, "ex", "k", True), 1))
    items, fault = read_all(one[:cut] + two[:cut] + one[cut:] + two[cut:])
    assert fault is None
    assert [item.body for item in items if isinstance(item, Publish)] == [b"one", b"two"]


def test_a_body_over_the_limit_is_thrown_away() -> None:
    """What is larger than the limit is reported once and read to its end."""
    frames = reader(body_bytes_max=10)
    frames.feed(publish_bytes(1, b"x" * 11) + publish_bytes(1, b"fits"))
    items = frames.take()
    assert items[0] == Oversize(1, 11)
    assert [item.body for item in items[1:] if isinstance(item, Publish)] == [b"fits"]
    assert len(items) == 2


def test_forgotten_content_leaves_the_channel_free() -> None:
    """A channel that ended in the middle of content begins anew."""
    frames = reader()
    frames.feed(pamqp.frame.marshal(pamqp.commands.Basic.Publish(0, "e", "k"), 1))
    assert frames.take() == []
    frames.forget(1)
    frames.feed(publish_bytes(1, b"again"))
    assert len(frames.take()) == 1


@pytest.mark.parametrize("size", [0, 1, 4088, 4089, 9000])
def test_content_frames_keep_to_the_frame_limit(size: int) -> None:
    """No frame that we write is longer than the client's frame-max; pamqp reads them back."""
    wire = codec.content_frames(
        3, encode_method(BasicDeliver("t", 1, True, "e", "k")), EMPTY, b"y" * size, 4096
    )
    body, kinds = b"", []
    while wire:
        used, channel, frame = pamqp.frame.unmarshal(wire)
        assert channel == 3
        assert used <= 4096
        kinds.append(type(frame).__name__)
        if isinstance(frame, pamqp.body.ContentBody):
            body += frame.value
        wire = wire[used:]
    assert kinds[:2] == ["Deliver", "ContentHeader"]
    assert len(kinds) == 2 + -(-size // 4088)
    assert body == b"y" * size


ARGUMENTS = {
    "o": 1,
    "h": 2,
    "i": 3,
    "q": 4,
    "s": "name",
    "S": b"long",
    "b": True,
    "F": table_of({"a": 1, "b": "two", "c": True, "d": {"e": [1, "x", None]}}),
}


@pytest.mark.filterwarnings("ignore:This command is deprecated")  # recover-async is
@pytest.mark.parametrize("method_id", sorted(METHODS), ids=lambda number: name_of(number))
def test_every_method_is_read_by_pamqp_and_comes_back(method_id: int) -> None:
    """The table is complete: each method's bytes decode to itself and mean the same to pamqp."""
    kind, form = METHODS[method_id]
    method = kind(*(ARGUMENTS[letter] for letter in form if letter not in "HZ"))
    wire = codec.method_frame(1, method)
    assert decode_method(encode_method(method)) == (method_id, method)
    _, _, frame = pamqp.frame.unmarshal(wire)
    assert frame.index == method_id
    theirs = [getattr(frame, name) for name in frame.attributes()]
    ours = [ARGUMENTS.get(letter, 0 if letter == "H" else "") for letter in form]
    assert len(theirs) == len(ours)
    for mine, other, letter in zip(ours, theirs, form, strict=True):
        if letter == "S":
            other = other.encode() if isinstance(other, str) else other
        if letter != "F":
            assert mine == other


def test_ids_are_those_of_pamqp() -> None:
    """Every method that pamqp knows is in the table, access aside; content flags agree."""
    theirs = {
        index
        for index, kind in pamqp.commands.INDEX_MAPPING.items()
        if index >> 16 != 30  # class access: obsolete
    }
    assert set(METHODS) == theirs
    assert set(IDS.values()) == set(METHODS)
    assert {name_of(number) for number in HAS_CONTENT} == {
        "basic.publish", "basic.return", "basic.deliver", "basic.get-ok"
    }  # fmt: skip


TAGGED: Table = {
    "t": Field("t", True),
    "b": Field("b", -5),
    "B": Field("B", 250),
    "s": Field("s", -300),
    "u": Field("u", 60000),
    "I": Field("I", -70000),
    "i": Field("i", 4000000000),
    "l": Field("l", -(1 << 40)),
    "f": Field("f", 0.5),
    "d": Field("d", 1.25),
    "D": Field("D", (2, 314)),
    "S": Field("S", "text"),
    "S2": Field("S", b"\xff\xfe"),
    "A": Field("A", [Field("I", 1), Field("F", {"x": Field("V", None)})]),
    "T": Field("T", 1700000000),
    "F": Field("F", {}),
    "V": Field("V", None),
    "x": Field("x", b"\x00\x01"),
}


def test_every_field_tag_comes_back_unchanged() -> None:
    """RabbitMQ's tags, each with its width: what is read is written again byte for byte."""
    wire = encode_table(TAGGED)
    table, end = decode_table(wire)
    assert end == len(wire)
    assert table == TAGGED
    assert encode_table(table) == wire


def test_capital_l_is_read_as_l() -> None:
    """Old clients send ``L`` for a signed 64-bit integer."""
    wire = b"\x00\x00\x00\x0b\x01nL" + struct.pack(">q", -2)
    assert decode_table(wire)[0] == {"n": Field("l", -2)}


def test_deep_nesting_is_a_peer_error() -> None:
    """A hostile table cannot make us recurse without bound."""
    wire = b"\x00\x00\x00\x00"
    for _ in range(40):
        wire = struct.pack(">I", len(wire) + 3) + b"\x01xF" + wire
    with pytest.raises(PeerError, match="nested"):
        decode_table(wire)


def test_integers_are_equal_whatever_their_width() -> None:
    """Redeclaring with I what was l is equivalent; text and number are not."""
    assert are_equal(Field("I", 7), Field("l", 7))
    assert not are_equal(Field("I", 7), Field("S", "7"))


def test_all_properties_come_back() -> None:
    """Every property decodes as pamqp wrote it, and encodes to the same bytes."""
    stamp = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    theirs = pamqp.commands.Basic.Properties(
        content_type="a", content_encoding="b", headers={"h": 1}, delivery_mode=2, priority=9,
        correlation_id="c", reply_to="d", expiration="60", message_id="e", timestamp=stamp,
        message_type="f", user_id="g", app_id="h",
    )  # fmt: skip
    block = theirs.marshal()
    ours = decode_properties(block)
    assert ours._replace(headers=None) == BasicProperties(
        "a", "b", None, 2, 9, "c", "d", "60", "e", int(stamp.timestamp()), "f", "g", "h"
    )
    assert ours.headers is not None
    assert ours.headers["h"].value == 1
    assert encode_properties(ours) == block
    assert encode_properties(BasicProperties()) == EMPTY


@settings(max_examples=100, deadline=None)
@given(st.binary(min_size=2, max_size=60))
def test_any_property_block_decodes_or_is_a_peer_error(block: bytes) -> None:
    """Random blocks never raise anything else."""
    try:
        decode_properties(block)
    except PeerError:
        return
