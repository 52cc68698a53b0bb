"""
When a route goes back to the cluster it had left: ``fail_back``.

A cluster that could not take a message is ill, for that topic, until it can; after that it has
to be well for a while before it is used again, so that one that comes and goes does not take
every message along. Time comes in.
"""

from collections.abc import Sequence
from typing import Final

KEPT_MAX: Final = 10_000
"""(cluster, topic) pairs remembered; beyond it the oldest are taken for well."""

ILL: Final = 0


class FailBack:
    """Pairs that are ill or have been so a moment ago."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], int] = {}

    def __len__(self) -> int:
        return len(self._since)

    def is_ill(self, cluster: str, topic: str) -> None:
        """It cannot take messages now."""
        self._since[cluster, topic] = ILL
        if len(self._since) > KEPT_MAX:
            del self._since[next(iter(self._since))]

    def set_back(self, now_ms: int) -> None:
        """The wall clock was: who is on trial begins it anew."""
        self._since = {pair: min(since, now_ms) for pair, since in self._since.items()}

    def order(
        self, names: Sequence[str], topic: str, fail_back_ms: int, now_ms: int
    ) -> tuple[Sequence[str], int]:
        """
        *names* with the first one last while it is not trusted yet, and until when (0: for ever).
        """
        since = self._since.get((names[0], topic))
        if not since or len(names) == 1:
            return names, 0
        if now_ms - since >= fail_back_ms:
            del self._since[names[0], topic]
            return names, 0
        return (*names[1:], names[0]), since + fail_back_ms

    def is_well(self, cluster: str, topic: str, now_ms: int) -> bool:
        """It could take one; True: it was ill until now, and its time of trial begins."""
        if self._since.get((cluster, topic)) != ILL:
            return False
        self._since[cluster, topic] = now_ms
        return True
