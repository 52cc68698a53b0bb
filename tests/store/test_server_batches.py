"""Client batches that come together: alike ones as rows, the others as they need, all in order."""

import asyncio
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from protocols.remoting import plain_batches
from protocols.remoting.client import RemotingClient
from protocols.remoting.codes import RequestCode
from protocols.remoting.command import RemotingCommand
from protocols.remoting.records import decode_records, parse_offset_message_id
from tests.support.store_server import ask, connected, running_store

MEMBERS = 250
MIDDLE = 125
PLAIN = "UNIQ_KEY\x01%05d\x02TAGS\x01red\x02"
OTHER_TAG = "UNIQ_KEY\x01%05d\x02TAGS\x01tan\x02"
DELAYED = "UNIQ_KEY\x01%05d\x02DELAY\x0123\x02"
"""Of the same size."""


def fields_of(topic: str, queue_id: int) -> dict[str, str]:
    fields = {"a": "p", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "m": "true"}
    return fields | {"f": "0", "g": "1700000000000", "h": "0"}


def batch(first: int, texts: Sequence[str]) -> bytes:
    """A member for each text; bodies and ids are numbers."""
    packed = b""
    for number, text in enumerate(texts, first):
        body, named = b"%08d" % number, (text % number).encode()
        packed += struct.pack(">IIIiI", 22 + len(body) + len(named), 0, 0, 0, len(body)) + body
        packed += struct.pack(">H", len(named)) + named
    return packed


async def stored(client: RemotingClient, topic: str, queue_id: int) -> list[tuple[str, str, str]]:
    """(body, id, tag) of each message."""
    found: list[tuple[str, str, str]] = []
    while True:
        fields = {"consumerGroup": "G", "topic": topic, "queueId": str(queue_id), "sysFlag": "4"}
        fields |= {"queueOffset": str(len(found)), "maxMsgNums": "32", "commitOffset": "0"}
        fields |= {"suspendTimeoutMillis": "0", "subscription": "*"}
        answer = await ask(client, RequestCode.PULL_MESSAGE, fields)
        if answer.code:
            return found
        for message in decode_records(answer.body):
            assert message.queue_offset == len(found)
            found.append(
                (message.body.decode(), message.message_id, message.properties.get("TAGS", ""))
            )


@pytest.mark.parametrize("sums_from", [0, plain_batches.ROWS_BYTES_MIN])
async def test_batches_of_a_tick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sums_from: int
) -> None:
    """
    Two queues, two topics, batches that differ inside: all of it in order, none of it lost,
    whether CRCs come from tables or a call each.
    """
    monkeypatch.setattr(plain_batches, "ROWS_BYTES_MIN", sums_from)
    async with running_store(tmp_path) as store, connected(store) as client:
        wanted = await send_all(client)
        await check(client, wanted)
    async with running_store(tmp_path) as store, connected(store) as client:
        await check(client, wanted)  # read from the disk, where its CRCs count


async def send_all(client: RemotingClient) -> dict[tuple[str, int], list[int]]:
    """Bodies that were acknowledged, by topic and queue."""
    for topic in ("T", "U"):
        for queue_id in (0, 1):  # the first send is looked at, and the next are not
            await ask(client, 320, fields_of(topic, queue_id), batch(0, [PLAIN]))
    plain, middle = [PLAIN] * MEMBERS, MIDDLE
    mixed = [*plain[:middle], OTHER_TAG, *plain[middle + 1 :]]
    delayed = [*plain[:middle], DELAYED, *plain[middle + 1 :]]
    torn = batch(40_000, plain)[:-1] + b"\x01"
    sends = [
        ("T", 0, batch(1000, plain)),
        ("T", 1, batch(2000, plain)),
        ("T", 0, batch(3000, mixed)),
        ("T", 0, batch(4000, delayed)),
        ("U", 0, batch(5000, plain)),
        ("T", 0, torn),
        ("T", 0, batch(6000, plain)),
        ("U", 1, batch(7000, plain[:3])),
        ("T", 1, batch(8000, plain)),
    ]
    answers = await asyncio.gather(
        *[ask(client, 320, fields_of(topic, queue), body) for topic, queue, body in sends]
    )
    assert [answer.code for answer in answers] == [0, 0, 0, 13, 0, 0, 0, 0, 0]
    wanted: dict[tuple[str, int], list[int]] = {}
    for (topic, queue, body), answer in zip(sends, answers, strict=True):
        if answer.code:
            continue
        numbers = wanted.setdefault((topic, queue), [0])
        assert answer.fields["queueOffset"] == str(len(numbers))
        ids = answer.fields["msgId"].split(",")
        size = len(body) // len(ids)
        numbers += [int(body[at + 20 : at + 28]) for at in range(0, len(body), size)]
        if body is not torn:
            assert await by_id(client, ids[-1]) == b"%08d" % numbers[-1]
    return wanted


async def check(client: RemotingClient, wanted: dict[tuple[str, int], list[int]]) -> None:
    for (topic, queue), numbers in wanted.items():
        found = await stored(client, topic, queue)
        assert [int(body) for body, _, _ in found] == numbers
        assert [int(name) for _, name, _ in found if name.isdigit()] == numbers[: len(found)]
        tags = {int(body) for body, _, tag in found if tag == "tan"}
        assert tags == ({3000 + MIDDLE} if (topic, queue) == ("T", 0) else set())


async def by_id(client: RemotingClient, message_id: str) -> bytes:
    _, position = parse_offset_message_id(message_id)
    fields = {"topic": "T", "offset": str(position)}
    answer: RemotingCommand = await ask(client, RequestCode.VIEW_MESSAGE_BY_ID, fields)
    assert answer.code == 0, answer.remark
    return decode_records(answer.body)[0].body
