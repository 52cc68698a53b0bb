"""
Reads of stored records from disk, some pages at a time: what is read by offset is mostly adjoining.

Several readers go through the same part of the log at their own pace: the queues of a topic, the
members of a group. So the last few chunks that were read stay, whoever asked for them.
"""

from typing import Final

from store.disk import Disk
from store.log.segments import Segment

CHUNK_BYTES: Final = 256 << 10
"""Read at a time."""

CHUNKS_MAX: Final = 32
"""Kept: 8 MiB."""


PREFETCHES_MAX: Final = 8
"""Chunks that somebody goes towards, not fetched yet; beyond, they are read when needed."""


class Prefetch:
    """A chunk that a reader will come to. ``execute`` may run in another thread."""

    __slots__ = ("data", "key", "name", "size")

    def __init__(self, key: tuple[int, int], name: str, size: int) -> None:
        self.key = key
        self.name = name
        self.size = size
        self.data = b""

    def execute(self, disk: Disk) -> None:
        """Read it; one that cannot be read is left to the reader."""
        try:
            self.data = disk.read(self.name, self.key[1] * CHUNK_BYTES, self.size)
        except OSError:
            self.data = b""


class ReadAhead:
    """Chunks of segment files, the oldest dropped first."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._last = (-1, -1)
        self._wanted: dict[tuple[int, int], Prefetch] = {}
        self._coming: set[tuple[int, int]] = set()
        self._chunks: dict[tuple[int, int], bytes] = {}
        """(segment number, number of the chunk in its file) → its bytes, as far as durable."""

    def read(self, segment: Segment, position: int, size: int, end: int) -> bytes:
        """
        *size* bytes at log *position*; fewer where the file has no more. Raises OSError.

        *end*: log position up to which the segment is durable.
        """
        start, chunk = self.chunk(segment, position, size, end)
        return chunk[position - start : position - start + size]

    def chunk(self, segment: Segment, position: int, size: int, end: int) -> tuple[int, bytes]:
        """
        What ``read`` reads from: (log position of its first byte, bytes).

        Of a record that no chunk holds, that record.
        """
        offset = segment.file_offset(position)
        number, at = divmod(offset, CHUNK_BYTES)
        if at + size > CHUNK_BYTES:
            return position, self._disk.read(segment.name, offset, size)
        key = (segment.number, number)
        chunk = self._chunks.get(key, b"")
        if len(chunk) < at + size:
            chunk = self._fetch(segment, number, end)
        if key != self._last:
            self._look_ahead(key, segment, end)
        return position - at, chunk

    def _look_ahead(self, key: tuple[int, int], segment: Segment, end: int) -> None:
        """A reader came to this chunk; from the one before, and it will want the next."""
        self._last = key
        following = (key[0], key[1] + 1)
        if (
            (key[0], key[1] - 1) not in self._chunks
            or following in self._chunks
            or following in self._coming
            or len(self._wanted) >= PREFETCHES_MAX
        ):
            return
        size = min(CHUNK_BYTES, segment.file_offset(end) - following[1] * CHUNK_BYTES)
        if size > 0:
            self._wanted[following] = Prefetch(following, segment.name, size)

    def take_wanted(self) -> list[Prefetch]:
        """To be fetched, each then handed to ``fetched``."""
        wanted = list(self._wanted.values())
        self._coming.update(self._wanted)
        self._wanted.clear()
        return wanted

    def fetched(self, work: Prefetch) -> None:
        self._coming.discard(work.key)
        if len(work.data) > len(self._chunks.get(work.key, b"")):
            self._keep(work.key, work.data)

    @property
    def is_wanting(self) -> bool:
        return bool(self._wanted)

    def _fetch(self, segment: Segment, number: int, end: int) -> bytes:
        start = number * CHUNK_BYTES
        size = min(CHUNK_BYTES, segment.file_offset(end) - start)
        chunk = self._disk.read(segment.name, start, size) if size > 0 else b""
        self._keep((segment.number, number), chunk)
        return chunk

    def _keep(self, key: tuple[int, int], chunk: bytes) -> None:
        self._wanted.pop(key, None)
        self._chunks.pop(key, None)
        self._chunks[key] = chunk
        if len(self._chunks) > CHUNKS_MAX:
            del self._chunks[next(iter(self._chunks))]

    def forget(self) -> None:
        """What was read does not verify: read it again."""
        self._chunks.clear()
