"""A directory that goes from one store to another while both are stopped."""

import pytest

from protocols.errors import ConfigError
from protocols.remoting.private import DirectoryWrite, Join
from store.moving import copy_directory
from tests.simulation.simulated_disk import SimulatedDisk
from tests.store.engine_kit import Driver


def _put(driver: Driver, *writes: DirectoryWrite, gateway: str = "", epoch: int = 0) -> None:
    driver.engine.gateways.directory_put(gateway, epoch, writes, driver.now)
    driver.drain()


def _rows(driver: Driver) -> dict[str, tuple[bytes, int]]:
    records, _ = driver.engine.gateways.directory_read(0, 10_000)
    return {one.key: (one.value, one.version) for one in records if one.value is not None}


def test_what_is_bound_to_no_lease_moves_with_its_versions() -> None:
    """Epochs go on above those that stores may have fenced; after a crash all of it is there."""
    old, new = Driver(SimulatedDisk(1)), Driver(SimulatedDisk(2))
    joined = old.engine.gateways.join(Join(gateway="gw", instance="a"), old.now)
    old.drain()
    epoch = joined.result().gateway_epoch
    for number in range(2500):
        _put(old, DirectoryWrite(key=f"session/{number}", value=b"%d" % number))
    _put(old, DirectoryWrite(key="session/7"))
    _put(old, DirectoryWrite(key="row", value=b"x", is_bound=True), gateway="gw", epoch=epoch)
    expected = {key: row for key, row in _rows(old).items() if key.startswith("session/")}
    last = max(version for _, version in _rows(old).values())
    assert copy_directory(old.disk, new.disk) == 2499
    assert isinstance(new.disk, SimulatedDisk)
    new.disk.lose_power("drop")
    engine = new.restart()
    rows = _rows(new)
    assert {key: row for key, row in rows.items() if key.startswith("session/")} == expected
    assert rows.keys() - expected.keys() == {"directory/moved"}
    again = engine.gateways.join(Join(gateway="gw", instance="b"), new.now)
    new.drain()
    assert again.result().gateway_epoch > last


def test_a_store_that_has_a_directory_takes_no_other() -> None:
    old, new, empty = (Driver(SimulatedDisk(number)) for number in range(3))
    _put(old, DirectoryWrite(key="a", value=b"1"))
    _put(new, DirectoryWrite(key="b", value=b"2"))
    with pytest.raises(ConfigError, match="has a directory already"):
        copy_directory(old.disk, new.disk)
    with pytest.raises(ConfigError, match="first store has no directory"):
        copy_directory(empty.disk, old.disk)
