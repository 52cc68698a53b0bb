"""
Packet ids of publishes to the client: which of them a connection of a session may give.

Each store keeps the ids of what it has in flight. One that is away when another connection takes
the session up cannot tell them, and the client takes a new publish under the id of an old one for
the same (QoS 2) or answers for both. So a connection keeps to a block of ids that no earlier one
may have left in use, and the session's record tells which blocks those are, though its gateway was
killed.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

PACKET_ID_MAX: Final = 65_535

BLOCK: Final = 4096
"""Ids of one connection. Of those that may be in use anywhere, fifteen blocks fit."""

SPANS_MAX: Final = 32
"""Spans of ids in doubt that a record keeps: the newest."""

Span = tuple[int, int]
"""First and last."""


class Block(NamedTuple):
    """The ids that a connection gives: round and round, without those in use."""

    first: int = 1
    last: int = PACKET_ID_MAX

    def __contains__(self, packet_id: object) -> bool:
        return isinstance(packet_id, int) and self.first <= packet_id <= self.last


ALL: Final = Block()
"""Of a session that ends with its connection."""


def block_count(inflight_max: int) -> int:
    """How many ids a connection needs that may have so many in flight."""
    return min(PACKET_ID_MAX, max(BLOCK, 2 * inflight_max))


def next_block(next_id: int, count: int, in_doubt: Iterable[Span]) -> tuple[Block, list[Span]]:
    """
    The first *count* ids from *next_id* on that are not in doubt, and what stays in doubt.

    Where there are not so many, the oldest doubts are given up.
    """
    doubts = list(in_doubt)
    while (first := _first_free(next_id, count, doubts)) == 0:
        del doubts[0]
    return Block(first, first + count - 1), doubts


def _first_free(next_id: int, count: int, doubts: list[Span]) -> int:
    """Where so many ids are free, going round from *next_id*; 0: nowhere."""
    starts = sorted({1, next_id, *[last + 1 for _, last in doubts]})
    for first in sorted(starts, key=lambda start: start < next_id):
        last = first + count - 1
        if last <= PACKET_ID_MAX and not any([a <= last and first <= b for a, b in doubts]):
            return first
    return 0


def with_doubts(in_doubt: Iterable[Span], packet_ids: Iterable[int]) -> tuple[Span, ...]:
    """*in_doubt*, and these as the newest."""
    spans = spans_of(packet_ids)
    known = [span for span in in_doubt if span not in spans]
    return tuple((known + spans)[-SPANS_MAX:])


def spans_of(packet_ids: Iterable[int]) -> list[Span]:
    """Few spans that these are in; near ones are one."""
    spans: list[Span] = []
    for packet_id in sorted(packet_ids):
        if spans and packet_id - spans[-1][1] <= BLOCK // SPANS_MAX:
            spans[-1] = spans[-1][0], packet_id
        else:
            spans.append((packet_id, packet_id))
    return spans
