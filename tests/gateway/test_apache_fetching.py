"""Light queues of an Apache broker are read on, whatever became of the last pull."""

import asyncio

import pytest

from gateway.clusters.apache import fetching
from gateway.clusters.apache.fetching import LightFetching
from gateway.clusters.apache.light import LightGroup
from protocols.errors import Code, PeerError, Refused
from protocols.groups import GroupSpec
from protocols.remoting.codes import ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.records import encode_record
from tests.support.core import until


class Broker:
    """Fails a few times, then has one message."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.is_asked = asyncio.Event()
        self.group = LightGroup(1, GroupSpec(name="g", reads=()), "c", "a")
        self.group.add_queue("%LMQ%x", 0, 5)
        self.fetching = LightFetching(
            "c", "a", self._ask, is_read=lambda group: True, fetched=lambda group: None
        )
        self.fetching.is_open = True

    async def _ask(self, command: RemotingCommand) -> RemotingCommand:
        self.is_asked.set()
        if self.failures:
            raise self.failures.pop(0)
        if command.fields["queueOffset"] != "5":
            await asyncio.get_running_loop().create_future()
        record = encode_record("t", b"x", queue_id=0, queue_offset=5)
        return command.answer(ResponseCode.SUCCESS, {"nextBeginOffset": "6"}, record)


async def test_a_pull_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader without anything to acknowledge gives no other occasion."""
    monkeypatch.setattr(fetching, "AGAIN_S", 0)
    broker = Broker(
        Refused(Code.PROXY_TIMEOUT, "a", "no answer"),
        PeerError("nonsense"),
        Refused(Code.TOO_MANY_REQUESTS, "a", "busy"),
    )
    broker.fetching.begin(broker.group)
    await until(lambda: broker.group.ready_count == 1)
    await broker.fetching.close()


async def test_a_link_that_is_back_before_its_loss_was_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pull that went with the old connection still counts as under way when the new one is
    there."""
    monkeypatch.setattr(fetching, "AGAIN_S", 0.01)
    broker = Broker(Refused(Code.HA_NOT_AVAILABLE, "a", "the connection was lost"))
    broker.fetching.begin(broker.group)
    await broker.is_asked.wait()
    broker.fetching.is_open = False
    broker.fetching.is_open = True
    broker.fetching.begin(broker.group)
    await until(lambda: broker.group.ready_count == 1)
    await broker.fetching.close()
