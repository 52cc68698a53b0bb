"""
Leases of gateways: granted and ended by records, renewed in memory.

A lease is a directory record ``gateway/<name>`` bound to itself: (gateway, gateway epoch), the
epoch being the version of that record. Its end, and the end of all that is bound to it, are one
block. After a restart every lease runs a full term anew. (Semantics page, "Lease and presence".)
"""

from typing import Final

import msgspec

from protocols.clock import Now
from protocols.errors import Code, Refused
from protocols.remoting.private import Join
from store.answers import LEASE_PREFIX, EndReason
from store.core import Core
from store.log.format import Kind
from store.log.state import pack
from store.metadata.directory import DirectoryTable, Row

ENDED_MAX: Final = 10_000
"""Ended leases that are remembered for barriers."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Join).decode


class Lease:
    """A live gateway."""

    __slots__ = ("applied", "epoch", "gateway", "instance", "renewed")

    def __init__(self, gateway: str, epoch: int, instance: str, renewed: float) -> None:
        self.gateway = gateway
        self.epoch = epoch
        self.instance = instance
        self.renewed = renewed
        """Monotonic."""

        self.applied = 0
        """Highest directory version that the gateway has reported as applied."""


class Leases:
    """Who is alive, by this store's monotonic clock."""

    def __init__(self, core: Core, directory: DirectoryTable) -> None:
        self._core = core
        self._directory = directory
        self._live: dict[str, Lease] = {}
        self._ended: list[tuple[int, str, int]] = []
        """(version of the end, gateway, epoch)."""

    def join(self, request: Join, now: Now) -> Lease:
        """A new epoch. Raises Refused if another live process has the name."""
        lease = self._live.get(request.gateway)
        if lease is not None:
            is_late = now.monotonic - lease.renewed > self._core.config.lease_s
            if lease.instance != request.instance and not is_late:
                hint = "another live gateway has this name"
                raise Refused(Code.PRECONDITION_FAILED, request.gateway, hint)
            self.end(lease, EndReason.REPLACED)
        epoch = self._directory.next_version()
        key = LEASE_PREFIX + request.gateway
        self._directory.write(key, _encode(request), (request.gateway, epoch))
        lease = Lease(request.gateway, epoch, request.instance, now.monotonic)
        self._live[request.gateway] = lease
        return lease

    def renew(self, gateway: str, epoch: int, applied: int, now: Now) -> bool:
        lease = self._find(gateway, epoch)
        if lease is None:
            return False
        lease.renewed = now.monotonic
        lease.applied = max(lease.applied, applied)
        return True

    def prolong(self, seconds: float, now: Now) -> None:
        """This store did not run for so long and heard nobody: that is no silence of theirs."""
        for lease in self._live.values():
            lease.renewed = min(lease.renewed + seconds, now.monotonic)

    def is_live(self, gateway: str, epoch: int) -> bool:
        return self._find(gateway, epoch) is not None

    def leave(self, gateway: str, epoch: int) -> None:
        lease = self._find(gateway, epoch)
        if lease is not None:
            self.end(lease, EndReason.LEFT)

    def lose(self, gateway: str, epoch: int) -> None:
        """Its process is gone: nobody waits for the end of the term."""
        lease = self._find(gateway, epoch)
        if lease is not None:
            self.end(lease, EndReason.LOST)

    def end(self, lease: Lease, reason: EndReason) -> None:
        """One record: the lease's end and the deletion of all that is bound to it."""
        rows = self._directory.end_bound(lease.gateway, lease.epoch)
        self._core.log.state(Kind.LEASE_END, pack(lease.gateway, lease.epoch, int(reason), rows))
        self._directory.show_later(rows)
        del self._live[lease.gateway]
        self._note_end(lease.gateway, lease.epoch, rows)

    def tick(self, now: Now) -> float | None:
        """End what was not renewed in time; when the next one would be."""
        lease_s = self._core.config.lease_s
        for lease in list(self._live.values()):
            if now.monotonic - lease.renewed > lease_s:
                self.end(lease, EndReason.EXPIRED)
        renewed = [lease.renewed for lease in self._live.values()]
        return min(renewed) + lease_s if renewed else None

    def not_applied(self, version: int) -> set[tuple[str, int]]:
        return {
            (lease.gateway, lease.epoch) for lease in self._live.values() if lease.applied < version
        }

    def ended_since(self, version: int) -> list[tuple[str, int]]:
        return [(gateway, epoch) for at, gateway, epoch in self._ended if at > version]

    def _find(self, gateway: str, epoch: int) -> Lease | None:
        lease = self._live.get(gateway)
        return lease if lease is not None and lease.epoch == epoch else None

    def _note_end(self, gateway: str, epoch: int, rows: list[Row]) -> None:
        version = max([row[2] for row in rows], default=self._directory.last_version)
        self._ended.append((version, gateway, epoch))
        del self._ended[:-ENDED_MAX]

    # ── replay ──────────────────────────────────────────────────────────────────────────

    def apply_end(self, gateway: str, epoch: int, rows: list[Row]) -> None:
        self._directory.apply(rows)
        self._note_end(gateway, epoch, rows)

    def rebuild(self, now: Now) -> None:
        """After replay: every lease record that stands is a live lease, for a full term."""
        for record in self._directory.read(0, 1 << 62)[0]:
            if record.key.startswith(LEASE_PREFIX) and record.value is not None:
                join = _decode(record.value)
                lease = Lease(record.gateway, record.gateway_epoch, join.instance, now.monotonic)
                self._live[record.gateway] = lease
