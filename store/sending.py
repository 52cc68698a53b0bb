"""
From frames and standard requests to blocks: admit each item, then store what was admitted.

A frame whose items are all admitted (nearly every one) goes to the appender as it came. Anything
else is compacted first; what became of the other items stands in a FRAME_RESULT record.
"""

from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final

from protocols.canonical import is_created_explicitly
from protocols.errors import Code, Refused
from protocols.remoting.matrix import Matrix
from protocols.remoting.sending import (
    ItemFlag,
    ItemRun,
    SendAnswer,
    SendColumns,
    SendFrame,
    SendSet,
    SetFlag,
)
from protocols.stored_names import tenant_and_name
from store.answers import STORE_FULL, AppendRecord, AppendResult
from store.appender import ITEM_BITS, NOWHERE, Draft, Plan, append_messages
from store.bulk import Bulk
from store.core import Core
from store.frame_runs import append_runs
from store.index.queues import Queue
from store.late import usable_lights
from store.log.format import EntryFlag, Kind, entry_extra
from store.log.messages import (
    is_record,
    property_of,
    queue_id_of,
    set_queue_id,
    tag_hash_of,
    topic_of,
)
from store.log.state import pack
from store.lone import append_lone
from store.metadata.compacted import NO_KEY_HINT, has_key, value_of
from store.metadata.frames import FrameFacts, GatewayFrames, make_answer
from store.metadata.retained import CLEARED, RetainedChange
from store.parts import Parts
from store.policies.admission import Admission, SetPlan
from store.policies.handover import Handover
from store.policies.keeper import TOO_LONG, Keeper
from store.retention.room import Room
from store.timers.holding import Holding, Wrapped

_FULL_HINT: Final = "the store is full"
QUEUE_FULL: Final = Code.LITE_TOPIC_QUOTA_EXCEEDED
QUEUE_FULL_HINT: Final = "the queue is at its limit"
_HAS_ONCE: Final = int(ItemFlag.HAS_ONCE_KEY)  # plain numbers: IntFlag costs 0.6 µs per message
_IS_HELD: Final = int(ItemFlag.DELAYED | ItemFlag.HALF)
_IS_PRIMARY: Final = int(SetFlag.IS_PRIMARY)
_IS_RETAINED: Final = int(SetFlag.IS_RETAINED)
_HAS_TAG: Final = int(EntryFlag.HAS_TAG)
_BYTES_ONLY: Final = int(EntryFlag.BYTES_ONLY)
_NOT_PLAIN: Final = _HAS_ONCE | _IS_HELD
_SETS_RETAINED: Final = int(EntryFlag.SETS_RETAINED)
_COMPACTED: Final = int(EntryFlag.COMPACTED)
_HELD: Final = int(EntryFlag.HELD)
PLANS_MAX: Final = 100_000
"""Sets whose queues are remembered: as many heads as are in use at a time."""


class Sender:
    """Stores messages of both code families."""

    def __init__(
        self,
        core: Core,
        parts: Parts,
        room: Room,
        keeper: Keeper,
        handover: Handover,
        holding: Holding,
    ) -> None:
        self._core = core
        self._keeper = keeper
        self._handover = handover
        self._holding = holding
        self._topics = parts.topics
        self._frames = parts.frames
        self._once = parts.once
        self._retained = parts.retained
        self._compacted = parts.compacted
        self._room = room
        self._turn = 0
        self._plans: dict[SendSet, SetPlan] = {}
        self._planned_at = (-1, -1)
        """Versions of topics and queues that the remembered plans hold for."""

    # ── frames ──────────────────────────────────────────────────────────────────────────

    def run(self, gateway: GatewayFrames, frame: SendFrame) -> SendAnswer:
        """Run a frame that has not run before."""
        self._frames.answered(gateway, frame.answered)
        plans = self._plan_sets(frame.sets)
        is_full = not self._room.has_room_for(len(frame.records))
        is_simple = (
            not is_full and not gateway.refused_orders and all([plan.is_simple for plan in plans])
        )
        if is_simple and frame.lone is not None and not self._core.log.has_state:
            _, at, bits, order, expires_at_ms, _ = frame.lone
            plan = plans[at]
            if not expires_at_ms and not bits & _NOT_PLAIN and not plan.flags & _SETS_RETAINED:
                return self._store_lone(gateway, frame, plan, bits, order)
        if is_simple and frame.runs is not None and self._is_plain(frame.runs, plans):
            return self._store_runs(gateway, frame, plans)
        facts = FrameFacts([], [], [])
        if is_simple and frame.matrix is not None and not _has_options(frame.matrix):
            bulk = Bulk.of_items(
                frame.matrix, [p.plan or NOWHERE for p in plans], [p.flags for p in plans]
            )
            return self._store_bulk(gateway, frame, plans, bulk)
        columns = frame.columns
        bits = 0
        for value in set(columns.flags):
            bits |= value
        is_simple = is_simple and not bits & _NOT_PLAIN
        count = len(columns.lengths)
        chosen: Sequence[int] = range(count)
        records = bytearray(frame.records)
        held: dict[int, Wrapped] = {}
        if bits & _IS_HELD:
            held = self._holding.wrap_items(frame, self._core.log.wall_ms)
        if not is_simple:
            admission = self._admission(plans)
            chosen, sets = self._admit(
                gateway, frame, plans, facts, admission, held, is_full=is_full
            )
            if len(chosen) < count:
                records = _compact(frame, chosen)
                rows = [[column[index] for index in chosen] for column in columns]
                columns = SendColumns._make(rows)
            if admission is not None:
                columns = columns._replace(set_indexes=sets)
                plans = [*plans, *admission.variants(plans)]
            if facts.refused or facts.partial or facts.repeats:
                self._core.log.state(Kind.FRAME_RESULT, pack(*facts))
        if held:
            plans = [*plans, SetPlan(NOWHERE, int(EntryFlag.HELD))]
            records, columns = _with_held(records, columns, chosen, held, len(plans) - 1)
        answer = self._store(gateway, frame, facts, plans, records, columns)
        if not is_simple and admission is not None:
            for guard, record in admission.dead:
                self._handover.records(guard, [record], TOO_LONG)
        return answer

    def _admission(self, plans: Sequence[SetPlan]) -> Admission | None:
        """Who judges the items of a frame; None: no queue of it asks for that."""
        if not any([plan.is_judged for plan in plans]):
            return None
        return Admission(
            [plan.plan or NOWHERE for plan in plans],
            self._keeper.judges,
            self._core.entries.end,
            self._core.credit_of,
        )

    def _store(
        self,
        gateway: GatewayFrames,
        frame: SendFrame,
        facts: FrameFacts,
        plans: Sequence[SetPlan],
        records: bytearray,
        columns: SendColumns,
    ) -> SendAnswer:
        lengths, set_indexes, flags, orders, expires, once_keys = columns
        entry_flags = _entry_flags(plans, set_indexes, flags)
        extras: list[bytes] | None = None
        if any(expires) or any([flag & _HAS_ONCE for flag in set(flags)]):
            entry_flags, extras = _with_extras(entry_flags, flags, expires, once_keys)
        block_at = self._core.log.end
        item_count = len(frame.columns.lengths)
        positions, offsets = append_messages(
            self._core,
            Draft(
                records,
                lengths,
                set_indexes,
                [plan.plan or NOWHERE for plan in plans],
                entry_flags,
                orders,
                extras=extras,
                gateway=gateway.number,
                gateway_epoch=frame.gateway_epoch,
                frame=frame.frame,
                item_count=item_count,
                refused_count=len(facts.refused),
            ),
        )
        if extras is not None:
            self._note_extras(positions, offsets, flags, expires, once_keys)
        if any([plan.flags & _SETS_RETAINED for plan in plans]):
            self._note_retained(positions, entry_flags)
        if self._topics.compacted:
            self._note_compacted(positions, offsets, entry_flags)
        if plans and plans[-1].flags & _HELD:
            self._note_held(positions, entry_flags)
        if len(positions) == item_count:
            answer = SendAnswer(frame.frame, positions, offsets, {}, facts.partial)
        else:
            stored = list(zip(positions, offsets, strict=True))
            answer = make_answer(frame.frame, item_count, stored, facts)
        self._core.counters.refused += len(facts.refused)
        self._frames.ran(gateway, frame.frame, block_at, answer)
        return answer

    def _store_lone(
        self, gateway: GatewayFrames, frame: SendFrame, plan: SetPlan, bits: int, order: int
    ) -> SendAnswer:
        """``_store`` for a frame of one message that says nothing of its own."""
        block_at = self._core.log.end
        position, offset = append_lone(
            self._core,
            bytearray(frame.records),
            plan.plan or NOWHERE,
            plan.flags | (bits & ITEM_BITS),
            order,
            gateway=gateway.number,
            gateway_epoch=frame.gateway_epoch,
            frame=frame.frame,
        )
        answer = SendAnswer(frame.frame, array("Q", (position,)), array("q", (offset,)), {}, ())
        self._frames.ran(gateway, frame.frame, block_at, answer)
        return answer

    def _is_plain(self, runs: Sequence[ItemRun], plans: Sequence[SetPlan]) -> bool:
        """Whether all records are of one size, and none of a kind that is noted elsewhere."""
        size = runs[0].length
        return not self._topics.compacted and not any(
            [
                run.length != size
                or run.expires_at_ms
                or run.flags & _NOT_PLAIN
                or plans[run.set_index].flags & _SETS_RETAINED
                for run in runs
            ]
        )

    def _store_runs(
        self, gateway: GatewayFrames, frame: SendFrame, plans: Sequence[SetPlan]
    ) -> SendAnswer:
        """``_store`` for a big frame of a few runs."""
        block_at = self._core.log.end
        positions, offsets = append_runs(
            self._core,
            frame,
            [plan.plan or NOWHERE for plan in plans],
            [plan.flags for plan in plans],
            gateway.number,
        )
        answer = SendAnswer(frame.frame, positions, offsets, {}, ())
        self._frames.ran(gateway, frame.frame, block_at, answer)
        return answer

    def _store_bulk(
        self, gateway: GatewayFrames, frame: SendFrame, plans: Sequence[SetPlan], bulk: Bulk
    ) -> SendAnswer:
        """``_store`` for a big frame of which every item is stored."""
        block_at = self._core.log.end
        positions, offsets = bulk.append(
            self._core,
            frame.own_records,
            gateway=gateway.number,
            gateway_epoch=frame.gateway_epoch,
            frame=frame.frame,
            item_count=frame.item_count,
        )
        if any([plan.flags & _SETS_RETAINED for plan in plans]):
            self._note_retained(positions, bulk.flags.tolist())
        if self._topics.compacted:
            self._note_compacted(positions, offsets, bulk.flags.tolist())
        answer = SendAnswer(frame.frame, positions, offsets, {}, ())
        self._frames.ran(gateway, frame.frame, block_at, answer)
        return answer

    def _plan_sets(self, sets: Sequence[SendSet]) -> list[SetPlan]:
        """What the sets mean now; remembered while no topic changes and no queue goes."""
        known = self._plans
        version = (self._topics.version, self._core.queues.version)
        if version != self._planned_at or len(known) > PLANS_MAX:
            known.clear()
        found: list[SetPlan] = []
        for send_set in sets:
            plan = known.get(send_set)
            if plan is None:
                plan = self._plan(send_set)
                if plan.plan is not None and not plan.missing:
                    known[send_set] = plan
            found.append(plan)
        self._planned_at = (self._topics.version, self._core.queues.version)
        return found

    def _plan(self, send_set: SendSet) -> SetPlan:
        """Resolve names to queues; creates what may come into being by a first send."""
        is_primary = bool(send_set.flags & _IS_PRIMARY)
        flags = 0 if is_primary else _BYTES_ONLY
        if send_set.flags & _IS_RETAINED:
            flags |= _SETS_RETAINED
        lights: list[Queue] = []
        missing: list[bytes] = []
        for key in send_set.keys:
            queue = self._core.queues.find(key)
            if queue is not None:
                lights.append(queue)
            elif is_created_explicitly(key):
                missing.append(key)
            else:
                lights.append(self._core.new_light_queue(key, "", {}))
        queue = None
        if is_primary:
            try:
                self._topics.for_send(send_set.topic, send_set.queue_id)
            except Refused as refused:
                return SetPlan(None, flags, refused.code, refused.hint, tuple(missing))
            queue = self._core.message_queue(send_set.topic, send_set.queue_id)
            if send_set.topic in self._topics.compacted:
                flags |= _COMPACTED
        elif not lights:
            hint = "no queue wants it any more"
            return SetPlan(None, flags, Code.NOT_FOUND, hint, tuple(missing))
        judges = self._keeper.judges
        is_judged = bool(judges) and not judges.keys().isdisjoint(lights)
        needs_keys = bool(flags & _COMPACTED)
        return SetPlan(
            Plan(queue, lights),
            flags,
            missing=tuple(missing),
            is_judged=is_judged,
            needs_keys=needs_keys,
            is_simple=not (missing or is_judged or needs_keys),
        )

    def _admit(
        self,
        gateway: GatewayFrames,
        frame: SendFrame,
        plans: Sequence[SetPlan],
        facts: FrameFacts,
        admission: Admission | None,
        held: Mapping[int, Wrapped],
        *,
        is_full: bool,
    ) -> tuple[list[int], list[int]]:
        """
        (indexes of items to be stored, the plan of each); *facts* says what became of the others.
        """
        chosen: list[int] = []
        sets: list[int] = []
        seen: dict[bytes, int] = {}
        rows = zip(*frame.columns, strict=True)
        end = 0
        for index, (length, at, flags, order, _, once_key) in enumerate(rows):
            start, end = end, end + length
            plan = plans[at]
            code, hint = plan.code, plan.hint
            if is_full:
                code, hint = STORE_FULL, _FULL_HINT
            elif index in held and held[index].code:
                code, hint = held[index].code, held[index].hint
            elif order and order in gateway.refused_orders:
                code, hint = Code.PRECONDITION_FAILED, "an earlier message of its key was refused"
            elif plan.needs_keys and not has_key(frame.records[start:end]):
                code, hint = Code.ILLEGAL_MESSAGE_KEY, NO_KEY_HINT
            if not code and flags & _HAS_ONCE:
                place = self._once.find(once_key, self._core.log.wall_ms)
                if place is None and once_key in seen:
                    place = (-1 - seen[once_key], -1)  # twice in one frame: as that item
                if place is not None:
                    facts.repeats.append((index, *place))
                    continue
            if not code and plan.is_judged and admission is not None and index not in held:
                at, full = admission.judge(at, frame.records[start:end])
                if at < 0:
                    code, hint = QUEUE_FULL, QUEUE_FULL_HINT
                else:
                    facts.partial.extend([(index, key, int(QUEUE_FULL)) for key in full])
            if code:
                facts.refused.append((index, code, hint, order))
                if order:
                    gateway.refused_orders[order] = frame.frame
                continue
            if flags & _HAS_ONCE:
                seen[once_key] = index
            facts.partial.extend([(index, key, int(Code.NOT_FOUND)) for key in plan.missing])
            chosen.append(index)
            sets.append(at)
        return chosen, sets

    def _note_extras(
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
            if flag & _HAS_ONCE:
                self._once.add(once_key, position, offset, wall_ms)

    def _note_retained(self, positions: "array[int]", entry_flags: Sequence[int]) -> None:
        for position, flags in zip(positions, entry_flags, strict=True):
            if flags & _SETS_RETAINED:
                record = self._core.record_at(position)
                self._retained.note(retained_change(record, position, flags))
                self._core.log.when_durable(self._retained.show_next)

    def _note_compacted(
        self, positions: "array[int]", offsets: "array[int]", entry_flags: Sequence[int]
    ) -> None:
        """The last message of each key, in topics that keep it."""
        for position, offset, flags in zip(positions, offsets, entry_flags, strict=True):
            if flags & _COMPACTED:
                record = self._core.record_at(position)
                queue = self._core.message_queue(topic_of(record), queue_id_of(record))
                value = value_of(record, queue.number, offset)
                self._compacted.note(value, self._core.log.wall_ms)

    def _note_held(self, positions: "array[int]", entry_flags: Sequence[int]) -> None:
        rows = zip(positions, entry_flags, strict=True)
        self._holding.note([at for at, flags in rows if flags & EntryFlag.HELD])

    # ── standard codes ──────────────────────────────────────────────────────────────────

    def append(self, records: Sequence[AppendRecord]) -> list[AppendResult]:
        """Store messages of standard codes, in one block."""
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
                flags[-1] |= _COMPACTED
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
            self._note_held(positions, flags)
        if self._topics.compacted:
            self._note_compacted(positions, offsets, flags)
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
            raise Refused(STORE_FULL, item.topic, _FULL_HINT)
        if not is_record(item.record):
            raise Refused(Code.MESSAGE_CORRUPTED, item.topic, "not a stored record")
        config = self._topics.for_send(item.topic, item.queue_id)
        if item.topic in self._topics.compacted and not has_key(item.record):
            raise Refused(Code.ILLEGAL_MESSAGE_KEY, item.topic, NO_KEY_HINT)
        if item.queue_id >= 0:
            return item.queue_id
        self._turn += 1
        return self._turn % config.write_queue_count


def retained_change(record: bytes | memoryview, position: int, flags: int) -> RetainedChange:
    """What the record does to the value of its address."""
    tenant, name = tenant_and_name(topic_of(record))
    subject = str(property_of(record, b"TG_SUBJECT"), "utf-8", "replace") or name
    is_clear = flags & EntryFlag.CLEARS_RETAINED
    return RetainedChange(tenant, subject, CLEARED if is_clear else position)


def _entry_flags(
    plans: Sequence[SetPlan], set_indexes: Sequence[int], flags: Sequence[int]
) -> Sequence[int]:
    """Entry flags per item, from its set's and its own."""
    bits = [plan.flags for plan in plans]
    if len(set(bits)) == 1 and flags and flags.count(flags[0]) == len(flags):
        return [bits[0] | (flags[0] & ITEM_BITS)] * len(flags)
    return [bits[at] | (flag & ITEM_BITS) for at, flag in zip(set_indexes, flags, strict=True)]


def _has_options(items: Matrix) -> bool:
    """Whether some item expires, is held or has a once-key: such go the other way."""
    return bool((items["flags"] & _NOT_PLAIN).any() or items["expires"].any())


def _compact(frame: SendFrame, chosen: Sequence[int]) -> bytearray:
    """The records of the chosen items, back to back."""
    lengths = frame.columns.lengths
    starts = list(accumulate(lengths, initial=0))
    parts = [frame.records[starts[index] : starts[index + 1]] for index in chosen]
    return bytearray(b"".join(parts))


def _with_held(
    records: bytearray,
    columns: SendColumns,
    chosen: Sequence[int],
    held: Mapping[int, Wrapped],
    set_index: int,
) -> tuple[bytearray, SendColumns]:
    """Held items in their held form, following the set *set_index*."""
    lengths, sets = list(columns.lengths), list(columns.set_indexes)
    starts = list(accumulate(lengths, initial=0))
    pieces: list[bytes | memoryview] = []
    view = memoryview(records)
    for at, index in enumerate(chosen):
        wrapped = held.get(index)
        if wrapped is None:
            pieces.append(view[starts[at] : starts[at + 1]])
            continue
        pieces.append(wrapped.record)
        lengths[at], sets[at] = len(wrapped.record), set_index
    return bytearray(b"".join(pieces)), columns._replace(lengths=lengths, set_indexes=sets)


def _with_extras(
    entry_flags: Sequence[int],
    flags: Sequence[int],
    expires: Sequence[int],
    once_keys: Sequence[bytes],
) -> tuple[list[int], list[bytes]]:
    """Entry flags and encoded optional fields of items that have any."""
    extras: list[bytes] = []
    full_flags: list[int] = []
    for bits, flag, expires_at_ms, once_key in zip(
        entry_flags, flags, expires, once_keys, strict=True
    ):
        if expires_at_ms:
            bits |= EntryFlag.HAS_EXPIRES
        if flag & _HAS_ONCE:
            bits |= EntryFlag.HAS_ONCE
        full_flags.append(bits)
        extras.append(entry_extra(bits, expires_at_ms, once_key, 0))
    return full_flags, extras
