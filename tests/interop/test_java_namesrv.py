"""Our name server under Apache's broker, tools and client."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from protocols.remoting.bodies import ClusterInfo, decode_body
from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import RequestCode
from protocols.remoting.command import RemotingCommand
from tests.support import apache_rocketmq, java_clients
from tests.support.apache_rocketmq import ApacheCluster
from tests.support.patience import PATIENCE_S
from tests.support.processes import Daemons, wait_until

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]


class Site(NamedTuple):
    namesrv: str
    apache: ApacheCluster


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Our name server with one unmodified Apache broker."""
    apache_rocketmq.require()
    folder: Path = tmp_path_factory.mktemp("java-namesrv")
    with Daemons(folder) as daemons:
        address = daemons.namesrv().addresses["namesrv"]
        with ApacheCluster(folder, namesrv=address) as apache:
            yield Site(address, apache)


async def known_brokers(namesrv: str) -> list[str]:
    client = await RemotingClient.connect(namesrv)
    try:
        answer = await client.request(
            RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO), PATIENCE_S
        )
        return list(decode_body(ClusterInfo, answer.body).broker_addr_table)
    finally:
        await client.close()


def test_admin_tools(site: Site) -> None:
    """clusterList, updateTopic, topicRoute and topicList find the broker and its topic."""
    assert site.apache.broker in java_clients.mqadmin(site.namesrv, "clusterList")
    arguments = ("-c", "DefaultCluster", "-t", "Admin", "-r", "3", "-w", "3")
    assert "success" in java_clients.mqadmin(site.namesrv, "updateTopic", *arguments)
    route = java_clients.mqadmin(site.namesrv, "topicRoute", "-t", "Admin")
    assert '"readQueueNums":3' in route
    assert site.apache.broker in route
    assert "Admin" in java_clients.mqadmin(site.namesrv, "topicList").split()


def test_producer_and_consumers(site: Site) -> None:
    """A Java producer and consumers find the Apache broker through our name server."""
    java_clients.mqadmin(site.namesrv, "updateTopic", "-c", "DefaultCluster", "-t", "Words")
    bodies = [f"word {number}" for number in range(5)]
    sent = java_clients.send(site.namesrv, topic="Words", bodies=bodies)
    assert [result.status for result in sent] == ["SEND_OK"] * 5
    pulled = java_clients.run_java("pull", site.namesrv, topic="Words", count=5)
    assert sorted(pulled) == bodies
    pushed = java_clients.run_java("push", site.namesrv, topic="Words", group="g-push", count=5)
    assert sorted(pushed) == bodies


def test_dead_broker_leaves_the_routes(site: Site, tmp_path: Path) -> None:
    """
    Soon after a ``kill -9`` no route names the broker (Apache: up to 2 minutes).

    How soon is judged on a clock of their own by the tests of the registry.
    """
    names = {"cluster": "Doomed", "broker_name": "broker-x"}
    with ApacheCluster(tmp_path, namesrv=site.namesrv, **names) as doomed:
        assert "broker-x" in asyncio.run(known_brokers(site.namesrv))
        os.kill(doomed.pids[-1], signal.SIGKILL)
        wait_until(lambda: "broker-x" not in asyncio.run(known_brokers(site.namesrv)), "it is gone")
