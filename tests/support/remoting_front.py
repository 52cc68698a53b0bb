"""A RocketMQ client's end, for tests of the gateway's remoting front."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from protocols.remoting.adapter import RemotingAdapter
from protocols.remoting.bodies import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
    encode_body,
)
from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import PullFlag, RequestCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.headers import SendHeader
from protocols.remoting.peer import Peer
from protocols.remoting.records import decode_records
from tests.support.fake_broker import BROKER
from tests.support.fake_services import FakeServices
from tests.support.patience import PATIENCE_S


def front(
    services: FakeServices, **section: object
) -> AbstractAsyncContextManager[tuple[str, int]]:
    """A gateway's listener inside the ``async with``: its address."""
    adapter = RemotingAdapter.from_config("remoting", {"bind": "127.0.0.1:0", **section})
    return services.serving(adapter, "remoting")


class Client:
    """A RocketMQ client's end, and what the gateway pushed to it."""

    def __init__(self) -> None:
        self.remoting: RemotingClient
        self.pushed: asyncio.Queue[RemotingCommand] = asyncio.Queue()

    async def connect(self, address: tuple[str, int]) -> "Client":
        self.remoting = await RemotingClient.connect(f"{address[0]}:{address[1]}", push=self._push)
        return self

    def _push(self, peer: Peer, commands: Sequence[RemotingCommand]) -> None:
        for command in commands:
            self.pushed.put_nowait(command)

    async def ask(self, code: int, body: bytes = b"", **fields: object) -> RemotingCommand:
        texts = {name: str(value) for name, value in fields.items()}
        return await self.remoting.request(RemotingCommand(code, texts, body), PATIENCE_S)

    async def send(self, topic: str, body: bytes, **changes: object) -> RemotingCommand:
        await self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic)  # as every client does
        header = SendHeader(producer_group="p", topic=topic, queue_id=0, broker=BROKER)
        header = header._replace(**changes)  # type: ignore[arg-type]
        command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, header.to_fields(), body)
        return await self.remoting.request(command, PATIENCE_S)

    async def join(self, group: str, topic: str, client_id: str = "c1", **changes: str) -> None:
        consumer = ConsumerData(
            group_name=group,
            consume_from_where="CONSUME_FROM_FIRST_OFFSET",
            subscription_data_set=[SubscriptionData(topic=topic)],
            **changes,  # type: ignore[arg-type]
        )
        beat = HeartbeatData(
            client_id=client_id,
            consumer_data_set=[consumer],
            producer_data_set=[ProducerData(group_name="p")],
        )
        answer = await self.ask(RequestCode.HEART_BEAT, encode_body(beat))
        assert answer.code == 0, answer.remark

    async def pull(
        self, group: str, topic: str, offset: int = 0, wait_ms: int = 0, **fields: object
    ) -> RemotingCommand:
        base: dict[str, object] = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": 0,
            "queueOffset": offset,
            "maxMsgNums": 32,
            "sysFlag": int(PullFlag.SUSPEND) if wait_ms else 0,
            "commitOffset": 0,
            "suspendTimeoutMillis": wait_ms,
            "subVersion": 0,
            "bname": BROKER,
        }
        return await self.ask(RequestCode.PULL_MESSAGE, **{**base, **fields})


def bodies(answer: RemotingCommand) -> list[bytes]:
    return [message.body for message in decode_records(answer.body)]
