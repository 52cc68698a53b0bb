"""
From frames to blocks: admit each item, then store what was admitted.

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
from store.answers import FULL_HINT, STORE_FULL
from store.appender import ITEM_BITS, NOWHERE, Draft, Plan, append_messages
from store.bulk import Bulk
from store.core import Core
from store.frame_runs import append_runs
from store.index.queues import Queue
from store.log.format import EntryFlag, Kind, entry_extra
from store.log.state import pack
from store.lone import append_lone
from store.metadata.compacted import NO_KEY_HINT, has_key
from store.metadata.frames import FrameFacts, GatewayFrames, make_answer
from store.noting import COMPACTED, HAS_ONCE, SETS_RETAINED, Noting
from store.parts import Parts
from store.policies.admission import Admission, SetPlan
from store.policies.handover import Handover
from store.policies.keeper import TOO_LONG, Keeper
from store.retention.room import Room
from store.timers.holding import Holding, Wrapped

QUEUE_FULL: Final = Code.LITE_TOPIC_QUOTA_EXCEEDED
QUEUE_FULL_HINT: Final = "the queue is at its limit"
_IS_HELD: Final = int(ItemFlag.DELAYED | ItemFlag.HALF)
_IS_PRIMARY: Final = int(SetFlag.IS_PRIMARY)
_IS_RETAINED: Final = int(SetFlag.IS_RETAINED)
_HAS_TAG: Final = int(EntryFlag.HAS_TAG)
_BYTES_ONLY: Final = int(EntryFlag.BYTES_ONLY)
_NOT_PLAIN: Final = HAS_ONCE | _IS_HELD
_HELD: Final = int(EntryFlag.HELD)
PLANS_MAX: Final = 100_000
"""Sets whose queues are remembered: as many heads as are in use at a time."""


class Sender:
    """Stores messages of gateways."""

    def __init__(
        self,
        core: Core,
        parts: Parts,
        room: Room,
        keeper: Keeper,
        handover: Handover,
        holding: Holding,
        noting: Noting,
    ) -> None:
        self._core = core
        self._keeper = keeper
        self._handover = handover
        self._holding = holding
        self._noting = noting
        self._topics = parts.topics
        self._frames = parts.frames
        self._once = parts.once
        self._room = room
        self._plans: dict[SendSet, SetPlan] = {}
        self._planned_at = (-1, -1)
        """Versions of topics and queues that the remembered plans hold for."""

    def send(self, gateway: str, frame: SendFrame) -> SendAnswer:
        """Run a numbered frame, once. Raises Refused (fenced epoch, frame number spent)."""
        frames = self._frames
        known = frames.get(gateway)
        frames.enter(known, frame.gateway_epoch)
        if frame.frame > known.last_frame:
            return self._run(known, frame)
        answer = frames.result(known, frame.frame)
        if answer is None:
            hint = f"frame {frame.frame} was settled"
            raise Refused(Code.PRECONDITION_FAILED, gateway, hint)
        return answer

    def _run(self, gateway: GatewayFrames, frame: SendFrame) -> SendAnswer:
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
            if not expires_at_ms and not bits & _NOT_PLAIN and not plan.flags & SETS_RETAINED:
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
        if any(expires) or any([flag & HAS_ONCE for flag in set(flags)]):
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
            self._noting.extras(positions, offsets, flags, expires, once_keys)
        if any([plan.flags & SETS_RETAINED for plan in plans]):
            self._noting.retained(positions, entry_flags)
        if self._topics.compacted:
            self._noting.compacted(positions, offsets, entry_flags)
        if plans and plans[-1].flags & _HELD:
            self._noting.held(positions, entry_flags)
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
                or plans[run.set_index].flags & SETS_RETAINED
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
        if any([plan.flags & SETS_RETAINED for plan in plans]):
            self._noting.retained(positions, bulk.flags.tolist())
        if self._topics.compacted:
            self._noting.compacted(positions, offsets, bulk.flags.tolist())
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
            flags |= SETS_RETAINED
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
                flags |= COMPACTED
        elif not lights:
            hint = "no queue wants it any more"
            return SetPlan(None, flags, Code.NOT_FOUND, hint, tuple(missing))
        judges = self._keeper.judges
        is_judged = bool(judges) and not judges.keys().isdisjoint(lights)
        needs_keys = bool(flags & COMPACTED)
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
                code, hint = STORE_FULL, FULL_HINT
            elif index in held and held[index].code:
                code, hint = held[index].code, held[index].hint
            elif order and order in gateway.refused_orders:
                code, hint = Code.PRECONDITION_FAILED, "an earlier message of its key was refused"
            elif plan.needs_keys and not has_key(frame.records[start:end]):
                code, hint = Code.ILLEGAL_MESSAGE_KEY, NO_KEY_HINT
            if not code and flags & HAS_ONCE:
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
            if flags & HAS_ONCE:
                seen[once_key] = index
            facts.partial.extend([(index, key, int(Code.NOT_FOUND)) for key in plan.missing])
            chosen.append(index)
            sets.append(at)
        return chosen, sets


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
        if flag & HAS_ONCE:
            bits |= EntryFlag.HAS_ONCE
        full_flags.append(bits)
        extras.append(entry_extra(bits, expires_at_ms, once_key, 0))
    return full_flags, extras
