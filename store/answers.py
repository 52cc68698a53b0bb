"""
What goes into the engine and comes out of it: plain data, no behaviour beyond ``Pending``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Final, Generic, NamedTuple, Protocol, TypeVar, overload

from protocols.errors import Code, GatewayError
from protocols.remoting.records import split_records

T = TypeVar("T")

LEASE_PREFIX: Final = "gateway/"
"""Directory key of a gateway's lease: ``gateway/<name>``; its value is a msgpack ``Join``."""


STORE_FULL: Final = Code.MASTER_PERSISTENCE_TIMEOUT
FULL_HINT: Final = "the store is full"
"""Code of sends refused because the log or the disk is full: try later, nothing is wrong with
the message. Fronts answer as the table of refusals says (507, 0x97, nack, code 14)."""


class StoreFailed(GatewayError):
    """A write or sync failed: nothing is acknowledged any more until the store is started anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What the engine may use. All of it is data; the engine reads no file and no clock."""

    segment_bytes: int = 32 << 20
    """Size of a segment file, its 4 KiB header included."""

    log_bytes_max: int = 8 << 30
    """All segments together; the last two segments' worth is a reserve (store page, rule 6)."""

    disk_free_bytes_min: int = 512 << 20
    """Below this much free disk, sends are refused as if the log were full."""

    retention_s: int = 3 * 24 * 3600
    """How long what nobody is owed is kept; under pressure it goes earlier."""

    is_zero_filled: bool = True
    """Write zeros over a new segment before its use (syncs cost half: performance rule 6)."""

    cache_bytes_max: int = 64 << 20
    """Blocks just stored that stay in memory for readers; un-synced ones always do."""

    index_cache_bytes_max: int = 64 << 20
    """Index files of sealed segments that stay in memory for readers of old messages."""

    relocated_bytes_max: int = 64 << 20
    """Memory for the index of relocated records (46 bytes each, 2 KB per segment that went)."""

    auto_create_queue_count: int = 0
    """Message queues of a topic that comes into being by a first send; 0: refuse such sends."""

    lease_s: float = 3.0
    """A gateway's lease, judged on this store's monotonic clock."""

    orphan_s: float = 10.0
    """After a restart, how long deliveries of a stream wait for their gateway to come back."""

    once_window_s: float = 300.0
    once_released_window_s: float = 86_400.0
    """Once-keys that are released (QoS 2) and never were."""

    once_keys_max: int = 200_000
    retained_max: int = 1_000_000
    """Addresses that have a retained value."""

    frame_results_max: int = 64
    """Results of frames kept per gateway for settle, besides those it has answered for."""

    tombstones_max: int = 100_000
    """Deleted directory keys that are remembered for readers that saw them."""

    snapshot_bytes: int = 256 << 20
    """Take a snapshot after so much log, and sooner while the state is small."""

    timers_max: int = 20_000_000
    """Delayed messages that wait (24 bytes of memory each, besides their place in the index)."""

    halves_max: int = 200_000
    """Open half messages."""

    half_timeout_ms: int = 6000
    """When a half message is checked first (RocketMQ: transactionTimeOut)."""

    half_interval_ms: int = 30_000
    """And how often again (transactionCheckInterval)."""

    half_checks_max: int = 15
    """After so many checks it is given up (transactionCheckMax)."""

    block_bytes_max: int = 256 << 20
    """A header that tells of a larger block is none of ours. (What is written is far smaller: a
    frame or a batch of standard sends, with state that waited.)"""


# ── waiting ─────────────────────────────────────────────────────────────────────────────


class Pending(Generic[T]):
    """
    An answer that may be given once the log is durable up to its block.

    The engine fills it in ``confirm`` (or ``fail``) and then calls ``notify`` if one is set; a
    caller that finds ``is_done`` already true (nothing to wait for) must not set one.
    """

    __slots__ = ("error", "is_done", "notify", "position", "value")

    def __init__(self, value: T, *, is_done: bool = False) -> None:
        self.value = value
        self.is_done = is_done
        self.error: StoreFailed | None = None
        self.notify: Callable[[Pending[T]], None] | None = None
        self.position = -1  # log end that must be confirmed; -1: not yet in a block

    def result(self) -> T:
        """The answer; raises StoreFailed if it can never be given."""
        if self.error is not None:
            raise self.error
        assert self.is_done, "the log is not durable up to this answer yet"
        return self.value


# ── messages in ─────────────────────────────────────────────────────────────────────────


class AppendRecord(NamedTuple):
    """One message by a standard code: RocketMQ's stored form, encoded by the handler."""

    topic: str
    queue_id: int
    """-1: the engine takes the topic's queues in turn."""

    record: bytes
    """The engine patches queue id, queue offset, physical offset and store time."""

    keys: tuple[bytes, ...] = ()
    """Light queues that get it too (16-byte queue keys)."""

    order_hash: int = 0
    flags: int = 1
    """``ItemFlag`` bits."""

    due_ms: int = 0
    """Wall time before which nobody shall see it; 0: at once."""

    is_half: bool = False
    """Nobody shall see it before its producer commits."""


class AppendResult(NamedTuple):
    """*code* is ``protocols.errors.Code``; position 0 and offset -1 unless OK."""

    code: int
    position: int
    queue_id: int
    offset: int
    hint: str = ""


class TopicConfig(NamedTuple):
    """A topic at this store."""

    name: str
    read_queue_count: int = 4
    write_queue_count: int = 4
    perm: int = 6
    """RocketMQ permission bits: 4 read, 2 write, 1 inherit."""

    sys_flag: int = 0
    is_ordered: bool = False
    attributes: Mapping[str, str] = {}


# ── groups ──────────────────────────────────────────────────────────────────────────────


class Granted(NamedTuple):
    """One delivery. The bytes are ``Engine.record_at(record_position)``."""

    position: int
    """Log position of the entry; names the delivery together with *grant*."""

    grant: int
    attempt: int
    """1 for the first; in RocketMQ reconsume times + 1."""

    flags: int
    """``ItemFlag`` bits QOS and RETAIN of the publish."""

    record_position: int
    """Log position of the message; differs from *position* for index records."""

    tags: tuple[int, ...]
    """``Read.tag`` of every queue of the read set it was found in, ascending."""

    packet_id: int = 0
    stage: int = 0


class GrantedRun(Sequence[Granted]):
    """
    Deliveries of one grant that differ in nothing but their position, without an object for each.

    What a take brings when all went as it mostly does: first attempts of the entries themselves.
    Their positions ascend: their records are read together.
    """

    __slots__ = ("flags", "grant", "positions", "tags")

    def __init__(
        self, positions: Sequence[int], grant: int, flags: int, tags: tuple[int, ...]
    ) -> None:
        self.positions = positions
        self.grant = grant
        self.flags = flags
        self.tags = tags

    def __len__(self) -> int:
        return len(self.positions)

    @overload
    def __getitem__(self, index: int) -> Granted: ...

    @overload
    def __getitem__(self, index: slice) -> "GrantedRun": ...

    def __getitem__(self, index: int | slice) -> "Granted | GrantedRun":
        if isinstance(index, slice):
            return GrantedRun(self.positions[index], self.grant, self.flags, self.tags)
        at = self.positions[index]
        return Granted(at, self.grant, 1, self.flags, at, self.tags)

    def __iter__(self) -> Iterator[Granted]:
        for at in self.positions:
            yield Granted(at, self.grant, 1, self.flags, at, self.tags)


class InFlight(NamedTuple):
    """What a group has handed out, for inspection."""

    position: int
    grant: int
    attempt: int
    holder: int
    """0: none (deadline, or inherited and waiting for its next owner)."""

    packet_id: int
    stage: int


class GroupState(NamedTuple):
    """A group as the worked example of the semantics page shows it."""

    name: str
    number: int
    cursor: int
    """Every entry of the read set below it is done."""

    ahead: tuple[int, ...]
    """Acknowledged positions at or above the cursor."""

    in_flight: tuple[InFlight, ...]
    returned: tuple[int, ...]
    owner_epoch: int
    reads: tuple[tuple[int, int, int, int], ...]
    """(tag, queue number, from, to) of each queue of the read set; to -1: open end."""


# ── reads ───────────────────────────────────────────────────────────────────────────────


class ReadStatus(Enum):
    """Outcome of a read by offset, named as RocketMQ's PullStatus."""

    FOUND = "found"
    NO_NEW = "no new"  # offset is the end
    NO_QUEUE = "no queue"
    OFFSET_TOO_SMALL = "offset too small"  # next_offset: the smallest kept
    OFFSET_TOO_LARGE = "offset too large"  # next_offset: the end
    NO_MATCH = "no match"  # all that was looked at had another tag: go on at next_offset


class ReadResult(NamedTuple):
    status: ReadStatus
    pieces: Sequence[bytes | memoryview]
    """Records, neighbours in the log as one piece."""

    next_offset: int
    min_offset: int
    max_offset: int
    """End: the offset that the next visible message will have."""

    record_count: int = 0
    """Of records."""

    @property
    def records(self) -> list[bytes]:
        """One by one."""
        return [record for piece in self.pieces for record in split_records(piece)]


# ── driver side ─────────────────────────────────────────────────────────────────────────


class WokenQueue(Protocol):
    """What is told of a queue: thousands are told in a tick, and mostly nobody asks."""

    topic: str
    """Empty: a light queue."""

    queue_id: int


class Woken(NamedTuple):
    """What became visible since the last ``take_woken``."""

    groups: set[int]
    """Numbers of groups with something to take."""

    touched: Set[WokenQueue]
    """Queues with new entries."""

    is_directory_changed: bool
    is_topics_changed: bool

    @property
    def queues(self) -> Iterator[tuple[str, int]]:
        """(topic, queue id) of message queues with new messages, for long pulls."""
        return ((queue.topic, queue.queue_id) for queue in self.touched if queue.topic)


class RecoveryReport(NamedTuple):
    epoch: int
    end: int
    block_count: int
    record_count: int
    torn_bytes: int
    """Set aside at the end: written but never acknowledged."""

    rotten_records: int
    rotten_bytes: int
    """Skipped below the confirmed position: blocks that do not verify."""

    was_clean: bool
    snapshot_position: int


class EndReason(IntEnum):
    """Why a lease ended, for logs."""

    LEFT = 0
    EXPIRED = 1
    REPLACED = 2
    LOST = 3


@dataclass(slots=True)
class Counters:
    """Rising counts, read by the metrics page."""

    records: int = 0
    record_bytes: int = 0
    blocks: int = 0
    syncs: int = 0
    granted: int = 0
    acked: int = 0
    returned: int = 0
    dead_lettered: int = 0
    discarded: int = 0
    expired: int = 0
    """Entries of guarded queues whose time was over before anybody took them."""

    overflowed: int = 0
    """Entries that made room for others, or found none."""

    queues_ended: int = 0
    """Queues that nobody used for as long as their policy allows."""

    refused: int = 0
    deleted_bytes: int = 0
    relocated: int = 0
    """Records appended again so that the rest of their segment could go."""

    timers_fired: int = 0
    recalled: int = 0
    rotten_reads: int = 0
    extra: dict[str, int] = field(default_factory=dict)


Offsets = Sequence[tuple[str, str, int, int]]
"""(group, topic, queue id, offset) each."""
