"""Which brokers there are and which message queues each of them has. Knows no time."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from namesrv.changes import ChangeLog
from protocols.remoting.bodies import (
    BrokerData,
    ClusterInfo,
    QueueData,
    RouteData,
    TopicConfig,
)
from protocols.remoting.codes import Permission

MASTER_ID = 0

WIPED_MAX: Final = 1000
"""Brokers that a tool has closed and that went without a word; the oldest are forgotten."""

UNIT = 1
UNIT_SUB = 2
"""``TopicSysFlag``."""


class Routes:
    """Topic → broker → queues, broker name → addresses."""

    def __init__(self) -> None:
        self.brokers: dict[str, BrokerData] = {}
        self.changes = ChangeLog()
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._wiped: dict[str, None] = {}
        """Brokers whose write permission a tool has taken, until they unregister."""

    # ── brokers ─────────────────────────────────────────────────────────────────────────

    def put_broker(
        self,
        cluster: str,
        name: str,
        broker_id: int,
        address: str,
        *,
        zone: str | None = None,
        is_acting_master_enabled: bool = False,
    ) -> list[str]:
        """Set one address of a broker; the addresses that it replaces."""
        broker = self.brokers.setdefault(name, BrokerData(cluster=cluster, broker_name=name))
        before = (broker.cluster, broker.zone_name, broker.broker_addrs)
        broker.cluster = cluster
        broker.zone_name = zone
        broker.enable_acting_master = is_acting_master_enabled
        replaced: list[str] = []
        if (old := broker.broker_addrs.get(broker_id)) not in (None, address):
            replaced.append(str(old))
        # A replica that changes its role keeps its address under another id.
        addresses = {
            key: value
            for key, value in broker.broker_addrs.items()
            if value != address and key != broker_id
        }
        addresses[broker_id] = address
        broker.broker_addrs = dict(sorted(addresses.items()))
        if before != (cluster, zone, broker.broker_addrs):
            self.changes.touch_brokers()
        return replaced

    def remove_address(self, name: str, address: str) -> bool:
        """Forget one address; with the last one the broker and its queues go. Whether it was."""
        broker = self.brokers.get(name)
        if broker is None or address not in broker.broker_addrs.values():
            return False
        broker.broker_addrs = {
            key: value for key, value in broker.broker_addrs.items() if value != address
        }
        self.changes.touch_brokers()
        if not broker.broker_addrs:
            del self.brokers[name]
            self.drop_topics(name, ())
        return True

    def speaks_for_topics(self, name: str, broker_id: int) -> bool:
        """The master defines the topics of a broker; without one the replica of lowest id."""
        broker = self.brokers.get(name)
        return broker is not None and broker_id == min(broker.broker_addrs)

    # ── topics ──────────────────────────────────────────────────────────────────────────

    def put_topics(self, name: str, table: Mapping[str, TopicConfig], broker_id: int) -> None:
        """Set the queues that broker *name* has of these topics."""
        for topic, config in table.items():
            permission = config.perm
            if broker_id != MASTER_ID or name in self._wiped:  # an acting master takes no sends
                permission &= ~Permission.WRITE
            queues = QueueData(
                broker_name=name,
                read_queue_nums=config.read_queue_nums,
                write_queue_nums=config.write_queue_nums,
                perm=permission,
                topic_sys_flag=config.topic_sys_flag,
            )
            self._put(topic, queues)

    def put_queues(self, topic: str, queues: Iterable[QueueData]) -> None:
        """Set a topic's queues at the brokers that are known."""
        for queue in queues:
            if queue.broker_name in self.brokers:
                self._put(topic, queue)

    def drop_listed(self, name: str, topics: Iterable[str]) -> None:
        """Forget these topics of broker *name*."""
        for topic in topics:
            if name in self._topics.get(topic, ()):
                self._drop(topic, name)

    def drop_topics(self, name: str, keep: Iterable[str]) -> None:
        """Forget all topics of broker *name* but *keep*."""
        kept = frozenset(keep)
        for topic in [
            topic for topic, queues in self._topics.items() if name in queues and topic not in kept
        ]:
            self._drop(topic, name)

    def drop_topic(self, topic: str, cluster: str = "") -> None:
        """Forget a topic, everywhere or at the brokers of one cluster."""
        for name in list(self._topics.get(topic, ())):
            if not cluster or self._cluster_of(name) == cluster:
                self._drop(topic, name)

    def change_write_permission(self, name: str, is_allowed: bool) -> int:
        """
        Set or clear the write bit of all queues of broker *name*; how many topics.

        What is cleared stays so for topics that come later: a broker that is to be emptied fills
        again otherwise (at Apache's name server, with each topic that is made there).
        """
        if name in self.brokers and not is_allowed:
            self._wiped[name] = None
            if len(self._wiped) > WIPED_MAX:
                del self._wiped[next(iter(self._wiped))]
        else:
            self.unwipe(name)
        count = 0
        for topic, queues in self._topics.items():
            queue = queues.get(name)
            if queue is not None:
                write = Permission.WRITE
                permission = queue.perm | write if is_allowed else queue.perm & ~write
                self._put(topic, msgspec.structs.replace(queue, perm=permission))
                count += 1
        return count

    def unwipe(self, name: str) -> None:
        """Topics of broker *name* that are registered from now on are as it says."""
        self._wiped.pop(name, None)

    def _put(self, topic: str, queues: QueueData) -> None:
        known = self._topics.setdefault(topic, {})
        name = queues.broker_name
        if known.get(name) != queues:
            known[name] = queues
            self.changes.touch(name, topic)

    def _drop(self, topic: str, name: str) -> None:
        queues = self._topics[topic]
        del queues[name]
        self.changes.touch(name, topic)
        if not queues:
            del self._topics[topic]

    def _cluster_of(self, name: str) -> str:
        broker = self.brokers.get(name)
        return broker.cluster if broker is not None else ""

    # ── questions ───────────────────────────────────────────────────────────────────────

    def find(self, topic: str) -> RouteData | None:
        """Queues and brokers of a topic; None if no live broker has it."""
        queues = self._topics.get(topic)
        if not queues:
            return None
        return RouteData(
            queue_datas=[queues[name] for name in sorted(queues)],
            broker_datas=[self.brokers[name] for name in sorted(queues) if name in self.brokers],
        )

    def queues(self, topic: str, name: str) -> QueueData | None:
        """What broker *name* has of a topic."""
        return self._topics.get(topic, {}).get(name)

    def tables(self) -> Iterator[tuple[str, QueueData]]:
        """(topic, queues of one broker), all of them."""
        for topic, queues in self._topics.items():
            for item in queues.values():
                yield topic, item

    def cluster_info(self) -> ClusterInfo:
        clusters: dict[str, list[str]] = {}
        for name in sorted(self.brokers):
            clusters.setdefault(self.brokers[name].cluster, []).append(name)
        return ClusterInfo(broker_addr_table=dict(self.brokers), cluster_addr_table=clusters)

    def topics(self, cluster: str = "") -> list[str]:
        """All topics, or those of one cluster."""
        return [
            topic
            for topic, queues in self._topics.items()
            if not cluster or any(self._cluster_of(name) == cluster for name in queues)
        ]

    def unit_topics(self, *, has_unit: bool | None, has_unit_sub: bool | None) -> list[str]:
        """Topics whose flags are as asked (None: either)."""

        def fits(flag: int) -> bool:
            return has_unit in (None, bool(flag & UNIT)) and has_unit_sub in (
                None,
                bool(flag & UNIT_SUB),
            )

        return [
            topic
            for topic, queues in self._topics.items()
            if any(fits(queue.topic_sys_flag) for queue in queues.values())
        ]

    @property
    def topic_count(self) -> int:
        return len(self._topics)
