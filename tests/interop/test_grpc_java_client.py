"""The official Java client over gRPC (Maven rocketmq-client-java 5.2.0) at the gateway."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.demo.cluster import create_topic
from tests.support import grpc_java
from tests.support.processes import Daemon, Daemons

pytestmark = [pytest.mark.client, pytest.mark.java, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    grpc_java.class_path()
    with Daemons(tmp_path_factory.mktemp("grpc-java")) as daemons:
        namesrv = daemons.namesrv()
        settings = ("timeout_ms=1000", "interval_ms=1000", "checks_max=1000")
        store = daemons.store(namesrv, *(f"store.transactions.{one}" for one in settings))
        for kind in ("DELAY", "TRANSACTION", "FIFO"):
            address = next(iter(store.addresses.values()))
            create_topic(address, f"held-{kind.lower()}", f"+message.type={kind}")
        yield daemons.gateway(namesrv)


def test_java_producer_simple_and_push_consumer(gateway: Daemon, tmp_path: Path) -> None:
    """Ten messages to both kinds of consumer; the one that failed once comes again."""
    address = f"127.0.0.1:{gateway.port('grpc')}"
    lines = grpc_java.run("GrpcClient", address, "java-topic", tmp_path)
    assert set(lines) >= grpc_java.GRPC_CLIENT


def test_java_delays_recalls_transactions_and_message_groups(
    gateway: Daemon, tmp_path: Path
) -> None:
    """On topics of these types: due in time, recalled, asked about; a stuck group blocks itself."""
    address = f"127.0.0.1:{gateway.port('grpc')}"
    lines = grpc_java.run("HeldClient", address, "held", tmp_path)
    assert set(lines) == grpc_java.HELD_CLIENT
