"""Who this gateway is to the stores: name, epoch, and how fresh its lease is."""

from collections.abc import Callable


class GatewayPresence:
    """
    Shared by the directory client, which joins, and every store link, which says HELLO with it
    and renews once a second (the directory store answers for the lease, the others for the
    presence there).
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = 0
        """From the directory store; 0: not joined."""

        self.directory = ""
        """``cluster/broker`` of the store that grants the lease."""

        self.applied = 0
        """Highest directory version this gateway has applied; reported with each renewal."""

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

    def joined(self, epoch: int, now: float) -> None:
        self.renewed_at = now
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
