"""
One connection of a RocketMQ client to the gateway: who it is, and what each request becomes.

Sends are ``publishing``'s. Everything that waits (pulls, heartbeats, offsets) runs as a task of its
own, because its answers may come in any order.
"""

import asyncio
import base64
import binascii
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from protocols import clock
from protocols.canonical import Call, Identity
from protocols.errors import Code, GatewayError, PeerError, Refused
from protocols.observing import ClientInfo
from protocols.pipeline import Credentials
from protocols.remoting import requests
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.consumer import Consumer
from protocols.remoting.headers import HeaderError
from protocols.remoting.host import Host
from protocols.remoting.mapping import (
    refusal,
)
from protocols.remoting.peer import Peer
from protocols.remoting.publishing import Publishing
from protocols.remoting.repeats import Repeats
from protocols.remoting.signing import ACCESS_KEY, SIGNATURE, signed_content

logger = logging.getLogger("tidegate.remoting")

SENDS: Final = frozenset(
    (
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
    )
)

WAITING_MAX: Final = 4096
"""Requests of one connection that wait for something; more are SYSTEM_BUSY."""

MOVE_S: Final = 2.0
"""For answers to what was read before the gateway began to drain."""

BEAT_S_MAX: Final = 35.0
"""Java's clients send a heartbeat each 30 s; those of 5.x also when they have connected."""

LEAVING_S: Final = 2.0
"""
For commits that a client sent before it left a group, and that come after that; and for a client
whose connection was lost to come back by another one, with all that it holds.
"""

CALLS_MAX: Final = 64
"""Identities that one connection may sign as; more forget the first."""


class Session:
    """State of one connection."""

    def __init__(self, host: Host, peer: Peer) -> None:
        self.host = host
        self.peer = peer
        self.client_id = ""
        self.language = "OTHER"
        self.version = 0
        self.call: Call | None = None
        """Of the latest identity; requests carry their own."""

        self.consumers: dict[str, Consumer] = {}
        self.has_consumed = False  # it is or was a member of a group; tools are not
        self.leaving: list[Consumer] = []
        """Consumers of groups that the client has just left: they take its last commits."""

        self.producer_groups: set[str] = set()
        self.halves: dict[tuple[int, str], tuple[str, str]] = {}
        """(position, id) of a half message sent here → (cluster, broker)."""

        self.checks: dict[str, Callable[[], None]] = {}
        """Producer groups that may be asked about transactions, and what ends that."""

        self.beating = asyncio.Lock()
        """Held while a heartbeat is taken in: a group that is left behind it stays left."""

        self.naming = asyncio.Lock()
        """Held while the queue of a commit is looked up: what came after it waits."""

        self.repeats = Repeats()
        self._born = clock.monotonic()
        self._beat = asyncio.Event()
        self._calls: dict[str, Call] = {}
        self._publishing = Publishing(self)
        self._waiting_count = 0
        self._backlog: list[RemotingCommand] = []
        self._is_draining = False
        self._is_moving = False
        """The client goes to another gateway, with what it holds."""

        self._leave: Callable[[], None] | None = None

    @property
    def address(self) -> str:
        """What routes name: as configured, or what the client dialled."""
        return self.host.settings.advertise or self.peer.local_address

    # ── in ──────────────────────────────────────────────────────────────────────────────

    def receive(self, commands: Sequence[RemotingCommand]) -> None:
        """All requests of one read. The first ones of a client, and signed ones, are checked."""
        call = self.call
        if call is not None and not self._backlog and self._all_anonymous(commands, call):
            for command in commands:
                self._dispatch(command, call)
            return
        self._backlog += commands
        if len(self._backlog) > WAITING_MAX:
            self.peer.pause()
        if not self._is_draining:
            self._is_draining = True
            self.host.tasks.start(self._drain(), name="authenticate")

    def _all_anonymous(self, commands: Sequence[RemotingCommand], call: Call) -> bool:
        return call.identity.is_anonymous and not any(
            [ACCESS_KEY in command.fields for command in commands]
        )

    async def _drain(self) -> None:
        """Check one request after the other, so that their order stays."""
        try:
            while self._backlog and self.peer.is_open:
                command = self._backlog[0]
                try:
                    call = await self._authenticate(command)
                except Refused as error:
                    self._backlog.pop(0)
                    self.refuse(command, error)
                    continue
                self._backlog.pop(0)
                self.call = call
                self._dispatch(command, call)
        finally:
            self._is_draining = False
            self.resume()

    async def _authenticate(self, command: RemotingCommand) -> Call:
        """The caller; each signature is checked, because it covers its request. Raises Refused."""
        access_key = command.fields.get(ACCESS_KEY, "")
        known = self._calls.get(access_key)
        if known is not None and not access_key:
            return known
        identity = await self.host.services.authenticator.authenticate(
            self._credentials(command, access_key)
        )
        if identity is None:
            raise Refused(Code.UNAUTHORIZED, "client", "wrong or missing signature")
        if known is None or known.identity != identity:
            known = self._new_call(access_key, identity)
        return known

    def _credentials(self, command: RemotingCommand, access_key: str) -> Credentials:
        try:
            signature = base64.b64decode(command.fields.get(SIGNATURE, ""), validate=True)
        except binascii.Error:
            signature = b""
        return Credentials(
            protocol="remoting",
            listener=self.host.listener,
            user=access_key,
            password=signature,
            client_id=self.client_id,
            peer=self.peer.address,
            signed=signed_content(command.fields, command.body, version=command.version),
            digest="hmac-sha1",
            has_credentials=bool(access_key),
        )

    def _new_call(self, access_key: str, identity: Identity) -> Call:
        call = Call(
            protocol="remoting",
            listener=self.host.listener,
            identity=identity,
            tenant=self.host.settings.tenant,
            client_id=self.client_id,
            peer=self.peer.address,
        )
        if self._leave is None:
            code = self.host.services.admit(call)
            if code != Code.OK:
                asyncio.get_running_loop().call_soon(self.peer.close)  # after the answer
                raise Refused(code, "connection", "over the limits of this listener")
            info = ClientInfo(
                "remoting",
                self.host.listener,
                self.client_id,
                identity.name,
                self.peer.address,
                clock.wall_ms(),
                call.tenant,
            )
            self._leave = self.host.services.clients.joined(info, self.peer.close, self._move)
        if len(self._calls) >= CALLS_MAX:
            self.host.services.pipeline.forget(self._calls.pop(next(iter(self._calls))))
        self._calls[access_key] = call
        return call

    def _move(self) -> None:
        """The gateway drains: nothing more is read, what was is answered. Clients connect again."""
        self._is_moving = True
        self.peer.pause()
        asyncio.get_running_loop().call_later(MOVE_S, self.peer.close)

    def _dispatch(self, command: RemotingCommand, call: Call) -> None:
        if command.code in SENDS:
            self._publishing.send(command, call)
            return
        handler = requests.HANDLERS.get(command.code)
        if handler is None:
            self.answer(
                command,
                command.answer(
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                    remark=f"request type {command.code} not supported",
                ),
            )
        elif self._waiting_count >= WAITING_MAX:
            self.refuse(command, Refused(Code.TOO_MANY_REQUESTS, "connection", "too many waits"))
        else:
            self._waiting_count += 1
            self.host.tasks.start(self._run(handler, command, call), name=f"{command.code}")

    async def _run(
        self,
        handler: "Callable[[Session, Call, RemotingCommand], Awaitable[RemotingCommand]]",
        command: RemotingCommand,
        call: Call,
    ) -> None:
        try:
            answer = await handler(self, call, command)
        except (HeaderError, PeerError) as error:
            answer = command.answer(ResponseCode.SYSTEM_ERROR, remark=str(error))
        except Refused as error:
            answer = refusal(command, error)
        except GatewayError as error:
            answer = command.answer(ResponseCode.SYSTEM_ERROR, remark=str(error))
        finally:
            self._waiting_count -= 1
        self.answer(command, answer)

    def has_beaten(self) -> None:
        """All groups of a heartbeat were taken in."""
        self._beat.set()

    async def consumer(self, group: str, wait_s: float) -> Consumer | None:
        """
        The client as a member of *group*. One that comes back over a new connection may pull and
        commit before its first heartbeat tells who it is.
        """
        left = min(wait_s, self._born + BEAT_S_MAX - clock.monotonic())
        if self.is_unheard and left > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._beat.wait()
        return self.consumers.get(group)

    @property
    def is_unheard(self) -> bool:
        """Its first heartbeat may still come."""
        return not self._beat.is_set() and clock.monotonic() < self._born + BEAT_S_MAX

    def answer(self, command: RemotingCommand, answer: RemotingCommand) -> None:
        if not command.is_oneway:
            self.peer.send((answer,))

    def refuse(self, command: RemotingCommand, error: Refused) -> None:
        self.answer(command, refusal(command, error))

    def resume(self) -> None:
        if self.peer.is_open:
            self.peer.resume()

    # ── end ─────────────────────────────────────────────────────────────────────────────

    async def drop_consumer(self, group: str) -> None:
        """The client consumes for *group* no more."""
        consumer = await self._withdraw(group)
        if consumer is not None:
            await consumer.close()

    async def leave_group(self, group: str) -> None:
        """
        ``drop_consumer`` at the client's wish, who waits for it.

        Java sends its last commits before that, but they may be on the wire behind it.
        """
        consumer = await self._withdraw(group, is_wished=True)
        if consumer is not None:
            self.host.tasks.start(self._part(consumer), name=f"leave {group}")

    async def _part(self, consumer: Consumer) -> None:
        await asyncio.sleep(LEAVING_S)
        if consumer in self.leaving:
            self.leaving.remove(consumer)
            await consumer.close()

    async def _withdraw(self, group: str, *, is_wished: bool = False) -> Consumer | None:
        async with self.naming:
            consumer = self.consumers.pop(group, None)
        if consumer is None:
            return None
        if is_wished:
            consumer.leave()
            self.leaving.append(consumer)
        try:
            # Locks after that: a client that is back over another connection keeps its queues.
            if await self.host.members.leave(group, self.client_id, consumer.member_version):
                await self.host.members.unlock(group, self.client_id, list(consumer.locked))
        except GatewayError as error:
            logger.info("leaving group %s: %s", group, error)
        return consumer

    async def close(self) -> None:
        if self._leave is not None:
            self._leave()
            self._leave = None
        for undo in self.checks.values():
            undo()
        self.checks.clear()
        for call in self._calls.values():
            self.host.services.pipeline.forget(call)
        if self._is_moving:
            for consumer in self.consumers.values():
                await consumer.stop()
        for group in list(self.consumers):
            await self.leave_group(group)

    async def end(self) -> None:
        """The gateway ends. The client goes to another one, and keeps what it holds."""
        self._is_moving = True
        await self.close()
        leaving, self.leaving = self.leaving, []
        for consumer in leaving:
            await consumer.close()
