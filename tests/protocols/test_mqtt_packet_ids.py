"""Which packet ids a connection of a session gives, and which are left to earlier ones."""

import msgspec
import pytest

from protocols.mqtt.packet_ids import (
    BLOCK,
    PACKET_ID_MAX,
    SPANS_MAX,
    Block,
    Span,
    block_count,
    next_block,
    with_doubts,
)
from protocols.mqtt.records import SessionRecord, with_ids


@pytest.mark.parametrize(
    ("next_id", "in_doubt", "first", "given_up"),
    [
        (1, [], 1, 0),
        (300, [(290, 299)], 300, 0),
        (PACKET_ID_MAX - 99, [], PACKET_ID_MAX - 99, 0),
        (PACKET_ID_MAX - 98, [], 1, 0),
        (PACKET_ID_MAX - 98, [(7, 7)], 8, 0),
        (1, [(100, 100), (50, 60)], 101, 0),
        (200, [(250, 300), (60_000, 60_001)], 301, 0),
        (5, [(1, 40_000), (40_101, PACKET_ID_MAX)], 40_001, 0),
        (5, [(1, 40_000), (40_100, PACKET_ID_MAX)], 5, 1),
        (1, [(1, 65_000), (900, 901), (1, PACKET_ID_MAX)], 1, 3),
    ],
)
def test_a_block_has_no_id_in_doubt(
    next_id: int, in_doubt: list[Span], first: int, given_up: int
) -> None:
    """The next that is long enough; where there is none the oldest doubts are given up."""
    assert next_block(next_id, 100, in_doubt) == (Block(first, first + 99), in_doubt[given_up:])


def test_a_block_has_room_for_twice_what_may_be_in_flight() -> None:
    assert [block_count(limit) for limit in (1, 1024, 3000, 65_535)] == [
        BLOCK,
        BLOCK,
        6000,
        PACKET_ID_MAX,
    ]
    assert next_block(9, PACKET_ID_MAX, [(9, 9)]) == (Block(1, PACKET_ID_MAX), [])


def test_doubts_are_few_spans_and_the_newest() -> None:
    known = ((5, 9), (40, 41))
    assert with_doubts(known, [900, 800, 40, 41]) == ((5, 9), (40, 41), (800, 900))
    assert with_doubts(known, [7000, 40, 41, 900]) == (
        (5, 9),
        (40, 41),
        (900, 900),
        (7000, 7000),
    )
    assert with_doubts(known, ()) == known
    many = [(n, n) for n in range(1, 65_000, 1000)]
    assert with_doubts(many, [3]) == (*many[len(many) - SPANS_MAX + 1 :], (3, 3))


def test_each_connection_of_a_gateway_that_is_killed_leaves_its_block_to_the_stores() -> None:
    """Fifteen times, then the oldest comes again."""
    record = SessionRecord(
        tenant="", client_id="c", gateway="g", gateway_epoch=1, owner_epoch=1, incarnation=1
    )
    assert with_ids(record, is_told=True, inflight_max=9) is record  # it gives any
    assert record.ids == Block(1, PACKET_ID_MAX)
    kept = msgspec.structs.replace(record, is_kept=True)
    kept = with_ids(kept, is_told=True, inflight_max=9)
    blocks = [kept.ids]
    for _ in range(15):
        kept = with_ids(kept, is_told=False, inflight_max=9)
        blocks.append(kept.ids)
    assert [block.first for block in blocks] == [*range(1, 15 * BLOCK, BLOCK), 1]
    assert kept.in_doubt == tuple([tuple(block) for block in blocks[1:-1]])
    again = with_ids(kept, is_told=True, inflight_max=9)
    assert again == kept
