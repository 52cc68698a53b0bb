"""
Message queues and light queues: one kind of thing, numbered, holding positions of entries.

A queue's number is bound by a record of the log: to (topic, queue id), or to the 16 bytes of
``canonical.queue_key`` for a light queue.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from protocols.canonical import is_created_explicitly
from store.index.cold import ColdIndex
from store.index.idle import IdleQueue, IdleTable
from store.index.pages import Row

if TYPE_CHECKING:
    from store.groups.group import Group, GroupRead


NO_POLICY: Final[dict[str, int | str]] = {}
"""Shared: never written to."""

NO_READERS: Final[tuple["tuple[Group, GroupRead]", ...]] = ()


class Queue:
    """
    Entries by queue offset, as log positions.

    What lies in the newest segments is in ``entries``; offsets below ``hot_first`` are asked of the
    index files (``ColdIndex``), if there are any: ``first`` < ``hot_first``.
    """

    __slots__ = (
        "cold",
        "entries",
        "first",
        "has_gaps",
        "hot_first",
        "is_volatile",
        "key",
        "name",
        "next",
        "number",
        "policy",
        "queue_id",
        "readers",
        "sealed",
        "topic",
    )

    def __init__(
        self,
        number: int,
        cold: ColdIndex,
        key: bytes = b"",
        name: str = "",
        topic: str = "",
        queue_id: int = -1,
    ) -> None:
        self.number = number
        self.cold = cold
        self.key = key
        self.name = name
        self.topic = topic
        """Of a message queue; empty: a light queue."""

        self.queue_id = queue_id
        self.policy = NO_POLICY
        self.is_volatile = False
        self.first = 0
        """Smallest offset that is kept; below the first entry only while nobody has asked."""

        self.hot_first = 0
        """Offset of ``entries[0]``."""

        self.next = 0
        self.entries = array("Q")
        self.sealed = 0
        """Newest segment whose index file, not ``entries``, has entries of the queue; 0: none."""

        self.has_gaps = False
        """An offset was lost to rot: its place repeats the position of the next one."""

        self.readers = NO_READERS

    @property
    def can_rest(self) -> bool:
        """A light queue that nobody reads, with nothing in memory."""
        return (
            not (self.entries or self.readers or self.policy or self.topic or self.is_volatile)
            and self.sealed > 0
        )

    @property
    def is_unused(self) -> bool:
        """Came into being by a first use, and neither a reader nor an entry is left."""
        return (
            not (self.entries or self.readers or self.policy or self.topic or self.is_volatile)
            and self.first >= self.next
            and not is_created_explicitly(self.key)
        )

    # ── in ──────────────────────────────────────────────────────────────────────────────

    def put(self, offset: int, position: int) -> None:
        """An entry found in the log, at the offset stored with it."""
        if offset == self.next and self.entries:
            self.entries.append(position)
            self.next = offset + 1
            return
        if not self.entries and offset >= self.next:
            if not self.sealed:
                self.first = offset
            self.hot_first = self.next = offset
        if offset < self.next:
            return  # met already: a tail that was rewritten
        if offset > self.next:
            self.has_gaps = True
        self.entries.extend([position] * (offset - self.next + 1))
        self.next = offset + 1

    def put_all(self, offsets: Sequence[int], positions: Sequence[int]) -> None:
        """``put`` of several; adjoining offsets, in nearly all cases."""
        count = len(offsets)
        if self.entries and offsets[0] == self.next and offsets[-1] == self.next + count - 1:
            self.entries.extend(positions)
            self.next += count
        else:
            for offset, position in zip(offsets, positions, strict=True):
                self.put(offset, position)

    def settle_next(self, offset: int) -> None:
        """The next offset is at least *offset* (from a snapshot), whatever the scan found."""
        if not self.entries:
            if not self.sealed:
                self.first = max(self.next, offset)
            self.hot_first = self.next = max(self.next, offset)
        elif offset > self.next:
            self.has_gaps = True
            self.entries.extend([self.entries[-1]] * (offset - self.next))
            self.next = offset

    def seal(self, first: int, count: int, number: int, index: int) -> None:
        """
        The first of ``entries`` are in the index file of segment *number* now.

        *count* from offset *first* on are its row *index*.
        """
        end = first + count
        if first > self.hot_first:  # it held on to what older files have
            self.cold.forget(self)
        elif not self.sealed or self.number in self.cold.remembered:
            self.cold.extend(self, first, end, number, index)
        self.sealed = number
        del self.entries[: end - self.hot_first]
        self.hot_first = end

    def let_go(self, end: int, number: int) -> None:
        """All ``entries`` below the log position *end* are in index files; the newest of those
        that have some is of segment *number*."""
        count = bisect_left(self.entries, end)
        del self.entries[:count]
        self.hot_first += count
        self.sealed = number
        self.cold.forget(self)

    # ── out ─────────────────────────────────────────────────────────────────────────────

    def visible_end(self, limit: int) -> int:
        """Offset behind the last entry below the log position *limit*."""
        entries = self.entries
        if not entries or entries[-1] < limit:
            return self.next
        return self.hot_first + bisect_left(entries, limit)

    def slice(self, start: int, stop: int) -> Sequence[int]:
        """Positions of the entries from offset *start* on, up to *stop* or fewer; at least one
        if *start* is what ``seek`` gave and below *stop*."""
        if start >= self.hot_first:
            return self.entries[start - self.hot_first : stop - self.hot_first]
        return self.cold.slice(self, start, stop)

    def range(self, start: int, stop: int) -> list[int]:
        """All positions from offset *start* up to *stop*."""
        found: list[int] = []
        start = self.seek(start)
        while start < stop and (part := self.slice(start, stop)):
            found += part
            start = self.seek(start + len(part))
        return found

    def seek(self, offset: int) -> int:
        """Offset of the first entry that is kept at or above *offset*; the next one if none is."""
        if offset >= self.hot_first:
            return offset
        found = -1
        if self.sealed and self.first < self.hot_first:
            found = self.cold.seek(self, max(offset, self.first))
        return found if found >= 0 else self.hot_first

    def offset_from(self, position: int) -> int:
        """Offset of the first entry at or above *position*."""
        entries = self.entries
        if self.first < self.hot_first and not (entries and entries[0] <= position):
            found = self.cold.offset_from(self, position)
            if found >= 0:
                return found
        return self.hot_first + bisect_left(entries, position)

    def has(self, position: int) -> bool:
        offset = self.offset_from(position)
        return position in self.slice(offset, offset + 1)

    # ── retention ───────────────────────────────────────────────────────────────────────

    def dropped(self, row: Row) -> None:
        """A sealed segment that held *row* went."""
        end = row.first + row.size
        if row.first <= self.first < end:
            self.first = end  # nothing below is looked for
            self.first = self.seek(end)


class QueueTable:
    """All queues, by number and by key; those that rest are rows of ``idle``."""

    def __init__(self, cold: ColdIndex) -> None:
        self._cold = cold
        self.idle = IdleTable()
        self._by_number: dict[int, Queue] = {}
        self._by_key: dict[bytes, Queue] = {}
        self._by_topic: dict[tuple[str, int], Queue] = {}
        self._woken: dict[Queue, None] = {}
        """Those that may be able to rest soon: asked for, or read by one group less."""

        self.next_number = 1
        self.version = 0
        """Rises when a queue goes or rests: who remembers queues looks again."""

    def add_light(self, number: int, key: bytes, name: str, policy: dict[str, int | str]) -> Queue:
        """Bind *number*; a queue that has the key already keeps its number and entries."""
        queue = self.find(key)
        if queue is None:
            return self.new_light(number, key, name, policy)
        queue.name = name or queue.name
        self._set_policy(queue, policy)
        self.next_number = max(self.next_number, number + 1)
        return queue

    def new_light(self, number: int, key: bytes, name: str, policy: dict[str, int | str]) -> Queue:
        """The same where nothing has the key."""
        queue = self._by_key[key] = self._by_number[number] = Queue(number, self._cold, key, name)
        self._set_policy(queue, policy)
        self.next_number = max(self.next_number, number + 1)
        return queue

    @staticmethod
    def _set_policy(queue: Queue, policy: dict[str, int | str]) -> None:
        queue.policy = policy or NO_POLICY
        queue.is_volatile = bool(policy.get("volatile"))

    def add_message_queue(self, number: int, topic: str, queue_id: int) -> Queue:
        """Bind *number* to a message queue."""
        queue = self._by_topic.get((topic, queue_id))
        if queue is None:
            queue = Queue(number, self._cold, topic=topic, queue_id=queue_id)
            self._by_topic[topic, queue_id] = self._by_number[number] = queue
        self.next_number = max(self.next_number, number + 1)
        return queue

    def drop(self, queue: Queue) -> None:
        self.version += 1
        self._forget(queue)
        self.idle.names.pop(queue.number, None)
        if queue.topic:
            self._by_topic.pop((queue.topic, queue.queue_id), None)

    def _forget(self, queue: Queue) -> None:
        self._cold.forget(queue)
        self._by_number.pop(queue.number, None)
        self._by_key.pop(queue.key, None)
        self._woken.pop(queue, None)

    def active(self, number: int) -> Queue | None:
        """Without waking one that rests."""
        return self._by_number.get(number)

    def actives(self, numbers: Iterable[int]) -> Iterator[Queue | None]:
        """The same for each of *numbers*."""
        return map(self._by_number.get, numbers)

    def are_active(self, queues: Iterable[Queue]) -> bool:
        """None of these objects went or rests."""
        return all([self._by_number.get(queue.number) is queue for queue in queues])

    def get(self, number: int) -> Queue | None:
        queue = self._by_number.get(number)
        if queue is None and self.idle.count:
            return self._wake(self.idle.take_numbered(number))
        return queue

    def find(self, key: bytes) -> Queue | None:
        queue = self._by_key.get(key)
        if queue is None and self.idle.count and key:
            return self._wake(self.idle.take(key))
        return queue

    def find_message_queue(self, topic: str, queue_id: int) -> Queue | None:
        return self._by_topic.get((topic, queue_id))

    def of_topic(self, topic: str) -> Iterator[Queue]:
        return (queue for (name, _), queue in self._by_topic.items() if name == topic)

    def __iter__(self) -> Iterator[Queue]:
        """Those that do not rest."""
        return iter(self._by_number.values())

    def __len__(self) -> int:
        return len(self._by_number) + self.idle.count

    @property
    def active_count(self) -> int:
        return len(self._by_number)

    @property
    def active_light_count(self) -> int:
        """Of those that could rest."""
        return len(self._by_key)

    # ── rest ────────────────────────────────────────────────────────────────────────────

    def _wake(self, row: IdleQueue | None) -> Queue | None:
        if row is None:
            return None
        queue = Queue(row.number, self._cold, row.key, self.idle.names.pop(row.number, ""))
        queue.first, queue.sealed = row.first, row.sealed
        queue.next = queue.hot_first = row.next
        self._by_key[row.key] = self._by_number[row.number] = queue
        self._woken[queue] = None
        return queue

    def rest(self, queues: Iterable[Queue]) -> None:
        """Those that may become rows; who remembers one of them must look again."""
        resting = [queue for queue in queues if queue.can_rest]
        for queue in resting:
            self._forget(queue)
        self.idle.add_all(resting)
        self.version += bool(resting)

    def note_unread(self, queue: Queue) -> None:
        """A reader went: ``rest_woken`` looks whether anybody is left."""
        if not queue.topic:
            self._woken[queue] = None

    def rest_woken(self, count_max: int) -> list[Queue]:
        """The same for queues that were asked for since; those that nothing is left of."""
        woken = list(islice(self._woken, count_max))
        for queue in woken:
            del self._woken[queue]
        woken = [queue for queue in woken if self._by_number.get(queue.number) is queue]
        unused = [queue for queue in woken if queue.is_unused]
        self.rest([queue for queue in woken if not queue.is_unused])
        return unused

    def drop_idle(self, number: int) -> None:
        """A queue that rests goes."""
        self.idle.take_numbered(number)
        self.idle.names.pop(number, None)
