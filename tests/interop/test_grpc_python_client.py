"""The official RocketMQ 5 Python client (producer, simple and push consumer) at the gateway."""

from collections.abc import Iterator

import pytest

from tests.support.processes import Daemon, Daemons
from tests.support.rocketmq_python import run_case

pytestmark = [pytest.mark.client, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A gateway beside a name server and a store, each its own process."""
    with Daemons(tmp_path_factory.mktemp("grpc")) as daemons:
        namesrv = daemons.namesrv()
        daemons.store(namesrv)
        yield daemons.gateway(namesrv)


def test_producer_and_simple_consumer(gateway: Daemon) -> None:
    """Send, receive by tag, ack, change the invisible time, receive again."""
    answer = run_case("simple", gateway.port("grpc"), topic="py-simple", group="py-simple-group")
    assert answer["received"] == sorted(answer["sent"][:2])
    assert (answer["tag"], answer["keys"]) == ("t", ["k1"])
    assert answer["properties"]["colour"] == "blue"
    assert (answer["again"], answer["attempt"]) == ("two", 2)


def test_push_consumer(gateway: Daemon) -> None:
    """All messages arrive; the one whose listener failed comes again, once."""
    answer = run_case("push", gateway.port("grpc"), topic="py-push", group="py-push-group")
    assert answer["arrived"], answer
    assert answer["bodies"] == ["0", "1", "2", "3", "4"]
    assert answer["attempts"] == [1, 1, 1, 1, 1, 2]


def test_two_groups_each_get_everything(gateway: Daemon) -> None:
    """Groups are independent; a group that acknowledged gets nothing twice."""
    port = gateway.port("grpc")
    bodies = [f"m{number}" for number in range(10)]
    run_case("send", port, topic="py-groups", bodies=bodies, properties={})
    for group in ("py-g1", "py-g2"):
        got = run_case("receive", port, topic="py-groups", group=group, count=10)
        assert sorted(one["body"] for one in got) == bodies
    run_case("send", port, topic="py-groups", bodies=["last"], properties={})
    (one,) = run_case("receive", port, topic="py-groups", group="py-g1", count=1)
    assert one["body"] == "last"
