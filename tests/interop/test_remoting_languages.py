"""
rocketmq-client-go v2, whose requests name no broker: every kind of message and consumer.

``COMPARE=1`` runs it: it takes a minute to build.
"""

import os

import pytest

from tests.demo.cluster import create_topic
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


TOPICS = ("broad", "dead", "delay", "order", "plain", "pull", "retry", "tx")


@pytest.mark.parametrize("stores", [1, 2])
@pytest.mark.parametrize("is_at_gateway", [False, True])
def test_all_that_the_client_does(*, is_at_gateway: bool, stores: int) -> None:
    """Several stores stand behind one address of a gateway: the client is shown one broker."""
    with Daemons() as daemons:
        namesrv = daemons.namesrv()
        store = daemons.store(namesrv, *SITE_SETTINGS)
        addresses = [store.addresses["store"]]
        for _ in range(1, stores):
            settings = (*SITE_SETTINGS, "store.directory=false")
            addresses.append(daemons.store(namesrv, *settings, name="broker-b").addresses["store"])
        for address in addresses:
            for topic in TOPICS:
                create_topic(address, f"go-{topic}")
        tools = namesrv.addresses["namesrv"]
        address = daemons.gateway(namesrv).addresses["remoting"] if is_at_gateway else tools
        lines = remoting_clients.go(address, tools=tools, broker=store.addresses["store"])
    assert sorted(lines) == sorted(["end", *[f"pass {name}" for name in CASES]])
