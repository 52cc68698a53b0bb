"""
The one socket loop under every sans-I/O connection.

A connection object knows bytes, order and time; this driver owns the socket, the timer and the
batching: one ``receive_data`` per read, one ``write`` per connection and tick, one timer per
connection, reading paused while the peer does not read or the pipeline is congested.
"""

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

from protocols import clock, unix_sockets
from protocols.addresses import socket_address, split_bind
from protocols.proxying import proxied

logger = logging.getLogger("tidegate.driver")

EventT = TypeVar("EventT", covariant=True)
E = TypeVar("E")

WRITE_BYTES_HIGH = 1 << 20
"""Bytes a peer may leave unread before we stop reading from it (reliability rule: 1 MiB)."""

BACKLOG: Final = 4096
"""
Connections that the kernel keeps until they are accepted; it keeps no more than
``net.core.somaxconn``, which is 4096 since Linux 5.4. One that finds no place is not refused: its
client tries again after 1, 3, 7 and 15 s, and may find none again.
"""

ACCEPTS_AT_ONCE: Final = 64
"""Others get a turn in between."""

WRITE_STALL_S_MAX = 60.0
"""A peer that reads nothing for so long is cut off."""


class SansIoConnection(Protocol[EventT]):
    """What a protocol's ``connection`` module provides."""

    deadline: float | None
    """On the monotonic clock: when ``handle_deadline`` wants to be called; None: never."""

    @property
    def is_closing(self) -> bool:
        """True: send what is queued, then close the socket."""
        ...

    def receive_data(self, data: bytes, *, now: float) -> Sequence[EventT]: ...

    def handle_deadline(self, *, now: float) -> Sequence[EventT]: ...

    def data_to_send(self) -> bytes:
        """All bytes queued since the last call; empty if none."""
        ...


class InPlaceConnection(SansIoConnection[EventT], Protocol[EventT]):
    """One that may have memory of its own for what comes next."""

    def receive_data(self, data: bytes | memoryview, *, now: float) -> Sequence[EventT]:
        """*data* is void afterwards."""
        ...

    def pieces_to_send(self) -> Sequence[bytes]:
        """``data_to_send`` without a copy of what is large."""
        ...

    def wanted_buffer(self) -> memoryview | None:
        """Where the next bytes go; None: anywhere, they are given to ``receive_data``."""
        ...

    def filled(self, count: int, *, now: float) -> Sequence[EventT]:
        """So many bytes were read into the buffer that was wanted."""
        ...


class Flushes:
    """
    The connections of one loop with something to write at the end of the tick.

    One callback serves all of them: with hundreds of devices, a callback each costs as much as
    the parsing of what they sent.
    """

    def __init__(self) -> None:
        self._due: list[Driver[Any]] = []
        self._is_scheduled = False

    def add(self, driver: "Driver[Any]") -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run)
        self._due.append(driver)

    def _run(self) -> None:
        self._is_scheduled = False
        self.flush()

    def flush(self) -> None:
        """All of them, now."""
        due, self._due = self._due, []
        for driver in due:
            try:
                driver.flush()
            except Exception as error:  # of one connection: the others' bytes leave all the same
                context = {"message": f"flushing {driver.peer} failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)


READ_BYTES: Final = 256 << 10

BURST_BYTES: Final = 128 << 10
"""A peer that has so much to say at once has more: others, and what was made of it, go first."""

_spaces: WeakKeyDictionary[asyncio.AbstractEventLoop, memoryview] = WeakKeyDictionary()
"""Where connections of a loop read what is copied at once."""

_flushes: WeakKeyDictionary[asyncio.AbstractEventLoop, Flushes] = WeakKeyDictionary()


def _flushes_of(loop: asyncio.AbstractEventLoop) -> Flushes:
    found = _flushes.get(loop)
    if found is None:
        found = _flushes[loop] = Flushes()
    return found


def flusher(loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
    """Writes at once what would be written at the end of the tick: somebody waits for just that."""
    return _flushes_of(loop).flush


def _space_of(loop: asyncio.AbstractEventLoop) -> memoryview:
    found = _spaces.get(loop)
    if found is None:
        found = _spaces[loop] = memoryview(bytearray(READ_BYTES))
    return found


def _nobody(*told: object) -> None:
    """Who owned the connection."""


class Traffic:
    """Bytes of many connections, as their protocols see them: without TLS, with WebSocket."""

    def __init__(self) -> None:
        self.received_bytes = 0
        self.sent_bytes = 0


UNCOUNTED: Final = Traffic()
"""Of connections whose owner does not ask."""


class Driver(Generic[E]):
    """
    Runs one connection on one socket.

    An ``asyncio.Protocol`` by what it does, not by class: a class of its own can be compiled, and
    with hundreds of small packets in a tick what surrounds them costs as much as they do.

    The owner gives *handle* (all events of one read, in order) and *lost* (called once, when
    the socket is gone); *resumed* when a slow peer reads again; *half_closed* when it says no
    more: True leaves the socket open for answers until the owner closes it. The owner calls
    ``flush_soon`` after it queued bytes on the connection outside *handle*; however often, the
    tick ends in one write. *linger_s*: how long a peer may take to read the last words of a
    connection that we end; 0: close at once.
    """

    def __init__(
        self,
        connection: SansIoConnection[E],
        *,
        handle: Callable[["Driver[E]", Sequence[E]], None],
        lost: Callable[["Driver[E]"], None],
        opened: Callable[["Driver[E]"], None] | None = None,
        resumed: Callable[["Driver[E]"], None] | None = None,
        half_closed: Callable[["Driver[E]"], bool] | None = None,
        linger_s: float = 0.0,
        traffic: Traffic = UNCOUNTED,
    ) -> None:
        self.connection = connection
        self.transport: asyncio.Transport | None = None
        self.proxied = proxied.get()
        """What a load balancer said of the peer; None: there is none."""

        self.peer = ""
        self.heard_at = clock.monotonic()
        """When the peer last sent something."""

        self._handle = handle
        self._lost = lost
        self._opened = opened
        self._resumed = resumed
        self._half_closed = half_closed
        self._is_half_closed = False
        self._linger_s = linger_s
        self._traffic = traffic
        self._is_lingering = False
        self._loop = asyncio.get_running_loop()
        self._flushes = _flushes_of(self._loop)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._is_flush_due = False
        self._is_paused_by_peer = False
        self._is_paused_by_owner = False
        self._stalled_since: float | None = None

    @property
    def protocol(self) -> asyncio.Protocol:
        """Itself, for the event loop."""
        return cast(asyncio.Protocol, self)

    # ── asyncio.Protocol ────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are asyncio.Transports by what they do, not by class
        transport = self.transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=WRITE_BYTES_HIGH)
        name = transport.get_extra_info("peername")
        self.peer = socket_address(name) or str(name or "") or unix_sockets.next_peer()
        if self.proxied is not None and self.proxied.peer:
            self.peer = self.proxied.peer
        if self._opened is not None:
            self._opened(self)
        self._after()

    def data_received(self, data: bytes) -> None:
        if self._is_lingering:
            return
        self._traffic.received_bytes += len(data)
        now = self.heard_at = clock.monotonic()
        events = self.connection.receive_data(data, now=now)
        if events:
            self._handle(self, events)
        self._after()
        if len(data) >= BURST_BYTES and self.transport is not None:
            self.transport.pause_reading()  # the loop would read on until there is no more
            self._loop.call_soon(self._set_reading)

    def eof_received(self) -> bool:
        """A peer that says no more has left, unless its owner has an answer for it."""
        if self._half_closed is None or self._is_lingering or self.transport is None:
            return False
        if self.transport.get_extra_info("sslcontext") is not None:
            return False  # asyncio's TLS cannot write after that
        self._is_half_closed = self._half_closed(self)
        return self._is_half_closed

    def pause_writing(self) -> None:
        self._is_paused_by_peer = True
        self._stalled_since = clock.monotonic()
        self._set_reading()
        self._set_timer()

    def resume_writing(self) -> None:
        self._is_paused_by_peer = False
        self._stalled_since = None
        self._set_reading()
        if self._resumed is not None:
            self._resumed(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.transport = None
        lost = self._lost
        self._forget_owner()
        lost(self)

    def _forget_owner(self) -> None:
        """Owner and driver know each other: they would stay until garbage is looked for."""
        self._handle = self._lost = _nobody
        self._opened = self._resumed = self._half_closed = None

    # ── for the owner ───────────────────────────────────────────────────────────────────

    @property
    def is_open(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    @property
    def is_peer_slow(self) -> bool:
        """The peer leaves more than the write limit unread: send it nothing new."""
        return self._is_paused_by_peer

    def flush_soon(self) -> None:
        """Write what the connection has queued, once, at the end of this tick."""
        if not self._is_flush_due:
            self._is_flush_due = True
            self._flushes.add(self)

    def flush(self) -> None:
        """Write what the connection has queued, now."""
        self._is_flush_due = False
        self._after()

    def pause_reading(self) -> None:
        """Back-pressure: leave the peer's bytes in the kernel."""
        self._is_paused_by_owner = True
        self._set_reading()

    def resume_reading(self) -> None:
        self._is_paused_by_owner = False
        self._set_reading()

    def close(self) -> None:
        """Send what is queued, then close."""
        if self.transport is not None:
            data = self.connection.data_to_send()
            if data and not self.transport.is_closing():
                self.transport.write(data)
            self.transport.close()

    def abort(self) -> None:
        """Close at once, dropping what is queued."""
        if self.transport is not None:
            self.transport.abort()

    # ── inside ──────────────────────────────────────────────────────────────────────────

    def _after(self) -> None:
        """What every entry ends in: one write, the close if due, the timer."""
        transport = self.transport
        if transport is None or self._is_lingering:
            return
        has_written, is_closing = self._write(transport), self.connection.is_closing
        if is_closing:
            if transport.is_closing():
                return
            lingers = has_written and self._linger_s and not self._is_half_closed
            if lingers and transport.can_write_eof():
                self._linger(transport)
            else:
                transport.close()
            return
        self._set_timer()

    def _write(self, transport: asyncio.Transport) -> bool:
        """Everything that is queued; False: nothing is, or nobody reads it any more."""
        data = self.connection.data_to_send()
        if not data or transport.is_closing():
            return False
        self._traffic.sent_bytes += len(data)
        transport.write(data)
        return True

    def _linger(self, transport: asyncio.Transport) -> None:
        """
        Half-close, and throw away what the peer still sends, until it closes or *linger_s* is over.

        A close with unread bytes in the kernel would reset the connection, and the last words,
        which say why, would be lost with it (RFC 1122, 4.2.2.13).
        """
        self._is_lingering = True
        if self._timer is not None:
            self._timer.cancel()
        try:
            transport.write_eof()
        except OSError:  # the peer has gone already
            transport.close()
            return
        transport.resume_reading()
        self._timer = self._loop.call_later(self._linger_s, transport.close)

    def _set_reading(self) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        if self._is_lingering or self._is_half_closed:
            return
        if self._is_paused_by_peer or self._is_paused_by_owner:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def _set_timer(self) -> None:
        """Arm the one timer; a deadline that moved later is noticed when the timer fires."""
        due = self.connection.deadline
        if self._stalled_since is not None:
            stall = self._stalled_since + WRITE_STALL_S_MAX
            due = stall if due is None else min(due, stall)
        if due is None or (self._timer is not None and self._timer_at <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._loop.call_at(due, self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = clock.monotonic()
        if self._stalled_since is not None and now >= self._stalled_since + WRITE_STALL_S_MAX:
            logger.warning("peer %s read nothing for %d s: cut off", self.peer, WRITE_STALL_S_MAX)
            self.abort()
            return
        events = self.connection.handle_deadline(now=now)
        if events:
            self._handle(self, events)
        self._after()


class InPlaceDriver(Driver[E]):
    """
    Reads into memory that the connection wants filled, where the loop can (uvloop); writes pieces.

    A large message is then copied by the kernel alone.
    """

    def __init__(
        self,
        connection: InPlaceConnection[E],
        *,
        handle: Callable[[Driver[E], Sequence[E]], None],
        lost: Callable[[Driver[E]], None],
        opened: Callable[[Driver[E]], None] | None = None,
    ) -> None:
        super().__init__(connection, handle=handle, lost=lost, opened=opened)
        self._in_place = connection
        self._space = _space_of(self._loop)
        self._is_wanted = False
        """The buffer given last is the connection's own."""

    def get_buffer(self, size_hint: int) -> memoryview:
        wanted = self._in_place.wanted_buffer()
        self._is_wanted = wanted is not None
        return self._space if wanted is None else wanted

    def buffer_updated(self, count: int) -> None:
        now = self.heard_at = clock.monotonic()
        if self._is_wanted:
            events = self._in_place.filled(count, now=now)
        else:
            events = self._in_place.receive_data(self._space[:count], now=now)
        if events:
            self._handle(self, events)
        self._after()

    def _write(self, transport: asyncio.Transport) -> bool:
        pieces = self._in_place.pieces_to_send()
        if not pieces or transport.is_closing():
            return False
        if len(pieces) > 1:
            transport.writelines(pieces)
        else:
            transport.write(pieces[0])
        return True


async def listen(
    factory: Callable[[], asyncio.Protocol],
    bind: str,
    *,
    tls: ssl.SSLContext | None = None,
    tls_handshake_s_max: float = 5.0,
    reuse_port: bool = False,
) -> asyncio.Server:
    """Open a listener, on a socket file without TLS; the port: ``sockets[0].getsockname()[1]``."""
    if path := unix_sockets.path_of(bind):
        return await asyncio.get_running_loop().create_unix_server(
            factory, sock=unix_sockets.listening(path, BACKLOG)
        )
    host, port = split_bind(bind)
    server = await asyncio.get_running_loop().create_server(
        factory,
        host,
        port,
        ssl=tls,
        ssl_handshake_timeout=tls_handshake_s_max if tls else None,
        backlog=ACCEPTS_AT_ONCE,  # asyncio takes the one number for both
        reuse_port=reuse_port or None,
    )
    opened: Any = server  # a list with uvloop, a tuple by its type: compiled code insists on that
    for one in opened.sockets:
        with socket.socket(fileno=os.dup(one.fileno())) as same:
            same.listen(BACKLOG)
    return server
