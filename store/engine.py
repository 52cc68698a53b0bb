"""
The store's engine: one log, everything else derived from it.

A library with a clock argument: no socket, task, thread or clock is used here. Calls come from
one thread (the event loop); only ``WriteBatch.execute``, ``PrepareSegment.execute`` and
``SnapshotWork.execute`` may run in another, and touch nothing of the engine but the disk.

The driver's loop::

    batch = engine.take_writes()          # everything that piled up; None: nothing to do
    batch.execute(disk)                   # in the writer thread: pwritev, fdatasync
    for pending in engine.confirm(batch): # back in the loop (fail(error) if execute raised)
        ...                               # notify was called; answers may be given
    woken = engine.take_woken()           # streams and long polls that have something to take
"""

from collections.abc import Iterable, Mapping, Sequence

from protocols.clock import Now
from protocols.remoting.private import (
    AckItem,
    DirectoryRecord,
    DirectoryWrite,
    GroupOpen,
    GroupOpened,
    Join,
    Joined,
    MarkItem,
    QueueCounts,
    SendAnswer,
    SendFrame,
    SettleAnswer,
)
from store.answers import (
    AppendRecord,
    AppendResult,
    Counters,
    EngineConfig,
    Granted,
    GroupState,
    Offsets,
    Pending,
    ReadResult,
    RecoveryReport,
    TopicConfig,
    Woken,
)
from store.disk import Disk


class WriteBatch:
    """Blocks on their way to the disk, made by ``take_writes``."""

    position: int
    """Log end once it is durable."""

    block_count: int
    byte_count: int

    def execute(self, disk: Disk) -> None:
        """Write and sync; blocks; raises OSError. Runs in the writer thread."""
        raise NotImplementedError


class PrepareSegment:
    """A segment file to be made in advance, so that rolling over costs nothing."""

    def execute(self, disk: Disk) -> bool:
        """One step (a few MiB of zeros); True when the file is ready. In a background thread."""
        raise NotImplementedError


class SnapshotWork:
    """Encoded state to be written as a file."""

    position: int

    def execute(self, disk: Disk) -> None:
        """tmp → fsync → rename → fsync of the folder; drops all but the last two."""
        raise NotImplementedError


class Engine:
    """
    Everything a store knows. Refusals of whole requests are raised as ``Refused``; refusals of
    items are in the results. After ``fail`` every mutating call raises ``StoreFailed``.
    """

    epoch: int
    """Store epoch: rises at each start."""

    log_id: str
    """Random, made with the log; hex."""

    confirmed: int
    """Durable up to here; nothing beyond is visible (volatile groups excepted)."""

    end: int
    """End of what has been appended to sealed blocks."""

    counters: Counters

    def __init__(self, disk: Disk, config: EngineConfig) -> None:
        """Opens nothing."""
        raise NotImplementedError

    # ── life ────────────────────────────────────────────────────────────────────────────

    def recover(self, now: Now) -> RecoveryReport:
        """Read snapshot and log, make the tail durable, open a new epoch. Blocks; call once."""
        raise NotImplementedError

    def tick(self, now: Now) -> float | None:
        """Decide what time decides (deadlines, leases, the idle block); next monotonic due."""
        raise NotImplementedError

    def close(self, now: Now) -> None:
        """Append the closing block; then drain ``take_writes``/``confirm`` once more."""
        raise NotImplementedError

    # ── driver ──────────────────────────────────────────────────────────────────────────

    @property
    def has_writes(self) -> bool:
        """``take_writes`` would return a batch."""
        raise NotImplementedError

    @property
    def pending_bytes(self) -> int:
        """Appended but not confirmed: what back-pressure is measured by."""
        raise NotImplementedError

    def take_writes(self) -> WriteBatch | None:
        """All blocks not yet handed to the writer. Several batches may be out, in order."""
        raise NotImplementedError

    def confirm(self, batch: WriteBatch) -> list[Pending[object]]:
        """*batch* is durable: what it holds becomes visible; the answers that may go, in order."""
        raise NotImplementedError

    def fail(self, error: Exception) -> list[Pending[object]]:
        """A write or sync failed: nothing is acknowledged any more; all answers, with error."""
        raise NotImplementedError

    def take_woken(self) -> Woken:
        """What became visible since the last call (also after ``tick``, ``ack``, ``end_holder``,
        and after ``send`` for volatile groups)."""
        raise NotImplementedError

    def segment_wanted(self) -> PrepareSegment | None:
        """A segment to prepare in the background, if none is ready; once per segment."""
        raise NotImplementedError

    def segment_prepared(self, work: PrepareSegment) -> None:
        """*work* is done."""
        raise NotImplementedError

    def snapshot_due(self, now: Now, *, is_forced: bool = False) -> SnapshotWork | None:
        """State to write as a snapshot, when enough log has passed and all of it is durable."""
        raise NotImplementedError

    def snapshot_written(self, work: SnapshotWork) -> None:
        """*work* is done: old segments may now go (deleted by a later ``tick``)."""
        raise NotImplementedError

    # ── messages in ─────────────────────────────────────────────────────────────────────

    def send(self, gateway: str, frame: SendFrame, now: Now) -> Pending[SendAnswer]:
        """Run a numbered frame, once. Raises Refused (fenced epoch, frame number spent)."""
        raise NotImplementedError

    def append(self, records: Sequence[AppendRecord], now: Now) -> Pending[list[AppendResult]]:
        """Store messages of standard codes, all in one block."""
        raise NotImplementedError

    def last_frame(self, gateway: str, gateway_epoch: int) -> int:
        """Highest frame number of that epoch that ran or was spent; 0: none (HELLO)."""
        raise NotImplementedError

    def settle(
        self, gateway: str, gateway_epoch: int, frame: int, now: Now
    ) -> Pending[SettleAnswer]:
        """What became of a frame; one that never ran is spent from now on."""
        raise NotImplementedError

    def fence(self, gateway: str, gateway_epoch: int, now: Now) -> Pending[None]:
        """Refuse frames of this and earlier epochs of *gateway* from now on, for good."""
        raise NotImplementedError

    def is_fenced(self, gateway: str, gateway_epoch: int) -> bool:
        raise NotImplementedError

    @property
    def is_full(self) -> bool:
        """Sends are refused (acks, grants and deletions still go)."""
        raise NotImplementedError

    # ── topics, settings, offsets ───────────────────────────────────────────────────────

    @property
    def topics(self) -> Mapping[str, TopicConfig]:
        """All topics; read only."""
        raise NotImplementedError

    topics_version: int
    """Rises with each change of a topic."""

    def put_topic(self, config: TopicConfig, now: Now) -> Pending[TopicConfig]:
        """Create or change. Queues are never taken away, only made unwritable by count."""
        raise NotImplementedError

    def delete_topic(self, name: str, now: Now) -> Pending[bool]:
        raise NotImplementedError

    def put_setting(self, table: str, name: str, value: bytes | None, now: Now) -> Pending[None]:
        """Opaque configuration kept in the log: table ``group`` (subscription groups), ``kv``…"""
        raise NotImplementedError

    def settings(self, table: str) -> Mapping[str, bytes]:
        """All settings of one table; read only."""
        raise NotImplementedError

    def commit_offsets(self, offsets: Offsets, now: Now) -> Pending[None]:
        """Consumer offsets of RocketMQ groups that read by offset."""
        raise NotImplementedError

    def query_offset(self, group: str, topic: str, queue_id: int) -> int:
        """-1: none committed."""
        raise NotImplementedError

    def offsets_of(self, group: str) -> Mapping[tuple[str, int], int]:
        """(topic, queue id) → offset, of one group."""
        raise NotImplementedError

    def offset_groups(self) -> Iterable[str]:
        """Groups with committed offsets."""
        raise NotImplementedError

    # ── reads by offset ─────────────────────────────────────────────────────────────────

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        count: int,
        bytes_max: int,
        tags: frozenset[str] = frozenset(),
    ) -> ReadResult:
        """Visible messages of a message queue from *offset* on; at least one if there is one."""
        raise NotImplementedError

    def read_light(self, key: bytes, offset: int, count: int, bytes_max: int) -> ReadResult:
        """``read`` of a light queue."""
        raise NotImplementedError

    def record_at(self, position: int) -> bytes:
        """The stored message at *position*, verified when it came from disk.

        Raises Refused(MESSAGE_NOT_FOUND): gone, no record starts there, or rot.
        """
        raise NotImplementedError

    def entry_position(self, topic: str, queue_id: int, offset: int) -> int:
        """Log position of a message-queue entry; -1: none (standard pop handles name offsets)."""
        raise NotImplementedError

    def offset_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """(smallest kept, end of visible); (0, 0) for an empty or unknown queue."""
        raise NotImplementedError

    def offset_by_time(self, topic: str, queue_id: int, wall_ms: int) -> int:
        """Offset of the first message stored at or after *wall_ms*; the end if there is none."""
        raise NotImplementedError

    def retained(self, tenant: str, subject_filter: str) -> list[bytes]:
        """Stored record of the last retained message of each address that matches."""
        raise NotImplementedError

    # ── light queues ────────────────────────────────────────────────────────────────────

    def create_queue(
        self, key: bytes, name: str, policy: Mapping[str, int | str], now: Now
    ) -> Pending[None]:
        """Idempotent. Policy ``volatile``: forgotten at a restart, visible before the sync."""
        raise NotImplementedError

    def drop_queue(self, key: bytes, group: str, now: Now) -> Pending[QueueCounts]:
        """Forget queue and group; later sends to the key are partial with NOT_FOUND."""
        raise NotImplementedError

    def purge_queue(self, key: bytes, group: str, now: Now) -> Pending[QueueCounts]:
        """All ready entries are done; ``ready_count`` = how many."""
        raise NotImplementedError

    def stat_queue(self, key: bytes, group: str) -> QueueCounts:
        """Exact. Raises Refused(NOT_FOUND)."""
        raise NotImplementedError

    # ── groups ──────────────────────────────────────────────────────────────────────────

    def open_group(self, spec: GroupOpen, now: Now) -> Pending[GroupOpened]:
        """Create or adopt; *reads* is the new read set. A higher owner epoch cuts off the old
        owner's grants (they wait for ``resume``); a lower one is Refused(PRECONDITION_FAILED)."""
        raise NotImplementedError

    def drop_group(self, name: str, owner_epoch: int, now: Now) -> Pending[bool]:
        raise NotImplementedError

    def group_number(self, name: str) -> int:
        """0: no such group."""
        raise NotImplementedError

    def group_names(self) -> Iterable[str]:
        raise NotImplementedError

    def group_state(self, group: int) -> GroupState:
        """For inspection and tests. Raises Refused(CONSUMER_GROUP_NOT_FOUND)."""
        raise NotImplementedError

    def take(
        self,
        group: int,
        count: int,
        now: Now,
        *,
        holder: int = 0,
        invisible_ms: int = 0,
        topic: str = "",
        queue_id: int = -1,
        tags: frozenset[str] = frozenset(),
    ) -> list[Granted]:
        """
        Grant up to *count* entries, returned ones first, in entry order.

        Either *holder* (a stream: no deadline; any number the server chose, unique in its run)
        or *invisible_ms*. *tags*: entries of other tags are done for this group. The grant is
        logged, not awaited. An unknown group takes nothing.
        """
        raise NotImplementedError

    def ready_count(self, group: int) -> int:
        """Entries that ``take`` could grant now (upper bound with tag filters and FIFO)."""
        raise NotImplementedError

    def resume(
        self, group: int, holder: int, holds: Sequence[tuple[int, int]], now: Now
    ) -> list[Granted]:
        """
        A stream (re)opens. Not inherited: deliveries in *holds* (position, grant) move to
        *holder*, those of lost holders return in place. Inherited: all that is in flight is
        granted again to *holder*, with packet id and stage, in entry order.
        """
        raise NotImplementedError

    def end_holder(self, holder: int, now: Now) -> None:
        """The stream is gone: deliveries return in place (inherited groups: they stay for the
        next owner; volatile groups end when ``drop_group`` is called or at a restart)."""
        raise NotImplementedError

    def ack(self, epoch: int, items: Sequence[AckItem], now: Now) -> Pending[list[tuple[int, int]]]:
        """Ack, change or release; (grant, code) per item; INVALID_RECEIPT_HANDLE for stale ones.
        Acking what is done already is OK."""
        raise NotImplementedError

    def mark(
        self, epoch: int, items: Sequence[MarkItem], now: Now
    ) -> Pending[list[tuple[int, int]]]:
        """Write packet id and stage into in-flight entries."""
        raise NotImplementedError

    def index(
        self, target: int, keys: Sequence[bytes], ack: AckItem | None, now: Now
    ) -> Pending[int]:
        """Append an index record: the message at *target* enters the light queues *keys*; *ack*
        is the delivery that caused it. The entry position. Raises Refused if the grant is stale."""
        raise NotImplementedError

    # ── directory and leases ────────────────────────────────────────────────────────────

    def directory_put(
        self, gateway: str, gateway_epoch: int, writes: Sequence[DirectoryWrite], now: Now
    ) -> Pending[list[tuple[bool, DirectoryRecord]]]:
        """Conditional writes, all in one block. Raises Refused(PRECONDITION_FAILED) if the
        gateway's lease has ended (gateway "" is the store itself)."""
        raise NotImplementedError

    def directory_read(self, after: int, count_max: int) -> tuple[list[DirectoryRecord], int]:
        """(latest records with version > *after*, durable ones only; version covered)."""
        raise NotImplementedError

    @property
    def directory_head(self) -> int:
        """Highest durable version."""
        raise NotImplementedError

    def join(self, request: Join, now: Now) -> Pending[Joined]:
        """Grant a lease; its record's version is the gateway epoch. The same *instance* again
        ends its earlier epoch; another live one is Refused(PRECONDITION_FAILED)."""
        raise NotImplementedError

    def renew(self, gateway: str, gateway_epoch: int, applied: int, now: Now) -> bool:
        """False: the lease has ended. Needs no disk."""
        raise NotImplementedError

    def leave(self, gateway: str, gateway_epoch: int, now: Now) -> Pending[None]:
        raise NotImplementedError

    def not_applied(self, version: int) -> set[tuple[str, int]]:
        """(gateway, epoch) with a lease that have not applied *version* yet; empty: the barrier
        is passed. Ask again after ``renew`` and when ``is_directory_changed``."""
        raise NotImplementedError

    def leases_ended_since(self, version: int) -> list[tuple[str, int]]:
        """(gateway, epoch) whose leases ended after *version* was written: to be fenced."""
        raise NotImplementedError
