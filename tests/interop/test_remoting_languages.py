"""
rocketmq-client-go v2, whose requests name no broker: every kind of message and consumer.

``COMPARE=1`` runs it: it takes a minute to build.
"""

import os

import pytest

from tests.support import remoting_clients
from tests.support.java_cases import SITE_SETTINGS
from tests.support.processes import Daemons

pytestmark = [
    pytest.mark.client,
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        not os.environ.get("COMPARE"), reason="COMPARE=1 runs clients that are built"
    ),
]

CASES = (
    *("broadcast 1", "broadcast 2", "dead letter", "delay", "orderly", "plain", "pull"),
    *("retry", "retry tries", "sql", "tags", "transaction", "transaction check"),
)


@pytest.mark.parametrize("is_at_gateway", [False, True])
def test_all_that_the_client_does(*, is_at_gateway: bool) -> None:
    with Daemons() as daemons:
        namesrv = daemons.namesrv()
        store = daemons.store(namesrv, *SITE_SETTINGS)
        tools = namesrv.addresses["namesrv"]
        address = daemons.gateway(namesrv).addresses["remoting"] if is_at_gateway else tools
        lines = remoting_clients.go(address, tools=tools, broker=store.addresses["store"])
    assert sorted(lines) == sorted(["end", *[f"pass {name}" for name in CASES]])
