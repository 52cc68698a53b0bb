"""Apache's Java client against our name server and our store; its tool is in test_mqadmin."""

import asyncio
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import pytest

from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.signing import sign
from tests.support import java_clients
from tests.support.patience import PATIENCE_S
from tests.support.processes import Daemon, Daemons

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]


class Site(NamedTuple):
    namesrv: str
    store: Daemon


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Daemons() as daemons:
        namesrv = daemons.namesrv()
        store = daemons.store(namesrv)
        yield Site(namesrv.addresses["namesrv"], store)


def create_topic(site: Site, topic: str, queue_count: int = 4) -> str:
    count = str(queue_count)
    arguments = ("-c", "DefaultCluster", "-t", topic, "-r", count, "-w", count)
    return java_clients.mqadmin(site.namesrv, "updateTopic", *arguments)


def test_producer_and_pull_consumer(site: Site) -> None:
    """What a Java producer got SEND_OK for, a Java pull consumer reads by offset."""
    create_topic(site, "Words")
    bodies = [f"word {number}" for number in range(20)]
    sent = java_clients.send(site.namesrv, topic="Words", bodies=bodies, tag="t1", keys="k1 k2")
    assert [result.status for result in sent] == ["SEND_OK"] * 20
    found = java_clients.receive("pull", site.namesrv, topic="Words", count=20)
    assert sorted(message.body.decode() for message in found) == sorted(bodies)
    assert {message.message_id for message in found} == {result.message_id for result in sent}
    assert {message.properties["TAGS"] for message in found} == {"t1"}
    assert {message.properties["KEYS"] for message in found} == {"k1 k2"}
    places = {(message.queue_id, message.queue_offset) for message in found}
    assert places == {(result.queue_id, result.queue_offset) for result in sent}


def test_large_body_is_compressed_by_its_producer(site: Site) -> None:
    """Java compresses bodies from 4 KiB on; a store keeps what it gets, a consumer unpacks."""
    create_topic(site, "Large")
    body = "x" * 50_000
    java_clients.send(site.namesrv, topic="Large", bodies=[body])
    assert java_clients.run_java("pull", site.namesrv, topic="Large") == [body]


def test_batch(site: Site) -> None:
    """A client batch (320) becomes one record per member."""
    create_topic(site, "Batch", 1)
    bodies = [f"member {number}" for number in range(10)]
    java_clients.send(site.namesrv, topic="Batch", bodies=bodies, batch="true")
    assert java_clients.run_java("pull", site.namesrv, topic="Batch", count=10) == bodies


def test_new_topic_is_made_by_its_producer(site: Site) -> None:
    """A producer of an unknown topic uses TBW102's route; the store makes the topic."""
    sent = java_clients.send(site.namesrv, topic="Fresh", bodies=["first"])
    assert sent[0].status == "SEND_OK"
    assert java_clients.run_java("pull", site.namesrv, topic="Fresh") == ["first"]


def test_push_consumer(site: Site) -> None:
    """A Java push consumer directly at the store: heartbeat, rebalance, pull, commit."""
    create_topic(site, "Push")
    bodies = [f"push {number}" for number in range(20)]
    java_clients.send(site.namesrv, topic="Push", bodies=bodies)
    found = java_clients.run_java("push", site.namesrv, topic="Push", group="g-push", count=20)
    assert sorted(found) == sorted(bodies)


USERS = (
    *("cluster_auth.access_key=tidegate", "cluster_auth.secret=very-secret"),
    *("store.auth.authentication=true", "store.auth.authorization=true"),
)


async def _as_cluster(address: str, *requests: tuple[RequestCode, dict[str, str], object]) -> None:
    """Requests that the cluster's credential signs."""
    client = await RemotingClient.connect(address)
    for code, fields, body in requests:
        command = RemotingCommand(code, fields, msgspec.json.encode(body))
        sign(command, "tidegate", "very-secret")
        answer = await client.request(command, PATIENCE_S)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
    await client.close()


def test_a_user_of_the_store_does_what_its_rights_allow() -> None:
    """Clients that sign as a user of ``store.auth``; others are NO_PERMISSION (16)."""
    entries = [
        {"resource": "Topic:Open", "actions": ["Pub", "Sub"], "decision": "Allow"},
        {"resource": "Group:g-user", "actions": ["Sub"], "decision": "Allow"},
    ]
    with Daemons() as daemons:
        namesrv = daemons.namesrv(*USERS[:2])
        store = daemons.store(namesrv, *USERS)
        asyncio.run(
            _as_cluster(
                store.addresses["store"],
                (RequestCode.AUTH_CREATE_USER, {"username": "app"}, {"password": "s3cret"}),
                (
                    RequestCode.AUTH_CREATE_ACL,
                    {"subject": "User:app"},
                    {"policies": [{"entries": entries}]},
                ),
            )
        )
        address = namesrv.addresses["namesrv"]
        right = {"access_key": "app", "secret": "s3cret"}
        sent = java_clients.send(address, topic="Open", bodies=["signed"], **right)
        assert sent[0].status == "SEND_OK"
        found = java_clients.receive(
            "push", address, topic="Open", group="g-user", count=1, **right
        )
        assert [message.body for message in found] == [b"signed"]
        for options, why in (
            (right | {"topic": "Closed"}, "has no permission to access Topic:Closed"),
            ({**right, "secret": "guess", "topic": "Open"}, "check signature failed"),
            ({"topic": "Open"}, "username cannot be null"),
        ):
            with pytest.raises(AssertionError, match=why):
                java_clients.send(address, bodies=["x"], timeout_ms="3000", **options)
