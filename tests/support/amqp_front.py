"""An AMQP listener over Services in memory, and what tests of it do with aio-pika."""

import asyncio
import contextlib
from collections.abc import Callable

import aio_pika
import aiormq
import pamqp.body
import pamqp.commands as amqp
import pamqp.frame
import pamqp.header
import pytest
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from protocols.amqp import codec
from protocols.amqp.adapter import AmqpAdapter
from tests.support.fake_services import FakeServices
from tests.support.patience import PATIENCE_S


class Gateway:
    """One AMQP listener on a fake gateway."""

    def __init__(self, services: FakeServices) -> None:
        self.services = services
        self.port = 0
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        adapter = AmqpAdapter.from_config("amqp", {"protocol": "amqp", "bind": "127.0.0.1:0"})
        self._task = asyncio.create_task(adapter.serve(self.services))
        _, self.port = await self.services.address("amqp")

    async def stop(self) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def connect(self, user: str = "guest") -> aio_pika.abc.AbstractConnection:
        return await aio_pika.connect(f"amqp://{user}:guest@127.0.0.1:{self.port}/")


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that another task will make true."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  # conditions of a fake and of a client's state
            await asyncio.sleep(0.005)


async def take(queue: aio_pika.abc.AbstractQueue, count: int) -> list[AbstractIncomingMessage]:
    """The next *count* messages, not acknowledged."""
    found: list[AbstractIncomingMessage] = []
    async with asyncio.timeout(PATIENCE_S), queue.iterator() as messages:
        async for message in messages:
            found.append(message)
            if len(found) == count:
                return found
    return found


async def got(queue: aio_pika.abc.AbstractQueue) -> list[bytes]:
    """Everything that is ready, acknowledged."""
    bodies = []
    while (message := await queue.get(fail=False, no_ack=True)) is not None:
        bodies.append(message.body)
    return bodies


async def ignore(message: AbstractIncomingMessage) -> None:
    """A consumer that acknowledges nothing."""


async def fails(
    connection: aio_pika.abc.AbstractConnection, act: Callable[[AbstractChannel], object], text: str
) -> None:
    """*act* ends its channel, with this text."""
    channel = await connection.channel()
    with pytest.raises(aiormq.exceptions.AMQPChannelError, match=text):
        await act(channel)  # type: ignore[misc]


async def consume(channel: AbstractChannel, *, exclusive: bool) -> None:
    queue = await channel.get_queue("q", ensure=False)
    await queue.consume(ignore, exclusive=exclusive)


async def get(channel: AbstractChannel) -> None:
    await (await channel.get_queue("q", ensure=False)).get()


async def bind(channel: AbstractChannel, exchange: str, key: str) -> None:
    await (await channel.get_queue("q", ensure=False)).bind(exchange, key)


class Raw:
    """A client that writes bytes and reads frames (pamqp's), nothing more."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, gateway: Gateway, *, properties: dict[str, object] | None = None) -> "Raw":
        raw = cls(*await asyncio.open_connection("127.0.0.1", gateway.port))
        start = amqp.Connection.StartOk(properties or {}, "PLAIN", "\0guest\0guest", "en_US")
        raw.writer.write(codec.PROTOCOL_HEADER)
        raw.send(0, start, amqp.Connection.TuneOk(0, 131072, 0), amqp.Connection.Open("/"))
        raw.send(1, amqp.Channel.Open())
        await raw.expect("Start", "Tune", "OpenOk", "OpenOk")
        return raw

    def send(self, channel: int, *methods: object) -> None:
        for method in methods:
            self.writer.write(pamqp.frame.marshal(method, channel))

    def publish(self, channel: int, key: str, body: bytes) -> None:
        self.send(
            channel,
            amqp.Basic.Publish(0, "", key),
            pamqp.header.ContentHeader(0, len(body), amqp.Basic.Properties()),
            pamqp.body.ContentBody(body),
        )

    async def next(self) -> object:
        async with asyncio.timeout(PATIENCE_S):
            head = await self.reader.readexactly(7)
            rest = await self.reader.readexactly(int.from_bytes(head[3:7], "big") + 1)
        return pamqp.frame.unmarshal(head + rest)[2]

    async def expect(self, *names: str) -> list[object]:
        frames = [await self.next() for _ in names]
        assert [type(frame).__name__ for frame in frames] == list(names)
        return frames

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()
