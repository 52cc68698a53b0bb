"""AMQP 0-9-1's end of the gateway: one listener, its sockets, its clients."""

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any, Final, Self

from protocols.amqp import replies
from protocols.amqp.replies import AmqpFault
from protocols.amqp.server import AmqpServer
from protocols.amqp.session import make_session
from protocols.amqp.settings import AmqpSettings, TlsSettings, read_settings
from protocols.driver import listen
from protocols.pipeline import Services

LEAVE_S_MAX: Final = 5.0
"""How long clients have to answer connection.close when the gateway stops."""


class AmqpAdapter:
    """See ``protocols.adapter.ProtocolAdapter``."""

    def __init__(self, name: str, settings: AmqpSettings) -> None:
        self._name = name
        self._settings = settings

    @classmethod
    def from_config(cls, name: str, section: Mapping[str, Any]) -> Self:
        """Build from one entry of ``listeners:``. Raises ConfigError."""
        return cls(name, read_settings(name, section))

    async def serve(self, services: Services) -> None:
        """Listen until cancelled; then close the connections in AMQP's words."""
        server = AmqpServer(self._name, self._settings, services)
        tls = tls_context(self._settings.tls) if self._settings.tls is not None else None
        listener = await listen(lambda: make_session(server).driver, self._settings.bind, tls=tls)
        host, port = listener.sockets[0].getsockname()[:2]
        services.listening(self._name, host, port)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            listener.close()
            await _leave(server)


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


def tls_context(settings: TlsSettings) -> ssl.SSLContext:
    """Server side, TLS 1.2 and up; client certificates where a CA is named."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(settings.cert, settings.key)
    if settings.client_ca is not None:
        context.load_verify_locations(settings.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
