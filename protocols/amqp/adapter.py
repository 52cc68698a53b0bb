"""AMQP 0-9-1's end of the gateway: one listener, its sockets, its clients."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, Self

from protocols.amqp import replies
from protocols.amqp.replies import AmqpFault
from protocols.amqp.server import AmqpServer
from protocols.amqp.session import make_session
from protocols.amqp.settings import AmqpSettings, read_settings
from protocols.doors import Door, Listening, open_door
from protocols.pipeline import Services

LEAVE_S_MAX: Final = 5.0
"""How long clients have to answer connection.close when the gateway stops."""


class AmqpAdapter:
    """See ``protocols.adapter.ProtocolAdapter``."""

    SETTINGS: Final = AmqpSettings

    def __init__(self, name: str, settings: AmqpSettings) -> None:
        self._name = name
        self._settings = settings
        self._door: Listening | None = None

    @classmethod
    def from_config(cls, name: str, section: Mapping[str, Any]) -> Self:
        """Build from one entry of ``listeners:``. Raises ConfigError."""
        return cls(name, read_settings(name, section))

    async def serve(self, services: Services) -> None:
        """Listen until cancelled; then close the connections in AMQP's words."""
        server = AmqpServer(self._name, self._settings, services)
        self._door = listener = await open_door(
            lambda: make_session(server).driver.protocol,
            self._settings.bind,
            self._settings,
            name=self._name,
            metrics=services.metrics,
        )
        host, port = listener.sockets[0].getsockname()[:2]
        services.listening(self._name, host, port)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            listener.close()
            await _leave(server)

    def refresh(self) -> None:
        """A reload: certificates that changed on disk are in force at once."""
        if isinstance(self._door, Door):
            self._door.refresh()


async def _leave(server: AmqpServer) -> None:
    """Tell everybody, and wait until all that they held is given back."""
    sessions = list(server.sessions)
    text = "broker forced connection closure with reason 'shutdown'"
    for session in sessions:
        session.close(AmqpFault(replies.CONNECTION_FORCED, text))
    if sessions:
        waits = [asyncio.ensure_future(session.done.wait()) for session in sessions]
        await asyncio.wait(waits, timeout=LEAVE_S_MAX)
        for wait in waits:
            wait.cancel()
    for session in sessions:
        session.driver.close()
    await server.close()
