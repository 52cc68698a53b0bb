"""
The link of a bridge to an AMQP 0-9-1 broker such as RabbitMQ, on aio-pika (extra ``bridge``).

A subject is a routing key there, with ``/`` as ``.`` (and the other way round); messages go to one
topic exchange, confirmed by the broker. What is received waits there in a durable queue of ours,
bound to the same exchange, and is acknowledged when a store of ours has it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from gateway.bridges import BridgeError, Incoming
from gateway.config import ClusterConfig
from protocols.amqp.addresses import routing_key_of, subject_of
from protocols.errors import ConfigError

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractExchange

logger = logging.getLogger("tidegate.bridges")

ANSWER_S_MAX: Final = 10.0
ROUTING_KEY_BYTES_MAX: Final = 255
"""A short string."""

PERSISTENT: Final = 2
"""Delivery mode, as AMQP numbers it."""

Receive = Callable[[Incoming], Awaitable[None]]


def link_maker(name: str, config: ClusterConfig) -> Callable[[], "AmqpLink"]:
    """Raises ConfigError: aio-pika is not installed, the URL cannot be read."""
    try:
        import aio_pika  # noqa: F401
    except ImportError as error:
        raise ConfigError([f"clusters.{name}: type amqp wants the extra 'bridge'"]) from error
    for noisy in ("aio_pika", "aiormq"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)  # a link that is down is said by us
    url = config.url
    if config.url_file is not None:
        try:
            url = config.url_file.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigError([f"clusters.{name}.url_file: {error}"]) from error
    if not url.startswith(("amqp://", "amqps://")):
        raise ConfigError([f"clusters.{name}: the url wants amqp:// or amqps://"])
    return lambda: AmqpLink(name, config, url)


class AmqpLink:
    """``Link`` of one connection."""

    def __init__(self, name: str, config: ClusterConfig, url: str) -> None:
        self._name = name
        self._config = config.bridge
        self._url = url
        self._lost = asyncio.Event()
        self._turn = asyncio.Lock()
        self._connection: AbstractConnection | None = None
        self._exchange: AbstractExchange | None = None

    def takes(self, topic: str) -> bool:
        return len(routing_key_of(topic).encode()) <= ROUTING_KEY_BYTES_MAX

    async def open(self, receive: Receive) -> None:
        import aio_pika

        config = self._config
        context = None
        if config.ca_file is not None or config.cert_file is not None:
            from aio_pika.abc import SSLOptions

            context = SSLOptions()
            if config.ca_file is not None:
                context["cafile"] = str(config.ca_file)
            if config.cert_file is not None:
                context["certfile"], context["keyfile"] = (
                    str(config.cert_file),
                    str(config.key_file),
                )
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                self._connection = connection = await aio_pika.connect(
                    self._url,
                    ssl_options=context,
                    heartbeat=config.keep_alive_s,
                    client_properties={
                        "connection_name": config.client_id or f"tidegate-{self._name}"
                    },
                )
                connection.close_callbacks.add(self._ended)
                channel = await connection.channel(publisher_confirms=True)
                channel.close_callbacks.add(self._ended)
                self._exchange = await channel.get_exchange(config.exchange, ensure=True)
                if config.receive:
                    await self._subscribe(channel, receive)
        except _faults() as error:
            raise BridgeError(f"no connection: {error!r}") from error

    async def _subscribe(self, channel: "AbstractChannel", receive: Receive) -> None:
        config = self._config
        await channel.set_qos(prefetch_count=config.inflight_max)
        name = config.queue or f"tidegate.{self._name}"
        queue = await channel.declare_queue(name, durable=True)
        for entry in config.receive:
            await queue.bind(config.exchange, binding_key(entry.topic))

        async def take(message: Any) -> None:
            """One after the other: order is kept."""
            async with self._turn:
                qos = 1 if message.delivery_mode == PERSISTENT else 0
                topic = subject_of(message.routing_key or "")
                await receive(Incoming(topic, message.body, qos, False))
            with contextlib.suppress(*_faults()):  # it will come again
                await message.ack()

        await queue.consume(take)

    async def publish(self, topic: str, body: bytes, qos: int, retain: bool) -> None:
        import aio_pika

        assert self._exchange is not None
        mode = aio_pika.DeliveryMode.PERSISTENT if qos else aio_pika.DeliveryMode.NOT_PERSISTENT
        message = aio_pika.Message(body, delivery_mode=mode, headers={"x-tidegate-qos": qos})
        try:
            await self._exchange.publish(
                message, routing_key_of(topic), mandatory=False, timeout=ANSWER_S_MAX
            )
        except _faults() as error:
            raise BridgeError(f"not published: {error!r}") from error

    async def lost(self) -> None:
        await self._lost.wait()

    async def close(self) -> None:
        if self._connection is None:
            return
        with contextlib.suppress(*_faults()):
            async with asyncio.timeout(2.0):
                await self._connection.close()

    def _ended(self, *_: Any) -> None:
        self._lost.set()


def binding_key(topic_filter: str) -> str:
    """``a/+/#`` is ``a.*.#``."""
    levels = topic_filter.split("/")
    return ".".join("*" if level == "+" else level.replace(".", "/") for level in levels)


def _faults() -> tuple[type[BaseException], ...]:
    """What aio-pika raises for a broker that refuses, or is gone."""
    from aiormq.exceptions import AMQPError, ChannelInvalidStateError

    return (AMQPError, ChannelInvalidStateError, OSError, TimeoutError)
