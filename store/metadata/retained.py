"""The last retained message of each address, by tenant: log positions; bodies stay in the log."""

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from protocols.subjects import has_wildcard, matches

CLEARED = -1


class RetainedChange(NamedTuple):
    tenant: str
    subject: str
    position: int
    """``CLEARED``: forget the address."""


class RetainedTable:
    """(tenant, subject) → entry position. Changes show when they are durable."""

    def __init__(self) -> None:
        self._by_tenant: dict[str, dict[str, int]] = {}
        self._coming: deque[RetainedChange] = deque()
        self.kept: set[int] = set()
        """Positions of all last values, also of those about to be known."""

    def note(self, change: RetainedChange) -> None:
        """Shown by a later ``show_next``, in order."""
        self._coming.append(change)
        self.kept.add(change.position)

    def show_next(self) -> None:
        self.apply(self._coming.popleft())

    def apply(self, change: RetainedChange) -> None:
        table = self._by_tenant.setdefault(change.tenant, {})
        self.kept.discard(table.pop(change.subject, CLEARED))
        if change.position != CLEARED:
            table[change.subject] = change.position
            self.kept.add(change.position)

    def find(self, tenant: str, subject_filters: Iterable[str]) -> list[int]:
        """Positions of what any of the filters matches, oldest first."""
        table = self._by_tenant.get(tenant)
        if not table:
            return []
        found: set[int] = set()
        for subject_filter in subject_filters:
            if not has_wildcard(subject_filter):
                if (position := table.get(subject_filter)) is not None:
                    found.add(position)
            else:
                found.update(at for name, at in table.items() if matches(subject_filter, name))
        return sorted(found)

    def first_owed(self, end: int) -> int:
        """Lowest position that holds a last value."""
        lowest = [min(table.values()) for table in self._by_tenant.values() if table]
        return min(lowest, default=end)

    def dump(self) -> list[Any]:
        """What stands, and what is coming: a snapshot covers both."""
        tables = [(tenant, list(table.items())) for tenant, table in self._by_tenant.items()]
        return [tables, list(self._coming)]

    def load(self, state: list[Any]) -> None:
        tables, coming = state
        self._by_tenant = {tenant: dict(items) for tenant, items in tables}
        self.kept = {at for table in self._by_tenant.values() for at in table.values()}
        for change in coming:
            self.apply(RetainedChange._make(change))
