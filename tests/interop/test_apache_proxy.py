"""
Apache Proxy 5.4.0 (cluster mode, unmodified) in front of our name server and store.

The official RocketMQ 5 clients for Python and Java speak gRPC to Apache's proxy; the proxy drives
our store as it would drive Apache's broker: routes, topic and group configuration, pop, ack,
timers, transactions. The same store is registered with an unmodified Apache name server too.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import apache_rocketmq, grpc_java
from tests.support.apache_rocketmq import ApacheNamesrv
from tests.support.apache_rocketmq.proxy import ApacheProxy
from tests.support.java_tools import AdminShell
from tests.support.processes import Daemon, Daemons, wait_until
from tests.support.rocketmq_python import run_case

pytestmark = [pytest.mark.client, pytest.mark.java, pytest.mark.timeout(900)]

TOPICS = {
    **dict.fromkeys(("proxy-simple", "proxy-push"), "NORMAL"),
    **{f"held-{kind.lower()}": kind for kind in ("DELAY", "TRANSACTION", "FIFO")},
}


class Site(NamedTuple):
    store: Daemon
    apache: ApacheNamesrv
    shell: AdminShell
    proxy: ApacheProxy

    def admin(self, command: str, *words: str) -> str:
        """``mqadmin`` at Apache's name server."""
        return self.shell.run(command, "-n", self.apache.namesrv, *words)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    apache_rocketmq.require("javac")
    folder = tmp_path_factory.mktemp("proxy")
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        daemons = stack.enter_context(Daemons(folder))
        namesrv = daemons.namesrv().addresses["namesrv"]
        apache = ApacheNamesrv(folder / "namesrv")
        both = f"store.namesrv={namesrv},{apache.namesrv}"
        settings = ("store.transactions.timeout_ms=1000", "store.transactions.interval_ms=1000")
        store = daemons.store(namesrv, both, *settings)
        starts = (
            lambda: stack.enter_context(apache),
            lambda: stack.enter_context(ApacheProxy(folder / "proxy", namesrv)),
            lambda: stack.enter_context(AdminShell(apache.namesrv)),
        )
        parts = [pool.submit(start) for start in starts]
        _, proxy, shell = [part.result() for part in parts]
        assert isinstance(proxy, ApacheProxy)
        assert isinstance(shell, AdminShell)
        site = Site(store, apache, shell, proxy)
        wait_until(
            lambda: store.addresses["store"] in site.admin("clusterList"),
            "the store is known to Apache's name server",
            180,
        )
        for topic, kind in TOPICS.items():
            words = ("-c", "DefaultCluster", "-t", topic, "-r", "4", "-w", "4")
            made = site.admin("updateTopic", *words, "-a", f"+message.type={kind}")
            assert "success" in made, made
        yield site


def test_apaches_name_server_knows_our_store(site: Site) -> None:
    """Its routes name our store, also for a topic that was made a moment ago."""
    wait_until(
        lambda: "proxy-simple" in site.admin("topicList").split(), "the topic is registered", 180
    )
    route = site.admin("topicRoute", "-t", "proxy-simple")
    assert site.store.addresses["store"] in route
    assert '"readQueueNums":4' in route


def test_python_client(site: Site) -> None:
    """Send, receive by tag, ack, change the invisible time, receive again."""
    port = site.proxy.grpc_port
    answer = run_case("simple", port, topic="proxy-simple", group="proxy-simple-group")
    assert answer["received"] == sorted(answer["sent"][:2])
    assert (answer["tag"], answer["keys"]) == ("t", ["k1"])
    assert (answer["again"], answer["attempt"]) == ("two", 2)


def test_python_push_consumer(site: Site) -> None:
    """All messages arrive; the one whose listener failed comes again."""
    port = site.proxy.grpc_port
    answer = run_case("push", port, topic="proxy-push", group="proxy-push-group")
    assert answer["arrived"], answer
    assert answer["bodies"] == ["0", "1", "2", "3", "4"]


@pytest.mark.skipif(not os.environ.get("COMPARE"), reason="COMPARE=1 runs what takes long too")
def test_java_client(site: Site, tmp_path: Path) -> None:
    """
    Delays, recalls, transactions with a check, all messages of groups: held at the store.

    Apache's proxy pops in order for groups that tools made so.
    """
    made = site.admin("updateSubGroup", "-c", "DefaultCluster", "-g", "held-fifo", "-o", "true")
    assert "success" in made, made
    address = f"127.0.0.1:{site.proxy.grpc_port}"
    lines = grpc_java.run("HeldClient", address, "held", tmp_path)
    assert set(lines) == grpc_java.HELD_CLIENT
