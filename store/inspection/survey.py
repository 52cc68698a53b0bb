"""
One pass over a store's folder: every header, block, record, index file and snapshot is verified.

Works on a store that is running: what is not yet durable counts as being written, and a segment
that goes while it is read is left out.
"""

from array import array
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final

from store.answers import EngineConfig
from store.index.pages import (
    HEAD_BYTES,
    IndexHeader,
    Page,
    decode_directory,
    decode_header,
    decode_page,
    decode_sparse,
    index_name,
)
from store.index.pages import SUFFIX as INDEX_SUFFIX
from store.inspection.facts import (
    Damage,
    QueueNames,
    SegmentFacts,
    SnapshotFacts,
    Survey,
    kind_name,
    places_of,
)
from store.inspection.folder import Folder
from store.log.format import (
    HEADER_COPY_AT,
    SEGMENT_HEADER_BYTES,
    Kind,
    decode_header_at,
    decode_segment_header,
)
from store.log.recovery import ScannedBlock, SegmentReader, Tail, find_tail, open_segments, scan
from store.log.segments import SUFFIX as SEGMENT_SUFFIX
from store.log.segments import Segment, segment_name
from store.log.snapshots import read_snapshot, snapshot_names
from store.log.spares import SPARE_SUFFIX

CONFIG: Final = EngineConfig()
"""Only what says how large a block may be matters here."""

BAD_SUFFIX: Final = ".bad"
IN_A_QUEUE: Final = (Kind.MESSAGE, Kind.INDEX)


class NoStore(Exception):
    """There is no log in the folder."""


class Surveyor:
    """Looks once; ``on_block`` is told every whole block, in order."""

    def __init__(
        self, folder: Folder, on_block: Callable[[ScannedBlock], None] = lambda block: None
    ) -> None:
        self._folder = folder
        self._on_block = on_block
        self.names = QueueNames()
        self.found = Survey()

    def run(self) -> Survey:
        """Raises NoStore, OSError."""
        folder, found = self._folder, self.found
        names = folder.names()
        snapshots = snapshot_names(folder)
        segments = open_segments(folder, CONFIG)
        if not segments:
            raise NoStore(f"{folder.path}: no segment of a log")
        known = self._look_at_snapshots(snapshots, segments[0].header.log_id)
        tail, data = find_tail(SegmentReader(folder, CONFIG), segments, known)
        found.log_id = tail.log_id.hex()
        found.end, found.confirmed = tail.end, tail.known
        found.was_clean, found.unacknowledged_bytes = tail.was_clean, tail.torn_bytes
        found.spare_count = len([name for name in names if name.endswith(SPARE_SUFFIX)])
        for segment, following in pairwise(segments):
            self._look_at_segment(segment, following)
        self._look_at_tail(segments[-1], tail, data)
        self._look_for_gaps(segments, known)
        self._look_at_rest(names)
        return found

    # ── segments ────────────────────────────────────────────────────────────────────────

    def _look_at_segment(self, segment: Segment, following: Segment) -> None:
        """A sealed one; it ends where the next one begins, unless one between them is gone."""
        is_exact = following.number == segment.number + 1
        header = None if is_exact else self._index_header(segment)
        if header is not None:
            segment.end, is_exact = header.end, True
        data = SegmentReader(self._folder, CONFIG).read(segment, is_last=False)
        checked = _Checked(self, segment)
        checked.run(data, segment.end, is_exact=is_exact)
        now = self._folder.read(segment.name, 0, SEGMENT_HEADER_BYTES)
        if decode_segment_header(now) != segment.header:
            self.found.went.append(segment.name)
            return
        self._keep(checked)

    def _look_at_tail(self, segment: Segment, tail: Tail, data: memoryview) -> None:
        checked = _Checked(self, segment)
        checked.run(data, tail.end, is_exact=True)
        self._keep(checked)

    def _look_for_gaps(self, segments: list[Segment], known: int) -> None:
        """
        Segments that nobody gave up: one that goes takes its index along first, and goes only
        when a snapshot (its name is its position) has what is left of it.
        """
        known = max([known, *[int(name[:20]) for name in snapshot_names(self._folder)]])
        ends = {facts.number: facts.end for facts in self.found.segments}
        if segments[0].base > 0 and not known:
            self._missing(1, "and no snapshot: the store does not start", 0, segments[0].base)
        for segment, following in pairwise(segments):
            if following.number > segment.number + 1 and following.base > known:
                start = max(known, ends.get(segment.number, segment.base))
                self._missing(segment.number + 1, "", start, following.base - start)
        there = self._folder.names()
        for name in there:
            number = name.removesuffix(INDEX_SUFFIX)
            if number != name and number.isdecimal() and number + SEGMENT_SUFFIX not in there:
                self._missing(int(number), "its index is there", -1, 0)

    def _missing(self, number: int, why: str, position: int, size: int) -> None:
        """*position*, *size*: what it held of the log, as far as that can be told."""
        if number in {one.segment for one in self.found.damage if one.part == "segment"}:
            return
        name, says = segment_name(number), "the file is missing" + (why and f", {why}")
        self.found.damage.append(
            Damage("segment", name, says, number, position=position, size=size)
        )

    def _keep(self, checked: "_Checked") -> None:
        found = self.found
        found.damage += checked.damage
        found.segments.append(checked.facts)
        found.epoch = max(found.epoch, checked.epoch)
        self._look_at_index(checked)

    # ── what is derived ─────────────────────────────────────────────────────────────────

    def _look_at_snapshots(self, names: list[str], log_id: bytes) -> int:
        """Position of the newest whole one; 0: there is none."""
        positions = [0]
        for name in names:
            snapshot = read_snapshot(self._folder, name, log_id)
            if snapshot is None and not self._folder.size(name):
                continue  # went while we looked
            position = snapshot.position if snapshot is not None else -1
            self.found.snapshots.append(SnapshotFacts(name, position, snapshot is not None))
            if snapshot is None:
                says = "does not verify: an older one, or the log, is used at the next start"
                self.found.damage.append(Damage("snapshot", name, says))
                continue
            if len(positions) == 1:
                self.names.load(snapshot.state)
            positions.append(position)
        return max(positions)

    def _index_header(self, segment: Segment) -> IndexHeader | None:
        header = decode_header(self._folder.read(index_name(segment.number), 0, HEAD_BYTES))
        is_ours = header is not None and header[:3] == (
            segment.header.log_id,
            segment.number,
            segment.base,
        )
        return header if is_ours else None

    def _look_at_index(self, checked: "_Checked") -> None:
        """The index file of a segment, if there is one: its CRCs, and its columns by the log."""
        facts = checked.facts
        name = index_name(facts.number)
        data = self._folder.read(name, 0, self._folder.size(name))
        if not data:
            return
        header = self._index_header(checked.segment)
        page = _whole_page(header, data) if header is not None else None
        is_whole = page is not None
        if page is not None and not checked.has_lost_blocks:
            is_whole = page.positions == checked.positions and page.crcs == checked.crcs
        facts.index = "whole" if is_whole else "damaged"
        if not is_whole:
            says = "does not agree with its segment" if page is not None else "does not verify"
            says += ": made anew from the segment when it is needed"
            self.found.damage.append(Damage("index", name, says, segment=facts.number))

    def _look_at_rest(self, names: list[str]) -> None:
        there = set(self._folder.names())
        self.found.set_aside = sorted(
            {name for name in self._folder.given_up if name in there}
            | {name for name in names if name.endswith(BAD_SUFFIX)}
        )
        for name in self.found.set_aside:
            if name.endswith((".seg", ".seg" + BAD_SUFFIX)):
                size = self._folder.size(name)
                says = "the header does not verify: nothing in it can be read"
                if decode_segment_header(self._folder.read(name, 0, SEGMENT_HEADER_BYTES)) is None:
                    self.found.damage.append(Damage("segment", name, says, size=size))


class _Checked:
    """One segment, verified record by record."""

    def __init__(self, surveyor: Surveyor, segment: Segment) -> None:
        self._surveyor = surveyor
        self.segment = segment
        size = surveyor._folder.size(segment.name)
        self.facts = SegmentFacts(segment.number, segment.name, segment.base, segment.base, size)
        self.damage: list[Damage] = []
        self.epoch = 0
        self.positions = array("Q")
        self.crcs = array("I")
        self._sequence = 0

    @property
    def has_lost_blocks(self) -> bool:
        return any(one.part == "block" for one in self.damage)

    def run(self, data: memoryview, end: int, *, is_exact: bool) -> None:
        """*is_exact*: blocks go on up to *end*; otherwise the last whole one is the end."""
        for at, other in ((0, "its copy"), (HEADER_COPY_AT, "the first")):
            if decode_header_at(bytes(data[:SEGMENT_HEADER_BYTES]), at) is None:
                says = f"this header does not verify: {other} is used"
                name, number = self.segment.name, self.segment.number
                self.damage.append(Damage("segment", name, says, number, at))
        covered = self.segment.base
        for block in scan(data, self.segment, covered, 0, CONFIG.block_bytes_max):
            if block.position >= end:
                break
            if block.position > covered:
                self._lost(covered, block.position, block.header.sequence)
            covered = block.end
            self._check(block)
        if is_exact and covered < end:
            self._lost(covered, end, 0)
        self.facts.end = end if is_exact else covered

    def _lost(self, start: int, stop: int, following: int) -> None:
        """Blocks from *start* to *stop* do not verify."""
        first = self._sequence + 1 if self._sequence else 0
        last = following - 1 if following else 0
        numbers = f"blocks {first} to {last}" if last > first > 0 else f"block {first or '?'}"
        self._note("block", start, first, stop - start, f"{numbers}: header or table is damaged")

    def _check(self, block: ScannedBlock) -> None:
        header, facts, names = block.header, self.facts, self._surveyor.names
        self._sequence, self.epoch = header.sequence, max(self.epoch, header.epoch)
        facts.block_count += 1
        facts.record_count += header.record_count
        facts.first_ms = facts.first_ms or header.store_ms
        facts.newest_ms = max(facts.newest_ms, header.store_ms)
        at = block.records_at
        for index, entry in enumerate(block.entries()):
            record = block.record(at, entry)
            if record is None:
                places = places_of(entry.queue, entry.offset, entry.pairs)
                where = f", {names.places(places)}" if places else ""
                number = f"record {index + 1} of {header.record_count}"
                says = f"block {header.sequence}: {number} ({kind_name(entry.kind)}{where})"
                self._note("record", at, header.sequence, entry.length, f"{says} does not verify")
            else:
                names.feed(entry.kind, record)
            if entry.kind in IN_A_QUEUE:
                facts.message_count += entry.kind == Kind.MESSAGE
                self.positions.append(at)
                self.crcs.append(entry.crc)
            at += entry.length
        self._surveyor._on_block(block)

    def _note(self, part: str, position: int, block: int, size: int, says: str) -> None:
        segment = self.segment
        offset = segment.file_offset(position)
        self.damage.append(
            Damage(part, segment.name, says, segment.number, offset, position, block, size)
        )


def _whole_page(header: IndexHeader, data: bytes) -> Page | None:
    """All parts of an index file; None: one does not verify."""
    pieces = _cut(data, HEAD_BYTES, header.directory_bytes, header.sparse_bytes, header.body_bytes)
    _, first, second, body = pieces
    directory = decode_directory(header, first)
    if directory is None or decode_sparse(header, second) is None:
        return None
    return decode_page(header, directory, body)


def _cut(data: bytes, *sizes: int) -> Iterator[bytes]:
    at = 0
    for size in sizes:
        yield data[at : at + size]
        at += size
