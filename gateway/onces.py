"""
Once-keys whose exchange is over: released at every store, joined per tick and store.

A store that is up must have it on disk before the exchange is answered. For one that is away the
keys are kept here and go when it is back: until then nobody can repeat anything there.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Final

from gateway.clusters.client import ClusterClient
from gateway.clusters.link import LinkState, StoreLink
from gateway.clusters.tidegate import TidegateLink
from protocols.errors import GatewayError
from protocols.tasks import Tasks

logger = logging.getLogger("tidegate.pipeline")

Released = Callable[[bool], None]

KEYS_MAX: Final = 4096
"""Keys of one request."""

KEPT_MAX: Final = 100_000
"""Keys kept for a store that is away; beyond it the oldest are left to the store's own window."""


class _Waiting:
    """One key, and how many stores have yet to answer."""

    __slots__ = ("count", "done", "is_good", "key")

    def __init__(self, key: bytes, count: int, done: Released) -> None:
        self.key = key
        self.count = count
        self.done = done
        self.is_good = True

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
        self._kept: dict[tuple[str, str], dict[bytes, None]] = {}
        self._is_flush_due = False
        for cluster in clusters.values():
            cluster.before_traffic = self._before_traffic

    async def close(self) -> None:
        await self._tasks.close()

    def release(self, key: bytes, done: Released) -> None:
        """*done* hears whether every store that is up has it on disk; later, in order."""
        links: list[StoreLink] = []
        for cluster in self._clusters.values():
            for store in cluster.links.values():
                if not store.capabilities.has_once_keys:
                    continue
                if store.state is LinkState.UP:
                    self._kept.get((store.cluster, store.broker), {}).pop(key, None)
                    links.append(store)
                else:
                    self._keep(store, key)
        waiting = _Waiting(key, max(1, len(links)), done)
        if not links:
            self._loop.call_soon(waiting.answered, True)
        for link in links:
            self._pending.setdefault(link, []).append(waiting)
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    async def _before_traffic(self, link: TidegateLink) -> None:
        """
        A store that comes back forgets what was kept for it before it takes any message: it
        would take a new one under the same packet id for a repeat. Raises GatewayError.
        """
        kept = self._kept.get((link.cluster, link.broker))
        while kept:
            part = list(islice(kept, KEYS_MAX))
            await link.release_once(part)
            for key in part:
                kept.pop(key, None)

    def _keep(self, link: StoreLink, key: bytes) -> None:
        kept = self._kept.setdefault((link.cluster, link.broker), {})
        kept[key] = None
        if len(kept) > KEPT_MAX:
            del kept[next(iter(kept))]

    def _flush(self) -> None:
        self._is_flush_due = False
        pending, self._pending = self._pending, {}
        for link, waiting in pending.items():
            for start in range(0, len(waiting), KEYS_MAX):
                part = waiting[start : start + KEYS_MAX]
                self._tasks.start(self._send(link, part), name=f"release {link.broker}")

    async def _send(self, link: StoreLink, waiting: list[_Waiting]) -> None:
        is_good = False
        try:
            await link.release_once([one.key for one in waiting])
            is_good = True
        except GatewayError as error:
            logger.info("once-keys at %s: %s", link.broker, error)
            for one in waiting:
                self._keep(link, one.key)
        for one in waiting:
            one.answered(is_good)
