"""
Before an item enters guarded queues: may it, and into which sub-queue.

Only frames and late entries that reach a queue with a rejecting limit or with priorities come
here.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from protocols.stored_names import number_of
from store.appender import Plan
from store.groups.guard import Guard
from store.index.queues import Queue
from store.log.messages import body_size_of, property_of
from store.policies.terms import NONE, REJECT, REJECT_DEAD_LETTER


class SetPlan(NamedTuple):
    """What a set means here and now."""

    plan: Plan | None
    """None: every item of it is refused."""

    flags: int
    code: int = 0
    hint: str = ""
    missing: tuple[bytes, ...] = ()
    """Light queues that are gone."""

    is_judged: bool = False
    """A queue's policy is asked about each item."""

    needs_keys: bool = False
    """Of a compacted topic: an item without a key is refused."""

    is_simple: bool = False
    """Every item is stored just so, unless it says something of its own."""


class Verdict(NamedTuple):
    """What becomes of one item."""

    plan: int
    """Index of its plan; -1: no queue takes it."""

    refused: tuple[bytes, ...] = ()
    """Keys of the queues that are full."""


class Load:
    """What a rejecting queue holds, with what this frame has added."""

    def __init__(self, guard: Guard, limit: int, credit: int) -> None:
        self.guard = guard
        terms = guard.terms
        self._count = guard.ready_count(limit) - credit
        """Consumers that wait for messages take theirs before the queue counts."""

        self._bytes = guard.ready_bytes(limit) if terms.max_bytes != NONE else 0

    def takes(self, record: memoryview) -> bool:
        terms = self.guard.terms
        size = body_size_of(record) if terms.max_bytes != NONE else 0
        if terms.max_length != NONE and max(self._count, 0) + 1 > terms.max_length:
            return False
        if terms.max_bytes != NONE and self._bytes + size > terms.max_bytes:
            return False
        self._count += 1
        self._bytes += size
        return True


class Admission:
    """Judges the items of one frame, in order."""

    def __init__(
        self,
        plans: Sequence[Plan],
        judges: dict[Queue, Guard],
        limit: int,
        credit_of: Callable[[int], int],
    ) -> None:
        self.plans = plans

        self.dead: list[tuple[Guard, bytes]] = []
        """Refused messages that their queue hands over."""

        self._judges = judges
        self._limit = limit
        self._credit_of = credit_of
        self._loads: dict[Queue, Load] = {}
        self._variants: list[tuple[int, Plan]] = []
        self._indexes: dict[tuple[int, tuple[Queue, ...]], int] = {}

    def judge(self, at: int, record: memoryview) -> Verdict:
        """An item of set *at*."""
        plan = self.plans[at]
        chosen, refused = self.admit(plan.lights, record)
        if not chosen and plan.queue is None:
            return Verdict(-1, refused)
        if chosen == plan.lights:
            return Verdict(at)
        index = self._indexes.get((at, chosen))
        if index is None:
            index = self._indexes[at, chosen] = len(self.plans) + len(self._variants)
            self._variants.append((at, Plan(plan.queue, chosen)))
        return Verdict(index, refused)

    def admit(
        self, wanted: Sequence[Queue], record: memoryview
    ) -> tuple[tuple[Queue, ...], tuple[bytes, ...]]:
        """The queues of *wanted* that take it, and the keys of those that are full."""
        lights: list[Queue] = []
        refused: list[bytes] = []
        for queue in wanted:
            guard = self._judges.get(queue)
            if guard is None:
                lights.append(queue)
            elif guard.terms.overflow in (REJECT, REJECT_DEAD_LETTER) and not self._load(
                queue, guard
            ).takes(record):
                refused.append(queue.key)
                if guard.terms.overflow == REJECT_DEAD_LETTER and guard.terms.dead_letter:
                    self.dead.append((guard, bytes(record)))
            else:
                lights.append(guard.subqueues[_level(guard, record)])
        return tuple(lights), tuple(refused)

    def variants(self, plans: Sequence[SetPlan]) -> list[SetPlan]:
        """What single items need beside the plans of the sets."""
        return [SetPlan(plan, plans[at].flags) for at, plan in self._variants]

    def _load(self, queue: Queue, guard: Guard) -> Load:
        load = self._loads.get(queue)
        if load is None:
            credit = self._credit_of(guard.group.number)
            load = self._loads[queue] = Load(guard, self._limit, credit)
        return load


def _level(guard: Guard, record: memoryview) -> int:
    """Its priority; one that is higher than all counts as the highest."""
    highest = len(guard.subqueues) - 1
    if not highest:
        return 0
    text = property_of(record, b"TG_PRIORITY")
    return min(max(number_of(text), 0), highest)
