"""
Makes the store known to every name server: its table once, then what changes, short heartbeats.

Each name server has a task of its own: one that is down delays nobody. One of ours takes changed
topics alone; Apache's gets the whole table at each change, and neither gets it again while it has
the right one (322 asks). Source: Apache RocketMQ 5, ``BrokerOuterAPI.registerBrokerAll`` (code
103), ``needRegister`` (322) and ``sendHeartbeat`` (904).
"""

import asyncio
import logging
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from protocols import clock
from protocols.daemon.config import ClusterAuth
from protocols.errors import Refused
from protocols.remoting import bodies
from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import Permission, RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.discovery import CHANGES_SINCE, DROPPED_TOPICS, TAKES_CHANGES
from protocols.remoting.signing import sign
from protocols.tasks import Tasks
from store.answers import TopicConfig
from store.handlers.context import Context
from store.handlers.system_topics import READ_WRITE
from store.handlers.topic_bodies import table_version, topic_body
from store.telling import Telling

logger = logging.getLogger("tidegate.store.registration")

REPEAT_S: Final = 30.0
"""So often a name server is asked which table it has (``registerNameServerPeriod``)."""

RETRY_S: Final = 0.5
HEARTBEATS_MISSED_MAX: Final = 5
"""The name server may forget us after so many heartbeat periods of silence."""

DROPPED_MAX: Final = 500
"""Topics that vanished at once, named in a header; more, and the whole table goes."""

REQUEST_S_MAX: Final = 3.0
TABLE_S_MAX: Final = 30.0
"""For a registration: with 20,000 topics it is 3 MB, and a busy name server takes its time."""

ROUTE_S_MAX: Final = 1.0
"""For a route: a client waits 3 s for what is made of it."""

FOUND_MAX: Final = 10_000
"""Topics whose routes are remembered for when no name server answers."""

MASTER_ID: Final = "0"


Topics = Mapping[str, TopicConfig]


class Told(NamedTuple):
    """What a name server was told last."""

    topics: Topics
    version: bodies.DataVersion


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
        self._telling = Telling()
        self._found: OrderedDict[str, list[bodies.QueueData]] = OrderedDict()
        """Topic → what a name server has told of it last."""

    def start(self) -> None:
        """Begin to register; name servers that are away are tried again."""
        addresses = self._context.config.namesrv
        for address, wake in zip(addresses, self._wakes, strict=True):
            self._tasks.start(self._keep(address, wake), name=address)
        self._tasks.start(self._spread(), name="changes")
        if addresses:
            self._context.find_queues = self.find_queues
            self._context.when_routed = self.when_routed

    async def stop(self) -> None:
        """Unregister everywhere that can be reached, then end."""
        self._telling.close()
        await self._tasks.close()
        for address, client in list(self._clients.items()):
            command = RemotingCommand(RequestCode.UNREGISTER_BROKER, self._fields())
            try:
                await self._request(client, command)
            except Refused as error:
                logger.info("name server %s: not unregistered: %s", address, error)
            await client.close()
        self._clients.clear()

    def when_routed(self, then: Callable[[], object]) -> None:
        """Call *then* when the name servers know the topics as they are now."""
        if self._telling.when_told(then):
            self._wake_all()

    def find_queues(self, topic: str, tell: Callable[[Sequence[bodies.QueueData]], None]) -> None:
        """*tell* hears which queues brokers have of *topic*: what was known last if no name server
        answers in time, nothing if none ever did."""
        self._tasks.start(self._find_queues(topic, tell), name=f"route of {topic}")

    async def _find_queues(
        self, topic: str, tell: Callable[[Sequence[bodies.QueueData]], None]
    ) -> None:
        fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
        for client in list(self._clients.values()):
            command = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
            self._sign(command)
            try:
                answer = await client.request(command, ROUTE_S_MAX)
                if answer.code != ResponseCode.SUCCESS:
                    continue
                route = bodies.decode_body(bodies.RouteData, answer.body)
            except Refused as error:
                logger.info("route of %s: %s", topic, error)
                continue
            self._found[topic] = route.queue_datas
            self._found.move_to_end(topic)
            if len(self._found) > FOUND_MAX:
                self._found.popitem(last=False)
            break
        tell(self._found.get(topic, ()))

    async def _spread(self) -> None:
        """A change of a topic reaches every name server at once; changes of a tick go together."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            self._wake_all()

    def _wake_all(self) -> None:
        for wake in self._wakes:
            wake.set()

    async def _keep(self, address: str, wake: asyncio.Event) -> None:
        """One name server: connect, register, heartbeat; over and over."""
        is_quiet = False
        while True:
            client: RemotingClient | None = None
            try:
                client = await RemotingClient.connect(address)
                self._clients[address] = client
                logger.info("registering with name server %s", address)
                is_quiet = False
                await self._serve(client, wake, address)
            except Refused as error:
                if not is_quiet:
                    logger.warning("name server %s: %s", address, error)
                    is_quiet = True
                if client is not None:
                    await client.close()
            finally:
                if client is not None and not client.is_open:
                    self._clients.pop(address, None)
                    self._telling.lost(address)
            await asyncio.sleep(RETRY_S)

    async def _serve(self, client: RemotingClient, wake: asyncio.Event, address: str) -> None:
        """Register, then tell each change; heartbeats between. Raises Refused."""
        heartbeat_s = self._context.config.heartbeat_ms / 1000
        wake.clear()
        told = await self._tell(client, None, address)
        checked = clock.monotonic()
        while client.is_open:
            try:
                async with asyncio.timeout(heartbeat_s):
                    await wake.wait()
            except TimeoutError:
                pass
            if wake.is_set():
                wake.clear()
                told = await self._tell(client, told, address)
            elif clock.monotonic() - checked >= REPEAT_S:
                checked = clock.monotonic()
                if not await self._is_known(client):
                    told = await self._tell(client, None, address)
            elif not await self._beat(client):
                told = await self._tell(client, None, address)

    async def _tell(self, client: RemotingClient, told: Told | None, address: str) -> Told | None:
        """
        Register; *told*: what this name server has, None: nothing, or it wants all of it.

        Returns what it has now; None if it takes no changes.
        """
        number = self._telling.asked
        topics, version = current_topics(self._context)
        answer = await self._request(client, self._register(topics, version, told))
        if answer.code == ResponseCode.BROKER_NOT_EXIST and told is not None:
            answer = await self._request(client, self._register(topics, version, None))
        if answer.code != ResponseCode.SUCCESS:
            logger.warning("not registered: %d %s", answer.code, answer.remark)
            return None
        self._telling.told(address, number)
        return Told(topics, version) if answer.fields.get(TAKES_CHANGES) == "true" else None

    async def _is_known(self, client: RemotingClient) -> bool:
        """Whether the name server has this table (and knows that we live)."""
        _, version = current_topics(self._context)
        command = RemotingCommand(
            RequestCode.QUERY_DATA_VERSION, self._fields(), bodies.encode_body(version)
        )
        answer = await self._request(client, command)
        return answer.code == ResponseCode.SUCCESS and answer.fields.get("changed") == "false"

    async def _beat(self, client: RemotingClient) -> bool:
        """A heartbeat; False: the name server has forgotten us (or cannot answer to it)."""
        command = RemotingCommand(RequestCode.BROKER_HEARTBEAT, self._fields())
        answer = await self._request(client, command)
        return answer.code != ResponseCode.BROKER_NOT_EXIST

    async def _request(self, client: RemotingClient, command: RemotingCommand) -> RemotingCommand:
        self._sign(command)
        is_table = command.code == RequestCode.REGISTER_BROKER
        return await client.request(command, TABLE_S_MAX if is_table else REQUEST_S_MAX)

    def _sign(self, command: RemotingCommand) -> None:
        if self._auth is not None:
            sign(command, self._auth.access_key, self._secret)

    def _fields(self) -> dict[str, str]:
        config = self._context.config
        timeout_ms = str(config.heartbeat_ms * HEARTBEATS_MISSED_MAX)
        fields = {
            "brokerName": config.name,
            "brokerAddr": self._context.address,
            "clusterName": config.cluster,
            "brokerId": MASTER_ID,
            "heartbeatTimeoutMillis": timeout_ms,
            "heartbeatTimeoutMills": timeout_ms,  # the name Apache gives it in 904
        }
        if config.zone:
            fields["zoneName"] = config.zone
        return fields

    def _register(
        self, topics: Topics, version: bodies.DataVersion, told: Told | None
    ) -> RemotingCommand:
        """REGISTER_BROKER with the whole table, or with what is other than in *told*."""
        fields = self._fields() | {
            "haServerAddr": self._context.address,
            "enableActingMaster": "false",
            "compressed": "false",
        }
        changed = topics
        gone = [name for name in told.topics if name not in topics] if told is not None else []
        if told is None or len(gone) > DROPPED_MAX:
            fields["isFullTable"] = "true"
        else:
            old = told.topics
            changed = {name: item for name, item in topics.items() if _is_other(old, item)}
            fields[CHANGES_SINCE] = f"{told.version.timestamp}:{told.version.counter}"
            fields[DROPPED_TOPICS] = ",".join(gone)
        table = {name: topic_body(item) for name, item in changed.items()}
        body = bodies.encode_body(register_body(table, version))
        fields["bodyCrc32"] = str(zlib.crc32(body) & 0x7FFFFFFF)
        return RemotingCommand(RequestCode.REGISTER_BROKER, fields, body)


def current_topics(context: Context) -> tuple[Topics, bodies.DataVersion]:
    """
    All topics and the version of their table.

    What the store as a whole does not permit no topic does: producers and gateways go by routes
    (``BrokerController.registerBrokerAll``).
    """
    topics = {**context.system_topics, **context.engine.catalog.topics}
    allowed = context.config.permission
    if allowed & READ_WRITE != READ_WRITE:
        kept = allowed | Permission.INHERIT
        topics = {name: item._replace(perm=item.perm & kept) for name, item in topics.items()}
    return topics, table_version(context)


def _is_other(old: Topics, topic: TopicConfig) -> bool:
    known = old.get(topic.name)
    return known is not topic and known != topic


def register_body(
    table: dict[str, bodies.TopicConfig], version: bodies.DataVersion
) -> bodies.RegisterBody:
    return bodies.RegisterBody(
        topic_config_serialize_wrapper=bodies.TopicConfigWrapper(
            topic_config_table=table, data_version=version
        )
    )
