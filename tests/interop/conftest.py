"""Programs that several modules share, because they take long to start."""

from collections.abc import Iterator

import pytest

from tests.support.rabbitmq import RabbitMq


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitMq]:
    """One RabbitMQ for all; what a test makes in it has names of its own."""
    with RabbitMq() as rabbit:
        rabbit.wait_ready()
        yield rabbit
