"""The ``namesrv:`` block of the configuration. The text under a field is its manual."""

from pathlib import Path

from pydantic import Field, field_validator

from protocols.addresses import split_bind
from protocols.daemon.config import ConfigModel
from protocols.daemon.units import Count, DurationMs


class NamesrvConfig(ConfigModel):
    """A name server: knows which brokers keep which message queues."""

    bind: str = "127.0.0.1:9876"
    """Address it listens on; port 0 takes any."""

    data: Path = Path("data/namesrv")
    """Folder of its key-value table and of the names of its brokers; routes are kept in memory
    only."""

    lease_ms: DurationMs = Field(default=120_000, ge=500, le=600_000)
    """How long a broker that does not say is believed to be alive without a sign of life
    (Apache's default); stores of ours say three seconds."""

    lost_ms_max: DurationMs = Field(default=1000, ge=0, le=60_000)
    """A broker whose connection was lost for so long leaves the routes."""

    order_topics: bool = False
    """Answer routes with ``orderTopicConf`` (Apache: orderMessageEnable)."""

    acting_master: bool = False
    """Show a replica in the place of a master that is away, for brokers that registered so
    (Apache: supportActingMaster)."""

    connections_max: Count = Field(default=20_000, ge=1)
    """Open connections; one more is closed at once."""

    topics_max: Count = Field(default=100_000, ge=1)
    """Topics known at most; registrations of more are refused."""

    metrics_bind: str = ""
    """``host:port`` for HTTP: ``/metrics``, ``/healthz`` and ``/gateways`` (``protocol``, ``zone``,
    ``topic``: which gateways a client may go to); empty: none."""

    @field_validator("bind", "metrics_bind")
    @classmethod
    def _is_address(cls, value: str) -> str:
        if value:
            split_bind(value)
        return value
