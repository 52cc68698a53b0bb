"""
Who is alive: a lease per broker address, held by heartbeats *and* by its connection.

Apache's name server waits up to two minutes for a broker that died without closing its socket;
here the broker's own lease time counts, and a lost connection ends the lease after a moment
unless the broker comes back.
"""

from dataclasses import dataclass

from protocols.remoting.bodies import DataVersion

Address = tuple[str, str]
"""(cluster, ``ip:port``)."""


@dataclass(slots=True, kw_only=True)
class Lease:
    """One broker process as this name server knows it."""

    cluster: str
    broker: str
    broker_id: int
    address: str
    ha_address: str
    lease_s: float
    renewed_at: float
    connection: object
    """Identity of the connection that registered last; compared by ``is``."""

    data_version: DataVersion
    lost_at: float | None = None

    def ends_at(self, lost_s_max: float) -> float:
        """Monotonic time at which it is over if nothing more is heard."""
        silent = self.renewed_at + self.lease_s
        return silent if self.lost_at is None else min(silent, self.lost_at + lost_s_max)


class Leases:
    """All leases. Time comes in, ended leases come out."""

    def __init__(self, lost_s_max: float) -> None:
        self._lost_s_max = lost_s_max
        self._leases: dict[Address, Lease] = {}

    def get(self, cluster: str, address: str) -> Lease | None:
        return self._leases.get((cluster, address))

    def put(self, lease: Lease) -> None:
        self._leases[lease.cluster, lease.address] = lease

    def remove(self, cluster: str, address: str) -> Lease | None:
        return self._leases.pop((cluster, address), None)

    def renew(
        self, cluster: str, address: str, lease_s: float | None, connection: object, now: float
    ) -> bool:
        """A sign of life, on any connection; False: that broker is not registered."""
        lease = self._leases.get((cluster, address))
        if lease is None:
            return False
        lease.renewed_at = now
        lease.connection = connection
        lease.lost_at = None
        if lease_s is not None:
            lease.lease_s = lease_s
        return True

    def prolong(self, seconds: float, now: float) -> None:
        """This name server did not run for so long: that is no silence of the brokers."""
        for lease in self._leases.values():
            lease.renewed_at = min(lease.renewed_at + seconds, now)
            if lease.lost_at is not None:
                lease.lost_at = min(lease.lost_at + seconds, now)

    def connection_lost(self, connection: object, now: float) -> None:
        """The socket of these leases has gone; they end soon unless registered again."""
        for lease in self._leases.values():
            if lease.connection is connection and lease.lost_at is None:
                lease.lost_at = now

    def take_ended(self, now: float) -> list[Lease]:
        """Leases that are over, removed."""
        ended = [lease for lease in self._leases.values() if lease.ends_at(self._lost_s_max) <= now]
        for lease in ended:
            del self._leases[lease.cluster, lease.address]
        return ended

    @property
    def deadline(self) -> float | None:
        """When ``take_ended`` next has something to say."""
        ends = [lease.ends_at(self._lost_s_max) for lease in self._leases.values()]
        return min(ends) if ends else None

    def __len__(self) -> int:
        return len(self._leases)
