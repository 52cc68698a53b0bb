"""How ``tidegate bench`` speaks to a server: one object for each connection."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Final, Protocol

from protocols.addresses import split_bind
from protocols.errors import Code, PeerError, Refused

ANSWER_S_MAX: Final = 30.0
READ_BYTES: Final = 1 << 16


class Sender(Protocol):
    """One connection."""

    async def open(self) -> None:
        """Raises GatewayError or OSError."""
        ...

    async def send(self, body: bytes) -> None:
        """Return when it is acknowledged. Raises GatewayError or OSError."""
        ...

    async def close(self) -> None: ...


class MqttSender:
    """MQTT 3.1.1 over TCP."""

    def __init__(
        self,
        address: str,
        *,
        client_id: str,
        topic: str,
        qos: int,
        user: str = "",
        password: str = "",
    ) -> None:
        from protocols.mqtt.packets import V311, Connect

        self._address = address
        self._topic = topic
        self._qos = qos
        self._version = V311
        self._connect = Connect(
            V311,
            client_id,
            user=user or None,
            password=password.encode() if user else None,
        )
        self._ids = itertools.count(1)
        self._waits: dict[int, asyncio.Future[None]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._received: Callable[[bytes], None] = lambda body: None

    async def open(self) -> None:
        from protocols.mqtt.encoder import encode_packet
        from protocols.tasks import Tasks

        host, port = split_bind(self._address)
        self._reader, self._writer = await asyncio.open_connection(host, port)
        self._tasks = Tasks("bench")
        self._waits[0] = asyncio.get_running_loop().create_future()
        self._reading = self._tasks.start(self._read(), name=self._connect.client_id)
        self._writer.write(encode_packet(self._connect, self._version))
        async with asyncio.timeout(ANSWER_S_MAX):
            await self._waits[0]

    async def subscribe(self, received: Callable[[bytes], None]) -> None:
        """Call *received* with the body of everything that comes."""
        from protocols.mqtt.encoder import encode_packet
        from protocols.mqtt.packets import Subscribe, SubscribeItem

        self._received = received
        packet_id, wait = self._wait()
        items = (SubscribeItem(self._topic, self._qos),)
        self._writer.write(encode_packet(Subscribe(packet_id, items), self._version))
        async with asyncio.timeout(ANSWER_S_MAX):
            await wait

    async def send(self, body: bytes) -> None:
        from protocols.mqtt.encoder import encode_packet
        from protocols.mqtt.packets import Publish

        if self._qos == 0:
            self._writer.write(encode_packet(Publish(self._topic, body), self._version))
            await self._writer.drain()
            return
        packet_id, wait = self._wait()
        publish = Publish(self._topic, body, self._qos, packet_id=packet_id)
        self._writer.write(encode_packet(publish, self._version))
        await wait

    async def close(self) -> None:
        self._writer.close()
        await self._tasks.close()

    def _wait(self) -> "tuple[int, asyncio.Future[None]]":
        if self._reading is None or self._reading.done():
            raise PeerError("the server closed the connection")
        packet_id = next(self._ids) % 65_535 + 1
        wait = self._waits[packet_id] = asyncio.get_running_loop().create_future()
        return packet_id, wait

    async def _read(self) -> None:
        from protocols.mqtt import codec

        buffer = b""
        try:
            while data := await self._reader.read(READ_BYTES):
                buffer += data
                position = 0
                while position < len(buffer):
                    start, end = codec.find_body(buffer, position)
                    if not start or end > len(buffer):
                        break
                    packet = codec.decode_packet(buffer, position, start, end, self._version)
                    self._take(packet)
                    position = end
                buffer = buffer[position:]
        finally:
            for wait in self._waits.values():
                if not wait.done():
                    wait.set_exception(PeerError("the server closed the connection"))

    def _take(self, packet: object) -> None:
        from protocols.mqtt.encoder import encode_packet
        from protocols.mqtt.packets import Connack, Puback, Pubcomp, Publish, Pubrec, Pubrel, Suback

        if isinstance(packet, Publish):
            if packet.qos == 1:
                self._writer.write(encode_packet(Puback(packet.packet_id), self._version))
            self._received(packet.payload)
        elif isinstance(packet, Pubrec):
            self._writer.write(encode_packet(Pubrel(packet.packet_id), self._version))
        elif isinstance(packet, Connack):
            wait = self._waits.pop(0)
            if packet.reason:
                refused = Refused(Code.UNAUTHORIZED, "CONNECT", f"return code {packet.reason}")
                wait.set_exception(refused)
            else:
                wait.set_result(None)
        elif isinstance(packet, Puback | Pubcomp | Suback):
            found = self._waits.pop(packet.packet_id, None)
            if found is not None and not found.done():
                found.set_result(None)


class RemotingSender:
    """SEND_MESSAGE_V2 to the stores of a topic, or to a gateway's remoting listener."""

    def __init__(self, address: str, *, topic: str) -> None:
        from gateway.commands.stores import Stores
        from protocols.daemon.cli import parse_addresses

        self._stores = Stores(parse_addresses(address), None)
        self._topic = topic
        self._turn = itertools.count()

    async def open(self) -> None:
        self._queues = await self._stores.queues(self._topic, is_writing=True)
        if not self._queues:
            raise Refused(Code.TOPIC_NOT_FOUND, self._topic, "create it first")

    async def send(self, body: bytes) -> None:
        from protocols import clock
        from protocols.remoting.codes import RequestCode
        from protocols.remoting.command import RemotingCommand
        from protocols.remoting.headers import SendHeader

        queue = self._queues[next(self._turn) % len(self._queues)]
        header = SendHeader(
            producer_group="CID_RMQ_SYS_TIDEGATE_TOOLS",
            topic=self._topic,
            queue_id=queue.queue_id,
            born_ms=clock.wall_ms(),
            broker=queue.broker,
        )
        command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, header.to_fields(), body)
        await self._stores.ask(self._stores.addresses[queue.broker], command, ANSWER_S_MAX)

    async def close(self) -> None:
        await self._stores.close()


class EventSender:
    """``POST /topics/{topic}``, CloudEvents in binary mode."""

    def __init__(self, address: str, *, topic: str, user: str = "", password: str = "") -> None:
        self._url = f"http://{address}/topics/{topic}"
        self._user, self._password = user, password
        self._ids = itertools.count()
        self._prefix = f"{id(self):x}"

    async def open(self) -> None:
        import aiohttp

        auth = aiohttp.BasicAuth(self._user, self._password) if self._user else None
        timeout = aiohttp.ClientTimeout(total=ANSWER_S_MAX)
        connector = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(auth=auth, timeout=timeout, connector=connector)

    async def send(self, body: bytes) -> None:
        headers = {
            "ce-specversion": "1.0",
            "ce-id": f"{self._prefix}-{next(self._ids)}",
            "ce-source": "/tidegate/bench",
            "ce-type": "bench",
            "content-type": "application/octet-stream",
        }
        async with self._session.post(self._url, data=body, headers=headers) as answer:
            text = await answer.text()
            if answer.status >= 300:
                raise Refused(Code.BAD_REQUEST, self._url, f"{answer.status} {text[:200]}")

    async def close(self) -> None:
        await self._session.close()
