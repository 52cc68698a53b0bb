"""
Where state lives that no gateway may lose: one compacted table, copied to every gateway.

Implemented in ``gateway/directory``.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from protocols.canonical import QueueRef


class Record(NamedTuple):
    """One keyed record of the directory."""

    key: str
    value: bytes | None
    """None: deleted."""

    version: int
    """Its offset in the directory; rises with each write of any key."""

    gateway: str = ""
    gateway_epoch: int = 0
    """Whom it is bound to; the directory store deletes it when that lease ends; "" = nobody."""


class Put(NamedTuple):
    """One conditional write."""

    key: str
    value: bytes | None
    if_version: int | None = None
    """Write only if the key's version is this (0: absent); None: always."""

    is_bound: bool = False
    """End with this gateway's lease."""


class PutResult(NamedTuple):
    """The winner of a put: ours, or the record that was there."""

    is_ours: bool
    record: Record


class Subscription(NamedTuple):
    """
    A row of the matching table: who wants which addresses. Key ``filter/<tenant>/<owner>/<n>``.

    Written by any protocol, read by the gateway's router alone (``Directory.subscribe``).
    """

    subject_filter: str
    """MQTT syntax, ``+`` and ``#``."""

    queue: QueueRef
    owner: str
    """Group name of the reader; rows of one owner go together."""


class Directory(Protocol):
    """Every gateway's copy of the one compacted table. Keys are ``kind/…``, values msgpack."""

    def get(self, key: str) -> Record | None:
        """From the local table: exact for own writes, behind by the tail's lag for others'."""
        ...

    def items(self, prefix: str) -> Iterable[Record]:
        """All live records whose key starts with *prefix*."""
        ...

    def watch(
        self, prefix: str, listener: Callable[[Sequence[Record]], None]
    ) -> Callable[[], None]:
        """Call *listener* with each change under *prefix*, deletions too; returns the undo."""
        ...

    async def put(self, puts: Sequence[Put]) -> list[PutResult]:
        """Write; the own table has the outcome when this returns. Raises Refused after 10 s."""
        ...

    async def subscribe(
        self,
        add: Sequence[Subscription],
        remove: Sequence[Subscription] = (),
        *,
        tenant: str = "",
        is_bound: bool = False,
    ) -> int:
        """Write and delete rows of the matching table; the version to pass to ``barrier``."""
        ...

    async def barrier(self, version: int) -> None:
        """
        Return when every gateway that may still route has applied *version*.

        Waits for each gateway with a lease; one whose lease ends is fenced at every reachable
        store first. Raises Refused if the directory is away for 10 s.
        """
        ...

    async def catch_up(self) -> None:
        """Read to the head of the directory, for a name that was not found locally."""
        ...

    @property
    def gateway(self) -> str: ...

    @property
    def gateway_epoch(self) -> int: ...

    def is_live(self, gateway: str, gateway_epoch: int) -> bool:
        """That lease has not ended, as far as the local table knows."""
        ...
