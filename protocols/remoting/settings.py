"""One remoting listener's part of ``gateway.yaml``."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from protocols.daemon.units import Bytes, Count, DurationMs
from protocols.doors import DoorSettings
from protocols.sections import checked


class RemotingSettings(DoorSettings):
    """Keys of a RocketMQ remoting listener, and of ``remoting:`` for all of them."""

    protocol: str = "remoting"
    enabled: bool = True
    bind: str = "127.0.0.1:8080"
    """``host:port``; port 0: any."""

    advertise: str = ""
    """``host:port`` that route answers name; empty: what the client itself dialled."""

    tenant: str = ""
    """A fixed tenant for all clients of this listener."""

    websocket: bool = False
    path: str = ""
    auto_create_topics: bool = True
    """A topic nobody made yet is made when a client sends to it or asks for its route."""

    auto_topics_max: Count = Field(default=100, ge=0)
    """Topics one gateway makes this way, at most."""

    new_groups: Literal["client", "earliest", "end"] = "client"
    """Where a consumer group that the store does not know begins to read; ``client``: as its
    first consumer asks (consumeFromWhere)."""

    attempts_max: Count = Field(default=17, ge=1, le=1000)
    """Deliveries of one message to a consumer group before it goes to ``%DLQ%<group>``
    (RocketMQ: retryMaxTimes 16, plus the first)."""

    body_bytes_max: Bytes = Field(default=4 << 20, ge=1024)
    """Largest message body, in bytes (RocketMQ: maxMessageSize)."""

    invisible_ms: DurationMs = Field(default=60_000, ge=5000, le=600_000)
    """How long messages stay with a push consumer whose gateway is gone; renewed meanwhile, at a
    third of it. 4.x clients say who they are each 30 s only, also over a new connection."""

    trace: bool = True
    """Clients that trace are told to send their traces (topic ``RMQ_SYS_TRACE_TOPIC``)."""

    held_max: Count = Field(default=8192, ge=64)
    """Messages that one client of one group may hold unacknowledged."""

    connections_max: Count = Field(default=20_000, ge=1)
    """Open connections of this listener."""


def read_settings(name: str, section: Mapping[str, Any]) -> RemotingSettings:
    """Check one entry of ``listeners:``. Raises ConfigError naming the keys."""
    return checked(RemotingSettings, name, section, "bind", "advertise")
