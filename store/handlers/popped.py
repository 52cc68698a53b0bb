"""
What the standard pop family has handed out, by the identity its handles carry.

A RocketMQ pop handle names queue, offset and pop time; the engine's deliveries are named by
entry position and grant. This table leads from one to the other. It lives as long as this run:
after a restart the handles are void, and their deliveries return when their time is up.
"""

from typing import Final, NamedTuple

POPPED_MAX: Final = 1_000_000
"""Handles remembered; beyond it the oldest are forgotten and their acks do nothing."""


class Popped(NamedTuple):
    """One delivery of the standard pop family."""

    popped_ms: int
    grant: int


class PoppedTable:
    """(group number, entry position) → the delivery that counts."""

    def __init__(self) -> None:
        self._items: dict[tuple[int, int], Popped] = {}

    def __len__(self) -> int:
        return len(self._items)

    def put(self, group: int, position: int, popped_ms: int, grant: int) -> None:
        """A delivery was made; an earlier one of this entry counts no more."""
        key = (group, position)
        self._items.pop(key, None)
        self._items[key] = Popped(popped_ms, grant)
        while len(self._items) > POPPED_MAX:
            del self._items[next(iter(self._items))]

    def grant_of(self, group: int, position: int, popped_ms: int) -> int:
        """The grant behind a handle; 0: the handle is stale or unknown."""
        item = self._items.get((group, position))
        return item.grant if item is not None and item.popped_ms == popped_ms else 0

    def forget(self, group: int, position: int) -> None:
        self._items.pop((group, position), None)
