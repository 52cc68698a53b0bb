"""
The live entries of a segment are appended again, so that the rest of it can go.

Copies first, some at a time; when all are durable, what must stay is looked at once more, and
then a remnant takes the segment's place in the index. The file goes later, when both kept
snapshots know the remnant: a crash before that finds the segment as it was.
"""

from collections.abc import Sequence
from typing import Final

from protocols.checksum import crc32
from protocols.errors import Refused
from store.core import Core
from store.index.pages import Page
from store.index.remnants import Moved, Remnant, remnant_of
from store.log.format import (
    BLOCK,
    ENTRY,
    M32,
    PAIR,
    SOURCE,
    EntryFlag,
    Kind,
    entry_extra,
    entry_struct,
    seed,
)
from store.log.segments import Segment

STEP_BYTES: Final = 1 << 20
"""Copied per step, in one block."""


CRC_AT: Final = 12
"""Index of the CRC in a row: size, kind, 0, flags, pairs and length come before it."""


class Moving:
    """One segment on its way out. ``copy`` until it is true; then, when durable, ``finish``."""

    def __init__(self, core: Core, segment: Segment, newest_ms: int, *, is_pressed: bool) -> None:
        self._core = core
        self.is_pressed = is_pressed
        """Nothing of it counted as kept."""

        self.segment = segment
        self.newest_ms = newest_ms
        self.wanted: dict[int, list[int]] = {}
        """Number of the segment or of a remnant → positions still to be copied."""

        self._moved: dict[int, dict[int, Moved]] = {segment.number: {}}
        self._pairs: dict[int, list[int]] = {}
        """Position → queue number, offset, queue number, offset…"""

        self.is_waiting = False
        """For the copies to become durable."""

    @property
    def count(self) -> int:
        return sum([len(moved) for moved in self._moved.values()])

    def want(self, live: dict[int, set[int]]) -> bool:
        """Copy these too, by number; False: all of them are copied already."""
        self.wanted = {}
        for number, positions in live.items():
            moved = self._moved.setdefault(number, {})
            if missing := sorted(positions - moved.keys()):
                self.wanted[number] = missing
                self._find_pairs(number, missing)
        return bool(self.wanted)

    def _find_pairs(self, number: int, positions: Sequence[int]) -> None:
        page, pairs = self._core.cold.page(number), self._pairs
        pairs |= {position: [] for position in positions}
        for index in range(len(page.directory)):
            row = page.directory.row(index)
            for offset, position in enumerate(page.places_of(index), row.first):
                if position in pairs:
                    pairs[position] += (row.queue, offset)

    # ── copies ──────────────────────────────────────────────────────────────────────────

    def copy(self) -> bool:
        """Append some more; True when nothing is left. What cannot be read any more is rot."""
        for number, positions in list(self.wanted.items()):
            records: list[tuple[int, bytes]] = []
            size = 0
            while positions and size < STEP_BYTES:
                position = positions.pop(0)
                try:
                    record = self._core.record_at(position)
                except Refused:
                    continue
                records.append((position, record))
                size += len(record)
            if records:
                self._append(number, records)
            if positions:
                return False
            del self.wanted[number]
        return True

    def _append(self, number: int, records: Sequence[tuple[int, bytes]]) -> None:
        """One block of relocated records."""
        core, log = self._core, self._core.log
        log.seal_state()
        page = core.cold.page(number)
        rows = [self._row(page, position, self._pairs[position]) for position, _ in records]
        table_bytes = sum([len(head) + len(extra) for head, extra in rows])
        body = b"".join([record for _, record in records])
        start, nonce = log.open_block(BLOCK.size + table_bytes + len(body))
        at = start + BLOCK.size + table_bytes
        table: list[bytes] = []
        for (position, record), (head, extra) in zip(records, rows, strict=True):
            crc = crc32(record, seed(nonce, at)) & M32
            table.append(head[:CRC_AT] + crc.to_bytes(4, "big") + head[CRC_AT + 4 :] + extra)
            self._moved[number][position] = Moved(at, crc)
            at += len(record)
        log.close_block(start, b"".join(table), body, len(table), len(table))
        core.counters.relocated += len(records)

    def _row(self, page: Page, position: int, pairs: Sequence[int]) -> tuple[bytes, bytes]:
        """(fixed part and pairs, optional fields) of the entry's row."""
        entries, index = self._core.entries, page.index_of(position)
        flags = page.flags[index] & ~EntryFlag.HAS_ONCE | EntryFlag.HAS_SOURCE
        extra = entry_extra(
            flags, entries.expires.get(position, 0), b"", entries.targets.get(position, 0)
        )
        extra += SOURCE.pack(position, self.newest_ms)
        size = ENTRY.size + PAIR.size * (len(pairs) // 2) + len(extra)
        head = entry_struct(len(pairs) // 2).pack(
            size, Kind.RELOCATED, 0, flags, len(pairs) // 2, page.lengths[index], 0,
            page.tags[index], page.orders[index], 0, 0, *pairs,
        )  # fmt: skip
        return head, extra

    # ── the end ─────────────────────────────────────────────────────────────────────────

    def finish(self) -> list[int]:
        """
        All copies are durable, and nothing else must stay: remnants take over.

        Returns numbers of idle queues that nothing is left of.
        """
        cold = self._core.cold
        number = self.segment.number
        self._core.lagging.catch_up(cold.directory(number).queues)
        unused: list[int] = []
        for other, moved in self._moved.items():
            if other != number and (old := cold.remnants.get(other)) is not None:
                unused += self._renew(old, moved)
        page = cold.page(number)
        base, end = self.segment.base, self.segment.end
        remnant = remnant_of(page, base, end, self.newest_ms, self._moved[number])
        unused += self._take_over(page, remnant)
        self._core.entries.forget_range(base, end, but=self._moved[number])
        return unused

    def _renew(self, remnant: Remnant, moved: dict[int, Moved]) -> list[int]:
        """A remnant with bytes in the segment: they moved again, or are not needed."""
        low, high = self.segment.base, self.segment.end
        rows = zip(remnant.positions, remnant.wheres, remnant.crcs, strict=True)
        places = {at: Moved(where, crc) for at, where, crc in rows if not low <= where < high}
        places |= moved
        found = remnant_of(remnant, remnant.base, remnant.end, remnant.newest_ms, places)
        self._core.entries.forget_range(remnant.base, remnant.end, but=places)
        return self._take_over(remnant, found)

    def _take_over(self, page: Page, remnant: Remnant) -> list[int]:
        """*remnant* in the place of *page*; queues begin where their first entry is now."""
        core = self._core
        core.cold.leave(remnant)
        firsts: dict[int, int] = {}
        for index in range(len(remnant.directory)):
            row = remnant.directory.row(index)
            firsts.setdefault(row.queue, row.first)
        unused: list[int] = []
        for index in range(len(page.directory)):
            row = page.directory.row(index)
            queue = core.queues.active(row.queue)
            if row.queue in firsts:
                if queue is not None and row.first <= queue.first < firsts[row.queue]:
                    queue.first = firsts[row.queue]
            elif queue is not None:
                queue.dropped(row)
                core.queues.note_unread(queue)
            elif core.queues.idle.dropped(row.queue, row.first, row.first + row.size)[1]:
                unused.append(row.queue)
        return unused
