"""Queues of several brokers, for clients that name none."""

import pytest

from protocols.canonical import SendResult
from protocols.pipeline import TopicInfo
from protocols.remoting.bodies import (
    LockAnswer,
    LockBody,
    MessageQueue,
    RouteData,
    decode_body,
    encode_body,
)
from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import RequestCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.headers import SendHeader
from protocols.remoting.holdings import Queue
from protocols.remoting.numbering import ALL_BROKERS, Numbering, names_no_broker
from tests.support.fake_services import FakeServices, FakeTopics
from tests.support.patience import PATIENCE_S
from tests.support.remoting_front import front

QUEUES = (("b", 0, 6), ("b", 1, 4), ("a", 0, 6), ("a", 1, 6))


def info(*queues: tuple[str, int, int]) -> TopicInfo:
    return TopicInfo("T", "c", queues)


@pytest.mark.parametrize(
    ("language", "version", "is_so"),
    [("JAVA", 493, False), ("JAVA", 409, False), ("JAVA", 399, True), ("GO", 317, True)],
)
def test_who_names_no_broker(*, language: str, version: int, is_so: bool) -> None:
    assert names_no_broker(RemotingCommand(105, language=language, version=version)) is is_so


def test_one_broker_has_all_queues() -> None:
    route = Numbering().route(info(*QUEUES), "1.2.3.4:5")
    assert route is not None
    ((queues,), (broker,)) = route.queue_datas, route.broker_datas
    assert (queues.broker_name, queues.read_queue_nums, queues.perm) == (ALL_BROKERS, 4, 6)
    assert (broker.broker_name, broker.broker_addrs) == (ALL_BROKERS, {0: "1.2.3.4:5"})


def test_a_topic_at_one_broker_is_shown_as_it_is() -> None:
    numbering = Numbering()
    assert numbering.route(info(("a", 0, 6), ("a", 1, 6)), "x:1") is None
    assert numbering.places(info(("a", 0, 6), ("a", 1, 6))) == [("a", 0), ("a", 1)]


def test_a_number_stays_its_queues() -> None:
    """A store that is away keeps its numbers; one that comes takes the next ones."""
    numbering = Numbering()
    assert numbering.places(info(("b", 0, 6), ("c", 0, 6))) == [("b", 0), ("c", 0)]
    assert numbering.places(info(("c", 0, 6))) == [("b", 0), ("c", 0)]
    assert numbering.places(info(("a", 0, 6), ("c", 0, 6))) == [("b", 0), ("c", 0), ("a", 0)]


def test_sends_and_locks_go_where_they_are_meant() -> None:
    """Known numbers; a send to one that is not goes anywhere."""
    numbering = Numbering()
    header = SendHeader(producer_group="p", topic="T", queue_id=2)
    assert numbering.sent_to("T", header) == header
    assert numbering.sent_to("T", header._replace(broker=ALL_BROKERS)).queue_id == -1
    numbering.places(info(*QUEUES))
    sent = numbering.sent_to("T", header)
    assert (sent.broker, sent.queue_id) == ("b", 0)
    assert numbering.number("T", SendResult(broker="b", queue_id=1)) == 3
    assert numbering.number("T", SendResult(broker="z", queue_id=1)) == 1
    asked = MessageQueue(topic="T", broker_name=ALL_BROKERS, queue_id=3)
    assert numbering.meant("T", asked) == Queue("T", "b", 1)
    asked = MessageQueue(topic="T", broker_name="a", queue_id=1)
    assert numbering.meant("T", asked) == Queue("T", "a", 1)


async def test_a_client_of_that_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its route, its sends, its locks and its offsets."""
    services = FakeServices()
    services.broker.topics.add("T")

    async def find(topics: FakeTopics, topic: str, *, with_type: bool = True) -> TopicInfo:
        return TopicInfo(topic, "c", QUEUES)

    monkeypatch.setattr(FakeTopics, "find", find)
    async with front(services) as (host, port):
        client = await RemotingClient.connect(f"{host}:{port}")

        async def ask(code: int, body: bytes = b"", **fields: str) -> RemotingCommand:
            command = RemotingCommand(code, fields, body, language="GO", version=317)
            return await client.request(command, PATIENCE_S)

        answer = await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")
        assert decode_body(RouteData, answer.body).queue_datas[0].broker_name == ALL_BROKERS
        header = SendHeader(producer_group="p", topic="T", queue_id=3)
        await ask(RequestCode.SEND_MESSAGE_V2, b"body", **header.to_fields())
        head = services.pipeline.sent[-1].head
        assert (head.broker, head.message_queue_id) == ("b", 1)
        asked = MessageQueue(topic="T", broker_name=ALL_BROKERS, queue_id=2)
        lock = encode_body(LockBody(consumer_group="g", client_id="me", mq_set=[asked]))
        answer = await ask(RequestCode.LOCK_BATCH_MQ, lock)
        assert decode_body(LockAnswer, answer.body).lock_ok_mq_set == [asked]
        commit, query = RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.QUERY_CONSUMER_OFFSET
        await ask(commit, topic="T", consumerGroup="g", queueId="2", commitOffset="7")
        answer = await ask(query, topic="T", consumerGroup="g", queueId="2")
        assert answer.fields["offset"] == "7"
        answer = await ask(query, topic="T", consumerGroup="g", queueId="0", bname="b")
        assert answer.fields["offset"] == "7"
        await client.close()
