"""Services in memory; an AMQP front over them and a client of it."""

from collections.abc import AsyncIterator

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel

from tests.support.amqp_front import Gateway
from tests.support.fake_services import FakeServices


@pytest.fixture
def services() -> FakeServices:
    return FakeServices()


@pytest.fixture
async def gateway(services: FakeServices) -> AsyncIterator[Gateway]:
    running = Gateway(services)
    await running.start()
    yield running
    await running.stop()


@pytest.fixture
async def connection(gateway: Gateway) -> AsyncIterator[aio_pika.abc.AbstractConnection]:
    async with await gateway.connect() as opened:
        yield opened


@pytest.fixture
async def channel(
    connection: aio_pika.abc.AbstractConnection,
) -> AsyncIterator[AbstractChannel]:
    async with connection.channel() as opened:
        yield opened
