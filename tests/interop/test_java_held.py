"""Apache's Java client (Maven rocketmq-client): delays, recall, transactions with check-back."""

import os
from collections.abc import Iterator

import pytest

from tests.demo.cluster import create_topic
from tests.support import java_clients
from tests.support.processes import Daemons

pytestmark = [pytest.mark.client, pytest.mark.java, pytest.mark.timeout(300)]

PROGRAM = "tidegate.HeldProducer"
HAS_RECALL = os.environ.get("TIDEGATE_JAVA_CLIENT", "5").startswith("5")
"""The default client is 5.4.0; TIDEGATE_JAVA_CLIENT=4.9.8 runs another."""


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Name server (then store), and the gateway's remoting port."""
    with Daemons(tmp_path_factory.mktemp("held")) as daemons:
        namesrv = daemons.namesrv()
        settings = ("timeout_ms=500", "interval_ms=1000", "checks_max=1000")
        store = daemons.store(namesrv, *(f"store.transactions.{one}" for one in settings))
        for topic in ("held-store", "held-gateway"):
            create_topic(next(iter(store.addresses.values())), topic)
        gateway = daemons.gateway(namesrv)
        other = daemons.gateway(namesrv, name="gw-2")
        yield {
            "store": next(iter(namesrv.addresses.values())),
            "gateway": gateway.addresses["remoting"],
            "gateway2": other.addresses["remoting"],
            "broker": next(iter(store.addresses.values())),
        }


@pytest.mark.parametrize("door", ["store", "gateway"])
def test_delays_recall_and_transactions(addresses: dict[str, str], door: str) -> None:
    """What is due and what is committed comes, each once; the rest never does."""
    topic, address = f"held-{door}", addresses[door]
    bodies = ["delay:DELAY=1", "delay:TIMER_DELAY_MS=700", "delay:TIMER_DELAY_SEC=1"]
    bodies += ["commit", "rollback", "unknown"]
    if HAS_RECALL:
        bodies.append("recall")
    arguments = java_clients.options(address, topic=topic, group="", bodies=bodies, count=0)
    output = java_clients.run(PROGRAM, *arguments, "--asked", "1")
    lines = [line.split("\t") for line in output.splitlines()]
    sent = [line for line in lines if line[0] == "sent"]
    assert [line[2] for line in sent] == ["SEND_OK"] * 6
    assert "unknown" in [line[1] for line in lines if line[0] == "asked"]
    if HAS_RECALL:
        ((_, recalled, message_id),) = [line for line in lines if line[0] == "recalled"]
        assert recalled == message_id
    found = java_clients.receive("push", address, topic=topic, group=f"g-{door}", count=5)
    assert sorted(message.body.decode() for message in found) == sorted(
        [*bodies[:3], "commit", "unknown"]
    )


def test_request_and_reply(addresses: dict[str, str]) -> None:
    """An answer reaches the client that asked, whichever door each of them came through."""
    for index in range(2):
        create_topic(addresses["broker"], f"asked{index}")
    asking = ",".join((addresses["store"], addresses["gateway"]))
    answering = ",".join((addresses["store"], addresses["gateway2"]))
    arguments = ["--topic", "asked", "--ask-doors", asking, "--answer-doors", answering]
    output = java_clients.run_alone("tidegate.RequestReply", *arguments)
    replies = [line.split("\t")[1:] for line in output.splitlines() if line.startswith("reply")]
    assert replies == [[str(i), str(j), f"FROM {i}"] for i in range(2) for j in range(2)]
