"""
Registration: what a broker says about itself, and whether it is believed.

Differences to Apache's ``RouteInfoManager``, each for a fault seen there: a topic table older
than the one that the same connection sent before is not taken (tables are sent asynchronously
and may overtake one another); a broker name that is alive at another address is refused aloud;
a full table makes topics that it lacks vanish when the broker says that it is one.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from namesrv.liveness import Lease, Leases
from namesrv.routes import MASTER_ID, Routes
from protocols.remoting.bodies import DataVersion, TopicConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """One REGISTER_BROKER."""

    cluster: str
    broker: str
    broker_id: int
    address: str
    ha_address: str = ""
    zone: str | None = None
    lease_s: float
    is_acting_master_enabled: bool = False
    is_full_table: bool = False
    """Private to our stores: topics that the table lacks are gone."""

    changes_since: tuple[int, int] | None = None
    """Private to our stores: the table has what changed since the one of this (timestamp,
    counter), ``dropped`` what went."""

    dropped: tuple[str, ...] = ()

    data_version: DataVersion = field(default_factory=DataVersion)
    topics: dict[str, TopicConfig] = field(default_factory=dict)


class RegisterResult(NamedTuple):
    """What the broker is told."""

    refused: str = ""
    """Why it is not believed; empty: it is registered."""

    master_address: str = ""
    ha_address: str = ""
    is_table_taken: bool = False
    is_whole_wanted: bool = False
    """The table that the changes belong to is not known here: send all of it."""


class Registry:
    """Routes and leases, changed together."""

    def __init__(self, *, lost_s_max: float, topics_max: int) -> None:
        self.routes = Routes()
        self.leases = Leases(lost_s_max)
        self.topics_max = topics_max

    def register(self, given: Registration, connection: object, now: float) -> RegisterResult:
        """Take the broker in, or refuse it."""
        if problem := self._problem(given, now):
            return RegisterResult(refused=problem)
        known = self.leases.get(given.cluster, given.address)
        if given.changes_since is not None and (
            known is None or _table_of(known.data_version) != given.changes_since
        ):
            return RegisterResult(refused="changes of an unknown table", is_whole_wanted=True)
        if known is None and len(given.topics) == 1 and not given.is_full_table:
            # What Apache's brokers send when one topic changed: taken for the whole table, it
            # would hide the rest, whose version is the same.
            return RegisterResult(refused="one topic of an unknown broker: register them all")
        if known is not None and known.broker != given.broker:
            self.unregister(known.cluster, known.broker, known.address)
            known = None
        for address in self.routes.put_broker(
            given.cluster,
            given.broker,
            given.broker_id,
            given.address,
            zone=given.zone,
            is_acting_master_enabled=given.is_acting_master_enabled,
        ):
            self.leases.remove(given.cluster, address)
        is_table_taken = self._takes_table(given, known, connection)
        if is_table_taken:
            self._put_topics(given)
        version = given.data_version if is_table_taken or known is None else known.data_version
        self.leases.put(
            Lease(
                cluster=given.cluster,
                broker=given.broker,
                broker_id=given.broker_id,
                address=given.address,
                ha_address=given.ha_address,
                lease_s=given.lease_s,
                renewed_at=now,
                connection=connection,
                data_version=version,
            )
        )
        return self._answer(given, is_table_taken)

    def unregister(self, cluster: str, broker: str, address: str) -> bool:
        """Forget one address of a broker; whether it was known."""
        self.leases.remove(cluster, address)
        found = self.routes.brokers.get(broker)
        if found is None or found.cluster != cluster:
            return False
        is_known = self.routes.remove_address(broker, address)
        if broker not in self.routes.brokers:  # one that is silent is still to be emptied
            self.routes.unwipe(broker)
        return is_known

    def expire(self, now: float) -> list[Lease]:
        """Take brokers whose lease is over out of the routes; which."""
        ended = self.leases.take_ended(now)
        for lease in ended:
            self.routes.remove_address(lease.broker, lease.address)
        return ended

    def data_version(self, cluster: str, address: str) -> DataVersion | None:
        """Of the table last taken from that address."""
        lease = self.leases.get(cluster, address)
        return lease.data_version if lease is not None else None

    # ── inside ──────────────────────────────────────────────────────────────────────────

    def _problem(self, given: Registration, now: float) -> str:
        broker = self.routes.brokers.get(given.broker)
        if broker is None:
            return self._too_many(given)
        if broker.cluster != given.cluster:
            holders = [
                self.leases.get(broker.cluster, address) for address in broker.broker_addrs.values()
            ]
            if any(lease is not None and lease.lost_at is None for lease in holders):
                return (
                    f"broker name '{given.broker}' belongs to cluster '{broker.cluster}', "
                    f"which is alive: choose another name"
                )
            for address in list(broker.broker_addrs.values()):
                self.unregister(broker.cluster, given.broker, address)
            return self._too_many(given)
        other = broker.broker_addrs.get(given.broker_id)
        if other is None or other == given.address:
            return self._too_many(given)
        lease = self.leases.get(given.cluster, other)
        if (
            lease is not None
            and lease.lost_at is None
            and given.data_version.state_version <= lease.data_version.state_version
        ):
            return f"broker '{given.broker}' id {given.broker_id} is alive at {other}"
        return self._too_many(given)

    def _too_many(self, given: Registration) -> str:
        if self.routes.topic_count + len(given.topics) <= self.topics_max:
            return ""
        new = sum(1 for topic in given.topics if self.routes.find(topic) is None)
        if self.routes.topic_count + new <= self.topics_max:
            return ""
        return f"more than {self.topics_max} topics"

    def _takes_table(self, given: Registration, known: Lease | None, connection: object) -> bool:
        if not self.routes.speaks_for_topics(given.broker, given.broker_id):
            return False
        if known is None:
            return True
        new, old = given.data_version, known.data_version
        if new == old:
            return False
        is_older = new.counter < old.counter and new.timestamp <= old.timestamp
        return not (known.connection is connection and is_older)

    def _put_topics(self, given: Registration) -> None:
        if given.is_full_table:
            self.routes.drop_topics(given.broker, given.topics)
        self.routes.drop_listed(given.broker, given.dropped)
        self.routes.put_topics(given.broker, given.topics, given.broker_id)

    def _answer(self, given: Registration, is_table_taken: bool) -> RegisterResult:
        """A replica learns its master's addresses."""
        master = self.routes.brokers[given.broker].broker_addrs.get(MASTER_ID, "")
        if given.broker_id == MASTER_ID or not master:
            return RegisterResult(is_table_taken=is_table_taken)
        lease = self.leases.get(given.cluster, master)
        return RegisterResult(
            master_address=master,
            ha_address=lease.ha_address if lease is not None else "",
            is_table_taken=is_table_taken,
        )


def _table_of(version: DataVersion) -> tuple[int, int]:
    return version.timestamp, version.counter
