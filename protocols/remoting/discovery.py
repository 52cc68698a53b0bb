"""
What gateways, stores and name servers of ours tell one another beyond standard RocketMQ codes.

Gateways register to be found by clients; they watch the routes by change instead of polling
every topic; stores register a changed topic without the twenty thousand others.
"""

from typing import Final

import msgspec


class _Body(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Unknown fields are ignored and missing ones default: both ends may be upgraded alone."""


def encode_body(body: _Body) -> bytes:
    return msgspec.msgpack.encode(body)


# ── gateways at the name server ─────────────────────────────────────────────────────────


class GatewayListener(_Body, frozen=True, kw_only=True):
    """One door of a gateway."""

    name: str
    protocol: str
    address: str
    """``host:port`` that clients reach it by."""

    is_tls: bool = False


class GatewayRegister(_Body, frozen=True, kw_only=True):
    """
    Sent on connect and every few seconds; kept while the connection lasts and for *lease_ms*.

    For clients that look for a gateway (``tidegate namesrv gateways``); no route is made of it.
    """

    gateway: str
    protocols: dict[str, str] = {}
    """listener → host:port."""

    zone: str = ""
    connection_count: int = 0
    messages_per_s: int = 0
    lease_ms: int = 15_000
    listeners: list[GatewayListener] = []
    clusters: list[str] = []
    """Broker clusters (as this name server calls them) whose topics it serves."""

    is_draining: bool = False
    """Takes no new clients: nobody is sent there."""


class GatewayList(_Body, frozen=True, kw_only=True):
    gateways: list[GatewayRegister] = []
    """Best first: of the asked zone, then by load."""

    partitions: list[tuple[str, str, int]] = []
    """(broker cluster, broker, writable queues) of the topic that was asked for."""


# ── watching a name server's routes ─────────────────────────────────────────────────────

DEFLATED: Final = "deflated"
"""Header field of an answer: its body is a zlib stream."""

TAKES_CHANGES: Final = "takesChanges"
"""Header field in the answer to REGISTER_BROKER: next time the changed topics will do."""

CHANGES_SINCE: Final = "changesSince"
"""Header field of REGISTER_BROKER: ``timestamp:counter`` of the table this one changes; the
body has the topics that are new or others, ``DROPPED_TOPICS`` the names of those gone."""

DROPPED_TOPICS: Final = "droppedTopics"

TopicRow = tuple[str, int, int, int]
"""(topic, readable queues, writable queues, permission bits); -1 queues: it is gone."""


class RouteWatch(_Body, frozen=True, kw_only=True):
    """What changed after version *since* of that *instance*; waits up to *wait_ms* for it."""

    cluster: str = ""
    """Broker cluster; empty: all."""

    instance: str = ""
    since: int = 0
    wait_ms: int = 0


class BrokerFacts(_Body, frozen=True, kw_only=True):
    name: str
    cluster: str
    address: str
    """Of its master; empty: there is none."""

    zone: str = ""
    table: tuple[int, int, int] = (0, 0, 0)
    """(state version, timestamp, counter) of its topic table: name servers compare by it."""


class RouteChanges(_Body, frozen=True, kw_only=True):
    instance: str
    version: int
    is_full: bool = False
    """The rows are all there are; otherwise those that changed."""

    brokers: list[BrokerFacts] = []
    """All of them, each time."""

    topics: dict[str, list[TopicRow]] = {}
    """By broker."""

    expected: list[str] = []
    """Brokers that were there before this name server was restarted and have not come back."""
