"""Directory and leases: conditional writes, durable reads, ends by this store's clock."""

from dataclasses import replace

import pytest

from protocols.errors import Refused
from protocols.remoting.private import DirectoryRecord, DirectoryWrite, Join, Joined
from store.answers import LEASE_PREFIX
from tests.store.engine_kit import SMALL, Driver


@pytest.fixture
def store() -> Driver:
    return Driver()


def put(
    store: Driver, *writes: DirectoryWrite, gateway: str = "", epoch: int = 0
) -> list[tuple[bool, DirectoryRecord]]:
    pending = store.engine.gateways.directory_put(gateway, epoch, writes, store.now)
    store.drain()
    return pending.result()


def join(store: Driver, name: str, instance: str = "i") -> Joined:
    pending = store.engine.gateways.join(Join(gateway=name, instance=instance), store.now)
    store.drain()
    return pending.result()


def keys(store: Driver, after: int = 0) -> list[tuple[str, bytes | None]]:
    return [(r.key, r.value) for r in store.engine.gateways.directory_read(after, 1000)[0]]


def test_the_loser_of_a_conditional_write_gets_the_winner(store: Driver) -> None:
    ((won, record),) = put(store, DirectoryWrite(key="k", value=b"1", if_version=0))
    assert (won, record.value) == (True, b"1")
    ((lost, winner),) = put(store, DirectoryWrite(key="k", value=b"2", if_version=0))
    assert (lost, winner) == (False, record)
    ((won, _),) = put(store, DirectoryWrite(key="k", value=b"3", if_version=record.version))
    assert won
    put(store, DirectoryWrite(key="k", value=None))
    ((won, _),) = put(store, DirectoryWrite(key="k", value=b"4", if_version=0))
    assert won


def test_versions_rise_over_all_keys_and_reads_go_on_from_one(store: Driver) -> None:
    for number in range(5):
        put(store, DirectoryWrite(key=f"k{number % 2}", value=b"%d" % number))
    put(store, DirectoryWrite(key="k0", value=None))
    records, head = store.engine.gateways.directory_read(0, 1000)
    assert [(r.key, r.value, r.version) for r in records] == [("k1", b"3", 4), ("k0", None, 6)]
    assert (head, store.engine.gateways.directory_head) == (6, 6)
    assert store.engine.gateways.directory_read(4, 1000)[0] == records[1:]
    first, head = store.engine.gateways.directory_read(0, 1)
    assert (first, head) == (records[:1], 4)


def test_readers_see_durable_versions_only(store: Driver) -> None:
    put(store, DirectoryWrite(key="k", value=b"1"))
    store.engine.take_woken()
    store.engine.gateways.directory_put("", 0, [DirectoryWrite(key="k", value=b"2")], store.now)
    assert keys(store) == [("k", b"1")]
    assert not store.engine.take_woken().is_directory_changed
    store.drain()
    assert keys(store) == [("k", b"2")]
    assert store.engine.take_woken().is_directory_changed


@pytest.mark.parametrize("uses_snapshot", [False, True])
def test_the_table_survives_a_restart(store: Driver, uses_snapshot: bool) -> None:
    put(store, DirectoryWrite(key="a", value=b"1"), DirectoryWrite(key="b", value=b"2"))
    put(store, DirectoryWrite(key="a", value=None))
    if uses_snapshot:
        work = store.engine.background.snapshot_due(store.now, is_forced=True)
        assert work is not None
        work.execute(store.disk)
    store.restart()
    assert keys(store) == [("b", b"2"), ("a", None)]
    ((_, record),) = put(store, DirectoryWrite(key="c", value=b"3"))
    assert record.version == 4


def test_deletions_are_remembered_up_to_a_bound() -> None:
    store = Driver(config=replace(SMALL, tombstones_max=10))
    for number in range(3000):
        put(store, DirectoryWrite(key=f"k{number}", value=b""))
        put(store, DirectoryWrite(key=f"k{number}", value=None))
    assert len(keys(store)) < 1500


# ── leases ──────────────────────────────────────────────────────────────────────────────


def test_a_join_is_a_record_whose_version_is_the_epoch(store: Driver) -> None:
    joined = join(store, "gw-A")
    (record,) = store.engine.gateways.directory_read(0, 10)[0]
    assert record.key == LEASE_PREFIX + "gw-A"
    assert record.version == joined.version == joined.gateway_epoch == record.gateway_epoch


def test_two_live_processes_with_one_name(store: Driver) -> None:
    """The second is refused while the first renews; a restart of the same one goes through."""
    first = join(store, "gw-A", "one")
    with pytest.raises(Refused, match="another live gateway"):
        join(store, "gw-A", "two")
    again = join(store, "gw-A", "one")
    assert again.gateway_epoch > first.gateway_epoch
    assert not store.engine.gateways.renew("gw-A", first.gateway_epoch, 0, store.now)


def test_a_lease_not_renewed_ends_with_all_that_is_bound_to_it(store: Driver) -> None:
    joined = join(store, "gw-A")
    write = DirectoryWrite(key="own/c1", value=b"x", is_bound=True)
    put(store, write, gateway="gw-A", epoch=joined.gateway_epoch)
    put(store, DirectoryWrite(key="free", value=b"y"), gateway="gw-A", epoch=joined.gateway_epoch)
    store.later(2.9)
    assert store.engine.gateways.renew("gw-A", joined.gateway_epoch, 0, store.now)
    store.later(2.9)
    assert store.engine.gateways.renew("gw-A", joined.gateway_epoch, 0, store.now)
    version = store.engine.gateways.directory_head
    store.later(3.1)
    store.drain()
    assert not store.engine.gateways.renew("gw-A", joined.gateway_epoch, 0, store.now)
    assert sorted(keys(store, version)) == [("gateway/gw-A", None), ("own/c1", None)]
    assert store.engine.gateways.leases_ended_since(version) == [("gw-A", joined.gateway_epoch)]
    with pytest.raises(Refused, match="lease has ended"):
        put(store, write, gateway="gw-A", epoch=joined.gateway_epoch)


def test_what_moved_to_another_gateway_does_not_end_with_the_first(store: Driver) -> None:
    one, two = join(store, "gw-A"), join(store, "gw-B")
    write = DirectoryWrite(key="own/c1", value=b"x", is_bound=True)
    put(store, write, gateway="gw-A", epoch=one.gateway_epoch)
    put(store, write, gateway="gw-B", epoch=two.gateway_epoch)
    store.engine.gateways.leave("gw-A", one.gateway_epoch, store.now)
    store.drain()
    assert ("own/c1", b"x") in keys(store)


def test_a_restart_prolongs_every_lease_by_a_full_term(store: Driver) -> None:
    joined = join(store, "gw-A")
    store.later(2.9)
    store.restart()
    store.later(2.9)
    assert store.engine.gateways.renew("gw-A", joined.gateway_epoch, 0, store.now)


def test_the_barrier_knows_who_has_not_applied(store: Driver) -> None:
    one, two = join(store, "gw-A"), join(store, "gw-B")
    ((_, record),) = put(store, DirectoryWrite(key="filter", value=b""))
    version = record.version
    assert store.engine.gateways.not_applied(version) == {
        ("gw-A", one.gateway_epoch),
        ("gw-B", two.gateway_epoch),
    }
    store.engine.gateways.renew("gw-A", one.gateway_epoch, version, store.now)
    assert store.engine.gateways.not_applied(version) == {("gw-B", two.gateway_epoch)}
    store.later(2)
    store.engine.gateways.renew("gw-A", one.gateway_epoch, version, store.now)
    store.later(2)
    assert store.engine.gateways.not_applied(version) == set()
    assert store.engine.gateways.leases_ended_since(version) == [("gw-B", two.gateway_epoch)]
