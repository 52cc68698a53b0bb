"""
Messages by key, without an index: the log itself is searched for the bytes.

A key query names a time window and is rare; an index of every key would cost memory and time on
every send. So the segments of the window are read in a background thread and searched at the
speed of memory (about a second per GiB); the index in memory tells which record a hit lies in,
and the caller looks whether that record really has the key.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from store.core import Core
from store.disk import Disk
from store.log.format import SEGMENT_HEADER_BYTES

CHUNK_BYTES: Final = 1 << 20
"""Searched per step: well under a millisecond."""

HITS_PER_STEP_MAX: Final = 4096
"""Hits of one chunk that are looked at; more is a needle that says nothing."""


class Slice(NamedTuple):
    """A durable part of one segment."""

    name: str
    position: int
    size: int
    base: int


class SearchWork:
    """One search; ``execute`` runs in a background thread and touches nothing but the disk."""

    def __init__(self, slices: Sequence[Slice], needles: Sequence[bytes]) -> None:
        self._slices = slices
        self._needles = needles
        self._overlap = max([len(needle) for needle in needles], default=1) - 1
        self._at = 0
        self._done = 0
        """Bytes of the present slice that were searched."""

    def execute(self, disk: Disk) -> list[int] | None:
        """Log positions of the hits in the next chunk, ascending; None: nothing is left."""
        if self._at == len(self._slices):
            return None
        part = self._slices[self._at]
        start = part.position + self._done
        size = min(CHUNK_BYTES, part.size - self._done)
        offset = start - part.base + SEGMENT_HEADER_BYTES
        data = disk.read(part.name, offset, min(size + self._overlap, part.size - self._done))
        self._done += size
        if self._done >= part.size:
            self._at, self._done = self._at + 1, 0
        return sorted({start + hit for needle in self._needles for hit in _hits(data, needle)})


def _hits(data: bytes, needle: bytes) -> list[int]:
    found: list[int] = []
    at = data.find(needle)
    while at >= 0 and len(found) < HITS_PER_STEP_MAX:
        found.append(at)
        at = data.find(needle, at + 1)
    return found


def search_work(core: Core, needles: Sequence[bytes], begin_ms: int, end_ms: int) -> SearchWork:
    """A search of all that is durable and was stored from *begin_ms* to *end_ms*."""
    slices: list[Slice] = []
    oldest_ms = 0
    for segment in core.log.segments.items:
        newest_ms = core.newest_ms.get(segment.number, 0)
        end = min(segment.end, core.log.confirmed)
        if end > segment.base and newest_ms >= begin_ms and oldest_ms <= end_ms:
            slices.append(Slice(segment.name, segment.base, end - segment.base, segment.base))
        oldest_ms = newest_ms
    return SearchWork(slices, needles)


def record_around(core: Core, position: int) -> int:
    """Start of the record that holds the byte at *position*; -1: none does."""
    start = core.entries.at_or_below(position)
    if start <= position < core.entries.end_of(start):
        return start
    return core.cold.remnants.record_at(position)
