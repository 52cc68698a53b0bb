"""The same scripts against RabbitMQ and against ours: the same is seen."""

import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest

from tests.interop.amqp_parity import SCRIPTS
from tests.interop.amqp_parity.client import Client, Seen
from tests.support.processes import Daemons
from tests.support.rabbitmq import RabbitMq

pytestmark = [pytest.mark.client, pytest.mark.timeout(300)]  # RabbitMQ takes its time to boot

ONLY = tuple(f"listeners.{name}.enabled=false" for name in ("events", "grpc", "remoting", "mqtt"))


class Ports(NamedTuple):
    """Where the two listen."""

    theirs: int
    ours: int


@pytest.fixture(scope="module")
def ports(rabbitmq: RabbitMq) -> Iterator[Ports]:
    with Daemons() as daemons:
        yield Ports(rabbitmq.port, daemons.up(*ONLY).port("amqp"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_both_are_seen_alike(ports: Ports, script: Callable[[Client], Seen]) -> None:
    """What a client observes, texts included; both are asked at once."""
    with ThreadPoolExecutor(max_workers=2) as threads:
        theirs, ours = threads.map(functools.partial(_seen, script), ports)
    assert ours == theirs


def _seen(script: Callable[[Client], Seen], port: int) -> Seen:
    client = Client(port)
    try:
        return script(client)
    finally:
        client.close()
