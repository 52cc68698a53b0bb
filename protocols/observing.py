"""What the gateway shows of itself, and adapters tell it: metrics, clients, traces, draining."""

from collections.abc import Callable
from typing import NamedTuple, Protocol


class Meter(Protocol):
    """A metric child, held by its user; ``labels`` is never called per message."""

    def inc(self, amount: float = 1) -> None: ...


class Metrics(Protocol):
    """Where adapters get their meters; Prometheus behind it."""

    def counter(self, name: str, help_text: str, **labels: str) -> Meter:
        """``tidegate_<name>_total`` with these labels, one child."""
        ...

    def gauge(self, name: str, help_text: str, read: Callable[[], float], **labels: str) -> None:
        """``tidegate_<name>``, read when scraped."""
        ...


class ClientInfo(NamedTuple):
    """A connection, for ``GET /api/clients``."""

    protocol: str
    listener: str
    client_id: str
    identity: str
    peer: str
    connected_ms: int
    tenant: str = ""


class Clients(Protocol):
    """Who is connected, over all protocols."""

    def joined(
        self,
        info: ClientInfo,
        kick: Callable[[], None],
        leave: Callable[[], None] | None = None,
    ) -> Callable[[], None]:
        """
        Register a connection; call the result when it ends.

        *leave* asks it politely to go to another gateway; absent: it goes when its listener
        closes.
        """
        ...


class Draining(Protocol):
    """Whether this gateway sends its clients to others; asked when a client connects or leaves."""

    @property
    def is_on(self) -> bool: ...

    def another(self, listener: str) -> str:
        """``host:port`` of a like listener of another gateway; empty: none is known."""
        ...


class Observer(Protocol):
    """Traces and slow subscribers: asked per read or batch, told only when somebody looks."""

    @property
    def is_tracing(self) -> bool:
        """Some trace is running: tell of everything."""
        ...

    def trace(
        self, event: str, *, client_id: str, peer: str, topic: str = "", detail: str = ""
    ) -> None: ...

    @property
    def slow_ms(self) -> int:
        """From which latency on ``slow`` is to be called."""
        ...

    def slow(self, client_id: str, topic: str, latency_ms: int) -> None: ...
