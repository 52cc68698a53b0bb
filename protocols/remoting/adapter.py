"""The gateway's RocketMQ remoting listener: its socket, and the end of it."""

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any, Self

from protocols.driver import split_bind
from protocols.pipeline import Services
from protocols.remoting.front import Front
from protocols.remoting.server import serve_remoting
from protocols.remoting.settings import RemotingSettings, TlsSettings, read_settings


class RemotingAdapter:
    """RocketMQ 4.x and 5.x clients, for whom the gateway is name server and broker."""

    def __init__(self, name: str, settings: RemotingSettings) -> None:
        self._name = name
        self._settings = settings

    @classmethod
    def from_config(cls, name: str, section: Mapping[str, Any]) -> Self:
        """Build from one entry of ``listeners:``. Raises ConfigError."""
        return cls(name, read_settings(name, section))

    async def serve(self, services: Services) -> None:
        """Listen until cancelled; then give back what clients hold and close them."""
        front = Front(self._name, self._settings, services)
        tls = _tls_context(self._settings.tls) if self._settings.tls is not None else None
        server = await serve_remoting(
            front,
            self._settings.bind,
            tls=tls,
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


def _tls_context(settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(settings.cert, settings.key)
    if settings.client_ca is not None:
        context.load_verify_locations(settings.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
