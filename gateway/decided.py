"""What was decided for one call and head: where its messages go, until when that holds."""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from gateway.clusters.batches import Copy
from gateway.clusters.link import LinkState, StoreLink
from gateway.copies import Place
from gateway.routing import Mirror, Target
from gateway.throttle import Bucket
from protocols.canonical import Call, Head
from protocols.errors import Code, Refused

DECISIONS_MAX: Final = 1 << 17
"""Decisions kept, over all connections (some 2 kB each): one for each of as many clients as
connect by default, and some more. Those of a connection end with it."""

FORGOTTEN_PARTS: Final = 64
"""When full, one of so many parts goes, the oldest: more at a time would hold the loop up."""


class Origin(NamedTuple):
    """The cluster, the topic and the route's target of a decision."""

    cluster: str
    topic: str
    target: Target


class Decision:
    """What was decided for one call and head."""

    __slots__ = (
        "_is_movable",
        "_made",
        "_made_at",
        "_make_copies",
        "_others",
        "_pinned",
        "_places",
        "buckets",
        "is_unwanted",
        "mirrors",
        "origin",
        "refusal",
        "stamp",
        "valid_until_ms",
    )

    def __init__(
        self,
        stamp: int,
        *,
        places: Sequence[Place] = (),
        is_movable: bool = False,
        pinned: Sequence[StoreLink] = (),
        make_copies: Callable[[Place | None], tuple[Copy, ...]] | None = None,
        refusal: Refused | None = None,
        buckets: tuple[Bucket, ...] = (),
        mirrors: tuple[Mirror, ...] = (),
        valid_until_ms: int = 0,
        origin: "Origin | None" = None,
    ) -> None:
        self.stamp = stamp
        self.refusal = refusal
        """All messages of the head are refused so."""

        self.buckets = buckets
        self.mirrors = mirrors
        """Shares of the messages that other clusters get too."""

        self.valid_until_ms = valid_until_ms
        """Wall time after which it must be made anew; 0: holds as long as the stamp."""

        self.origin = origin
        """What was chosen, if nothing but rules and the topic had a say in it."""

        self.is_unwanted = refusal is None and not places and not pinned
        """No topic keeps it and no queue wants it: nothing is stored, nothing fails."""

        self._places = places
        self._is_movable = is_movable
        self._pinned = pinned
        self._make_copies = make_copies
        self._made: tuple[Copy, ...] = ()
        self._made_at = -1
        """Index of the place that ``_made`` is for."""

        self._others: dict[int, tuple[Copy, ...]] | None = None
        """For other places: most publishers keep to one, and decisions are many."""

    def like(self, make_copies: Callable[[Place | None], tuple[Copy, ...]]) -> "Decision":
        """The same message queues, buckets and mirrors; other light queues."""
        return Decision(
            self.stamp,
            places=self._places,
            is_movable=self._is_movable,
            make_copies=make_copies,
            buckets=self.buckets,
            mirrors=self.mirrors,
            valid_until_ms=self.valid_until_ms,
        )

    def holds_until(self, until_ms: int) -> None:
        """No longer than that; 0: no bound of its own."""
        if until_ms and not 0 < self.valid_until_ms < until_ms:
            self.valid_until_ms = until_ms

    def is_over(self, now_ms: int) -> bool:
        return 0 < self.valid_until_ms <= now_ms

    @property
    def is_pinned_away(self) -> bool:
        """A queue that wants it is at a store that is away."""
        return any([link.state is LinkState.DOWN for link in self._pinned])

    @property
    def is_away(self) -> bool:
        """Every store that could take it is away, or one that has to."""
        places = self._places
        is_nowhere = bool(places) and all([link.state is LinkState.DOWN for link, _ in places])
        return is_nowhere or self.is_pinned_away

    def copies(self, turn: int) -> tuple[Copy, ...]:
        """The records to store for each message, at this turn. Raises Refused."""
        for link in self._pinned:
            if link.state is LinkState.DOWN:
                raise away(link.broker)
        index = self._choose(turn) if self._places else 0
        if index != self._made_at:
            self._turn_to(index)
        return self._made

    def _turn_to(self, index: int) -> None:
        """The place at *index* comes next."""
        others = self._others
        made = others.get(index) if others is not None else None
        if made is None:
            assert self._make_copies is not None
            made = self._make_copies(self._places[index] if self._places else None)
        if self._made_at >= 0:
            if others is None:
                others = self._others = {}
            others[self._made_at] = self._made
        self._made_at, self._made = index, made

    def _choose(self, turn: int) -> int:
        places = self._places
        index = turn % len(places)
        if places[index][0].state is LinkState.UP:
            return index
        if self._is_movable:
            for state in (LinkState.UP, LinkState.LOST):
                for step in range(len(places)):
                    other = (index + step) % len(places)
                    if places[other][0].state is state:
                        return other
        if places[index][0].state is LinkState.DOWN:
            raise away(places[index][0].broker)
        return index


def away(store: str) -> Refused:
    """The refusal that says so."""
    return Refused(Code.HA_NOT_AVAILABLE, store, f"store {store} is away")


class Decisions:
    """What was decided for each connection, by head."""

    __slots__ = ("_by_call", "_count", "_most")

    def __init__(self, most: int = DECISIONS_MAX) -> None:
        self._most = most
        self._count = 0
        self._by_call: dict[Call, dict[Head, Decision]] = {}

    def __len__(self) -> int:
        return self._count

    def find(self, call: Call, head: Head) -> Decision | None:
        known = self._by_call.get(call)
        return None if known is None else known.get(head)

    def keep(self, call: Call, head: Head, decision: Decision) -> None:
        """If there are too many, the oldest of the longest known connections make room."""
        known = self._by_call.get(call)
        if known is None or head not in known:
            if self._count >= self._most:
                self._make_room()
            known = self._by_call.setdefault(call, {})
            self._count += 1
        known[head] = decision

    def _make_room(self) -> None:
        left = max(1, self._most // FORGOTTEN_PARTS)
        while left and self._by_call:
            call, known = next(iter(self._by_call.items()))
            going = list(islice(known, left))
            for head in going:
                del known[head]
            if not known:
                del self._by_call[call]
            left -= len(going)
            self._count -= len(going)

    def forget(self, call: Call) -> None:
        """The connection has ended."""
        self._count -= len(self._by_call.pop(call, ()))
