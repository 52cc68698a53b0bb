"""Whatever a peer puts into a request, it gets an answer or loses its connection; we go on."""

import random
from pathlib import Path

import msgspec
import pytest

from protocols.errors import Refused
from protocols.remoting import private, sending
from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.private import PrivateCode
from store.app import Store
from store.handlers.table import HANDLERS
from tests.support.store_server import GatewayEnd, running_store

SOUND = {
    **dict.fromkeys(("topic", "b", "originTopic", "defaultTopic", "c"), "T"),
    **dict.fromkeys(("consumerGroup", "group", "groupName", "producerGroup", "a"), "G"),
    **dict.fromkeys(("queueId", "offset", "queueOffset", "commitOffset", "e", "f", "g", "h"), "0"),
    **dict.fromkeys(("pollTime", "suspendTimeoutMillis", "initMode", "topicSysFlag", "flag"), "0"),
    **dict.fromkeys(("maxMsgNums", "readQueueNums", "writeQueueNums", "delayLevel", "d"), "4"),
    **dict.fromkeys(("invisibleTime", "bornTimestamp", "timestamp", "maxReconsumeTimes"), "9"),
    **dict.fromkeys(("subscription", "exp"), "*"),
    "defaultTopicQueueNums": "4",
    "extraInfo": "0 1 2 0 0 broker-a 0 0",
    "sysFlag": "4",
    "perm": "6",
    "clientID": "c",
    "i": "K\x01v\x02",
    "attributes": "+message.type=FIFO",
    "order": "false",
}
"""Fields that all codes together read; a few are spoilt in each request."""

WAIT_S = 0.1
"""Long polls that a spoilt number made longer are not waited for."""

VALUES = (
    *("", "0", "1", "-1", "T", "x" * 300, "9223372036854775808", "-99999999999999999999"),
    *(
        "true",
        "0 1 2 3 0 b 0 0",
        "\x01\x02",
        "A || ",
        "%RETRY%",
        "K\x01v\x02",
        "ü\x00",
        "2147483648",
    ),
)
STRUCTURED: tuple[object, ...] = (
    {},
    [],
    None,
    7,
    {"key": b"x", "group": "g", "name": "n", "reads": [{"tag": -1}]},
    {"key": b"0" * 16, "group": 2**63 - 1, "count": -5, "invisible_ms": -1, "stream": -1},
    {"gateway": "g", "gateway_epoch": -1, "frame": -1, "writes": [{"key": ""}], "version": -1},
    {"group": 1, "stream": 2**40, "credit": -3, "holds": [[-1, -1]]},
    {"name": "n" * 70_000, "reads": [{"tag": 70_000, "topic": "t"}], "start": "never"},
)


def requests(rng: random.Random, code: int) -> list[RemotingCommand]:
    """Some requests of one code that no sane peer sends."""
    found = []
    for _ in range(10):
        spoilt = rng.sample(sorted(SOUND), rng.randrange(4))
        fields = SOUND | {name: rng.choice(VALUES) for name in spoilt}
        value = rng.choice(STRUCTURED)
        body = rng.choice(
            (
                b"",
                rng.randbytes(rng.randrange(100)),
                msgspec.msgpack.encode(value),
                b"{}",
                b'{"a":[{{"b":1}:2}]}',
                b"[" * 2000,
            )
        )
        found.append(RemotingCommand(code, fields, body, is_binary=rng.random() < 0.5))
    return found


@pytest.mark.parametrize("code", sorted(HANDLERS))
async def test_malformed_requests_are_answered(tmp_path: Path, code: int) -> None:
    """No request is an internal error, none stops the store."""
    rng = random.Random(code)
    async with running_store(tmp_path, segment_bytes=1 << 20) as store:
        for _ in range(3):
            await one(store, RemotingCommand(310, dict(SOUND) | {"c": "TBW102"}, b"x"), False)
        for request in requests(rng, code):
            await one(store, request, rng.random() < 0.7)
        end = GatewayEnd("gw-ok")
        await end.connect(store)
        await end.send(b"still there")
        await end.close()


async def one(store: Store, request: RemotingCommand, has_said_hello: bool) -> None:
    end = GatewayEnd("gw-bad")
    if has_said_hello:
        await end.connect(store)
        assert end.client is not None
    else:
        end.client = await RemotingClient.connect(store.address)
    try:
        answer = await end.client.request(request, WAIT_S)
    except Refused:  # the connection was closed, or a long poll goes on
        return
    else:
        assert "internal error" not in answer.remark, request
    finally:
        await end.close()


KEY = b"0" * 16
READ = private.ReadItem(tag=0, key=KEY)


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (PrivateCode.GROUP_OPEN, private.GroupOpen(name="", reads=[READ])),
        (PrivateCode.GROUP_OPEN, private.GroupOpen(name="g", reads=[READ, READ])),
        (PrivateCode.GROUP_OPEN, private.GroupOpen(name="g", reads=[READ], start="never")),
        (PrivateCode.GROUP_OPEN, private.GroupOpen(name="g", reads=[READ], owner_epoch=-1)),
        (PrivateCode.GROUP_OPEN, private.GroupOpen(name="g", reads=[private.ReadItem(tag=0)])),
        (
            PrivateCode.GROUP_OPEN,
            private.GroupOpen(name="g", reads=[private.ReadItem(tag=70_000, key=KEY)]),
        ),
        (
            PrivateCode.GROUP_OPEN,
            private.GroupOpen(name="g", reads=[private.ReadItem(tag=0, key=b"short")]),
        ),
        (PrivateCode.STREAM_OPEN, private.StreamOpen(group=1, stream=-1, credit=1)),
        (PrivateCode.STREAM_OPEN, private.StreamOpen(group=1, stream=1 << 40, credit=1)),
        (PrivateCode.STREAM_OPEN, private.StreamOpen(group=1, stream=1, credit=-1)),
        (PrivateCode.POP, private.Pop(group=1, count=0, invisible_ms=1)),
        (PrivateCode.POP, private.Pop(group=1, count=1, invisible_ms=1 << 62)),
        (PrivateCode.QUEUE_CREATE, private.QueueCreate(key=b"", name="q")),
        (PrivateCode.QUEUE_CREATE, private.QueueCreate(key=KEY, name="n" * 80_000)),
        (PrivateCode.HELLO, private.Hello(gateway="", gateway_epoch=1)),
        (PrivateCode.HELLO, private.Hello(gateway="g", gateway_epoch=-1)),
        (PrivateCode.SETTLE, private.Settle(gateway="g", gateway_epoch=1, frame=-1)),
        (PrivateCode.FENCE, private.Fence(gateway="g", gateway_epoch=0)),
        (PrivateCode.JOIN, private.Join(gateway="", instance="i")),
    ],
)
async def test_numbers_out_of_range_are_refused(
    tmp_path: Path, code: int, body: msgspec.Struct
) -> None:
    """A well-formed body with impossible values is refused with a hint; nothing is changed."""
    async with running_store(tmp_path, segment_bytes=1 << 20) as store:
        end = GatewayEnd("gw-1")
        await end.connect(store)
        answer = await end.do(code, body)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert answer.remark
        await end.close()


async def test_a_record_that_is_none_costs_the_connection(tmp_path: Path) -> None:
    """A SEND with a record shorter than any can be is a fault of the peer."""
    async with running_store(tmp_path, segment_bytes=1 << 20) as store:
        end = GatewayEnd("gw-1")
        await end.connect(store)
        one_set = sending.encode_set(sending.SendSet(1, "t", 0, ()))
        item = sending.ITEM.pack(4, 0, 1, 0, 0, sending.NO_ONCE_KEY)
        body = sending.encode_send(end.epoch, 1, 0, [one_set], [item], [b"nope"])
        with pytest.raises(Refused, match="lost"):
            await end.request(PrivateCode.SEND, body)
        await end.close()
        await end.connect(store)
        assert list((await end.send(b"sound")).offsets) == [0]
        await end.close()
