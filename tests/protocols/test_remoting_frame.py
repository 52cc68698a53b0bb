"""The remoting frame: both headers, however the bytes are cut, and what is refused."""

import contextlib
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.errors import PeerError
from protocols.remoting.command import RemotingCommand
from protocols.remoting.connection import Fault, RemotingConnection
from protocols.remoting.frame import (
    FRAME_BYTES_MAX,
    LARGE_FRAME_BYTES,
    SEND_BATCH,
    encode_command,
    encode_commands,
    take_commands,
    take_frames,
)
from protocols.remoting.private import PrivateCode

# A pull answer header as a Java 5.4.0 broker sends it (captured).
JAVA_JSON = (
    b'{"code":0,"extFields":{"minOffset":"0","maxOffset":"4"},"flag":1,"language":"JAVA",'
    b'"opaque":7,"serializeTypeCurrentRPC":"JSON","version":493}'
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
commands = st.builds(
    RemotingCommand,
    st.integers(0, 0x7FFF).filter(lambda code: code not in (*range(3442, 3448), 3543)),
    st.dictionaries(texts, texts, max_size=5),
    st.binary(max_size=64),
    opaque=st.integers(-(2**31), 2**31 - 1),
    flag=st.sampled_from([0, 1, 2, 3]),
    remark=texts,
    language=st.sampled_from(["JAVA", "PYTHON", "GO", "OTHER"]),
    version=st.integers(0, 600),
    is_binary=st.booleans(),
)


def facts(command: RemotingCommand) -> tuple[object, ...]:
    return tuple(getattr(command, name) for name in RemotingCommand.__slots__)


@settings(deadline=None)  # a loaded machine is slow, not wrong
@given(st.lists(commands, max_size=5), st.integers(1, 80))
def test_chunking_is_invisible(sent: list[RemotingCommand], size: int) -> None:
    """However TCP cuts the bytes, the same commands come out, equal in every field."""
    wire = encode_commands(sent)
    connection = RemotingConnection(now=0.0)
    received = [
        event
        for start in range(0, len(wire), size)
        for event in connection.receive_data(wire[start : start + size], now=1.0)
    ]
    assert [facts(event) for event in received] == [facts(command) for command in sent]


@settings(deadline=None)  # a loaded machine is slow, not wrong
@given(st.binary(max_size=200))
def test_garbage_is_a_fault_or_waits(data: bytes) -> None:
    """Any bytes either wait for more or end the connection with a fault; nothing else."""
    events = RemotingConnection(now=0.0, frame_bytes_max=1000).receive_data(data, now=0.0)
    assert all(isinstance(event, (RemotingCommand, Fault)) for event in events)


@settings(deadline=None)  # a loaded machine is slow, not wrong
@given(st.binary(max_size=60), st.booleans())
def test_garbage_header_is_a_peer_error(header: bytes, is_binary: bool) -> None:
    """A header that is none raises PeerError, never anything else."""
    frame = struct.pack(">II", 4 + len(header), is_binary << 24 | len(header)) + header
    with contextlib.suppress(PeerError):
        take_commands(bytearray(frame))


def test_java_json_header() -> None:
    """What Java's fastjson writes is understood."""
    frame = struct.pack(">II", 4 + len(JAVA_JSON) + 2, len(JAVA_JSON)) + JAVA_JSON + b"xy"
    (command,) = take_commands(bytearray(frame))
    assert command.is_response
    assert (command.opaque, command.version, command.language) == (7, 493, "JAVA")
    assert command.fields == {"minOffset": "0", "maxOffset": "4"}
    assert command.body == b"xy"


def test_liberal_json_header() -> None:
    """Numbers as text, numbers and booleans as field values, unknown members: all accepted."""
    header = b'{"code":"105","extFields":{"topic":"T","n":5,"b":true,"x":null},"later":{}}'
    frame = struct.pack(">II", 4 + len(header), len(header)) + header
    (command,) = take_commands(bytearray(frame))
    assert command.code == 105
    assert command.fields == {"topic": "T", "n": "5", "b": "true"}


def test_truncated_pop_codes_come_back() -> None:
    """A Java client with the binary header truncates 200050 to 3442; it is mapped back."""
    fixed = struct.pack(">hBhiiI", 3442, 0, 493, 1, 0, 0) + b"\0\0\0\0"
    frame = struct.pack(">II", 4 + len(fixed), 1 << 24 | len(fixed)) + fixed
    (command,) = take_commands(bytearray(frame))
    assert command.code == 200050


def test_large_code_takes_a_json_header() -> None:
    """200053 does not fit the binary header: it is sent with a JSON one."""
    wire = encode_command(RemotingCommand(200053, is_binary=True))
    assert wire[4] == 0
    (command,) = take_commands(bytearray(wire))
    assert command.code == 200053


def test_good_commands_before_a_faulty_one_are_not_lost() -> None:
    """The good ones come out first; the fault is reported by the next call."""
    good = encode_command(RemotingCommand(34))
    bad_header = struct.pack(">II", 6, 2) + b"{x"
    buffer = bytearray(good + bad_header + good)
    assert [command.code for command in take_commands(buffer)] == [34]
    with pytest.raises(PeerError, match="JSON header"):
        take_commands(buffer)


@pytest.mark.parametrize("chunk_bytes", [1 << 20, 50_000, 20_011])
def test_large_frames_between_small_ones(chunk_bytes: int) -> None:
    """However the bytes arrive: all commands, in order, and a fault behind them last."""
    sizes = [5, LARGE_FRAME_BYTES, 0, 3 * LARGE_FRAME_BYTES, LARGE_FRAME_BYTES + 1, 7]
    bodies = [bytes([number]) * size for number, size in enumerate(sizes)]
    wire = b"".join([encode_command(RemotingCommand(34, None, body)) for body in bodies])
    wire += struct.pack(">II", LARGE_FRAME_BYTES + 2, 2) + b"{x" + bytes(LARGE_FRAME_BYTES - 4)
    connection = RemotingConnection(now=0.0)
    events = [
        event
        for start in range(0, len(wire), chunk_bytes)
        for event in connection.receive_data(wire[start : start + chunk_bytes], now=0.0)
    ]
    *commands, fault = events
    assert [command.body for command in commands if isinstance(command, RemotingCommand)] == bodies
    assert isinstance(fault, Fault)


def read_in_place(connection: RemotingConnection, wire: bytes, sizes: list[int]) -> list[object]:
    """As a loop that reads into buffers does: *sizes* are the bytes that come together."""
    events: list[object] = []
    at = turn = 0
    while at < len(wire):
        wanted = connection.wanted_buffer()
        size = sizes[turn % len(sizes)]
        part = wire[at : at + (size if wanted is None else min(size, len(wanted)))]
        if wanted is None:
            events += connection.receive_data(memoryview(bytearray(part)), now=1.0)
        else:
            wanted[: len(part)] = part
            events += connection.filled(len(part), now=1.0)
        at += len(part)
        turn += 1
    return events


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from([PrivateCode.SEND, 34, SEND_BATCH]), st.integers(0, 5)),
        max_size=12,
    ),
    st.lists(st.sampled_from([1, 63, 64, 9_000, 40_000, 262_144]), min_size=1, max_size=4),
)
def test_frames_read_in_place_are_those_that_were_sent(
    frames: list[tuple[int, int]], sizes: list[int]
) -> None:
    """
    Large SEND frames lie in memory of their own and client batches in that of a read,
    whatever comes before, behind or in pieces.
    """
    if 1 in sizes:
        sizes.append(262_144)  # or it takes minutes
    bodies = [bytes([at]) * (size * LARGE_FRAME_BYTES // 2) for at, (_, size) in enumerate(frames)]
    wire = encode_commands(
        [
            RemotingCommand(code, None, body, is_binary=True)
            for (code, _), body in zip(frames, bodies, strict=True)
        ]
    )
    events = read_in_place(RemotingConnection(now=0.0), wire, sizes)
    commands = [event for event in events if isinstance(event, RemotingCommand)]
    assert [(command.code, bytes(command.body)) for command in commands] == [
        (code, body) for (code, _), body in zip(frames, bodies, strict=True)
    ]
    assert len(commands) == len(events)


def test_a_fault_behind_batches_costs_none_of_them() -> None:
    """They are read in place; what is no frame ends the connection, and is its last event."""
    batch = encode_command(RemotingCommand(SEND_BATCH, None, bytes(5000)))
    connection = RemotingConnection(now=0.0)
    assert connection.wanted_buffer() is None, "nothing is expected yet"
    events = [*connection.receive_data(batch, now=0.0)]
    assert connection.wanted_buffer() is not None
    wire = batch * 3 + struct.pack(">II", 3, 0) + batch
    events += read_in_place(connection, wire, [len(wire)])
    assert [getattr(event, "code", None) for event in events] == [SEND_BATCH] * 4 + [None]
    assert isinstance(events[-1], Fault)
    assert connection.is_closing


def test_memory_for_batches_is_let_go_with_them() -> None:
    """A client that sends something else, or more than fits, is read as ever."""
    batch = encode_command(RemotingCommand(SEND_BATCH, None, bytes(5000)))
    connection = RemotingConnection(now=0.0)
    connection.receive_data(batch, now=0.0)
    read_in_place(connection, encode_command(RemotingCommand(34)), [1 << 18])
    assert connection.wanted_buffer() is None
    connection.receive_data(batch, now=0.0)
    large = encode_command(RemotingCommand(SEND_BATCH, None, bytes(1 << 19)))
    events = read_in_place(connection, large, [1 << 18])
    assert [bytes(event.body) for event in events if isinstance(event, RemotingCommand)] == [
        bytes(1 << 19)
    ]


def test_a_head_alone_buys_no_memory() -> None:
    """The length in a head is a claim: memory is made for what has come, and four times that."""
    connection = RemotingConnection(now=0.0)
    head = encode_command(RemotingCommand(PrivateCode.SEND, None, bytes(1 << 20), is_binary=True))
    connection.receive_data(head[:64], now=0.0)
    assert connection.wanted_buffer() is None
    connection.receive_data(head[64 : 1 << 18], now=0.0)
    assert connection.wanted_buffer() is None
    connection.receive_data(head[1 << 18 : 1 << 19], now=0.0)
    assert len(connection.wanted_buffer() or b"") == len(head) - (1 << 19)


@pytest.mark.parametrize(
    "head",
    [
        struct.pack(">II", FRAME_BYTES_MAX + 1, 10),  # too large
        struct.pack(">II", 3, 0),  # no room for the second word
        struct.pack(">II", 10, 7),  # header longer than the frame
    ],
)
def test_bad_length_is_refused_at_once(head: bytes) -> None:
    """A length that cannot be is refused before its bytes are waited for."""
    with pytest.raises(PeerError, match="limit"):
        take_frames(bytearray(head))


def test_largest_frame_waits_for_its_bytes() -> None:
    """A frame of exactly 16 MiB is accepted, so its first bytes wait for the rest."""
    buffer = bytearray(struct.pack(">II", FRAME_BYTES_MAX, 10))
    assert take_frames(buffer) == []
    assert len(buffer) == 8


def test_half_handshake_is_closed_after_10_s() -> None:
    """No whole frame 10 s after its first byte: the end, even when bytes trickle in."""
    connection = RemotingConnection(now=100.0)
    connection.receive_data(b"\0", now=150.0)
    connection.receive_data(b"\0", now=159.0)
    assert connection.deadline == 160.0
    assert connection.handle_deadline(now=159.9) == ()
    (fault,) = connection.handle_deadline(now=160.0)
    assert isinstance(fault, Fault)
    assert connection.is_closing


def test_a_connection_that_is_kept_for_later_may_say_nothing_for_120_s() -> None:
    """Java connects to all its name servers, and again every 3 s where it was closed."""
    connection = RemotingConnection(now=100.0)
    assert connection.deadline == 220.0
    (fault,) = connection.handle_deadline(now=220.0)
    assert isinstance(fault, Fault)


def test_idle_is_closed_after_120_s() -> None:
    """Sending counts as life (Netty's all-idle handler); silence both ways ends it."""
    connection = RemotingConnection(now=0.0)
    connection.receive_data(encode_command(RemotingCommand(34)), now=5.0)
    assert connection.deadline == 125.0
    connection.send([RemotingCommand(40, flag=2)])
    assert connection.data_to_send()
    assert connection.handle_deadline(now=125.0) == ()
    assert connection.deadline == 245.0
    (fault,) = connection.handle_deadline(now=245.0)
    assert isinstance(fault, Fault)


@pytest.mark.parametrize("cut", [1, 40_000, 90_000, 90_100, 130_000, 190_000])
def test_a_large_send_frame_keeps_its_memory(cut: int) -> None:
    """Whatever the reads are like, what comes behind it is not lost; other codes get bytes."""
    bodies = [bytes([number]) * 90_000 for number in range(3)]
    codes = [PrivateCode.SEND, PrivateCode.SEND, PrivateCode.DELIVER]
    wire = b"".join(
        [
            encode_command(RemotingCommand(code, None, body, opaque=index, is_binary=True))
            for index, (code, body) in enumerate(zip(codes, bodies, strict=True))
        ]
    )
    connection = RemotingConnection(now=0.0)
    events = [
        *connection.receive_data(wire[:cut], now=0.0),
        *connection.receive_data(wire[cut:-1], now=0.0),
        *connection.receive_data(wire[-1:], now=0.0),
    ]
    commands = [event for event in events if isinstance(event, RemotingCommand)]
    assert [(c.code, c.opaque, bytes(c.body)) for c in commands] == [
        (code, index, body) for index, (code, body) in enumerate(zip(codes, bodies, strict=True))
    ]
    changeable = [c for c in commands if isinstance(c.body, memoryview) and not c.body.readonly]
    assert {c.code for c in changeable} <= {PrivateCode.SEND}
    if cut < 90_000:
        assert len(changeable) > 0
