"""
Once-keys: a repeat is answered with the place of the first.

Most keys count for a window of time. Those of QoS 2 exchanges (``RELEASED``) count until they are
released, all copies of a message together; the long window is for sessions that never came back.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, Final

from protocols.canonical import RELEASED_ONCE_PREFIX

Place = tuple[int, int, int]
"""Log position, queue offset, wall time."""

COPY_AT: Final = len(RELEASED_ONCE_PREFIX)
"""The byte of a released key that tells the copies of one message apart; 0: the primary's."""


class OnceKeys:
    """Key → place, oldest first, bounded by time and number, in two tables."""

    def __init__(self, window_s: float, released_window_s: float, count_max: int) -> None:
        self._windows_ms = (int(window_s * 1000), int(released_window_s * 1000))
        self._count_max = count_max
        self._tables: tuple[OrderedDict[bytes, Place], ...] = (OrderedDict(), OrderedDict())
        self._copy_count = 0
        """Released keys of copies that are not the primary: few messages have any."""

    def find(self, key: bytes, wall_ms: int) -> tuple[int, int] | None:
        """(position, offset) of the message that had this key."""
        kind = key.startswith(RELEASED_ONCE_PREFIX)
        found = self._tables[kind].get(key)
        if found is None or found[2] + self._windows_ms[kind] < wall_ms:
            return None
        return found[0], found[1]

    def add(self, key: bytes, position: int, offset: int, wall_ms: int) -> None:
        kind = key.startswith(RELEASED_ONCE_PREFIX)
        keys = self._tables[kind]
        if kind and key[COPY_AT] and key not in keys:
            self._copy_count += 1
        keys[key] = (position, offset, wall_ms)
        keys.move_to_end(key)
        while len(keys) > self._count_max:
            self._drop(kind, next(iter(keys)))

    @property
    def exchange_count(self) -> int:
        """Keys that wait for their release."""
        return len(self._tables[True])

    def known(self, keys: Sequence[bytes]) -> list[bytes]:
        """Those that are remembered, of whatever copy."""
        return [
            key
            for key in keys
            if any(one in self._tables[one.startswith(RELEASED_ONCE_PREFIX)]
                   for one in self._with_copies(key))
        ]  # fmt: skip

    def release(self, keys: Sequence[bytes]) -> None:
        """They may name other messages from now on."""
        for key in keys:
            kind = key.startswith(RELEASED_ONCE_PREFIX)
            for one in self._with_copies(key):
                self._drop(kind, one)

    def trim(self, wall_ms: int) -> None:
        """Forget what the window has passed."""
        for kind, window_ms in zip((False, True), self._windows_ms, strict=True):
            keys = self._tables[kind]
            while keys:
                key, (_, _, stored_ms) = next(iter(keys.items()))
                if stored_ms + window_ms >= wall_ms:
                    break
                self._drop(kind, key)

    def dump(self) -> list[Any]:
        return [(key, *place) for keys in self._tables for key, place in keys.items()]

    def load(self, rows: list[Any]) -> None:
        self._tables = (OrderedDict(), OrderedDict())
        self._copy_count = 0
        for key, position, offset, stored_ms in rows:
            self.add(key, position, offset, stored_ms)

    def _drop(self, kind: bool, key: bytes) -> None:
        if self._tables[kind].pop(key, None) is not None and kind and key[COPY_AT]:
            self._copy_count -= 1

    def _with_copies(self, key: bytes) -> Iterator[bytes]:
        yield key
        if self._copy_count and key.startswith(RELEASED_ONCE_PREFIX):
            for ordinal in range(1, 256):
                yield key[:COPY_AT] + bytes((ordinal,)) + key[COPY_AT + 1 :]
