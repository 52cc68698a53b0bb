"""What a store keeps about gateways: their leases and directory, frames and once-keys."""

from collections.abc import Sequence

from protocols.clock import Now
from protocols.errors import Code, Refused
from protocols.remoting.private import (
    DirectoryRecord,
    DirectoryWrite,
    Join,
    Joined,
    SettleAnswer,
)
from protocols.remoting.sending import encode_send_answer
from store.answers import Pending
from store.core import Core
from store.groups.deliveries import Deliveries
from store.log.format import Kind
from store.log.state import pack
from store.parts import Parts


class Gateways:
    """Part of the engine; refusals are raised."""

    def __init__(self, core: Core, parts: Parts, deliveries: Deliveries) -> None:
        self._core = core
        self._parts = parts
        self._deliveries = deliveries

    # ── frames and once-keys ────────────────────────────────────────────────────────────

    def last_frame(self, gateway: str, gateway_epoch: int) -> int:
        """Highest frame number of that epoch that ran or was spent; 0: none (HELLO)."""
        known = self._parts.frames.find(gateway)
        is_same = known is not None and known.epoch == gateway_epoch
        return known.last_frame if known is not None and is_same else 0

    def settle(
        self, gateway: str, gateway_epoch: int, frame: int, now: Now
    ) -> Pending[SettleAnswer]:
        """
        What became of a frame; one that never ran is spent from now on.

        Told also of an epoch that is fenced: none of its frames will run any more, and its gateway
        cannot go on under another one before it knows. Raises Refused for one before the latest.
        """
        self._core.at(now)
        frames = self._parts.frames
        known = frames.get(gateway)
        if gateway_epoch != known.epoch and gateway_epoch <= known.fenced:
            return self._core.wait(SettleAnswer(did_run=False))
        if gateway_epoch > known.fenced:
            frames.enter(known, gateway_epoch)
        answer = frames.result(known, frame)
        if answer is not None:
            return self._core.wait(SettleAnswer(did_run=True, answer=encode_send_answer(answer)))
        if frame > known.last_frame:
            self._core.log.state(Kind.SETTLED, pack(known.number, gateway_epoch, frame))
            frames.apply_settled(known.number, gateway_epoch, frame)
        return self._core.wait(SettleAnswer(did_run=False))

    def fence(self, gateway: str, gateway_epoch: int, now: Now) -> Pending[None]:
        """Refuse frames of this and earlier epochs of *gateway* from now on, for good."""
        self._core.at(now)
        known = self._parts.frames.get(gateway)
        if gateway_epoch > known.fenced:
            self._core.log.state(Kind.FENCE, pack(known.number, gateway_epoch))
            self._parts.frames.apply_fence(known.number, gateway_epoch)
        return self._core.wait(None)

    def is_fenced(self, gateway: str, gateway_epoch: int) -> bool:
        known = self._parts.frames.find(gateway)
        return known is not None and gateway_epoch <= known.fenced

    def release_once(self, keys: Sequence[bytes], now: Now) -> Pending[None]:
        """These once-keys may name other messages from now on."""
        self._core.at(now)
        known = self._parts.once.known(keys)
        if known:
            self._core.log.state(Kind.ONCE_RELEASE, pack(*known))
            self._parts.once.release(known)
        return self._core.wait(None)

    def find_once(self, keys: Sequence[bytes], now: Now) -> Pending[bytes]:
        """1 for each once-key that has a message here, 0 for the others."""
        self._core.at(now)
        find, wall_ms = self._parts.once.find, self._core.log.wall_ms
        return self._core.wait(bytes([find(key, wall_ms) is not None for key in keys]))

    @property
    def exchange_count(self) -> int:
        """QoS 2 publishes here whose exchange is not over, as far as is known."""
        return self._parts.once.exchange_count

    # ── leases and the directory ────────────────────────────────────────────────────────

    def directory_put(
        self, gateway: str, gateway_epoch: int, writes: Sequence[DirectoryWrite], now: Now
    ) -> Pending[list[tuple[bool, DirectoryRecord]]]:
        """Conditional writes, all in one block. Raises Refused(PRECONDITION_FAILED) if the
        gateway's lease has ended (gateway "" is the store itself)."""
        self._core.at(now)
        if gateway and not self._parts.leases.is_live(gateway, gateway_epoch):
            raise Refused(Code.PRECONDITION_FAILED, gateway, "its lease has ended: join again")
        return self._core.wait(self._parts.directory.put(gateway, gateway_epoch, writes))

    def directory_read(self, after: int, count_max: int) -> tuple[list[DirectoryRecord], int]:
        """(latest records with version > *after*, durable ones only; version covered)."""
        return self._parts.directory.read(after, count_max)

    def give_directory(self) -> tuple[list[DirectoryRecord], int]:
        """What moves with the directory: all that is bound to no lease; the highest version."""
        return self._parts.directory.unbound(), self._parts.directory.last_version

    def take_directory(
        self, records: Sequence[DirectoryRecord], version: int, now: Now
    ) -> Pending[int]:
        """A directory from elsewhere, of that *version*; how many records."""
        self._core.at(now)
        self._parts.directory.take(records, version)
        return self._core.wait(len(records))

    @property
    def directory_head(self) -> int:
        """Highest durable version."""
        return self._parts.directory.head

    def join(self, request: Join, now: Now) -> Pending[Joined]:
        """Grant a lease; its record's version is the gateway epoch. The same *instance* again
        ends its earlier epoch; another live one is Refused(PRECONDITION_FAILED)."""
        self._core.at(now)
        lease = self._parts.leases.join(request, now)
        lease_ms = int(self._core.config.lease_s * 1000)
        joined = Joined(gateway_epoch=lease.epoch, lease_ms=lease_ms, version=lease.epoch)
        return self._core.wait(joined)

    def renew(self, gateway: str, gateway_epoch: int, applied: int, now: Now) -> bool:
        """False: the lease has ended. Needs no disk."""
        return self._parts.leases.renew(gateway, gateway_epoch, applied, now)

    def prolong_leases(self, seconds: float, now: Now) -> None:
        """For a caller that did not run for so long, and heard no renewals (of deliveries too)."""
        self._parts.leases.prolong(seconds, now)
        self._deliveries.prolong(seconds)

    def leave(self, gateway: str, gateway_epoch: int, now: Now) -> Pending[None]:
        self._core.at(now)
        self._parts.leases.leave(gateway, gateway_epoch)
        return self._core.wait(None)

    def lose(self, gateway: str, gateway_epoch: int, now: Now) -> None:
        """End the lease of one whose process is gone."""
        self._core.at(now)
        self._parts.leases.lose(gateway, gateway_epoch)

    def not_applied(self, version: int) -> set[tuple[str, int]]:
        """(gateway, epoch) with a lease that have not applied *version* yet; empty: the barrier
        is passed. Ask again after ``renew`` and when ``is_directory_changed``."""
        return self._parts.leases.not_applied(version)

    def leases_ended_since(self, version: int) -> list[tuple[str, int]]:
        """(gateway, epoch) whose leases ended after *version* was written: to be fenced."""
        return self._parts.leases.ended_since(version)
