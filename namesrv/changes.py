"""Which (broker, topic) pairs changed since when: what a watching gateway has not seen yet."""

from collections.abc import Iterator
from typing import Final

CHANGES_MAX: Final = 50_000
"""Pairs remembered; who is further behind gets everything."""

Pair = tuple[str, str]
"""(broker name, topic)."""


class ChangeLog:
    """Pairs in the order of their last change, each once."""

    def __init__(self) -> None:
        self.version = 1
        """Rises with every change of a topic or a broker."""

        self._changed: dict[Pair, int] = {}
        self._floor = 0
        """Version of the newest change that was forgotten."""

    def touch(self, broker: str, topic: str) -> None:
        """The broker's queues of that topic are others now."""
        self.version += 1
        pair = (broker, topic)
        self._changed.pop(pair, None)
        self._changed[pair] = self.version
        if len(self._changed) > CHANGES_MAX:
            oldest = next(iter(self._changed))
            self._floor = self._changed.pop(oldest)

    def touch_brokers(self) -> None:
        """Addresses changed: they are told whole each time."""
        self.version += 1

    def since(self, version: int) -> list[Pair] | None:
        """Pairs that changed after *version*; None: some of them are forgotten."""
        if version < self._floor:
            return None
        return list(self._after(version))

    def _after(self, version: int) -> Iterator[Pair]:
        for pair in reversed(self._changed):
            if self._changed[pair] <= version:
                return
            yield pair

    def __len__(self) -> int:
        return len(self._changed)
