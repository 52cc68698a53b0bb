"""
Once-keys: a repeat is answered with the place of the first.

Most keys count for a window of time. Those of QoS 2 exchanges (``RELEASED``) count until they are
released; the long window is for sessions that never came back.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from protocols.canonical import RELEASED_ONCE_PREFIX

Place = tuple[int, int, int]
"""Log position, queue offset, wall time."""


class OnceKeys:
    """Key → place, oldest first, bounded by time and number, in two tables."""

    def __init__(self, window_s: float, released_window_s: float, count_max: int) -> None:
        self._windows_ms = (int(window_s * 1000), int(released_window_s * 1000))
        self._count_max = count_max
        self._tables: tuple[OrderedDict[bytes, Place], ...] = (OrderedDict(), OrderedDict())

    def find(self, key: bytes, wall_ms: int) -> tuple[int, int] | None:
        """(position, offset) of the message that had this key."""
        kind = key.startswith(RELEASED_ONCE_PREFIX)
        found = self._tables[kind].get(key)
        if found is None or found[2] + self._windows_ms[kind] < wall_ms:
            return None
        return found[0], found[1]

    def add(self, key: bytes, position: int, offset: int, wall_ms: int) -> None:
        keys = self._tables[key.startswith(RELEASED_ONCE_PREFIX)]
        keys[key] = (position, offset, wall_ms)
        keys.move_to_end(key)
        while len(keys) > self._count_max:
            keys.popitem(last=False)

    def known(self, keys: Sequence[bytes]) -> list[bytes]:
        """Those that are remembered."""
        return [key for key in keys if key in self._tables[key.startswith(RELEASED_ONCE_PREFIX)]]

    def release(self, keys: Sequence[bytes]) -> None:
        """They may name other messages from now on."""
        for key in keys:
            self._tables[key.startswith(RELEASED_ONCE_PREFIX)].pop(key, None)

    def trim(self, wall_ms: int) -> None:
        """Forget what the window has passed."""
        for keys, window_ms in zip(self._tables, self._windows_ms, strict=True):
            while keys:
                key, (_, _, stored_ms) = next(iter(keys.items()))
                if stored_ms + window_ms >= wall_ms:
                    break
                del keys[key]

    def dump(self) -> list[Any]:
        return [(key, *place) for keys in self._tables for key, place in keys.items()]

    def load(self, rows: list[Any]) -> None:
        self._tables = (OrderedDict(), OrderedDict())
        for key, position, offset, stored_ms in rows:
            self.add(key, position, offset, stored_ms)
