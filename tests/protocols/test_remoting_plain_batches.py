"""Batches whose members are alike become the same records as one by one."""

import struct
from random import Random

import pytest

from protocols.remoting import plain_batches
from protocols.remoting.plain_batches import Batch, Rows, Shapes
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


def built(topic: str, *bodies: bytes) -> bytes | list[bool]:
    """The records of batches of one shape; or whose members are alike and plain."""
    records = PlainRecords(topic, 3, bytes(8), "c")
    shapes, made = Shapes(), list[Rows]()
    counts: list[int] = []
    for body in bodies:
        shape = shapes.find(records, body)
        if shape is None:
            counts.append(0)
            continue
        if not made or made[0].shape is not shape:
            made = [Rows(shape)]
        counts.append(made[0].add(Batch(records, body, *FACTS)))
    if not all(counts):
        return [count > 0 for count in counts]
    return bytes(made[0].build().records)


def test_batches_with_keys_of_their_own_leave_nothing_behind() -> None:
    """Their members differ; no shape is made of the first one."""
    records, shapes = PlainRecords("t", 3, bytes(8), "c"), Shapes()
    text = b"KEYS\x01%04d\x02UNIQ_KEY\x01%04d\x02"
    for first in range(0, 64, 16):
        keys = range(first, first + 16)
        batch = b"".join([member(b"abc", text % (key, key)) for key in keys])
        assert shapes.find(records, batch) is None
    assert not shapes.known


def test_two_clients_in_turn_keep_their_shapes() -> None:
    """Batches of the same sizes whose texts differ."""
    records, shapes = PlainRecords("t", 3, bytes(8), "c"), Shapes()
    batches = [
        b"".join(
            [
                member(b"abc", b"TAGS\x01%c\x02UNIQ_KEY\x01%04d\x02" % (tag, key))
                for key in range(16)
            ]
        )
        for tag in b"xyxy"
    ]
    found = [shapes.find(records, batch) for batch in batches]
    assert found[0] is found[2] is not None
    assert found[1] is found[3] is not None
    assert found[0] is not found[1]


@pytest.mark.parametrize("topic", ["t", "t" * 200])
@pytest.mark.parametrize("body_size", [0, 1, 64, 1024, 5000])
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
    batches = b"".join(members[:12]), b"".join(members[12:])
    assert built(topic, *batches) == one_by_one(topic, b"".join(members))


TEXT = b"UNIQ_KEY\x01%04d\x02K\x01v\x02"
OTHERS = {
    "a longer body": member(b"abcd", TEXT[:-2] % 9 + b"\x02"),
    "another flag": member(b"abc", TEXT % 9, flag=1),
    "another property": member(b"abc", b"UNIQ_KEY\x010009\x02K\x01w\x02"),
    "a separator in its id": member(b"abc", b"UNIQ_KEY\x01\x02A\x01b\x02K\x01v\x02"),
    "a torn end": member(b"abc", TEXT % 9)[:-1],
}


@pytest.mark.parametrize("piece_bytes", [300, plain_batches.PIECE_BYTES])
@pytest.mark.parametrize("name", OTHERS)
def test_a_member_that_differs_is_found(
    name: str, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it stands; the batches around it are not affected."""
    monkeypatch.setattr(plain_batches, "PIECE_BYTES", piece_bytes)
    alike = b"".join([member(b"abc", TEXT % number) for number in range(16)])
    mixed = alike[: len(alike) // 2] + OTHERS[name] + alike[len(alike) // 2 :]
    if len(OTHERS[name]) != len(alike) // 16:
        records = PlainRecords("t", 3, bytes(8), "c")
        assert Shapes().find(records, mixed) is None
        assert Shapes().find(records, alike + OTHERS[name]) is None
        return
    assert built("t", alike, mixed, alike) == [True, False, True]
    assert built("t", alike, alike, alike + OTHERS[name]) == [True, True, False]
    assert built("t", alike, alike) == one_by_one("t", alike + alike)


def test_batches_of_several_queues_and_topics() -> None:
    """Their records differ in what stands before the body, and behind it."""
    batch = b"".join([member(b"abc", TEXT % number) for number in range(16)])
    shapes = Shapes()
    made = [PlainRecords(topic, queue, bytes(8), "c") for topic in ("t", "u") for queue in (0, 1)]
    rows: Rows | None = None
    wanted: list[bytes | memoryview] = []
    for number, records in enumerate(made):
        shape = shapes.find(records, batch)
        assert shape is not None
        rows = rows or Rows(shape)
        assert rows.shape is shape
        assert rows.add(Batch(records, batch, 0, number, bytes(8), 0)) == 16
        for body, flag, text in split_batch(batch):
            records.add(wanted, body, text, flag, 0, number, bytes(8), 0)
    other = shapes.find(PlainRecords("longer", 0, bytes(8), "c"), batch)
    assert rows is not None
    assert other is not None
    assert other is not rows.shape
    assert bytes(rows.build().records) == b"".join(wanted)


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
        b"".join([member(bytes(plain_batches.PIECE_BYTES), TEXT % 1)] * 8),
    ],
)
def test_what_is_no_plain_batch_is_looked_at(batch: bytes) -> None:
    assert built("t", batch) == [False]
