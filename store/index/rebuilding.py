"""The index of a segment made anew from the log, when its file is missing or rotten."""

from collections.abc import Callable

from store.answers import EngineConfig
from store.disk import Disk
from store.index.pages import Draft
from store.log.format import Kind
from store.log.recovery import SegmentReader, scan
from store.log.segments import Segment


def rebuilt_draft(
    disk: Disk, config: EngineConfig, segment: Segment, previous_of: Callable[[int], int]
) -> Draft:
    """
    All entries of *segment*; records are not verified here but when they are read.

    *previous_of*: queue number → number of the segment before that holds the queue, or 0.
    """
    draft = Draft(segment.number, segment.base, segment.end, 0)
    columns = draft.columns
    places: dict[int, list[tuple[int, int]]] = {}
    data = SegmentReader(disk, config).read(segment, is_last=False)
    for block in scan(data, segment, segment.base, 0, config.block_bytes_max):
        draft.newest_ms = max(draft.newest_ms, block.header.store_ms)
        at = block.records_at
        for entry in block.entries():
            if entry.kind in (Kind.MESSAGE, Kind.INDEX):
                columns.add(
                    at, entry.length, entry.crc, entry.tag_hash, entry.order_hash, entry.flags
                )
                if entry.queue:
                    places.setdefault(entry.queue, []).append((entry.offset, at))
                pairs = iter(entry.pairs)
                for number, offset in zip(pairs, pairs, strict=True):
                    places.setdefault(number, []).append((offset, at))
                if entry.target >= 0:
                    draft.targets.append((at, entry.target))
                if entry.expires_at_ms:
                    draft.expires.append((at, entry.expires_at_ms))
            at += entry.length
    for number, found in places.items():
        draft.add_rows(number, found, previous_of(number))
    return draft
