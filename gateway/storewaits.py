"""
Publishes that wait for a store that is away, for a while, before they are refused.

A refusal ends an MQTT connection, and its client comes again at once with the same publish: a store
that is started anew would cost each of its publishers a connection, and one that stays away would
be asked for as often as clients can connect. So who could only go there waits here; the others of
the same call wait behind, and a client that sends on is not read. What is in flight to a store
when it is lost waits at its link, as long.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from gateway.backpressure import BackPressure
from gateway.clusters.batches import Batch, Run
from gateway.clusters.client import ClusterClient
from gateway.clusters.link import LinkState, StoreLink
from gateway.clusters.tidegate import LOST_S_MAX
from gateway.config import LimitsConfig
from gateway.decided import Decision
from gateway.decisions import Decider
from protocols import clock
from protocols.canonical import INTERNAL, Call, Head
from protocols.errors import Code

CALLER_WAIT_S_MAX: Final = {"grpc": 2.0, "remoting": 2.0}
"""RocketMQ's clients give a send 3 s, then try again themselves (``sendMsgTimeout``)."""

CALL_BYTES_MAX: Final = 64 << 10
"""Until so much of one call waits its client is read on: it may ping, or answer deliveries."""

MESSAGE_BYTES: Final = 512
"""What a message takes beside its body, roughly."""

SWEEP_S: Final = 0.25
"""How often those are looked for that have waited long enough."""


class _Waiting:
    """What waits of one call."""

    __slots__ = ("bytes", "is_held", "parked", "runs")

    def __init__(self) -> None:
        self.parked: dict[Batch, None] = {}
        """The first batch of its lane, and those that are looked for."""

        self.runs: list[Run] = []
        """Parts of earlier batches, in order."""

        self.bytes = 0
        self.is_held = False
        """Its client is not read."""

    def batches(self) -> list[Batch]:
        """Those that have to have time left."""
        return [*self.parked, *(run.batch for run in self.runs)]


class StoreWaits:
    """
    Who waits, and for how long.

    *resume* goes on with a parked batch, *reroute* with runs; each may bring them back.
    """

    def __init__(
        self,
        clusters: Mapping[str, ClusterClient],
        decider: Decider,
        pressure: BackPressure,
        *,
        resume: Callable[[Batch], None],
        reroute: Callable[[list[Run]], None],
        limits: LimitsConfig,
    ) -> None:
        self.is_any_away = False
        self._wait_s = limits.store_wait / 1000
        self._bytes_max = limits.store_wait_bytes_max
        self._clusters = clusters
        self._decider = decider
        self._pressure = pressure
        self._resume = resume
        self._reroute = reroute
        self._loop = asyncio.get_running_loop()
        self._calls: dict[Call, _Waiting] = {}
        self._links: set[StoreLink] = set()
        """Stores that are away and have not answered all that was sent."""

        self._timer: asyncio.TimerHandle | None = None
        self._bytes = 0

    @property
    def call_count(self) -> int:
        """Publishers that wait now."""
        return len(self._calls)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    # ── who may ─────────────────────────────────────────────────────────────────────────

    def _may_wait(self, batch: Batch) -> bool:
        """Whether it has time left, and there is room for it."""
        call = batch.call
        if batch.lane is None or call.protocol == INTERNAL or not call.is_patient:
            return False  # a mirrored copy, or ours: these have their own way to try again
        if batch.is_withdrawn and batch.messages[0].once_key:
            return False
        return self._has_time(batch) and self._bytes + _bytes_of(batch) <= self._bytes_max

    def _has_time(self, batch: Batch) -> bool:
        call, now = batch.call, clock.monotonic()
        waited_s = now - batch.parked_at if batch.parked_at else 0.0
        return waited_s < min(self._wait_s, CALLER_WAIT_S_MAX.get(call.protocol, self._wait_s))

    def _is_to_wait(self, batch: Batch, head: Head, decision: Decision) -> bool:
        """Whether what was decided is that a store is away, and nothing but that store will do."""
        if decision.refusal is not None:
            return decision.refusal.code == Code.HA_NOT_AVAILABLE
        if not decision.is_away:
            return False
        return decision.is_pinned_away or not self._decider.may_leave(batch.call, head)

    def moves(self, batch: Batch, head: Head, decision: Decision) -> bool:
        """
        Whether its publisher has another store from here on: the one that was chosen for its order
        is away, and nothing of it is there without an answer, or was refused.
        """
        is_away = decision.is_away and not decision.is_pinned_away
        return is_away and _is_alone(batch) and self._decider.leave(batch.call, head)

    def _keeps(self, run: Run) -> bool:
        """Whether a part of a batch waits on for the answer of a store that is away."""
        batch, copy = run.batch, run.copy
        if copy.is_only and self._decider.may_leave(batch.call, copy.head):
            return False
        if not batch.parked_at:
            batch.parked_at = clock.monotonic() - LOST_S_MAX
        return self._may_wait(batch)

    # ── waiting ─────────────────────────────────────────────────────────────────────────

    def takes(self, batch: Batch, head: Head, decision: Decision) -> bool:
        """Whether the next messages of a batch, of *head*, wait here: it is parked."""
        if not (self._is_to_wait(batch, head, decision) and self._may_wait(batch)):
            return False
        self._park(batch)
        return True

    def takes_search(self, batch: Batch) -> bool:
        """The same of a batch whose first attempt may be at a store that is away."""
        if not self._may_wait(batch):
            return False
        self._park(batch)
        return True

    def takes_run(self, run: Run, decision: Decision | None = None) -> bool:
        """The same of a part of a batch. Without *decision* it is bound to its store."""
        batch = run.batch
        if decision is not None and not self._is_to_wait(batch, run.copy.head, decision):
            return False
        if not self._keeps(run):
            return False
        waiting = self._of(batch.call)
        waiting.runs.append(run)
        self._count(batch.call, waiting, batch)
        return True

    def _park(self, batch: Batch) -> None:
        """The first batch of its lane waits for a store."""
        assert batch.lane is not None
        waiting = self._of(batch.call)
        if not waiting.parked:
            for parked in batch.lane.parked:
                self._count(batch.call, waiting, parked)
        waiting.parked[batch] = None

    def parked(self, batch: Batch) -> None:
        """It was put into its lane, behind whatever the lane waits for."""
        batch.parked_at = batch.parked_at or clock.monotonic()
        waiting = self._calls.get(batch.call)
        if waiting is not None and waiting.parked:
            self._count(batch.call, waiting, batch)

    def _of(self, call: Call) -> _Waiting:
        waiting = self._calls.get(call)
        if waiting is None:
            waiting = self._calls[call] = _Waiting()
            self._tick_later()
        return waiting

    def _count(self, call: Call, waiting: _Waiting, batch: Batch) -> None:
        size = _bytes_of(batch)
        waiting.bytes += size
        self._bytes += size
        if waiting.bytes > CALL_BYTES_MAX and not waiting.is_held:
            waiting.is_held = True
            self._pressure.hold(call)

    # ── going on ────────────────────────────────────────────────────────────────────────

    def look(self) -> None:
        """Learn whether any store is away."""
        self.is_any_away = any(
            [
                link.state is LinkState.DOWN
                for cluster in self._clusters.values()
                for link in cluster.links.values()
            ]
        )

    def link_changed(self, link: StoreLink) -> None:
        """A store is away: what it has not answered waits. Or it is back: everybody tries again."""
        self.look()
        if link.state is LinkState.DOWN and link.give_up(self._keeps):
            self._links.add(link)
            self._tick_later()
        elif link.state is LinkState.UP:
            self._links.discard(link)
            self.again(*self._calls)

    def again(self, *calls: Call) -> None:
        """What waits of these tries again, in the order of each; it may come back."""
        held: list[Call] = []
        for call in calls:
            waiting = self._calls.pop(call, None)
            if waiting is None:
                continue
            self._bytes -= waiting.bytes
            if waiting.runs:
                self._reroute(waiting.runs)
            for batch in waiting.parked:
                self._resume(batch)
            if waiting.is_held:
                held.append(call)
        self._pressure.let_go(*held)

    def _tick_later(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(SWEEP_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._links = {link for link in self._links if link.give_up(self._keeps)}
        late = [
            call
            for call, waiting in self._calls.items()
            if not all([self._has_time(batch) for batch in waiting.batches()])
        ]
        self.again(*late)
        if self._calls or self._links:
            self._tick_later()


def _is_alone(batch: Batch) -> bool:
    """Nothing of its publisher waits for an answer, or was refused on this connection."""
    lane = batch.lane
    if lane is None or lane.has_failed or lane.batches[0] is not batch:
        return False
    return batch.remaining == (batch.next_index < len(batch.ids))


def _bytes_of(batch: Batch) -> int:
    return batch.size_bytes + MESSAGE_BYTES * len(batch.ids)
