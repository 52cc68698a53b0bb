"""The same scripts against RabbitMQ and against two stores behind our gateway: the same is seen."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.interop.amqp_scripts import SCRIPTS, Client
from tests.support.processes import Daemons
from tests.support.rabbitmq import RabbitMq

pytestmark = pytest.mark.client

ONLY = tuple(f"listeners.{name}.enabled=false" for name in ("events", "grpc", "remoting", "mqtt"))


class Ports(NamedTuple):
    """Where the two listen."""

    theirs: int
    ours: int


@pytest.fixture(scope="module")
def ports() -> Iterator[Ports]:
    with RabbitMq() as rabbit, Daemons() as daemons:
        namesrv = daemons.namesrv()
        daemons.store(namesrv)
        daemons.store(namesrv, "store.directory=false", name="broker-b")
        gateway = daemons.gateway(namesrv, *ONLY)
        yield Ports(rabbit.port, gateway.port("amqp"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_both_are_seen_alike(ports: Ports, script: object) -> None:
    """What a client observes, texts included."""
    assert callable(script)
    seen = []
    for port in ports:
        client = Client(port)
        try:
            seen.append(script(client))
        finally:
            client.close()
    assert seen[1] == seen[0]
