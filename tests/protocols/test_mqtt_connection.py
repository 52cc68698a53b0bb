"""Who may speak when, and what a fault costs: that connection, in the words of its version."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.mqtt.connection import (
    EARLY_BYTES_HIGH,
    EARLY_BYTES_MAX,
    TURN_PACKETS_MAX,
    MqttConnection,
)
from protocols.mqtt.encoder import PINGRESP, encode_packet
from protocols.mqtt.events import OVERRUN, Acked, Behind, Event, Lost, Overrun, PublishRun
from protocols.mqtt.mapping import Heads
from protocols.mqtt.packets import (
    V5,
    V311,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Puback,
    Publish,
    Reason,
    Subscribe,
    SubscribeItem,
)
from protocols.mqtt.properties import Property
from protocols.mqtt.states import Limits, State

LIMITS = Limits(receive_max=4, topic_alias_max=2, packet_bytes_max=1000)


def connected(version: int = V5, *, keep_alive_s: int = 0, expiry_s: int = 0) -> MqttConnection:
    """A connection whose CONNECT was accepted at time 0, with nothing left to send."""
    connection = MqttConnection(LIMITS, now=0.0)
    properties = ((int(Property.SESSION_EXPIRY), expiry_s),) if version == V5 else ()
    wire = encode_packet(Connect(version, "c", properties=properties), version)
    assert isinstance(connection.receive_data(wire, now=0.0)[0], Connect)
    connection.accept(Connack(), Heads("c"), keep_alive_s=keep_alive_s, now=0.0)
    connection.data_to_send()
    return connection


def wire_of(*packets: Packet, version: int = V5) -> bytes:
    return b"".join(encode_packet(packet, version) for packet in packets)


def told(connection: MqttConnection) -> bytes:
    return connection.data_to_send()


STREAM = wire_of(
    Connect(V5, "c"),
    Publish("t/one", b"1", 1, packet_id=1),
    Publish("t/one", b"2" * 200, 1, packet_id=2),
    Publish("t/two", b"3", 0),
    Puback(9),
    Puback(10),
    Pingreq(),
    Subscribe(3, (SubscribeItem("a/#", 1),)),
    Publish("t/one", b"4", 1, packet_id=4, properties=((Property.USER_PROPERTY, ("a", "b")),)),
    Connect(V5, "again"),
)


def run_in_pieces(wire: bytes, cuts: list[int]) -> tuple[list[object], bytes]:
    """Events, runs taken apart into single publishes and acks, and all bytes sent."""
    connection = MqttConnection(LIMITS, now=0.0)
    events: list[Event] = []
    places = [0, *sorted(cuts), len(wire)]
    for begin, end in itertools.pairwise(places):
        new = connection.receive_data(wire[begin:end], now=1.0)
        if any(isinstance(event, Connect) for event in new):
            connection.accept(Connack(), Heads("c"), keep_alive_s=0, now=1.0)
            new += connection.continue_reading(now=1.0)
        events += new
    flat: list[object] = []
    for event in events:
        if isinstance(event, PublishRun):
            ids = [event.packet_ids[at : at + 2] for at in range(0, len(event.packet_ids), 2)]
            ids = ids or [b""] * len(event.messages)
            flat += [
                (message.head.subject, message.body, packet_id)
                for message, packet_id in zip(event.messages, ids, strict=True)
            ]
        elif isinstance(event, Acked):
            flat += event.packet_ids
        else:
            flat.append(event)
    return flat, connection.data_to_send()


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_chunking_is_invisible(cuts: list[int]) -> None:
    """However TCP cuts the same bytes, the same events come out, faults included."""
    assert run_in_pieces(STREAM, cuts) == run_in_pieces(STREAM, [])


LIKE = b"".join(
    [
        *[wire_of(Publish("t/one", b"%04d" % at, 1, packet_id=1 + at), version=V311)
          for at in range(150)],
        wire_of(Publish("t/one", b"longer", 1, packet_id=999), version=V311),
        *[wire_of(Publish("t/two", b"%04d" % at, 0), version=V311) for at in range(150)],
        wire_of(Pingreq(), Publish("t/two", b"", 0), version=V311),
    ]
)  # fmt: skip


@settings(max_examples=25)
@given(cuts=st.lists(st.integers(0, len(LIKE)), max_size=4))
def test_like_publishes_are_the_same_however_they_are_cut(cuts: list[int]) -> None:
    """As rows, in runs and one by one."""
    start = wire_of(Connect(V311, "c"), version=V311)
    flat, sent = run_in_pieces(start + LIKE, [len(start), *[len(start) + cut for cut in cuts]])
    assert [item for item in flat if isinstance(item, tuple)][1:] == [
        *[("t/one", b"%04d" % at, (1 + at).to_bytes(2, "big")) for at in range(150)],
        ("t/one", b"longer", (999).to_bytes(2, "big")),
        *[("t/two", b"%04d" % at, b"") for at in range(150)],
        ("t/two", b"", b""),
    ]
    assert sent.endswith(b"\xd0\0")


PADDABLE = (
    Publish("t/one", b"1", 1, packet_id=1),
    Publish("t/one", b"2" * 200, 1, packet_id=2),
    Publish("t/one", b"3" * 200, 1, packet_id=3),
    Puback(9),
    Subscribe(3, (SubscribeItem("a/#", 1),)),
    Publish("t/one", b"4", 0),
    Pingreq(),
)


def padded(wire: bytes, count: int) -> bytes:
    """The packet with *count* bytes too many in its length, as many as there is room for."""
    stop = next(index for index in range(1, 5) if wire[index] < 0x80) + 1
    count = min(count, 5 - stop)
    pad = b"\x80" * (count - 1) + b"\0"
    return wire[: stop - 1] + bytes((wire[stop - 1] | 0x80,)) + pad + wire[stop:]


@given(
    version=st.sampled_from((V311, V5)),
    which=st.integers(0, len(PADDABLE) - 1),
    count=st.integers(1, 3),
    cuts=st.lists(st.integers(0, 460), max_size=3),
)
def test_a_length_is_as_short_as_it_can_be(
    version: int, which: int, count: int, cuts: list[int]
) -> None:
    """[MQTT-1.5.5-1]: 5.0 hears 0x81 once all before it was heard, 3.1.1 never asked for it."""
    wires = [wire_of(packet, version=version) for packet in (Connect(version, "c"), *PADDABLE)]
    events, sent = run_in_pieces(b"".join(wires), [])
    wires[which + 1] = padded(wires[which + 1], count)
    wire = b"".join(wires)
    found, told = run_in_pieces(wire, [cut for cut in cuts if cut <= len(wire)])
    if version == V311:
        assert (found, told) == (events, sent)
        return
    assert found[:-1] == events[: which + 1]
    assert isinstance(found[-1], Lost)
    assert told.endswith(b"\xe0\x01\x81")


@pytest.mark.parametrize(("version", "answer"), [(V311, b"\x20\x02\0\0"), (V5, b"\x81")])
def test_so_is_the_length_of_connect(version: int, answer: bytes) -> None:
    connect = padded(wire_of(Connect(version, "c"), version=version), 2)
    _, sent = run_in_pieces(connect, [])
    assert answer in sent
    assert sent[0] == 0x20


def test_one_byte_at_a_time() -> None:
    """The slowest cut of all ends in the same events and the fault as the last of them."""
    flat, sent = run_in_pieces(STREAM, list(range(len(STREAM))))
    assert flat[1] == ("t/one", b"1", b"\0\1")
    assert isinstance(flat[-1], Lost)
    assert sent.endswith(bytes((0xE0, 1, Reason.PROTOCOL_ERROR)))


def test_mqtt_3_1_0_1_connect_comes_first() -> None:
    """Anything else is answered by a closed socket."""
    connection = MqttConnection(LIMITS, now=0.0)
    events = connection.receive_data(wire_of(Pingreq()), now=0.0)
    assert isinstance(events[0], Lost)
    assert connection.is_closing
    assert told(connection) == b""


def test_mqtt_3_1_0_2_a_second_connect_is_a_protocol_error() -> None:
    """Version 5 is told 0x82; 3.1.1 is closed."""
    connection = connected()
    connection.receive_data(wire_of(Connect(V5, "c")), now=0.0)
    assert told(connection) == b"\xe0\x01\x82"
    old = connected(V311)
    old.receive_data(wire_of(Connect(V311, "c"), version=V311), now=0.0)
    assert old.is_closing
    assert told(old) == b""


def test_much_behind_connect_is_left_in_the_kernel() -> None:
    """The owner hears of it while CONNECT is in work; who sends on regardless is closed."""
    connection = MqttConnection(LIMITS, now=0.0)
    connection.receive_data(wire_of(Connect(V5, "c")), now=0.0)
    assert connection.receive_data(bytes(1000), now=0.0) == []
    assert connection.receive_data(bytes(EARLY_BYTES_HIGH), now=0.0) == [Behind()]
    (lost,) = connection.receive_data(bytes(EARLY_BYTES_MAX), now=0.0)
    assert isinstance(lost, Lost)


def test_many_small_packets_take_turns() -> None:
    """A read full of them does not hold the loop: others are heard in between."""
    connection, count = connected(V5), 2 * TURN_PACKETS_MAX
    wire = wire_of(Pingreq()) * count + wire_of(Publish("t", b"", 2, packet_id=7))
    assert connection.receive_data(wire, now=0.0) == [Behind()]
    assert len(told(connection)) == len(PINGRESP) * TURN_PACKETS_MAX
    assert connection.is_behind
    assert connection.next_turn(now=0.0) == [Behind()]
    assert [type(event) for event in connection.next_turn(now=0.0)] == [Publish]
    assert not connection.is_behind
    assert connection.next_turn(now=0.0) == []


def test_connect_must_come_in_time() -> None:
    """10 s after the socket opened it is closed, also when a byte of it comes now and then."""
    connection = MqttConnection(LIMITS, now=100.0)
    for second, byte in enumerate(wire_of(Connect(V5, "c"))[:9], 101):
        assert connection.receive_data(bytes((byte,)), now=float(second)) == []
    assert connection.deadline == 110.0
    assert connection.handle_deadline(now=109.9) == []
    assert isinstance(connection.handle_deadline(now=110.0)[0], Lost)
    assert connection.is_closing


def test_a_connect_that_came_waits_for_us() -> None:
    """As long as its owner takes; who has done its part is not silent."""
    connection = MqttConnection(LIMITS, now=100.0)
    assert len(connection.receive_data(wire_of(Connect(V5, "c")), now=101.0)) == 1
    assert connection.deadline is None
    assert connection.handle_deadline(now=110.0) == []
    assert not connection.is_closing


def test_mqtt_3_1_2_22_keep_alive_ends_a_silent_connection() -> None:
    """1.5 times keep alive after the last whole packet, half packets do not count; 0x8D."""
    connection = connected(keep_alive_s=10)
    assert connection.deadline == 15.0
    connection.receive_data(wire_of(Pingreq()), now=4.0)
    assert connection.deadline == 19.0
    connection.receive_data(b"\xc0", now=8.0)
    assert connection.deadline == 19.0
    told(connection)
    assert connection.handle_deadline(now=19.0) == [
        Lost(Reason.KEEP_ALIVE_TIMEOUT, "silent for 1.5 times its keep alive")
    ]
    assert told(connection) == b"\xe0\x01\x8d"


def test_who_is_not_read_is_not_silent() -> None:
    """Its pings are in the kernel while its publishes wait."""
    connection = connected(keep_alive_s=10)
    connection.is_deaf = True
    assert connection.handle_deadline(now=15.0) == []
    assert connection.deadline == 30.0
    connection.is_deaf = False
    told(connection)
    (lost,) = connection.handle_deadline(now=30.0)
    assert isinstance(lost, Lost)


def test_what_comes_behind_connect_waits() -> None:
    """Packets sent before CONNACK are neither dropped nor handled early."""
    connection = MqttConnection(LIMITS, now=0.0)
    wire = wire_of(Connect(V5, "c"), Publish("a", b"1", 1, packet_id=1))
    assert [type(event) for event in connection.receive_data(wire, now=0.0)] == [Connect]
    connection.accept(Connack(), Heads("c"), keep_alive_s=0, now=0.0)
    (run,) = connection.continue_reading(now=0.0)
    assert isinstance(run, PublishRun)
    assert run.messages[0].body == b"1"


def test_a_refused_connect_drops_what_is_behind_it() -> None:
    """CONNACK with the reason, then nothing more is read."""
    connection = MqttConnection(LIMITS, now=0.0)
    connection.receive_data(wire_of(Connect(V311, "c"), Pingreq(), version=V311), now=0.0)
    connection.refuse(Reason.NOT_AUTHORIZED)
    assert told(connection) == b"\x20\x02\x00\x05"
    assert connection.state is State.CLOSED


@pytest.mark.parametrize(
    ("level", "answer"),
    [(6, b"\x20\x03\x00\x84\x00"), (3, b"\x20\x02\x00\x01"), (0x83, b"\x20\x02\x00\x01")],
)
def test_mqtt_3_1_2_2_unknown_level(level: int, answer: bytes) -> None:
    """In 5.0's form what is not known at all; in 3.x's what is 3.1's under the later name."""
    connection = MqttConnection(LIMITS, now=0.0)
    wire = bytearray(wire_of(Connect(V311, "c"), version=V311))
    wire[8] = level
    assert isinstance(connection.receive_data(bytes(wire), now=0.0)[0], Lost)
    assert told(connection) == answer


@pytest.mark.parametrize(
    ("version", "answer"), [(V5, b"\x20\x03\x00\x95\x00"), (V311, b"")], ids=["5.0", "3.1.1"]
)
@pytest.mark.parametrize("step", [1, 12])
def test_a_connect_that_is_too_large_is_told_so(version: int, answer: bytes, step: int) -> None:
    """By its length and version alone, however they come; 3.1.1 has no word for it."""
    connection = MqttConnection(LIMITS._replace(connect_bytes_max=1000), now=0.0)
    wire = wire_of(Connect(version, "c" * 1000), version=version)
    events = [
        event
        for at in range(0, 24, step)
        for event in connection.receive_data(wire[at : at + step], now=0.0)
    ]
    assert [type(event) for event in events] == [Lost]
    assert told(connection) == answer


def test_topic_aliases_stand_for_names() -> None:
    """Defined with a name, used without; 0, too high and unknown have their reasons."""
    alias = int(Property.TOPIC_ALIAS)
    connection = connected()
    events = connection.receive_data(
        wire_of(
            Publish("a/b", b"1", properties=((alias, 1),)),
            Publish("", b"2", properties=((alias, 1),)),
            Publish("", b"again", properties=((alias, 1),)),
            Publish("c", b"3", properties=((alias, 1),)),  # it stands for another name from here on
            Publish("", b"4", properties=((alias, 1),)),
        ),
        now=0.0,
    )
    runs = [event for event in events if isinstance(event, PublishRun)]
    assert [run.messages[0].head.subject for run in runs] == ["a/b", "a/b", "a/b", "c", "c"]
    for value, reason in ((0, 0x94), (3, 0x94), (2, 0x82)):
        bad = connected()
        (lost,) = bad.receive_data(wire_of(Publish("", b"", properties=((alias, value),))), now=0.0)
        assert isinstance(lost, Lost)
        assert lost.reason == reason


@pytest.mark.parametrize("qos", [1, 2])
def test_over_the_receive_maximum(qos: int) -> None:
    """
    The fifth unanswered publish of a client that was told 4 is the last that is read. Those before
    it are answered; then it is told why.
    """
    connection = connected()
    for number in range(1, 5):
        wire = wire_of(Publish("a", b"", qos, packet_id=number))
        assert not isinstance(connection.receive_data(wire, now=0.0)[0], Lost)
    wire = wire_of(Publish("a", b"", qos, packet_id=5))
    assert connection.receive_data(wire, now=0.0) == [Overrun()]
    assert connection.receive_data(wire, now=0.0) == []
    assert connection.deadline is None
    connection.acknowledge(b"\x00\x01")
    connection.fail(Reason.RECEIVE_MAXIMUM_EXCEEDED, OVERRUN)
    assert connection.data_to_send() == b"\x40\x02\x00\x01" + b"\xe0\x01\x93"


@pytest.mark.parametrize("size", [1, 64])
def test_a_run_over_the_receive_maximum_is_cut(size: int) -> None:
    """Of publishes that came in one read, those go on that may."""
    connection = connected()
    payload = bytes(size)
    wire = b"".join(wire_of(Publish("a", payload, 1, packet_id=n)) for n in range(1, 200))
    *runs, last = connection.receive_data(wire, now=0.0)
    assert last == Overrun()
    assert b"".join(run.packet_ids for run in runs if isinstance(run, PublishRun)) == bytes(
        (0, 1, 0, 2, 0, 3, 0, 4)
    )


def test_answered_publishes_do_not_count() -> None:
    """PUBACK frees a place."""
    connection = connected()
    for number in range(1, 20):
        packet_id = number.to_bytes(2, "big")
        connection.receive_data(wire_of(Publish("a", b"", 1, packet_id=number)), now=0.0)
        connection.acknowledge(packet_id)
    assert connection.incoming.unanswered_count == 0
    assert not connection.is_closing


def test_a_packet_over_the_limit_is_refused_by_its_length() -> None:
    """Before its body is read: 0x95."""
    connection = connected()
    (lost,) = connection.receive_data(bytes((0x30, 0xE9, 0x07)), now=0.0)
    assert isinstance(lost, Lost)
    assert told(connection) == b"\xe0\x01\x95"


def test_mqtt_3_14_2_2_an_ending_session_cannot_be_prolonged() -> None:
    """DISCONNECT may not turn expiry 0 into another; from another value it may."""
    packet = Disconnect(0, ((Property.SESSION_EXPIRY, 5),))
    (lost,) = connected().receive_data(wire_of(packet), now=0.0)
    assert isinstance(lost, Lost)
    (event,) = connected(expiry_s=9).receive_data(wire_of(packet), now=0.0)
    assert isinstance(event, Disconnect)


def test_after_disconnect_nothing_is_processed() -> None:
    """[MQTT-3.14.4-1 and -2]"""
    connection = connected()
    events = connection.receive_data(wire_of(Disconnect(), Pingreq()), now=0.0)
    assert [type(event) for event in events] == [Disconnect]
    assert told(connection) == b""


@given(st.binary(max_size=80))
def test_garbage_ends_one_connection_and_raises_nothing(garbage: bytes) -> None:
    """Whatever comes is an event."""
    connection = connected()
    connection.receive_data(garbage, now=0.0)
    MqttConnection(LIMITS, now=0.0).receive_data(garbage, now=0.0)
