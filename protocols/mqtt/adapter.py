"""One MQTT listener: sockets, TLS, and the end of all of them."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, Self

from protocols import unix_sockets
from protocols.doors import Door, Listening, open_door
from protocols.mqtt.client import Client
from protocols.mqtt.front import Front
from protocols.mqtt.settings import MqttSettings, read_settings
from protocols.pipeline import Services

LEAVE_S_MAX: Final = 5.0
"""How long sessions may take to be written down when the gateway stops."""


class MqttAdapter:
    """MQTT 3.1, 3.1.1 and 5.0 over TCP, TLS or WebSocket."""

    SETTINGS: Final = MqttSettings

    def __init__(self, name: str, settings: MqttSettings) -> None:
        self._name = name
        self._settings = settings
        self._server: Listening | None = None

    @classmethod
    def from_config(cls, name: str, section: Mapping[str, Any]) -> Self:
        """Build from one entry of ``listeners:``. Raises ConfigError."""
        return cls(name, read_settings(name, section))

    async def serve(self, services: Services) -> None:
        """Listen until cancelled; then tell the clients and let their sessions go."""
        front = Front(self._name, self._settings, services)
        front.sessions.start()
        front.tasks.start(front.tell_system(), name="system")
        self._server = server = await open_door(
            lambda: Client(front).driver.protocol,
            self._settings.bind,
            self._settings,
            name=self._name,
            metrics=services.metrics,
            alpn=("mqtt",),
            handshake_s_max=self._settings.connect_s_max,
        )
        path = unix_sockets.path_of(self._settings.bind)
        host, port = (self._settings.bind, 0) if path else server.sockets[0].getsockname()[:2]
        services.listening(self._name, host, port)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            server.close()
            if path:
                unix_sockets.remove(path)
            await self._leave(front)

    def refresh(self) -> None:
        """A reload: certificates that changed on disk are in force at once."""
        if isinstance(self._server, Door):
            self._server.refresh()

    async def _leave(self, front: Front) -> None:
        """Everybody is told (0x8B) and leaves in order; sessions stay for other gateways."""
        for client in list(front.clients):
            client.shut_down()
        await front.tasks.close()
        await front.leaving.settle(LEAVE_S_MAX)
        await front.leaving.close()
        for client in list(front.clients):
            client.cut_off()
        if front.presence is not None:
            await front.presence.close()
        await front.sessions.close()
        front.board.close()
