"""
Deliveries whose invisible time the gateway renews while their push consumer lives.

A push consumer asks for ``auto_renew`` and keeps the handle it got. A store of ours keeps it
good over renewals, so that any gateway takes an ack by it; an Apache broker gives a new one each
time, and this table leads from the first to the last. It is lost with the gateway: nothing is
renewed then, and messages come back after their invisible time, never before.

Source for the rhythm: proxy ``ReceiptHandleManager`` (60 s, renewed under 10 s, 3 h in all).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from protocols.canonical import ReceiptHandle
from protocols.grpc.clients import Client

INVISIBLE_MS: Final = 60_000
RENEW_BEFORE_S: Final = 20.0
"""Renewed when less than this is left; twice the scan interval and a slow store fit in."""

SCAN_S: Final = 5.0
TOTAL_S_MAX: Final = 3 * 3600.0


@dataclass(slots=True)
class Renewal:
    """One delivery of a push consumer."""

    client: Client
    handle: ReceiptHandle
    began_at: float
    due_at: float
    """When it must be renewed, on the monotonic clock."""


class Renewals:
    """First handle → delivery. Sans-I/O: the service does what ``due`` says."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._entries: dict[str, Renewal] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, text: str, handle: ReceiptHandle, client: Client, *, now: float) -> None:
        """Begin; a full table renews nothing more (the message comes back after 60 s)."""
        if len(self._entries) < self._count_max:
            due_at = now + INVISIBLE_MS / 1000 - RENEW_BEFORE_S
            self._entries[text] = Renewal(client, handle, now, due_at)

    def current(self, text: str) -> ReceiptHandle | None:
        """The handle that counts now for the one a client holds; None: not renewed here."""
        entry = self._entries.get(text)
        return entry.handle if entry else None

    def renewed(self, text: str, handle: ReceiptHandle | None, *, now: float) -> None:
        """The store prolonged it; *handle* is the new one if it changed."""
        entry = self._entries.get(text)
        if entry is not None:
            entry.handle = handle or entry.handle
            entry.due_at = now + INVISIBLE_MS / 1000 - RENEW_BEFORE_S

    def entries(self, texts: Iterable[str]) -> list[tuple[str, Renewal]]:
        """Those of *texts* that are still here."""
        return [(text, self._entries[text]) for text in texts if text in self._entries]

    def remove(self, text: str) -> None:
        self._entries.pop(text, None)

    def of(self, client: Client) -> list[str]:
        """First handles of all deliveries that *client* has."""
        return [text for text, entry in self._entries.items() if entry.client is client]

    def due(self, *, now: float) -> tuple[list[str], list[str]]:
        """First handles to (renew, give back): the latter's clients are gone, or time is up."""
        renew: list[str] = []
        give_back: list[str] = []
        for text, entry in self._entries.items():
            if not entry.client.is_alive(now) or now - entry.began_at > TOTAL_S_MAX:
                give_back.append(text)
            elif now >= entry.due_at:
                renew.append(text)
        return renew, give_back
