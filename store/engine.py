"""
The store's engine: one log, everything else derived from it.

A library with a clock argument: no socket, task, thread or clock is used here. Calls come from
one thread (the event loop); only the ``execute`` of a ``WriteBatch`` and of what ``background``
hands out may run in another, and touches nothing of the engine but the disk.

The driver's loop::

    batch = engine.take_writes()          # everything that piled up; None: nothing to do
    batch.execute(disk)                   # in the writer thread: pwritev, fdatasync
    for pending in engine.confirm(batch): # back in the loop (fail(error) if execute raised)
        ...                               # notify was called; answers may be given
    woken = engine.take_woken()           # streams and long polls that have something to take
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from protocols.clock import Now
from protocols.errors import Code, Refused
from protocols.remoting.private import (
    GroupOpen,
    GroupOpened,
    IndexItem,
)
from protocols.remoting.sending import SendAnswer, SendFrame
from protocols.remoting.settling import AckRow, MarkItem
from store.answers import (
    AppendRecord,
    AppendResult,
    Counters,
    EngineConfig,
    Granted,
    GroupState,
    Pending,
    ReadResult,
    RecoveryReport,
    Woken,
)
from store.background import Background
from store.burial import Burial
from store.catalog import Catalog
from store.core import Core
from store.disk import Disk
from store.gateways import Gateways
from store.groups.attempts import Attempts
from store.groups.deliveries import Deliveries
from store.groups.selection import Wanted
from store.groups.unacked import Stretch, take_unacked
from store.late import LateEntries
from store.lifecycle import Lifecycle
from store.light_queues import LightQueues
from store.log.messages import tag_hash
from store.log.segments import WriteBatch
from store.noting import Noting
from store.parts import Parts
from store.plain import PlainRows, PlainRun, PlainSender, RunResult
from store.policies.handover import Handover
from store.policies.keeper import Keeper
from store.policies.terms import Terms
from store.reading import Reader
from store.retention.room import Room
from store.searching import SearchWork, record_around, search_work
from store.sending import Sender
from store.standard import StandardSender
from store.timers.holding import Holding

_NO_TAGS: Final[frozenset[int]] = frozenset()

__all__ = ["Engine", "WriteBatch"]


class Engine:
    """
    Everything a store knows. Refusals of whole requests are raised as ``Refused``; refusals of
    items are in the results. After ``fail`` every mutating call raises ``StoreFailed``.

    Here: the driver's loop, messages in, reads, groups and their deliveries. The rest by its name:
    ``catalog``, ``light_queues``, ``held``, ``gateways``, ``background``.
    """

    def __init__(self, disk: Disk, config: EngineConfig) -> None:
        """Opens nothing."""
        self._core = Core(disk, config)
        self._parts = Parts(self._core)
        self._handover = Handover(self._core)
        self._burial = Burial(self._core, self._parts.topics, self._handover)
        self._deliveries = Deliveries(self._core, self._parts.groups, self._burial.bury)
        self._attempts = Attempts(self._deliveries)
        self.room = Room(self._core)
        self.held = Holding(self._core, self._parts, self.room)
        self._keeper = Keeper(
            self._core, self._parts.groups, self._deliveries, self.room, self._handover
        )
        self._plain = PlainSender(self._core, self._parts.topics, self.room)
        noting = Noting(self._core, self._parts, self.held)
        self._standard = StandardSender(
            self._core, self._parts.topics, self.room, self.held, noting
        )
        self._sender = Sender(
            self._core, self._parts, self.room, self._keeper, self._handover, self.held, noting
        )
        self._late = LateEntries(
            self._core, self._parts.groups, self._deliveries, self._keeper, self._handover
        )
        self._reader = Reader(self._core, self._parts)
        self._life = Lifecycle(self._core, self._parts, self._deliveries, self.room, self.held)
        self.background = Background(self._core, self._life)
        self.catalog = Catalog(self._core, self._parts, self._deliveries)
        self.light_queues = LightQueues(self._core, self._parts, self._deliveries, self._keeper)
        self.gateways = Gateways(self._core, self._parts, self._deliveries)
        self.counters: Counters = self._core.counters

    @property
    def epoch(self) -> int:
        """Store epoch: rises at each start."""
        return self._core.log.epoch

    @property
    def log_id(self) -> str:
        """Random, made with the log; hex."""
        return self._core.log.log_id.hex()

    @property
    def confirmed(self) -> int:
        """Durable up to here; nothing beyond is visible (volatile groups excepted)."""
        return self._core.log.confirmed

    @property
    def end(self) -> int:
        """End of what has been appended to sealed blocks."""
        return self._core.log.end

    # ── life ────────────────────────────────────────────────────────────────────────────

    def recover(self, now: Now) -> RecoveryReport:
        """Read snapshot and log, make the tail durable, open a new epoch. Blocks; call once."""
        report = self._life.recover(now)
        self._keeper.rebuild(now)
        return report

    def tick(self, now: Now) -> float | None:
        """Decide what time decides (deadlines, leases, the idle block); next monotonic due."""
        self._core.at(now)
        return self._life.tick(now)

    def enforce(self, now: Now) -> float | None:
        """Policies: expiry, length limits, idle queues; next monotonic due. To be called after
        those who wait were served: what is handed out at once neither expires nor counts."""
        self._core.at(now)
        return self._keeper.enforce(now)

    def close(self, now: Now) -> None:
        """Append the closing block; then drain ``take_writes``/``confirm`` once more."""
        self._core.at(now)
        self._life.close()

    # ── driver ──────────────────────────────────────────────────────────────────────────

    @property
    def has_writes(self) -> bool:
        """``take_writes`` would return a batch."""
        return self._core.log.has_writes

    @property
    def pending_bytes(self) -> int:
        """Appended but not confirmed: what back-pressure is measured by."""
        return self._core.log.pending_bytes

    def take_writes(self) -> WriteBatch | None:
        """All blocks not yet handed to the writer. Several batches may be out, in order."""
        return self._core.log.take_writes()

    def confirm(self, batch: WriteBatch) -> list[Pending[object]]:
        """*batch* is durable: what it holds becomes visible; the answers that may go, in order."""
        self.counters.syncs += 1
        self.counters.blocks += batch.block_count
        return self._core.log.confirm(batch.position)

    def fail(self, error: Exception) -> list[Pending[object]]:
        """A write or sync failed: nothing is acknowledged any more; all answers, with error."""
        return self._core.log.fail(error)

    def take_woken(self) -> Woken:
        """What became visible since the last call (also after ``tick``, ``ack``, ``end_holder``,
        and after ``send`` for volatile groups)."""
        woken = self._life.take_woken()
        self._keeper.note(woken.groups)
        return woken

    @property
    def has_woken(self) -> bool:
        """``take_woken`` would name groups: somebody stopped before the end."""
        return bool(self._core.woken_groups)

    # ── messages in ─────────────────────────────────────────────────────────────────────

    def send(self, gateway: str, frame: SendFrame, now: Now) -> Pending[SendAnswer]:
        """Run a numbered frame, once. Raises Refused (fenced epoch, frame number spent)."""
        self._core.at(now)
        return self._core.wait(self._sender.send(gateway, frame))

    def append(self, records: Sequence[AppendRecord], now: Now) -> Pending[list[AppendResult]]:
        """Store messages of standard codes, all in one block."""
        self._core.at(now)
        return self._core.wait(self._standard.append(records))

    def append_plain(
        self, runs: Sequence[PlainRun | PlainRows], now: Now
    ) -> Pending[list[RunResult]]:
        """Store messages of standard codes that need no look inside, all in one block."""
        self._core.at(now)
        return self._core.wait(self._plain.append(runs))

    @property
    def is_full(self) -> bool:
        """Sends are refused (acks, grants and deletions still go)."""
        return not self.room.has_room_for(0)

    # ── reads by offset ─────────────────────────────────────────────────────────────────

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        count: int,
        bytes_max: int,
        tags: frozenset[str] = frozenset(),
        matches: Callable[[bytes], bool] | None = None,
        *,
        may_wait: bool = False,
    ) -> ReadResult:
        """Visible messages of a message queue from *offset* on, only those of *tags* and whose
        record *matches*; at least one if there is one. Raises Coming if it *may wait* and they
        are not in memory yet: to be called again when a prefetch has brought them."""
        queue = self._core.queues.find_message_queue(topic, queue_id)
        hashes = frozenset([tag_hash(tag) for tag in tags]) if tags else _NO_TAGS
        return self._reader.read(
            queue, offset, count, bytes_max, hashes, matches, may_wait=may_wait
        )

    def read_light(self, key: bytes, offset: int, count: int, bytes_max: int) -> ReadResult:
        """``read`` of a light queue."""
        queue = self._core.queues.find(key)
        return self._reader.read(queue, offset, count, bytes_max, frozenset())

    def record_at(self, position: int) -> bytes:
        """The stored message of an entry, verified when it came from disk.

        *position* is known to be one's; what a peer names goes to ``message_at``. Raises
        Refused(MESSAGE_NOT_FOUND): gone, or rot.
        """
        return self._core.record_at(position)

    def message_at(self, position: int) -> bytes:
        """``record_at`` of any number: refused too unless a durable message starts there."""
        return self._core.message_at(position)

    def records_at(self, positions: Sequence[int]) -> tuple[list[int], list[bytes | memoryview]]:
        """
        The messages at these positions, ascending: the length of each, and the bytes of all,
        neighbours as one piece. Raises Refused as ``record_at`` does.
        """
        return self._reader.records_at(positions)

    def entry_position(self, topic: str, queue_id: int, offset: int) -> int:
        """Log position of a message-queue entry; -1: none (standard pop handles name offsets)."""
        return self._reader.entry_position(topic, queue_id, offset)

    def offset_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """(smallest kept, end of visible); (0, 0) for an empty or unknown queue."""
        queue = self._core.queues.find_message_queue(topic, queue_id)
        return self._reader.offset_range(queue)

    def offset_by_time(self, topic: str, queue_id: int, wall_ms: int) -> int:
        """Offset of the first message stored at or after *wall_ms*; the end if there is none."""
        return self._reader.offset_by_time(topic, queue_id, wall_ms)

    def search(self, needles: Sequence[bytes], begin_ms: int, end_ms: int) -> SearchWork:
        """A search for bytes in all that was stored in a time window, to run in the background."""
        return search_work(self._core, needles, begin_ms, end_ms)

    def record_around(self, position: int) -> int:
        """Start of the message that holds the byte at *position*; -1: none."""
        return record_around(self._core, position)

    def seek_group(
        self, name: str, offsets: Mapping[tuple[str, int], int], now: Now
    ) -> Pending[None]:
        """A group goes on at these offsets of (topic, queue id); what it held there is void."""
        self._core.at(now)
        group = self._parts.groups.find(name)
        if group is not None:
            self._deliveries.books.seek(group, offsets)
        return self._core.wait(None)

    def group_places(self, name: str, topic: str, queue_id: int) -> tuple[int, int] | None:
        """(offset below which all is done, offset handed out up to) of a message queue that the
        group reads; None: it does not."""
        group = self._parts.groups.find(name)
        queue = self._core.queues.find_message_queue(topic, queue_id)
        if group is None or queue is None:
            return None
        return self._deliveries.books.places(group, queue)

    def in_flight_grant(self, group: int, position: int) -> int:
        """The grant that counts for an entry in flight; 0: it is not in flight."""
        found = self._parts.groups.get(group)
        batch = found.in_flight.get(position) if found is not None else None
        return batch.grant if batch is not None else 0

    def retained(self, tenant: str, *subject_filters: str) -> list[bytes]:
        """Stored record of the last retained message of each address that any of them matches."""
        positions = self._parts.retained.find(tenant, subject_filters)
        return self._reader.records(positions)

    @property
    def retained_counts(self) -> tuple[int, int]:
        """(addresses with a value, values refused because there were too many)."""
        return self._parts.retained.count, self._parts.retained.refused_count

    # ── groups ──────────────────────────────────────────────────────────────────────────

    def open_group(self, spec: GroupOpen, now: Now) -> Pending[GroupOpened]:
        """Create or adopt; *reads* is the new read set. A higher owner epoch cuts off the old
        owner's grants (they wait for ``resume``); a lower one is Refused(PRECONDITION_FAILED)."""
        self._core.at(now)
        group, is_new = self._parts.groups.open(spec)
        self._keeper.opened(group, now)
        opened = GroupOpened(group=group.number, cursor=group.cursor, is_new=is_new)
        return Pending(opened, is_done=True) if spec.is_volatile else self._core.wait(opened)

    def drop_group(self, name: str, owner_epoch: int, now: Now) -> Pending[bool]:
        self._core.at(now)
        group = self._parts.groups.find(name)
        if group is None:
            return self._core.wait(False)
        if owner_epoch < group.owner_epoch:
            raise Refused(Code.PRECONDITION_FAILED, name, "the group has a newer owner")
        self._parts.groups.drop(group)
        return self._core.wait(True)

    def group_number(self, name: str) -> int:
        """0: no such group."""
        group = self._parts.groups.find(name)
        return group.number if group is not None else 0

    def group_names(self) -> Iterable[str]:
        return [group.name for group in self._parts.groups]

    def group_state(self, group: int) -> GroupState:
        """For inspection and tests. Raises Refused(CONSUMER_GROUP_NOT_FOUND)."""
        found = self._parts.groups.get(group)
        if found is None:
            raise Refused(Code.CONSUMER_GROUP_NOT_FOUND, str(group), "open it first")
        return self._reader.group_state(found)

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
        matches: Callable[[bytes], bool] | None = None,
        attempt_id: str = "",
        taker: str = "",
        in_runs: bool = False,
    ) -> Sequence[Granted]:
        """
        Grant up to *count* entries, returned ones first, in entry order.

        Either *holder* (a stream: no deadline; any number the server chose, unique in its run)
        or *invisible_ms*. *tags*, *matches* (of records): other entries are done for this group;
        one call looks at so many, and wakes the group if it stops there. An *attempt_id* that took
        something already gets what is left of it. A *taker* may ask for what it holds (``adopt``).
        *in_runs*: of a FIFO group also what follows a granted message in its order, while nothing
        else of it is out. The grant is logged, not awaited. An unknown group takes nothing.
        """
        self._core.at(now)
        found = self._parts.groups.get(group)
        if found is None:
            return []
        wanted = Wanted(
            count,
            self._deliveries.books.limit_of(found),
            now.wall_ms,
            self._core.tag_of,
            topic,
            queue_id,
            frozenset([tag_hash(tag) for tag in tags]) if tags else frozenset(),
            None if matches is None else partial(self._reader.does_match, matches),
            in_runs,
        )
        if self._parts.topics.compacted:
            wanted = self._reader.only_current(found, wanted)
        if invisible_ms:
            self._keeper.used(found, now)
        take = partial(self._deliveries.take, found, wanted, now, holder, invisible_ms, taker)
        if attempt_id:
            return self._attempts.take(found, attempt_id, now, invisible_ms, take)
        return take()

    def adopt(
        self, group: int, taker: str, above: int, count: int, now: Now, *, invisible_ms: int
    ) -> Sequence[Granted]:
        """
        What *taker* popped and has not settled, beyond the position *above*, granted once more;
        no further attempt. Earlier handles of it end. For a client that comes by another gateway.
        """
        self._core.at(now)
        found = self._parts.groups.get(group)
        if found is None or not taker:
            return []
        return self._attempts.adopt(found, taker, above, count, now, invisible_ms)

    def take_unacked(self, group: int, count: int, now: Now) -> list[Stretch] | None:
        """``take`` for a stream of a group that nobody acks; None: ``take`` must look."""
        core = self._core
        core.at(now)
        found = self._parts.groups.get(group)
        return None if found is None else take_unacked(found, core.entries, core.cache, count)

    def ready_count(self, group: int) -> int:
        """Entries that ``take`` could grant now (upper bound with tag filters and FIFO)."""
        found = self._parts.groups.get(group)
        return self._deliveries.books.ready_count(found) if found is not None else 0

    def hand_over(self, group: int, positions: Sequence[int], holder: int) -> None:
        """What ``take`` just granted to one stream belongs to *holder*, another of the group."""
        if (found := self._parts.groups.get(group)) is not None:
            self._deliveries.hand_over(found, positions, holder)

    def resume(
        self, group: int, holder: int, holds: Sequence[tuple[int, int]], now: Now
    ) -> Sequence[Granted]:
        """
        A stream (re)opens. Not inherited: deliveries in *holds* (position, grant) move to
        *holder*, those of lost holders return in place. Inherited: all that is in flight is
        granted again to *holder*, with packet id and stage, in entry order.
        """
        self._core.at(now)
        found = self._parts.groups.get(group)
        self._keeper.used(found, now)
        return self._deliveries.resume(found, holder, holds, now) if found is not None else []

    def retire_holder(self, holder: int) -> None:
        """The stream is no consumer any more; its deliveries stay until they are settled."""
        self._deliveries.retire(holder)

    def policy_of(self, group: int) -> Terms | None:
        """The policy of the group's queue, if it has one."""
        found = self._parts.groups.get(group)
        return found.guard.terms if found is not None and found.guard is not None else None

    def use_credit(self, credit_of: Callable[[int], int]) -> None:
        """Who tells how many messages the consumers of a group would take at once."""
        self._core.credit_of = credit_of

    def end_holder(self, holder: int, now: Now, *, is_lost: bool = False) -> None:
        """
        The stream is gone: deliveries return in place (inherited groups: they stay for the next
        owner). *is_lost*: with its gateway's presence; a volatile group then ends.
        """
        self._core.at(now)
        for group in self._deliveries.end_holder(holder, is_lost=is_lost):
            self._keeper.used(group, now)

    def ack(self, epoch: int, items: Sequence[AckRow], now: Now) -> Pending[list[tuple[int, int]]]:
        """Ack, change or release; (grant, code) per item; INVALID_RECEIPT_HANDLE for stale ones.
        Acking what is done already is OK."""
        self._core.at(now)
        results, must_wait = self._deliveries.ack(epoch, items, now)
        return self._core.wait(results) if must_wait else Pending(results, is_done=True)

    def mark(
        self, epoch: int, items: Sequence[MarkItem], now: Now
    ) -> Pending[list[tuple[int, int]]]:
        """Write packet id and stage into in-flight entries."""
        self._core.at(now)
        results, must_wait = self._deliveries.mark(epoch, items)
        return self._core.wait(results) if must_wait else Pending(results, is_done=True)

    def index(
        self, epoch: int, items: Sequence[IndexItem], now: Now
    ) -> Pending[list[tuple[int, int]]]:
        """Index records: messages enter light queues now, each with the ack of the delivery that
        caused it; (grant, code) per item, nothing of an item whose grant is stale."""
        self._core.at(now)
        return self._core.wait(self._late.index(epoch, items))
