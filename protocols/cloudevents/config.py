"""Settings of one CloudEvents/HTTP listener."""

from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import Field

from protocols.daemon.units import Bytes, Count
from protocols.doors import DoorSettings
from protocols.sections import checked

COMMON_KEYS: Final = frozenset(("protocol", "enabled", "websocket", "path", "advertise"))
"""Keys of every listener that say nothing to this one."""

FROM_HEADER: Final = "from_header "


class CloudEventsConfig(DoorSettings):
    """One listener of protocol ``cloudevents``."""

    bind: str
    """``host:port``; port 0 takes any."""

    tenant: str = ""
    """A fixed tenant, or ``from_header <name>``: the value of that request header."""

    auto_create_topics: bool = True
    """A topic nobody made yet is made by the first event for it."""

    auto_topics_max: Count = Field(default=100, ge=0)
    """Topics one gateway makes this way, at most."""

    body_bytes_max: Bytes = Field(default=4 << 20, ge=1024)
    """Largest event data, in bytes (RocketMQ: maxMessageSize, 4 MiB)."""

    request_bytes_max: Bytes = Field(default=16 << 20, ge=4096)
    """Largest request body, in bytes: a batch is one request."""

    batch_max: Count = Field(default=1000, ge=1)
    """Events in one batch, at most."""

    header_bytes_max: Bytes = Field(default=32 << 10, ge=4096)
    """Largest header field, in bytes (properties of a stored message: 32,767)."""

    handshake_s_max: float = Field(default=10.0, gt=0)
    """A connection without a whole request head by then is closed, in seconds."""

    body_s_max: float = Field(default=30.0, gt=0)
    """A request body must be whole by then, in seconds."""

    idle_s_max: float = Field(default=75.0, gt=0)
    """A connection without a request for so long is closed, in seconds."""

    attempts_max: Count = Field(default=17, ge=1, le=1000)
    """Deliveries of one message to an HTTP pull group before it is a dead letter."""

    webhook_handshake: Literal["require", "off"] = "require"
    """Ask a webhook's target for consent (OPTIONS, WebHook-Request-Origin) before events go."""

    webhook_origin: str = "tidegate"
    """What we call ourselves in that question: a DNS name."""

    webhook_hosts: tuple[str, ...] = ("*",)
    """Hosts (``*`` globs) that subscriptions may name as their sink."""

    webhook_attempts_max: Count = Field(default=10, ge=1, le=1000)
    """Tries before an event goes to the subscription's dead-letter topic."""

    webhook_timeout_s: float = Field(default=10.0, gt=0, le=300)
    """How long a sink may take to answer, in seconds."""

    webhook_parallel_max: Count = Field(default=16, ge=1, le=1000)
    """Events one subscription has under way at once."""

    subscriptions_max: Count = Field(default=10_000, ge=1)
    """Subscriptions of one tenant, at most."""


def cloudevents_config(name: str, section: Mapping[str, Any]) -> CloudEventsConfig:
    """Check one entry of ``listeners:``. Raises ConfigError naming the keys."""
    own = {key: value for key, value in section.items() if key not in COMMON_KEYS}
    return checked(CloudEventsConfig, name, own, "bind")
