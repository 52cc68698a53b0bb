"""
Two connections to one store, kept up: *data* for messages, *control* for what must never wait
behind them (lease, fence, directory; rule 13 of the store's page).

Each begins with HELLO. Every second a RENEW on the control connection shows that we live and
that the store does; without an answer in time both connections are dropped and made again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec

from gateway.clusters.link import refusal_of
from gateway.clusters.presence import GatewayPresence
from protocols import clock
from protocols.errors import MALFORMED, Code, PeerError, Refused
from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.peer import Receive
from protocols.remoting.private import Hello, HelloAnswer, PrivateCode, Renew, Renewed

logger = logging.getLogger("tidegate.clusters")

T = TypeVar("T")

Connect = Callable[[Receive], Awaitable[RemotingClient]]
"""Opens one connection to the store: over TCP, or in memory to the store of this process."""

Sign = Callable[[RemotingCommand], None]
"""Adds the gateway's credential to a request."""

BEAT_ANSWER_S_MAX: Final = 2.5
"""A store that does not answer a beat by then is taken for lost (its own limit is 3 s)."""

HELLO_S_MAX: Final = 3.0
BACK_OFF_S_MIN: Final = 0.05
BACK_OFF_S_MAX: Final = 1.0
LEASE_WAIT_S: Final = 0.1
"""How often a refused HELLO is tried again while the lease is being renewed."""


class NotTidegate(Exception):
    """The broker does not know HELLO: it is Apache's (response code 3)."""


def packed(code: PrivateCode, body: msgspec.Struct | bytes = b"") -> RemotingCommand:
    """A private request: binary header, msgpack or packed body."""
    data = body if isinstance(body, bytes) else msgspec.msgpack.encode(body)
    return RemotingCommand(code, None, data, is_binary=True)


def unpacked(answer: RemotingCommand, kind: type[T], subject: str) -> T:
    """The body of a successful answer. Raises Refused, or PeerError if it is no such body."""
    if answer.code != ResponseCode.SUCCESS:
        raise refusal_of(answer, subject)
    return decoded(answer.body, kind, subject)


def decoded(body: bytes | memoryview, kind: type[T], subject: str) -> T:
    """A msgpack body. Raises PeerError."""
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except MALFORMED as error:
        raise PeerError(f"{subject}: {error}") from error


class StoreConnection:
    """
    Keeps both connections up until cancelled.

    *greeted* is called after the first HELLO on the control connection (which may be before this
    gateway has a lease: that is how the directory store is found); *opened* when both stand, and
    *lost* when either has gone.
    """

    def __init__(
        self,
        name: str,
        connect: Connect,
        presence: GatewayPresence,
        *,
        push: Receive,
        greeted: Callable[[HelloAnswer], None],
        opened: Callable[[HelloAnswer], Awaitable[None]],
        lost: Callable[[], None],
        sign: Sign | None = None,
    ) -> None:
        self.name = name
        self.control: RemotingClient | None = None
        self.data: RemotingClient | None = None
        self.hello: HelloAnswer | None = None
        """The latest answer to HELLO; kept when the connections are lost."""

        self._connect = connect
        self._presence = presence
        self._push = push
        self._greeted = greeted
        self._opened = opened
        self._on_lost = lost
        self._sign = sign
        self._ended = asyncio.Event()
        self._beat_now = asyncio.Event()
        self._epoch_is_new = asyncio.Event()
        self._last_error = ""
        presence.on_change(self._epoch_changed)

    # ── for the link ────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Connect, again and again, until cancelled. Raises NotTidegate."""
        back_off = BACK_OFF_S_MIN
        while True:
            started = clock.monotonic()
            try:
                await self._live()
            except (Refused, PeerError) as error:
                self._note(str(error))
            finally:
                await self._drop()
            if clock.monotonic() - started > BACK_OFF_S_MAX:
                back_off = BACK_OFF_S_MIN  # it stood for a while
            await asyncio.sleep(back_off)
            back_off = min(back_off * 2, BACK_OFF_S_MAX)

    def reset(self, reason: str) -> None:
        """Drop both connections; ``run`` makes them again."""
        self._note(reason)
        self._ended.set()

    def beat_soon(self) -> None:
        """Renew now rather than at the next second: there is something to report."""
        self._beat_now.set()

    async def request(
        self, code: PrivateCode, body: msgspec.Struct | bytes = b"", *, timeout_s: float = 3.0
    ) -> RemotingCommand:
        """A request on the control connection. Raises Refused if there is none."""
        if self.control is None:
            raise Refused(Code.HA_NOT_AVAILABLE, self.name, "the store cannot be reached")
        return await self.control.request(packed(code, body), timeout_s)

    # ── inside ──────────────────────────────────────────────────────────────────────────

    async def _live(self) -> None:
        """One life of the two connections."""
        self._ended = asyncio.Event()
        opened_at = clock.monotonic()
        control = await self._connect(self._push)
        self.control = control
        control.peer.on_lost(lambda peer: self._lost_connection())
        self.hello = await self._hello(control, 0, is_control=True)
        self._greeted(self.hello)
        epoch = await self._joined_epoch()
        if epoch == 0:
            return
        self.data = data = await self._connect(self._push)
        data.peer.on_lost(lambda peer: self._lost_connection())
        for client in (control, data):
            self.hello = await self._hello_with_lease(client, epoch, opened_at)
        if self._ended.is_set() or epoch != self._presence.epoch:
            return
        await self._opened(self.hello)
        self._last_error = ""
        await self._beat(epoch)

    async def _hello(self, client: RemotingClient, epoch: int, *, is_control: bool) -> HelloAnswer:
        hello = Hello(
            gateway=self._presence.name,
            gateway_epoch=epoch,
            is_control=is_control,
            lease_renewed_ms_ago=self._presence.age_ms(clock.monotonic()),
        )
        command = packed(PrivateCode.HELLO, hello)
        if self._sign is not None:
            self._sign(command)
        answer = await client.request(command, HELLO_S_MAX)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise NotTidegate(self.name)
        return unpacked(answer, HelloAnswer, self.name)

    async def _hello_with_lease(
        self, client: RemotingClient, epoch: int, opened_at: float
    ) -> HelloAnswer:
        """
        HELLO; refused because our presence ended there: again once the lease is renewed. Its own
        store is asked for that here, for either connection: nobody beats before both stand.
        """
        is_control = client is self.control
        while True:
            tried_with = self._presence.renewed_at
            try:
                return await self._hello(client, epoch, is_control=is_control)
            except Refused as error:
                if error.code != Code.HA_NOT_AVAILABLE or not client.is_open:
                    raise
                self._presence.suspect()
            if self._keeps_the_directory:
                await self._renew(epoch)
            if self._presence.renewed_at == tried_with:
                await self._first_of(self._ended, timeout_s=LEASE_WAIT_S)
            if self._ended.is_set() or self._presence.epoch != epoch:
                raise Refused(Code.HA_NOT_AVAILABLE, self.name, "the connection was dropped")

    async def _joined_epoch(self) -> int:
        """The gateway's epoch once it has one; 0: the connection went first."""
        while self._presence.epoch == 0 and not self._ended.is_set():
            self._epoch_is_new.clear()
            await self._first_of(self._epoch_is_new, self._ended)
        return 0 if self._ended.is_set() else self._presence.epoch

    async def _beat(self, epoch: int) -> None:
        """Renew again and again until something ends."""
        while not self._ended.is_set():
            await self._renew(epoch)
            await self._first_of(self._beat_now, self._ended, timeout_s=self._presence.beat_s)

    async def _renew(self, epoch: int) -> None:
        self._beat_now.clear()
        sent_at = clock.monotonic()
        body = Renew(
            gateway=self._presence.name, gateway_epoch=epoch, applied=self._presence.applied
        )
        answer = await self.request(PrivateCode.RENEW, body, timeout_s=BEAT_ANSWER_S_MAX)
        renewed = unpacked(answer, Renewed, self.name)
        if self._keeps_the_directory:
            if renewed.is_live:
                self._presence.renewed(epoch, sent_at)
            elif epoch == self._presence.epoch:
                self._presence.ended()
        elif not renewed.is_live and self.hello is not None and not self.hello.is_directory_store:
            self.reset("the store had not heard of us for too long")

    @property
    def _keeps_the_directory(self) -> bool:
        """This store judges our lease (another that also could has no say)."""
        return self._presence.directory == self.name

    async def _first_of(self, *events: asyncio.Event, timeout_s: float | None = None) -> None:
        """Wait until one of *events* is set, or the time is over."""
        waits = [asyncio.ensure_future(event.wait()) for event in events]
        try:
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _lost_connection(self) -> None:
        if not self._ended.is_set():
            self._note("the connection was lost")
            self._ended.set()

    def _epoch_changed(self) -> None:
        self._epoch_is_new.set()
        if self.data is not None:
            self.reset("this gateway has another epoch")

    async def _drop(self) -> None:
        """Close what is open; tell the link once."""
        self._ended.set()
        control, data = self.control, self.data
        self.control = self.data = None
        if control is not None or data is not None:
            self._on_lost()
        for client in (data, control):
            if client is not None:
                await client.close()

    def _note(self, reason: str) -> None:
        """Log a reason once, not at every attempt."""
        if reason != self._last_error:
            self._last_error = reason
            logger.warning("store %s: %s", self.name, reason)
