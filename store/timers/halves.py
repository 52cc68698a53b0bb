"""
Half messages: prepared by a producer, invisible until it commits.

A producer that says nothing is asked (*checked*) after a time, again and again; after the last
check the message goes to the topic of those whose end nobody knew.

Source: Apache RocketMQ 5, ``TransactionalMessageServiceImpl``.
"""

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any


@dataclass(slots=True)
class Half:
    """One open transaction."""

    position: int
    """Log position of its message, which is what its producer names it by."""

    group: str
    due_ms: int
    """Wall time of the next check."""

    check_count: int = 0


class HalfTable:
    """Open half messages by position."""

    def __init__(self) -> None:
        self._halves: dict[int, Half] = {}
        self._order: list[tuple[int, int]] = []
        """(due, position) heap; rows of ended or postponed ones are skipped."""

    def __len__(self) -> int:
        return len(self._halves)

    def get(self, position: int) -> Half | None:
        return self._halves.get(position)

    def add(self, half: Half) -> None:
        self._halves[half.position] = half
        heappush(self._order, (half.due_ms, half.position))
        if len(self._order) > 2 * len(self._halves) + 1024:
            self._order = [(one.due_ms, at) for at, one in self._halves.items()]
            heapify(self._order)

    def postpone(self, position: int, check_count: int, due_ms: int) -> None:
        """It was checked; the next check comes at *due_ms*."""
        half = self._halves.get(position)
        if half is not None:
            half.check_count, half.due_ms = check_count, due_ms
            self.add(half)

    def end(self, position: int) -> None:
        self._halves.pop(position, None)

    def pop_due(self, wall_ms: int) -> Half | None:
        """One whose check is due; ``postpone`` or ``end`` it."""
        while self._order and self._order[0][0] <= wall_ms:
            due_ms, position = heappop(self._order)
            half = self._halves.get(position)
            if half is not None and half.due_ms == due_ms:
                return half
        return None

    def next_ms(self) -> int | None:
        return self._order[0][0] if self._order else None

    def positions(self) -> list[int]:
        return list(self._halves)

    def dump(self) -> list[Any]:
        return [(h.position, h.group, h.due_ms, h.check_count) for h in self._halves.values()]

    def load(self, rows: list[Any]) -> None:
        for row in rows:
            self.add(Half(*row))
