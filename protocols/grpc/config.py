"""Settings of one gRPC listener."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from protocols.checking import CheckedModel
from protocols.daemon.units import Bytes, Count
from protocols.sections import checked

COMMON_KEYS: Final = frozenset(("protocol", "enabled", "websocket", "path"))
"""Keys of every listener that say nothing to this one."""


class TlsFiles(BaseModel, frozen=True, from_attributes=True):
    """Where the certificate is."""

    cert: Path
    """PEM file with the certificate chain."""

    key: Path
    """PEM file with its private key."""

    client_ca: Path | None = None
    """PEM file; with it clients must show a certificate of this authority."""


class GrpcConfig(CheckedModel):
    """
    One listener of protocol ``grpc``. A gRPC port speaks either TLS or plain text, not both.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    bind: str
    """``host:port``; port 0 takes any."""

    advertise: str = ""
    """``host:port`` that route answers name; empty: what the client itself dialled."""

    tls: TlsFiles | None = None
    tenant: str = ""
    """A fixed tenant, or ``from_namespace``: the namespace the client was configured with."""

    auto_create_topics: bool = True
    """A topic nobody made yet is made when a client asks for its route."""

    auto_topics_max: Count = Field(default=100, ge=0)
    """Topics one gateway makes this way, at most."""

    new_groups: Literal["earliest", "end"] = "earliest"
    """Where a consumer group that the store does not know begins to read."""

    attempts_max: Count = Field(default=17, ge=1, le=1000)
    """Deliveries of one message to a consumer group before it goes to ``%DLQ%<group>``
    (RocketMQ: retryMaxTimes 16, plus the first)."""

    fifo_groups: tuple[str, ...] = ()
    """Consumer groups (``*`` globs) that get messages of one message group one after the other;
    groups of a topic whose ``message.type`` is FIFO always do."""

    body_bytes_max: Bytes = Field(default=4 << 20, ge=1024)
    """Largest message body, in bytes (RocketMQ: maxMessageSize, 4 MiB)."""

    delay_s_max: int = Field(default=0, ge=0)
    """How far ahead a delivery time may be, in seconds (the Apache proxy: 86400); 0: any."""

    request_bytes_max: Bytes = Field(default=(4 << 20) * 32 + (2 << 20), ge=4096)
    """Largest request, in bytes (the Apache proxy's grpcMaxInboundMessageSize: 130 MiB)."""

    validate_message_type: bool = True
    """Refuse a FIFO, delayed or priority message on a topic made for another type."""

    streams_max: Count = Field(default=1000, ge=1)
    """Concurrent calls on one connection; more wait at the client."""

    handshake_s_max: float = Field(default=10.0, gt=0)
    """A connection that has not sent its HTTP/2 settings by then is closed, in seconds."""

    renewals_max: Count = Field(default=100_000, ge=1)
    """Deliveries whose invisible time the gateway renews for its push consumers, at most."""


def grpc_config(name: str, section: Mapping[str, Any]) -> GrpcConfig:
    """Check one entry of ``listeners:``. Raises ConfigError naming the keys."""
    own = {key: value for key, value in section.items() if key not in COMMON_KEYS}
    return checked(GrpcConfig, name, own, "bind", "advertise")
