"""
What a client holds, once more: it repeats a receive whose answer was lost, or its gateway has gone.

Attempt ids are kept in memory only: after a restart what was granted comes back when its time is
over, as it would without. (Apache: ``attemptId`` of ordered pops, ``ConsumerOrderInfoManager``.)
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
        left = [at for at in batch.positions if group.in_flight.get(at) is batch] if batch else []
        if batch and left:
            self._batches[key], again = self._deliveries.grant_anew(
                group, left, batch.taker, now, invisible_ms
            )
            return again
        granted = take_more()
        if granted and granted[0].position in group.in_flight:
            self._batches[key] = group.in_flight[granted[0].position]
            if len(self._batches) > ATTEMPTS_MAX:
                self._batches.popitem(last=False)
        return granted

    def adopt(
        self, group: Group, taker: str, above: int, count: int, now: Now, invisible_ms: int
    ) -> Sequence[Granted]:
        """Up to *count* of what *taker* holds beyond the position *above*."""
        held = sorted(
            at for at, batch in group.in_flight.items() if batch.taker == taker and at > above
        )
        if not held:
            return []
        return self._deliveries.grant_anew(group, held[:count], taker, now, invisible_ms)[1]
