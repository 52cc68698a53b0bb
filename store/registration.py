"""
Makes the store known to every name server: the whole table on each change, a short heartbeat.

Each name server has a task of its own: one that is down delays nobody. Source: Apache
RocketMQ 5, ``BrokerOuterAPI.registerBrokerAll`` (code 103) and ``sendHeartbeat`` (904).
"""

import asyncio
import logging
import zlib
from typing import Final

from protocols import clock
from protocols.daemon.config import ClusterAuth
from protocols.errors import Refused
from protocols.remoting import bodies
from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.signing import sign
from protocols.tasks import Tasks
from store.handlers.context import Context
from store.handlers.topic_bodies import topic_table

logger = logging.getLogger("tidegate.store.registration")

REPEAT_S: Final = 30.0
"""The whole table again, whatever happened (``registerNameServerPeriod``)."""

RETRY_S: Final = 0.5
HEARTBEATS_MISSED_MAX: Final = 5
"""The name server may forget us after so many heartbeat periods of silence."""

REQUEST_S_MAX: Final = 3.0
MASTER_ID: Final = "0"


class Registration:
    """Keeps this store registered with all its name servers until stopped."""

    def __init__(
        self, context: Context, changed: asyncio.Event, *, auth: ClusterAuth | None
    ) -> None:
        self._context = context
        self._changed = changed
        self._auth = auth
        self._secret = auth.read_secret().decode() if auth is not None else ""
        self._tasks = Tasks("registration")
        self._wakes = [asyncio.Event() for _ in context.config.namesrv]
        self._clients: dict[str, RemotingClient] = {}

    def start(self) -> None:
        """Begin to register; name servers that are away are tried again."""
        addresses = self._context.config.namesrv
        for address, wake in zip(addresses, self._wakes, strict=True):
            self._tasks.start(self._keep(address, wake), name=address)
        self._tasks.start(self._spread(), name="changes")

    async def stop(self) -> None:
        """Unregister everywhere that can be reached, then end."""
        await self._tasks.close()
        for address, client in list(self._clients.items()):
            command = RemotingCommand(RequestCode.UNREGISTER_BROKER, self._fields())
            try:
                await self._request(client, command)
            except Refused as error:
                logger.info("name server %s: not unregistered: %s", address, error)
            await client.close()
        self._clients.clear()

    async def _spread(self) -> None:
        """A change of a topic reaches every name server at once; changes of a tick go together."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            for wake in self._wakes:
                wake.set()

    async def _keep(self, address: str, wake: asyncio.Event) -> None:
        """One name server: connect, register, heartbeat; over and over."""
        is_quiet = False
        while True:
            try:
                client = await RemotingClient.connect(address)
                self._clients[address] = client
                logger.info("registering with name server %s", address)
                is_quiet = False
                await self._serve(client, wake)
            except Refused as error:
                if not is_quiet:
                    logger.warning("name server %s: %s", address, error)
                    is_quiet = True
            finally:
                if address in self._clients and not self._clients[address].is_open:
                    del self._clients[address]
            await asyncio.sleep(RETRY_S)

    async def _serve(self, client: RemotingClient, wake: asyncio.Event) -> None:
        """Register at once, on each change and each 30 s; heartbeats between."""
        heartbeat_s = self._context.config.heartbeat_ms / 1000
        registered = -REPEAT_S
        while client.is_open:
            now = clock.monotonic()
            if wake.is_set() or now - registered >= REPEAT_S:
                wake.clear()
                answer = await self._request(client, self._register())
                if answer.code != ResponseCode.SUCCESS:
                    logger.warning("not registered: %d %s", answer.code, answer.remark)
                registered = now
            else:
                command = RemotingCommand(RequestCode.BROKER_HEARTBEAT, self._fields())
                self._sign(command)
                client.peer.send_oneway(command)
            try:
                async with asyncio.timeout(heartbeat_s):
                    await wake.wait()
            except TimeoutError:
                continue

    async def _request(self, client: RemotingClient, command: RemotingCommand) -> RemotingCommand:
        self._sign(command)
        return await client.request(command, REQUEST_S_MAX)

    def _sign(self, command: RemotingCommand) -> None:
        if self._auth is not None:
            sign(command, self._auth.access_key, self._secret)

    def _fields(self) -> dict[str, str]:
        config = self._context.config
        timeout_ms = str(config.heartbeat_ms * HEARTBEATS_MISSED_MAX)
        return {
            "brokerName": config.name,
            "brokerAddr": self._context.address,
            "clusterName": config.cluster,
            "brokerId": MASTER_ID,
            "heartbeatTimeoutMillis": timeout_ms,
            "heartbeatTimeoutMills": timeout_ms,  # the name Apache gives it in 904
        }

    def _register(self) -> RemotingCommand:
        """REGISTER_BROKER with the whole table."""
        body = bodies.encode_body(register_body(self._context))
        fields = self._fields() | {
            "haServerAddr": self._context.address,
            "enableActingMaster": "false",
            "compressed": "false",
            "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
            "isFullTable": "true",
        }
        return RemotingCommand(RequestCode.REGISTER_BROKER, fields, body)


def register_body(context: Context) -> bodies.RegisterBody:
    return bodies.RegisterBody(topic_config_serialize_wrapper=topic_table(context))
