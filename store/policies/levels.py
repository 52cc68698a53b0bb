"""One sub-queue per priority: queues of their own, named by the queue and the level."""

from collections.abc import Iterator
from hashlib import blake2b

from store.core import Core
from store.index.queues import Queue, QueueTable


def subqueue_key(key: bytes, level: int) -> bytes:
    """16 bytes; as the queue itself it exists only once created."""
    digest = blake2b(key + level.to_bytes(1, "big"), digest_size=16).digest()
    return bytes((digest[0] | 0x80,)) + digest[1:]


def level_count(queue: Queue) -> int:
    """Priorities beside 0."""
    count = queue.policy.get("max_priority", 0) if queue.policy else 0
    return count if isinstance(count, int) else 0


def subqueues(queues: QueueTable, queue: Queue) -> Iterator[Queue]:
    """Those of priority 1 and up, ascending."""
    for level in range(1, level_count(queue) + 1):
        found = queues.find(subqueue_key(queue.key, level))
        if found is not None:
            yield found


def create_subqueues(core: Core, queue: Queue) -> None:
    """All of them at once: priorities are few, and who reads the queue reads them too."""
    for level in range(1, level_count(queue) + 1):
        core.light_queue(subqueue_key(queue.key, level), f"{queue.name}#{level}", {"level": level})
