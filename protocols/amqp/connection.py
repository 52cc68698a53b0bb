"""
One AMQP connection without I/O: order, time and channel numbers.

Bytes in, events out. Login and open are decided by the owner: while it decides, what the client
sent ahead stays unread, so pipelined handshakes work. Source: AMQP 0-9-1 section 2.2.4 and 4.2;
behaviour where the text is silent as RabbitMQ 3.10.
"""

from collections.abc import Callable
from enum import Enum
from typing import Final

from protocols.amqp import codec, replies
from protocols.amqp.codec import Call, FrameReader, Heartbeat, Item
from protocols.amqp.events import (
    ChannelEnded,
    ChannelOpened,
    Ended,
    Event,
    LoginRequested,
    OpenRequested,
    SecretRenewed,
)
from protocols.amqp.fields import Table, is_true
from protocols.amqp.login import EXTERNAL, LOGINS, MECHANISMS, SERVER_PROPERTIES
from protocols.amqp.method_codec import encode_method
from protocols.amqp.methods import (
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    ChannelFlowOk,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    ConnectionUnblocked,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
    Method,
    name_of,
)
from protocols.amqp.replies import AmqpFault
from protocols.errors import PeerError

CHANNEL_MAX: Final = 2047
"""RabbitMQ's default."""

FRAME_BYTES_MAX: Final = 131072
"""RabbitMQ's default, offered in tune."""

FRAME_BYTES_MIN: Final = 4096
"""AMQP 0-9-1, constant frame-min-size; also the limit before tune-ok."""

HANDSHAKE_S_MAX: Final = 10.0
CLOSE_S_MAX: Final = 5.0
"""How long we wait for close-ok, or for the client to close its socket after ours."""


KNOWN_HEADERS: Final = (codec.PROTOCOL_HEADER, codec.OLD_PROTOCOL_HEADER)


class State(Enum):
    AWAITING_HEADER = "awaiting the protocol header"
    AWAITING_START_OK = "awaiting connection.start-ok"
    LOGIN = "login being judged"
    AWAITING_TUNE_OK = "awaiting connection.tune-ok"
    AWAITING_OPEN = "awaiting connection.open"
    OPENING = "virtual host being judged"
    RUNNING = "running"
    RELEASING = "close heard"
    CLOSING = "close sent"
    LINGERING = "close-ok sent"
    CLOSED = "closed"


OVER: Final = frozenset({State.RELEASING, State.CLOSING, State.LINGERING, State.CLOSED})
"""``Ended`` has been told."""

HOLDS: Final = frozenset(
    {State.LOGIN, State.OPENING, State.RELEASING, State.LINGERING, State.CLOSED}
)
"""Nothing is read in these."""

ALLOWED: Final[dict[State, tuple[type[Method], ...]]] = {
    State.AWAITING_HEADER: (),
    State.AWAITING_START_OK: (ConnectionStartOk, ConnectionClose),
    State.LOGIN: (),
    State.AWAITING_TUNE_OK: (ConnectionTuneOk, ConnectionClose),
    State.AWAITING_OPEN: (ConnectionOpen, ConnectionClose),
    State.OPENING: (),
    State.RUNNING: (ConnectionClose, ConnectionCloseOk, ConnectionUpdateSecret),
    State.RELEASING: (),
    State.CLOSING: (ConnectionClose, ConnectionCloseOk),
    State.LINGERING: (),
    State.CLOSED: (),
}
"""Methods of class connection, by state (AMQP 0-9-1 section 2.2.4)."""


class AmqpConnection:
    """
    Server side of one connection; see ``protocols.driver.SansIoConnection``.

    ``client_properties`` and ``virtual_host`` are there once the client has sent them.
    """

    def __init__(
        self,
        *,
        now: float,
        body_bytes_max: int,
        heartbeat_s: int = 60,
        server_properties: Table = SERVER_PROPERTIES,
        has_certificates: bool = False,
    ) -> None:
        self.state = State.AWAITING_HEADER
        self.deadline: float | None = now + HANDSHAKE_S_MAX
        self.is_closing = False
        self.frame_bytes_max = FRAME_BYTES_MIN
        self.client_properties: Table = {}
        self.virtual_host = ""
        self.heartbeat_s = heartbeat_s
        self.is_blocked = False
        self.is_deaf = False
        """The owner has stopped reading the socket: silence proves nothing."""
        self._server_properties = server_properties
        self._has_certificates = has_certificates
        self._reader = FrameReader(frame_bytes_max=FRAME_BYTES_MIN, body_bytes_max=body_bytes_max)
        self._header = b""
        self._mechanism = ""
        self._out: list[bytes] = []
        self._has_sent = False
        self._heard = now
        self._channels: dict[int, bool] = {}  # number → False open, True closing
        self._channel_max = CHANNEL_MAX

    # ── driver ──────────────────────────────────────────────────────────────────────────

    def receive_data(self, data: bytes, *, now: float) -> list[Event]:
        """The events that *data* completes; a fault of the peer is the last (``Ended``)."""
        self._heard = now
        if self.state is State.AWAITING_HEADER:
            self._header += data
            if not any(known.startswith(self._header[:8]) for known in KNOWN_HEADERS):
                self._out.append(codec.PROTOCOL_HEADER)
                return self._end("no AMQP 0-9-1 header")
            if len(self._header) < 8:
                return []
            data = self._header[8:]
            self.state = State.AWAITING_START_OK
            self.send(
                0, ConnectionStart(0, 9, self._server_properties, self._mechanisms(), b"en_US")
            )
        if self.state in (State.RELEASING, State.LINGERING, State.CLOSED):
            return []
        self._reader.feed(data)
        return self._drain(now)

    def handle_deadline(self, *, now: float) -> list[Event]:
        """Heartbeats both ways, and the limits on handshake and close."""
        if self.deadline is None or now < self.deadline:
            return []
        if self.state is not State.RUNNING:
            if self.state is State.RELEASING:
                self.end_close(now=now)  # it takes too long to let the client wait
                return []
            return self._end("" if self.state in OVER else f"{self.state.value} for too long")
        if self.is_deaf:
            self._heard = now
        if now - self._heard >= 2 * self.heartbeat_s:
            return self._end(f"missed heartbeats from client, timeout: {self.heartbeat_s}s")
        if not self._has_sent:
            self._out.append(codec.HEARTBEAT)
        self._has_sent = False
        self.deadline = now + self.heartbeat_s / 2
        return []

    def data_to_send(self) -> bytes:
        if not self._out:
            return b""
        data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        self._out.clear()
        self._has_sent = True
        return data

    # ── the owner's decisions ───────────────────────────────────────────────────────────

    def accept_login(self, *, now: float) -> list[Event]:
        """The name and password are right. Returns what the client had sent ahead."""
        if self.state is not State.LOGIN:
            return []
        self.state = State.AWAITING_TUNE_OK
        self.send(0, ConnectionTune(CHANNEL_MAX, FRAME_BYTES_MAX, self.heartbeat_s))
        return self._drain(now)

    def refuse_login(self, *, now: float) -> list[Event]:
        """403 for clients that understand it; for others the socket just closes."""
        text = (
            f"Login was refused using authentication mechanism {self._mechanism}. "
            "For details see the broker logfile."
        )
        fault = AmqpFault(replies.ACCESS_REFUSED, text, is_hard=True)
        if self.has_capability("authentication_failure_close"):
            return self.close(fault, now=now)
        return self._end("login refused")

    def accept_secret(self) -> None:
        """The new secret is right."""
        if self.state is State.RUNNING:
            self.send(0, ConnectionUpdateSecretOk())

    def accept_open(self, *, now: float) -> list[Event]:
        """The virtual host exists and may be used. Returns what the client had sent ahead."""
        if self.state is not State.OPENING:
            return []
        self.state = State.RUNNING
        self.deadline = now + self.heartbeat_s / 2 if self.heartbeat_s else None
        self.send(0, ConnectionOpenOk())
        return self._drain(now)

    def close(self, fault: AmqpFault, *, now: float) -> list[Event]:
        """End the connection in AMQP's words; from now on only close-ok is heard."""
        if self.state in OVER:
            return []
        self.state = State.CLOSING
        self.deadline = now + CLOSE_S_MAX
        method = fault.method
        self.send(0, ConnectionClose(fault.code, str(fault), method >> 16, method & 0xFFFF))
        self._channels.clear()
        return [Ended(str(fault))]

    def close_channel(self, channel: int, fault: AmqpFault) -> None:
        """End one channel; its frames are ignored until the client's close-ok."""
        if self.state is not State.RUNNING or self._channels.get(channel) is not False:
            return
        self._channels[channel] = True
        method = fault.method
        self.send(channel, ChannelClose(fault.code, str(fault), method >> 16, method & 0xFFFF))

    def end_channel(self, channel: int) -> None:
        """Answer the client's channel.close."""
        if self._channels.pop(channel, None) is not None and self.state is State.RUNNING:
            self.send(channel, ChannelCloseOk())

    def end_close(self, *, now: float) -> None:
        """
        Answer the client's connection.close; then it closes the socket (it may be reading still).

        After the answer its auto-delete and exclusive queues are gone, as at RabbitMQ: who
        connects again at once declares new ones.
        """
        if self.state is State.RELEASING:
            self.send(0, ConnectionCloseOk())
            self.state = State.LINGERING
            self.deadline = now + CLOSE_S_MAX

    def block(self, reason: str) -> None:
        """Ask a client that can hear it to publish nothing for now."""
        if not self.is_blocked and self.has_capability("connection.blocked"):
            self.is_blocked = True
            self.send(0, ConnectionBlocked(reason))

    def unblock(self) -> None:
        if self.is_blocked:
            self.is_blocked = False
            self.send(0, ConnectionUnblocked())

    def send(self, channel: int, method: Method) -> None:
        if self.state is not State.CLOSED:
            self._out.append(codec.method_frame(channel, method))

    def send_content(self, channel: int, method: Method, properties: bytes, body: bytes) -> None:
        self._out.append(
            codec.content_frames(
                channel, encode_method(method), properties, body, self.frame_bytes_max
            )
        )

    def write(self, frames: bytes) -> None:
        """Queue frames that the caller has encoded (deliveries, acks)."""
        self._out.append(frames)

    def has_capability(self, name: str) -> bool:
        field = self.client_properties.get("capabilities")
        return field is not None and isinstance(field.value, dict) and is_true(field.value, name)

    def is_open(self, channel: int) -> bool:
        return self._channels.get(channel) is False

    # ── inside ──────────────────────────────────────────────────────────────────────────

    def _drain(self, now: float) -> list[Event]:
        events: list[Event] = []
        try:
            while self.state not in HOLDS:
                # one at a time until running: any of them may be the last we shall read
                is_busy = self.state is State.RUNNING or self.state is State.CLOSING
                items = self._reader.take(0 if is_busy else 1)
                if not items:
                    break
                for item in items:
                    self._accept(item, events, now)
        except AmqpFault as fault:
            is_closing = self.state is State.CLOSING
            events += self._end(str(fault)) if is_closing else self.close(fault, now=now)
        return events

    def _accept(self, item: Item, events: list[Event], now: float) -> None:
        if isinstance(item, Heartbeat):
            return
        channel = item.channel
        is_closing = self._channels.get(channel)
        if is_closing is False and self.state is State.RUNNING:
            if not isinstance(item, Call) or item.method_id >> 16 != 20:
                events.append(item)
                return
        elif self.state in OVER and channel:
            return
        if isinstance(item, Call):
            if item.method_id >> 16 == 10:
                self._accept_connection(item, events, now)
            elif self.state is State.RUNNING:
                self._accept_channel(item, events, is_closing)
            elif self.state is not State.CLOSING:
                self._unexpected(item)
            return
        if is_closing is None and self.state is not State.CLOSING:
            raise AmqpFault(replies.CHANNEL_ERROR, "expected 'channel.open'")

    def _unexpected(self, item: Call) -> None:
        raise AmqpFault(
            replies.COMMAND_INVALID,
            f"{name_of(item.method_id)} while {self.state.value}",
            method=item.method_id,
        )

    def _accept_connection(self, item: Call, events: list[Event], now: float) -> None:
        method = item.method
        if not isinstance(method, ALLOWED[self.state]) or item.channel:
            if self.state is not State.CLOSING:
                self._unexpected(item)
            return
        events += _CONNECTION[type(method)](self, method, now)

    def _accept_channel(self, item: Call, events: list[Event], is_closing: bool | None) -> None:
        method, channel = item.method, item.channel
        if channel == 0:
            raise AmqpFault(
                replies.CHANNEL_ERROR,
                f"{name_of(item.method_id)} on channel 0",
                method=item.method_id,
            )
        if is_closing:
            if isinstance(method, ChannelCloseOk):
                del self._channels[channel]
            elif isinstance(method, ChannelClose):
                self.send(channel, ChannelCloseOk())
            return
        if isinstance(method, ChannelOpen):
            if is_closing is False:
                raise AmqpFault(
                    replies.CHANNEL_ERROR, "second 'channel.open' seen", method=item.method_id
                )
            self._open_channel(channel, item.method_id, events)
        elif is_closing is None:
            raise AmqpFault(replies.CHANNEL_ERROR, "expected 'channel.open'", method=item.method_id)
        elif isinstance(method, ChannelClose):
            self._reader.forget(channel)
            events.append(ChannelEnded(channel))
        elif isinstance(method, ChannelFlow):
            if not method.active:
                raise AmqpFault(replies.NOT_IMPLEMENTED, "active=false", method=item.method_id)
            self.send(channel, ChannelFlowOk(active=True))

    def _open_channel(self, channel: int, method_id: int, events: list[Event]) -> None:
        if len(self._channels) >= self._channel_max:
            raise AmqpFault(
                replies.NOT_ALLOWED,
                f"number of channels opened ({len(self._channels)}) has reached the negotiated "
                f"channel_max ({self._channel_max})",
                method=method_id,
            )
        self._channels[channel] = False
        self.send(channel, ChannelOpenOk())
        events.append(ChannelOpened(channel))

    def _start_ok(self, method: Method, now: float) -> list[Event]:
        assert isinstance(method, ConnectionStartOk)
        self.client_properties = method.client_properties
        self._mechanism = method.mechanism
        self.state = State.LOGIN
        if method.mechanism not in self._mechanisms().decode().split():
            return self.refuse_login(now=now)
        try:
            user, password = LOGINS[method.mechanism](method.response)
        except PeerError as error:
            raise AmqpFault(replies.SYNTAX_ERROR, str(error), method=0x000A000B) from error
        is_external = method.mechanism == EXTERNAL
        return [LoginRequested(user, password, method.client_properties, is_external)]

    def _mechanisms(self) -> bytes:
        return MECHANISMS + (b" EXTERNAL" if self._has_certificates else b"")

    def _tune_ok(self, method: Method, now: float) -> list[Event]:
        assert isinstance(method, ConnectionTuneOk)
        frame_max = method.frame_max or FRAME_BYTES_MAX
        if not FRAME_BYTES_MIN <= frame_max <= FRAME_BYTES_MAX:
            raise _bad_tune("frame_max", method.frame_max, FRAME_BYTES_MAX)
        if method.channel_max > CHANNEL_MAX:
            raise _bad_tune("channel_max", method.channel_max, CHANNEL_MAX)
        self.frame_bytes_max = self._reader.frame_bytes_max = frame_max
        self._channel_max = method.channel_max or CHANNEL_MAX
        self.heartbeat_s = method.heartbeat
        self.state = State.AWAITING_OPEN
        return []

    def _open(self, method: Method, now: float) -> list[Event]:
        assert isinstance(method, ConnectionOpen)
        self.virtual_host = method.virtual_host
        self.state = State.OPENING
        return [OpenRequested(method.virtual_host)]

    def _update_secret(self, method: Method, now: float) -> list[Event]:
        assert isinstance(method, ConnectionUpdateSecret)
        return [SecretRenewed(method.new_secret)]

    def _close(self, method: Method, now: float) -> list[Event]:
        """The client closes: it is answered when what the connection held is given back."""
        was_closing, was_running = self.state is State.CLOSING, self.state is State.RUNNING
        self.state = State.RELEASING
        self.deadline = now + CLOSE_S_MAX
        self._channels.clear()
        if not was_running:
            self.end_close(now=now)
        return [] if was_closing else [Ended("")]

    def _close_ok(self, method: Method, now: float) -> list[Event]:
        return self._end("") if self.state is State.CLOSING else []

    def _end(self, reason: str) -> list[Event]:
        was_over = self.state in OVER
        self.state = State.CLOSED
        self.deadline = None
        self.is_closing = True
        self._channels.clear()
        return [] if was_over else [Ended(reason)]


_CONNECTION: Final[dict[type[Method], Callable[[AmqpConnection, Method, float], list[Event]]]] = {
    ConnectionStartOk: AmqpConnection._start_ok,
    ConnectionTuneOk: AmqpConnection._tune_ok,
    ConnectionOpen: AmqpConnection._open,
    ConnectionUpdateSecret: AmqpConnection._update_secret,
    ConnectionClose: AmqpConnection._close,
    ConnectionCloseOk: AmqpConnection._close_ok,
}


def _bad_tune(name: str, asked: int, limit: int) -> AmqpFault:
    return AmqpFault(
        replies.NOT_ALLOWED,
        f"negotiated {name} = {asked} is outside the allowed range (maximum {limit})",
        method=0x000A001F,
    )
