"""Apache's Java client through the gateway's remoting listener, over separate processes."""

import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import java_clients
from tests.support.java_clients import PROGRAMS, java_command, parse_received
from tests.support.patience import PATIENCE_S
from tests.support.processes import Daemon, Daemons

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]


class Site(NamedTuple):
    namesrv: str
    gateway: Daemon
    remoting: str


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Daemons() as daemons:
        namesrv = daemons.namesrv()
        daemons.store(namesrv)
        gateway = daemons.gateway(namesrv)
        yield Site(namesrv.addresses["namesrv"], gateway, gateway.addresses["remoting"])


def test_route_names_the_gateway(site: Site) -> None:
    """Every broker of a topic is at the gateway's own address."""
    java_clients.send(site.remoting, topic="Route", bodies=["one"])
    route = java_clients.mqadmin(site.remoting, "topicRoute", "-t", "Route")
    assert re.findall(r'0:"([^"]+)"', route) == [site.remoting]
    assert '"brokerName":"broker-a"' in route


def test_producer_and_push_consumer(site: Site) -> None:
    """A Java producer makes its topic; a Java push consumer gets every message."""
    bodies = [f"message {number}" for number in range(30)]
    sent = java_clients.send(site.remoting, topic="Push", bodies=bodies, tag="t", keys="k")
    assert [result.status for result in sent] == ["SEND_OK"] * 30
    found = java_clients.receive("push", site.remoting, topic="Push", group="g1", count=30)
    assert sorted(message.body.decode() for message in found) == sorted(bodies)
    assert {message.message_id for message in found} == {result.message_id for result in sent}
    places = {(message.queue_id, message.queue_offset) for message in found}
    assert places == {(result.queue_id, result.queue_offset) for result in sent}


def test_what_was_consumed_does_not_come_again(site: Site) -> None:
    """
    Committed offsets are acks at the store: the next consumer of the group goes on.

    Delivery is at least once: a client that is cut off before it commits gets its message again,
    which happens on a machine that stalls. One round of three must do without.
    """
    seen: list[list[str]] = []
    for round_number in range(3):
        place = {"topic": f"Again{round_number}", "group": f"again{round_number}"}
        java_clients.send(site.remoting, topic=place["topic"], bodies=["first"])
        assert java_clients.run_java("push", site.remoting, **place) == ["first"]
        java_clients.send(site.remoting, topic=place["topic"], bodies=["second"])
        seen.append(java_clients.run_java("push", site.remoting, **place))
        if seen[-1] == ["second"]:
            break
    assert seen[-1] == ["second"], seen


def test_send_back(site: Site) -> None:
    """RECONSUME_LATER comes again after the delay of its level, counted."""
    java_clients.send(site.remoting, topic="Back", bodies=["again"])
    found = java_clients.receive(
        "push", site.remoting, topic="Back", group="g3", count=1, reject="2"
    )
    assert [message.body for message in found] == [b"again"] * 3
    assert [message.reconsume_count for message in found] == [0, 1, 2]


def test_dead_letter(site: Site) -> None:
    """RECONSUME_LATER with level −1 puts the message into the dead-letter topic."""
    java_clients.send(site.remoting, topic="Dead", bodies=["poison", "fine"])
    found = java_clients.receive(
        "push", site.remoting, topic="Dead", group="g12", count=1, reject="1", level="-1"
    )
    rejected = found[0].body.decode()
    dead = java_clients.run_java("pull", site.remoting, topic="%DLQ%g12", group="g13")
    assert dead == [rejected]


def test_killed_consumer_loses_nothing(site: Site) -> None:
    """What a killed client held goes to the next one at once."""
    bodies = [f"held {number}" for number in range(8)]
    java_clients.send(site.remoting, topic="Killed", bodies=bodies)
    arguments = java_clients.options(
        site.remoting, topic="Killed", group="g4", bodies=(), count=1000
    )
    # Rejects everything with a long memory of it: nothing is committed in time.
    command = java_command(PROGRAMS["push"], *arguments, "--stall", "true")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        watchdog = threading.Timer(PATIENCE_S, process.kill)
        watchdog.start()
        seen: list[str] = []
        for line in process.stdout:
            seen += [message.body.decode() for message in parse_received(line)]
            if len(seen) == len(bodies):
                break
        watchdog.cancel()
        process.kill()
    found = java_clients.receive("push", site.remoting, topic="Killed", group="g4", count=8)
    assert sorted(message.body.decode() for message in found) == sorted(bodies)


def test_orderly_consumer(site: Site) -> None:
    """An orderly consumer locks its queues and reads them by offset, in order."""
    bodies = [f"{number:03d}" for number in range(20)]
    arguments = {"topic": "Orderly", "bodies": bodies, "order_key": "device-7"}
    java_clients.send(site.remoting, **arguments)  # type: ignore[arg-type]
    found = java_clients.receive(
        "push", site.remoting, topic="Orderly", group="g5", count=20, orderly="true"
    )
    assert [message.body.decode() for message in found] == bodies


def test_pull_and_broadcast_consumers(site: Site) -> None:
    """Both read by offset."""
    bodies = [f"b{number}" for number in range(5)]
    java_clients.send(site.remoting, topic="Exact", bodies=bodies)
    pulled = java_clients.run_java("pull", site.remoting, topic="Exact", group="g6", count=5)
    assert sorted(pulled) == bodies
    found = java_clients.receive(
        "push", site.remoting, topic="Exact", group="g7", count=5, broadcast="true"
    )
    assert sorted(message.body.decode() for message in found) == bodies


def test_binary_header(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that use RocketMQ's compact header are answered in it."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Drocketmq.serialize.type=ROCKETMQ")
    java_clients.send(site.remoting, topic="Binary", bodies=["compact"])
    assert java_clients.run_java("push", site.remoting, topic="Binary", group="g10") == ["compact"]


def test_client_of_the_4_series(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client of 4.9.8 sends, consumes and gives back as the one of 5.4 does."""
    monkeypatch.setenv("TIDEGATE_JAVA_CLIENT", "4.9.8")
    java_clients.send(site.remoting, topic="Four", bodies=["1", "2"])
    found = java_clients.receive(
        "push", site.remoting, topic="Four", group="g11", count=2, reject="1"
    )
    assert {message.body for message in found} == {b"1", b"2"}
    assert sorted(message.reconsume_count for message in found) == [0, 0, 1]


def test_tag_filter(site: Site) -> None:
    """Only the tags of the subscription are delivered."""
    java_clients.send(site.remoting, topic="Tags", bodies=["a"], tag="A")
    java_clients.send(site.remoting, topic="Tags", bodies=["b"], tag="B")
    java_clients.send(site.remoting, topic="Tags", bodies=["c"], tag="C")
    found = java_clients.receive(
        "push", site.remoting, topic="Tags", group="g8", count=2, tag="A || C"
    )
    assert sorted(message.body for message in found) == [b"a", b"c"]


def test_batch_and_large_body(site: Site) -> None:
    """A client batch, and a body that the producer packs and the gateway unpacks."""
    bodies = ["x" * 20_000, "small"]
    java_clients.send(site.remoting, topic="Batch", bodies=bodies[:1])
    java_clients.send(site.remoting, topic="Batch", bodies=["1", "2", "3"], batch="true")
    found = java_clients.run_java("push", site.remoting, topic="Batch", group="g9", count=4)
    assert sorted(found) == sorted(["1", "2", "3", bodies[0]])


ACCESS = """\
users:
  - { name: app, secret: s3cret }
acl:
  - { allow: [publish, consume], identity: app, topic: "Open" }
"""


def test_signed_client(site: Site, tmp_path: Path) -> None:
    """A client that signs is who it says; its rules hold; a wrong secret gets nowhere."""
    config = tmp_path / "gateway.yaml"
    config.write_text(ACCESS)
    with Daemons() as daemons:
        gateway = daemons.gateway(site.namesrv, name="gw-2", arguments=("-c", str(config)))
        address = gateway.addresses["remoting"]
        right = {"access_key": "app", "secret": "s3cret"}
        sent = java_clients.send(address, topic="Open", bodies=["signed"], **right)
        assert sent[0].status == "SEND_OK"
        found = java_clients.receive(
            "push", address, topic="Open", group="g-signed", count=1, **right
        )
        assert [message.body for message in found] == [b"signed"]
        with pytest.raises(AssertionError, match=r"FORBIDDEN|No route info"):
            java_clients.send(address, topic="Closed", bodies=["x"], timeout_ms="3000", **right)
        wrong = {"access_key": "app", "secret": "guess"}
        with pytest.raises(AssertionError, match=r"UNAUTHORIZED|No route info|No name server"):
            java_clients.send(address, topic="Open", bodies=["x"], timeout_ms="3000", **wrong)
