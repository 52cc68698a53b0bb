"""aiohttp as the transport of the CloudEvents front: sockets, TLS, limits, shutdown."""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Self

from protocols.addresses import split_bind
from protocols.cloudevents.config import CloudEventsConfig, cloudevents_config
from protocols.cloudevents.guard import Doors, Guard, NoTracebacks
from protocols.doors import Door, Listening, open_door
from protocols.pipeline import Services
from protocols.tasks import LongPolls

if TYPE_CHECKING:
    import aiohttp

STOP_GRACE_S: Final = 1.0
"""How long requests in flight may take to end when the listener closes, in seconds."""

SINK_CONNECTIONS_MAX: Final = 256


class CloudEventsAdapter:
    """One listener of protocol ``cloudevents``."""

    SETTINGS: Final = CloudEventsConfig

    def __init__(self, name: str, config: CloudEventsConfig) -> None:
        self.name = name
        self.config = config
        self._server: Listening | None = None

    @classmethod
    def from_config(cls, name: str, section: Mapping[str, Any]) -> Self:
        return cls(name, cloudevents_config(name, section))

    async def serve(self, services: Services) -> None:
        """Listen until cancelled; then end what is in flight and give up webhooks."""
        from aiohttp import web  # 0.3 s: only when there is such a listener

        from protocols.cloudevents.app import make_app
        from protocols.cloudevents.workers import Workers

        doors: Doors = {}
        polls = LongPolls()
        runner = web.AppRunner(
            make_app(self.name, self.config, services, doors, polls),
            access_log=None,
            logger=self._logger(services),
            keepalive_timeout=self.config.idle_s_max,
            max_field_size=self.config.header_bytes_max,
            shutdown_timeout=STOP_GRACE_S,
        )
        await runner.setup()
        session = sink_session(self.config)
        workers = Workers(self.name, self.config, services, session)
        server: Listening | None = None
        try:
            self._server = server = await self._listen(runner, doors, services)
            host, _ = split_bind(self.config.bind)
            services.listening(self.name, host, server.sockets[0].getsockname()[1])
            workers.start()
            await asyncio.Event().wait()
        finally:
            if server is not None:
                server.close()
            polls.close()
            await workers.close()
            await runner.shutdown()
            await runner.cleanup()
            await session.close()
            if server is not None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(server.wait_closed(), STOP_GRACE_S)

    def refresh(self) -> None:
        """A reload: certificates that changed on disk are in force at once."""
        if isinstance(self._server, Door):
            self._server.refresh()

    async def _listen(self, runner: Any, doors: Doors, services: Services) -> Listening:
        seconds = self.config.handshake_s_max

        def factory() -> asyncio.Protocol:
            return Guard(runner.server(), doors, seconds)

        return await open_door(
            factory,
            self.config.bind,
            self.config,
            name=self.name,
            metrics=services.metrics,
            handshake_s_max=seconds,
        )

    def _logger(self, services: Services) -> logging.Logger:
        """aiohttp's own logger for this listener, without tracebacks for peers' faults."""
        meter = services.metrics.counter(
            "http_malformed", "Requests that were no HTTP", listener=self.name
        )
        logger = logging.getLogger(f"tidegate.http.{self.name}")
        for old in list(logger.filters):
            logger.removeFilter(old)
        logger.addFilter(NoTracebacks(meter.inc))
        return logger


def sink_session(config: CloudEventsConfig) -> "aiohttp.ClientSession":
    """The client for webhooks: no cookies, no proxies from the environment."""
    import aiohttp

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=SINK_CONNECTIONS_MAX),
        timeout=aiohttp.ClientTimeout(total=config.webhook_timeout_s),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"User-Agent": "tidegate"},
        auto_decompress=False,
    )
