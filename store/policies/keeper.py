"""
Enforces the policies of queues and groups: who expires, who is dropped, which queue ends.

Every decision is a record: ``DROP`` for entries that leave unseen, ``DEAD_LETTER`` for deliveries,
``QUEUE_END``. Replay applies them and decides nothing. Heads are looked at when something became
ready, when a timer set for the head comes, and before anything is handed out.
"""

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import Final

from protocols.clock import Now
from protocols.remoting.private import GroupOpen, ReadItem
from store.core import Core
from store.groups.deliveries import Deliveries
from store.groups.group import Group
from store.groups.guard import NEVER, Guard, Line, body_size
from store.groups.guarded import scan_all, scans_of
from store.groups.table import GroupTable
from store.index.queues import Queue
from store.log.format import Kind
from store.log.state import pack
from store.policies.handover import Handover, fitting_count
from store.policies.levels import create_subqueues, subqueues
from store.policies.terms import DROP_HEAD, DROP_NEW, NONE, Terms, terms_of
from store.retention.room import Room

DROPPED_AT_ONCE: Final = 256
"""Entries that leave by one record; their copies share its block."""

DROPPED_PER_TURN: Final = 2048
"""Entries of one queue that leave before others have their turn."""

LATER_MS: Final = 1000
"""When the store is too full to keep dead letters: look again."""

EXPIRED: Final = "expired"
TOO_LONG: Final = "maxlen"


class Keeper:
    """All guards of a store."""

    def __init__(
        self, core: Core, groups: GroupTable, deliveries: Deliveries, room: Room, handover: Handover
    ) -> None:
        self._core = core
        self._groups = groups
        self._deliveries = deliveries
        self._room = room
        self._handover = handover
        self._guards: dict[int, Guard] = {}
        self._dirty: set[int] = set()
        self._heads: list[tuple[int, int]] = []
        self._idle: list[tuple[float, int, Guard]] = []
        self._idle_count = 0
        self.judges: dict[Queue, Guard] = {}
        """Queues whose policy is asked before an item enters."""

        deliveries.expire = self.expire
        groups.on_dropped = self._dropped

    # ── who is guarded ──────────────────────────────────────────────────────────────────

    def create(self, queue: Queue, now: Now) -> None:
        """
        A queue was created, or its policy was changed: open its group, guard it.

        The group of a newer queue of that name stays with that queue.
        """
        terms = terms_of(queue.policy)
        if not terms.group:
            return
        create_subqueues(self._core, queue)
        group = self._groups.find(terms.group)
        if group is None or group.spec.incarnation < terms.incarnation:
            group, _ = self._groups.open(
                GroupOpen(
                    name=terms.group,
                    reads=[ReadItem(tag=0, key=queue.key, name=queue.name)],
                    incarnation=terms.incarnation,
                    is_fifo=terms.is_fifo,
                    is_volatile=queue.is_volatile,
                    start="earliest",
                )
            )
        if group.spec.incarnation == terms.incarnation:
            self._guard(group, terms, queue, now)

    def opened(self, group: Group, now: Now) -> None:
        """A group was opened: it may bring a policy of its own."""
        if group.guard is not None and group.guard.queue is not None:
            return
        if group.spec.policy:
            self._guard(group, terms_of(group.spec.policy), None, now)
        elif group.guard is not None:
            group.guard = None
            self._guards.pop(group.number, None)

    def _guard(self, group: Group, terms: Terms, queue: Queue | None, now: Now) -> None:
        known = group.guard
        if known is not None and known.terms == terms:
            known.used_at = now.monotonic
            return
        guard = group.guard = Guard(self._core, group, terms, queue)
        guard.spared_from = self._deliveries.books.limit_of(group)
        guard.used_at = now.monotonic
        if queue is not None:
            self._core.queues.version += 1  # who remembers what a set means looks again
            guard.use_subqueues([queue, *subqueues(self._core.queues, queue)])
            self.judges.pop(queue, None)
            if terms.is_judged_at_send:
                self.judges[queue] = guard
        self._guards[group.number] = guard
        self._dirty.add(group.number)
        if terms.idle_ms and queue is not None:
            self._watch_idle(now.monotonic + terms.idle_ms / 1000, guard)

    def rebuild(self, now: Now) -> None:
        """After recovery: guards are functions of queues and groups; idle times run anew."""
        for queue in list(self._core.queues):
            if queue.policy and not queue.is_volatile:
                terms = terms_of(queue.policy)
                group = self._groups.find(terms.group) if terms.group else None
                if group is not None and group.spec.incarnation == terms.incarnation:
                    self._guard(group, terms, queue, now)
        for group in list(self._groups):
            self.opened(group, now)

    def _dropped(self, group: Group) -> None:
        """Or it would be kept, with its queue: nothing becomes ready there again."""
        if group.guard is not None and self._guards.get(group.number) is group.guard:
            del self._guards[group.number]

    def used(self, group: Group | None, now: Now) -> None:
        """A client used the queue: its idle time begins anew."""
        if group is not None and group.guard is not None:
            group.guard.used_at = now.monotonic

    def asked(self, group: Group | None, now: Now) -> None:
        """A client asks for counts, which is a use: what has expired meanwhile does not count."""
        self.used(group, now)
        if group is not None and group.guard is not None and group.guard.can_expire:
            self._expire_all(group.guard, now.wall_ms)

    def drop_subqueues(self, queue: Queue) -> None:
        """The queue goes, and with it those of its priorities."""
        self.judges.pop(queue, None)
        for part in (*subqueues(self._core.queues, queue), queue):
            self._core.log.state(Kind.QUEUE_END, pack(part.number))
            self._groups.queue_dropped(part)
            self._core.queues.drop(part)

    # ── time ────────────────────────────────────────────────────────────────────────────

    def note(self, groups: set[int]) -> None:
        """Something became ready in these."""
        if self._guards:
            self._dirty |= groups & self._guards.keys()

    def enforce(self, now: Now) -> float | None:
        """
        Drop what is too old or too much; end queues that nobody used. When to come again.

        To be called after those who wait had their chance: what is handed out at once neither
        expires nor counts.
        """
        self.note(self._core.woken_groups)
        while self._heads and self._heads[0][0] <= now.wall_ms:
            self._dirty.add(heappop(self._heads)[1])
        dirty, self._dirty = self._dirty, set()
        for number in dirty:
            guard = self._guards.get(number)
            if guard is None or self._groups.get(number) is not guard.group:
                self._guards.pop(number, None)
                continue
            self._look(guard, now)
        dues = [self._end_idle(now)]
        if self._dirty:
            dues.append(now.monotonic)
        if self._heads:
            dues.append(now.monotonic + (self._heads[0][0] - now.wall_ms) / 1000)
        return min([due for due in dues if due is not None], default=None)

    def _look(self, guard: Guard, now: Now) -> None:
        group = guard.group
        guard.spared_from = limit = self._deliveries.books.limit_of(group)
        if guard.armed_ms <= now.wall_ms:
            guard.armed_ms = 0
        count = self._expire_all(guard, now.wall_ms) if guard.can_expire else 0
        if guard.terms.has_limit:
            if guard.terms.overflow == DROP_HEAD:
                count += self._shorten(guard, limit)
            elif guard.terms.overflow == DROP_NEW:
                self._drop_new(guard, limit)
        if count >= DROPPED_PER_TURN:
            self._dirty.add(group.number)
        if guard.can_expire:
            self._arm(guard, limit, now.wall_ms)

    def _arm(self, guard: Guard, limit: int, wall_ms: int) -> None:
        """A timer for the heads, unless an earlier one is set."""
        due = min(
            [guard.expires_at_ms(head) for head in self._head_of(guard, limit)], default=NEVER
        )
        if due <= wall_ms:
            due = wall_ms + LATER_MS  # it could not go: the store is full
        if due < NEVER and (not guard.armed_ms or due < guard.armed_ms):
            guard.armed_ms = due
            heappush(self._heads, (due, guard.group.number))

    def _head_of(self, guard: Guard, limit: int) -> Iterator[int]:
        """The first ready entry of each line."""
        for line in guard.lines():
            returned = guard.returned_in(line)
            if returned:
                yield returned[0]
            else:
                yield from guard.fresh_in(line, limit, 1)

    def _end_idle(self, now: Now) -> float | None:
        while self._idle and self._idle[0][0] <= now.monotonic:
            guard = heappop(self._idle)[2]
            queue = guard.queue
            if queue is None or self._core.queues.get(queue.number) is not queue:
                continue
            if guard.group.stream_count:
                guard.used_at = now.monotonic
            due = guard.used_at + guard.terms.idle_ms / 1000
            if due > now.monotonic:
                self._watch_idle(due, guard)
            else:
                self._end_queue(guard, queue)
        return self._idle[0][0] if self._idle else None

    def _watch_idle(self, due: float, guard: Guard) -> None:
        self._idle_count += 1  # guards have no order
        heappush(self._idle, (due, self._idle_count, guard))

    def _end_queue(self, guard: Guard, queue: Queue) -> None:
        """Queue, group and the notice in one block."""
        self._core.log.seal_state()
        if self._groups.get(guard.group.number) is guard.group:
            self._groups.drop(guard.group)
        self.drop_subqueues(queue)
        self._core.counters.queues_ended += 1
        if guard.terms.notices:
            self._handover.notice(guard)

    # ── dropping ────────────────────────────────────────────────────────────────────────

    def _expire_all(self, guard: Guard, wall_ms: int) -> int:
        return sum([self.expire(guard, line, wall_ms) for line in guard.lines()])

    def expire(self, guard: Guard, line: Line, wall_ms: int) -> int:
        """End the expired entries at the head of *line*; how many."""
        if guard.terms.dead_letter and not self._room.has_room_for(0):
            return 0
        group, total = guard.group, 0
        while total < DROPPED_PER_TURN:
            returned = guard.returned_in(line)[:DROPPED_AT_ONCE]
            limit = self._deliveries.books.limit_of(group)
            fresh = guard.fresh_in(line, limit, DROPPED_AT_ONCE - len(returned))
            heads = [*returned, *fresh]
            count = 0
            while count < len(heads) and guard.is_expired(heads[count], wall_ms):
                count += 1
            if not count:
                break
            self._drop(guard, line, returned[:count], max(0, count - len(returned)), EXPIRED)
            self._core.counters.expired += count
            total += count
            if count < len(heads):
                break
        return total

    def _shorten(self, guard: Guard, limit: int) -> int:
        """Drop heads until the ready entries fit."""
        total = 0
        for line in guard.lines():
            while total < DROPPED_PER_TURN:
                returned = guard.returned_in(line)[:DROPPED_AT_ONCE]
                fresh = guard.fresh_in(line, limit, DROPPED_AT_ONCE - len(returned))
                count = self._surplus(guard, [*returned, *fresh], limit)
                if not count:
                    break
                self._drop(guard, line, returned[:count], max(0, count - len(returned)), TOO_LONG)
                self._core.counters.overflowed += count
                total += count
        return total

    def _surplus(self, guard: Guard, heads: Sequence[int], limit: int) -> int:
        """How many of *heads* must go."""
        terms, count = guard.terms, 0
        if terms.max_length != NONE:
            count = max(0, guard.ready_count(limit) - terms.max_length)
        if terms.max_bytes != NONE:
            surplus = guard.ready_bytes(limit) - terms.max_bytes
            by_size = 0
            while surplus > 0 and by_size < len(heads):
                surplus -= body_size(self._core, heads[by_size])
                by_size += 1
            count = max(count, by_size)
        return min(count, len(heads))

    def _drop(
        self, guard: Guard, line: Line, returned: Sequence[int], fresh_count: int, reason: str
    ) -> None:
        """These leave unseen; those that are handed over in blocks of a bounded size."""
        if not guard.terms.dead_letter:
            self._drop_some(guard, line, returned, fresh_count, reason)
            return
        limit = self._deliveries.books.limit_of(guard.group)
        leaving = [*returned, *guard.fresh_in(line, limit, fresh_count)]
        while leaving:
            count = fitting_count(self._core, leaving)
            back, returned = returned[:count], returned[count:]
            self._core.log.seal_state()
            self._drop_some(guard, line, back, count - len(back), reason)
            del leaving[:count]

    def _drop_some(
        self, guard: Guard, line: Line, returned: Sequence[int], fresh_count: int, reason: str
    ) -> None:
        """One record, and with it the copies of those that are handed over."""
        group = guard.group
        leaving = list(returned)
        scans: list[tuple[int, int]] = []
        if fresh_count:
            fresh, passed = scan_all(
                group, line, self._deliveries.books.limit_of(group), fresh_count
            )
            leaving += fresh
            scans = scans_of(passed)
        if not group.spec.is_volatile:
            self._core.log.state(Kind.DROP, pack(group.number, scans, list(returned)))
        group.done(list(returned))
        is_handed_over = bool(guard.terms.dead_letter)
        count = self._handover.messages(guard, leaving, reason) if is_handed_over else 0
        self._core.counters.dead_lettered += count
        self._core.counters.discarded += len(leaving) - count

    def _drop_new(self, guard: Guard, limit: int) -> None:
        """
        Keep the oldest, drop what came last.

        Entries leave a read only at its front, so those that stay are first offered and returned
        (there are at most ``max_length`` of them); what is then at the front is too much.
        """
        group, terms = guard.group, guard.terms
        if terms.max_length == NONE or guard.ready_count(limit) <= terms.max_length:
            return
        (line,) = guard.lines()
        room = max(0, terms.max_length - len(group.returned) - group.held_count)
        if room:
            self._deliveries.set_back(group, line, limit, room)
        rest = guard.ready_count(limit) - len(group.returned) - group.held_count
        while rest > 0:
            step = min(rest, DROPPED_AT_ONCE)
            self._drop(guard, line, (), step, TOO_LONG)
            self._core.counters.overflowed += step
            rest -= step
