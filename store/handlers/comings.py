"""Reads whose part of the log is still on its way from the disk: the loop waits for none."""

from collections.abc import Callable, Iterable
from typing import Final

from store.handlers.connection import Connection
from store.log.ahead import Key

WAITING_MAX: Final = 4096
"""Reads that wait; one more reads from the disk itself."""


class Comings:
    """Who waits for which part."""

    def __init__(self) -> None:
        self._waiting: dict[Key, list[tuple[Connection, Callable[[], object]]]] = {}
        self._count = 0
        self.is_served = False
        """Somebody fetches what is wanted and says when it has come."""

        self.hurry: Callable[[], object] = lambda: None
        """Called by who wants something when no request has just been handled."""

    @property
    def has_room(self) -> bool:
        return self.is_served and self._count < WAITING_MAX

    def add(self, key: Key, connection: Connection, read: Callable[[], object]) -> None:
        """*read* answers a request of *connection* when *key* has come."""
        self._waiting.setdefault(key, []).append((connection, read))
        self._count += 1

    def take(self, keys: Iterable[Key]) -> list[tuple[Connection, Callable[[], object]]]:
        """Those that waited for one of *keys* and whose connection is still there."""
        if not self._waiting:
            return []
        found = [each for key in keys for each in self._waiting.pop(key, ())]
        self._count -= len(found)
        return [each for each in found if each[0].is_open]
