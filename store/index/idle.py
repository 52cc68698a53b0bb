"""
Light queues that nobody reads and whose entries are all in index files: rows, not objects.

A million of them are what a store has when each device has a queue of its own; as objects they
take 0.7 GB, as rows 60 MB. Rows lie in shards by key, found by open addressing; a queue that is
asked for becomes an object again, and its row is free for another.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from protocols.canonical import is_created_explicitly

if TYPE_CHECKING:
    from store.index.queues import Queue

KEY_BYTES: Final = 16
SLOTS_MIN: Final = 16
LOAD_MAX: Final = 0.7
PAGE: Final = 4096
"""Queue numbers per page of the table from number to row."""

FREE: Final = 0
GONE: Final = 0xFFFFFFFF
"""A slot whose row went: the search goes on behind it."""


class IdleQueue(NamedTuple):
    """What is remembered of a queue."""

    number: int
    key: bytes
    next: int
    first: int
    sealed: int
    name: str = ""


class Shard:
    """Rows of keys whose last byte is the same; column by column. Each of the 256 grows by itself:
    4,000 rows of a million at a time."""

    __slots__ = ("firsts", "free", "keys", "nexts", "numbers", "sealeds", "slots", "used_count")

    def __init__(self) -> None:
        self.keys = bytearray()
        self.numbers = array("I")
        """0: a free row."""

        self.nexts = array("Q")
        self.firsts = array("Q")
        self.sealeds = array("I")
        self.free = array("I")
        self.slots = array("I", [FREE]) * SLOTS_MIN
        self.used_count = 0
        """Slots that are not FREE."""

    def __len__(self) -> int:
        return len(self.numbers) - len(self.free)

    def _slot(self, key: bytes) -> int:
        """Index of the key's slot, or of the FREE one that ends the search."""
        slots, keys = self.slots, self.keys
        mask = len(slots) - 1
        at = int.from_bytes(key[4:8], "little") & mask  # the first byte tells the kind
        while row := slots[at]:
            start = (row - 1) * KEY_BYTES
            if row != GONE and keys[start : start + KEY_BYTES] == key:
                return at
            at = (at + 1) & mask
        return at

    def find(self, key: bytes) -> int:
        """Its row; -1: none."""
        row = self.slots[self._slot(key)]
        return row - 1 if row else -1

    def add(self, queue: "Queue | IdleQueue") -> int:
        """Its row. Nothing has its key yet."""
        if self.used_count >= LOAD_MAX * len(self.slots):
            self._grow()
        key = queue.key
        if self.free:
            row = self.free.pop()
            self.keys[row * KEY_BYTES : (row + 1) * KEY_BYTES] = key
            self.numbers[row], self.nexts[row] = queue.number, queue.next
            self.firsts[row], self.sealeds[row] = queue.first, queue.sealed
        else:
            row = len(self.numbers)
            self.keys += key
            self.numbers.append(queue.number)
            self.nexts.append(queue.next)
            self.firsts.append(queue.first)
            self.sealeds.append(queue.sealed)
        self._take_slot(key, row)
        self.used_count += 1
        return row

    def _take_slot(self, key: bytes, row: int) -> None:
        """The first that is free behind the key's place: it is not there, so none is compared."""
        slots = self.slots
        mask = len(slots) - 1
        at = int.from_bytes(key[4:8], "little") & mask
        while slots[at]:
            at = (at + 1) & mask
        slots[at] = row + 1

    def _grow(self) -> None:
        size = len(self.slots)
        while len(self) >= LOAD_MAX * size / 2:
            size *= 2
        self.slots = array("I", [FREE]) * size
        for row, number in enumerate(self.numbers):
            if number:
                self._take_slot(self.key(row), row)
        self.used_count = len(self)

    def key(self, row: int) -> bytes:
        return bytes(self.keys[row * KEY_BYTES : (row + 1) * KEY_BYTES])

    def get(self, row: int) -> IdleQueue:
        return IdleQueue(
            self.numbers[row], self.key(row), self.nexts[row], self.firsts[row], self.sealeds[row]
        )

    def remove(self, row: int) -> None:
        self.slots[self._slot(self.key(row))] = GONE
        self.numbers[row] = 0
        self.free.append(row)

    def dump(self) -> list[bytes]:
        columns = (self.numbers, self.nexts, self.firsts, self.sealeds, self.free, self.slots)
        return [bytes(self.keys), *[column.tobytes() for column in columns]]

    def load(self, parts: list[bytes]) -> None:
        self.keys = bytearray(parts[0])
        self.slots = array("I")
        columns = (self.numbers, self.nexts, self.firsts, self.sealeds, self.free, self.slots)
        for column, data in zip(columns, parts[1:], strict=True):
            column.frombytes(data)
        self.used_count = len(self.slots) - self.slots.count(FREE)


class IdleTable:
    """All idle queues, by key and by number."""

    def __init__(self) -> None:
        self._shards: dict[int, Shard] = {}
        self._by_number: dict[int, array[int]] = {}
        """Page of numbers → (row << 8 | shard) + 1 each; 0: not here."""

        self.names: dict[int, str] = {}
        """Of those that have one: few."""

        self.count = 0

    def __len__(self) -> int:
        return self.count

    def add_all(self, queues: "Sequence[Queue | IdleQueue]") -> None:
        """They are rows from now on."""
        shards, pages, names = self._shards, self._by_number, self.names
        for queue in queues:
            number, index = queue.number, queue.key[-1]
            shard = shards.get(index)
            if shard is None:
                shard = shards[index] = Shard()
            row = shard.add(queue)
            page = pages.get(number // PAGE)
            if page is None:
                page = pages[number // PAGE] = array("Q", [0]) * PAGE
            page[number % PAGE] = (row << 8 | index) + 1
            if queue.name:
                names[number] = queue.name
        self.count += len(queues)

    def _place(self, number: int) -> tuple[Shard, int] | None:
        page = self._by_number.get(number // PAGE)
        place = page[number % PAGE] - 1 if page is not None else -1
        return (self._shards[place & 0xFF], place >> 8) if place >= 0 else None

    def take(self, key: bytes) -> IdleQueue | None:
        """It is an object from now on; its name is still in ``names``."""
        shard = self._shards.get(key[-1])
        row = shard.find(key) if shard is not None else -1
        return self._take(shard, row) if shard is not None and row >= 0 else None

    def take_numbered(self, number: int) -> IdleQueue | None:
        place = self._place(number)
        return self._take(*place) if place is not None else None

    def _take(self, shard: Shard, row: int) -> IdleQueue:
        found = shard.get(row)
        shard.remove(row)
        page = self._by_number[found.number // PAGE]
        page[found.number % PAGE] = 0
        self.count -= 1
        return found

    def has(self, number: int) -> bool:
        return self._place(number) is not None

    # ── in place ────────────────────────────────────────────────────────────────────────

    def seal(self, number: int, segment: int) -> bool:
        """Its newest sealed segment is *segment*; False: not idle."""
        place = self._place(number)
        if place is not None:
            place[0].sealeds[place[1]] = segment
        return place is not None

    def dropped(self, number: int, first: int, end: int) -> tuple[bool, bool]:
        """Its entries from *first* to *end* went; (it is idle, and it may go as well)."""
        place = self._place(number)
        if place is None:
            return False, False
        shard, row = place
        if first <= shard.firsts[row] < end:
            shard.firsts[row] = end
        is_empty = shard.firsts[row] >= shard.nexts[row]
        return True, is_empty and not is_created_explicitly(shard.key(row))

    # ── snapshot ────────────────────────────────────────────────────────────────────────

    def dump(self) -> list[Any]:
        """As bytes: a million rows take milliseconds."""
        pages = [(number, page.tobytes()) for number, page in self._by_number.items() if any(page)]
        shards = [(index, shard.dump()) for index, shard in self._shards.items() if self.count]
        return [self.count, shards, pages, self.names]

    def load(self, dumped: list[Any]) -> None:
        self.count, shards, pages, names = dumped
        self.names = dict(names)
        for index, parts in shards:
            shard = self._shards[index] = Shard()
            shard.load(parts)
        for number, data in pages:
            page = self._by_number[number] = array("Q")
            page.frombytes(data)

    def __iter__(self) -> Iterator[IdleQueue]:
        for shard in self._shards.values():
            for row, number in enumerate(shard.numbers):
                if number:
                    yield shard.get(row)
