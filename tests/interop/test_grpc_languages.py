"""The official gRPC clients for Node.js and Go: types of messages, simple and push consumers."""

from collections.abc import Iterator

import pytest

from tests.support.grpc_clients import CLIENTS, run
from tests.support.processes import Daemon, Daemons

pytestmark = [pytest.mark.client, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def gateway() -> Iterator[Daemon]:
    with Daemons() as daemons:
        yield daemons.up()


@pytest.mark.parametrize("name", CLIENTS)
def test_all_that_the_client_does(gateway: Daemon, name: str) -> None:
    """
    What was sent with properties, for later, in a group and in a transaction is received once, by
    two groups; what a listener fails comes again. Node's client knows how to recall, Go's does not.
    """
    lines = run(name, gateway.addresses["grpc"])
    if name == "node":
        assert lines.pop(0) == "recalled true"
    received, pushed = lines[:2]
    assert received == "received committed, fifo, m0 v0, m1 v1, m2 v2, soon"
    sent = {"committed:1", "fifo:1", "m0:1", "m0:2", "m1:1", "m2:1", "soon:1"}
    assert set(pushed.removeprefix("pushed ").split(", ")) == sent
