"""Messages of standard codes, looked at one by one: the way in of what is not plain."""

from collections.abc import Sequence
from typing import Final

from protocols.errors import Code, Refused
from store.answers import FULL_HINT, STORE_FULL, AppendRecord, AppendResult
from store.appender import NOWHERE, Draft, Plan, append_messages
from store.core import Core
from store.late import usable_lights
from store.log.format import EntryFlag
from store.log.messages import is_record, set_queue_id, tag_hash_of
from store.metadata.compacted import NO_KEY_HINT, has_key
from store.metadata.topics import Topics
from store.noting import COMPACTED, Noting
from store.retention.room import Room
from store.timers.holding import Holding

_HAS_TAG: Final = int(EntryFlag.HAS_TAG)


class StandardSender:
    """Admits and stores them."""

    def __init__(
        self, core: Core, topics: Topics, room: Room, holding: Holding, noting: Noting
    ) -> None:
        self._core = core
        self._topics = topics
        self._room = room
        self._holding = holding
        self._noting = noting
        self._turn = 0

    def append(self, records: Sequence[AppendRecord]) -> list[AppendResult]:
        """Store *records* in one block."""
        results: list[AppendResult] = []
        stored: list[int] = []
        bodies: list[bytearray] = []
        plans: list[Plan] = []
        flags: list[int] = []
        is_full = not self._room.has_room_for(sum([len(item.record) for item in records]))
        for index, item in enumerate(records):
            try:
                queue_id = self._choose(item, is_full=is_full)
                record, plan = self._place(item, queue_id)
            except Refused as refused:
                results.append(AppendResult(refused.code, 0, item.queue_id, -1, refused.hint))
                continue
            bodies.append(record)
            plans.append(plan)
            flags.append(item.flags & 0xF | (EntryFlag.HELD if plan is NOWHERE else _HAS_TAG))
            if item.topic in self._topics.compacted and plan is not NOWHERE:
                flags[-1] |= COMPACTED
            stored.append(index)
            results.append(AppendResult(Code.OK, 0, queue_id, -1))
        if not stored:
            return results
        items = [records[index] for index in stored]
        draft = Draft(
            bytearray(b"".join(bodies)),
            [len(record) for record in bodies],
            range(len(items)),
            plans,
            flags,
            [item.order_hash for item in items],
            tags=[tag_hash_of(item.record) for item in items],
        )
        positions, offsets = append_messages(self._core, draft)
        if NOWHERE in plans:
            self._noting.held(positions, flags)
        if self._topics.compacted:
            self._noting.compacted(positions, offsets, flags)
        for index, position, offset in zip(stored, positions, offsets, strict=True):
            results[index] = results[index]._replace(position=position, offset=offset)
        return results

    def _place(self, item: AppendRecord, queue_id: int) -> tuple[bytearray, Plan]:
        """(the record to store, where it goes: nowhere if it is held). Raises Refused."""
        is_late = item.due_ms > self._core.log.wall_ms
        if item.is_half or is_late:
            due_ms = 0 if item.is_half else item.due_ms
            record = bytearray(self._holding.wrap(item.record, due_ms, queue_id, item.keys))
            plan = NOWHERE
        else:
            record = bytearray(item.record)
            queue = self._core.message_queue(item.topic, queue_id)
            plan = Plan(queue, usable_lights(self._core, item.keys))
        set_queue_id(record, queue_id)
        return record, plan

    def _choose(self, item: AppendRecord, *, is_full: bool) -> int:
        """Queue id for a message that may be stored. Raises Refused."""
        if is_full:
            raise Refused(STORE_FULL, item.topic, FULL_HINT)
        if not is_record(item.record):
            raise Refused(Code.MESSAGE_CORRUPTED, item.topic, "not a stored record")
        config = self._topics.for_send(item.topic, item.queue_id)
        if item.topic in self._topics.compacted and not has_key(item.record):
            raise Refused(Code.ILLEGAL_MESSAGE_KEY, item.topic, NO_KEY_HINT)
        if item.queue_id >= 0:
            return item.queue_id
        self._turn += 1
        return self._turn % config.write_queue_count
