"""RocketMQ's standard codes at a real store, over a socket, as Apache's clients use them."""

import asyncio
import struct
from collections.abc import Iterable
from pathlib import Path

import pytest

from protocols.remoting import bodies
from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.private import IF_ABSENT
from protocols.remoting.records import decode_records, parse_offset_message_id
from store.app import Store
from tests.support.standard_codes import make_group, pull, pull_fields, send, send_fields
from tests.support.store_server import WAIT_S, ask, connected, running_store


async def test_a_first_send_creates_its_topic(client: RemotingClient) -> None:
    """A producer that took TBW102's route makes the topic; perm and queues are readable (351)."""
    answer = await send(client, b"hello", i="KEYS\x01k\x02")
    assert answer.fields["queueOffset"] == "0"
    assert answer.fields["transactionId"]
    topic = await ask(client, RequestCode.GET_TOPIC_CONFIG, {"topic": "T"})
    config = bodies.decode_body(bodies.TopicConfig, topic.body)
    assert (config.read_queue_nums, config.perm) == (4, 6)


async def test_what_was_sent_is_pulled(client: RemotingClient) -> None:
    """Body, keys, born time and offsets come back; next offset and range are in the header."""
    sent = await send(client, b"hello", i="KEYS\x01k\x02TAGS\x01A\x02")
    answer = await pull(client, 0)
    assert answer.code == ResponseCode.SUCCESS
    assert (answer.fields["nextBeginOffset"], answer.fields["maxOffset"]) == ("1", "1")
    (message,) = decode_records(answer.body)
    assert (message.body, message.properties["KEYS"]) == (b"hello", "k")
    assert message.born_ms == 1700000000000
    assert message.properties["CLUSTER"] == "DefaultCluster"
    found = parse_offset_message_id(sent.fields["msgId"])
    assert found is not None
    assert found[1] == message.log_position


async def test_send_by_the_old_header(client: RemotingClient) -> None:
    """Code 10 with long field names is the same send; below zero is any queue."""
    fields = {
        "producerGroup": "p",
        "topic": "T",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "2",
        "queueId": "1",
        "sysFlag": "0",
        "bornTimestamp": "0",
        "flag": "0",
    }
    answer = await ask(client, RequestCode.SEND_MESSAGE, fields, b"x")
    assert (answer.code, answer.fields["queueId"]) == (0, "1")
    answer = await ask(client, RequestCode.SEND_MESSAGE, {**fields, "queueId": "-100"}, b"x")
    assert answer.code == 0


def batch_of(members: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A client batch of (body, its one property)."""
    packed = b""
    for body, named in members:
        text = named + b"\x02"
        size = 20 + len(body) + 2 + len(text)
        packed += struct.pack(">IIIiI", size, 0, 0, 0, len(body)) + body
        packed += struct.pack(">H", len(text)) + text
    return packed


async def test_a_batch_is_taken_apart(client: RemotingClient) -> None:
    """320: one record per member, consecutive offsets, a list of ids."""
    await send(client, b"first")
    members = batch_of((body, b"UNIQ_KEY\x01" + body) for body in (b"one", b"two", b"three"))
    answer = await ask(client, RequestCode.SEND_BATCH_MESSAGE, send_fields(m="true"), members)
    assert (answer.code, answer.fields["queueOffset"]) == (0, "1")
    assert len(answer.fields["msgId"].split(",")) == 3
    messages = decode_records((await pull(client, 1)).body)
    assert [message.body for message in messages] == [b"one", b"two", b"three"]
    assert [message.message_id for message in messages] == ["one", "two", "three"]


async def test_a_batch_without_all_keys_stores_nothing_in_a_compacted_topic(
    client: RemotingClient,
) -> None:
    """Or its sender, who is told that it failed, would store the others twice."""
    update = {"topic": "K", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1"}
    update |= {"perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    update["attributes"] = "+cleanup.policy=COMPACTION"
    assert (await ask(client, RequestCode.UPDATE_AND_CREATE_TOPIC, update)).code == 0
    for names, code in (((b"KEYS\x01a", b"TAGS\x01b"), 13), ((b"KEYS\x01a", b"KEYS\x01b"), 0)):
        members = batch_of((b"x", name) for name in names)
        fields = send_fields("K", m="true")
        answer = await ask(client, RequestCode.SEND_BATCH_MESSAGE, fields, members)
        assert answer.code == code
    answer = await ask(client, RequestCode.GET_MAX_OFFSET, {"topic": "K", "queueId": "0"})
    assert answer.fields["offset"] == "2"


async def test_a_topic_that_is_there_is_not_made_again(client: RemotingClient) -> None:
    """A gateway makes what nobody made: somebody may have, a moment ago."""
    update = {"topic": "One", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    assert (await ask(client, RequestCode.UPDATE_AND_CREATE_TOPIC, update)).code == 0
    update |= {"readQueueNums": "4", "writeQueueNums": "4", IF_ABSENT: "true"}
    answer = await ask(client, RequestCode.UPDATE_AND_CREATE_TOPIC, update)
    assert (answer.code, answer.fields["writeQueueNums"]) == (0, "1")
    answer = await ask(client, RequestCode.GET_TOPIC_CONFIG, {"topic": "One"})
    assert bodies.decode_body(bodies.TopicConfig, answer.body).write_queue_nums == 1


async def test_a_malformed_batch_is_answered(client: RemotingClient) -> None:
    """A batch whose lengths do not fit fails as one request; the connection goes on."""
    answer = await ask(client, RequestCode.SEND_BATCH_MESSAGE, send_fields(), b"\x00" * 30)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    await send(client, b"x")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"b": "SELF_TEST_TOPIC"}, ResponseCode.NO_PERMISSION),
        ({"b": "no/such"}, ResponseCode.INVALID_PARAMETER),
        ({"c": "none"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"e": "99"}, ResponseCode.INVALID_PARAMETER),
        ({"i": "TIMER_DELAY_MS\x01soon\x02"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"i": "TRAN_MSG\x01true\x02"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"i": "k\x01" + 40000 * "v" + "\x02"}, ResponseCode.MESSAGE_ILLEGAL),
    ],
)
async def test_what_cannot_be_stored_is_refused(
    client: RemotingClient, fields: dict[str, str], code: int
) -> None:
    """Each refusal has its code and a remark; nothing is stored."""
    answer = await ask(client, RequestCode.SEND_MESSAGE_V2, send_fields() | fields, b"x")
    assert (answer.code, bool(answer.remark)) == (code, True)


async def test_a_body_over_the_limit_is_illegal(tmp_path: Path) -> None:
    """Bodies above ``message_bytes_max`` are answered MESSAGE_ILLEGAL."""
    limits = {"message_bytes_max": 1024, "disk_free_bytes_min": 0, "log_bytes_max": 64 << 20}
    async with running_store(tmp_path, limits=limits) as store, connected(store) as client:
        answer = await ask(client, RequestCode.SEND_MESSAGE_V2, send_fields(), b"x" * 1025)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL


async def test_a_known_queue_is_looked_at_again_when_its_topic_changes(
    store: Store, client: RemotingClient
) -> None:
    """Not when another one does: with 20,000 topics, one of them changes every moment."""
    assert store._server is not None
    lanes = store._server.context.lanes
    for number in range(2):
        await send(client, b"x", i=f"UNIQ_KEY\x01{number}\x02")
    known = lanes["T", "0"]
    await send(client, b"x", "Other", i="UNIQ_KEY\x012\x02")
    await send(client, b"x", i="UNIQ_KEY\x013\x02")
    assert lanes["T", "0"] is known
    update = {"topic": "T", "readQueueNums": "4", "writeQueueNums": "4", "perm": "4"}
    assert (await ask(client, RequestCode.UPDATE_AND_CREATE_TOPIC, update)).code == 0
    fields = send_fields(i="UNIQ_KEY\x014\x02")
    answer = await ask(client, RequestCode.SEND_MESSAGE_V2, fields, b"x")
    assert answer.code == ResponseCode.NO_PERMISSION


async def test_permissions_are_enforced(client: RemotingClient) -> None:
    """A topic without W refuses sends, one without R refuses pulls."""
    for perm, code in (("4", RequestCode.SEND_MESSAGE_V2), ("2", RequestCode.PULL_MESSAGE)):
        update = {"topic": "P", "readQueueNums": "1", "writeQueueNums": "1", "perm": perm}
        assert (await ask(client, RequestCode.UPDATE_AND_CREATE_TOPIC, update)).code == 0
        fields = send_fields("P") if code == RequestCode.SEND_MESSAGE_V2 else pull_fields(0, "P")
        answer = await ask(client, code, fields, b"x")
        assert answer.code == ResponseCode.NO_PERMISSION


async def test_a_missing_field_is_named(client: RemotingClient) -> None:
    """A mandatory field that is absent is SYSTEM_ERROR with its name, as by Apache."""
    answer = await ask(client, RequestCode.PULL_MESSAGE, {"topic": "T"})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "consumerGroup" in answer.remark


async def test_an_unknown_code_is_not_supported(client: RemotingClient) -> None:
    answer = await ask(client, 513)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_a_suspended_pull_ends_with_the_next_message(
    store: Store, client: RemotingClient
) -> None:
    """A long poll is held until its queue grows, then answered at once."""
    await send(client, b"first")
    waiting = asyncio.ensure_future(pull(client, 1, sysFlag="6", suspendTimeoutMillis="15000"))
    await ask(client, RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
    assert not waiting.done()
    async with connected(store) as other:
        await send(other, b"second")
    answer = await asyncio.wait_for(waiting, WAIT_S)
    assert [message.body for message in decode_records(answer.body)] == [b"second"]


async def test_a_pull_at_the_end_finds_nothing(client: RemotingClient) -> None:
    """Without suspend, or after it, the answer is PULL_NOT_FOUND with the range."""
    await send(client, b"x")
    assert (await pull(client, 1)).code == ResponseCode.PULL_NOT_FOUND
    answer = await pull(client, 1, sysFlag="6", suspendTimeoutMillis="30")
    assert (answer.code, answer.fields["maxOffset"]) == (ResponseCode.PULL_NOT_FOUND, "1")


async def test_offsets_outside_the_queue_are_moved(client: RemotingClient) -> None:
    """Beyond the end: PULL_OFFSET_MOVED with the end as the next offset."""
    await send(client, b"x")
    answer = await pull(client, 7)
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    assert answer.fields["nextBeginOffset"] == "1"


async def test_the_tag_filter_skips_others(client: RemotingClient) -> None:
    """Only the tags asked for come; with none of them the client is told where to go on."""
    for tag in ("A", "B", "A"):
        await send(client, tag.encode(), i=f"TAGS\x01{tag}\x02")
    answer = await pull(client, 0, subscription="B || C")
    assert [message.body for message in decode_records(answer.body)] == [b"B"]
    answer = await pull(client, 0, subscription="Z")
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert answer.fields["nextBeginOffset"] == "3"
    answer = await pull(client, 0, subscription="A ||")
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


async def test_offsets_are_committed_and_found(client: RemotingClient) -> None:
    """14 after 15, a group that never was, and a commit that rides along with a pull."""
    await send(client, b"x")
    await send(client, b"y")
    at = {"consumerGroup": "G", "topic": "T", "queueId": "0"}
    fresh = await ask(
        client, RequestCode.QUERY_CONSUMER_OFFSET, at | {"setZeroIfNotFound": "false"}
    )
    assert fresh.code == ResponseCode.QUERY_NOT_FOUND
    unknown = await ask(client, RequestCode.UPDATE_CONSUMER_OFFSET, at | {"commitOffset": "1"})
    assert unknown.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    await make_group(client)
    await ask(client, RequestCode.UPDATE_CONSUMER_OFFSET, at | {"commitOffset": "1"})
    found = await ask(client, RequestCode.QUERY_CONSUMER_OFFSET, at)
    assert found.fields["offset"] == "1"
    await pull(client, 0, sysFlag="5", commitOffset="2")
    found = await ask(client, RequestCode.QUERY_CONSUMER_OFFSET, at)
    assert found.fields["offset"] == "2"


async def test_offsets_by_time_and_the_ends(client: RemotingClient) -> None:
    """29, 30, 31, 32 and 33 describe what the queue holds."""
    sent = await send(client, b"x")
    at = {"topic": "T", "queueId": "0"}
    assert (await ask(client, RequestCode.GET_MAX_OFFSET, at)).fields["offset"] == "1"
    assert (await ask(client, RequestCode.GET_MIN_OFFSET, at)).fields["offset"] == "0"
    search = await ask(client, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, at | {"timestamp": "1"})
    assert search.fields["offset"] == "0"
    future = at | {"timestamp": "99999999999999"}
    search = await ask(client, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, future)
    assert search.fields["offset"] == "1"
    earliest = await ask(client, RequestCode.GET_EARLIEST_MSG_STORETIME, at)
    assert int(earliest.fields["timestamp"]) > 1700000000000
    found = parse_offset_message_id(sent.fields["msgId"])
    assert found is not None
    view = await ask(client, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(found[1])})
    assert decode_records(view.body)[0].body == b"x"
    view = await ask(client, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(found[1] + 3)})
    assert view.code == ResponseCode.SYSTEM_ERROR


async def test_a_send_back_comes_again_and_dies_at_its_limit(client: RemotingClient) -> None:
    """36 appends to %RETRY%group with one attempt more; beyond the limit to %DLQ%group."""
    await send(client, b"x")
    message = decode_records((await pull(client, 0)).body)[0]
    back = {"offset": str(message.log_position), "group": "G", "delayLevel": "1"}
    back["maxReconsumeTimes"] = "1"
    assert (await ask(client, RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 0
    wait = {"sysFlag": "6", "suspendTimeoutMillis": "25000"}  # level 1 is a second
    while not (found := decode_records((await pull(client, 0, topic="%RETRY%G", **wait)).body)):
        pass
    (again,) = found
    assert (again.body, again.reconsume_count) == (b"x", 1)
    assert again.properties["RETRY_TOPIC"] == "T"
    back["offset"] = str(again.log_position)
    assert (await ask(client, RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 0
    dead = decode_records((await pull(client, 0, topic="%DLQ%G")).body)[0]
    assert (dead.body, dead.properties["DLQ_ORIGIN_TOPIC"]) == (b"x", "T")


async def test_what_an_orderly_consumer_gives_up_is_dead_at_once(client: RemotingClient) -> None:
    """It sends with the level of a next attempt: the dead letter waited a minute."""
    named = "UNIQ_KEY\x01id\x02DELAY\x015\x02"
    header = {"i": named, "j": "3", "l": "2"}
    await send(client, b"x", topic="%RETRY%G", **header)
    (dead,) = decode_records((await pull(client, 0, topic="%DLQ%G")).body)
    assert (dead.body, dead.message_id) == (b"x", "id")
    assert "DELAY" not in dead.properties
