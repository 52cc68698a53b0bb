"""Delayed and half messages over a socket, by RocketMQ's own codes."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest

from protocols import clock
from protocols.canonical import StoredMessage
from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import ONEWAY_FLAG, RemotingCommand
from protocols.remoting.delays import parse_recall_handle
from protocols.remoting.peer import Peer
from protocols.remoting.records import decode_record, decode_records
from store.app import Store
from tests.support.direct_producer import send_direct, send_fields
from tests.support.patience import PATIENCE_S
from tests.support.store_server import ask, running_store

HALF = {"TRAN_MSG": "true", "PGROUP": "P"}
PREPARED = 4


class Producer:
    """A client of producer group P that hears the store's questions."""

    def __init__(self) -> None:
        self.checks: asyncio.Queue[RemotingCommand] = asyncio.Queue()
        self.client: RemotingClient

    def pushed(self, peer: Peer, commands: Sequence[RemotingCommand]) -> None:
        for command in commands:
            if command.code == RequestCode.CHECK_TRANSACTION_STATE:
                self.checks.put_nowait(command)

    async def connect(self, store: Store) -> None:
        self.client = await RemotingClient.connect(store.address, push=self.pushed)
        body = {"clientID": "c@1", "producerDataSet": [{"groupName": "P"}], "consumerDataSet": []}
        await ask(self.client, RequestCode.HEART_BEAT, {}, msgspec.json.encode(body))

    async def end(self, position: int, how: int, group: str = "P") -> RemotingCommand:
        fields = {
            "producerGroup": group,
            "tranStateTableOffset": str(position),
            "commitLogOffset": str(position),
            "commitOrRollback": str(how),
            "msgId": "x",
        }
        return await ask(self.client, RequestCode.END_TRANSACTION, fields)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    transactions = {"timeout_ms": 200, "interval_ms": 200, "checks_max": 1000}
    async with running_store(tmp_path, transactions=transactions) as store:
        yield store


@pytest.fixture
async def producer(store: Store) -> AsyncIterator[Producer]:
    producer = Producer()
    await producer.connect(store)
    yield producer
    await producer.client.close()


async def pull(client: RemotingClient, topic: str, *, wait_ms: int = 0) -> list[StoredMessage]:
    fields = {
        "consumerGroup": "G", "topic": topic, "queueId": "0", "queueOffset": "0",
        "maxMsgNums": "32", "sysFlag": "6", "commitOffset": "0",
        "suspendTimeoutMillis": str(wait_ms), "subscription": "*",
    }  # fmt: skip
    answer = await ask(client, RequestCode.PULL_MESSAGE, fields)
    return decode_records(answer.body) if answer.code == ResponseCode.SUCCESS else []


@pytest.mark.parametrize(
    ("name", "value", "delay_ms"), [("TIMER_DELAY_MS", "300", 300), ("DELAY", "1", 1000)]
)
async def test_a_delayed_message_wakes_its_reader_in_time(
    producer: Producer, name: str, value: str, delay_ms: int
) -> None:
    """Never before its time."""
    sent_ms = clock.wall_ms()
    await send_direct(producer.client, "T", b"x", **{name: value})
    (message,) = await pull(producer.client, "T", wait_ms=20_000)
    assert message.body == b"x"
    assert message.store_ms - sent_ms >= delay_ms
    assert not {"TG_HELD", "DELAY", "TIMER_DELAY_MS"} & message.properties.keys()


async def test_a_recall_needs_the_handle_of_the_send(producer: Producer) -> None:
    answer = await send_direct(producer.client, "T", b"x", TIMER_DELAY_SEC="3600", UNIQ_KEY="0A0A")
    text = answer.fields["recallHandle"]
    handle = parse_recall_handle(text)
    assert handle is not None
    assert (handle.topic, handle.broker, handle.message_id) == ("T", "broker-a", "0A0A")

    async def recall(topic: str, text: str) -> RemotingCommand:
        fields = {"producerGroup": "P", "topic": topic, "recallHandle": text}
        return await ask(producer.client, RequestCode.RECALL_MESSAGE, fields)

    for topic, wrong in (
        ("U", text),
        ("T", "nonsense"),
        ("T", handle._replace(broker="b").encode()),
    ):
        assert (await recall(topic, wrong)).code == ResponseCode.ILLEGAL_OPERATION
    done = await recall("T", text)
    assert (done.code, done.fields["msgId"]) == (0, "0A0A")
    assert (await recall("T", text)).code == ResponseCode.ILLEGAL_OPERATION


async def test_a_half_message_is_seen_after_its_commit(producer: Producer) -> None:
    answer = await send_direct(producer.client, "T", b"x", sys_flag=PREPARED, UNIQ_KEY="k", **HALF)
    position = int(answer.fields["queueOffset"])
    assert answer.fields["transactionId"] == "k"
    assert int(answer.fields["msgId"][16:], 16) == position
    assert await pull(producer.client, "T") == []
    assert (await producer.end(position, 8, group="other")).code != 0
    assert (await producer.end(position, 8)).code == 0
    (message,) = await pull(producer.client, "T", wait_ms=20_000)
    assert (message.body, message.prepared_offset) == (b"x", position)
    assert message.sys_flag & 12 == 8
    assert (await producer.end(position, 8)).code == ResponseCode.NO_MESSAGE


async def test_a_live_producer_is_asked_and_answers(producer: Producer) -> None:
    """The question holds the message; unknown is asked again, rollback ends it."""
    answer = await send_direct(producer.client, "T", b"x", sys_flag=PREPARED, UNIQ_KEY="k", **HALF)
    position = int(answer.fields["queueOffset"])
    for how in (0, 12):
        async with asyncio.timeout(PATIENCE_S):
            check = await producer.checks.get()
        assert check.flag & ONEWAY_FLAG
        assert int(check.fields["commitLogOffset"]) == position
        message = decode_record(bytes(check.body))
        assert (message.body, message.topic, message.log_position) == (b"x", "T", position)
        assert message.properties["PGROUP"] == "P"
        assert (await producer.end(position, how)).code == 0
    assert await pull(producer.client, "T") == []


async def test_one_that_nobody_ends_is_given_up(tmp_path: Path) -> None:
    transactions = {"timeout_ms": 200, "interval_ms": 200, "checks_max": 2}
    producer = Producer()
    async with running_store(tmp_path, transactions=transactions) as store:
        await producer.connect(store)
        await send_direct(producer.client, "T", b"x", sys_flag=PREPARED, **HALF)
        topic = "TRANS_CHECK_MAX_TIME_TOPIC"
        found: list[StoredMessage] = []
        async with asyncio.timeout(PATIENCE_S):
            while not found:  # the topic comes into being with its first message
                found = await pull(producer.client, topic, wait_ms=500)
        assert found[0].properties["REAL_TOPIC"] == "T"
        assert producer.checks.qsize() == 2
        await producer.client.close()


async def test_a_batch_is_neither(producer: Producer) -> None:
    fields = send_fields("T") | {"m": "true"}
    text = b"TIMER_DELAY_MS\x015000\x02"
    body = b"x"
    size = 22 + len(body) + len(text)
    head = b"".join(number.to_bytes(4, "big") for number in (size, 0, 0, 0, len(body)))
    member = head + body + len(text).to_bytes(2, "big") + text
    answer = await ask(producer.client, RequestCode.SEND_BATCH_MESSAGE, fields, member)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL


async def test_an_answer_is_pushed_to_the_client_that_asked(
    store: Store, producer: Producer
) -> None:
    """Its sender hears of it when that client has it; one to nobody is refused."""
    pushed: list[RemotingCommand] = []

    def take(peer: Peer, commands: Sequence[RemotingCommand]) -> None:
        for command in commands:
            pushed.append(command)
            peer.send((command.answer(),))

    asker = await RemotingClient.connect(store.address, push=take)
    body = {"clientID": "asker", "producerDataSet": [{"groupName": "A"}], "consumerDataSet": []}
    await ask(asker, RequestCode.HEART_BEAT, {}, msgspec.json.encode(body))
    named = {"CORRELATION_ID": "1", "REPLY_TO_CLIENT": "asker"}
    fields = send_fields("DefaultCluster_REPLY_TOPIC", **named)
    answer = await ask(producer.client, RequestCode.SEND_REPLY_MESSAGE_V2, fields, b"answer")
    assert answer.code == 0, answer.remark
    (command,) = pushed
    assert command.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    assert bytes(command.body) == b"answer"
    assert "CORRELATION_ID\x011\x02" in command.fields["properties"]
    await asker.close()
    fields = send_fields("DefaultCluster_REPLY_TOPIC", **(named | {"REPLY_TO_CLIENT": "other"}))
    answer = await ask(producer.client, RequestCode.SEND_REPLY_MESSAGE_V2, fields, b"answer")
    assert (answer.code, "<other> not found" in answer.remark) == (1, True)
