"""Pops that wait at an Apache broker, and are called off."""

import asyncio
from collections.abc import Sequence

from gateway.clusters.apache.polling import ApachePolls
from protocols.canonical import ReceiptHandle
from protocols.groups import GroupSpec, PopRequest, Read
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.records import encode_record
from protocols.remoting.settling import AckAction
from tests.support.core import until

REQUEST = PopRequest(
    group=GroupSpec(name="rmq/g/t", reads=(Read(topic="t"),)), count=8, invisible_ms=60_000
)
POPPED = {"popTime": "1", "invisibleTime": "60000", "reviveQid": "0", "startOffsetInfo": "0 0 5"}


class FakeBroker:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[RemotingCommand, asyncio.Future[RemotingCommand]]] = []
        self.released: list[int] = []
        self.polls = ApachePolls("c", "a", self._ask, self._release)

    async def _ask(self, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        future = asyncio.get_running_loop().create_future()
        self.asked.append((command, future))
        return await future

    def _release(self, changes: Sequence[tuple[ReceiptHandle, int, int]]) -> None:
        assert {action for _, action, _ in changes} == {AckAction.RELEASE}
        self.released += [handle.queue_offset for handle, _, _ in changes]

    async def next(self, code: RequestCode, count: int) -> RemotingCommand:
        await until(lambda: len(self.asked) == count)
        assert self.asked[-1][0].code == code
        return self.asked[-1][0]

    def answer(self, code: int, fields: dict[str, str] | None = None, body: bytes = b"") -> None:
        command, future = self.asked[-1]
        future.set_result(command.answer(code, fields or {}, body))

    def answer_popped(self) -> None:
        record = encode_record("t", b"x", queue_id=0, queue_offset=5)
        self.answer(ResponseCode.SUCCESS, POPPED, record)


async def test_a_pop_takes_what_there_is_and_never_waits_at_the_broker() -> None:
    broker = FakeBroker()
    popping = asyncio.ensure_future(broker.polls.pop(REQUEST, 8, 10_000))
    assert (await broker.next(RequestCode.POP_MESSAGE, 1)).fields["pollTime"] == "0"
    broker.answer(ResponseCode.PULL_NOT_FOUND)
    assert int((await broker.next(RequestCode.NOTIFICATION, 2)).fields["pollTime"]) > 9000
    broker.answer(ResponseCode.SUCCESS, {"hasMsg": "true"})
    await broker.next(RequestCode.POP_MESSAGE, 3)
    broker.answer_popped()
    assert [delivery.message.body for delivery in await popping] == [b"x"]
    await broker.polls.close()


async def test_who_is_called_off_while_waiting_takes_nothing() -> None:
    broker = FakeBroker()
    popping = asyncio.ensure_future(broker.polls.pop(REQUEST, 8, 10_000))
    await broker.next(RequestCode.POP_MESSAGE, 1)
    broker.answer(ResponseCode.PULL_NOT_FOUND)
    await broker.next(RequestCode.NOTIFICATION, 2)
    popping.cancel()
    await asyncio.wait([popping])
    assert broker.asked[-1][1].cancelled()
    assert len(broker.asked) == 2
    await broker.polls.close()


async def test_what_is_on_its_way_to_who_is_called_off_goes_back() -> None:
    broker = FakeBroker()
    popping = asyncio.ensure_future(broker.polls.pop(REQUEST, 8, 10_000))
    await broker.next(RequestCode.POP_MESSAGE, 1)
    popping.cancel()
    await asyncio.wait([popping])
    broker.answer_popped()
    await until(lambda: broker.released == [5])
    await broker.polls.close()
