"""
Reads of stored records from disk, many pages at a time: what is read by offset is mostly adjoining.

Several readers go through the same part of the log at their own pace: the queues of a topic, the
members of a group. So the last few chunks that were read stay, whoever asked for them.
"""

from collections.abc import Sequence
from typing import Final

from store.disk import Disk
from store.log.segments import Segment

CHUNK_BYTES: Final = 256 << 10
"""Read at a time when somebody waits for it."""

CHUNKS_MAX: Final = 64
"""Kept: 16 MiB."""

AHEAD_CHUNKS: Final = 4
"""Read at a time for who goes on: 1 MiB costs less than twice the time of a quarter of it
(measured, past the page cache), and each time costs a turn of another thread at Python."""

PREFETCHES_MAX: Final = 8
"""Chunks that somebody goes towards, not fetched yet; beyond, they are read when needed."""

Key = tuple[int, int]
"""(segment number, number of the chunk in its file)"""


class Prefetch:
    """Chunks that a reader will come to. ``execute`` may run in another thread."""

    __slots__ = ("data", "keys", "name", "size")

    def __init__(self, keys: Sequence[Key], name: str, size: int) -> None:
        self.keys = keys
        self.name = name
        self.size = size
        self.data = b""

    def execute(self, disk: Disk) -> None:
        """Read them; what cannot be read is left to the reader."""
        try:
            self.data = disk.read(self.name, self.keys[0][1] * CHUNK_BYTES, self.size)
        except OSError:
            self.data = b""


class ReadAhead:
    """Chunks of segment files, the oldest dropped first."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._last = (-1, -1)
        self._wanted: dict[Key, Prefetch] = {}
        """By its first chunk."""

        self._coming: set[Key] = set()
        self._chunks: dict[Key, memoryview] = {}
        """Bytes of each, as far as durable."""

    def read(self, segment: Segment, position: int, size: int, end: int) -> bytes:
        """
        *size* bytes at log *position*; fewer where the file has no more. Raises OSError.

        *end*: log position up to which the segment is durable.
        """
        start, chunk = self.chunk(segment, position, size, end)
        return bytes(chunk[position - start : position - start + size])

    def chunk(
        self, segment: Segment, position: int, size: int, end: int
    ) -> tuple[int, bytes | memoryview]:
        """
        What ``read`` reads from: (log position of its first byte, bytes).

        Of a record that no chunk holds, that record.
        """
        offset = segment.file_offset(position)
        number, at = divmod(offset, CHUNK_BYTES)
        if size > CHUNK_BYTES:
            return position, self._disk.read(segment.name, offset, size)
        chunk = self._chunk((segment.number, number), segment, min(at + size, CHUNK_BYTES), end)
        rest = at + size - CHUNK_BYTES
        if rest <= 0:
            return position - at, chunk
        following = self._chunk((segment.number, number + 1), segment, rest, end)
        return position, b"".join((chunk[at:], following[:rest]))

    def _chunk(self, key: Key, segment: Segment, size: int, end: int) -> memoryview:
        """The chunk, with *size* bytes if the file has so many."""
        chunk = self._chunks.get(key)
        if chunk is None or len(chunk) < size:
            chunk = self._fetch(key, segment, end)
        if key != self._last:
            self._look_ahead(key, segment, end)
        return chunk

    def _look_ahead(self, key: Key, segment: Segment, end: int) -> None:
        """A reader came to this chunk; from the one before, and it will want the next ones."""
        self._last = key
        number, at = key
        if (number, at - 1) not in self._chunks or len(self._wanted) >= PREFETCHES_MAX:
            return
        first = next(
            (to for to in range(at + 1, at + AHEAD_CHUNKS) if self._lacks((number, to))), None
        )
        if first is None or first > at + AHEAD_CHUNKS // 2:
            return
        size = segment.file_offset(end) - first * CHUNK_BYTES
        if size > 0:
            size = min(size, AHEAD_CHUNKS * CHUNK_BYTES)
            keys = [(number, to) for to in range(first, first + -(-size // CHUNK_BYTES))]
            self._wanted[keys[0]] = Prefetch(keys, segment.name, size)

    def _lacks(self, key: Key) -> bool:
        return not (key in self._chunks or key in self._coming or key in self._wanted)

    def take_wanted(self) -> list[Prefetch]:
        """To be fetched, each then handed to ``fetched``."""
        wanted = list(self._wanted.values())
        for work in wanted:
            self._coming.update(work.keys)
        self._wanted.clear()
        return wanted

    def fetched(self, work: Prefetch) -> None:
        self._coming.difference_update(work.keys)
        data = memoryview(work.data)
        for index, key in enumerate(work.keys):
            chunk = data[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]
            if len(chunk) > len(self._chunks.get(key, b"")):
                self._keep(key, chunk)

    @property
    def is_wanting(self) -> bool:
        return bool(self._wanted)

    def _fetch(self, key: Key, segment: Segment, end: int) -> memoryview:
        start = key[1] * CHUNK_BYTES
        size = min(CHUNK_BYTES, segment.file_offset(end) - start)
        chunk = memoryview(self._disk.read(segment.name, start, size) if size > 0 else b"")
        self._keep(key, chunk)
        return chunk

    def _keep(self, key: Key, chunk: memoryview) -> None:
        self._wanted.pop(key, None)
        self._chunks.pop(key, None)
        self._chunks[key] = chunk
        if len(self._chunks) > CHUNKS_MAX:
            del self._chunks[next(iter(self._chunks))]

    def forget(self) -> None:
        """What was read does not verify: read it again."""
        self._chunks.clear()
