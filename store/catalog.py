"""What a store knows by name: topics, settings, the offsets that consumers committed."""

from collections.abc import Iterable, Mapping

from protocols.clock import Now
from store.answers import Offsets, Pending, TopicConfig
from store.core import Core
from store.deletion import delete_topic
from store.groups.deliveries import Deliveries
from store.groups.table import POPS
from store.parts import Parts


class Catalog:
    """Part of the engine."""

    def __init__(self, core: Core, parts: Parts, deliveries: Deliveries) -> None:
        self._core = core
        self._parts = parts
        self._deliveries = deliveries

    @property
    def topics(self) -> Mapping[str, TopicConfig]:
        """All topics; read only."""
        return self._parts.topics.configs

    @property
    def topics_version(self) -> int:
        """Rises with each change of a topic."""
        return self._parts.topics.version

    def put_topic(self, config: TopicConfig, now: Now) -> Pending[TopicConfig]:
        """Create or change. Queues are never taken away, only made unwritable by count."""
        self._core.at(now)
        self._parts.topics.check(config)
        if self._parts.topics.configs.get(config.name) != config:
            self._parts.topics.put(config)
        return self._core.wait(config)

    def delete_topic(self, name: str, now: Now) -> Pending[bool]:
        """The topic, its queues, and the offsets committed for it."""
        self._core.at(now)
        return self._core.wait(delete_topic(self._parts, self._deliveries, name))

    def put_setting(self, table: str, name: str, value: bytes | None, now: Now) -> Pending[None]:
        """Opaque configuration kept in the log: table ``group`` (subscription groups), ``kv``…"""
        self._core.at(now)
        self._parts.settings.put(table, name, value)
        return self._core.wait(None)

    def settings(self, table: str) -> Mapping[str, bytes]:
        """All settings of one table; read only."""
        return self._parts.settings.table(table)

    def commit_offsets(self, offsets: Offsets, now: Now) -> Pending[None]:
        """Consumer offsets of RocketMQ groups that read by offset. What lies below is done for
        one that also pops (it did before, or some members come in by another door)."""
        self._core.at(now)
        self._parts.offsets.commit(offsets)
        for name, topic, queue_id, offset in offsets:
            group = self._parts.groups.find(f"{POPS}{name}/{topic}")
            queue = self._core.queues.find_message_queue(topic, queue_id)
            if group is not None and queue is not None:
                self._deliveries.books.advance(group, queue, min(offset, queue.next))
        return self._core.wait(None)

    def forget_offsets(self, group: str, now: Now) -> None:
        """All that the RocketMQ group has committed."""
        known = self._parts.offsets.of_group(group)
        if known:
            self._core.at(now)
            rows = [(group, topic, queue_id, -1) for topic, queue_id in known]
            self._parts.offsets.commit(rows)

    def query_offset(self, group: str, topic: str, queue_id: int) -> int:
        """-1: none committed."""
        return self._parts.offsets.get(group, topic, queue_id)

    def offsets_of(self, group: str) -> Mapping[tuple[str, int], int]:
        """(topic, queue id) → offset, of one group."""
        return self._parts.offsets.of_group(group)

    def offset_groups(self) -> Iterable[str]:
        """Groups with committed offsets."""
        return self._parts.offsets.groups()
