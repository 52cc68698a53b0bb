"""
What a policy needs to know of its group: the ready entries in order, their number, bytes and age.

A group without a policy has no guard and pays one attribute test. Ready entries stand in *lines*:
one, or one per priority, the highest first. Within a line returned entries come first, which is
the order of the queue.
"""

from array import array
from collections.abc import Sequence
from typing import Final

from protocols.errors import Refused
from store.core import Core
from store.groups.group import Group, GroupRead
from store.index.queues import Queue
from store.log.messages import body_size_of, store_ms
from store.policies.terms import NONE, Terms

NEVER: Final = 1 << 62
"""Wall time of an entry that does not expire."""

PASSED_MAX: Final = 4096
"""Running sums kept of entries that are not ready any more."""

Line = Sequence[GroupRead]


class Guard:
    """Facts of one guarded group, computed when asked; nothing of it is stored."""

    def __init__(self, core: Core, group: Group, terms: Terms, queue: Queue | None) -> None:
        self._core = core
        self.group = group
        self.terms = terms
        self.queue = queue
        """The pinned queue whose policy it is; None: the policy is the group's own."""

        self.levels: dict[Queue, int] = {}
        """Sub-queue → its priority."""

        self.subqueues: list[Queue] = []
        """By priority; the first is the queue itself."""

        self.spared_from = 0
        """Entries from this log position on have just become visible: who waits for them gets them,
        however short their time, before they may expire or be dropped."""

        self.used_at = 0.0
        """Monotonic: when the queue was last used by a client."""

        self.armed_ms = 0
        """Wall time that a timer is set for; 0: none."""

        self._sizes: dict[GroupRead, Sizes] = {}

    def use_subqueues(self, queues: Sequence[Queue]) -> None:
        self.subqueues = list(queues)
        self.levels = {queue: level for level, queue in enumerate(queues)}

    # ── lines ───────────────────────────────────────────────────────────────────────────

    def lines(self) -> list[Line]:
        """The reads in the order in which they are served."""
        reads = list(self.group.reads.values())
        if not self.terms.levels:
            return [reads]
        reads.sort(key=lambda read: -self.levels.get(read.queue, 0))
        return [[read] for read in reads]

    def returned_in(self, line: Line) -> list[int]:
        """Positions of the line that came back, ascending."""
        group = self.group
        if not group.returned or not self.terms.levels:
            return group.returned
        (read,) = line
        return [at for at in group.returned if read.covers(at)]

    def fresh_in(self, line: Line, limit: int, count: int) -> list[int]:
        """The next up to *count* entries below *limit* that were never offered."""
        found: set[int] = set()
        for read in line:
            queue = read.queue
            start = queue.seek(read.at)
            found.update(queue.range(start, min(end_of(read, limit), start + count)))
        return sorted(found)[:count]

    # ── age ─────────────────────────────────────────────────────────────────────────────

    @property
    def can_expire(self) -> bool:
        return self.terms.expire_ms != NONE or bool(self._core.entries.expires)

    def expires_at_ms(self, entry: int) -> int:
        """The earlier of the message's own time and the queue's."""
        entries = self._core.entries
        at = entries.expires.get(entry, NEVER)
        if self.terms.expire_ms != NONE:
            position = entries.targets.get(entry, entry)
            try:
                at = min(at, store_ms(self._core.record_at(position)) + self.terms.expire_ms)
            except Refused:
                return 0  # it cannot be read: nobody will ever get it
        return at

    def is_expired(self, entry: int, wall_ms: int) -> bool:
        return entry < self.spared_from and self.expires_at_ms(entry) <= wall_ms

    # ── length ──────────────────────────────────────────────────────────────────────────

    def ready_count(self, limit: int) -> int:
        """Ready entries below log position *limit*; of several queues each counts its own."""
        group = self.group
        fresh = sum([max(0, end_of(read, limit) - read.at) for read in group.reads.values()])
        return fresh + len(group.returned) + group.held_count

    def ready_bytes(self, limit: int) -> int:
        """Bodies of the same."""
        group, total = self.group, 0
        for read in group.reads.values():
            sizes = self._sizes.get(read)
            if sizes is None:
                sizes = self._sizes[read] = Sizes(read)
            total += sizes.between(self._core, read.at, end_of(read, limit))
        return total + sum([body_size(self._core, at) for at in group.returned])


class Sizes:
    """Running sums of body sizes along one read: what lies between two offsets is a difference."""

    def __init__(self, read: GroupRead) -> None:
        self._queue = read.queue
        self._first = read.at
        self._sums = array("Q", [0])

    def between(self, core: Core, start: int, end: int) -> int:
        if start >= end:
            return 0
        if not self._first <= start < self._first + len(self._sums):
            self._first, self._sums = start, array("Q", [0])
        queue, sums = self._queue, self._sums
        at = self._first + len(sums) - 1
        sums.extend([sums[-1]] * (min(queue.seek(at), end) - at))
        for entry in queue.range(queue.seek(at), end):
            sums.append(sums[-1] + body_size(core, entry))
        total = self._sums[end - self._first] - self._sums[start - self._first]
        if start - self._first > PASSED_MAX:
            del self._sums[: start - self._first]
            self._first = start
        return total


def body_size(core: Core, entry: int) -> int:
    """Bytes of the body of an entry's message; 0: it cannot be read any more."""
    try:
        return body_size_of(core.record_at(core.entries.targets.get(entry, entry)))
    except Refused:
        return 0


def end_of(read: GroupRead, limit: int) -> int:
    """Queue offset up to which *read* may go now: entries below log position *limit*."""
    end = read.queue.visible_end(limit)
    return min(end, read.stop_at) if read.stop_at >= 0 else end
