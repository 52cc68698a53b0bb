"""
One group: a read set, ONE cursor, what is in flight, what came back.

Three places hold an entry between its first grant and its end: *in flight* (with a batch: grant,
holder or deadline), *returned* (in place, first to be granted again) and *held* (behind another
message of its order key). ``open`` has them all. Everything the group was offered and that is not
open is done. State changes are methods that replay calls too; deciding is in ``selection``.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from protocols.remoting.private import GroupOpen
from store.index.entries import Entries
from store.index.queues import Queue

if TYPE_CHECKING:
    from store.groups.guard import Guard

NO_DEADLINE: Final = float("inf")
HELD_MAX: Final = 10_000
"""Messages a FIFO group may look past behind stuck order keys before it waits."""

KEYLESS: Final = 1 << 64
"""Beyond all hashes of order keys: the order of a message queue, by its number."""


class GroupRead:
    """One queue of a read set, from where on and up to where."""

    __slots__ = (
        "at",
        "begin_at",
        "from_position",
        "queue",
        "serial",
        "stop_at",
        "tag",
        "to_position",
        "topic",
    )

    def __init__(self, serial: int, tag: int, queue: Queue, at: int, from_position: int) -> None:
        self.serial = serial
        """Names it in grant records; the same queue read again later is another read."""

        self.tag = tag
        self.queue = queue
        self.topic = queue.topic
        self.at = at
        """Queue offset of the first entry not looked at yet."""

        self.begin_at = at
        """Queue offset where it began."""

        self.stop_at = -1
        """Queue offset where it ends; -1: open."""

        self.from_position = from_position
        self.to_position = -1

    def covers(self, ordinal: int) -> bool:
        """Whether this entry is in the queue, within the range that is read."""
        queue = self.queue
        if not queue.has(ordinal):
            return False
        offset = queue.offset_from(ordinal)
        return offset >= self.begin_at and (self.stop_at < 0 or offset < self.stop_at)

    def is_over(self) -> bool:
        return 0 <= self.stop_at <= self.at


class GrantBatch:
    """What one take handed out: all deliveries share grant, holder and deadline."""

    __slots__ = (
        "deadline",
        "epoch",
        "grant",
        "holder",
        "invisible_ms",
        "is_stream",
        "left",
        "positions",
        "taker",
    )

    def __init__(self, grant: int, epoch: int, holder: int, positions: Sequence[int]) -> None:
        self.grant = grant
        self.epoch = epoch
        """Store epoch that granted it."""

        self.holder = holder
        """Stream; 0: none."""

        self.positions = positions
        self.left = len(positions)
        self.invisible_ms = 0
        self.is_stream = holder != 0
        """Granted to a stream, which may be gone by now."""

        self.deadline = NO_DEADLINE
        self.taker = ""
        """Client that popped it, if it said so: any gateway may ask for it by that name."""

    def is_named_by(self, grant: int, epoch: int, now_epoch: int) -> bool:
        """
        Whether a handle is this delivery's: the grant is, and so is the store epoch.

        A stream that held it over a restart names it with the epoch in which it came back.
        """
        return self.grant == grant and self.epoch <= epoch <= now_epoch


class Group:
    """Mutable state of one group at this store."""

    def __init__(self, number: int, spec: GroupOpen, entries: Entries) -> None:
        self.number = number
        self.spec = spec
        self.name = spec.name
        self.owner_epoch = spec.owner_epoch
        self.reads: dict[int, GroupRead] = {}
        """By serial."""

        self.guard: Guard | None = None
        """Enforces a policy; None: there is none."""

        self.stream_count = 0
        """Streams that may still get something."""

        self.next_serial = 1
        self.ready: dict[GroupRead, None] = {}
        """Reads that may have something new."""

        self.open: dict[int, int] = {}
        """Position → position of all that is not done."""

        self.in_flight: dict[int, GrantBatch] = {}
        self.holders: dict[int, set[GrantBatch]] = {}
        self.returned: list[int] = []
        """Positions, ascending."""

        self.attempts: dict[int, int] = {}
        """Position → attempts that counted, where there were any."""

        self.marks: dict[int, tuple[int, int]] = {}
        """Position → (packet id, stage)."""

        self.tags: dict[int, tuple[int, ...]] = {}
        """Position → tags of the reads it was found in (``groups/tags``); a part of ``open``."""

        self.turns: dict[int, int] = {}
        """FIFO: order hash → position whose turn it is."""

        self.followers: dict[int, list[int]] = {}
        """FIFO: order hash → positions in flight behind that one, ascending: of a run."""

        self.held: dict[int, deque[int]] = {}
        self.held_count = 0
        self.last_grant = 0
        self.top = 0
        """Highest position ever offered."""

        self.start = 0
        """Log position where the group began."""

        self.last_done = -1
        """Position of the entry right below the cursor; -1: none yet."""

        self.live_from = 0
        """QoS 0 entries below this are skipped (``skips_qos0_on_resume``)."""

        self._heap: list[int] = []
        self._entries = entries

    # ── read set ────────────────────────────────────────────────────────────────────────

    def add_read(self, read: GroupRead) -> None:
        self.reads[read.serial] = read
        self.next_serial = max(self.next_serial, read.serial + 1)
        read.queue.readers = (*read.queue.readers, (self, read))
        self.ready[read] = None

    def end_read(self, read: GroupRead, offset: int, position: int) -> None:
        """Its range ends at *offset*; what lies below is still delivered."""
        read.stop_at, read.to_position = offset, position
        if read.is_over():
            self.ready.pop(read, None)

    def is_spent(self, read: GroupRead) -> bool:
        """It ended, and nothing of its range is open."""
        return read.is_over() and all(position >= read.to_position for position in self.open)

    def forget_read(self, read: GroupRead) -> None:
        self.reads.pop(read.serial, None)
        self.ready.pop(read, None)
        self.tags.clear()
        read.queue.readers = tuple([p for p in read.queue.readers if p[1] is not read])

    def forget_all_reads(self) -> None:
        for read in list(self.reads.values()):
            self.forget_read(read)

    # ── grants ──────────────────────────────────────────────────────────────────────────

    def granted(self, batch: GrantBatch, ordinals: Sequence[int]) -> None:
        """*batch* is in flight; positions may be new, returned or in flight before."""
        positions = batch.positions
        self.last_grant = max(self.last_grant, batch.grant)
        if not self._offer(positions, ordinals):
            if self.returned:
                gone = set(positions)
                self.returned = [position for position in self.returned if position not in gone]
            for position in positions:
                earlier = self.in_flight.get(position)
                if earlier is not None:
                    self._leave(earlier)
        self.in_flight.update(dict.fromkeys(positions, batch))
        if batch.holder:
            self.holders.setdefault(batch.holder, set()).add(batch)
        if self.spec.is_fifo:
            for position, ordinal in zip(positions, ordinals, strict=True):
                order = self.order_of(ordinal)
                if order and self.turns.setdefault(order, position) != position:
                    self._follow(order, position)

    def _follow(self, order: int, position: int) -> None:
        """It is in flight with what is before it, or was found after what is behind it."""
        if position < self.turns[order]:
            self.turns[order], position = position, self.turns[order]
        waiting = self.held.get(order)
        if waiting and position in waiting:
            waiting.remove(position)
            self.held_count -= 1
            if not waiting:
                del self.held[order]
        followers = self.followers.setdefault(order, [])
        if position not in followers:
            insort(followers, position)

    def hold(self, positions: Sequence[int], ordinals: Sequence[int]) -> None:
        """These wait behind an earlier message of their order key."""
        self._offer(positions, ordinals)
        for position, ordinal in zip(positions, ordinals, strict=True):
            self.held.setdefault(self.order_of(ordinal), deque()).append(position)
        self.held_count += len(positions)

    def _offer(self, positions: Sequence[int], ordinals: Sequence[int]) -> bool:
        """Note positions that were never open before, for the cursor; True: all are beyond those
        that ever were."""
        if not positions:
            return True
        is_new = positions[0] > self.top and (self.guard is None or not self.guard.levels)
        if is_new:  # the common case; a heap grows by larger keys at its end
            self.open.update(zip(positions, ordinals, strict=True))
            self._heap.extend(positions)
        else:
            for position, ordinal in zip(positions, ordinals, strict=True):
                if position not in self.open:
                    self.open[position] = ordinal
                    heappush(self._heap, position)
        self.top = max(self.top, max(positions))
        return is_new

    def _leave(self, batch: GrantBatch) -> None:
        batch.left -= 1
        if batch.left == 0 and batch.holder:
            self._forget_batch(batch)

    def _forget_batch(self, batch: GrantBatch) -> None:
        """Its holder has nothing of it any more."""
        held = self.holders.get(batch.holder)
        if held is not None:
            held.discard(batch)
            if not held:
                del self.holders[batch.holder]

    def order_of(self, ordinal: int) -> int:
        """What it has to be in order with; 0: nothing."""
        return self._entries.order_of(ordinal) or self.queue_order(ordinal)

    def queue_order(self, ordinal: int) -> int:
        """A message of a topic without order key follows those before it in its queue; 0: none."""
        for read in self.reads.values():
            if read.topic and read.queue.has(ordinal):
                return KEYLESS + read.queue.number
        return 0

    def respec(self, spec: GroupOpen) -> None:
        """Other settings; entries that wait for their turn get along with them."""
        was_fifo = self.spec.is_fifo
        self.spec = spec
        if was_fifo and not spec.is_fifo:
            for waiting in self.held.values():
                for position in waiting:
                    insort(self.returned, position)
            self.held.clear()
            self.turns.clear()
            self.followers.clear()
            self.held_count = 0
        elif spec.is_fifo and not was_fifo:
            self._take_turns()

    def _take_turns(self) -> None:
        """From now on in order: what came back and is not the first of its key waits."""
        for position in sorted(self.in_flight):
            order = self.order_of(position)
            if order and self.turns.setdefault(order, position) != position:
                self._follow(order, position)
        kept: list[int] = []
        for position in self.returned:
            order = self.order_of(position)
            if not order or self.turns.setdefault(order, position) == position:
                kept.append(position)
            else:
                self.held.setdefault(order, deque()).append(position)
                self.held_count += 1
        self.returned = kept

    # ── ends ────────────────────────────────────────────────────────────────────────────

    def done(self, positions: Iterable[int]) -> None:
        """Acknowledged, dead-lettered or dropped: never again."""
        in_flight, opened, tags = self.in_flight, self.open, self.tags
        is_fifo, has_facts = self.spec.is_fifo, bool(self.attempts or self.marks)
        for position in positions:
            batch = in_flight.pop(position, None)
            if batch is not None:
                batch.left -= 1
                if not batch.left and batch.holder:
                    self._forget_batch(batch)
            elif self.returned and position in self.returned:
                self.returned.remove(position)
            ordinal = opened.pop(position, -1)
            if tags:
                tags.pop(position, None)
            if has_facts:
                self.attempts.pop(position, None)
                self.marks.pop(position, None)
            if is_fifo and ordinal >= 0:
                self._pass_turn(position, ordinal)
        self._advance()

    def _pass_turn(self, position: int, ordinal: int) -> None:
        order = self.order_of(ordinal)
        waiting = self.held.get(order)
        followers = self.followers.get(order)
        if waiting and position in waiting:  # purged while held
            waiting.remove(position)
            self.held_count -= 1
        if followers and position in followers:
            followers.remove(position)
        if self.turns.get(order) == position:
            if waiting and not (followers and followers[0] < waiting[0]):
                self.turns[order] = waiting.popleft()
                self.held_count -= 1
                insort(self.returned, self.turns[order])
            elif followers:
                self.turns[order] = followers.pop(0)
            else:
                del self.turns[order]
        if not waiting:
            self.held.pop(order, None)
        if not followers:
            self.followers.pop(order, None)

    def mend_turns(self) -> None:
        """
        After replay: the turn passes where the entry that had it is gone.

        Its end stands in the log, but it went with its segment (or to rot), so that the end
        found nothing to pass on; what waited behind it would wait for ever.
        """
        for order, waiting in list(self.held.items()):
            left = deque(
                at for at in waiting if at not in self.in_flight and at not in self.returned
            )
            if left and order not in self.turns:
                self.turns[order] = left.popleft()
                insort(self.returned, self.turns[order])
            if left:
                self.held[order] = left
            else:
                del self.held[order]
        self.held_count = sum([len(waiting) for waiting in self.held.values()])

    def _advance(self) -> None:
        heap, opened = self._heap, self.open
        if not heap:
            return
        if not opened:
            self.last_done = max(self.last_done, self.top)
            heap.clear()
            return
        last = self.last_done
        while heap and heap[0] not in opened:
            last = max(last, heappop(heap))
        self.last_done = last

    def give_back(self, positions: Iterable[int], *, counts: bool) -> None:
        """Back to their places; *counts*: the bytes went to the client."""
        for position in positions:
            batch = self.in_flight.pop(position, None)
            if batch is None:
                continue
            self._leave(batch)
            if counts:
                self.attempts[position] = self.attempts.get(position, 0) + 1
            self.marks.pop(position, None)
            order = self.order_of(self.open[position]) if self.turns else 0
            if order and self.turns.get(order, position) != position:
                self._fall_behind(order, position)
            else:
                insort(self.returned, position)

    def _fall_behind(self, order: int, position: int) -> None:
        """It came back, and what is before it is not done."""
        followers = self.followers.get(order, [])
        if position in followers:
            followers.remove(position)
        if not followers:
            self.followers.pop(order, None)
        waiting = self.held.setdefault(order, deque())
        waiting.insert(bisect_left(waiting, position), position)
        self.held_count += 1

    def count_attempts(self, positions: Iterable[int]) -> None:
        """What is in flight goes out once more without having come back (inherited)."""
        for position in positions:
            if position in self.in_flight:
                self.attempts[position] = self.attempts.get(position, 0) + 1

    def release_holder(self, batch: GrantBatch) -> None:
        """Its stream is gone, its deliveries stay."""
        self._forget_batch(batch)
        batch.holder = 0

    # ── facts ───────────────────────────────────────────────────────────────────────────

    @property
    def cursor(self) -> int:
        """Every entry of the read set below it is done."""
        passed = max(self.start, self._entries.end_of(self.last_done))
        return min(passed, self.first_owed(passed))

    def attempt_of(self, position: int) -> int:
        """Number of the attempt that a grant now would be."""
        return self.attempts.get(position, 0) + 1 if self.attempts else 1

    def first_owed(self, end: int) -> int:
        """Lowest log position that this group still needs; *end* if none."""
        owed = min(self.open, default=end)
        for read in self.reads.values():
            if read.at < read.queue.next and read.at != read.stop_at:
                at = read.queue.seek(read.at)
                owed = min([owed, *read.queue.slice(at, at + 1)])
        return owed
