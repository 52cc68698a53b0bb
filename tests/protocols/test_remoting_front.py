"""The gateway's remoting front over sockets, on services in memory."""

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator

import pytest

from protocols.canonical import StoredMessage
from protocols.errors import Code, ConfigError, Refused
from protocols.remoting.adapter import RemotingAdapter
from protocols.remoting.bodies import (
    ConsumerData,
    HeartbeatData,
    RouteData,
    SubscriptionData,
    decode_body,
    encode_body,
)
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.headers import SendHeader
from protocols.remoting.records import decode_records
from protocols.remoting.signing import ACCESS_KEY, SIGNATURE, signed_content
from protocols.rocketmq import BrokerAnswer, HalfCheck, HalfPlace
from tests.support.fake_broker import BROKER
from tests.support.fake_services import FakeServices
from tests.support.patience import PATIENCE_S
from tests.support.remoting_front import Client, bodies, front


@pytest.fixture
async def address(services: FakeServices) -> AsyncIterator[tuple[str, int]]:
    async with front(services) as address:
        yield address


@pytest.fixture
async def client(address: tuple[str, int]) -> AsyncIterator[Client]:
    client = await Client().connect(address)
    yield client
    await client.remoting.close()


async def test_route_and_automatic_topic(client: Client, address: tuple[str, int]) -> None:
    """An unknown topic is made by the first question; its brokers are all at our address."""
    answer = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="New")
    route = decode_body(RouteData, answer.body)
    assert route.broker_datas[0].broker_addrs == {0: f"{address[0]}:{address[1]}"}
    assert route.queue_datas[0].broker_name == BROKER
    answer = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="%RETRY%g")
    assert decode_body(RouteData, answer.body).queue_datas[0].read_queue_nums == 16
    answer = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="TBW102")
    assert answer.code == 0
    answer = await client.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    assert "New" in json.loads(answer.body)["topicList"]


async def test_automatic_topics_can_be_off(services: FakeServices) -> None:
    async with front(services, auto_create_topics=False) as address:
        client = await Client().connect(address)
        answer = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="New")
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        await client.remoting.close()


async def test_send_pull_commit(client: Client, services: FakeServices) -> None:
    """A sent message is popped by a pull; the commit above it acks it for the whole group."""
    sent = await client.send("T", b"one")
    assert sent.code == 0
    assert sent.fields["queueOffset"] == "0"
    await client.join("g", "T")
    answer = await client.pull("g", "T")
    assert bodies(answer) == [b"one"]
    assert answer.fields["nextBeginOffset"] == "1"
    commit = {"consumerGroup": "g", "topic": "T", "queueId": 0, "bname": BROKER}
    await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=1, **commit)
    await client.remoting.close()
    other = await Client().connect(services.listeners["remoting"])
    await other.join("g", "T", "c2")
    assert (await other.pull("g", "T")).code == ResponseCode.PULL_NOT_FOUND
    await other.remoting.close()


async def test_send_back(client: Client) -> None:
    """A message that was given back is not acked by the commit above it, and comes again."""
    await client.send("T", b"one")
    await client.join("g", "T")
    answer = await client.pull("g", "T")
    (message,) = decode_records(answer.body)
    back = {"offset": message.log_position, "group": "g", "bname": BROKER}
    answer = await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, delayLevel=1, **back)
    assert answer.code == 0
    commit = {"consumerGroup": "g", "topic": "T", "queueId": 0, "bname": BROKER}
    await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=1, **commit)
    await client.pull("g", "T", offset=1, wait_ms=3000)
    answer = await client.pull("g", "%RETRY%g", bname="tidegate-retry")
    assert bodies(answer) == [b"one"]


async def test_dead_letter_at_the_clients_wish(client: Client) -> None:
    """A send-back with a level below 0 goes to the dead-letter topic and never comes again."""
    await client.send("T", b"one")
    await client.join("g", "T")
    (message,) = decode_records((await client.pull("g", "T")).body)
    back = {"offset": message.log_position, "group": "g", "bname": BROKER, "delayLevel": -1}
    assert (await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, **back)).code == 0
    await client.join("dead", "%DLQ%g", consume_type="CONSUME_ACTIVELY")
    (dead,) = decode_records((await client.pull("dead", "%DLQ%g")).body)
    assert (dead.body, dead.properties["DLQ_ORIGIN_TOPIC"]) == (b"one", "T")
    assert (await client.pull("g", "T", offset=1)).code == ResponseCode.PULL_NOT_FOUND


async def test_a_question_waits_for_a_link_that_broke(
    client: Client, services: FakeServices
) -> None:
    """Java's sync pulls would fail at once; the link is back in a moment."""
    await client.send("T", b"1")
    services.broker.unanswered_count = 1
    assert bodies(await client.pull("g", "T")) == [b"1"]
    services.broker.unanswered_count = 1
    place = {"topic": "T", "queueId": 0, "bname": BROKER}
    assert (await client.ask(RequestCode.GET_MAX_OFFSET, **place)).fields == {"offset": "1"}


async def test_pull_consumer_reads_by_offset(client: Client, services: FakeServices) -> None:
    """Who pulls actively reads what is there, as often as asked; the offset is kept. Where nobody
    has committed here, the broker is asked."""
    for body in (b"1", b"2", b"3"):
        await client.send("T", body)
    await client.join("g", "T", consume_type="CONSUME_ACTIVELY")
    assert bodies(await client.pull("g", "T", offset=1)) == [b"2", b"3"]
    assert bodies(await client.pull("g", "T", offset=1)) == [b"2", b"3"]
    place = {"topic": "T", "queueId": 0, "bname": BROKER}
    services.brokers.answers = [
        BrokerAnswer(22, {}, b"", ""),
        BrokerAnswer(0, {"offset": "0"}, b"", ""),
    ]
    answer = await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="g", **place)
    assert answer.code == ResponseCode.QUERY_NOT_FOUND
    answer = await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="g", **place)
    assert answer.fields == {"offset": "0"}
    await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="g", commitOffset=2, **place)
    answer = await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="g", **place)
    assert answer.fields == {"offset": "2"}
    assert (await client.ask(RequestCode.GET_MAX_OFFSET, **place)).fields == {"offset": "3"}
    assert (await client.ask(RequestCode.GET_MIN_OFFSET, **place)).fields == {"offset": "0"}
    assert (await client.pull("g", "T", offset=9)).code == ResponseCode.PULL_OFFSET_MOVED
    assert (await client.pull("g", "T", offset=3)).code == ResponseCode.PULL_NOT_FOUND


async def test_signed_requests(services: FakeServices, client: Client) -> None:
    """Every request of a client is checked by its signature; a wrong one is refused alone."""
    command = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T", ACCESS_KEY: "k"})
    digest = hmac.new(b"secret", signed_content(command.fields), hashlib.sha1).digest()
    services.users["k"] = digest
    command.fields[SIGNATURE] = base64.b64encode(digest).decode()
    assert (await client.remoting.request(command, PATIENCE_S)).code == 0
    command.fields[SIGNATURE] = base64.b64encode(b"x" * 20).decode()
    answer = await client.remoting.request(command, PATIENCE_S)
    assert answer.code == ResponseCode.NO_PERMISSION
    answer = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")
    assert answer.code == ResponseCode.NO_PERMISSION


async def test_denied_consumer(client: Client, services: FakeServices) -> None:
    """The ACL speaks at the heartbeat and at the pull."""
    await client.send("Secret", b"x")
    services.denied.add(("consume", "Secret"))
    data = ConsumerData(group_name="g", subscription_data_set=[SubscriptionData(topic="Secret")])
    beat = encode_body(HeartbeatData(client_id="c", consumer_data_set=[data]))
    answer = await client.ask(RequestCode.HEART_BEAT, beat)
    assert answer.code == ResponseCode.NO_PERMISSION
    assert (await client.pull("g", "Secret")).code == ResponseCode.NO_PERMISSION


async def test_throttled_connection_is_closed(services: FakeServices, client: Client) -> None:
    """A connection over the limits is told so and closed."""
    services.admit_code = Code.TOO_MANY_REQUESTS
    answer = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")
    assert answer.code == ResponseCode.SYSTEM_BUSY
    with pytest.raises(Refused):
        await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")


@pytest.mark.parametrize(
    ("code", "fields", "expected"),
    [
        (RequestCode.PEEK_MESSAGE, {}, ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
        (RequestCode.PULL_MESSAGE, {}, ResponseCode.SYSTEM_ERROR),
        (RequestCode.SEND_MESSAGE_V2, {}, ResponseCode.SYSTEM_ERROR),
        (RequestCode.HEART_BEAT, {}, ResponseCode.SYSTEM_ERROR),
        (RequestCode.GET_ROUTEINFO_BY_TOPIC, {}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_malformed_requests(
    client: Client, code: int, fields: dict[str, str], expected: int
) -> None:
    """Each is answered with the reason; the connection goes on."""
    answer = await client.ask(code, **fields)
    assert answer.code == expected
    assert answer.remark
    assert (await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")).code == 0


async def test_sql_filter_is_refused(client: Client) -> None:
    body = b'{"clientId":"c","group":"g","subscriptionData":{"expressionType":"SQL92","topic":"T"}}'
    answer = await client.ask(RequestCode.CHECK_CLIENT_CONFIG, body)
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_bad_settings_name_their_keys() -> None:
    with pytest.raises(ConfigError) as caught:
        RemotingAdapter.from_config("r", {"bind": "127.0.0.1:0", "held_max": 1, "colour": "red"})
    assert any("listeners.r.held_max" in problem for problem in caught.value.problems)
    assert any("listeners.r.colour" in problem for problem in caught.value.problems)


# ── held messages ───────────────────────────────────────────────────────────────────────


async def test_a_half_message_is_ended_where_it_lies(
    client: Client, services: FakeServices
) -> None:
    """By the position in the answer; the broker's name, or what the connection remembers."""
    await client.join("g", "t")
    properties = "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01k\x02"
    positions = []
    for _ in range(2):
        answer = await client.send("t", b"x", sys_flag=4, properties=properties)
        assert (answer.code, answer.fields["transactionId"]) == (0, "k")
        positions.append(int(answer.fields["queueOffset"]))
        assert int(answer.fields["msgId"][16:], 16) == positions[-1]
    assert [message.producer_group for message in services.broker.held] == ["p", "p"]
    base: dict[str, object] = {"producerGroup": "p", "fromTransactionCheck": "false"}
    for position, how, more in ((positions[0], 8, {}), (positions[1], 12, {"bname": BROKER})):
        ended = await client.ask(
            RequestCode.END_TRANSACTION,
            tranStateTableOffset=position,
            commitLogOffset=position,
            commitOrRollback=how,
            **base,
            **more,
        )
        assert ended.code == 0, ended.remark
    found = [(place.broker, place.position, is_commit) for place, is_commit in services.held.ended]
    assert found == [(BROKER, positions[0], True), (BROKER, positions[1], False)]


async def test_half_messages_at_one_position_of_two_stores(
    client: Client, services: FakeServices
) -> None:
    """A client that names no broker tells them apart by their ids; so does one that is asked."""
    await client.join("g", "t")
    for broker, identifier in (("a", "k"), ("b", "l")):
        place = HalfPlace("c", broker, 4711, 4711, "p")
        asked = await _half(client, services, identifier)
        services.held.checks["p"][0](HalfCheck(place, asked))
    for identifier in ("k", "l"):
        ended = await client.ask(
            RequestCode.END_TRANSACTION,
            producerGroup="p",
            tranStateTableOffset=4711,
            commitLogOffset=4711,
            commitOrRollback=8,
            transactionId=identifier,
        )
        assert ended.code == 0, ended.remark
    assert [place.broker for place, _ in services.held.ended] == ["a", "b"]


async def _half(client: Client, services: FakeServices, identifier: str = "k") -> StoredMessage:
    properties = f"UNIQ_KEY\x01{identifier}\x02PGROUP\x01p\x02"
    await client.send("t", b"half", properties=properties)
    return services.broker.log[-1].message


async def test_a_producer_is_asked_while_it_is_there(
    client: Client, services: FakeServices
) -> None:
    await client.join("g", "t")
    message = await _half(client, services)
    place = HalfPlace("DefaultCluster", BROKER, 4711, 4711, "p")
    services.held.checks["p"][0](HalfCheck(place, message))
    asked = await client.pushed.get()
    while asked.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
        asked = await client.pushed.get()
    assert asked.code == RequestCode.CHECK_TRANSACTION_STATE
    assert (asked.fields["commitLogOffset"], asked.fields["bname"]) == ("4711", BROKER)
    assert decode_records(bytes(asked.body))[0].body == b"half"
    await client.ask(RequestCode.UNREGISTER_CLIENT, clientID="c1", producerGroup="p")
    assert services.held.checks == {}


async def test_a_delayed_send_tells_how_to_recall_it(
    client: Client, services: FakeServices
) -> None:
    answer = await client.send("t", b"x", properties="TIMER_DELAY_MS\x0190000\x02")
    handle = answer.fields["recallHandle"]
    recalled = await client.ask(
        RequestCode.RECALL_MESSAGE, producerGroup="p", topic="t", recallHandle=handle
    )
    assert (recalled.code, recalled.fields["msgId"]) == (0, "recalled-id")
    assert services.held.recalled == [("t", handle)]


async def test_a_request_is_answered_over_the_connection_that_asked(
    client: Client, services: FakeServices
) -> None:
    """The stored request names the gateway; its answer is pushed and acknowledged."""
    properties = "CORRELATION_ID\x017\x02REPLY_TO_CLIENT\x01c1\x02TTL\x015000\x02"
    assert (await client.send("t", b"?", properties=properties)).code == 0
    stored = services.broker.log[-1].message.properties
    assert (stored["REPLY_TO_CLIENT"], stored["CLUSTER"]) == ("requests@fake", "fake-cluster")
    header = SendHeader(
        producer_group="q",
        topic="fake-cluster_REPLY_TOPIC",
        properties="CORRELATION_ID\x017\x02REPLY_TO_CLIENT\x01requests@fake\x02",
    )
    reply = RemotingCommand(RequestCode.SEND_REPLY_MESSAGE_V2, header.to_fields(), b"!")
    replying = asyncio.ensure_future(client.remoting.request(reply, PATIENCE_S))
    asked = await client.pushed.get()
    assert (asked.code, bytes(asked.body)) == (RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, b"!")
    client.remoting.peer.send((asked.answer(),))
    assert (await replying).code == 0
    again = RemotingCommand(RequestCode.SEND_REPLY_MESSAGE_V2, header.to_fields(), b"!")
    assert (await client.remoting.request(again, PATIENCE_S)).code == ResponseCode.SYSTEM_ERROR
    answer = await client.ask(
        RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="DefaultCluster_REPLY_TOPIC"
    )
    assert answer.code == 0
