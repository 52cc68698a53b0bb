"""The ``store:`` block of the configuration. The text under a field is its manual."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from protocols.addresses import split_bind
from protocols.daemon.config import ConfigModel
from protocols.daemon.units import Bytes, Count, DurationMs
from store.retention.room import RESERVE_SEGMENTS

NAME_PATTERN = r"^[A-Za-z0-9_-]{1,127}$"
"""Characters Apache's tools accept in broker and cluster names."""


def split_addresses(value: object) -> object:
    """Name server lists are a YAML list or ``a:p;b:p`` everywhere (interfaces page)."""
    if isinstance(value, str):
        return [item.strip() for item in value.replace(",", ";").split(";") if item.strip()]
    return value


Addresses = Annotated[tuple[str, ...], BeforeValidator(split_addresses)]


class LimitsConfig(ConfigModel):
    """Every bound of the store, by name."""

    message_bytes_max: Bytes = Field(default=4 << 20, ge=1024, le=15 << 20)
    """Largest message body; larger ones are answered MESSAGE_ILLEGAL (Apache's default)."""

    pending_bytes_max: Bytes = Field(default=64 << 20, ge=1 << 20)
    """Bytes accepted and not yet synced. Beyond it standard clients are told SYSTEM_BUSY and
    gateway connections are not read."""

    pull_bytes_max: Bytes = Field(default=256 << 10, ge=1024)
    """Bytes of one pull or pop answer (Apache: maxTransferBytesOnMessageInMemory)."""

    pull_count_max: Count = Field(default=1024, ge=1)
    """Messages of one pull answer, whatever the client asks for."""

    waiting_max: Count = Field(default=100_000, ge=1)
    """Long polls held at a time (Apache: maxPopPollingSize); more are answered at once."""

    connections_max: Count = Field(default=10_000, ge=1)
    """Open connections; one more is closed at once."""

    cache_bytes_max: Bytes = Field(default=64 << 20, ge=1 << 20)
    """Memory for what was stored last: readers that keep up are served from it. Taken at start,
    with as much again for all else."""

    index_cache_bytes_max: Bytes = Field(default=64 << 20, ge=1 << 20)
    """Memory for the indexes of old segments, which readers of a backlog look into."""

    relocated_bytes_max: Bytes = Field(default=64 << 20, ge=1 << 20)
    """Memory for the index of old messages that outlived their segments (46 bytes each)."""

    once_keys_max: Count = Field(default=200_000, ge=1000)
    """Keys of sends that are stored once however often they come (MQTT's QoS 2, wills,
    dead letters, `Idempotency-Key`); of more than that the oldest are forgotten."""

    timers_max: Count = Field(default=20_000_000, ge=0)
    """Delayed messages that wait for their time; more are told SYSTEM_BUSY."""

    half_messages_max: Count = Field(default=200_000, ge=0)
    """Half messages whose transaction is open; more are told SYSTEM_BUSY."""

    retained_max: Count = Field(default=1_000_000, ge=0)
    """Addresses with a retained value; what is published to a further one is delivered and not
    retained (counted)."""

    log_bytes_max: Bytes = Field(default=64 << 30, ge=4 << 20)
    """Bytes the log may take on disk; the last two segments are a reserve for acks, grants and
    deletions (store page, rule 6)."""

    disk_free_bytes_min: Bytes = Field(default=256 << 20, ge=0)
    """Free bytes of the file system below which sends are refused."""


class TransactionsConfig(ConfigModel):
    """Half messages whose producer says nothing."""

    timeout_ms: DurationMs = Field(default=6000, ge=100, le=3_600_000)
    """When a producer is first asked how its transaction ended (Apache: transactionTimeOut)."""

    interval_ms: DurationMs = Field(default=30_000, ge=100, le=3_600_000)
    """How often it is asked again (Apache: transactionCheckInterval)."""

    checks_max: Count = Field(default=15, ge=1, le=1000)
    """After so many questions the message goes to TRANS_CHECK_MAX_TIME_TOPIC (Apache:
    transactionCheckMax)."""


class AuthConfig(ConfigModel):
    """Users of the store itself: RocketMQ clients that do not come through a gateway."""

    authentication: bool = False
    """Requests are signed by a user (``mqadmin createUser``) or with ``cluster_auth``, which makes
    the first user and may do everything (Apache: authenticationEnabled)."""

    authorization: bool = False
    """Users do what their rights allow (``mqadmin createAcl``), super users everything (Apache:
    authorizationEnabled)."""

    @model_validator(mode="after")
    def _knows_users(self) -> Self:
        if self.authorization and not self.authentication:
            raise ValueError("authorization needs authentication: rights are those of users")
        return self


class StoreConfig(ConfigModel):
    """A message store."""

    bind: str = "127.0.0.1:10911"
    """Address it listens on; port 0 takes any."""

    advertise: str = ""
    """``host:port`` that clients and gateways reach it by; empty: the bound address."""

    metrics_bind: str = ""
    """``host:port`` of ``/metrics`` and ``/healthz`` over HTTP; empty: none."""

    namesrv: Addresses = ()
    """Name servers it registers with."""

    name: str = Field(default="broker-a", pattern=NAME_PATTERN)
    """Broker name: unique in its cluster, and the same over restarts."""

    cluster: str = Field(default="DefaultCluster", pattern=NAME_PATTERN)
    """Broker cluster it belongs to."""

    directory: bool = False
    """Whether it keeps the gateways' directory and leases; one store of all does."""

    flush: Literal["sync", "async"] = "sync"
    """``sync``: acknowledged means fdatasync has returned. ``async``: acknowledged when
    written; a crash of the machine (not of the process) may lose the last moments."""

    data: Path = Path("data/store")
    """Folder of its log and snapshots."""

    segment_bytes: Bytes = Field(default=32 << 20, ge=1 << 20, le=1 << 30, multiple_of=4096)
    """Size of one log file. Small ones cost less: a file that is done leaves the page cache, and
    the next one finds its memory warm (32 MiB: 183k msg/s, 256 MiB: 157k)."""

    retention_hours: int = Field(default=72, ge=1)
    """How long messages that nobody is owed are kept (Apache's fileReservedTime)."""

    auto_create_topics: bool = True
    """A send to an unknown topic creates it with the queues of TBW102 (Apache's default)."""

    auto_create_groups: bool = True
    """A consumer group comes into being with its first consumer (Apache's default)."""

    permission: int = Field(default=6, ge=0, le=7)
    """RocketMQ's permission bits of the whole store: 4 read, 2 write."""

    trace: bool = True
    """Clients that trace are told to send their traces (topic ``RMQ_SYS_TRACE_TOPIC``)."""

    check_message_type: bool = False
    """Topics with the attribute ``message.type`` refuse other messages of direct producers, too
    (gateways check gRPC's, as Apache's proxy does; Apache's brokers take any)."""

    topic_queue_count: int = Field(default=4, ge=1, le=1024)
    """Message queues of a topic that is created without a number."""

    zone: str = ""
    """Availability zone, told to the name servers (``prefer: same_zone``); empty: the ``zone`` at
    the top of the file."""

    heartbeat_ms: DurationMs = Field(default=500, ge=100, le=30_000)
    """How often the name servers hear that it is alive; after five of these without a word it
    leaves the routes."""

    silence_ms_max: DurationMs = Field(default=3000, ge=500, le=60_000)
    """A gateway that was silent for so long loses its presence: its streams' deliveries
    return (semantics: Lease and presence)."""

    lost_ms_max: DurationMs = Field(default=1000, ge=0, le=60_000)
    """A gateway whose data connection was lost for so long loses its presence; with no connection
    left at the directory store its process has died, and its lease ends too."""

    lease_ms: DurationMs = Field(default=3000, ge=500, le=60_000)
    """Term of a gateway's lease (directory store)."""

    recall: bool = True
    """Whether delayed messages may be recalled (Apache: recallMessageEnable, off there)."""

    auth: AuthConfig = AuthConfig()
    """Who may use the store directly."""

    transactions: TransactionsConfig = TransactionsConfig()
    """When producers are asked about their transactions."""

    limits: LimitsConfig = LimitsConfig()
    """Bounds of buffers and waits."""

    @field_validator("bind", "advertise", "metrics_bind")
    @classmethod
    def _is_address(cls, value: str) -> str:
        if value:
            split_bind(value)
        return value

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        if self.limits.log_bytes_max <= RESERVE_SEGMENTS * self.segment_bytes:
            raise ValueError(
                f"limits.log_bytes_max must be more than {RESERVE_SEGMENTS} segments: "
                "these are the reserve for acks"
            )
        return self

    @field_validator("namesrv")
    @classmethod
    def _are_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for address in value:
            split_bind(address)
        return value
