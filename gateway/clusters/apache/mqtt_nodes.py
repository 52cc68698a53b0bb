"""
Light queues that nodes of Apache rocketmq-mqtt read: a message names them when it is sent.

Of its ``WildcardManager``, ``TopicUtils``, ``LmqQueueStoreManager``, ``MetaPersistManagerSample``:
each topic has a queue, and so has each filter that the name server's configuration lists for the
first level. The node that a client of theirs is at reads both by offset.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from gateway.clusters.apache.requests import LIGHT_PREFIX
from protocols.canonical import Head
from protocols.subjects import matches

ORIGIN: Final = "originMqttTopic"
QOS: Final = "qosLevel"
P2P: Final = "/p2p/"
"""Second level of topics that are for one client, and the first of its queue."""

NAMES_MAX: Final = 100
"""Queues that one message is put into for nodes; further filters go without."""

Filters = Mapping[str, Sequence[str]]
"""First level → filters that have queues of their own."""


def origin_of(head: Head, topic: str) -> str:
    """The address under which nodes know a message of *topic*; "": they do not."""
    for name, value in head.properties:
        if name == ORIGIN:
            return value if value.partition("/")[0] == topic else ""
    return ""


def extra_of(head: Head) -> str:
    """``extData`` of a message for nodes."""
    found = {name: value for name, value in head.properties if name == QOS}
    return msgspec.json.encode(found).decode()


def queue_names(address: str, filters: Filters) -> list[str]:
    """The light queues of one address."""
    first, _, rest = address.partition("/")
    if f"/{rest}".startswith(P2P):
        peer = rest.split("/")[1]
        return _named((f"{P2P}{peer}",)) if peer else []
    wanted = [one for one in filters.get(first, ()) if matches(one.removesuffix("/"), address)]
    return _named((address, *wanted[: NAMES_MAX - 1]))


def _named(topics: Iterable[str]) -> list[str]:
    """Each once; a separator ends every name that has one."""
    ended = [topic if "/" not in topic or topic.endswith("/") else f"{topic}/" for topic in topics]
    return [LIGHT_PREFIX + topic.replace("/", "%") for topic in dict.fromkeys(ended)]
