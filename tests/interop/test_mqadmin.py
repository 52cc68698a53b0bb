"""Every row of the mqadmin table, with Apache's own tool, many commands in one JVM."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.mqadmin_rows import MISSING, NOT_APPLICABLE, WORKS, Row, command_of, table
from tests.support import apache_rocketmq
from tests.support.apache_rocketmq import ApacheCluster
from tests.support.java_tools import AdminShell
from tests.support.processes import Daemons, wait_until

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

APACHE_EXTRA = """\
traceTopicEnable=true
authenticationMetadataProvider=org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider
authorizationMetadataProvider=org.apache.rocketmq.auth.authorization.provider.LocalAuthorizationMetadataProvider
"""
"""Without them traces are dropped (their topic has no route), and users and rights are refused."""

README = Path(__file__).resolve().parents[2] / "store" / "README.md"


class Site:
    """A name server and a broker with messages, a producer and a consumer."""

    def __init__(self, namesrv: str, broker: str, folder: Path) -> None:
        self.namesrv = namesrv
        self.shell = AdminShell(namesrv)
        self.names = {
            **{"cluster": "DefaultCluster", "broker": broker, "folder": str(folder)},
            **{"topic": "Tools", "other": "Other", "group": "ToolGroup", "key": "the-key"},
        }
        topics, groups = folder / "topics.json", folder / "groups.json"
        topics.write_text(json.dumps([{"topicName": "Listed"}]))
        groups.write_text(json.dumps([{"groupName": "Listed"}]))
        self.names |= {"topics_file": str(topics), "groups_file": str(groups)}
        self._prepare()

    def close(self) -> None:
        self.shell.close()

    def admin(self, line: str) -> str:
        words = line.split(" ")
        return self.shell.run(words[0], "-n", self.namesrv, *words[1:])

    def _prepare(self) -> None:
        shell = self.shell
        names = self.names
        for topic in (names["topic"], names["other"]):
            line = f"updateTopic -c {names['cluster']} -t {topic} -r 4 -w 4"
            assert "success" in self.admin(line)
        sent = shell.run("client", "send", names["topic"], "tagA", names["key"], "body")
        ids = sent.split()
        names |= dict(zip(("unique_id", "offset_id", "queue", "offset"), ids, strict=True))
        names["traced_id"] = wait_until(self._traced, "a trace has arrived")
        names["client"] = shell.run("client", "consume", names["group"], names["topic"]).strip()
        progress = f"consumerProgress -g {names['group']}"
        caught_up = re.compile(rf"{names['topic']} +broker-a.*Consume Diff Total: 0", re.DOTALL)
        wait_until(lambda: caught_up.search(self.admin(progress)), "the consumer has caught up")

    def _traced(self) -> str:
        """Id of a message whose trace is stored; empty: the client has given it up, as it may."""
        identifier = self.shell.run("client", "trace", self.names["topic"], "traced").strip()
        for _ in range(10):
            if "Pub" in self.admin(f"queryMsgTraceById -i {identifier}"):
                return identifier
        return ""

    def run(self, row: Row) -> tuple[Row, str, bool]:
        """(row, output, whether it has the pattern); again where the tool's own 3 s ran out."""
        pattern = row.pattern.format(**{k: re.escape(v) for k, v in self.names.items()})
        output = ""
        for _ in range(3):  # some commands leave out what they were not told in time
            output = self.admin(row.line.format(**self.names))
            if re.search(pattern, output):
                return row, output, True
        return row, output, False

    def run_all(self) -> list[tuple[Row, str, bool]]:
        """What is made first and deleted last is so; all else as it stands."""
        ordered = [row for row in WORKS if "Cloned" in row.line or "WritePerm" in row.line]
        rest = [row for row in WORKS[1:-2] if row not in ordered]
        return [self.run(row) for row in (WORKS[0], *rest, *ordered, *WORKS[-2:])]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    apache_rocketmq.require("javac")
    folder = tmp_path_factory.mktemp("mqadmin")
    with Daemons(folder) as daemons:
        namesrv = daemons.namesrv()
        store = daemons.store(namesrv)
        site = Site(namesrv.addresses["namesrv"], store.addresses["store"], folder)
        yield site
        site.close()


def test_every_row_that_works_works(site: Site) -> None:
    """Apache's tool gets from our name server and store what it prints of its own."""
    results = site.run_all()
    failed = [f"{row.line}\n{output[:1500]}" for row, output, is_right in results if not is_right]
    print(f"mqadmin: {len(results) - len(failed)} of {len(results)} command lines work")
    assert not failed, "\n\n".join(failed)


def test_every_command_has_its_row(site: Site) -> None:
    """What mqadmin lists is in the table, once."""
    output = site.shell.run("client", "commands")
    listed = set(output.split())
    known = [*{command_of(row) for row in WORKS}, *NOT_APPLICABLE, *MISSING]
    assert len(known) == len(set(known))
    assert set(known) == listed


def test_the_table_in_the_readme_is_this_one() -> None:
    assert table() in README.read_text()


@pytest.mark.skipif(not os.environ.get("COMPARE"), reason="COMPARE=1 runs the rows at Apache too")
def test_the_same_rows_at_apache(tmp_path: Path) -> None:
    """For comparison: the rows at an unmodified Apache broker."""
    apache_rocketmq.require("javac")
    with ApacheCluster(tmp_path / "apache", flush="SYNC_FLUSH", extra=APACHE_EXTRA) as cluster:
        site = Site(cluster.namesrv, cluster.broker, tmp_path)
        results = site.run_all()
        site.close()
    right = [row for row, _, is_right in results if is_right]
    print(f"mqadmin at Apache: {len(right)} of {len(results)} command lines work")
    for row, output, is_right in results:
        if not is_right:
            print(f"- {row.line}: {output.strip()[:200]}")
