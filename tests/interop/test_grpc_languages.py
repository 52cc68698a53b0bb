"""
The official gRPC clients for Node.js and Go: types of messages, simple and push consumers.

``COMPARE=1`` runs them: Go's takes a minute to build.
"""

import os
from collections.abc import Iterator

import pytest

from tests.support.grpc_clients import CLIENTS, run
from tests.support.processes import Daemon, Daemons

pytestmark = [
    pytest.mark.client,
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        not os.environ.get("COMPARE"), reason="COMPARE=1 runs clients that are built"
    ),
]


@pytest.fixture(scope="module")
def gateway() -> Iterator[Daemon]:
    with Daemons() as daemons:
        yield daemons.up()


@pytest.mark.parametrize("name", CLIENTS)
def test_all_that_the_client_does(gateway: Daemon, name: str) -> None:
    """
    What was sent with properties, for later, in a group and in a transaction is received by
    two groups; what a listener fails comes again. Node's client knows how to recall, Go's does not.
    """
    lines = run(name, gateway.addresses["grpc"])
    if name == "node":
        assert lines.pop(0) == "recalled true"
    received, pushed = lines[:2]
    assert received == "received committed, fifo, m0 v0, m1 v1, m2 v2, soon"
    assert pushed == "pushed committed, fifo, m0, m1, m2, soon"
