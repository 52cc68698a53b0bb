"""
How a listener is opened: plain, TLS, behind a load balancer, at a bounded rate of new connections.

What is accepted faster than allowed stays in the kernel's queue; a TLS handshake or a PROXY
header that does not come in time ends its connection before any protocol sees it.
"""

import asyncio
import errno
import ipaddress
import logging
import socket
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from protocols import clock, proxying, unix_sockets
from protocols.addresses import split_bind
from protocols.checking import CheckedModel
from protocols.daemon.units import Rate, Texts
from protocols.descriptors import Factory, Spared
from protocols.driver import ACCEPTS_AT_ONCE, BACKLOG, Driver, listen
from protocols.errors import PeerError
from protocols.observing import Meter, Metrics
from protocols.tasks import Tasks
from protocols.tls import Certificates, ClientCertificate, TlsSettings, certificate_of

logger = logging.getLogger("tidegate.doors")

CHECK_S: Final = 1.0
"""How often the certificate files are looked at."""

HANDSHAKES_MAX: Final = 2000
"""Connections between accept and the end of their handshake; others wait in the kernel."""

NO_RESOURCES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
NO_RESOURCES_S: Final = 1.0
"""How long to wait when the process has no descriptors left."""


def _networks(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        ipaddress.ip_network(value, strict=False)
    return values


ProxyRequires = Literal["nothing", "tls", "certificate"]


class DoorSettings(CheckedModel):
    """What every listener on our own sockets can have."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tls: TlsSettings | None = None
    """Absent: plain text."""

    proxy_protocol: bool = False
    """Every connection begins with a PROXY header (version 1 or 2); its address is the client's
    in ACL, throttles and logs. One without it is closed."""

    proxy_from: Annotated[Texts, AfterValidator(_networks)] = ()
    """Addresses or CIDR ranges of the load balancers; others are closed. Empty: any."""

    proxy_requires: ProxyRequires = "nothing"
    """What the load balancer has to say of a client (version 2): that it spoke ``tls`` to it, or
    showed a ``certificate`` that the balancer verified; others are closed, its own health checks
    too."""

    accept_rate: Rate | None = Field(default=None, gt=0)
    """New connections, such as ``500/s``; more wait in the kernel's queue (at most 4096)."""

    @model_validator(mode="after")
    def _asks_a_balancer(self) -> Self:
        if self.proxy_requires != "nothing" and (not self.proxy_protocol or self.tls is not None):
            raise ValueError("proxy_requires wants proxy_protocol, and no tls of its own")
        return self


async def open_door(
    factory: Factory,
    bind: str,
    settings: DoorSettings,
    *,
    name: str,
    metrics: Metrics,
    alpn: tuple[str, ...] = (),
    handshake_s_max: float = 5.0,
) -> "Listening":
    """Listen. Raises OSError: the port is taken, a certificate cannot be read."""
    factory = Spared(factory, name)
    if settings.tls is None and not settings.proxy_protocol and settings.accept_rate is None:
        return await listen(factory, bind)
    door = Door(factory, settings, name, metrics, alpn, handshake_s_max)
    await door.open(bind)
    return door


async def open_plain(factory: Factory, bind: str) -> "Listening":
    """The same without any settings."""
    return await listen(Spared(factory, bind), bind)


class Door:
    """A listener whose connections have something to show before a protocol sees them."""

    def __init__(
        self,
        factory: Factory,
        settings: DoorSettings,
        name: str,
        metrics: Metrics,
        alpn: tuple[str, ...],
        handshake_s_max: float,
    ) -> None:
        self.sockets: list[socket.socket] = []
        self.certificates = Certificates(settings.tls, alpn) if settings.tls is not None else None
        self._factory = factory
        self._settings = settings
        self._name = name
        self._handshake_s_max = handshake_s_max
        self._trusted = tuple(
            ipaddress.ip_network(item, strict=False) for item in settings.proxy_from
        )
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks(f"door {name}")
        self._is_closed = False
        self._is_reading = False
        self._timers: set[asyncio.TimerHandle] = set()
        self._rate = settings.accept_rate or 0.0
        self._allowed, self._allowed_at = max(1.0, self._rate), clock.monotonic()
        self._failed: dict[str, Meter] = {
            reason: metrics.counter(
                "connections_failed",
                "Connections that ended before a protocol saw them",
                listener=name,
                reason=reason,
            )
            for reason in ("tls", "proxy", "untrusted")
        }

    async def open(self, bind: str) -> None:
        if path := unix_sockets.path_of(bind):
            self.sockets.append(unix_sockets.listening(path, BACKLOG))
        else:
            await self._open_addresses(bind)
        for one in self.sockets:
            one.setblocking(False)
        self._set_reading(True)
        if self.certificates is not None:
            self._later(CHECK_S, self._check)

    async def _open_addresses(self, bind: str) -> None:
        host, port = split_bind(bind)
        found = await self._loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                self.sockets.append(
                    socket.create_server(
                        (str(address[0]), int(address[1])), family=family, backlog=BACKLOG
                    )
                )
        except OSError:
            self.close()
            raise

    def refresh(self) -> None:
        """Read the certificate files again if they changed."""
        if self.certificates is not None:
            self.certificates.refresh()

    def close(self) -> None:
        if self._is_closed:
            return
        self._set_reading(False)
        self._is_closed = True
        for timer in self._timers:
            timer.cancel()
        for one in self.sockets:
            one.close()

    async def wait_closed(self) -> None:
        """End the handshakes that are under way."""
        await self._tasks.close()

    # ── accepting ───────────────────────────────────────────────────────────────────────

    def _set_reading(self, is_reading: bool) -> None:
        if self._is_closed or is_reading is self._is_reading:
            return
        self._is_reading = is_reading
        for one in self.sockets:
            if is_reading:
                self._loop.add_reader(one, self._accept, one)
            else:
                self._loop.remove_reader(one)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            if (wait_s := self._wait_s()) > 0:
                self._pause(wait_s)
                return
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in NO_RESOURCES:
                    raise
                logger.error("listener %s: %s", self._name, error)
                self._pause(NO_RESOURCES_S)
                return
            self._allowed -= 1
            accepted.setblocking(False)
            host = str(address[0]) if isinstance(address, tuple) else "unix"
            self._tasks.start(self._welcome(accepted, host), name="welcome")

    def _wait_s(self) -> float:
        """How long until one more may come in; 0: now."""
        if len(self._tasks) >= HANDSHAKES_MAX:
            return 0.05
        if not self._rate:
            return 0.0
        now = clock.monotonic()
        refill = (now - self._allowed_at) * self._rate
        self._allowed, self._allowed_at = min(max(1.0, self._rate), self._allowed + refill), now
        return max(0.0, (1.0 - self._allowed) / self._rate)

    def _pause(self, wait_s: float) -> None:
        self._set_reading(False)
        self._later(wait_s, lambda: self._set_reading(True))

    def _later(self, delay_s: float, act: Callable[[], None]) -> None:
        def fire() -> None:
            self._timers.discard(timer)
            act()

        timer = self._loop.call_later(delay_s, fire)
        self._timers.add(timer)

    def _check(self) -> None:
        self.refresh()
        self._later(CHECK_S, self._check)

    # ── before the protocol ─────────────────────────────────────────────────────────────

    async def _welcome(self, accepted: socket.socket, address: str) -> None:
        """From accept to the protocol's ``connection_made``; a failure closes the socket."""
        try:
            if accepted.family != socket.AF_UNIX:
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._settings.proxy_protocol and not await self._has_header(accepted, address):
                accepted.close()
                return
            tls = self.certificates.context if self.certificates is not None else None
            await self._loop.connect_accepted_socket(
                self._factory,
                accepted,
                ssl=tls,
                ssl_handshake_timeout=self._handshake_s_max if tls else None,
            )
        except OSError as error:
            self._tell_failed(address, error)
            accepted.close()
        except BaseException:
            accepted.close()
            raise

    def _tell_failed(self, address: str, error: OSError) -> None:
        """A handshake; a load balancer's own connection (health check) may end without one."""
        found = proxying.proxied.get()
        if found is not None and not found.peer and isinstance(error, ConnectionError):
            return
        self._failed["tls"].inc()
        reason = error or f"not within {self._handshake_s_max:g} s, or closed"
        logger.info("listener %s: %s: no handshake: %s", self._name, address, reason)

    async def _has_header(self, accepted: socket.socket, address: str) -> bool:
        """Read the PROXY header, and say to the protocol object to come who is behind it."""
        if self._trusted and not self._is_trusted(address):
            self._failed["untrusted"].inc()
            logger.info("listener %s: %s is no load balancer of ours", self._name, address)
            return False
        header = b""
        try:
            async with asyncio.timeout(self._handshake_s_max):
                while count := proxying.missing(header):
                    data = await self._loop.sock_recv(accepted, count)
                    if not data:
                        raise PeerError("the connection was closed")
                    header += data
            found = proxying.decode(header)
            if not self._is_secured(found):
                raise PeerError(f"no {self._settings.proxy_requires} before the balancer")
            proxying.proxied.set(found)
        except (PeerError, OSError, TimeoutError) as error:
            self._failed["proxy"].inc()
            logger.info("listener %s: %s: %s", self._name, address, error or "no PROXY header")
            return False
        return True

    def _is_secured(self, found: proxying.Proxied) -> bool:
        wanted = self._settings.proxy_requires
        if wanted == "certificate":
            return found.is_verified
        return wanted == "nothing" or found.is_tls

    def _is_trusted(self, address: str) -> bool:
        try:
            found = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        return any(found in network for network in self._trusted)


Listening = Door | asyncio.Server
"""An open listener; ``close`` accepts no more and leaves open connections alone."""


def client_certificate(driver: Driver[Any]) -> ClientCertificate:
    """Of the connection itself, or what the load balancer in front verified."""
    transport = driver.transport
    found = certificate_of(transport.get_extra_info("ssl_object") if transport else None)
    if driver.proxied is not None and driver.proxied.certificate_name and not found.common_name:
        return ClientCertificate(driver.proxied.certificate_name)
    return found
