"""What is noted elsewhere of messages that were stored: last values, ids seen once, timers."""

from array import array
from collections.abc import Sequence
from typing import Final

from protocols.remoting.sending import ItemFlag
from protocols.stored_names import tenant_and_name
from store.core import Core
from store.log.format import EntryFlag
from store.log.messages import property_of, queue_id_of, topic_of
from store.metadata.compacted import value_of
from store.metadata.retained import CLEARED, RetainedChange
from store.parts import Parts
from store.timers.holding import Holding

HAS_ONCE: Final = int(ItemFlag.HAS_ONCE_KEY)  # plain numbers: IntFlag costs 0.6 µs per message
SETS_RETAINED: Final = int(EntryFlag.SETS_RETAINED)
COMPACTED: Final = int(EntryFlag.COMPACTED)


class Noting:
    """Called with the columns of what a block got."""

    def __init__(self, core: Core, parts: Parts, holding: Holding) -> None:
        self._core = core
        self._once = parts.once
        self._retained = parts.retained
        self._compacted = parts.compacted
        self._holding = holding

    def extras(
        self,
        positions: "array[int]",
        offsets: "array[int]",
        flags: Sequence[int],
        expires: Sequence[int],
        once_keys: Sequence[bytes],
    ) -> None:
        wall_ms = self._core.log.wall_ms
        rows = zip(positions, offsets, flags, expires, once_keys, strict=True)
        for position, offset, flag, expires_at_ms, once_key in rows:
            if expires_at_ms:
                self._core.entries.expires[position] = expires_at_ms
            if flag & HAS_ONCE:
                self._once.add(once_key, position, offset, wall_ms)

    def retained(self, positions: "array[int]", entry_flags: Sequence[int]) -> None:
        for position, flags in zip(positions, entry_flags, strict=True):
            if flags & SETS_RETAINED:
                record = self._core.record_at(position)
                self._retained.note(retained_change(record, position, flags))
                self._core.log.when_durable(self._retained.show_next)

    def compacted(
        self, positions: "array[int]", offsets: "array[int]", entry_flags: Sequence[int]
    ) -> None:
        """The last message of each key, in topics that keep it."""
        for position, offset, flags in zip(positions, offsets, entry_flags, strict=True):
            if flags & COMPACTED:
                record = self._core.record_at(position)
                queue = self._core.message_queue(topic_of(record), queue_id_of(record))
                value = value_of(record, queue.number, offset)
                self._compacted.note(value, self._core.log.wall_ms)

    def held(self, positions: "array[int]", entry_flags: Sequence[int]) -> None:
        rows = zip(positions, entry_flags, strict=True)
        self._holding.note([at for at, flags in rows if flags & EntryFlag.HELD])


def retained_change(record: bytes | memoryview, position: int, flags: int) -> RetainedChange:
    """What the record does to the value of its address."""
    tenant, name = tenant_and_name(topic_of(record))
    subject = str(property_of(record, b"TG_SUBJECT"), "utf-8", "replace") or name
    is_clear = flags & EntryFlag.CLEARS_RETAINED
    return RetainedChange(tenant, subject, CLEARED if is_clear else position)
