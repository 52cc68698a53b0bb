"""
Enhanced authentication of one client: at CONNECT, again later, and how long it holds.

The steps are the method's (``protocols.exchanges``), whose turn it is ``auth_turns`` knows. While
a client proves itself again its traffic goes on; it stays who it was, or is closed.
"""

import asyncio
import logging
from dataclasses import replace
from typing import Final, Protocol

from protocols import clock
from protocols.canonical import Identity
from protocols.exchanges import Challenge, Exchange, Proved
from protocols.mqtt.auth_turns import AuthTurns
from protocols.mqtt.connection import MqttConnection
from protocols.mqtt.encoder import encode_packet
from protocols.mqtt.fields import PacketError
from protocols.mqtt.front import Front
from protocols.mqtt.opening import Caller
from protocols.mqtt.packets import V5, Auth, Connect, Reason
from protocols.mqtt.properties import Property, find_bytes, find_int
from protocols.pipeline import Credentials

logger = logging.getLogger("tidegate.mqtt")

ROUNDS_MAX: Final = 8
"""Challenges of one exchange: SCRAM has one, Kerberos and the like two or three."""

CREDENTIALS_S_MAX: Final = 3600.0
"""How long a look at the end of a client's credentials is put off: the wall clock may be set."""


class Prover(Protocol):
    """The client, as far as this needs it."""

    def read_behind(self) -> None:
        """Send what is queued, and read what came before it."""
        ...

    def answered(self) -> None:
        """Something is queued."""
        ...

    def end(self, reason: Reason, text: str) -> None: ...


class Proving:
    """What one connection proved, proves again, and when that ends."""

    def __init__(self, front: Front, connection: MqttConnection, prover: Prover) -> None:
        self._front = front
        self._connection = connection
        self._prover = prover
        self._credentials: Credentials | None = None
        self._packet_bytes_max = 0
        self._answer: asyncio.Future[bytes | None] | None = None
        self._expiring: asyncio.TimerHandle | None = None
        self._identity: Identity | None = None
        self._is_gone = False

    async def at_connect(self, caller: Caller) -> Proved | None:
        """None: refused, the refusal is queued."""
        connect, self._credentials = caller.connect, caller.credentials
        self._packet_bytes_max = find_int(connect.properties, Property.MAXIMUM_PACKET_SIZE, 0)
        try:
            return await self._prove(_data(connect))
        except PacketError as error:
            logger.info("client %s: %s", self._credentials.peer, error)
            if not self._connection.is_closing:  # [MQTT-4.12.0-1, -4]
                self._connection.refuse(error.reason)
            return None

    def received(self, packet: Auth) -> None:
        """The client's AUTH, in its turn: an answer, or the wish to begin again."""
        if packet.reason == Reason.REAUTHENTICATE:
            self._front.tasks.start(self._again(_data(packet)), name="prove again")
        elif self._answer is not None and not self._answer.done():
            self._answer.set_result(_data(packet))

    def lost(self) -> None:
        """The connection is over."""
        self._is_gone = True
        if self._expiring is not None:
            self._expiring.cancel()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(None)

    def hold(self, identity: Identity) -> None:
        """Close the connection when the credentials end."""
        self._identity = identity
        if self._expiring is not None:
            self._expiring.cancel()
            self._expiring = None
        self._look_at(identity.expires_at_ms)

    def _look_at(self, expires_at_ms: int) -> None:
        if not expires_at_ms or self._is_gone:
            return
        left_s = (expires_at_ms - clock.wall_ms()) / 1000
        if left_s <= 0:
            self._prover.end(Reason.NOT_AUTHORIZED, "its credentials have expired")
            return
        delay_s = min(left_s, CREDENTIALS_S_MAX)
        loop = asyncio.get_running_loop()
        self._expiring = loop.call_later(delay_s, self._look_at, expires_at_ms)

    async def _again(self, data: bytes) -> None:
        turns, before = self._turns, self._identity
        assert before is not None
        try:
            proved = await self._prove(data)
            now = replace(proved.identity, expires_at_ms=before.expires_at_ms)
            if now != before:
                raise PacketError(Reason.NOT_AUTHORIZED, f"{now.name} is not who it was")
        except PacketError as error:
            if not self._is_gone:  # [MQTT-4.12.1-2]
                self._prover.end(Reason.NOT_AUTHORIZED, f"re-authentication: {error}")
            return
        turns.end()
        self.hold(proved.identity)
        self._connection.send(Auth(Reason.SUCCESS, turns.properties(proved.data)))
        self._prover.answered()

    async def _prove(self, data: bytes) -> Proved:
        """The whole exchange. Raises PacketError: not proved."""
        method, credentials = self._turns.method, self._credentials
        assert credentials is not None
        exchange = None
        if self._front.settings.takes_method(method):
            exchange = self._front.services.authenticator.begin(method, credentials)
        if exchange is None:
            raise PacketError(Reason.BAD_AUTHENTICATION_METHOD, f"no method '{method[:64]}'")
        try:
            async with asyncio.timeout(self._front.settings.connect_s_max):
                return await self._exchange(exchange, data)
        except TimeoutError:
            raise PacketError(Reason.NOT_AUTHORIZED, "not proved in time") from None

    async def _exchange(self, exchange: Exchange, data: bytes) -> Proved:
        for _ in range(ROUNDS_MAX + 1):
            try:
                found = await exchange.answer(data)
            except Exception as error:  # of a plug-in: who is not clearly let in is refused
                logger.exception("method '%s' failed", self._turns.method)
                raise PacketError(Reason.NOT_AUTHORIZED, "its method failed") from error
            if isinstance(found, Proved):
                return found
            if found is None:
                break
            answer = await self._ask(found)
            if answer is None:
                raise PacketError(Reason.NOT_AUTHORIZED, "gone")
            data = answer
        raise PacketError(Reason.NOT_AUTHORIZED, "not proved")

    async def _ask(self, challenge: Challenge) -> bytes | None:
        """The client's next words; None: it is gone."""
        if self._is_gone or self._connection.is_closing:
            return None
        packet = self._turns.ask(challenge.data)
        if 0 < self._packet_bytes_max < len(encode_packet(packet, V5)):  # [MQTT-3.1.2-24]
            raise PacketError(Reason.PACKET_TOO_LARGE, "a challenge over its packet limit")
        self._answer = asyncio.get_running_loop().create_future()
        self._connection.challenge(packet)
        if self._identity is None:
            self._prover.read_behind()
        else:
            self._prover.answered()
        return await self._answer

    @property
    def _turns(self) -> AuthTurns:
        turns = self._connection.auth
        assert turns is not None
        return turns


def _data(packet: Connect | Auth) -> bytes:
    return find_bytes(packet.properties, Property.AUTHENTICATION_DATA) or b""
