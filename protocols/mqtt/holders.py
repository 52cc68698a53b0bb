"""Which sessions there are, and which gateway each is connected to."""

from collections.abc import Callable

Gateway = tuple[str, int]
"""Name and epoch."""


class Holders:
    """One dictionary of all sessions, a count per gateway."""

    def __init__(self) -> None:
        self._holder_of: dict[str, Gateway | None] = {}
        self._counts: dict[Gateway, int] = {}
        self._shared: dict[Gateway, Gateway] = {}
        # one tuple for all sessions of a gateway

    @property
    def counts(self) -> tuple[int, int]:
        """(connected, all)."""
        return sum(self._counts.values()), len(self._holder_of)

    def set(self, key: str, holder: Gateway | None) -> None:
        """The session is there; None: nobody is connected to it."""
        old = self._holder_of.get(key)
        if old is not None:
            self._counts[old] -= 1
        if holder is not None:
            holder = self._shared.setdefault(holder, holder)
            self._counts[holder] = self._counts.get(holder, 0) + 1
        self._holder_of[key] = holder

    def remove(self, key: str) -> None:
        """The session has ended."""
        old = self._holder_of.pop(key, None)
        if old is not None:
            self._counts[old] -= 1

    def orphans(self, is_live: Callable[[str, int], bool]) -> list[str]:
        """Sessions whose gateway's lease has ended."""
        for holder in [one for one, count in self._counts.items() if not count]:
            del self._counts[holder], self._shared[holder]
        gone = {holder for holder in self._counts if not is_live(*holder)}
        if not gone:
            return []
        return [key for key, holder in self._holder_of.items() if holder in gone]
