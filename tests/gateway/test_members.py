"""Which stores are waited for: those that may come back with what may be sent again."""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.clusters import routes, tidegate
from gateway.clusters.selector import rendezvous
from protocols.canonical import ONCE_BYTES, RELEASED_ONCE_PREFIX, Head, Message
from protocols.errors import Code, Refused
from tests.support.core import Core, call, until
from tests.support.daemons import StoreCluster

KEY = RELEASED_ONCE_PREFIX.ljust(ONCE_BYTES, b"k")
A, B = ("default", "a"), ("default", "b")


@pytest.fixture
async def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StoreCluster]:
    monkeypatch.setattr(tidegate, "LOST_S_MAX", 0.0)
    stores = StoreCluster(tmp_path)
    await stores.start("a", "b")
    yield stores
    await stores.stop()


Join = Callable[[str, int], object]


@pytest.fixture
async def cores(stores: StoreCluster) -> AsyncIterator[list[Core]]:
    """Two gateways, and those that tests add."""
    cores: list[Core] = []
    for name in ("gw-1", "gw-2"):
        await _join(cores, stores, name, 2)
    yield cores
    for core in cores:
        await core.stop()


async def _join(cores: list[Core], stores: StoreCluster, name: str, store_count: int) -> None:
    core = Core(name, stores.name_servers)
    await core.start(store_count=store_count)
    cores.append(core)


def _message(body: bytes = b"1") -> Message:
    """One whose store is b."""
    client_id = next(key for key in map(str, range(100)) if rendezvous(key, ("a", "b")) == "b")
    return Message(Head(subject="t", qos=2, order_key=client_id), body, once_key=KEY)


async def _is_away(cores: list[Core]) -> None:
    for core in cores:
        await until(lambda core=core: [link.broker for link in core.cluster.up_links()] == ["a"])


def _row(core: Core) -> bytes:
    """When b was seen last, as written down; zero: it has nothing that may be sent again."""
    record = core.directory.get("store/default/b")
    assert record is not None
    assert record.value is not None
    return record.value


async def _resend(core: Core) -> tuple[Code, str]:
    hurried = replace(call(), is_patient=False)
    (result,) = await core.pipeline.send(hurried, [_message()._replace(is_resend=True)])
    return Code(result.code), result.broker


async def test_what_a_store_that_is_gone_for_good_may_have_is_stored_elsewhere(
    stores: StoreCluster, cores: list[Core], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once an operator has said so at one gateway: at all of them, also one that starts later."""
    (first,) = await cores[0].pipeline.send(call(), [_message()])
    assert (first.code, first.broker) == (Code.OK, "b")
    await stores.stop_store("b")
    await _is_away(cores)
    await until(lambda: not cores[0].cluster.routes.is_named("b"))
    await _join(cores, stores, "gw-3", 1)
    for core in cores:
        assert B in core.members.known()
        assert await _resend(core) == (Code.HA_NOT_AVAILABLE, "")
    await cores[0].members.forget(*B)
    for core in cores:
        await until(lambda core=core: B not in core.members.known())
        await until(lambda core=core: "b" not in core.cluster.routes.brokers)
        assert "b" not in core.cluster.links
    assert [await _resend(core) for core in cores] == [(Code.OK, "a")] * 3
    await _join(cores, stores, "gw-4", 1)
    assert await _resend(cores[-1]) == (Code.OK, "a")


async def test_a_store_that_comes_back_though_it_was_gone_for_good(
    stores: StoreCluster, cores: list[Core]
) -> None:
    await cores[0].pipeline.send(call(), [_message()])
    await stores.stop_store("b")
    await _is_away(cores)
    await until(lambda: not cores[0].cluster.routes.is_named("b"))
    await cores[0].members.forget(*B)
    await stores.start_store("b")
    for core in cores:
        await until(lambda core=core: len(core.cluster.up_links()) == 2)
        await until(lambda core=core: B in core.members.known())
    await stores.stop_store("b")
    await _is_away(cores)
    assert all([B in core.members.known() for core in cores])


async def test_a_store_that_is_there_is_not_forgotten(cores: list[Core]) -> None:
    members = cores[0].members
    with pytest.raises(Refused, match="is there") as refused:
        await members.forget(*A)
    assert refused.value.code == Code.PRECONDITION_FAILED
    for cluster, broker in (("default", "c"), ("other", "a")):
        with pytest.raises(Refused, match="has no store") as refused:
            await members.forget(cluster, broker)
        assert refused.value.code == Code.NOT_FOUND
    assert members.known() == {A, B}


async def test_nobody_waits_for_a_store_that_stopped_in_order_with_every_exchange_ended(
    stores: StoreCluster, cores: list[Core], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "FORGET_S", 0.0)
    await cores[0].pipeline.send(call(), [_message()])
    released: list[bool] = []
    cores[0].pipeline.release_once(call(), KEY, released.append, since=-1)
    await until(lambda: released == [True])
    await until(lambda: all([core.directory.get("store/default/b") for core in cores]))
    await stores.stop_store("b")
    await _join(cores, stores, "gw-3", 1)
    await _is_away(cores)
    for core in cores:
        await until(lambda core=core: core.members.known() == {A})
        await until(lambda core=core: "b" not in core.cluster.routes.brokers)
        assert await _resend(core) == (Code.OK, "a")
    await stores.start_store("b")
    for core in cores:
        await until(lambda core=core: core.members.known() == {A, B})
        await until(lambda core=core: _row(core) > b"\x00")


async def test_what_people_see(stores: StoreCluster, cores: list[Core]) -> None:
    await cores[0].pipeline.send(call(), [_message()])
    await stores.stop_store("b")
    await _is_away(cores[:1])
    rows = cores[0].members.table()
    assert [(row["store"], row["state"], row["is_waited_for"]) for row in rows] == [
        ("a", "up", True),
        ("b", "down", True),
    ]
    await until(lambda: not cores[0].cluster.routes.is_named("b"))
    await cores[0].members.forget(*B)
    await until(lambda: not cores[0].members.table()[1]["is_waited_for"])
