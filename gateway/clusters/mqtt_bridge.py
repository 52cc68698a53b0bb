"""
The link of a bridge to an MQTT broker, on amqtt's client (MQTT 3.1.1, extra ``bridge``).

amqtt acknowledges a QoS 1 publish when it has put it into the session's queue: ours takes it
only when a store has it. It mends no link by itself here; the bridge makes a new one.
"""

import asyncio
import contextlib
import logging
import warnings
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from gateway.bridges import BridgeError, Incoming
from gateway.config import ClusterConfig
from protocols.errors import ConfigError

if TYPE_CHECKING:
    from amqtt.client import MQTTClient

logger = logging.getLogger("tidegate.bridges")

ANSWER_S_MAX: Final = 10.0
PING_BEFORE_S: Final = 2
"""How long before the keep alive runs out amqtt sends its ping."""

Receive = Callable[[Incoming], Awaitable[None]]


def link_maker(name: str, config: ClusterConfig) -> Callable[[], "MqttLink"]:
    """Raises ConfigError: amqtt is not installed, the URL cannot be read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its dependencies warn when imported
            import amqtt.client  # noqa: F401
    except ImportError as error:
        raise ConfigError([f"clusters.{name}: type mqtt wants the extra 'bridge'"]) from error
    logging.getLogger("amqtt").setLevel(logging.ERROR)  # a link that is down is said by us
    logging.getLogger("transitions").setLevel(logging.ERROR)
    url = config.url
    if config.url_file is not None:
        try:
            url = config.url_file.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigError([f"clusters.{name}.url_file: {error}"]) from error
    if not url.startswith(("mqtt://", "mqtts://", "ws://", "wss://")):
        raise ConfigError([f"clusters.{name}: the url wants mqtt://, mqtts://, ws:// or wss://"])
    return lambda: MqttLink(name, config, url)


class _StoringQueue:
    """Takes the place of amqtt's queue of received messages."""

    def __init__(self, receive: Receive, inflight_max: int) -> None:
        self._receive = receive
        self._waiting: set[asyncio.Task[None]] = set()
        self._inflight_max = inflight_max

    async def put(self, message: Any) -> None:
        """Returns when it may be acknowledged."""
        await self._receive(
            Incoming(
                message.topic,
                bytes(message.data or b""),
                message.qos or 0,
                bool(message.retain),
            )
        )

    def put_nowait(self, message: Any) -> None:
        """QoS 0: kept as far as there is room."""
        if len(self._waiting) >= self._inflight_max:
            return
        task = asyncio.ensure_future(self.put(message))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    def shutdown(self, immediate: bool = False) -> None:
        for task in self._waiting:
            task.cancel()

    def qsize(self) -> int:
        return len(self._waiting)


class MqttLink:
    """``Link`` of one connection."""

    def __init__(self, name: str, config: ClusterConfig, url: str) -> None:
        self._name = name
        self._config = config.bridge
        self._url = url
        self._client: MQTTClient | None = None
        self._queue: _StoringQueue | None = None

    async def open(self, receive: Receive) -> None:
        from amqtt.client import MQTTClient
        from amqtt.errors import AMQTTError, ClientError

        config = self._config
        settings: dict[str, Any] = {
            "keep_alive": config.keep_alive_s + PING_BEFORE_S,
            "ping_delay": PING_BEFORE_S,
            "auto_reconnect": False,
            "connection_timeout": int(ANSWER_S_MAX),
            "cleansession": False,
            "plugins": {},
        }
        if config.cert_file is not None:
            own = {"certfile": str(config.cert_file), "keyfile": str(config.key_file)}
            settings["connection"] = own
        client = MQTTClient(client_id=config.client_id or f"tidegate-{self._name}", config=settings)
        self._client = client
        queue = self._queue = _StoringQueue(receive, config.inflight_max)
        make = client._init_session

        def with_queue(*args: Any, **kwargs: Any) -> Any:
            session = make(*args, **kwargs)
            session.delivered_message_queue = queue
            return session

        client._init_session = with_queue  # before CONNECT goes
        cafile = str(config.ca_file) if config.ca_file is not None else None
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                await client.connect(self._url, cleansession=False, cafile=cafile)
                if config.receive:
                    wanted = [(entry.topic, entry.qos) for entry in config.receive]
                    codes = await client.subscribe(wanted)
                    denied = [one for (one, _), code in zip(wanted, codes, strict=True) if code > 2]
                    if denied:
                        raise BridgeError(f"refused to subscribe us to {', '.join(denied)}")
        except (AMQTTError, ClientError, OSError, TimeoutError) as error:
            raise BridgeError(f"no connection: {error!r}") from error

    def takes(self, topic: str) -> bool:
        return True

    async def publish(self, topic: str, body: bytes, qos: int, retain: bool) -> None:
        from amqtt.errors import AMQTTError, ClientError

        assert self._client is not None
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                await self._client.publish(topic, body, qos=qos, retain=retain)
        except (AMQTTError, ClientError, OSError, TimeoutError, AttributeError) as error:
            raise BridgeError(f"not published: {error!r}") from error

    async def lost(self) -> None:
        assert self._client is not None
        await self._client._no_more_connections.wait()

    async def close(self) -> None:
        from amqtt.errors import AMQTTError, ClientError

        if self._queue is not None:
            self._queue.shutdown(immediate=True)
        if self._client is None:
            return
        # what it says of a link that is gone already is no news
        with contextlib.suppress(AMQTTError, ClientError, OSError, TimeoutError, AttributeError):
            async with asyncio.timeout(2.0):
                await self._client.disconnect()
