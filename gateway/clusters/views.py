"""
What one name server says, and what several of them say together.

Pure. A broker's topic table has a version that the broker itself gives it, so two name servers
that disagree about a broker can be compared: the newer table counts. Where they have the same
version, a topic that one of them lacks is there, and a permission that one of them has taken away
is gone (a tool told them one after the other).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from protocols.remoting.bodies import ClusterInfo, RouteData
from protocols.remoting.discovery import RouteChanges

MASTER_ID: Final = 0


class Entry(NamedTuple):
    """The message queues that one broker has of one topic."""

    readable_count: int
    writable_count: int
    permission: int


Table = dict[str, Entry]
"""Topic → its queues at one broker."""


class Broker(NamedTuple):
    """One broker, as a name server has it."""

    cluster: str
    address: str
    zone: str = ""
    table: tuple[int, int, int] = (0, 0, 0)
    """Version of its topic table; zeros: not told."""


class View:
    """The word of one name server. A view outlives the connection it came by."""

    def __init__(self) -> None:
        self.brokers: dict[str, Broker] = {}
        self.tables: dict[str, Table] = {}
        self.names: frozenset[str] = frozenset()
        """Topics known by name only (Apache's name servers tell queues topic by topic)."""

        self.node_filters: Mapping[str, Sequence[str]] = {}
        """First level → filters that nodes of Apache rocketmq-mqtt read queues of."""

        self.instance = ""
        self.version = 0
        self.expected: tuple[str, ...] = ()

    # ── ours: all of it, by change ──────────────────────────────────────────────────────

    def take_changes(self, changes: RouteChanges) -> set[str]:
        """Apply an answer; the topics that are others now."""
        self.instance, self.version = changes.instance, changes.version
        self.expected = tuple(changes.expected)
        self.brokers = {
            item.name: Broker(item.cluster, item.address, item.zone, item.table)
            for item in changes.brokers
            if item.address
        }
        touched: set[str] = set()
        old = self.tables
        self.tables = {name: {} if changes.is_full else old.get(name, {}) for name in self.brokers}
        for name, rows in changes.topics.items():
            table = self.tables.get(name)
            if table is None:
                continue
            for topic, readable, writable, permission in rows:
                if readable < 0:
                    table.pop(topic, None)
                else:
                    table[topic] = Entry(readable, writable, permission)
                touched.add(topic)
        if changes.is_full or old.keys() - self.tables.keys():
            for table in old.values():
                touched.update(table)
        return touched

    # ── Apache's: asked piece by piece ──────────────────────────────────────────────────

    def take_brokers(self, info: ClusterInfo) -> None:
        self.brokers = {
            name: Broker(data.cluster, data.broker_addrs[MASTER_ID], data.zone_name or "")
            for name, data in info.broker_addr_table.items()
            if MASTER_ID in data.broker_addrs
        }
        self.tables = {name: self.tables.get(name, {}) for name in self.brokers}

    def take_route(self, topic: str, route: RouteData | None, *, denies: bool) -> bool:
        """
        The whole route of a topic; whether it is another one now.

        Without *denies* what it lacks stays: it came from a name server that has not said yet
        which brokers it knows.
        """
        rows = {
            item.broker_name: Entry(item.read_queue_nums, item.write_queue_nums, item.perm)
            for item in (route.queue_datas if route is not None else ())
        }
        is_new = False
        for name, table in self.tables.items():
            entry = rows.get(name)
            if table.get(topic) == entry or (entry is None and not denies):
                continue
            is_new = True
            if entry is None:
                table.pop(topic, None)
            else:
                table[topic] = entry
        return is_new

    def asked_topics(self) -> list[str]:
        """Topics whose route was asked for, in a stable order."""
        return list(dict.fromkeys(topic for table in self.tables.values() for topic in table))


class Sources(NamedTuple):
    """What is believed of one broker."""

    broker: Broker
    tables: tuple[Table, ...]


def merge(views: Iterable[View], broker_cluster: str) -> dict[str, Sources]:
    """Broker name → what the name servers together say of it; *views*: last heard last."""
    found: dict[str, Sources] = {}
    for view in views:
        for name, broker in view.brokers.items():
            if broker.cluster != broker_cluster:
                continue
            known = found.get(name)
            table = view.tables[name]
            if known is None or known.broker.table < broker.table:
                found[name] = Sources(broker, (table,))
            elif known.broker.table == broker.table:
                found[name] = Sources(broker, (*known.tables, table))
    return found


def entry_of(tables: Sequence[Table], topic: str) -> Entry | None:
    """The queues of *topic* at one broker, from equally new tables."""
    entries = [table[topic] for table in tables if topic in table]
    if not entries:
        return None
    permission = entries[0].permission
    for entry in entries[1:]:
        permission &= entry.permission
    return entries[-1]._replace(permission=permission)


def clusters_of(views: Iterable[View]) -> list[str]:
    """Names of the broker clusters that have a broker."""
    return sorted({broker.cluster for view in views for broker in view.brokers.values()})


def addresses_of(sources: Mapping[str, Sources]) -> dict[str, str]:
    return {name: item.broker.address for name, item in sources.items()}
