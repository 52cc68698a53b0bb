"""RocketMQ's standard codes at a real store, over a socket, as Apache's clients use them."""

import asyncio
import struct
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import msgspec
import pytest

from namesrv.app import NameServer
from namesrv.config import NamesrvConfig
from protocols.remoting import bodies
from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.handles import (
    PopHandle,
    decode_message_offsets,
    decode_start_offsets,
    encode_bit_set,
)
from protocols.remoting.peer import Peer
from protocols.remoting.private import IF_ABSENT
from protocols.remoting.records import decode_records, parse_offset_message_id
from store.app import Store
from tests.support.store_server import WAIT_S, GatewayEnd, ask, connected, running_store


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with running_store(tmp_path) as store:
        yield store


@pytest.fixture
async def client(store: Store) -> AsyncIterator[RemotingClient]:
    async with connected(store) as client:
        yield client


def send_fields(topic: str = "T", queue_id: int = 0, **more: str) -> dict[str, str]:
    fields = {"a": "p", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id)}
    return fields | {"f": "0", "g": "1700000000000", "h": "0"} | more


async def send(
    client: RemotingClient, body: bytes, topic: str = "T", queue_id: int = 0, **more: str
) -> RemotingCommand:
    fields = send_fields(topic, queue_id, **more)
    answer = await ask(client, RequestCode.SEND_MESSAGE_V2, fields, body)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer


def pull_fields(offset: int, topic: str = "T", queue_id: int = 0, **more: str) -> dict[str, str]:
    fields = {
        "consumerGroup": "G",
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
    }
    return fields | more


async def pull(client: RemotingClient, offset: int, **more: str) -> RemotingCommand:
    return await ask(client, RequestCode.PULL_MESSAGE, pull_fields(offset, **more))


# ── send and pull ───────────────────────────────────────────────────────────────────────


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
    """Code 10 with long field names is the same send."""
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
    again = decode_records((await pull(client, 0, topic="%RETRY%G", **wait)).body)[0]
    assert (again.body, again.reconsume_count) == (b"x", 1)
    assert again.properties["RETRY_TOPIC"] == "T"
    back["offset"] = str(again.log_position)
    assert (await ask(client, RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 0
    dead = decode_records((await pull(client, 0, topic="%DLQ%G")).body)[0]
    assert (dead.body, dead.properties["DLQ_ORIGIN_TOPIC"]) == (b"x", "T")


# ── pop ─────────────────────────────────────────────────────────────────────────────────


def pop_fields(**more: str) -> dict[str, str]:
    fields = {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": "-1",
        "maxMsgNums": "32",
        "invisibleTime": "60000",
        "pollTime": "0",
        "bornTime": "0",
        "initMode": "0",
        "order": "false",
    }
    return fields | more


def handles(answer: RemotingCommand) -> list[PopHandle]:
    """The handles that a Java client makes of a pop's answer."""
    starts = decode_start_offsets(answer.fields["startOffsetInfo"])
    times = (int(answer.fields["popTime"]), int(answer.fields["invisibleTime"]))
    revive = int(answer.fields["reviveQid"])
    return [
        PopHandle(starts[key], *times, revive, key[0], "broker-a", key[1], offset)
        for key, offsets in decode_message_offsets(answer.fields["msgOffsetInfo"]).items()
        for offset in offsets
    ]


def handle_fields(handle: PopHandle, **more: str) -> dict[str, str]:
    fields = {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": str(handle.queue_id),
        "offset": str(handle.queue_offset),
        "extraInfo": handle.encode(),
    }
    return fields | more


async def test_popped_messages_are_hidden_and_acked(client: RemotingClient) -> None:
    """200050 takes from all queues, 200051 ends a delivery, 200151 ends many."""
    for queue_id in (0, 0, 1, 1):
        await send(client, b"x", queue_id=queue_id)
    answer = await ask(client, RequestCode.POP_MESSAGE, pop_fields())
    assert answer.code == ResponseCode.SUCCESS
    taken = handles(answer)
    assert len(decode_records(answer.body)) == len(taken) == 4
    empty = await ask(client, RequestCode.POP_MESSAGE, pop_fields())
    assert empty.code == ResponseCode.POLLING_TIMEOUT
    acked = await ask(client, RequestCode.ACK_MESSAGE, handle_fields(taken[0]))
    assert acked.code == 0
    entries = [
        {
            "c": "G",
            "t": "T",
            "r": "0",
            "so": handle.start_offset,
            "q": handle.queue_id,
            "rq": handle.revive_queue_id,
            "pt": handle.popped_ms,
            "it": handle.invisible_ms,
            "b": encode_bit_set([handle.queue_offset - handle.start_offset]),
        }
        for handle in taken[1:]
    ]
    body = msgspec.json.encode({"brokerName": "broker-a", "acks": entries})
    assert (await ask(client, RequestCode.BATCH_ACK_MESSAGE, None, body)).code == 0
    stats = await ask(client, RequestCode.GET_CONSUME_STATS, {"consumerGroup": "G"})
    table = bodies.parse(stats.body)["offsetTable"]
    assert sum(item["brokerOffset"] - item["consumerOffset"] for item in table.values()) == 0


async def test_change_invisible_time_makes_a_new_handle(client: RemotingClient) -> None:
    """200053 with a short time: it comes again, counted; the old handle does nothing."""
    await send(client, b"x")
    answer = await ask(client, RequestCode.POP_MESSAGE, pop_fields())
    (old,) = handles(answer)
    await asyncio.sleep(0.002)  # handles differ by their pop time, in milliseconds
    change = handle_fields(old, invisibleTime="30")
    changed = await ask(client, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, change)
    assert changed.code == 0
    assert int(changed.fields["popTime"]) > old.popped_ms
    again = await ask(client, RequestCode.POP_MESSAGE, pop_fields(pollTime="5000"))
    assert decode_records(again.body)[0].reconsume_count == 1
    stale = await ask(client, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, change)
    assert stale.code == ResponseCode.NO_MESSAGE


async def test_handles_outlive_a_restart(tmp_path: Path) -> None:
    """What was popped before the store ended is acked, or put off, after it has come back."""
    async with running_store(tmp_path) as store, connected(store) as client:
        for body in (b"acked", b"put off"):
            await send(client, body)
        acked, put_off = handles(await ask(client, RequestCode.POP_MESSAGE, pop_fields()))
    async with running_store(tmp_path) as store, connected(store) as client:
        none = await ask(client, RequestCode.POP_MESSAGE, pop_fields())
        assert none.code == ResponseCode.POLLING_TIMEOUT
        assert (await ask(client, RequestCode.ACK_MESSAGE, handle_fields(acked))).code == 0
        sooner = handle_fields(put_off, invisibleTime="30")
        assert (await ask(client, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, sooner)).code == 0
        answer = await ask(client, RequestCode.POP_MESSAGE, pop_fields(pollTime="20000"))
        assert [one.body for one in decode_records(answer.body)] == [b"put off"]


async def test_the_last_message_of_a_young_topic_is_its_first(client: RemotingClient) -> None:
    """A new group that pops "from last" gets what is there while nothing has gone yet."""
    await send(client, b"early")
    answer = await ask(client, RequestCode.POP_MESSAGE, pop_fields(initMode="1"))
    assert [message.body for message in decode_records(answer.body)] == [b"early"]


async def test_a_pop_waits_for_a_message(store: Store, client: RemotingClient) -> None:
    """pollTime holds a pop until its group can take something; 200054 likewise."""
    update = {"topic": "T", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
    assert (await ask(client, RequestCode.UPDATE_AND_CREATE_TOPIC, update)).code == 0
    pop = pop_fields(initMode="1", pollTime="5000")
    waiting = asyncio.ensure_future(ask(client, RequestCode.POP_MESSAGE, pop))
    await ask(client, RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
    async with connected(store) as other:
        notice = asyncio.ensure_future(
            ask(
                other,
                RequestCode.NOTIFICATION,
                pop_fields(consumerGroup="H", pollTime="5000", initMode="1"),
            )
        )
        await ask(client, RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
        assert not waiting.done()
        await send(client, b"new")
        answer = await waiting
        assert [message.body for message in decode_records(answer.body)] == [b"new"]
        assert (await notice).fields["hasMsg"] == "true"


async def test_an_ordered_pop_waits_for_those_before(client: RemotingClient) -> None:
    """By message group, and by queue for messages without one, however they came in."""

    async def popped() -> list[bytes]:
        answer = await ask(client, RequestCode.POP_MESSAGE, pop_fields(order="true"))
        return [record.body for record in decode_records(answer.body)]

    for number in range(3):
        for text, stem in (("", "none"), ("__SHARDINGKEY\1a\2", "a"), ("__SHARDINGKEY\1b\2", "b")):
            identity = f"UNIQ_KEY\1{stem}{number}\2"
            await send(client, f"{stem}{number}".encode(), i=identity + text)
    assert await popped() == [b"none0", b"a0", b"b0"]
    assert await popped() == []


async def test_a_message_popped_too_often_dies(client: RemotingClient) -> None:
    """After the group's last attempt it is in %DLQ%group."""
    config = bodies.GroupConfig(group_name="G", retry_max_times=1)
    body = bodies.encode_body(config)
    await ask(client, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)
    await send(client, b"poison")
    for attempt in range(2):
        pop = pop_fields(invisibleTime="20", pollTime="5000")
        answer = await ask(client, RequestCode.POP_MESSAGE, pop)
        assert decode_records(answer.body)[0].reconsume_count == attempt
    fields = pull_fields(0, "%DLQ%G", sysFlag="6", suspendTimeoutMillis="5000")
    fields["consumerGroup"] = "D"
    dead = await ask(client, RequestCode.PULL_MESSAGE, fields)
    assert decode_records(dead.body)[0].body == b"poison"


# ── clients ─────────────────────────────────────────────────────────────────────────────


def heartbeat(client_id: str, group: str = "G") -> bytes:
    data = bodies.HeartbeatData(
        client_id=client_id,
        producer_data_set=[bodies.ProducerData(group_name="P")],
        consumer_data_set=[
            bodies.ConsumerData(
                group_name=group,
                subscription_data_set=[bodies.SubscriptionData(topic="T", sub_string="A")],
            )
        ],
    )
    return bodies.encode_body(data)


async def test_members_hear_of_one_another(store: Store) -> None:
    """A heartbeat of a new member and the loss of one are told to all others (40)."""
    told: list[str] = []
    changed = asyncio.Event()

    def pushed(peer: Peer, commands: list[RemotingCommand]) -> None:
        told.extend(command.fields["consumerGroup"] for command in commands)
        changed.set()

    first = await RemotingClient.connect(store.address, push=pushed)
    async with connected(store) as second:
        await ask(first, RequestCode.HEART_BEAT, None, heartbeat("b"))
        told.clear()
        changed.clear()
        await ask(second, RequestCode.HEART_BEAT, None, heartbeat("a"))
        await asyncio.wait_for(changed.wait(), WAIT_S)
        assert told == ["G"]
        listed = await ask(first, RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "G"})
        assert bodies.parse(listed.body) == {"consumerIdList": ["a", "b"]}
        changed.clear()
    await asyncio.wait_for(changed.wait(), WAIT_S)
    listed = await ask(first, RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "G"})
    assert bodies.parse(listed.body) == {"consumerIdList": ["b"]}
    connections = await ask(first, RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "G"})
    found = bodies.decode_body(bodies.ConsumerConnection, connections.body)
    assert found.subscription_table["T"].sub_string == "A"
    producers = await ask(first, RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "P"})
    assert len(bodies.decode_body(bodies.ProducerConnection, producers.body).connection_set) == 1
    await ask(first, RequestCode.UNREGISTER_CLIENT, {"clientID": "b", "consumerGroup": "G"})
    listed = await ask(first, RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "G"})
    assert listed.code == ResponseCode.SYSTEM_ERROR
    await first.close()


async def test_a_heartbeat_makes_the_retry_topic(client: RemotingClient) -> None:
    """The retry topic is there before the client first asks for its route."""
    await ask(client, RequestCode.HEART_BEAT, None, heartbeat("a"))
    answer = await ask(client, RequestCode.GET_TOPIC_CONFIG, {"topic": "%RETRY%G"})
    assert answer.code == ResponseCode.SUCCESS


async def test_queues_are_assigned_without_gaps(store: Store, client: RemotingClient) -> None:
    """400: all queues of a topic, each to one member; POP mode asks for any queue."""
    await send(client, b"x")
    async with connected(store) as other:
        await ask(client, RequestCode.HEART_BEAT, None, heartbeat("a"))
        await ask(other, RequestCode.HEART_BEAT, None, heartbeat("b"))
        queues: list[int] = []
        for end, name in ((client, "a"), (other, "b")):
            asked = bodies.QueryAssignmentBody(topic="T", consumer_group="G", client_id=name)
            body = bodies.encode_body(asked)
            answer = await ask(end, RequestCode.QUERY_ASSIGNMENT, None, body)
            found = bodies.decode_body(bodies.AssignmentAnswer, answer.body)
            queues += [item.message_queue.queue_id for item in found.message_queue_assignments]
        assert sorted(queues) == [0, 1, 2, 3]
        mode = bodies.encode_body({"topic": "T", "consumerGroup": "G", "mode": "POP"})
        await ask(client, RequestCode.SET_MESSAGE_REQUEST_MODE, None, mode)
        answer = await ask(client, RequestCode.QUERY_ASSIGNMENT, None, body)
        found = bodies.decode_body(bodies.AssignmentAnswer, answer.body)
        (item,) = found.message_queue_assignments
        assert (item.mode, item.message_queue.queue_id) == ("POP", -1)


async def test_an_order_lock_has_one_owner(client: RemotingClient) -> None:
    """41 gives a queue to one client at a time, 42 takes it back."""

    async def lock(code: int, name: str) -> list[object]:
        queue = bodies.MessageQueue(topic="T", broker_name="broker-a", queue_id=0)
        body = bodies.LockBody(consumer_group="G", client_id=name, mq_set=[queue])
        answer = await ask(client, code, None, bodies.encode_body(body))
        return list(bodies.parse(answer.body)["lockOKMQSet"]) if answer.body else []

    assert len(await lock(RequestCode.LOCK_BATCH_MQ, "a")) == 1
    assert await lock(RequestCode.LOCK_BATCH_MQ, "b") == []
    await lock(RequestCode.UNLOCK_BATCH_MQ, "a")
    assert len(await lock(RequestCode.LOCK_BATCH_MQ, "b")) == 1


# ── administration ──────────────────────────────────────────────────────────────────────


async def test_topics_are_made_listed_and_deleted(client: RemotingClient) -> None:
    """17, 21, 202, 215."""
    update = {"topic": "N", "readQueueNums": "3", "writeQueueNums": "3", "perm": "6"}
    update["attributes"] = "+message.type=FIFO"
    assert (await ask(client, RequestCode.UPDATE_AND_CREATE_TOPIC, update)).code == 0
    table = await ask(client, RequestCode.GET_ALL_TOPIC_CONFIG)
    topics = bodies.decode_body(bodies.TopicConfigWrapper, table.body).topic_config_table
    assert topics["N"].attributes == {"message.type": "FIFO"}
    assert "TBW102" in topics
    stats = await ask(client, RequestCode.GET_TOPIC_STATS_INFO, {"topic": "N"})
    assert len(bodies.parse(stats.body)["offsetTable"]) == 3
    assert (await ask(client, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "N"})).code == 0
    gone = await ask(client, RequestCode.GET_TOPIC_CONFIG, {"topic": "N"})
    assert gone.code == ResponseCode.TOPIC_NOT_EXIST
    refused = await ask(client, RequestCode.UPDATE_AND_CREATE_TOPIC, update | {"topic": "TBW102"})
    assert refused.code == ResponseCode.INVALID_PARAMETER


async def test_groups_are_configured(client: RemotingClient) -> None:
    """200, 352, 201, 207."""
    body = bodies.encode_body(bodies.GroupConfig(group_name="N", retry_max_times=3))
    assert (
        await ask(client, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)
    ).code == 0
    one = await ask(client, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "N"})
    assert bodies.decode_body(bodies.GroupConfig, one.body).retry_max_times == 3
    table = await ask(client, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    groups = bodies.decode_body(bodies.GroupConfigTable, table.body).subscription_group_table
    assert list(groups) == ["N"]
    assert (await ask(client, RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "N"})).code == 0
    gone = await ask(client, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "N"})
    assert gone.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_an_offset_is_reset(client: RemotingClient) -> None:
    """222 moves a group; its next pull is sent there once."""
    for _ in range(3):
        await send(client, b"x")
    at = {"consumerGroup": "G", "topic": "T", "queueId": "0"}
    await ask(client, RequestCode.UPDATE_CONSUMER_OFFSET, at | {"commitOffset": "3"})
    reset = {"topic": "T", "group": "G", "timestamp": "0", "isForce": "true"}
    answer = await ask(client, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)
    assert len(bodies.parse(answer.body)["offsetTable"]) == 4
    moved = await pull(client, 3)
    assert (moved.code, moved.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "0")
    assert len(decode_records((await pull(client, 0)).body)) == 3


async def test_the_store_describes_itself(client: RemotingClient) -> None:
    """28 and 26 have what clusterList and getBrokerConfig read."""
    info = await ask(client, RequestCode.GET_BROKER_RUNTIME_INFO)
    table = bodies.decode_body(bodies.KvTable, info.body).table
    assert {"putTps", "getTransferredTps", "brokerVersionDesc", "commitLogMaxOffset"} <= set(table)
    config = await ask(client, RequestCode.GET_BROKER_CONFIG)
    assert b"flushDiskType=SYNC_FLUSH\n" in bytes(config.body)


# ── registration ────────────────────────────────────────────────────────────────────────


async def test_a_store_is_known_to_its_name_servers(tmp_path: Path) -> None:
    """Routes have the store and its topics; a new topic follows at once; a stop ends them."""
    server = NameServer(NamesrvConfig(bind="127.0.0.1:0", data=tmp_path / "ns"))
    await server.start()
    naming = await RemotingClient.connect(server.address)

    async def route(topic: str, *, until: int = ResponseCode.SUCCESS) -> bodies.RouteData | None:
        async with asyncio.timeout(WAIT_S):
            while True:
                fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
                answer = await ask(naming, RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
                if answer.code == until:
                    body = answer.body
                    return bodies.decode_body(bodies.RouteData, body) if body else None
                await asyncio.sleep(0.02)

    async with running_store(tmp_path, namesrv=(server.address,)) as store:
        found = await route("TBW102")
        assert found is not None
        assert found.broker_datas[0].broker_addrs == {0: store.address}
        async with connected(store) as client:
            await send(client, b"x", topic="NEW")
        found = await route("NEW")
        assert found is not None
        assert found.queue_datas[0].read_queue_nums == 4
    await route("NEW", until=ResponseCode.TOPIC_NOT_EXIST)
    await naming.close()
    await server.stop()


async def test_both_families_meet_in_one_group(store: Store, client: RemotingClient) -> None:
    """What a gateway's stream holds of ``rmq/G/T`` a standard pop does not get, and back."""
    await send(client, b"1")
    await send(client, b"2")
    popped = await ask(client, RequestCode.POP_MESSAGE, pop_fields(maxMsgNums="1"))
    assert popped.code == ResponseCode.SUCCESS
    gateway = GatewayEnd("gw-1")
    await gateway.connect(store)
    opened = await gateway.open_group("rmq/G/T", topic="T", start="earliest", attempts_max=17)
    assert not opened.is_new
    await gateway.open_stream(opened.group, 1, 10)
    (item,) = await gateway.received(1)
    assert gateway.bodies[0] != popped.body
    assert item.attempt == 1
    await gateway.close()
