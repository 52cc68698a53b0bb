"""
Once-keys whose exchange is over: released at every store, joined per tick and store.

A store that is up must have it on disk before the exchange is answered; one that was lost a moment
ago is waited for. One that stays away and may have the key cannot be told: it would take the next
message under it for a repeat, so whoever asked has to give that another key.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from gateway.clusters.client import ClusterClient
from gateway.clusters.link import ONCE_KEYS_MAX, LinkState, StoreLink
from gateway.members import Place, StoreMembers, known_stores
from protocols import clock
from protocols.errors import GatewayError
from protocols.tasks import Tasks

logger = logging.getLogger("tidegate.pipeline")

Released = Callable[[bool], None]

AGAIN_S: Final = 0.1
TOLD_S_MAX: Final = 5.0
"""Between attempts at a store that refuses or is about to be lost; for how long."""


class _Waiting:
    """One key, and how many stores have yet to answer."""

    __slots__ = ("count", "done", "is_good", "key")

    def __init__(self, key: bytes, count: int, done: Released, *, is_good: bool) -> None:
        self.key = key
        self.count = count
        self.done = done
        self.is_good = is_good

    def answered(self, is_good: bool) -> None:
        self.count -= 1
        self.is_good = self.is_good and is_good
        if self.count == 0:
            self.done(self.is_good)


class OnceReleases:
    """Of one gateway."""

    def __init__(self, clusters: Mapping[str, ClusterClient]) -> None:
        self._clusters = clusters
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks("once-keys")
        self._pending: dict[StoreLink, list[_Waiting]] = {}
        self._for_lost: dict[StoreLink, list[_Waiting]] = {}
        self._is_flush_due = False
        self.members: StoreMembers | None = None
        """Stores that may be away; None: those that this gateway has met."""

        self.loss_count = 0
        """Stores lost so far. While it stays the same, what is sent goes to none that is away."""

    async def close(self) -> None:
        await self._tasks.close()

    def release(self, key: bytes, done: Released, *, since: int) -> None:
        """
        *done* hears later, in order, whether every store that may have the key has it on disk.

        *since*: the ``loss_count`` when the key was first used; negative: nobody knows.
        """
        is_anywhere = since != self.loss_count
        links: list[StoreLink] = []
        lost: list[StoreLink] = []
        for cluster in self._clusters.values():
            for store in cluster.links.values():
                if not store.capabilities.has_once_keys:
                    continue
                if store.state is LinkState.UP:
                    links.append(store)
                elif store.state is LinkState.LOST and is_anywhere:
                    lost.append(store)
        is_good = not is_anywhere or known_stores(self.members, self._clusters) <= {
            _place(link) for link in links + lost
        }
        waiting = _Waiting(key, max(1, len(links) + len(lost)), done, is_good=is_good)
        if not links and not lost:
            self._loop.call_soon(waiting.answered, True)
        for link in lost:
            self._for_lost.setdefault(link, []).append(waiting)
        for link in links:
            self._send_soon(link, waiting)

    def link_changed(self, link: StoreLink) -> None:
        """Call whenever a store goes away or comes back."""
        if link.state is LinkState.LOST:
            self.loss_count += 1
            return
        for waiting in self._for_lost.pop(link, ()):
            if link.state is LinkState.UP:
                self._send_soon(link, waiting)
            else:
                self._loop.call_soon(waiting.answered, False)

    def _send_soon(self, link: StoreLink, waiting: _Waiting) -> None:
        self._pending.setdefault(link, []).append(waiting)
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        pending, self._pending = self._pending, {}
        for link, waiting in pending.items():
            for start in range(0, len(waiting), ONCE_KEYS_MAX):
                part = waiting[start : start + ONCE_KEYS_MAX]
                self._tasks.start(self._send(link, part), name=f"release {link.broker}")

    async def _send(self, link: StoreLink, waiting: list[_Waiting]) -> None:
        keys = [one.key for one in waiting]
        is_good, until = False, clock.monotonic() + TOLD_S_MAX
        while link.state is LinkState.UP and clock.monotonic() < until:
            try:
                await link.release_once(keys)
            except GatewayError as error:
                logger.info("once-keys at %s: %s", link.broker, error)
                await asyncio.sleep(AGAIN_S)
            else:
                is_good = True
                break
        if not is_good and link.state is LinkState.LOST:
            self._for_lost.setdefault(link, []).extend(waiting)
            return
        for one in waiting:
            one.answered(is_good)


def _place(link: StoreLink) -> Place:
    return link.cluster, link.broker
