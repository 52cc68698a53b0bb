"""Light queues as gateways ask for them: made, dropped, purged and counted by key."""

from collections.abc import Mapping

from protocols.clock import Now
from protocols.errors import Code, Refused
from protocols.remoting.private import QueueCounts
from store.answers import Pending
from store.core import Core
from store.groups.deliveries import Deliveries
from store.groups.group import Group
from store.index.queues import Queue
from store.parts import Parts
from store.policies.keeper import Keeper
from store.policies.levels import subqueues


class LightQueues:
    """Part of the engine."""

    def __init__(self, core: Core, parts: Parts, deliveries: Deliveries, keeper: Keeper) -> None:
        self._core = core
        self._parts = parts
        self._deliveries = deliveries
        self._keeper = keeper

    def create(
        self, key: bytes, name: str, policy: Mapping[str, int | str], now: Now
    ) -> Pending[None]:
        """Idempotent. Policy ``volatile``: forgotten at a restart, visible before the sync."""
        self._core.at(now)
        self._keeper.create(self._core.light_queue(key, name, dict(policy)), now)
        return self._core.wait(None)

    def drop(self, key: bytes, group: str, now: Now) -> Pending[QueueCounts]:
        """Forget queue and group; later sends to the key are partial with NOT_FOUND."""
        self._core.at(now)
        counts = self._counts(key, group)
        found = self._parts.groups.find(group) if group else None
        queue = self._core.queues.find(key)
        if found is not None and not _is_another(found, queue):
            self._parts.groups.drop(found)
        if queue is not None:
            self._keeper.drop_subqueues(queue)
        return self._core.wait(counts)

    def purge(self, key: bytes, group: str, now: Now) -> Pending[QueueCounts]:
        """All ready entries are done; ``ready_count`` = how many."""
        self._core.at(now)
        counts = self._counts(key, group)
        found = self._parts.groups.find(group)
        if found is not None:
            self._deliveries.books.purge(found)
        return self._core.wait(counts)

    def stat(self, key: bytes, group: str, now: Now | None = None) -> QueueCounts:
        """Exact. At *now* a client asks, which is a use of the queue. Raises Refused(NOT_FOUND)."""
        if self._core.queues.find(key) is None:
            raise Refused(Code.NOT_FOUND, key.hex(), "no such queue at this store")
        if now is not None:
            self._keeper.asked(self._parts.groups.find(group), now)
        return self._counts(key, group)

    def ready_count(self, group: int, now: Now) -> int:
        """For a client that has just popped, as exact as ``stat``."""
        found = self._parts.groups.get(group)
        if found is None:
            return 0
        self._keeper.asked(found, now)
        return self._deliveries.books.ready_count(found)

    def _counts(self, key: bytes, group: str) -> QueueCounts:
        queue = self._core.queues.find(key)
        found = self._parts.groups.find(group) if group else None
        parts = subqueues(self._core.queues, queue) if queue is not None else ()
        return QueueCounts(
            ready_count=self._deliveries.books.ready_count(found) if found is not None else 0,
            in_flight_count=len(found.in_flight) if found is not None else 0,
            stored_count=sum([part.next for part in parts], queue.next if queue is not None else 0),
            consumer_count=found.stream_count if found is not None else 0,
        )


def _is_another(group: Group, queue: Queue | None) -> bool:
    """The group of a queue that was made again under the same name."""
    return queue is not None and all(read.queue is not queue for read in group.reads.values())
