"""The last retained message of each address, by tenant: log positions; bodies stay in the log."""

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from protocols.subjects import has_wildcard
from store.metadata.addresses import AddressTree

CLEARED = -1


class RetainedChange(NamedTuple):
    tenant: str
    subject: str
    position: int
    """``CLEARED``: forget the address."""


class Values:
    """Of one tenant: by address, and by its levels for filters with wildcards."""

    __slots__ = ("by_subject", "tree")

    def __init__(self) -> None:
        self.by_subject: dict[str, int] = {}
        self.tree = AddressTree()


class RetainedTable:
    """
    (tenant, subject) → entry position. Changes show when they are durable.

    Args:
        count_max: addresses that have a value; a further one gets none (its message is delivered).
    """

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._by_tenant: dict[str, Values] = {}
        self._coming: deque[RetainedChange] = deque()
        self.count = 0
        self.refused_count = 0
        """Values that an address beyond the maximum did not get, since the start."""

        self.kept: set[int] = set()
        """Positions of all last values, also of those about to be known."""

    def note(self, change: RetainedChange) -> None:
        """Shown by a later ``show_next``, in order."""
        self._coming.append(change)
        self.kept.add(change.position)

    def show_next(self) -> None:
        self.apply(self._coming.popleft())

    def apply(self, change: RetainedChange) -> None:
        tenant, subject, position = change
        values = self._by_tenant.get(tenant)
        if values is None:
            values = self._by_tenant[tenant] = Values()
        old = values.by_subject.get(subject, CLEARED)
        self.kept.discard(old)
        if position == CLEARED:
            if old != CLEARED:
                del values.by_subject[subject]
                values.tree.remove(subject)
                self.count -= 1
        elif old == CLEARED and self.count >= self._count_max:
            self.kept.discard(position)
            self.refused_count += 1
        else:
            self.count += old == CLEARED
            self.kept.add(position)
            values.by_subject[subject] = position
            values.tree.put(subject, position)

    def find(self, tenant: str, subject_filters: Iterable[str]) -> list[int]:
        """Positions of what any of the filters matches, oldest first."""
        values = self._by_tenant.get(tenant)
        if values is None:
            return []
        found: set[int] = set()
        for subject_filter in subject_filters:
            if has_wildcard(subject_filter):
                found.update(values.tree.find(subject_filter))
            elif (position := values.by_subject.get(subject_filter)) is not None:
                found.add(position)
        return sorted(found)

    def dump(self) -> list[Any]:
        """What stands, and what is coming: a snapshot covers both."""
        tables = [(name, list(one.by_subject.items())) for name, one in self._by_tenant.items()]
        return [tables, list(self._coming)]

    def load(self, state: list[Any]) -> None:
        tables, coming = state
        for tenant, items in tables:
            for subject, position in items:
                self.apply(RetainedChange(tenant, subject, position))
        for change in coming:
            self.apply(RetainedChange._make(change))
