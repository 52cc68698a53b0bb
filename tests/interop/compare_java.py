"""
``python -m tests.interop.compare_java``: the Java cases at our servers and at Apache's.

::

    python -m tests.interop.compare_java ours:5.4.0 apache:5.4.0 ours:4.9.8 apache:4.9.8

Each column is a fresh name server and store (or broker), one JVM, and a kill and restart of the
store in between; ``gateway`` is our gateway's remoting listener in front of them, ``regate`` the
same with the gateway killed and started again instead of the store, ``before`` our gateway in
front of Apache's broker, ``proxied`` the remoting port of Apache's proxy in front of our store and
``apache-proxied`` in front of Apache's broker. Prints the table of ``tests/README.md`` and why
cases failed.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.support import java_cases
from tests.support.apache_rocketmq import ApacheCluster
from tests.support.apache_rocketmq.front import gateway_before
from tests.support.apache_rocketmq.proxy import ApacheProxy
from tests.support.java_cases import Result
from tests.support.processes import HURRIED, Daemons

Report = Callable[[Result], object]
Choice = tuple[str, ...]
"""``-name`` leaves out what begins so, ``+name`` leaves only what does."""


def ours(version: str, folder: Path, report: Report, choice: Choice = ()) -> list[Result]:
    with Daemons(folder) as daemons:
        namesrv = daemons.namesrv()
        store = daemons.store(namesrv, *java_cases.SITE_SETTINGS)
        address = namesrv.addresses["namesrv"]
        return java_cases.run(version, address, restart=store.restart, choice=choice, report=report)


def gateway(
    version: str, folder: Path, report: Report, choice: Choice = (), *, kills_gateway: bool = False
) -> list[Result]:
    with Daemons(folder) as daemons:
        namesrv = daemons.namesrv()
        lease = HURRIED if kills_gateway else ()
        store = daemons.store(namesrv, *java_cases.SITE_SETTINGS, *lease)
        front = daemons.gateway(namesrv)
        return java_cases.run(
            version,
            front.addresses["remoting"],
            tools=namesrv.addresses["namesrv"],
            restart=front.restart if kills_gateway else store.restart,
            choice=choice,
            report=report,
        )


def regate(version: str, folder: Path, report: Report, choice: Choice = ()) -> list[Result]:
    return gateway(version, folder, report, choice, kills_gateway=True)


def apache(version: str, folder: Path, report: Report, choice: Choice = ()) -> list[Result]:
    extra = java_cases.APACHE_SETTINGS
    with ApacheCluster(folder, flush="SYNC_FLUSH", extra=extra) as cluster:
        restart = cluster.restart_broker
        return java_cases.run(
            version, cluster.namesrv, restart=restart, choice=choice, report=report
        )


def before(version: str, folder: Path, report: Report, choice: Choice = ()) -> list[Result]:
    """Our gateway in front of Apache's broker, its directory on a store of ours beside it."""
    extra = java_cases.APACHE_SETTINGS
    with (
        ApacheCluster(folder / "apache", flush="SYNC_FLUSH", extra=extra) as cluster,
        Daemons(folder) as daemons,
    ):
        front = gateway_before(cluster, daemons)
        return java_cases.run(
            version,
            front.addresses["remoting"],
            tools=cluster.namesrv,
            restart=cluster.restart_broker,
            choice=choice,
            report=report,
        )


def proxied(version: str, folder: Path, report: Report, choice: Choice = ()) -> list[Result]:
    """Apache's proxy in front of our store."""
    with Daemons(folder) as daemons:
        namesrv = daemons.namesrv()
        store = daemons.store(namesrv, *java_cases.SITE_SETTINGS)
        address = namesrv.addresses["namesrv"]
        return _through_proxy(version, folder, address, store.restart, report, choice)


def apache_proxied(version: str, folder: Path, report: Report, choice: Choice = ()) -> list[Result]:
    """Apache's proxy in front of its broker."""
    extra = java_cases.APACHE_SETTINGS
    with ApacheCluster(folder / "apache", flush="SYNC_FLUSH", extra=extra) as cluster:
        restart = cluster.restart_broker
        return _through_proxy(version, folder, cluster.namesrv, restart, report, choice)


def _through_proxy(
    version: str,
    folder: Path,
    namesrv: str,
    restart: Callable[[], object],
    report: Report,
    choice: Choice,
) -> list[Result]:
    with ApacheProxy(folder / "proxy", namesrv) as proxy:
        return java_cases.run(
            version,
            f"127.0.0.1:{proxy.remoting_port}",
            tools=namesrv,
            restart=restart,
            choice=choice,
            report=report,
        )


SIDES = {
    "ours": ours,
    "gateway": gateway,
    "regate": regate,
    "apache": apache,
    "before": before,
    "proxied": proxied,
    "apache-proxied": apache_proxied,
}


def report(result: Result) -> None:
    if not result.is_right:
        print(f"{result.name}: {result.what[:1500]}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("columns", nargs="+", metavar="SIDE:VERSION")
    parser.add_argument("--only", nargs="+", default=[], metavar="CASE", help="or its beginning")
    options = parser.parse_args()
    choice = tuple(f"+{name}" for name in options.only)
    columns: dict[str, list[Result]] = {}
    for column in options.columns:
        side, _, version = column.partition(":")
        with tempfile.TemporaryDirectory() as folder:
            columns[column] = SIDES[side](version, Path(folder), report, choice)
    print(java_cases.table(columns))


if __name__ == "__main__":
    main()
