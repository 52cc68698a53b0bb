"""
Requests that cannot be served, at our store and (``COMPARE=1``) at Apache's broker.

Each is answered with RocketMQ's own code and a remark that helps, and the connection lives on.
"""

import os
from pathlib import Path
from typing import NamedTuple

import pytest

from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from tests.support.apache_rocketmq import ApacheCluster
from tests.support.patience import PATIENCE_S
from tests.support.store_server import running_store

READ_ONLY, WRITE_ONLY = "bad_read_only", "bad_write_only"


class Bad(NamedTuple):
    """One request."""

    what: str
    code: int
    fields: dict[str, str]
    answer: int
    body: bytes = b""
    apache: int = -1
    """What Apache's broker answers, where we differ on purpose; the reason is beside it."""


def send(topic: str, **more: str) -> dict[str, str]:
    fields = {"a": "p", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0"}
    return fields | {"g": "1700000000000", "h": "0", "i": "", "j": "0", "k": "false"} | more


def pull(topic: str, **more: str) -> dict[str, str]:
    fields = {"consumerGroup": "bad_group", "topic": topic, "queueId": "0", "queueOffset": "0"}
    fields |= {"maxMsgNums": "32", "sysFlag": "0", "commitOffset": "0", "subVersion": "0"}
    return fields | {"suspendTimeoutMillis": "0"} | more


def pop(topic: str, **more: str) -> dict[str, str]:
    fields = {"consumerGroup": "bad_group", "topic": topic, "queueId": "-1", "maxMsgNums": "1"}
    fields |= {"invisibleTime": "60000", "pollTime": "0", "bornTime": "0", "initMode": "0"}
    return fields | {"order": "false"} | more


def topic(name: str, **more: str) -> dict[str, str]:
    fields = {"topic": name, "defaultTopic": "TBW102", "perm": "6", "topicSysFlag": "0"}
    fields |= {"readQueueNums": "1", "writeQueueNums": "1", "order": "false"}
    return fields | {"topicFilterType": "SINGLE_TAG"} | more


HANDLE = {"consumerGroup": "bad_group", "topic": "bad", "queueId": "0", "offset": "0"}
C, R = RequestCode, ResponseCode
NONE = {"consumerGroup": "bad_none", "topic": "bad_none"}
SEND, PULL, POP, ACK = C.SEND_MESSAGE_V2, C.PULL_MESSAGE, C.POP_MESSAGE, C.ACK_MESSAGE
BAD = (
    Bad("unknown code", 9999, {}, R.REQUEST_CODE_NOT_SUPPORTED),
    Bad("no topic", SEND, {"a": "p"}, R.SYSTEM_ERROR, b"x"),
    Bad("queue id", SEND, send("bad", e="x"), R.SYSTEM_ERROR, b"x"),
    Bad("illegal topic", SEND, send("a b"), R.INVALID_PARAMETER, b"x"),
    Bad("long topic", SEND, send("t" * 128), R.INVALID_PARAMETER, b"x"),
    Bad("unknown topic", SEND, send("bad_none", c="none"), R.TOPIC_NOT_EXIST, b"x"),
    Bad("system topic", SEND, send("SCHEDULE_TOPIC_XXXX"), R.NO_PERMISSION, b"x"),
    Bad("no such queue", SEND, send("bad", e="99"), R.INVALID_PARAMETER, b"x"),
    Bad("large body", SEND, send("bad"), R.MESSAGE_ILLEGAL, bytes(4 * 1024 * 1024 + 1)),
    Bad(
        "long properties", SEND, send("bad", i=f"k\x01{'v' * 33_000}\x02"), R.MESSAGE_ILLEGAL, b"x"
    ),
    # Apache's master looks at its own permission only
    Bad("not writable", SEND, send(READ_ONLY), R.NO_PERMISSION, b"x", apache=0),
    Bad("pull: unknown topic", PULL, pull("bad_none"), R.TOPIC_NOT_EXIST),
    Bad("pull: no such queue", PULL, pull("bad", queueId="99"), R.INVALID_PARAMETER),
    Bad("pull: not readable", PULL, pull(WRITE_ONLY), R.NO_PERMISSION),
    Bad("pop: unknown topic", POP, pop("bad_none"), R.TOPIC_NOT_EXIST),
    Bad("pop: not readable", POP, pop(WRITE_ONLY), R.NO_PERMISSION),
    Bad("pop: count", POP, pop("bad", maxMsgNums="99"), R.INVALID_PARAMETER),
    Bad("pop: queue", POP, pop("bad", queueId="99"), R.INVALID_PARAMETER),
    # there an exception
    Bad("no handle", ACK, {**HANDLE, "extraInfo": "x"}, R.INVALID_PARAMETER, apache=R.SYSTEM_ERROR),
    Bad("ack: none", ACK, HANDLE, R.SYSTEM_ERROR),
    Bad("topic name", C.UPDATE_AND_CREATE_TOPIC, topic("a b"), R.INVALID_PARAMETER),
    Bad("system's name", C.UPDATE_AND_CREATE_TOPIC, topic("TBW102"), R.INVALID_PARAMETER),
    Bad("delete", C.DELETE_TOPIC_IN_BROKER, {"topic": "TBW102"}, R.INVALID_PARAMETER),
    Bad("stats", C.GET_TOPIC_STATS_INFO, NONE, R.TOPIC_NOT_EXIST),
    Bad("config", C.GET_TOPIC_CONFIG, {**NONE, "lo": "true"}, R.TOPIC_NOT_EXIST),
    Bad("members", C.GET_CONSUMER_LIST_BY_GROUP, NONE, R.SYSTEM_ERROR),
    Bad("connections", C.GET_CONSUMER_CONNECTION_LIST, NONE, R.CONSUMER_NOT_ONLINE),
    Bad("committed", C.QUERY_CONSUMER_OFFSET, {**NONE, "queueId": "0"}, R.QUERY_NOT_FOUND),
    Bad("lock", C.LOCK_BATCH_MQ, {}, R.SYSTEM_ERROR, b"no json"),
    Bad("heartbeat", C.HEART_BEAT, {}, R.SYSTEM_ERROR, b"no json"),
    Bad("recall", C.RECALL_MESSAGE, {"topic": "bad", "recallHandle": "x"}, R.ILLEGAL_OPERATION),
    Bad("view", C.VIEW_MESSAGE_BY_ID, {"offset": "999999999"}, R.SYSTEM_ERROR),
    Bad("hot key", C.UPDATE_BROKER_CONFIG, {}, R.NO_PERMISSION, b"brokerConfigPath=/x"),
)


async def ask(client: RemotingClient, bad: Bad) -> RemotingCommand:
    return await client.request(RemotingCommand(bad.code, dict(bad.fields), bad.body), PATIENCE_S)


async def prepare(client: RemotingClient) -> None:
    for name, perm in (("bad", "6"), (READ_ONLY, "4"), (WRITE_ONLY, "2")):
        made = Bad("", C.UPDATE_AND_CREATE_TOPIC, topic(name, perm=perm), 0)
        assert (await ask(client, made)).code == ResponseCode.SUCCESS


async def wrong_answers(address: str, *, is_apache: bool) -> list[str]:
    """All requests over one connection; those that are answered otherwise than the table has it."""
    client = await RemotingClient.connect(address)
    await prepare(client)
    wrong: list[str] = []
    for bad in BAD:
        answer = await ask(client, bad)
        wanted = bad.apache if is_apache and bad.apache >= 0 else bad.answer
        if answer.code != wanted or (wanted and len(answer.remark or "") < 8):
            wrong.append(f"{bad.what}: {answer.code} {answer.remark!r}, not {int(wanted)}")
    await client.close()
    return wrong


async def test_each_is_answered_in_rocketmqs_words(tmp_path: Path) -> None:
    async with running_store(tmp_path) as store:
        assert await wrong_answers(store.address, is_apache=False) == []


@pytest.mark.java
@pytest.mark.timeout(300)
@pytest.mark.skipif(not os.environ.get("COMPARE"), reason="COMPARE=1 asks Apache's broker")
async def test_apaches_broker_answers_the_same(tmp_path: Path) -> None:
    settings = "recallMessageEnable=true\n"
    with ApacheCluster(tmp_path, flush="ASYNC_FLUSH", extra=settings) as cluster:
        assert await wrong_answers(cluster.broker, is_apache=True) == []
