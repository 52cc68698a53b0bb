"""
A small remoting client for the data commands: routes, then the stores themselves.

What it is given as a name server may also be a gateway's remoting listener: then everything
passes the gateway's rules, and messages reach subscribers of every protocol at once.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from protocols.daemon.cli import parse_addresses
from protocols.errors import Code, Refused
from protocols.remoting import bodies
from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.nearly_json import parse
from protocols.remoting.signing import sign

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_NAMESRV = "127.0.0.1:9876"
REQUEST_S = 5.0


class Queue(NamedTuple):
    """One message queue of a topic."""

    broker: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class Target:
    """Where a command goes: the options that all data commands share."""

    namesrv: str = DEFAULT_NAMESRV
    config: Path | None = None

    def run(self, work: "Callable[[Stores], Coroutine[Any, Any, T]]") -> T:
        """Connect, do *work*, close."""

        async def main() -> T:
            stores = Stores(parse_addresses(self.namesrv), self._credentials())
            try:
                return await work(stores)
            finally:
                await stores.close()

        return asyncio.run(main())

    def _credentials(self) -> tuple[str, str] | None:
        if self.config is None:
            return None
        from protocols.daemon import config as documents

        auth = documents.cluster_auth(documents.read(self.config))
        return None if auth is None else (auth.access_key, auth.read_secret().decode())


def target_options(function: F) -> F:
    """``--namesrvAddr`` and ``-c`` (for ``cluster_auth``); both reach the command by name."""
    function = click.option(
        "-n",
        "--namesrvAddr",
        "namesrv",
        default=DEFAULT_NAMESRV,
        show_default=True,
        help="Name servers, or the remoting listener of a gateway.",
    )(function)
    return click.option(
        "-c",
        "--config",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Configuration file, for its cluster_auth.",
    )(function)


class Stores:
    """Connections to one cluster's name server and stores, made when needed."""

    def __init__(self, name_servers: list[str], credentials: tuple[str, str] | None) -> None:
        self._name_servers = name_servers
        self._credentials = credentials
        self._clients: dict[str, RemotingClient] = {}
        self.addresses: dict[str, str] = {}
        """Broker name → address of its master."""

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()

    async def ask_names(self, code: int, **fields: str) -> RemotingCommand:
        """Ask the first name server that answers. Raises Refused."""
        error: Refused | None = None
        for address in self._name_servers:
            try:
                return await self.ask(address, RemotingCommand(code, fields))
            except Refused as refused:
                if refused.code is not Code.HA_NOT_AVAILABLE:
                    raise
                error = refused
        raise error or Refused(Code.BAD_REQUEST, "namesrv", "no name server was given")

    async def ask(
        self, address: str, command: RemotingCommand, timeout_s: float = REQUEST_S
    ) -> RemotingCommand:
        """The answer of *address*. Raises Refused for every code but success."""
        answer = await self.request(address, command, timeout_s)
        if answer.code != ResponseCode.SUCCESS:
            missing = answer.code == ResponseCode.TOPIC_NOT_EXIST
            code = Code.TOPIC_NOT_FOUND if missing else Code.BAD_REQUEST
            raise Refused(code, address, answer.remark or f"answer {answer.code}")
        return answer

    async def request(
        self, address: str, command: RemotingCommand, timeout_s: float = REQUEST_S
    ) -> RemotingCommand:
        """The answer of *address*, whatever its code."""
        client = self._clients.get(address)
        if client is None:
            client = self._clients[address] = await RemotingClient.connect(address)
        if self._credentials is not None:
            sign(command, *self._credentials)
        return await client.request(command, timeout_s)

    async def route(self, topic: str) -> bodies.RouteData:
        """Raises Refused: no such topic."""
        answer = await self.ask_names(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic)
        route = bodies.decode_body(bodies.RouteData, answer.body)
        for broker in route.broker_datas:
            if 0 in broker.broker_addrs:
                self.addresses[broker.broker_name] = broker.broker_addrs[0]
        return route

    async def queues(self, topic: str, *, is_writing: bool = False) -> list[Queue]:
        """The message queues of *topic* on brokers with a master."""
        route = await self.route(topic)
        return [
            Queue(data.broker_name, queue_id)
            for data in route.queue_datas
            if data.broker_name in self.addresses
            for queue_id in range(data.write_queue_nums if is_writing else data.read_queue_nums)
        ]

    async def brokers(self) -> dict[str, str]:
        """Every broker with a master: name → address."""
        answer = await self.ask_names(RequestCode.GET_BROKER_CLUSTER_INFO)
        info = bodies.decode_body(bodies.ClusterInfo, answer.body)
        for broker in info.broker_addr_table.values():
            if 0 in broker.broker_addrs:
                self.addresses[broker.broker_name] = broker.broker_addrs[0]
        return dict(self.addresses)

    async def topics(self) -> list[str]:
        """Names of all topics."""
        answer = await self.ask_names(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(bodies.decode_body(bodies.TopicList, answer.body).topic_list)

    async def offset(self, topic: str, queue: Queue, code: RequestCode, **fields: str) -> int:
        """Smallest, largest or searched offset of a queue."""
        command = RemotingCommand(
            code, {"topic": topic, "queueId": str(queue.queue_id), "bname": queue.broker, **fields}
        )
        return int((await self.ask(self.addresses[queue.broker], command)).fields["offset"])


def offset_table(body: bytes | memoryview) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(message queue, values) of a Java map whose keys are objects."""
    table = parse(body).get("offsetTable", {})
    for key, value in table.items():
        yield dict(key), value
