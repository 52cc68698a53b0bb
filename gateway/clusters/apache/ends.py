"""
Transactions that were ended lately at Apache brokers.

Such a broker asks how one ended while its end is being written. It has put a copy of the half
message behind the others then, and the answer would commit that too: consumers would get the
message twice. The copy of a transaction that has ended is rolled back. Source: Apache RocketMQ
5.4, ``TransactionalMessageServiceImpl.check`` (``putBackHalfMsgQueue``).
"""

from dataclasses import dataclass
from typing import Final

from protocols import clock
from protocols.rocketmq import HalfPlace

ENDS_S: Final = 300.0
"""Ten of an Apache broker's looks at its open transactions (``transactionCheckInterval``)."""

ENDS_MAX: Final = 10_000

_Key = tuple[str, str, str]


@dataclass(slots=True, kw_only=True)
class End:
    """One end, of the half message at *position*."""

    position: int
    until: float
    is_first: bool = True
    """Nobody has begun it before."""

    is_done: bool = False

    def has_left_a_copy(self, place: HalfPlace) -> bool:
        """
        Whether what lies at *place* is a copy. While the end is under way nobody knows: the
        broker asks about it again.
        """
        return self.is_done and place.position != self.position


class Ends:
    """By the id of the half message, or where none is known by its place."""

    def __init__(self) -> None:
        self._ends: dict[_Key, End] = {}

    def begin(self, place: HalfPlace) -> End:
        """The end of this transaction that was begun lately; else a first one begins here."""
        now = clock.monotonic()
        known = self._ends.get(_key(place))
        if known is not None and known.until > now:
            known.is_first = False
            return known
        self._make_room(now)
        end = self._ends[_key(place)] = End(position=place.position, until=now + ENDS_S)
        return end

    def forget(self, place: HalfPlace) -> None:
        """Its end was refused, or not answered."""
        self._ends.pop(_key(place), None)

    def _make_room(self, now: float) -> None:
        while self._ends:
            key, oldest = next(iter(self._ends.items()))
            if oldest.until > now and len(self._ends) < ENDS_MAX:
                return
            del self._ends[key]


def _key(place: HalfPlace) -> _Key:
    return place.cluster, place.broker, place.message_id or str(place.position)
