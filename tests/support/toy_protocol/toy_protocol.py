"""
A protocol in a hundred lines: ``PUB <topic> <text>`` and ``POP <topic> <group>``.

Answers ``OK <message id>``, ``MSG <text>`` (acknowledged as it is handed over), ``NONE`` or
``NO <code> <hint>``. It sees the gateway through ``Services`` alone.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Self

from protocols.addresses import split_bind
from protocols.canonical import Call, Head, Identity, Message
from protocols.errors import Code, ConfigError, Refused
from protocols.groups import GroupSpec, PopRequest, Read, Start
from protocols.pipeline import Credentials, Services

LINE_BYTES_MAX = 4096
INVISIBLE_MS = 10_000


class ToyAdapter:
    """One listener; asyncio streams are quick enough for a toy."""

    def __init__(self, name: str, host: str, port: int) -> None:
        self._name, self._host, self._port = name, host, port

    @classmethod
    def from_config(cls, name: str, section: Mapping[str, Any]) -> Self:
        try:
            host, port = split_bind(str(section["bind"]))
        except (KeyError, ValueError) as error:
            raise ConfigError([f"listeners.{name}.bind: {error}"]) from error
        return cls(name, host, port)

    async def serve(self, services: Services) -> None:
        async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await self._converse(services, reader, writer)
            finally:
                writer.close()

        server = await asyncio.start_server(converse, self._host, self._port, limit=LINE_BYTES_MAX)
        async with server:
            services.listening(self._name, self._host, server.sockets[0].getsockname()[1])
            await server.serve_forever()

    async def _converse(
        self, services: Services, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        peer = ":".join(map(str, writer.get_extra_info("peername")[:2]))
        credentials = Credentials(protocol="toy", listener=self._name, peer=peer)
        identity = await services.authenticator.authenticate(credentials)
        if identity is None:
            writer.write(b"NO UNAUTHORIZED anonymous is not allowed here\n")
            return
        call = self._call(identity, peer)
        while line := (await reader.readline()).decode():
            try:
                answer = await self._answer(services, call, line.rstrip("\r\n").split(" ", 2))
            except Refused as refusal:
                answer = f"NO {refusal.code.name} {refusal.hint}"
            writer.write(answer.encode() + b"\n")

    def _call(self, identity: Identity, peer: str) -> Call:
        return Call(protocol="toy", listener=self._name, identity=identity, peer=peer)

    async def _answer(self, services: Services, call: Call, words: list[str]) -> str:
        match words:
            case ["PUB", topic, text]:
                if await services.topics.find(topic) is None:
                    await services.topics.create(topic)
                message = Message(Head(subject=topic, topic=topic), text.encode())
                (result,) = await services.pipeline.send(call, [message])
                if result.code != Code.OK:
                    raise Refused(result.code, topic, result.hint)
                return f"OK {result.message_id}"
            case ["POP", topic, group]:
                return await self._pop(services, call, topic, group)
        return "NO BAD_REQUEST say PUB <topic> <text> or POP <topic> <group>"

    async def _pop(self, services: Services, call: Call, topic: str, group: str) -> str:
        spec = GroupSpec(
            name=f"rmq/{group}/{topic}", reads=(Read(topic=topic),), start=Start.EARLIEST
        )
        request = PopRequest(group=spec, count=1, invisible_ms=INVISIBLE_MS, wait_ms=1000)
        deliveries = await services.pipeline.pop(call, request)
        if not deliveries:
            return "NONE"
        await services.pipeline.ack(call, [delivery.handle for delivery in deliveries])
        return f"MSG {deliveries[0].message.body.decode()}"
