"""
Back-pressure: whose sockets are not read, and when they are again.

A client is not read while the stores that its messages may go to are behind, or while a throttle
holds back what it sent. Whether any store is behind is looked at once a tick; adapters ask more
often than that.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping

from gateway.clusters.client import ClusterClient
from gateway.clusters.link import StoreLink
from gateway.decisions import Decider
from protocols.canonical import Call


class BackPressure:
    """Who is held back, and who waits to be told that it is not."""

    def __init__(self, clusters: Mapping[str, ClusterClient], decider: Decider) -> None:
        self._clusters = clusters
        self._decider = decider
        self._loop = asyncio.get_running_loop()
        self._held: dict[Call, int] = {}
        # calls whose messages a throttle holds back, with how often
        self._resumes: list[tuple[Callable[[], None], Call | None]] = []
        self._is_any_behind = False

    def look(self) -> None:
        """Learn whether any store is behind: once a tick."""
        self._is_any_behind = self._is_behind()

    def hold(self, call: Call) -> None:
        """A throttle holds messages of *call*."""
        self._held[call] = self._held.get(call, 0) + 1

    def let_go(self, *calls: Call) -> None:
        """As many times as ``hold``; the last time, what waits for a call goes on."""
        is_any_free = False
        for call in calls:
            self._held[call] -= 1
            if not self._held[call]:
                del self._held[call]
                is_any_free = True
        if is_any_free:  # once: thousands may have waited for the same store
            self.cleared()

    def is_congested(self, call: Call) -> bool:
        """Whether its client's socket had better not be read."""
        if self._held and call in self._held:
            return True
        if not self._is_any_behind:
            return False
        store = self._decider.store_of(call)
        return any(
            [link.is_congested for link in self._links() if not store or link.broker == store]
        )

    def when_clear(self, resume: Callable[[], None], call: Call | None) -> None:
        """Call *resume* once, when no store is behind and nothing of *call* is held."""
        self._resumes.append((resume, call))
        if call not in self._held and not self._is_behind():
            self._loop.call_soon(self.cleared)

    def cleared(self) -> None:
        """A store has caught up, or a throttle let go: let those go on who may."""
        if self._resumes and not self._is_behind():
            resumes = self._resumes
            self._resumes = [waiting for waiting in resumes if waiting[1] in self._held]
            for resume, call in resumes:
                if call not in self._held:
                    resume()

    def _is_behind(self) -> bool:
        return any([link.is_congested for link in self._links()])

    def _links(self) -> Iterator[StoreLink]:
        for cluster in self._clusters.values():
            yield from cluster.links.values()
