"""What is told and written down when a client has gone."""

import asyncio
import logging
from typing import Final

from protocols import clock
from protocols.errors import Refused
from protocols.mqtt.front import Front
from protocols.mqtt.opened import Opened
from protocols.mqtt.presence import Ended
from protocols.mqtt.records import SessionRecord
from protocols.mqtt.tracing import trace_offline

logger = logging.getLogger("tidegate.mqtt")

LEAVE_AGAIN_S: Final = 2.0
"""Between attempts to write down that a connection is gone, while the directory is away."""


def tell_offline(
    front: Front, opened: Opened, peer: str, reason: str, *, connected_ms: int, heard_at: float
) -> None:
    """*connected_ms*: 0: it has not been told that it is online; *heard_at*: monotonic seconds."""
    trace_offline(front.services.observer, opened.call.client_id, peer, reason)
    if front.presence is not None and connected_ms:
        silent_ms = int((clock.monotonic() - heard_at) * 1000)
        ended = Ended(reason, connected_ms, clock.wall_ms() - silent_ms)
        front.presence.offline(opened.owned.record, peer, ended)


async def say_goodbye(
    front: Front, opened: Opened, record: SessionRecord, *, sends_will: bool
) -> None:
    """
    Write down how the connection ended; then another may have the session.

    Until it is written, or the gateway ends: then its lease tells the others.
    """
    while True:
        try:
            await front.sessions.disconnected(opened.owned, record, sends_will=sends_will)
            return
        except Refused as error:
            logger.warning("client %s: %s; again", record.client_id, error)
            await asyncio.sleep(LEAVE_AGAIN_S)
