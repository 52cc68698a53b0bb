"""The data commands against a running store: what scripts see."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from gateway.commands import messages
from gateway.commands.stores import Queue, Target
from protocols.errors import Code, Refused
from tests.support import commands
from tests.support.commands import output_of
from tests.support.processes import Daemon, Daemons

pytestmark = pytest.mark.client


@pytest.fixture(scope="module")
def up() -> Iterator[Daemon]:
    with Daemons() as daemons:
        yield daemons.up()


def tidegate(up: Daemon, *arguments: str, code: int = 0, text: str | None = None) -> str:
    """The command's stdout; its exit code must be *code*."""
    return output_of(*arguments, "-n", up.addresses["namesrv"], code=code, text=text)


def test_topics_come_and_go(up: Daemon) -> None:
    """Create, list, describe, delete; what is not there is exit code 1."""
    tidegate(up, "topic", "create", "orders", "--queues", "2")
    assert "orders" in json.loads(tidegate(up, "topic", "list", "--json"))
    rows = json.loads(tidegate(up, "topic", "describe", "orders", "--json"))
    assert [(row["queue"], row["messages"]) for row in rows] == [(0, 0), (1, 0)]
    tidegate(up, "topic", "delete", "orders")
    tidegate(up, "topic", "describe", "orders", code=1)


def test_send_pop_and_the_groups_progress(up: Daemon) -> None:
    """What is sent is popped once by a group; its lag says so."""
    tidegate(up, "topic", "create", "jobs", "--queues", "1")
    sent = json.loads(tidegate(up, "send", "jobs", "one", "--key", "k1", "--tag", "t", "--json"))
    assert (sent["queue"], sent["offset"]) == (0, 0)
    tidegate(up, "send", "jobs", text="two")
    lines = tidegate(up, "pop", "jobs", "--group", "g", "--count", "2", "--json").splitlines()
    popped = [json.loads(line) for line in lines]
    assert [item["body"] for item in popped] == ["one", "two"]
    assert popped[0]["properties"]["KEYS"] == "k1"
    tidegate(up, "pop", "jobs", "--group", "g", "--wait", "0.1", code=1)
    rows = json.loads(tidegate(up, "group", "describe", "g", "--json"))
    assert [(row["topic"], row["lag"]) for row in rows] == [("jobs", 0)]
    assert "g" in [row["group"] for row in json.loads(tidegate(up, "group", "list", "--json"))]


def test_tail_and_trace_read_without_consuming(up: Daemon) -> None:
    """By offset: no group, nothing is taken away; a message is found again by its id."""
    tidegate(up, "topic", "create", "log", "--queues", "1")
    sent = json.loads(tidegate(up, "send", "log", "line", "--json"))
    for _ in range(2):
        output = tidegate(up, "tail", "log", "--from-start", "--count", "1")
        assert output.strip() == "log 0@0 line"
    assert "line" in tidegate(up, "trace", sent["id"], "--topic", "log")
    assert "line" in tidegate(up, "trace", sent["offset_id"])
    tidegate(up, "trace", "0" * 31 + "1", "--topic", "log", code=1)


def test_errors_are_a_line(up: Daemon) -> None:
    """No traceback for what a person can mend."""
    done = commands.tidegate("topic", "list", "-n", "127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr.startswith("tidegate: HA_NOT_AVAILABLE for 127.0.0.1:1")
    assert "Traceback" not in done.stderr


def test_what_a_store_refuses_to_a_tail_is_a_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its queues are read side by side: what ends one of them ends all, as itself."""

    class OneQueue:
        async def queues(self, topic: str) -> list[Queue]:
            return [Queue("broker-a", 0)]

    async def refused(*_: object, **__: object) -> None:
        raise Refused(Code.BAD_REQUEST, "h:1", "this store asks for the cluster's credential")

    monkeypatch.setattr(Target, "run", lambda _, work: asyncio.run(work(OneQueue())))
    monkeypatch.setattr(messages, "follow", refused)
    with pytest.raises(Refused, match="credential"):
        messages.tail.main(["log"], standalone_mode=False)
