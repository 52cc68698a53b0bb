"""One MQTT listener: sockets, TLS, and the end of all of them."""

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any, Final, Self

from protocols.driver import listen
from protocols.mqtt.client import Client
from protocols.mqtt.front import Front
from protocols.mqtt.settings import MqttSettings, TlsSettings, read_settings
from protocols.pipeline import Services

LEAVE_S_MAX: Final = 5.0
"""How long sessions may take to be written down when the gateway stops."""


class MqttAdapter:
    """MQTT 3.1, 3.1.1 and 5.0 over TCP, TLS or WebSocket."""

    def __init__(self, name: str, settings: MqttSettings) -> None:
        self._name = name
        self._settings = settings

    @classmethod
    def from_config(cls, name: str, section: Mapping[str, Any]) -> Self:
        """Build from one entry of ``listeners:``. Raises ConfigError."""
        return cls(name, read_settings(name, section))

    async def serve(self, services: Services) -> None:
        """Listen until cancelled; then tell the clients and let their sessions go."""
        front = Front(self._name, self._settings, services)
        tls = tls_context(self._settings.tls) if self._settings.tls is not None else None
        front.sessions.start()
        server = await listen(lambda: Client(front).driver, self._settings.bind, tls=tls)
        host, port = server.sockets[0].getsockname()[:2]
        services.listening(self._name, host, port)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            server.close()
            await self._leave(front)

    async def _leave(self, front: Front) -> None:
        """Everybody is told (0x8B) and leaves in order; sessions stay for other gateways."""
        for client in list(front.clients):
            client.shut_down()
        await front.tasks.close()
        await front.leaving.settle(LEAVE_S_MAX)
        await front.leaving.close()
        for client in list(front.clients):
            client.cut_off()
        await front.sessions.close()


def tls_context(settings: TlsSettings) -> ssl.SSLContext:
    """Server side, TLS 1.2 and up, ALPN ``mqtt``; client certificates where a CA is named."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(settings.cert, settings.key)
    context.set_alpn_protocols(["mqtt"])
    if settings.client_ca is not None:
        context.load_verify_locations(settings.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
