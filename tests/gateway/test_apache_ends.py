"""Transactions at an Apache broker that is told twice how one ended."""

from typing import cast

import pytest

from gateway.clusters.apache import APACHE
from gateway.clusters.client import ClusterClient
from gateway.held import GatewayHeld
from protocols.errors import Code, Refused
from protocols.remoting.codes import ResponseCode, SysFlag
from protocols.remoting.command import RemotingCommand
from protocols.rocketmq import HalfPlace

COMMIT, ROLLBACK = int(SysFlag.TRANSACTION_COMMIT), int(SysFlag.TRANSACTION_ROLLBACK)
PLACE = HalfPlace("c", "a", 100, 7, "P", "ID")
COPY = PLACE._replace(cluster="", position=200, table_offset=8)
"""The broker put it behind the others when it asked."""


class FakeLink:
    cluster, broker, capabilities = "c", "a", APACHE

    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []
        self.answer: int = ResponseCode.SUCCESS

    async def ask(self, command: RemotingCommand) -> RemotingCommand:
        fields = command.fields
        self.told.append((int(fields["commitLogOffset"]), int(fields["commitOrRollback"])))
        return command.answer(self.answer)


class FakeCluster:
    def __init__(self, link: FakeLink) -> None:
        self.links = {"a": link}

    def listen(self, listener: object) -> None:
        """It changes never."""

    def link(self, broker: str) -> FakeLink:
        return self.links[broker]


def held_by(link: FakeLink) -> GatewayHeld:
    return GatewayHeld({"c": cast("ClusterClient", FakeCluster(link))}, "gw-1")


async def test_a_transaction_is_committed_once_and_its_copy_rolled_back() -> None:
    link = FakeLink()
    held = held_by(link)
    for place in (PLACE, PLACE, COPY):
        await held.end_transaction(place, is_commit=True)
    assert link.told == [(100, COMMIT), (200, ROLLBACK)]


async def test_another_transaction_has_an_end_of_its_own() -> None:
    link = FakeLink()
    held = held_by(link)
    await held.end_transaction(PLACE, is_commit=True)
    await held.end_transaction(PLACE._replace(position=300, message_id="OTHER"), is_commit=True)
    assert link.told == [(100, COMMIT), (300, COMMIT)]


async def test_an_end_that_was_refused_does_not_count() -> None:
    link = FakeLink()
    held = held_by(link)
    link.answer = ResponseCode.SYSTEM_ERROR
    with pytest.raises(Refused) as caught:
        await held.end_transaction(PLACE, is_commit=True)
    assert caught.value.code != Code.OK
    link.answer = ResponseCode.SUCCESS
    await held.end_transaction(COPY, is_commit=True)
    assert link.told == [(100, COMMIT), (200, COMMIT)]
