"""
One MQTT connection: who may speak when, and what that means. Bytes in, events out.

Knows order and time; opens no socket, reads no clock. PING is answered here, topic aliases are
resolved here, and whatever the peer does wrong ends here, in the words of its version.
"""

from typing import Final

from protocols.mqtt.auth_turns import BEFORE_CONNACK, AuthTurns
from protocols.mqtt.codec import (
    MISNAMED,
    VERSION_BYTES,
    decode_packet,
    find_body,
    peek_version,
    take_pubacks,
)
from protocols.mqtt.encoder import PINGRESP, encode_packet, encode_puback_run
from protocols.mqtt.events import Acked, Behind, Event, Lost, Overrun
from protocols.mqtt.fields import (
    OverrunError,
    PacketError,
    SilentError,
    malformed,
    protocol_error,
)
from protocols.mqtt.incoming import Incoming
from protocols.mqtt.mapping import Heads
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
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Reason,
    Subscribe,
    Unsubscribe,
)
from protocols.mqtt.properties import Property, find_int, find_str
from protocols.mqtt.states import (
    ALLOWED,
    CLIENT_DISCONNECT_REASONS,
    SERVER_ONLY,
    Limits,
    State,
)
from protocols.tuples import new_tuple

EARLY_BYTES_MAX: Final = 1 << 20
"""What may wait behind a CONNECT that is not answered yet."""

EARLY_BYTES_HIGH: Final = 1 << 15
"""From here on the owner is told to leave the rest in the kernel."""

TURN_PACKETS_MAX: Final = 1100
"""Packets or runs in a turn: one over a Receive Maximum is seen before the others are told."""


class MqttConnection:
    """
    Sans-I/O. After every call the driver sends ``data_to_send()`` and sets its timer.

    The owner answers a ``Connect`` by ``accept``, then ``continue_reading``, or by ``refuse``.
    """

    def __init__(self, limits: Limits, *, now: float) -> None:
        self.state = State.AWAITING_CONNECT
        self.deadline: float | None = now + limits.connect_s_max
        self.version = V311
        self.incoming = Incoming(limits)
        self.is_bridge = False
        self.refused: Reason | None = None
        self.auth: AuthTurns | None = None
        """Of a client that named a method."""

        self.is_deaf = False
        """It is not read: the client may well have sent something."""

        self.is_behind = False
        """What it said waits here: it is not to be read."""

        self._limits = limits
        self._silence_s_max = 0.0
        self._session_expiry_s = 0
        self._rest = bytearray()
        self._needed = 0
        self._out: list[bytes] = []

    # ── driver ──────────────────────────────────────────────────────────────────────────

    @property
    def is_closing(self) -> bool:
        return self.state is State.CLOSED

    def data_to_send(self) -> bytes:
        out = self._out
        if not out:
            return b""
        self._out = []
        return out[0] if len(out) == 1 else b"".join(out)

    def receive_data(self, data: bytes, *, now: float) -> list[Event]:
        """The events that *data* completes; a fault of the peer is the last of them."""
        if self._rest or self.state is not State.CONNECTED:
            if self.state in (State.ENDING, State.CLOSED):
                return []  # what was on its way when it ended
            self._rest += data
            if self.state is State.OPENING:
                return self._wait()
            if len(self._rest) < self._needed:
                return []
            return self.next_turn(now=now)
        return self._parse(data, now)

    def continue_reading(self, *, now: float) -> list[Event]:
        """The events of what came behind the CONNECT, or behind an AUTH."""
        if self._is_too_early():
            return [self._refuse_early()]
        return self.next_turn(now=now)

    def next_turn(self, *, now: float) -> list[Event]:
        """The events of what the last turn left."""
        data = bytes(self._rest)
        self._rest.clear()
        return self._parse(data, now) if data else []

    def handle_deadline(self, *, now: float) -> list[Event]:
        if self.deadline is None or now < self.deadline or self.state is State.CLOSED:
            return []
        if self.state is State.CONNECTED and self.is_deaf:
            self.deadline = now + self._silence_s_max
            return []
        if self.state is State.CONNECTED:
            return [self.fail(Reason.KEEP_ALIVE_TIMEOUT, "silent for 1.5 times its keep alive")]
        return [self.fail(Reason.PROTOCOL_ERROR, "no CONNECT in time")]

    # ── owner ───────────────────────────────────────────────────────────────────────────

    def accept(self, connack: Connack, heads: Heads, *, keep_alive_s: int, now: float) -> None:
        """Answer CONNECT; *keep_alive_s* is the value in force (0: none)."""
        assert self.state is State.OPENING
        self.state = State.CONNECTED
        if self.auth is not None:
            self.auth.end()
        self.incoming.heads = heads
        self._silence_s_max = keep_alive_s * 1.5  # [MQTT-3.1.2-22]
        self.deadline = now + self._silence_s_max if keep_alive_s else None
        self._out.append(encode_packet(connack, self.version))

    def challenge(self, packet: Auth) -> None:
        """Ask the client; before CONNACK ``continue_reading`` comes next."""
        if self.state is State.OPENING:
            self.state = State.PROVING
        self._out.append(encode_packet(packet, V5))

    def refuse(self, reason: Reason, properties: PacketProperties = ()) -> None:
        """Answer CONNECT with a refusal and close."""
        self.refused = reason
        self._out.append(encode_packet(Connack(reason, False, properties), self.version))
        self._close()

    def queue(self, data: bytes) -> None:
        """Bytes of whole packets for the peer."""
        if self.state is State.CONNECTED or self.state is State.ENDING:
            self._out.append(data)

    def send(self, packet: Packet) -> None:
        self.queue(encode_packet(packet, self.version))

    def acknowledge(self, packet_ids: bytes) -> None:
        """PUBACK a run, two bytes each; its ids are free again."""
        self.incoming.unanswered_count -= len(packet_ids) >> 1
        self.queue(encode_puback_run(packet_ids))

    def fail(
        self,
        reason: Reason,
        text: str,
        *,
        is_silent: bool = False,
        properties: PacketProperties = (),
    ) -> Lost:
        """End the connection; a connected 5.0 peer is told why."""
        is_told = self.version == V5 and self.state in (State.CONNECTED, State.ENDING)
        if is_told and not is_silent:
            self._out.append(encode_packet(Disconnect(reason, properties), V5))
        self._close()
        return Lost(reason, text)

    # ── inside ──────────────────────────────────────────────────────────────────────────

    def _close(self) -> None:
        self.state = State.CLOSED
        self.deadline = None
        self.is_behind = False
        self._rest.clear()

    def _is_too_early(self) -> bool:
        """Whether a client with a method did not wait for CONNACK [MQTT-3.1.2-30]."""
        return self.auth is not None and bool(self._rest) and self._rest[0] not in BEFORE_CONNACK

    def _refuse_early(self) -> Lost:
        text = f"first byte 0x{self._rest[0]:02X} before CONNACK"
        if self.state is State.CONNECTED:
            return self.fail(Reason.PROTOCOL_ERROR, text)
        self.refuse(Reason.PROTOCOL_ERROR)
        return Lost(Reason.PROTOCOL_ERROR, text)

    def _wait(self) -> list[Event]:
        if self._is_too_early():
            return [self._refuse_early()]
        if len(self._rest) <= EARLY_BYTES_HIGH:
            return []
        if len(self._rest) <= EARLY_BYTES_MAX:
            self.is_behind = True
            return [Behind()]
        return [self.fail(Reason.QUOTA_EXCEEDED, "too much behind an unanswered CONNECT")]

    def _parse(self, data: bytes, now: float) -> list[Event]:
        events: list[Event] = []
        position, end, left_count = 0, len(data), TURN_PACKETS_MAX
        self.is_behind = False
        try:
            while position < end and left_count:
                left_count -= 1
                taken = self._take(data, position, events)
                if taken == position or self.state in (State.OPENING, State.CLOSED):
                    position = taken
                    break
                position = taken
        except OverrunError:
            self.state = State.ENDING
            self.deadline = None
            return [*events, Overrun()]
        except PacketError as error:
            is_silent = isinstance(error, SilentError)
            if self.state is State.PROVING and not is_silent:
                self._out.append(encode_packet(Connack(error.reason), V5))  # [MQTT 5, 4.13.1]
            events.append(self.fail(error.reason, str(error), is_silent=is_silent))
        if self.state is State.CLOSED:
            return events
        if position and self._silence_s_max:
            self.deadline = now + self._silence_s_max
        if position < end:
            self._rest += data[position:]
            if not left_count:
                self.is_behind = True
                events.append(Behind())
        return events

    def _take(self, data: bytes, position: int, events: list[Event]) -> int:
        """Eat one packet or one run; the same position: nothing is whole."""
        first = data[position]
        if self.state is State.CONNECTED:
            if first in self.incoming.firsts:
                stop = self.incoming.take(data, position, self.version, events)
                if stop > position:
                    return stop
            elif first == 0x40:
                packet_ids: list[int] = []
                stop = take_pubacks(data, position, packet_ids)
                if stop > position:
                    events.append(new_tuple(Acked, (packet_ids,)))
                    return stop
        if first < 0x10 and self.state is not State.AWAITING_CONNECT:
            raise protocol_error("there is no packet type 0")  # whatever its length may be
        start, end = find_body(data, position)
        if not start:
            self._needed = len(data) - position + 1
            return position
        if self.state is State.AWAITING_CONNECT:
            if first >> 4 != PacketType.CONNECT:
                raise protocol_error(f"first byte 0x{first:02X} where CONNECT is due")
            if len(data) < min(end, start + VERSION_BYTES):
                self._needed = min(end, start + VERSION_BYTES) - position
                return position
        self._check_size(data, position, start, end)
        if end > len(data):
            self._needed = end - position
            return position
        self._accept(self._decode(data, position, start, end), events)
        return end

    def _check_size(self, data: bytes, position: int, start: int, end: int) -> None:
        """By the length field, before the body is waited for."""
        limits, size = self._limits, end - position
        if self.state is State.CONNECTED:
            if size > limits.packet_bytes_max:
                raise PacketError(Reason.PACKET_TOO_LARGE, f"{size} bytes")
        elif size > limits.connect_bytes_max:
            if self.state is State.AWAITING_CONNECT and peek_version(data, start, end) == V5:
                self._out.append(encode_packet(Connack(Reason.PACKET_TOO_LARGE), V5))
            text = f"{PacketType(data[position] >> 4).name} of {size} bytes"
            raise PacketError(Reason.PACKET_TOO_LARGE, text)

    def _decode(self, data: bytes, position: int, start: int, end: int) -> Packet:
        if self.state is not State.AWAITING_CONNECT:
            self._check_type(data[position], end - start)
            return decode_packet(data, position, start, end, self.version)
        level = peek_version(data, start, end)
        if not level:
            raise malformed("no protocol name of MQTT")
        if level not in self._limits.levels:
            version = V311 if level in (V31, V311, MISNAMED) else V5  # [MQTT-3.1.2-2]
            self._out.append(encode_packet(Connack(Reason.UNSUPPORTED_PROTOCOL_VERSION), version))
            raise PacketError(Reason.UNSUPPORTED_PROTOCOL_VERSION, f"protocol level {level}")
        if data[position] != 0x10 and level != V31:
            raise malformed(f"first byte 0x{data[position]:02X} of CONNECT")
        self.version = level
        try:
            return decode_packet(data, position, start, end, level)
        except PacketError as error:
            if level == V5 and not isinstance(error, SilentError):
                self._out.append(encode_packet(Connack(error.reason), V5))
            raise

    def _check_type(self, first: int, size: int) -> None:
        """What only a server sends, or nobody: whatever is in it."""
        packet_type = first >> 4
        if packet_type == PacketType.AUTH and self.version == V5 and self.auth is None:
            raise protocol_error("AUTH without an authentication method")  # [MQTT-4.12.0-7]
        if packet_type in SERVER_ONLY:
            if packet_type == PacketType.PINGRESP and size:
                raise SilentError(Reason.MALFORMED_PACKET, "PINGRESP with a body")
            if packet_type != PacketType.CONNACK and first & 15:
                raise malformed(f"first byte 0x{first:02X}")
            raise protocol_error(f"{PacketType(packet_type).name} from a client")

    def _accept(self, packet: Packet, events: list[Event]) -> None:
        if not isinstance(packet, ALLOWED[self.state]):
            raise protocol_error(f"{type(packet).__name__} while {self.state.name}")
        if isinstance(packet, Publish):
            events.append(self.incoming.accept(packet, self.version))
        elif isinstance(packet, Puback):
            events.append(Acked([packet.packet_id]))
        elif isinstance(packet, Pingreq):
            self._out.append(PINGRESP)
        elif isinstance(packet, Disconnect):
            events.append(self._accept_disconnect(packet))
        elif isinstance(packet, Connect):
            self.state = State.OPENING
            self.deadline = None  # the peer has done its part
            self.is_bridge = packet.is_bridge
            self._session_expiry_s = find_int(packet.properties, Property.SESSION_EXPIRY, 0)
            method = find_str(packet.properties, Property.AUTHENTICATION_METHOD)
            self.auth = AuthTurns(method) if method is not None else None
            events.append(packet)
        elif isinstance(packet, Auth):
            assert self.auth is not None
            self.auth.take(packet)
            if self.state is State.PROVING:
                self.state = State.OPENING
            events.append(packet)
        elif isinstance(packet, Pubrec | Pubrel | Pubcomp | Subscribe | Unsubscribe):
            events.append(packet)

    def _accept_disconnect(self, packet: Disconnect) -> Disconnect:
        expiry_s = find_int(packet.properties, Property.SESSION_EXPIRY, -1)
        if expiry_s > 0 and not self._session_expiry_s:
            raise protocol_error("a session that ends now cannot be kept")  # [MQTT-3.14.2-2]
        if find_str(packet.properties, Property.SERVER_REFERENCE) is not None:
            raise SilentError(Reason.PROTOCOL_ERROR, "a server reference from a client")
        if packet.reason not in CLIENT_DISCONNECT_REASONS:
            text = f"DISCONNECT with reason 0x{packet.reason:02X}"
            raise SilentError(Reason.PROTOCOL_ERROR, text)
        self._close()
        return packet
