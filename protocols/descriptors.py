"""
File descriptors: as many as the system allows, and some that no client gets.

A store that cannot open its next segment refuses all sends, and a gateway that cannot reach its
stores serves nobody: clients beyond what is left for them are turned away instead.
"""

import asyncio
import logging
import os
import resource
from collections.abc import Callable
from functools import cache
from typing import Final, cast

from protocols import clock

logger = logging.getLogger("tidegate.descriptors")

KEPT_MAX: Final = 512
"""Kept for files, stores, name servers and the admin API: a quarter of all, and at most so many."""

ASKED_MAX: Final = 1 << 20
"""Where the system sets no bound."""

SURE_PART: Final = 16
SURE_MAX: Final = 64
"""Connections between two looks: a sixteenth of what is left, for there are other listeners."""

TELL_S: Final = 10.0
"""Between lines in the log about clients that were turned away."""

Factory = Callable[[], asyncio.Protocol]


def raise_limit() -> None:
    """Let this process have what the system lets it ask for (the hard limit of ``ulimit -n``)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ASKED_MAX if hard == resource.RLIM_INFINITY else min(hard, ASKED_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:  # the kernel's own bound is lower on some systems
            logger.warning("only %d descriptors: %s", soft, error)


def for_clients() -> int:
    """Numbers of descriptors below this one are for anybody."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        soft = ASKED_MAX
    return soft - min(KEPT_MAX, soft // 4)


class Spared:
    """A factory of a listener's protocols, and who takes their place when too few are left."""

    def __init__(self, factory: Factory, listener: str) -> None:
        self._factory = factory
        self._listener = listener
        self._number_max = for_clients()
        self._sure_count = 0
        """So many more there are, even if other listeners take as many."""

        self._turned_away = 0
        self._told_at = float("-inf")

    def __call__(self) -> asyncio.Protocol:
        return self._factory() if self._is_one_left() else self._turn_away()

    def _is_one_left(self) -> bool:
        """The system gives the lowest number that is free: a new one tells how many are taken."""
        if self._sure_count > 0:
            self._sure_count -= 1
            return True
        try:
            free = os.dup(_any())
        except OSError:
            return False
        os.close(free)
        self._sure_count = min((self._number_max - free) // SURE_PART, SURE_MAX)
        return free < self._number_max

    def _turn_away(self) -> asyncio.Protocol:
        self._turned_away += 1
        now = clock.monotonic()
        if now - self._told_at >= TELL_S:
            self._told_at = now
            logger.error(
                "listener %s: %d descriptors are taken: %d connections turned away so far; "
                "raise the limit (ulimit -n)",
                self._listener,
                self._number_max,
                self._turned_away,
            )
        return _TurnedAway()


@cache
def _any() -> int:
    """One that is open as long as the process runs."""
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


class _TurnedAway(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()  # uvloop's are of no class of asyncio's
