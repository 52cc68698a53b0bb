"""
Message queues and light queues: one kind of thing, numbered, holding positions of entries.

A queue's number is bound by a record of the log: to (topic, queue id), or to the 16 bytes of
``canonical.queue_key`` for a light queue.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from store.index.cold import ColdIndex
from store.index.pages import Row

if TYPE_CHECKING:
    from store.groups.group import Group, GroupRead


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
        self.policy: dict[str, int | str] = {}
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

        self.readers: list[tuple[Group, GroupRead]] = []

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

    def seal(self, row: Row, number: int, index: int) -> None:
        """The first of ``entries`` are in the index file of segment *number* now."""
        self.cold.extend(self, row, number, index)
        self.sealed = number
        del self.entries[: row.first + row.size - self.hot_first]
        self.hot_first = row.first + row.size

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
        found = self.cold.seek(self, max(offset, self.first)) if self.sealed else -1
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

    def drop_before(self, position: int) -> None:
        """Entries in memory below *position* went, and all that was older."""
        count = bisect_left(self.entries, position)
        if count:
            del self.entries[:count]
            self.hot_first += count
        self.first = max(self.first, self.hot_first)

    def dropped(self, row: Row) -> None:
        """A sealed segment that held *row* went."""
        if row.first <= self.first < row.first + row.size:
            self.first = self.seek(row.first + row.size)


class QueueTable:
    """All queues, by number and by key."""

    def __init__(self, cold: ColdIndex) -> None:
        self._cold = cold
        self._by_number: dict[int, Queue] = {}
        self._by_key: dict[bytes, Queue] = {}
        self._by_topic: dict[tuple[str, int], Queue] = {}
        self.next_number = 1
        self.version = 0
        """Rises when a queue goes: who remembers queues looks again."""

    def add_light(self, number: int, key: bytes, name: str, policy: dict[str, int | str]) -> Queue:
        """Bind *number*; a queue that has the key already keeps its number and entries."""
        queue = self._by_key.get(key)
        if queue is None:
            queue = self._by_key[key] = self._by_number[number] = Queue(
                number, self._cold, key, name
            )
        queue.name = name or queue.name
        queue.policy = policy
        queue.is_volatile = bool(policy.get("volatile"))
        self.next_number = max(self.next_number, number + 1)
        return queue

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
        self._cold.forget(queue)
        self._by_number.pop(queue.number, None)
        self._by_key.pop(queue.key, None)
        if queue.topic:
            self._by_topic.pop((queue.topic, queue.queue_id), None)

    def get(self, number: int) -> Queue | None:
        return self._by_number.get(number)

    @property
    def by_number(self) -> Mapping[int, Queue]:
        """For the scan, which looks up one or more per message."""
        return self._by_number

    def find(self, key: bytes) -> Queue | None:
        return self._by_key.get(key)

    def find_message_queue(self, topic: str, queue_id: int) -> Queue | None:
        return self._by_topic.get((topic, queue_id))

    def of_topic(self, topic: str) -> Iterator[Queue]:
        return (queue for (name, _), queue in self._by_topic.items() if name == topic)

    def __iter__(self) -> Iterator[Queue]:
        return iter(self._by_number.values())
