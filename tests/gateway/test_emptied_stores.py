"""A store that is to be emptied (its write permission was taken) gets nothing new."""

from pathlib import Path

import pytest

from gateway.retained import retained_queues
from protocols.canonical import Head, QueueKind, QueueRef
from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from tests.support.core import Core, until
from tests.support.daemons import StoreCluster
from tests.support.patience import PATIENCE_S

NAMES = [f"n{number}" for number in range(20)]


class Site:
    """Two stores, a gateway, and an operator."""

    def __init__(self, stores: StoreCluster, core: Core) -> None:
        self.stores = stores
        self.core = core

    async def ask(self, address: str, code: int, body: bytes = b"", **fields: str) -> None:
        client = await RemotingClient.connect(address)
        answer = await client.request(RemotingCommand(code, fields, body), PATIENCE_S)
        assert answer.code == ResponseCode.SUCCESS
        await client.close()

    async def takes(self, *names: str) -> None:
        routes = self.core.cluster.routes
        await until(
            lambda: [name for name in ("a", "b") if routes.takes_messages(name)] == [*names]
        )

    async def makes_topic(self, name: str) -> set[str]:
        """Stores that take messages of it."""
        route = await self.core.cluster.create_topic(name, 2)
        return {broker for broker, _ in route.writable}

    def pinned(self) -> set[str]:
        return {self.core.cluster.place(name) for name in NAMES}

    def retained(self) -> set[str]:
        found = [retained_queues(self.core.cluster, "", Head(subject=name)) for name in NAMES]
        return {queues[0].store for queues in found}


@pytest.fixture
async def site(tmp_path: Path):  # type: ignore[no-untyped-def]
    stores = StoreCluster(tmp_path)
    await stores.start("a", "b")
    core = Core("gw-1", stores.name_servers)
    await core.start(store_count=2)
    yield Site(stores, core)
    await core.stop()
    await stores.stop()


async def test_a_wiped_store_gets_nothing_new(site: Site) -> None:
    """No pinned queue, no retained value, no topic."""
    (address,) = site.stores.name_servers
    await site.takes("a", "b")
    assert site.pinned() == site.retained() == {"a", "b"}
    await site.ask(address, RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="b")
    await site.takes("a")
    assert site.pinned() == site.retained() == {"a"}
    assert await site.makes_topic("later") == {"a"}
    await site.ask(address, RequestCode.ADD_WRITE_PERM_OF_BROKER, brokerName="b")
    await site.takes("a", "b")
    assert site.pinned() == site.retained() == {"a", "b"}


async def test_a_store_closed_by_its_own_setting_is_closed_in_the_routes(site: Site) -> None:
    """``brokerPermission`` holds over restarts; producers would come and be refused otherwise."""
    address = site.stores.stores["b"].bound_address
    await site.takes("a", "b")
    await site.ask(address, RequestCode.UPDATE_BROKER_CONFIG, b"brokerPermission=4")
    await site.takes("a")
    assert await site.makes_topic("later") == {"a"}
    await site.ask(address, RequestCode.UPDATE_BROKER_CONFIG, b"brokerPermission=6")
    await site.takes("a", "b")


async def test_when_all_are_closed_queues_are_made_all_the_same(site: Site) -> None:
    """A queue belongs to somebody who waits for it; there is no better place."""
    (address,) = site.stores.name_servers
    for name in ("a", "b"):
        await site.ask(address, RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName=name)
    await site.takes()
    assert site.pinned() == {"a", "b"}
    ref = QueueRef(QueueKind.AMQP, "/q", "", 1)
    assert (await site.core.streams.create_queue(ref, {})).store in {"a", "b"}
