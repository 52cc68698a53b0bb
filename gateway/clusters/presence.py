"""Who this gateway is to the stores: name, epoch, and how fresh its lease is."""

from collections.abc import Callable
from typing import Final

BEAT_S: Final = 1.0
BEATS_PER_LEASE: Final = 3
"""Two renewals may be lost or late before the third decides."""


class GatewayPresence:
    """
    Shared by the directory client, which joins, and every store link, which says HELLO with it
    and renews once a second, or three times in a shorter term (the directory store answers for
    the lease, the others for the presence there).
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = 0
        """From the directory store; 0: not joined."""

        self.directory = ""
        """``cluster/broker`` of the store that grants the lease."""

        self.applied = 0
        """Highest directory version this gateway has applied; reported with each renewal."""

        self.beat_s = BEAT_S
        """How often a renewal is sent."""

        self.renewed_at = 0.0
        """Monotonic seconds when the last successful renewal of the lease was *sent*."""

        self._changed: list[Callable[[], None]] = []
        self._suspected: list[Callable[[], None]] = []

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call *listener* when the epoch changes."""
        self._changed.append(listener)

    def on_suspect(self, listener: Callable[[], None]) -> None:
        """Call *listener* when a store says that this epoch is over."""
        self._suspected.append(listener)

    def joined(self, epoch: int, now: float, *, lease_ms: int) -> None:
        self.renewed_at = now
        self.beat_s = min(BEAT_S, lease_ms / 1000 / BEATS_PER_LEASE)
        self._set_epoch(epoch)

    def renewed(self, epoch: int, now: float) -> None:
        """The directory store prolonged the lease of *epoch* when asked at *now*."""
        if epoch == self.epoch:
            self.renewed_at = max(self.renewed_at, now)

    def suspect(self) -> None:
        """A store refused this epoch: the lease has ended, or will be found to have."""
        for listener in self._suspected:
            listener()

    def ended(self) -> None:
        """The lease is over: no epoch until the next join."""
        self._set_epoch(0)

    def age_ms(self, now: float) -> int:
        """Age of the last renewal, for HELLO."""
        return max(0, round((now - self.renewed_at) * 1000))

    def _set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch = epoch
            for listener in self._changed:
                listener()
