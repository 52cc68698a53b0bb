"""
Compacted topics: which message is the last of its key (topic attribute ``cleanup.policy``).

The last value of a key is owed for good, whoever has read it; a value that was replaced may go as
soon as those who follow closely have had time to see it. A message with an empty body deletes its
key, and goes itself when everybody has had time to learn of it. (RocketMQ 5: ``CompactionStore``.)
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from store.log.messages import Bytes, body_size_of, property_of

POLICY: Final = "cleanup.policy"
COMPACTION: Final = "COMPACTION"

LAG_MS: Final = 10_000
"""How long a replaced value can still be read: a reader that is at most so far behind sees all."""

TOMBSTONE_MS: Final = 24 * 3_600_000
"""How long a deletion can still be read."""

NO_KEY_HINT: Final = "Required message key is missing"

KEY_BYTES: Final = 16
KEYS_MAX: Final = 5_000_000
"""Of one queue (some 200 bytes of memory each); further ones are kept by time only."""

TRIM_MIN: Final = 1024
"""Rows of replaced values that are not worth sweeping."""


def is_compacted(attributes: Mapping[str, str]) -> bool:
    return attributes.get(POLICY, "").upper() == COMPACTION


def has_key(record: Bytes) -> bool:
    """Whether something can replace it; a message without a key is refused."""
    return bool(property_of(record, b"KEYS").strip())


def key_of(record: Bytes) -> bytes:
    """The message's key, hashed; b"": it has none, and nothing replaces it."""
    text = property_of(record, b"KEYS").strip()
    return blake2b(text, digest_size=KEY_BYTES).digest() if text else b""


class Value(NamedTuple):
    """One stored message of a compacted topic."""

    queue: int
    """Number of its message queue."""

    offset: int
    key: bytes
    is_deletion: bool


def value_of(record: Bytes, queue: int, offset: int) -> Value:
    return Value(queue, offset, key_of(record), body_size_of(record) == 0)


class CompactedQueue:
    """Rows by offset, ascending, and the last one of each key."""

    def __init__(self, begin: int, keyless_ms: int) -> None:
        self.begin = begin
        """Offset of the first message since the topic is compacted: older ones are as ever."""

        self._keyless_ms = keyless_ms
        self._offsets = array("Q")
        self._ends = array("Q")
        """Wall time from which the row need not be read any more; 0: it is the last of its key."""

        self._next = begin
        self._last: dict[bytes, int] = {}
        self._deletions: dict[int, bytes] = {}
        self._trim_at = TRIM_MIN

    def __len__(self) -> int:
        """Keys."""
        return len(self._last)

    def put(self, value: Value, wall_ms: int) -> None:
        """A message was stored at the end of the queue."""
        _, offset, key, is_deletion = value
        if offset < self._next:
            return  # met already
        for missing in range(self._next, offset):  # came another way: as if they had no key
            self._add(missing, wall_ms + self._keyless_ms)
        end = 0
        if not key or (len(self._last) >= KEYS_MAX and key not in self._last):
            end = wall_ms + self._keyless_ms
        else:
            replaced = self._last.get(key)
            if replaced is not None:
                self._end(replaced, wall_ms + LAG_MS)
            self._last[key] = offset
        if is_deletion and key:
            self._deletions[offset] = key
            end = wall_ms + TOMBSTONE_MS
        self._add(offset, end)
        if len(self._offsets) > self._trim_at:
            self._trim(wall_ms)

    def _add(self, offset: int, end: int) -> None:
        self._offsets.append(offset)
        self._ends.append(end)
        self._next = offset + 1

    def _end(self, offset: int, end: int) -> None:
        at = bisect_left(self._offsets, offset)
        if at < len(self._offsets) and self._offsets[at] == offset:
            self._ends[at] = min(end, self._ends[at] or end)
        self._deletions.pop(offset, None)

    def _trim(self, wall_ms: int) -> None:
        """Forget rows that are over; now and then, so that each costs little."""
        rows = zip(self._offsets, self._ends, strict=True)
        kept = [(offset, end) for offset, end in rows if not 0 < end <= wall_ms]
        self._offsets = array("Q", [offset for offset, _ in kept])
        self._ends = array("Q", [end for _, end in kept])
        left = {offset for offset, _ in kept}
        for offset in [offset for offset in self._deletions if offset not in left]:
            key = self._deletions.pop(offset)
            if self._last.get(key) == offset:
                del self._last[key]
        self._trim_at = max(TRIM_MIN, 2 * len(kept))

    def offsets(self, start: int, stop: int, wall_ms: int) -> Iterator[int]:
        """Offsets from *start* up to *stop* that can be read, and must stay."""
        if start < self.begin:
            yield from range(start, min(stop, self.begin))
        at = bisect_left(self._offsets, start)
        while at < len(self._offsets) and self._offsets[at] < stop:
            if not 0 < self._ends[at] <= wall_ms:
                yield self._offsets[at]
            at += 1
        yield from range(max(start, self._next), stop)

    def is_over(self, offset: int, wall_ms: int) -> bool:
        """It was replaced long enough ago: nobody needs to read it any more."""
        if not self.begin <= offset < self._next:
            return False
        at = bisect_left(self._offsets, offset)
        if at == len(self._offsets) or self._offsets[at] != offset:
            return True
        return 0 < self._ends[at] <= wall_ms

    def dump(self) -> list[Any]:
        last = [b"".join(self._last), array("Q", self._last.values()).tobytes()]
        rows = [self._offsets.tobytes(), self._ends.tobytes()]
        return [self.begin, self._next, self._keyless_ms, rows, last, list(self._deletions.items())]

    @classmethod
    def load(cls, dumped: Sequence[Any]) -> "CompactedQueue":
        begin, following, keyless_ms, rows, (keys, offsets), deletions = dumped
        queue = cls(begin, keyless_ms)
        queue._next = following
        queue._offsets.frombytes(rows[0])
        queue._ends.frombytes(rows[1])
        last = array("Q")
        last.frombytes(offsets)
        starts = range(0, len(keys), KEY_BYTES)
        queue._last = {
            keys[at : at + KEY_BYTES]: offset for at, offset in zip(starts, last, strict=True)
        }
        queue._deletions = dict(deletions)
        queue._trim_at = max(TRIM_MIN, 2 * len(queue._offsets))
        return queue


class Compacted:
    """All queues of compacted topics."""

    def __init__(self, keyless_ms: int) -> None:
        self._keyless_ms = keyless_ms
        self._by_number: dict[int, CompactedQueue] = {}

    def numbers(self) -> Iterable[int]:
        """Of the queues."""
        return self._by_number.keys()

    def of(self, queue: int) -> CompactedQueue | None:
        """By number; None: nothing of it is compacted."""
        return self._by_number.get(queue)

    def note(self, value: Value, wall_ms: int) -> None:
        """A message of a compacted topic was stored."""
        queue = self._by_number.get(value.queue)
        if queue is None:
            queue = CompactedQueue(value.offset, self._keyless_ms)
            self._by_number[value.queue] = queue
        queue.put(value, wall_ms)

    def forget(self, queue: int) -> None:
        """The queue is no more."""
        self._by_number.pop(queue, None)

    @property
    def key_count(self) -> int:
        return sum([len(queue) for queue in self._by_number.values()])

    def dump(self) -> list[Any]:
        return [(number, queue.dump()) for number, queue in self._by_number.items()]

    def load(self, rows: Sequence[Any]) -> None:
        self._by_number = {number: CompactedQueue.load(dumped) for number, dumped in rows}
