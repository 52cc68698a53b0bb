"""How one connection ends: what is known of its end, told, and written down before others come."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from protocols import clock
from protocols.driver import Driver
from protocols.errors import Refused
from protocols.mqtt.events import Event
from protocols.mqtt.front import Front
from protocols.mqtt.leftovers import put_aside
from protocols.mqtt.opened import Opened
from protocols.mqtt.packets import Disconnect
from protocols.mqtt.presence import Ended
from protocols.mqtt.properties import Property, find_int
from protocols.mqtt.records import SessionRecord
from protocols.mqtt.tracing import trace_offline
from protocols.tasks import Signal

logger = logging.getLogger("tidegate.mqtt")

LEAVE_AGAIN_S: Final = 2.0
"""Between attempts to write down that a connection is gone, while the directory is away."""


class Leaving:
    """The end of one connection, from its first reason to the last word about it."""

    def __init__(self, front: Front, driver: Driver[Event]) -> None:
        self._front = front
        self._driver = driver
        self.is_taken = False
        """The client id is another connection's."""

        self.is_begun = False
        """The session is being let go."""

        self.sends_will = True
        self._why = ""
        self._expiry_s = -1
        self._connected_ms = 0
        """0: nobody has been told that it is online."""

        self._forget: Callable[[], None] | None = None
        """Takes it out of the table of clients."""

        self._is_over = False
        self._over: Signal | None = None
        """Made by who waits for it."""

    def joined(self, connected_ms: int, forget: Callable[[], None]) -> None:
        """The client has been welcomed; *forget* takes it out of the table of clients."""
        self._connected_ms = connected_ms
        self._forget = forget

    def because(self, text: str) -> None:
        """The first reason counts."""
        self._why = self._why or text

    def said(self, packet: Disconnect) -> None:
        """What the client wants of its end."""
        self._why = f"disconnected (0x{packet.reason:02X})"
        self.sends_will = packet.reason != 0  # [MQTT-3.14.4-3]
        self._expiry_s = find_int(packet.properties, Property.SESSION_EXPIRY, -1)

    async def release(self, opened: Opened, idle: Signal) -> None:
        """Out of the tables; out of the streams when the connection is *idle*."""
        if self._forget is not None:
            self._forget()
            self._forget = None
        self._front.board.unfollow(opened)
        try:
            await idle.wait()
            await put_aside(opened, is_lasting=opened.last_record((), self._expiry_s).expiry_s > 0)
            await opened.close_feeds()
        except Refused as error:
            logger.warning("client %s: %s", opened.call.client_id, error)
        self._tell_offline(opened)

    def _tell_offline(self, opened: Opened) -> None:
        front, peer, reason = self._front, self._driver.peer, self._why or "connection lost"
        trace_offline(front.services.observer, opened.call.client_id, peer, reason)
        if front.presence is not None and self._connected_ms:
            silent_ms = int((clock.monotonic() - self._driver.heard_at) * 1000)
            ended = Ended(reason, self._connected_ms, clock.wall_ms() - silent_ms)
            front.presence.offline(opened.owned.record, peer, ended)

    async def write_down(self, opened: Opened, received: Callable[[], tuple[int, ...]]) -> None:
        """
        How it ended, unless another has the session already; then another may have it.

        *received*: packet ids of QoS 2 that are stored and not released, as of then.
        """
        if self.is_taken:
            return
        async with opened.saving:  # and nobody writes afterwards
            record = opened.last_record(received(), self._expiry_s)
            await self._say_goodbye(opened, record)

    async def _say_goodbye(self, opened: Opened, record: SessionRecord) -> None:
        """Until it is written, or the gateway ends: then its lease tells the others."""
        while True:
            try:
                await self._front.sessions.disconnected(
                    opened.owned, record, sends_will=self.sends_will
                )
                return
            except Refused as error:
                logger.warning("client %s: %s; again", record.client_id, error)
                await asyncio.sleep(LEAVE_AGAIN_S)

    def is_done(self) -> None:
        """Whoever waits for the session, or for the answer to CONNECT, goes on."""
        self._is_over = True
        if self._over is not None:
            self._over.set()

    async def done(self) -> None:
        if not self._is_over:
            self._over = self._over or Signal()
            await self._over.wait()
