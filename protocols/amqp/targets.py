"""Where a message goes: queues of exchanges, reply queues, addresses of ``amq.topic``."""

from collections.abc import Sequence
from typing import NamedTuple

from protocols.amqp.addresses import AMQ_TOPIC
from protocols.amqp.fields import Table
from protocols.amqp.replying import PREFIX, reply_ref
from protocols.amqp.topology import Queue, Topology
from protocols.canonical import QueueRef


class Targets(NamedTuple):
    """Each once, in the order in which they were found."""

    queues: tuple[Queue, ...]
    replies: tuple[QueueRef, ...]
    addresses: tuple[str, ...]
    """Routing keys to ``amq.topic``."""

    @property
    def refs(self) -> tuple[QueueRef, ...]:
        return (*[queue.ref for queue in self.queues], *self.replies)

    @property
    def highest_priority(self) -> int:
        """Of the queues that sort by it; 0: none does."""
        return max([queue.max_priority for queue in self.queues], default=0)


def find_targets(
    topology: Topology, vhost: str, tenant: str, exchange: str, keys: Sequence[str], headers: Table
) -> Targets:
    """Route by every one of *keys*."""
    queues: dict[QueueRef, Queue] = {}
    replies: dict[QueueRef, None] = {}
    addresses: dict[str, None] = {}
    for key in keys:
        if exchange == AMQ_TOPIC and key:
            addresses[key] = None
            continue
        routed = topology.route(vhost, exchange, key, headers)
        for queue in routed.queues:
            queues[queue.ref] = queue
        if routed.is_shared and key:
            addresses[key] = None
        if not exchange and key.startswith(PREFIX):
            ref = reply_ref(vhost, tenant, key)
            if ref is not None:
                replies[ref] = None
    return Targets(tuple(queues.values()), tuple(replies), tuple(addresses))
