"""A broker that is to go: Apache's tool takes its write permission, and gives it back."""

import re
from pathlib import Path

import pytest

from tests.support import apache_rocketmq
from tests.support.java_tools import AdminShell
from tests.support.processes import Daemons, wait_until

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]

SENDS = "6"
"""At a time: with two brokers and queues in turn, both are met."""


class Site:
    def __init__(self, shell: AdminShell, namesrv: str, front: str) -> None:
        self.shell = shell
        self.namesrv = namesrv
        self.front = front

    def admin(self, line: str) -> str:
        words = line.split(" ")
        return self.shell.run(words[0], "-n", self.namesrv, *words[1:])

    def brokers(self, address: str) -> set[str]:
        """Where new producers that ask *address* store messages."""
        return set(self.shell.run("client", "brokers", address, "Shrink", SENDS).split())

    def become(self, wanted: set[str]) -> None:
        """Straight at the stores and through the gateway."""
        for address in (self.namesrv, self.front):
            wait_until(
                lambda address=address: self.brokers(address) == wanted,
                f"{address} sends to {wanted}",
            )


def test_a_broker_without_write_permission_is_only_read(tmp_path: Path) -> None:
    """Producers leave it alone, consumers empty it; with the permission it gets messages again."""
    apache_rocketmq.require("javac")
    with Daemons(tmp_path) as daemons:
        namesrv = daemons.namesrv()
        for name in ("broker-a", "broker-b"):
            daemons.store(namesrv, f"store.directory={name == 'broker-a'}".lower(), name=name)
        gateway = daemons.gateway(namesrv)
        address = namesrv.addresses["namesrv"]
        shell = AdminShell(address)
        try:
            site = Site(shell, address, gateway.addresses["remoting"])
            made = site.admin("updateTopic -c DefaultCluster -t Shrink -r 2 -w 2")
            assert made.count("success") == 2, made
            site.become({"broker-a", "broker-b"})
            assert "OK" in site.admin("wipeWritePerm -b broker-a")
            site.become({"broker-b"})
            shell.run("client", "consume", "Emptying", "Shrink")
            done = re.compile(r"broker-a +[01] +[1-9].*Consume Diff Total: 0", re.DOTALL)
            progress = "consumerProgress -g Emptying"
            wait_until(lambda: done.search(site.admin(progress)), "all is consumed")
            assert "OK" in site.admin("addWritePerm -b broker-a")
            site.become({"broker-a", "broker-b"})
        finally:
            shell.close()
