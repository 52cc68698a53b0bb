"""The gateway's core (clusters, pipeline, directory, streams) without its edge, for tests."""

import asyncio
from collections.abc import Mapping, Sequence

from gateway.clusters.client import ClusterClient
from gateway.clusters.connection import Connect
from gateway.clusters.presence import GatewayPresence
from gateway.clusters.watch import ConnectNameServer
from gateway.config import GatewayConfig, LimitsConfig
from gateway.deliveries import Streams
from gateway.directory import DirectoryClient
from gateway.dispatch import Dispatcher
from gateway.held import GatewayHeld
from gateway.matching import MatchingTable
from gateway.members import StoreMembers
from gateway.metrics import Registry
from gateway.pipeline import GatewayPipeline
from gateway.policy import Policy
from gateway.topics import GatewayTopics
from protocols.canonical import Call, Delivery, Head, Identity, Message
from protocols.errors import Code
from tests.support.patience import PATIENCE_S


class Core:
    """One gateway's core."""

    def __init__(
        self,
        name: str,
        name_servers: Sequence[str | ConnectNameServer],
        *,
        local_stores: Mapping[str, Connect] | None = None,
        policy: Policy | None = None,
        zones: Mapping[str, str] | None = None,
        limits: LimitsConfig | None = None,
    ) -> None:
        self.presence = GatewayPresence(name)
        self.cluster = ClusterClient(
            "default",
            self.presence,
            name_servers=name_servers,
            zones=zones,
            local_stores=local_stores,
        )
        clusters = {"default": self.cluster}
        self.matching = MatchingTable()
        self.pipeline = GatewayPipeline(
            clusters,
            self.matching,
            policy=policy or open_policy(),
            default_cluster="default",
            limits=limits,
        )
        self.directory = DirectoryClient(
            self.presence, clusters, self.matching, self.pipeline, address="127.0.0.1:0"
        )
        self.directory.on_ended(self.pipeline.withdrawals.lease_ended)
        self.directory.on_joined(self.pipeline.withdrawals.lease_joined)
        self.members = StoreMembers(self.directory, clusters)
        self.pipeline.ask(self.members)
        self.streams = Streams(clusters, self.pipeline)
        self.topics = GatewayTopics(clusters, self.pipeline)
        self.metrics = Registry()
        self.held = GatewayHeld(clusters, name)
        self.dispatcher = Dispatcher(clusters, self.matching, self.pipeline, self.metrics)

    async def start(self, *, store_count: int = 1) -> None:
        """Returns when joined and so many stores are up."""
        self.cluster.start()
        await self.directory.start()
        self.members.start()
        self.dispatcher.start()
        self.held.start()
        async with asyncio.timeout(PATIENCE_S):
            while len(self.cluster.up_links()) < store_count:  # noqa: ASYNC110 - no event for it
                await asyncio.sleep(0.005)

    async def stop(self) -> None:
        await self.held.close()
        await self.dispatcher.close()
        await self.members.close()
        await self.streams.close()
        await self.pipeline.close()
        await self.directory.leave()
        await self.cluster.close()


def open_policy() -> Policy:
    """No ACL, no throttle, everything to the cluster ``default``."""
    config = GatewayConfig.model_validate(
        {
            "clusters": {"default": {"namesrv": ["127.0.0.1:9876"]}},
            "routes": [{"name": "default", "to": [{"cluster": "default"}]}],
        }
    )
    return Policy.from_config(config)


class ListSink:
    """Collects deliveries."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.end: tuple[Code, str] | None = None
        self._news = asyncio.Event()

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        self.deliveries += deliveries
        self._news.set()

    def ended(self, code: Code, hint: str) -> None:
        self.end = (code, hint)
        self._news.set()

    async def wait(self, count: int, timeout_s: float = PATIENCE_S) -> list[Delivery]:
        """The deliveries, once there are *count*."""
        async with asyncio.timeout(timeout_s):
            while len(self.deliveries) < count:
                self._news.clear()
                await self._news.wait()
        return self.deliveries


def call(client_id: str = "p", *, protocol: str = "mqtt", tenant: str = "") -> Call:
    return Call(
        protocol=protocol,
        listener=protocol,
        identity=Identity(name="tester"),
        tenant=tenant,
        client_id=client_id,
        peer="127.0.0.1:1",
    )


def messages(subject: str, *bodies: bytes, order_key: str = "", **head: object) -> list[Message]:
    shared = Head(subject=subject, order_key=order_key, **head)  # type: ignore[arg-type]  # fields
    return [Message(shared, body) for body in bodies]


async def turns(count: int = 10) -> None:
    """Let everything that is ready run, and what that makes ready, and so on."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: object, timeout_s: float = PATIENCE_S) -> None:
    """Let the loop run until *condition* (a callable) is true."""
    assert callable(condition)
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - any condition
            await asyncio.sleep(0.002)
