"""Queues of several brokers, for clients that name none."""

import asyncio

import pytest

from protocols.canonical import SendResult
from protocols.errors import Refused
from protocols.pipeline import TopicInfo
from protocols.remoting import numbering as numbering_module
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
from protocols.remoting.mapping import Heads, to_messages
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


def numbering_of(services: FakeServices) -> Numbering:
    return Numbering(services.directory, services.topics)


async def test_one_broker_has_all_queues() -> None:
    route = await numbering_of(FakeServices()).route(info(*QUEUES), "1.2.3.4:5")
    assert route is not None
    ((queues,), (broker,)) = route.queue_datas, route.broker_datas
    assert (queues.broker_name, queues.read_queue_nums, queues.perm) == (ALL_BROKERS, 4, 6)
    assert (broker.broker_name, broker.broker_addrs) == (ALL_BROKERS, {0: "1.2.3.4:5"})


async def test_a_topic_at_one_broker_is_shown_as_it_is() -> None:
    """Nothing is written of it; when another broker comes, its numbers stay."""
    services = FakeServices()
    numbering = numbering_of(services)
    assert await numbering.route(info(("b", 0, 6), ("b", 1, 6)), "x:1") is None
    assert await numbering.places(info(("b", 0, 6), ("b", 1, 6))) == (("b", 0), ("b", 1))
    assert not list(services.directory.items("rmq/queues/"))
    grown = info(("a", 0, 6), ("b", 0, 6), ("b", 1, 6))
    assert await numbering.places(grown) == (("b", 0), ("b", 1), ("a", 0))


async def test_a_number_stays_its_queues() -> None:
    """A store that is away keeps its numbers; one that comes takes the next ones."""
    numbering = numbering_of(FakeServices())
    assert await numbering.places(info(("b", 0, 6), ("c", 0, 6))) == (("b", 0), ("c", 0))
    assert await numbering.places(info(("c", 0, 6))) == (("b", 0), ("c", 0))
    late = await numbering.places(info(("a", 0, 6), ("c", 0, 6)))
    assert late == (("b", 0), ("c", 0), ("a", 0))


async def test_numbers_are_the_same_at_all_gateways() -> None:
    """One that starts while a store has left the routes, and those that number a topic at once."""
    first = FakeServices()
    second = FakeServices(first.broker, "other")
    one, other = numbering_of(first), numbering_of(second)
    whole = info(("a", 0, 6), ("a", 1, 6), ("b", 0, 6))
    expected = (("a", 0), ("a", 1), ("b", 0))
    assert tuple(await one.places(whole)) == expected
    assert tuple(await other.places(info(("b", 0, 6)))) == expected
    header = SendHeader(producer_group="p", topic="T", queue_id=2)
    assert numbering_of(second).sent_to("T", header).broker == "b"
    found = await asyncio.gather(
        one.places(info(*whole.queues, ("c", 0, 6))), other.places(info(*whole.queues, ("d", 0, 6)))
    )
    after = await one.places(whole)
    assert [tuple(after[: len(places)]) for places in found] == [tuple(p) for p in found]
    assert set(after) == {*expected, ("c", 0), ("d", 0)}


async def test_topics_that_are_gone_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbering_module, "TOPICS_MAX", 1)
    services = FakeServices()
    numbering = numbering_of(services)
    services.broker.topics |= {"T", "U"}
    await numbering.places(info(*QUEUES))
    with pytest.raises(Refused, match="1 topics are numbered"):
        await numbering.places(TopicInfo("U", "c", QUEUES))
    services.broker.topics.discard("T")
    assert len(await numbering.places(TopicInfo("U", "c", QUEUES))) == 4
    assert [record.key for record in services.directory.items("rmq/queues/")] == ["rmq/queues/U"]


async def test_sends_and_locks_go_where_they_are_meant() -> None:
    """Known numbers; a send to one that is not goes anywhere."""
    numbering = numbering_of(FakeServices())
    header = SendHeader(producer_group="p", topic="T", queue_id=2)
    assert numbering.sent_to("T", header) == header
    assert numbering.sent_to("T", header._replace(broker=ALL_BROKERS)).queue_id == -1
    await numbering.places(info(*QUEUES))
    sent = numbering.sent_to("T", header)
    assert (sent.broker, sent.queue_id) == ("b", 0)
    assert numbering.number("T", SendResult(broker="b", queue_id=1)) == 3
    assert numbering.number("T", SendResult(broker="z", queue_id=1)) == 1
    asked = MessageQueue(topic="T", broker_name=ALL_BROKERS, queue_id=3)
    assert numbering.meant("T", asked) == Queue("T", "b", 1)
    asked = MessageQueue(topic="T", broker_name="a", queue_id=1)
    assert numbering.meant("T", asked) == Queue("T", "a", 1)


def test_what_takes_nothing_is_sent_elsewhere() -> None:
    """A number stays its queue's when that is read only: a send to it goes anywhere."""
    heads = Heads()
    header = SendHeader(producer_group="p", topic="T", queue_id=1, broker="b")
    messages = to_messages(header, b"body", heads, now_ms=0, body_bytes_max=100)
    (same,) = heads.fit(messages, info(*QUEUES), is_numbered=False)
    (moved,) = heads.fit(messages, info(*QUEUES), is_numbered=True)
    assert same.head is messages[0].head
    assert (moved.head.broker, moved.head.message_queue_id) == ("", -1)


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
