"""Batches whose members are alike become the same records as one by one."""

import struct
from random import Random

import pytest

from protocols.remoting import plain_batches
from protocols.remoting.plain_records import PlainRecords
from store.handlers.plain import split_batch

pytest.importorskip("numpy")

FACTS = (0, 1_700_000_000_000, bytes(range(8)), 0)


def member(body: bytes, text: bytes, flag: int = 0, crc: int = 0) -> bytes:
    size = 20 + len(body) + 2 + len(text)
    head = struct.pack(">IIIiI", size, 0, crc, flag, len(body))
    return head + body + struct.pack(">H", len(text)) + text


def one_by_one(topic: str, batch: bytes) -> bytes:
    records = PlainRecords(topic, 3, bytes(8), "c")
    pieces: list[bytes | memoryview] = []
    for body, flag, text in split_batch(batch):
        records.add(pieces, body, text, flag, *FACTS)
    return b"".join(pieces)


def built(topic: str, batch: bytes) -> plain_batches.Built | None:
    return plain_batches.build(PlainRecords(topic, 3, bytes(8), "c"), batch, *FACTS)


@pytest.mark.parametrize("topic", ["t", "t" * 200])
@pytest.mark.parametrize("body_size", [0, 1, 64, 1024])
@pytest.mark.parametrize("shape", [b"UNIQ_KEY\x01%04d\x02WAIT\x01true\x02",
                                   b"TAGS\x01a\x02UNIQ_KEY\x01%04d"])  # fmt: skip
def test_alike_members_become_the_records_that_they_are_alone(
    topic: str, body_size: int, shape: bytes
) -> None:
    chance = Random(body_size)
    members = [
        member(chance.randbytes(body_size), shape % number, flag=7, crc=chance.getrandbits(32))
        for number in range(32)
    ]
    found = built(topic, b"".join(members))
    assert found is not None
    assert (found.record_count, found.body_size) == (32, body_size)
    assert found.size * 32 == len(found.records)
    assert bytes(found.records) == one_by_one(topic, b"".join(members))


TEXT = b"UNIQ_KEY\x01%04d\x02K\x01v\x02"
OTHERS = {
    "a longer body": member(b"abcd", TEXT[:-2] % 9 + b"\x02"),
    "another flag": member(b"abc", TEXT % 9, flag=1),
    "another property": member(b"abc", b"UNIQ_KEY\x010009\x02K\x01w\x02"),
    "a separator in its id": member(b"abc", b"UNIQ_KEY\x01\x02A\x01b\x02K\x01v\x02"),
    "a torn end": member(b"abc", TEXT % 9)[:-1],
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_member_that_differs_is_looked_at(name: str) -> None:
    alike = [member(b"abc", TEXT % number) for number in range(16)]
    assert built("t", b"".join(alike)) is not None
    assert built("t", b"".join([*alike, OTHERS[name]])) is None
    assert built("t", b"".join([*alike[:7], OTHERS[name], *alike[7:]])) is None


@pytest.mark.parametrize(
    "batch",
    [
        b"",
        bytes(20),
        bytes(4096),
        b"\xff" * 4096,
        b"".join([member(b"x", b"DELAY\x013\x02UNIQ_KEY\x011\x02")] * 16),
        b"".join([member(b"x", b"K\x01v\x02")] * 16),
        b"".join([member(b"x", b"")] * 16),
    ],
)
def test_what_is_no_plain_batch_is_looked_at(batch: bytes) -> None:
    assert built("t", batch) is None
