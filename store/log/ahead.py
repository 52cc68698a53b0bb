"""
Reads of stored records from disk, many pages at a time: what is read by offset is mostly adjoining.

Several readers go through the same part of the log at their own pace: the queues of a topic, the
members of a group. So the last few chunks that were read stay, whoever asked for them.
"""

from collections.abc import Sequence
from typing import Final

from store.disk import Buffer, Disk
from store.log.segments import Segment

CHUNK_BYTES: Final = 256 << 10
"""Read at a time when somebody waits for it."""

CHUNKS_MAX: Final = 96
"""Kept: 24 MiB."""

AHEAD_CHUNKS: Final = 4
"""Read at a time for who goes on: 1 MiB costs less than twice the time of a quarter of it
(measured, past the page cache)."""

LOOK_CHUNKS: Final = 8
"""So far ahead of a reader all should be on its way."""

PREFETCHES_MAX: Final = 8
"""Chunks that somebody goes towards, not fetched yet; beyond, they are read when needed."""

Key = tuple[int, int]
"""(segment number, number of the chunk in its file)"""


class Coming(Exception):
    """What is read is not in memory yet; it is wanted from now on."""

    def __init__(self, key: Key) -> None:
        super().__init__(f"chunk {key[1]} of segment {key[0]}")
        self.key = key


class Prefetch:
    """Chunks that a reader will come to. ``execute`` may run in another thread."""

    __slots__ = ("data", "keys", "name", "size")

    def __init__(self, keys: Sequence[Key], name: str, size: int) -> None:
        self.keys = keys
        self.name = name
        self.size = size
        self.data: Buffer = b""
        """All of them; empty: they could not be read."""

    @property
    def offset(self) -> int:
        """In the file."""
        return self.keys[0][1] * CHUNK_BYTES

    def parts(self) -> list["Prefetch"]:
        """The same, a chunk at a time."""
        sizes = [min(CHUNK_BYTES, self.size - at) for at in range(0, self.size, CHUNK_BYTES)]
        return [
            Prefetch([key], self.name, size) for key, size in zip(self.keys, sizes, strict=True)
        ]

    def execute(self, disk: Disk) -> None:
        """Read them; what cannot be read is left to the reader."""
        try:
            self.data = disk.read(self.name, self.offset, self.size)
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
        """All that is wanted or on its way."""

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
        self, segment: Segment, position: int, size: int, end: int, *, may_wait: bool = False
    ) -> tuple[int, bytes | memoryview]:
        """
        What ``read`` reads from: (log position of its first byte, bytes).

        Of a record that no chunk holds, that record. *may_wait*: raises Coming for a chunk that is
        not there, which is wanted then.
        """
        offset = segment.file_offset(position)
        number, at = divmod(offset, CHUNK_BYTES)
        if size > CHUNK_BYTES:
            return position, self._disk.read(segment.name, offset, size)
        stop = min(at + size, CHUNK_BYTES)
        chunk = self._chunk((segment.number, number), segment, stop, end, may_wait=may_wait)
        rest = at + size - CHUNK_BYTES
        if rest <= 0:
            return position - at, chunk
        key = (segment.number, number + 1)
        following = self._chunk(key, segment, rest, end, may_wait=may_wait)
        return position, b"".join((chunk[at:], following[:rest]))

    def _chunk(
        self, key: Key, segment: Segment, size: int, end: int, *, may_wait: bool
    ) -> memoryview:
        """The chunk, with *size* bytes if the file has so many. Raises Coming if it *may wait*."""
        chunk = self._chunks.get(key)
        if chunk is None or len(chunk) < size:
            if may_wait and self._comes(key, segment, end):
                raise Coming(key)
            chunk = self._fetch(key, segment, end)
        if key != self._last:
            self._look_ahead(key, segment, end)
        return chunk

    def _comes(self, key: Key, segment: Segment, end: int) -> bool:
        """It is on its way, now at the latest; False: too many others are."""
        if key not in self._coming and len(self._wanted) < PREFETCHES_MAX:
            is_next = (key[0], key[1] - 1) in self._chunks
            self._want(key, segment, end, AHEAD_CHUNKS if is_next else 1)
        return key in self._coming

    def _look_ahead(self, key: Key, segment: Segment, end: int) -> None:
        """A reader came to this chunk; from the one before, and it will want the next ones."""
        self._last = key
        number, at = key
        if (number, at - 1) not in self._chunks or len(self._wanted) >= PREFETCHES_MAX:
            return
        for to in range(at + 1, at + LOOK_CHUNKS - AHEAD_CHUNKS + 1):
            if self._lacks((number, to)):
                self._want((number, to), segment, end, AHEAD_CHUNKS)
                return

    def _want(self, key: Key, segment: Segment, end: int, count: int) -> None:
        """Up to *count* chunks from *key* on, as far as they are durable and not there."""
        number, first = key
        size = min(segment.file_offset(end) - first * CHUNK_BYTES, count * CHUNK_BYTES)
        keys = [key]
        for to in range(first + 1, first + -(-size // CHUNK_BYTES)):
            if not self._lacks((number, to)):
                size = (to - first) * CHUNK_BYTES
                break
            keys.append((number, to))
        if size > 0:
            self._wanted[key] = Prefetch(keys, segment.name, size)
            self._coming.update(keys)

    def _lacks(self, key: Key) -> bool:
        return not (key in self._chunks or key in self._coming)

    def take_wanted(self) -> list[Prefetch]:
        """To be fetched, each then handed to ``fetched``."""
        wanted = list(self._wanted.values())
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
        self._chunks.pop(key, None)
        self._chunks[key] = chunk
        if len(self._chunks) > CHUNKS_MAX:
            del self._chunks[next(iter(self._chunks))]

    def forget(self) -> None:
        """What was read does not verify: read it again."""
        self._chunks.clear()
