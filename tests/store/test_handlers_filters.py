"""Tag and SQL92 filters at a real store: pull, pop, long polls, refusals."""

import asyncio

import msgspec
import pytest

from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import RequestCode, ResponseCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.records import decode_records
from store.app import Store
from store.groups.selection import LOOKED_MAX
from tests.support.store_server import WAIT_S, ask, connected


async def send(client: RemotingClient, body: bytes, properties: str = "", topic: str = "T") -> None:
    fields = {"a": "p", "b": topic, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0"}
    answer = await ask(client, RequestCode.SEND_MESSAGE_V2, fields | {"i": properties}, body)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


async def send_numbers(client: RemotingClient, count: int) -> None:
    for number in range(count):
        await send(client, b"%d" % number, f"n\x01{number}\x02")


async def pull(client: RemotingClient, offset: int, expression: str, kind: str) -> RemotingCommand:
    fields = {
        **{"consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": str(offset)},
        **{"maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0"},
        **{"subscription": expression, "expressionType": kind},
    }
    return await ask(client, RequestCode.PULL_MESSAGE, fields)


async def pop(client: RemotingClient, expression: str, poll_ms: int = 0) -> RemotingCommand:
    fields = {
        **{"consumerGroup": "G", "topic": "T", "queueId": "-1", "maxMsgNums": "32"},
        **{"invisibleTime": "60000", "pollTime": str(poll_ms), "bornTime": "0", "initMode": "0"},
        **{"expType": "SQL92", "exp": expression},
    }
    return await ask(client, RequestCode.POP_MESSAGE, fields)


def bodies_of(answer: RemotingCommand) -> list[bytes]:
    return [message.body for message in decode_records(answer.body)]


async def test_pull_by_sql(client: RemotingClient) -> None:
    """Only messages that the expression matches; the offset goes past the others."""
    await send_numbers(client, 6)
    answer = await pull(client, 0, "n BETWEEN 2 AND 3", "SQL92")
    assert bodies_of(answer) == [b"2", b"3"]
    assert answer.fields["nextBeginOffset"] == "6"
    answer = await pull(client, 0, "n > 100", "SQL92")
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY


async def test_pop_by_sql(client: RemotingClient) -> None:
    """Messages that do not match are done for the group."""
    await send_numbers(client, 6)
    assert bodies_of(await pop(client, "n IN ('1', '5')")) == [b"1", b"5"]
    assert (await pop(client, "n >= 0")).code == ResponseCode.POLLING_TIMEOUT


async def test_a_waiting_pop_gets_the_first_match(store: Store, client: RemotingClient) -> None:
    """A message that does not match does not end the wait; the next that does is popped."""
    await send(client, b"seed")
    await pop(client, "n = 0")
    async with connected(store) as other:
        waiting = asyncio.ensure_future(pop(other, "n = 2", poll_ms=4000))
        await send_numbers(client, 3)
        assert bodies_of(await waiting) == [b"2"]


async def test_a_long_backlog_is_filtered_in_turns(client: RemotingClient) -> None:
    """One turn looks at so many entries; the pop goes on by itself until it finds one."""
    for start in range(0, LOOKED_MAX + 500, 500):
        await send_batch(client, [f"{start + number}" for number in range(500)])
    wanted = str(LOOKED_MAX + 100)
    answer = await pop(client, f"n = {wanted}", poll_ms=int(WAIT_S * 1000))
    assert bodies_of(answer) == [wanted.encode()]


async def send_batch(client: RemotingClient, names: list[str]) -> None:
    """A client batch (320): each body its own property n."""
    body = b""
    for name in names:
        text = f"n\x01{name}\x02".encode()
        size = 20 + len(name) + 2 + len(text)
        body += b"".join([number.to_bytes(4, "big") for number in (size, 0, 0, 0, len(name))])
        body += name.encode() + len(text).to_bytes(2, "big") + text
    fields = {"a": "p", "b": "T", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0"}
    answer = await ask(client, RequestCode.SEND_BATCH_MESSAGE, fields | {"m": "true"}, body)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


@pytest.mark.parametrize(("kind", "expression"), [("SQL92", "n >"), ("TAG", "a ||"), ("JS", "1")])
async def test_what_is_no_filter_is_refused(
    client: RemotingClient, kind: str, expression: str
) -> None:
    """Pull, pop and the check of a starting consumer (46) say SUBSCRIPTION_PARSE_FAILED."""
    await send(client, b"x")
    answer = await pull(client, 0, expression, kind)
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    told = {"topic": "T", "subString": expression, "expressionType": kind}
    body = msgspec.json.encode({"clientId": "c", "group": "G", "subscriptionData": told})
    answer = await ask(client, RequestCode.CHECK_CLIENT_CONFIG, {}, body)
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert answer.remark
