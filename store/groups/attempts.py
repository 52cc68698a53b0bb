"""
Receives that a client repeats because their answer was lost: the same id gets the same again.

Kept in memory only: after a restart what was granted comes back when its time is over, as it
would without. (Apache: ``attemptId`` of ordered pops, ``ConsumerOrderInfoManager``.)
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from protocols.clock import Now
from store.answers import Granted
from store.groups.deliveries import Deliveries
from store.groups.group import GrantBatch, Group

ATTEMPTS_MAX: Final = 10_000
"""Ids remembered; beyond, the one unused for longest is forgotten."""


class Attempts:
    """(group, attempt id) → what it was granted."""

    def __init__(self, deliveries: Deliveries) -> None:
        self._deliveries = deliveries
        self._batches: OrderedDict[tuple[int, str], GrantBatch] = OrderedDict()

    def take(
        self,
        group: Group,
        attempt_id: str,
        now: Now,
        invisible_ms: int,
        take_more: Callable[[], Sequence[Granted]],
    ) -> Sequence[Granted]:
        """What this id holds already, or else what *take_more* finds."""
        key = (group.number, attempt_id)
        batch = self._batches.pop(key, None)
        again = batch and self._deliveries.regrant(group, batch, now, invisible_ms)
        if again:
            self._batches[key] = again[0]
            return again[1]
        granted = take_more()
        if granted and granted[0].position in group.in_flight:
            self._batches[key] = group.in_flight[granted[0].position]
            if len(self._batches) > ATTEMPTS_MAX:
                self._batches.popitem(last=False)
        return granted
