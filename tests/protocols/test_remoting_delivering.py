"""The body of DELIVER: what goes in comes out, and nonsense is refused."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.errors import PeerError
from protocols.remoting.delivering import (
    HEAD,
    RUN,
    DeliveryItem,
    RunItem,
    decode_deliver,
    encode_deliver,
)
from protocols.rows import ROWS_MIN

records = st.lists(st.tuples(st.integers(0, 2**63), st.binary(max_size=40)), max_size=8)
tags = st.lists(st.integers(0, 0xFFFF), max_size=3).map(tuple)


@settings(deadline=None)  # a loaded machine is slow, not wrong
@given(records, tags, st.integers(0, 2**64 - 1))
def test_encode_decode(
    found: list[tuple[int, bytes]], read_tags: tuple[int, ...], epoch: int
) -> None:
    count = len(found)
    deliveries = [DeliveryItem(1, index, 5, 6, 7, 1, 0, 9, 10, read_tags) for index in range(count)]
    runs = [RunItem(2, 3, 4, 1, 1, 0, count, read_tags)]
    body = decode_deliver(encode_deliver(epoch, found, deliveries, runs))
    assert body.store_epoch == epoch
    assert list(zip(body.positions, body.records, strict=True)) == found
    assert (body.deliveries, body.runs) == (deliveries, runs)
    assert [item.position for item in body.each()[count:]] == [position for position, _ in found]


def test_many_records_of_one_size() -> None:
    """They are not cut apart before somebody asks; one too few bytes is noticed all the same."""
    found = [(7 * number, b"record %04d" % number) for number in range(ROWS_MIN + 3)]
    encoded = encode_deliver(1, found, [], [RunItem(2, 3, 4, 1, 1, 0, len(found), (1,))])
    body = decode_deliver(encoded)
    assert list(zip(body.positions, body.records, strict=True)) == found
    assert [item.record_index for item in body.each()] == [*range(len(found))]
    with pytest.raises(PeerError):
        decode_deliver(encoded[: -RUN.size - 2 - 1])


@settings(deadline=None)  # a loaded machine is slow, not wrong
@given(st.binary(max_size=120))
def test_nonsense_is_refused(data: bytes) -> None:
    with contextlib.suppress(PeerError):
        decode_deliver(data)


@pytest.mark.parametrize(
    "body",
    [
        HEAD.pack(1, 0xFFFFFFFF, 0, 0),
        HEAD.pack(1, 1, 0, 0) + bytes(8),
        HEAD.pack(1, 1, 0, 0) + bytes(8) + (5).to_bytes(4, "big") + b"four",
        encode_deliver(1, [], [DeliveryItem(1, 0, 5, 6, 7, 1, 0, 9, 10, ())]),
        encode_deliver(1, [(1, b"x")], [], [RunItem(2, 3, 4, 1, 1, 0, 2, ())]),
    ],
    ids=["more records than bytes", "no lengths", "cut record", "no record", "run too long"],
)
def test_what_is_not_there_is_not_delivered(body: bytes) -> None:
    with pytest.raises(PeerError):
        decode_deliver(body)
