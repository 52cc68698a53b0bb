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
    is_address = exchange == AMQ_TOPIC
    addresses = [key for key in keys if is_address and key]
    routed = topology.route(
        vhost, exchange, [key for key in keys if not (is_address and key)], headers
    )
    if routed.is_shared:
        addresses += [key for key in keys if key]
    replies: dict[QueueRef, None] = {}
    for key in keys:
        if not exchange and key.startswith(PREFIX):
            ref = reply_ref(vhost, tenant, key)
            if ref is not None:
                replies[ref] = None
    return Targets(routed.queues, tuple(replies), tuple(dict.fromkeys(addresses)))
