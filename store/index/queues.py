"""
Message queues and light queues: one kind of thing, numbered, holding positions of entries.

A queue's number is bound by a record of the log: to (topic, queue id), or to the 16 bytes of
``canonical.queue_key`` for a light queue.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from store.groups.group import Group, GroupRead


class Queue:
    """Entries by queue offset: ``entries[offset - first]`` is a log position."""

    __slots__ = (
        "entries",
        "first",
        "has_gaps",
        "is_volatile",
        "key",
        "name",
        "next",
        "number",
        "policy",
        "queue_id",
        "readers",
        "topic",
    )

    def __init__(
        self, number: int, key: bytes = b"", name: str = "", topic: str = "", queue_id: int = -1
    ) -> None:
        self.number = number
        self.key = key
        self.name = name
        self.topic = topic
        """Of a message queue; empty: a light queue."""

        self.queue_id = queue_id
        self.policy: dict[str, int | str] = {}
        self.is_volatile = False
        self.first = 0
        self.next = 0
        self.entries = array("Q")
        self.has_gaps = False
        """An offset was lost to rot: its place repeats the position of the next one."""

        self.readers: list[tuple[Group, GroupRead]] = []

    def put(self, offset: int, position: int) -> None:
        """An entry found in the log, at the offset stored with it."""
        if offset == self.next and self.entries:
            self.entries.append(position)
            self.next = offset + 1
            return
        if not self.entries:
            self.first = self.next = offset
        if offset < self.next:
            return  # met already: a tail that was rewritten
        if offset > self.next:
            self.has_gaps = True
        self.entries.extend([position] * (offset - self.next + 1))
        self.next = offset + 1

    def settle_next(self, offset: int) -> None:
        """The next offset is at least *offset* (from a snapshot), whatever the scan found."""
        if not self.entries:
            self.first = self.next = max(self.next, offset)
        elif offset > self.next:
            self.has_gaps = True
            self.entries.extend([self.entries[-1]] * (offset - self.next))
            self.next = offset

    def visible_end(self, limit: int) -> int:
        """Offset behind the last entry below the log position *limit*."""
        entries = self.entries
        if not entries or entries[-1] < limit:
            return self.next
        return self.first + bisect_left(entries, limit)

    def slice(self, start: int, stop: int) -> Sequence[int]:
        """Positions of the entries from offset *start* on, up to *stop* or fewer; at least one
        if there is one."""
        return self.entries[start - self.first : stop - self.first]

    def range(self, start: int, stop: int) -> list[int]:
        """All positions from offset *start* up to *stop*."""
        found: list[int] = []
        while start < stop and (part := self.slice(start, stop)):
            found += part
            start = self.seek(start + len(part))
        return found

    def seek(self, offset: int) -> int:
        """Offset of the first entry that is kept at or above *offset*; the next one if none is."""
        return max(offset, self.first)

    def offset_from(self, position: int) -> int:
        """Offset of the first entry at or above *position*."""
        return self.first + bisect_left(self.entries, position)

    def has(self, position: int) -> bool:
        index = bisect_left(self.entries, position)
        return index < len(self.entries) and self.entries[index] == position

    def drop_before(self, position: int) -> None:
        count = bisect_left(self.entries, position)
        if count:
            del self.entries[:count]
            self.first += count


class QueueTable:
    """All queues, by number and by key."""

    def __init__(self) -> None:
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
            queue = self._by_key[key] = self._by_number[number] = Queue(number, key, name)
        queue.name = name or queue.name
        queue.policy = policy
        queue.is_volatile = bool(policy.get("volatile"))
        self.next_number = max(self.next_number, number + 1)
        return queue

    def add_message_queue(self, number: int, topic: str, queue_id: int) -> Queue:
        """Bind *number* to a message queue."""
        queue = self._by_topic.get((topic, queue_id))
        if queue is None:
            queue = Queue(number, topic=topic, queue_id=queue_id)
            self._by_topic[topic, queue_id] = self._by_number[number] = queue
        self.next_number = max(self.next_number, number + 1)
        return queue

    def drop(self, queue: Queue) -> None:
        self.version += 1
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
