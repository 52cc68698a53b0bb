"""
The end of a topic: its message queues go, and with them what groups were owed of it.

A topic made later under the same name has queues of its own, so that it starts empty at offset 0;
what the old one stored leaves the disk with its segments. Source: Apache RocketMQ 5,
``AdminBrokerProcessor.deleteTopic``, which also forgets the offsets committed for it.
"""

from store.groups.deliveries import Deliveries
from store.index.queues import Queue
from store.log.format import Kind
from store.log.state import pack
from store.parts import Parts


def delete_topic(parts: Parts, deliveries: Deliveries, name: str) -> bool:
    """Log and do it; False: there is no such topic."""
    if not parts.topics.delete(name):
        return False
    parts.offsets.forget_topic(name)
    for queue in list(parts.core.queues.of_topic(name)):
        deliveries.books.settle_queue(queue)
        parts.core.log.state(Kind.QUEUE_END, pack(queue.number))
        end_queue(parts, queue)
    return True


def end_queue(parts: Parts, queue: Queue) -> None:
    """What the record of a queue's end means, live and on replay."""
    parts.groups.queue_dropped(queue)
    parts.compacted.forget(queue.number)
    parts.core.queues.drop(queue)
