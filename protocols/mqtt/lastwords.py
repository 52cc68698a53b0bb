"""
What an earlier connection of a client id still has to say before the next one takes its place.

A client that has sent DISCONNECT may be at another gateway or listener before the first one has
written that down: until then its record says that it is connected, that it has a will to be sent,
and that its session goes on; which packet ids are in use is not known either.
"""

import asyncio
from typing import Final, Protocol

from protocols.directory import Directory
from protocols.errors import Code, Refused
from protocols.mqtt.records import decode_session

LEAVE_S_MAX: Final = 10.0
"""For the last connection of a client id, at this listener, to let go of its session."""

HEARD_S_MAX: Final = 0.5
"""
For one elsewhere to write down how it ended. One that has not ended says nothing: this is what it
costs to take over a kept session, or one whose will is sent then, from a gateway that lives.
"""


class Owner(Protocol):
    """A connection that holds a session."""

    def take_over(self) -> None:
        """Another connection has the session: tell the client, go."""
        ...

    async def left(self) -> None:
        """Wait until it let go of the session's streams."""
        ...


class LastWords:
    """Of connections that others hold."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._awaited: dict[str, asyncio.Event] = {}

    def changed(self, key: str) -> None:
        """Somebody wrote this session's record."""
        if (awaited := self._awaited.get(key)) is not None:
            awaited.set()

    async def hear(self, key: str, *, clean_start: bool) -> None:
        """Wait while a takeover of *key* would do what its end forbids, though not for long."""
        if not self._is_at_stake(key, clean_start):
            return
        awaited = self._awaited[key] = asyncio.Event()
        try:
            async with asyncio.timeout(HEARD_S_MAX):
                while self._is_at_stake(key, clean_start):
                    await awaited.wait()
                    awaited.clear()
        except TimeoutError:
            pass  # it is as connected as it looks
        finally:
            del self._awaited[key]

    def _is_at_stake(self, key: str, clean_start: bool) -> bool:
        found = self._directory.get(key)
        if found is None or not found.value:
            return False
        record = decode_session(found.value)
        is_resumed = record.expiry_s > 0 and not clean_start
        if not record.is_connected or (record.will is None and not is_resumed):
            return False
        return self._directory.is_live(record.gateway, record.gateway_epoch)


async def let_go(owner: Owner, client_id: str) -> None:
    """Wait until *owner* has. Raises Refused: the directory does not take its last words."""
    try:
        async with asyncio.timeout(LEAVE_S_MAX):
            await owner.left()
    except TimeoutError:
        hint = "its last connection cannot be written down"
        raise Refused(Code.HA_NOT_AVAILABLE, client_id, hint) from None
