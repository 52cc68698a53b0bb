"""What the scripts look with."""

import time
from collections.abc import Callable
from typing import Any

import pika
import pika.exceptions
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.patience import PATIENCE_S

WAIT_S_MAX = PATIENCE_S

Seen = Any
Properties = pika.BasicProperties


class Client:
    """A connection or several, and words for what is looked at."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.connections: list[pika.BlockingConnection] = []
        self.connection = self.connect()

    def connect(self) -> pika.BlockingConnection:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.port))
        self.connections.append(connection)
        return connection

    def close(self) -> None:
        for connection in self.connections:
            if connection.is_open:
                connection.close()

    def channel(self, *, confirms: bool = True) -> BlockingChannel:
        channel = self.connection.channel()
        if confirms:
            channel.confirm_delivery()
        return channel

    def declare(self, channel: BlockingChannel, queue: str, **arguments: Any) -> str:
        """A queue that is deleted first; argument names with ``_`` for ``-`` and without x-."""
        channel.queue_delete(queue)
        named = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
        durable = named.get("x-queue-type") == "quorum"
        channel.queue_declare(queue, durable=durable, arguments=named)
        return queue

    def count(self, queue: str) -> tuple[int, int]:
        """(ready, consumers) by a passive declare."""
        method = self.channel(confirms=False).queue_declare(queue, passive=True).method
        return method.message_count, method.consumer_count

    def wait_count(self, queue: str, count: int) -> int:
        """Until so many are ready."""
        return self.until(lambda: self.count(queue)[0], count)

    def until(
        self, look: Callable[[], Any], wanted: Any, channel: BlockingChannel | None = None
    ) -> Any:
        """What *look* sees in the end, while the connection (of *channel*) is served."""
        connection = self.connection if channel is None else channel.connection
        until = time.monotonic() + WAIT_S_MAX
        while (seen := look()) != wanted and time.monotonic() < until:
            connection.process_data_events(0.02)
        return seen

    def fault(self, act: Callable[[BlockingChannel], object]) -> tuple[int, str] | str:
        """Code and text that end a channel or its connection."""
        connection = self.connect()
        channel = connection.channel()
        try:
            act(channel)
            channel.queue_declare("amq.rabbitmq.reply-to", passive=True)  # a round trip
        except (
            pika.exceptions.ChannelClosedByBroker,
            pika.exceptions.ConnectionClosedByBroker,
        ) as error:
            return error.reply_code, error.reply_text
        return "fine"


def publish(
    channel: BlockingChannel,
    key: str,
    *bodies: bytes,
    exchange: str = "",
    mandatory: bool = False,
    **properties: Any,
) -> list[str]:
    """Publish with confirms: what became of each."""
    seen: list[str] = []
    for body in bodies:
        try:
            channel.basic_publish(exchange, key, body, Properties(**properties), mandatory)
            seen.append("ack")
        except pika.exceptions.NackError:
            seen.append("nack")
        except pika.exceptions.UnroutableError as error:
            method = error.messages[0].method
            seen.append(f"{method.reply_code} {method.reply_text} {method.routing_key}")
    return seen


def drain(channel: BlockingChannel, queue: str) -> list[bytes]:
    """All that is ready, in order."""
    bodies: list[bytes] = []
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return bodies
        bodies.append(body)


def got(channel: BlockingChannel, queue: str, *, auto_ack: bool = False) -> Seen:
    """(delivery tag, body, redelivered, message count) of a basic.get; None: empty."""
    method, _, body = channel.basic_get(queue, auto_ack=auto_ack)
    if method is None:
        return None
    return method.delivery_tag, body, method.redelivered, method.message_count


def headers_of(channel: BlockingChannel, queue: str) -> Seen:
    """Of the next message: exchange, key, expiration and headers, but for what time writes."""
    method, properties, body = channel.basic_get(queue, auto_ack=True)
    if method is None:
        return None
    headers = dict(properties.headers or {})
    for name in list(headers):
        if name.startswith("x-last-death"):  # RabbitMQ writes them from 3.13 on
            del headers[name]
    for death in headers.get("x-death", []):
        assert abs(death.pop("time").timestamp() - time.time()) < 90_000
    return method.exchange, method.routing_key, properties.expiration, headers, body
