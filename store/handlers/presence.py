"""
Presence: whether this store still hears a gateway (semantics page, Lease and presence).

Judged by each store alone: its data connection lost for a second, or three seconds of silence,
ends it; its streams' deliveries return in place, and that gateway epoch is not heard again
until a HELLO shows a lease renewed since its connection was opened. Any request counts as
life, on the data or the control connection.
"""

from collections.abc import Hashable, Iterable
from typing import NamedTuple

Link = Hashable
"""A connection, as far as presence cares."""


class GatewayKey(NamedTuple):
    """One life of one gateway."""

    gateway: str
    epoch: int


class Presence:
    """One gateway epoch at this store."""

    __slots__ = ("control", "data", "heard", "is_ended", "key", "lost_at")

    def __init__(self, key: GatewayKey, now: float) -> None:
        self.key = key
        self.data: set[Link] = set()
        self.control: set[Link] = set()
        self.heard = now
        self.lost_at: float | None = None
        """When its last data connection was lost; None: it has one, or had none yet."""
        self.is_ended = False

    def ends_at(self, *, lost_s: float, silence_s: float) -> float:
        """The moment its presence ends if nothing more is heard."""
        ends = self.heard + silence_s
        return ends if self.lost_at is None else min(ends, self.lost_at + lost_s)


class Presences:
    """All gateways heard of. Times are monotonic seconds, handed in."""

    def __init__(self, *, lost_s: float, silence_s: float) -> None:
        self._lost_s = lost_s
        self._silence_s = silence_s
        self._presences: dict[GatewayKey, Presence] = {}
        self._ended: dict[GatewayKey, None] = {}

    def live(self) -> Iterable[Presence]:
        return self._presences.values()

    def find(self, key: GatewayKey) -> Presence | None:
        return self._presences.get(key)

    def may_enter(self, key: GatewayKey, *, renewed_at: float, opened_at: float) -> bool:
        """
        Whether a HELLO is accepted.

        Args:
            renewed_at: when its lease was last renewed, as the HELLO tells.
            opened_at: when its connection was opened.
        """
        return key not in self._ended or renewed_at >= opened_at

    def enter(self, key: GatewayKey, link: Link, *, is_control: bool, now: float) -> Presence:
        """A HELLO was accepted on *link*."""
        self._ended.pop(key, None)
        presence = self._presences.get(key)
        if presence is None:
            presence = self._presences[key] = Presence(key, now)
        presence.heard = now
        if is_control:
            presence.control.add(link)
        else:
            presence.data.add(link)
            presence.lost_at = None
        return presence

    def leave(self, presence: Presence, link: Link, now: float) -> None:
        """The connection *link* is gone."""
        presence.control.discard(link)
        if link in presence.data:
            presence.data.discard(link)
            if not presence.data:
                presence.lost_at = now

    def end(self, key: GatewayKey) -> Presence | None:
        """End it now (fenced, left)."""
        presence = self._presences.pop(key, None)
        if presence is not None:
            presence.is_ended = True
        self._ended[key] = None
        while len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]
        return presence

    def take_ended(self, now: float) -> list[Presence]:
        """End and return those that have been lost or silent for too long."""
        due = [
            presence
            for presence in self._presences.values()
            if presence.ends_at(lost_s=self._lost_s, silence_s=self._silence_s) <= now
        ]
        for presence in due:
            self.end(presence.key)
        return due

    def prolong(self, seconds: float, now: float) -> None:
        """This store did not run for so long: nobody was silent meanwhile."""
        for presence in self._presences.values():
            presence.heard = min(presence.heard + seconds, now)
            if presence.lost_at is not None:
                presence.lost_at = min(presence.lost_at + seconds, now)

    def deadline(self) -> float | None:
        """When ``take_ended`` is next worth a call."""
        return min(
            (
                presence.ends_at(lost_s=self._lost_s, silence_s=self._silence_s)
                for presence in self._presences.values()
            ),
            default=None,
        )


ENDED_MAX = 10_000
"""Ended gateway epochs remembered; older ones are fenced or gone for good by then."""
