"""What tools ask a store: keys, statistics, resets, configuration, relays, permissions."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from protocols import clock
from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.handles import PopHandle
from protocols.remoting.nearly_json import parse
from protocols.remoting.peer import Peer
from protocols.remoting.private import GROUP_IS_KNOWN
from protocols.remoting.records import decode_records
from store.app import Store
from store.handlers import statistics
from tests.support.standard_codes import make_group
from tests.support.store_server import WAIT_S, ask, connected, running_store


async def send(
    client: RemotingClient, body: bytes, properties: str = "", topic: str = "T"
) -> RemotingCommand:
    fields = {"a": "p", "b": topic, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0"}
    return await ask(client, RequestCode.SEND_MESSAGE_V2, fields | {"i": properties}, body)


async def pull(client: RemotingClient, offset: int, **more: str) -> RemotingCommand:
    fields = {
        **{"consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": str(offset)},
        **{"maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0"},
        **{"subscription": "*"},
    }
    return await ask(client, RequestCode.PULL_MESSAGE, fields | more)


async def pop(client: RemotingClient, **more: str) -> RemotingCommand:
    fields = {
        **{"consumerGroup": "G", "topic": "T", "queueId": "-1", "maxMsgNums": "32"},
        **{"invisibleTime": "60000", "pollTime": "0", "bornTime": "0", "initMode": "0"},
    }
    return await ask(client, RequestCode.POP_MESSAGE, fields | more)


def bodies_of(answer: RemotingCommand) -> list[bytes]:
    return [message.body for message in decode_records(answer.body)]


def handle_of(answer: RemotingCommand, offset: int) -> dict[str, str]:
    """Fields of an ack as a Java client makes them of a pop's answer."""
    fields = answer.fields
    handle = PopHandle(
        0,
        int(fields["popTime"]),
        int(fields["invisibleTime"]),
        int(fields["reviveQid"]),
        "0",
        "broker-a",
        0,
        offset,
    )
    return {
        **{"consumerGroup": "G", "topic": "T", "queueId": "0"},
        **{"offset": str(offset), "extraInfo": handle.encode()},
    }


# ── by key ──────────────────────────────────────────────────────────────────────────────


async def query(client: RemotingClient, key: str, **more: str) -> RemotingCommand:
    fields = {"topic": "T", "key": key, "maxNum": "64", "beginTimestamp": "0"}
    fields |= {"endTimestamp": str(1 << 62)}
    return await ask(client, RequestCode.QUERY_MESSAGE, fields | more)


async def test_messages_are_found_by_key(client: RemotingClient) -> None:
    """Each word of KEYS and the unique key lead to the message; its body does not."""
    await send(client, b"one", "KEYS\x01red green\x02UNIQ_KEY\x01U1\x02")
    await send(client, b"two", "KEYS\x01green\x02UNIQ_KEY\x01U2\x02")
    await send(client, b"KEYS\x01green\x02 in a body", "UNIQ_KEY\x01U3\x02")
    await send(client, b"other", "KEYS\x01green\x02", topic="U")
    assert bodies_of(await query(client, "green")) == [b"one", b"two"]
    assert bodies_of(await query(client, "red")) == [b"one"]
    assert bodies_of(await query(client, "U2", _UNIQUE_KEY_QUERY="true")) == [b"two"]
    assert (await query(client, "gree")).code == ResponseCode.QUERY_NOT_FOUND
    none = await query(client, "green", _UNIQUE_KEY_QUERY="true")
    assert none.code == ResponseCode.QUERY_NOT_FOUND


async def test_a_key_is_looked_for_in_its_time_window_only(client: RemotingClient) -> None:
    """A window that ends before the message was stored has nothing."""
    await send(client, b"one", "KEYS\x01k\x02")
    assert (await query(client, "k", endTimestamp="1000")).code == ResponseCode.QUERY_NOT_FOUND
    assert bodies_of(await query(client, "k", maxNum="1")) == [b"one"]


# ── pop over a restart ──────────────────────────────────────────────────────────────────


async def test_a_pop_handle_outlives_a_restart(tmp_path: Path) -> None:
    """What was popped before a restart stays in flight and is acked with its old handle."""
    async with running_store(tmp_path) as store, connected(store) as client:
        await send(client, b"a")
        await send(client, b"b")
        popped = await pop(client)
        await send(client, b"c")  # its commit makes the grant durable
    async with running_store(tmp_path) as store, connected(store) as client:
        assert bodies_of(await pop(client)) == [b"c"]
        assert (await ask(client, RequestCode.ACK_MESSAGE, handle_of(popped, 0))).code == 0
        stale = {**handle_of(popped, 1), "extraInfo": handle_of(popped, 1)["extraInfo"]}
        change = await ask(
            client, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, stale | {"invisibleTime": "0"}
        )
        assert change.code == 0
        assert bodies_of(await pop(client)) == [b"b"]


# ── offsets ─────────────────────────────────────────────────────────────────────────────


async def reset(client: RemotingClient, **more: str) -> dict[object, object]:
    fields = {"group": "G", "topic": "T", "timestamp": "-1", "isForce": "true"}
    answer = await ask(client, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields | more)
    assert answer.code == 0, answer.remark
    table: dict[object, object] = parse(answer.body)["offsetTable"]
    return table


async def test_a_reset_moves_a_group_that_pops(client: RemotingClient) -> None:
    """Backwards: everything comes again; what was held is void. Forwards: it is skipped."""
    for body in (b"a", b"b", b"c"):
        await send(client, body)
    first = await pop(client, maxMsgNums="2")
    await ask(client, RequestCode.ACK_MESSAGE, handle_of(first, 0))
    assert list((await reset(client, offset="0", queueId="0")).values()) == [0]
    assert bodies_of(await pop(client)) == [b"a", b"b", b"c"]
    await reset(client)
    at = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "1"}
    assert (await ask(client, RequestCode.UPDATE_CONSUMER_OFFSET, at)).code == 0
    assert (await pop(client)).code == ResponseCode.POLLING_TIMEOUT
    await reset(client, offset="0", queueId="0")
    await reset(client, offset="2", queueId="0")
    assert bodies_of(await pop(client)) == [b"c"]
    await ask(client, RequestCode.UPDATE_CONSUMER_OFFSET, at)
    assert (await pop(client)).code == ResponseCode.POLLING_TIMEOUT


async def test_a_commit_moves_a_group_that_pops_if_a_gateway_says_so(
    client: RemotingClient,
) -> None:
    """It knows that nobody of the group is there; others commit what they have read."""
    for body in (b"a", b"b"):
        await send(client, body)
    first = await pop(client, maxMsgNums="2")
    for index in range(2):
        await ask(client, RequestCode.ACK_MESSAGE, handle_of(first, index))
    at = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "1"}
    await ask(client, RequestCode.UPDATE_CONSUMER_OFFSET, at)
    assert (await pop(client)).code == ResponseCode.POLLING_TIMEOUT
    at[GROUP_IS_KNOWN] = "true"
    assert (await ask(client, RequestCode.UPDATE_CONSUMER_OFFSET, at)).code == 0
    assert bodies_of(await pop(client)) == [b"b"]
    await ask(client, RequestCode.UPDATE_CONSUMER_OFFSET, at | {"commitOffset": "99"})
    assert (await pop(client)).code == ResponseCode.POLLING_TIMEOUT


async def test_a_reset_of_a_popping_group_outlives_a_restart(tmp_path: Path) -> None:
    async with running_store(tmp_path) as store, connected(store) as client:
        for body in (b"a", b"b"):
            await send(client, body)
        await pop(client)
        await reset(client, timestamp="0")
    async with running_store(tmp_path) as store, connected(store) as client:
        assert bodies_of(await pop(client)) == [b"a", b"b"]


async def test_a_reset_ends_a_held_pull(store: Store, client: RemotingClient) -> None:
    """A consumer that waits at the end is told at once to go on elsewhere."""
    await send(client, b"a")
    waiting = asyncio.ensure_future(pull(client, 1, sysFlag="6", suspendTimeoutMillis="15000"))
    await ask(client, RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
    async with connected(store) as other:
        await reset(other, timestamp="0")
    answer = await asyncio.wait_for(waiting, WAIT_S)
    assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "0")


async def test_offsets_are_cloned(client: RemotingClient) -> None:
    """314: another group stands where the first one does."""
    await send(client, b"a")
    await make_group(client)
    commit = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "1"}
    await ask(client, RequestCode.UPDATE_CONSUMER_OFFSET, commit)
    clone = {"srcGroup": "G", "destGroup": "H", "topic": "T"}
    assert (await ask(client, RequestCode.CLONE_GROUP_OFFSET, clone)).code == 0
    asked = {"consumerGroup": "H", "topic": "T", "queueId": "0"}
    assert (await ask(client, RequestCode.QUERY_CONSUMER_OFFSET, asked)).fields["offset"] == "1"


# ── counts ──────────────────────────────────────────────────────────────────────────────


async def test_statistics_of_a_topic_and_of_a_group(client: RemotingClient) -> None:
    """315: what was stored within a minute, what a group got; an unknown one is an error."""
    for body in (b"a", b"b"):
        await send(client, body)
    await pull(client, 0)
    asked = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"}
    put = await ask(client, RequestCode.VIEW_BROKER_STATS_DATA, asked)
    assert parse(put.body)["statsMinute"]["sum"] == 2
    asked = {"statsName": "GROUP_GET_NUMS", "statsKey": "T@G"}
    got = await ask(client, RequestCode.VIEW_BROKER_STATS_DATA, asked)
    assert parse(got.body)["statsDay"]["sum"] == 2
    asked = {"statsName": "GROUP_GET_SIZE", "statsKey": "T@G"}
    size = await ask(client, RequestCode.VIEW_BROKER_STATS_DATA, asked)
    assert parse(size.body)["statsMinute"]["sum"] > 2 * 91
    asked = {"statsName": "GROUP_GET_NUMS", "statsKey": "T@none"}
    none = await ask(client, RequestCode.VIEW_BROKER_STATS_DATA, asked)
    assert none.code == ResponseCode.SYSTEM_ERROR


async def test_statistics_of_the_store_and_of_what_came_back(
    client: RemotingClient, store: Store
) -> None:
    """315 as rocketmq-exporter asks; what is pulled counts as taken, as what is popped does."""
    assert store._server is not None
    context = store._server.context
    cluster = context.config.cluster
    await send(client, b"a")
    message = decode_records((await pull(client, 0)).body)[0]
    back = {"offset": str(message.log_position), "group": "G", "delayLevel": "1"}
    assert (await ask(client, RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 0
    statistics.sample(context, clock.monotonic())
    for name, key, least in (
        ("BROKER_PUT_NUMS", cluster, 2),
        ("BROKER_GET_NUMS", cluster, 1),
        ("SNDBCK_PUT_NUMS", "T@G", 1),
    ):
        asked = {"statsName": name, "statsKey": key}
        answer = await ask(client, RequestCode.VIEW_BROKER_STATS_DATA, asked)
        assert parse(answer.body)["statsDay"]["sum"] >= least, name


async def test_progress_of_a_popping_group_is_per_queue(client: RemotingClient) -> None:
    """208: an open message of a queue holds its own queue back, in flight counted apart."""
    for body in (b"a", b"b", b"c"):
        await send(client, body)
    popped = await pop(client, maxMsgNums="2")
    await ask(client, RequestCode.ACK_MESSAGE, handle_of(popped, 0))
    stats = await ask(client, RequestCode.GET_CONSUME_STATS, {"consumerGroup": "G", "topic": "T"})
    (row,) = [row for row in parse(stats.body)["offsetTable"].values() if row["brokerOffset"]]
    assert (row["brokerOffset"], row["consumerOffset"], row["pullOffset"]) == (3, 1, 2)
    all_stats = await ask(client, RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
    assert parse(all_stats.body)["totalDiff"] == 2


# ── configuration ───────────────────────────────────────────────────────────────────────


async def configure(client: RemotingClient, text: str) -> RemotingCommand:
    return await ask(client, RequestCode.UPDATE_BROKER_CONFIG, {}, text.encode())


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("rocketmqHome=/tmp/evil", ResponseCode.NO_PERMISSION),  # CVE-2023-33246
        ("filterServerNums=1\nbrokerPermission=6", ResponseCode.NO_PERMISSION),
        ("configStorePath=/etc/x", ResponseCode.NO_PERMISSION),  # CVE-2023-37582
        ("storePathRootDir=/tmp", ResponseCode.NO_PERMISSION),
        ("maxMessageSize=many", ResponseCode.INVALID_PARAMETER),
        ("maxMessageSize=1", ResponseCode.INVALID_PARAMETER),
        ("", ResponseCode.INVALID_PARAMETER),
    ],
)
async def test_only_hot_keys_can_be_changed(client: RemotingClient, text: str, code: int) -> None:
    """25 refuses every key outside its list and every value that is none; nothing changes."""
    answer = await configure(client, text)
    assert (answer.code, bool(answer.remark)) == (code, True)
    assert b"brokerPermission=6" in (await ask(client, RequestCode.GET_BROKER_CONFIG)).body


async def test_a_changed_key_counts_at_once_and_after_a_restart(tmp_path: Path) -> None:
    """brokerPermission and maxMessageSize, with the store's own checks."""
    async with running_store(tmp_path) as store, connected(store) as client:
        await send(client, b"x")
        assert (await configure(client, "brokerPermission=4\nmaxMessageSize=2048")).code == 0
        assert (await send(client, b"x")).code == ResponseCode.NO_PERMISSION
        assert (await pull(client, 0)).code == ResponseCode.SUCCESS
    async with running_store(tmp_path) as store, connected(store) as client:
        assert (await send(client, b"x")).code == ResponseCode.NO_PERMISSION
        assert (await configure(client, "brokerPermission=2")).code == 0
        assert (await send(client, b"x" * 2049)).code == ResponseCode.MESSAGE_ILLEGAL
        assert (await pull(client, 0)).code == ResponseCode.NO_PERMISSION
        assert (await pop(client)).code == ResponseCode.NO_PERMISSION


async def test_auto_creation_can_be_switched_off(client: RemotingClient) -> None:
    """Topics and groups that nobody made are refused by their own codes then."""
    await send(client, b"x")
    switches = "autoCreateTopicEnable=false\nautoCreateSubscriptionGroup=false"
    assert (await configure(client, switches)).code == 0
    assert (await send(client, b"x", topic="New")).code == ResponseCode.TOPIC_NOT_EXIST
    answer = await pull(client, 0, consumerGroup="New")
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


# ── permissions ─────────────────────────────────────────────────────────────────────────


async def test_a_group_can_be_forbidden_a_topic(client: RemotingClient) -> None:
    """353: told and asked; pull and pop are refused meanwhile."""
    await send(client, b"x")
    told = {"group": "G", "topic": "T", "readable": "false"}
    answer = await ask(client, RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, told)
    assert parse(answer.body)["readable"] is False
    refused = await pull(client, 0)
    assert (refused.code, refused.fields["forbiddenType"]) == (ResponseCode.NO_PERMISSION, "5")
    assert (await pop(client)).code == ResponseCode.NO_PERMISSION
    told["readable"] = "true"
    await ask(client, RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, told)
    assert (await pull(client, 0)).code == 0


# ── relays ──────────────────────────────────────────────────────────────────────────────


class Member:
    """A consumer that answers what the store relays to it."""

    def __init__(self) -> None:
        self.asked: list[RemotingCommand] = []
        self.client: RemotingClient | None = None

    def received(self, peer: Peer, commands: Sequence[RemotingCommand]) -> None:
        for command in commands:
            if command.code != RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
                self.asked.append(command)
                peer.send((command.answer(body=b'{"properties":{}}', remark="here"),))

    async def join(self, store: Store) -> None:
        self.client = await RemotingClient.connect(store.address, push=self.received)
        subscription = {"topic": "T", "subString": "*", "subVersion": 1}
        consumer = {"groupName": "G", "subscriptionDataSet": [subscription]}
        beat = {"clientID": "member-1", "consumerDataSet": [consumer]}
        body = msgspec.json.encode(beat)
        assert (await ask(self.client, RequestCode.HEART_BEAT, {}, body)).code == 0


async def test_a_question_to_a_client_is_relayed(store: Store, client: RemotingClient) -> None:
    """307 and 309 go to the member's connection; its answer comes back."""
    sent = await send(client, b"x")
    member = Member()
    await member.join(store)
    asked = {"consumerGroup": "G", "clientId": "member-1", "jstackEnable": "false"}
    answer = await ask(client, RequestCode.GET_CONSUMER_RUNNING_INFO, asked)
    assert (answer.code, answer.body) == (0, b'{"properties":{}}')
    asked = {"consumerGroup": "G", "clientId": "member-1", "msgId": sent.fields["msgId"]}
    assert (await ask(client, RequestCode.CONSUME_MESSAGE_DIRECTLY, asked)).code == 0
    assert bodies_of(member.asked[1]) == [b"x"]
    assert member.client is not None
    await member.client.close()


async def test_who_is_not_there_cannot_be_asked(client: RemotingClient) -> None:
    """307 and 223 say who is not online."""
    asked = {"consumerGroup": "G", "clientId": "nobody"}
    answer = await ask(client, RequestCode.GET_CONSUMER_RUNNING_INFO, asked)
    assert "nobody" in answer.remark
    asked = {"group": "G", "topic": "T"}
    answer = await ask(client, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, asked)
    assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE


async def test_pop_assignments_can_be_shared(store: Store, client: RemotingClient) -> None:
    """401 and 400: popShareQueueNum 0 means any queue; else the next members' queues too."""
    update = {"topic": "T", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
    await ask(client, RequestCode.UPDATE_AND_CREATE_TOPIC, update)
    clients = []
    for name in ("a", "b", "c", "d"):
        other = await RemotingClient.connect(store.address)
        clients.append(other)
        beat = {"clientID": name, "consumerDataSet": [{"groupName": "G"}]}
        await ask(other, RequestCode.HEART_BEAT, {}, msgspec.json.encode(beat))
    for share, expected in ((0, [-1]), (1, [1, 2])):
        mode = {"topic": "T", "consumerGroup": "G", "mode": "POP", "popShareQueueNum": share}
        await ask(client, RequestCode.SET_MESSAGE_REQUEST_MODE, {}, msgspec.json.encode(mode))
        asked = {"topic": "T", "consumerGroup": "G", "clientId": "b", "strategyName": "AVG"}
        answer = await ask(client, RequestCode.QUERY_ASSIGNMENT, {}, msgspec.json.encode(asked))
        found = parse(answer.body)["messageQueueAssignments"]
        assert [item["messageQueue"]["queueId"] for item in found] == expected
        assert {item["mode"] for item in found} == {"POP"}
    for other in clients:
        await other.close()
