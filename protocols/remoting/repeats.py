"""
Questions that a client asks each broker of a topic, and puts the answers together.

All of them have this gateway's address, so it is asked the same as often as there are brokers.
The first gets what all brokers know; the others nothing, or the client would have it all twice.
"""

from collections.abc import Mapping
from typing import Final

REPEATS_S: Final = 5.0
"""Java's clients ask all at once; what comes later is a new question."""

QUESTIONS_MAX: Final = 256

_Key = tuple[tuple[str, str], ...]


class Repeats:
    """Of one connection."""

    def __init__(self) -> None:
        self._left: dict[_Key, tuple[int, float]] = {}
        """Question → how often it may come again, and until when."""

    def is_repeated(self, fields: Mapping[str, str], broker_count: int, now: float) -> bool:
        """Whether the question was asked of another of the brokers a moment ago."""
        if broker_count < 2:
            return False
        key = tuple(sorted(fields.items()))
        left, until = self._left.pop(key, (0, 0.0))
        is_repeated = left > 0 and now < until
        if not is_repeated:
            left, until = broker_count, now + REPEATS_S
        if left > 1:
            while len(self._left) >= QUESTIONS_MAX:
                del self._left[next(iter(self._left))]
            self._left[key] = (left - 1, until)
        return is_repeated
