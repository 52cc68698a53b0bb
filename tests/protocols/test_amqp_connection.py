"""The connection without sockets: handshake, heartbeats, close both ways, faults."""

import pamqp.commands as amqp
import pamqp.frame
import pytest

from protocols.amqp import codec
from protocols.amqp.connection import (
    ALLOWED,
    CHANNEL_MAX,
    CLOSE_S_MAX,
    HOLDS,
    AmqpConnection,
    State,
)
from protocols.amqp.events import (
    ChannelEnded,
    ChannelOpened,
    Ended,
    Event,
    LoginRequested,
    OpenRequested,
)
from protocols.amqp.fields import encode_table, table_of
from protocols.amqp.replies import AmqpFault

CAPABLE = {"capabilities": {"authentication_failure_close": True, "connection.blocked": True}}


def wire(method: object, channel: int = 0) -> bytes:
    return pamqp.frame.marshal(method, channel)


def start_ok(response: str = "\0guest\0guest", mechanism: str = "PLAIN") -> bytes:
    return wire(amqp.Connection.StartOk(CAPABLE, mechanism, response, "en_US"))


TUNE_OK = wire(amqp.Connection.TuneOk(0, 8192, 10))
OPEN = wire(amqp.Connection.Open("/"))
CHANNEL_OPEN = wire(amqp.Channel.Open(), 1)


def make() -> AmqpConnection:
    return AmqpConnection(now=0.0, body_bytes_max=1 << 20)


def sent(connection: AmqpConnection) -> list[tuple[int, object]]:
    """What the connection has queued, as pamqp reads it."""
    data, found = connection.data_to_send(), []
    while data:
        used, channel, frame = pamqp.frame.unmarshal(data)
        found.append((channel, frame))
        data = data[used:]
    return found


def names(connection: AmqpConnection) -> list[str]:
    return [frame.name for _, frame in sent(connection)]


def running() -> AmqpConnection:
    """Past the handshake, channel 1 open, nothing left to send."""
    connection = make()
    connection.receive_data(codec.PROTOCOL_HEADER + start_ok(), now=0.0)
    connection.accept_login(now=0.0)
    connection.receive_data(TUNE_OK + OPEN, now=0.0)
    connection.accept_open(now=0.0)
    connection.receive_data(CHANNEL_OPEN, now=0.0)
    connection.data_to_send()
    return connection


def close_of(connection: AmqpConnection) -> amqp.Connection.Close:
    """The connection.close it has sent."""
    frames = [frame for _, frame in sent(connection)]
    assert isinstance(frames[-1], amqp.Connection.Close), frames
    return frames[-1]


def test_the_handshake_in_one_segment_step_by_step() -> None:
    """A client that sends everything ahead is answered in order, as the owner decides."""
    connection = make()
    events = connection.receive_data(
        codec.PROTOCOL_HEADER + start_ok() + TUNE_OK + OPEN + CHANNEL_OPEN, now=0.0
    )
    assert [type(event) for event in events] == [LoginRequested]
    assert events[0][:2] == ("guest", b"guest")
    assert names(connection) == ["Connection.Start"]
    events = connection.accept_login(now=0.0)
    assert events == [OpenRequested("/")]
    assert names(connection) == ["Connection.Tune"]
    assert connection.accept_open(now=0.0) == [ChannelOpened(1)]
    assert names(connection) == ["Connection.OpenOk", "Channel.OpenOk"]
    assert connection.frame_bytes_max == 8192


@pytest.mark.parametrize("size", [1, 3, 11])
def test_chunking_is_invisible(size: int) -> None:
    """However TCP cuts the handshake and what follows, the same events come out."""
    data = OPEN + CHANNEL_OPEN + wire(amqp.Basic.Ack(3), 1) + wire(amqp.Basic.Qos(), 9)

    def run(size: int) -> list[Event]:
        connection, events = make(), []
        connection.receive_data(codec.PROTOCOL_HEADER + start_ok(), now=0.0)
        connection.accept_login(now=0.0)
        for start in range(0, len(TUNE_OK + data), size):
            events += connection.receive_data((TUNE_OK + data)[start : start + size], now=0.0)
            events += connection.accept_open(now=0.0)
        return events

    assert run(size) == run(10_000)
    assert isinstance(run(size)[-1], Ended)


def test_amqplain_is_a_bare_table() -> None:
    """AMQPLAIN's response is a table without its length."""
    connection = make()
    response = encode_table(table_of({"LOGIN": "u", "PASSWORD": "p"}))[4:]
    events = connection.receive_data(
        codec.PROTOCOL_HEADER + start_ok(response.decode(), "AMQPLAIN"), now=0.0
    )
    assert events[0][:2] == ("u", b"p")


@pytest.mark.parametrize("header", [b"GET / HTTP/1.1\r\n\r\n", b"AMQP\x00\x01\x00\x00"])
def test_another_protocol_gets_our_header_and_the_door(header: bytes) -> None:
    """Who speaks something else is told the version we speak."""
    connection = make()
    events = connection.receive_data(header, now=0.0)
    assert isinstance(events[0], Ended)
    assert connection.data_to_send() == codec.PROTOCOL_HEADER
    assert connection.is_closing


def test_a_silent_handshake_ends_after_ten_seconds() -> None:
    """Nothing heard, or the handshake not done: the socket closes at 10 s."""
    connection = make()
    assert connection.deadline == 10.0
    assert connection.handle_deadline(now=9.9) == []
    assert isinstance(connection.handle_deadline(now=10.0)[0], Ended)
    assert connection.is_closing


def test_a_wrong_password_is_403_with_ids_zero() -> None:
    """Clients that announce it get connection.close; the socket waits for close-ok."""
    connection = make()
    connection.receive_data(codec.PROTOCOL_HEADER + start_ok(), now=0.0)
    connection.refuse_login(now=0.0)
    close = close_of(connection)
    assert (close.reply_code, close.class_id, close.method_id) == (403, 0, 0)
    assert close.reply_text.startswith("ACCESS_REFUSED - Login was refused")
    connection.receive_data(wire(amqp.Connection.CloseOk()), now=0.0)
    assert connection.is_closing


def test_an_unknown_mechanism_is_refused() -> None:
    """No mechanism of ours: refused like a wrong password."""
    connection = make()
    connection.receive_data(codec.PROTOCOL_HEADER + start_ok("x", "GSSAPI"), now=0.0)
    assert close_of(connection).reply_code == 403


def test_heartbeats_go_out_at_half_time_and_silence_ends_it() -> None:
    """At 10 s: one every 5 s when idle; dead after 20 s without any byte."""
    connection = running()
    assert connection.deadline == 5.0
    connection.handle_deadline(now=5.0)  # has sent open-ok since
    assert connection.data_to_send() == b""
    connection.handle_deadline(now=10.0)
    assert connection.data_to_send() == codec.HEARTBEAT
    connection.receive_data(codec.HEARTBEAT, now=12.0)
    connection.handle_deadline(now=31.9)
    assert not connection.is_closing
    assert "heartbeats" in connection.handle_deadline(now=36.9)[0].reason
    assert connection.is_closing


def test_silence_proves_nothing_while_we_do_not_read() -> None:
    """Back-pressure leaves heartbeats in the kernel: that is no death."""
    connection = running()
    connection.is_deaf = True
    for now in range(5, 100, 5):
        connection.handle_deadline(now=float(now))
    assert not connection.is_closing


@pytest.mark.parametrize(
    ("method", "channel", "code", "ids"),
    [
        (amqp.Basic.Qos(), 9, 504, (0, 0)),  # channel not open
        (amqp.Channel.Open(), 1, 504, (20, 10)),  # second open
        (amqp.Basic.Qos(), 0, 504, (60, 10)),  # not for channel 0
        (amqp.Connection.StartOk({}, "PLAIN", "", "en_US"), 0, 503, (10, 11)),
        (amqp.Channel.Flow(False), 1, 540, (20, 20)),
    ],
)
def test_faults_carry_code_and_ids(
    method: object, channel: int, code: int, ids: tuple[int, int]
) -> None:
    """Connection faults name the method they blame."""
    connection = running()
    events = connection.receive_data(wire(method, channel), now=1.0)
    assert isinstance(events[-1], Ended)
    close = close_of(connection)
    assert (close.reply_code, close.class_id, close.method_id) == (code, *ids) or (
        code == 504 and channel == 9 and close.reply_code == 504
    )


@pytest.mark.parametrize(
    "tune", [amqp.Connection.TuneOk(0, 1024, 0), amqp.Connection.TuneOk(0, 1 << 20, 0),
             amqp.Connection.TuneOk(4000, 8192, 0)]
)  # fmt: skip
def test_tune_ok_may_only_lower(tune: object) -> None:
    """Above our limits or under 4096 bytes: 530."""
    connection = make()
    connection.receive_data(codec.PROTOCOL_HEADER + start_ok(), now=0.0)
    connection.accept_login(now=0.0)
    connection.receive_data(wire(tune), now=0.0)
    assert close_of(connection).reply_code == 530


def test_channel_count_has_a_limit() -> None:
    """2047 channels, and 530 for one more."""
    connection = running()
    for number in range(2, CHANNEL_MAX + 1):
        connection.receive_data(wire(amqp.Channel.Open(), number), now=0.0)
    connection.data_to_send()
    connection.receive_data(wire(amqp.Channel.Open(), 4000), now=0.0)
    assert close_of(connection).reply_code == 530


def test_a_closed_channel_is_ignored_until_close_ok() -> None:
    """After our channel.close its frames are void; after close-ok the number is free."""
    connection = running()
    connection.close_channel(1, AmqpFault(404, "no queue 'q'", method=0x0032000A))
    ((channel, close),) = sent(connection)
    assert (channel, close.reply_code, close.class_id, close.method_id) == (1, 404, 50, 10)
    assert connection.receive_data(wire(amqp.Basic.Ack(1), 1), now=0.0) == []
    assert connection.receive_data(wire(amqp.Basic.Qos(), 1), now=0.0) == []
    connection.receive_data(wire(amqp.Channel.CloseOk(), 1), now=0.0)
    assert connection.receive_data(CHANNEL_OPEN, now=0.0) == [ChannelOpened(1)]


def test_the_client_closes_a_channel() -> None:
    """The owner gives back what the channel held before close-ok leaves."""
    connection = running()
    events = connection.receive_data(wire(amqp.Channel.Close(200, "", 0, 0), 1), now=0.0)
    assert events == [ChannelEnded(1)]
    assert sent(connection) == []
    connection.end_channel(1)
    assert names(connection) == ["Channel.CloseOk"]


def test_the_client_closes_the_connection() -> None:
    """
    Close-ok when the owner has given back what it held, or after a limit; then the client closes
    the socket, or we do after a limit.
    """
    connection = running()
    events = connection.receive_data(wire(amqp.Connection.Close(200, "", 0, 0)), now=0.5)
    assert events == [Ended("")]
    assert names(connection) == []
    connection.end_close(now=1.0)
    assert names(connection) == ["Connection.CloseOk"]
    assert not connection.is_closing
    connection.handle_deadline(now=1.0 + CLOSE_S_MAX)
    assert connection.is_closing


def test_a_client_does_not_wait_for_ever_for_its_close_ok() -> None:
    """A store that is away does not hold it up; its late answer is none any more."""
    connection = running()
    connection.receive_data(wire(amqp.Connection.Close(200, "", 0, 0)), now=1.0)
    assert connection.handle_deadline(now=1.0 + CLOSE_S_MAX) == []
    assert names(connection) == ["Connection.CloseOk"]
    connection.end_close(now=2.0 + CLOSE_S_MAX)
    assert names(connection) == []


def test_after_our_close_only_close_ok_counts() -> None:
    """What was on its way is void."""
    connection = running()
    connection.close(AmqpFault(320, "shutdown"), now=1.0)
    assert connection.receive_data(wire(amqp.Basic.Ack(1), 1) + OPEN, now=1.0) == []
    connection.receive_data(wire(amqp.Connection.CloseOk()), now=1.0)
    assert connection.is_closing


def test_blocked_is_said_once_and_only_to_those_who_hear() -> None:
    """connection.blocked and unblocked, each once."""
    connection = running()
    connection.block("low on disk")
    connection.block("low on disk")
    connection.unblock()
    connection.unblock()
    assert names(connection) == ["Connection.Blocked", "Connection.Unblocked"]


def test_the_state_table_is_complete() -> None:
    """Every state says what it allows; those that hold allow nothing."""
    assert set(ALLOWED) == set(State)
    assert all(not ALLOWED[state] for state in HOLDS)
