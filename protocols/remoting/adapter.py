"""The gateway's RocketMQ remoting listener: its socket, and the end of it."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, Self

from protocols.addresses import split_bind
from protocols.descriptors import Factory
from protocols.doors import Listening, open_door
from protocols.pipeline import Services
from protocols.remoting.front import Front
from protocols.remoting.server import RemotingServer, serve_remoting
from protocols.remoting.settings import RemotingSettings, read_settings


class RemotingAdapter:
    """RocketMQ 4.x and 5.x clients, for whom the gateway is name server and broker."""

    SETTINGS: Final = RemotingSettings

    def __init__(self, name: str, settings: RemotingSettings) -> None:
        self._name = name
        self._settings = settings
        self._server: RemotingServer | None = None

    @classmethod
    def from_config(cls, name: str, section: Mapping[str, Any]) -> Self:
        """Build from one entry of ``listeners:``. Raises ConfigError."""
        return cls(name, read_settings(name, section))

    async def serve(self, services: Services) -> None:
        """Listen until cancelled; then give back what clients hold and close them."""
        front = Front(self._name, self._settings, services)

        async def open_(factory: Factory, bind: str) -> Listening:
            return await open_door(
                factory, bind, self._settings, name=self._name, metrics=services.metrics
            )

        self._server = server = await serve_remoting(
            front,
            self._settings.bind,
            open_=open_,
            connections_max=self._settings.connections_max,
        )
        front.tasks.start(front.run(), name="renew")
        host, port = split_bind(server.address)
        services.listening(self._name, host, port)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            server.stop_accepting()
            await front.close()
            await server.close()

    def refresh(self) -> None:
        """A reload: certificates that changed on disk are in force at once."""
        if self._server is not None:
            self._server.refresh()
