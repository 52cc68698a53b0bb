"""Once-keys: a repeat within the window is answered with the place of the first."""

from collections import OrderedDict
from typing import Any


class OnceKeys:
    """Key → (log position, queue offset, wall time), oldest first, bounded by time and number."""

    def __init__(self, window_s: float, count_max: int) -> None:
        self._window_ms = int(window_s * 1000)
        self._count_max = count_max
        self._keys: OrderedDict[bytes, tuple[int, int, int]] = OrderedDict()

    def find(self, key: bytes, wall_ms: int) -> tuple[int, int] | None:
        """(position, offset) of the message that had this key."""
        found = self._keys.get(key)
        if found is None or found[2] + self._window_ms < wall_ms:
            return None
        return found[0], found[1]

    def add(self, key: bytes, position: int, offset: int, wall_ms: int) -> None:
        self._keys[key] = (position, offset, wall_ms)
        self._keys.move_to_end(key)
        while len(self._keys) > self._count_max:
            self._keys.popitem(last=False)

    def trim(self, wall_ms: int) -> None:
        """Forget what the window has passed."""
        while self._keys:
            key, (_, _, stored_ms) = next(iter(self._keys.items()))
            if stored_ms + self._window_ms >= wall_ms:
                break
            del self._keys[key]

    def dump(self) -> list[Any]:
        return [(key, *place) for key, place in self._keys.items()]

    def load(self, rows: list[Any]) -> None:
        self._keys = OrderedDict((key, (at, offset, ms)) for key, at, offset, ms in rows)
