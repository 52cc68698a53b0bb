"""A topic that was answered for is in the routes; a slow name server delays nobody for long."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.discovery import DROPPED_TOPICS, TAKES_CHANGES
from protocols.remoting.peer import Peer
from protocols.remoting.server import serve_remoting
from store import telling
from store.telling import Telling
from tests.support.patience import PATIENCE_S
from tests.support.store_server import ask, connected, eventually, running_store


async def test_answers_wait_for_all_who_were_told_before() -> None:
    """Only name servers that keep up count; one that is lost is not waited for."""
    changes, called = Telling(), list[str]()
    assert not changes.when_told(lambda: called.append("nobody"))
    changes.told("one", changes.asked)
    changes.told("two", changes.asked)
    assert changes.when_told(lambda: called.append("first"))
    assert changes.when_told(lambda: called.append("second"))
    changes.told("one", 2)
    changes.told("two", 1)
    assert called == ["nobody", "first"]
    changes.lost("two")
    assert called == ["nobody", "first", "second"]
    changes.when_told(lambda: called.append("end"))
    changes.close()
    assert called[3:] == ["end"]


async def test_a_slow_one_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "TOLD_S_MAX", 0.001)
    changes, done = Telling(), asyncio.Event()
    changes.told("slow", 0)
    changes.when_told(done.set)
    async with asyncio.timeout(PATIENCE_S):
        await done.wait()
    assert not changes.when_told(lambda: None)
    changes.told("slow", changes.asked)
    assert changes.when_told(lambda: None)
    changes.close()


class Names:
    """A name server that answers registrations, or holds them."""

    def __init__(self) -> None:
        self.is_holding = False
        self.held: list[tuple[Peer, RemotingCommand]] = []
        self.count = 0

    def receive(self, peer: Peer, commands: Sequence[RemotingCommand]) -> None:
        for command in commands:
            self.count += command.code == RequestCode.REGISTER_BROKER
            if self.is_holding and command.code == RequestCode.REGISTER_BROKER:
                self.held.append((peer, command))
            else:
                self._answer(peer, command)

    def holds(self, topic: str) -> bool:
        return any(
            topic.encode() in command.body or topic in command.fields.get(DROPPED_TOPICS, "")
            for _, command in self.held
        )

    def let_go(self) -> None:
        self.is_holding = False
        for peer, command in self.held:
            self._answer(peer, command)
        self.held.clear()

    @staticmethod
    def _answer(peer: Peer, command: RemotingCommand) -> None:
        peer.send((command.answer(fields={TAKES_CHANGES: "true"}),))


MADE = {"topic": "Made", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
LISTED = b'{"topicConfigList": [{"topicName": "Listed", "readQueueNums": 4, "perm": 6}]}'
SENT = {"a": "p", "b": "Sent", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
CHANGES = {
    "Made": RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, MADE),
    "Listed": RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, LISTED),
    "Sent": RemotingCommand(
        RequestCode.SEND_MESSAGE_V2, {**SENT, "i": "", "j": "0", "k": "false"}, b"body"
    ),
    "Gone": RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Gone"}),
}
"""By the topic that they make or end."""


@asynccontextmanager
async def registered(folder: Path) -> AsyncIterator[tuple[Names, RemotingClient]]:
    """A store whose name server has answered once, and a client of it."""
    names = Names()
    listener = await serve_remoting(names, "127.0.0.1:0")
    async with running_store(folder, namesrv=[listener.address]) as store:
        await eventually(lambda: names.count == 1, "the store has registered")
        async with connected(store) as client:
            gone = RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, {**MADE, "topic": "Gone"})
            assert (await client.request(gone, PATIENCE_S)).code == ResponseCode.SUCCESS
            names.is_holding = True
            yield names, client
        names.let_go()
        await listener.close()


@pytest.mark.parametrize("topic", CHANGES)
async def test_a_change_of_topics_is_answered_when_it_is_in_the_routes(
    topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made (17, 18), made by a first message, deleted. Other answers do not wait."""
    monkeypatch.setattr(telling, "TOLD_S_MAX", PATIENCE_S)
    async with registered(tmp_path) as (names, client):
        asking = asyncio.ensure_future(client.request(CHANGES[topic], PATIENCE_S))
        await eventually(lambda: names.holds(topic), "it is told")
        await ask(client, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
        assert not asking.done()
        names.let_go()
        assert (await asking).code == ResponseCode.SUCCESS


async def test_a_name_server_that_hangs_holds_up_one_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with registered(tmp_path) as (_, client):
        monkeypatch.setattr(telling, "TOLD_S_MAX", 0.01)
        for command in CHANGES.values():
            assert (await client.request(command, PATIENCE_S)).code == ResponseCode.SUCCESS
